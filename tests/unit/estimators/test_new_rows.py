"""Orthogonality on new rows in the estimators: options, refusals, promises, clusters, saving."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.estimators.rows_of_two_groups import useful

import setsquare as sq
from setsquare.errors import BrokenPromiseError, InputError, NotOrthogonalError
from setsquare.glm import Problem, solve


def test_new_rows_are_one_word_away_and_the_certificate_says_both():
    Z, y, x = useful()
    exact = sq.OrthogonalGLMClassifier().fit(Z, y, protected=x).solution_.certificate
    new = sq.OrthogonalGLMClassifier(orthogonal_on="new rows").fit(Z, y, protected=x).solution_.certificate
    assert exact.is_orthogonal and exact.max_correlation < 1e-8 < exact.new_rows.correlation
    assert new.is_orthogonal and new.max_correlation > 1e-3 > new.new_rows.limit - 0.015
    assert new.new_rows.correlation < 0.3 / np.sqrt(400) < new.new_rows.upper < 0.3
    assert "on new rows" in str(new) and "Upper bound on new rows, 95% confidence" in str(exact)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"orthogonal_on": "test rows"}, "orthogonal_on must be 'new rows' or 'training rows', got 'test rows'"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1"),
        ({"l2": "best"}, 'l2 must be a number of 0 or more, or "auto"'),
        ({"max_correlation": 0.0}, "max_correlation must be above 0 and below 1"),
        ({"orthogonal_on": "new rows", "solver": "mdmm"}, "knows training rows only"),
        ({"l2": "auto", "solver": "mdmm"}, "needs leave-one-out losses"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(options, message):
    Z, y, x = useful(100, 5)
    with pytest.raises(InputError, match=message):
        sq.OrthogonalGLMClassifier(**options).fit(Z, y, protected=x)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (np.zeros(100), "the same value in every row"),
        (np.arange(99), "cluster"),
        ([None, *range(99)], "cluster has missing values"),
    ],
)
def test_bad_clusters_are_refused_in_one_sentence(cluster, message):
    Z, y, x = useful(100, 5)
    with pytest.raises(InputError, match=message):
        sq.OrthogonalGLMClassifier().fit(Z, y, protected=x, cluster=cluster)


def test_clusters_of_a_stream_are_refused():
    import pandas as pd

    Z, y, x = useful(100, 3)
    table = pd.DataFrame(Z, columns=list("abc")).assign(y=y, x=x)
    with pytest.raises(InputError, match="rows in memory"):
        sq.OrthogonalGLMClassifier(protected="x").fit(sq.Stream([table]), "y", cluster="a")


def test_fewer_rows_than_features_are_refused_with_numbers_and_a_ridge_helps():
    rng = np.random.default_rng(0)
    Z, x = rng.normal(size=(60, 80)), rng.normal(size=60)
    Z[:, 0] += x
    y = Z[:, 1] + rng.normal(size=60)
    with pytest.raises(NotOrthogonalError, match=r"60 rows are too few for 80 features.*l2='auto'"):
        sq.OrthogonalGLMRegressor(orthogonal_on="new rows").fit(Z, y, protected=x)
    model = sq.OrthogonalGLMRegressor(orthogonal_on="new rows", l2="auto").fit(Z, y, protected=x)
    assert model.l2_ > 0.0 and model.solution_.certificate.is_orthogonal


def test_an_automatic_ridge_is_one_whose_fit_is_returned_and_is_not_advised_again():
    """Of 30 rows and 60 features the ridge with the smallest loss had a bound of 1, so that its fit was refused."""
    rng = np.random.default_rng(0)
    x, y = (rng.random((2, 30)) < 0.5).astype(float)
    Z = rng.normal(size=(30, 60)) + np.where(np.arange(60) == 0, 1.0, 0.0) * x[:, None]
    with pytest.raises(NotOrthogonalError, match="Use fewer features, a ridge"):
        sq.OrthogonalGLMClassifier(orthogonal_on="new rows").fit(Z, y, protected=x)
    with pytest.warns(sq.errors.WorseThanConstantWarning):
        model = sq.OrthogonalGLMClassifier(orthogonal_on="new rows", l2="auto").fit(Z, y, protected=x)
    assert model.solution_.certificate.new_rows.upper < 1.0


@pytest.mark.parametrize("target", ["training rows", "new rows"])
def test_the_automatic_ridge_has_the_lowest_leave_one_out_loss(target):
    Z, y, x = useful(300, 40)
    model = sq.OrthogonalGLMClassifier(l2="auto", orthogonal_on=target).fit(Z, y, protected=x)
    chosen = model.solution_.certificate.new_rows.loss
    for l2 in (0.0, 0.1 * model.l2_, 10.0 * model.l2_):
        assert (
            chosen <= solve(Problem(Z, y, x, "binomial", l2=l2), orthogonal_on=target).certificate.new_rows.loss + 1e-6
        )


def test_a_promise_is_kept_or_refused_with_what_would_keep_it():
    Z, y, x = useful()
    with pytest.raises(
        BrokenPromiseError, match=r"at most 0\.\d+ .* more than max_correlation=0.02. About \d\d,\d{3} rows"
    ):
        sq.OrthogonalGLMClassifier(orthogonal_on="new rows", max_correlation=0.02).fit(Z, y, protected=x)
    model = sq.OrthogonalGLMClassifier(orthogonal_on="new rows", max_correlation=0.2).fit(Z, y, protected=x)
    assert model.solution_.certificate.new_rows.upper <= 0.2


def test_the_certificate_is_saved_and_models_of_earlier_versions_are_of_training_rows(tmp_path):
    Z, y, x = useful(200, 6)
    model = sq.OrthogonalGLMClassifier(orthogonal_on="new rows", l2="auto").fit(Z, y, protected=x)
    sq.save(model, tmp_path / "model.setsquare")
    again = sq.load(tmp_path / "model.setsquare")
    assert again.solution_.certificate == model.solution_.certificate
    assert again.l2_ == model.l2_ and again.orthogonal_on == "new rows"


@pytest.mark.filterwarnings("ignore::setsquare.errors.SetsquareWarning")
@pytest.mark.parametrize("family", ["binomial", "poisson", "gamma", "gaussian"])
@pytest.mark.parametrize(
    "trouble", ["collinear", "rare group", "zero weights", "skewed", "few rows", "unequal clusters"]
)
def test_trouble_ends_in_a_certificate_or_a_refusal(family, trouble):
    rng = np.random.default_rng(3)
    n = 40 if trouble == "few rows" else 300
    x = (rng.random(n) < (0.02 if trouble == "rare group" else 0.4)).astype(float)
    x[:2] = 0.0, 1.0
    Z = rng.normal(size=(n, 6)) + 0.5 * x[:, None]
    if trouble == "collinear":
        Z = np.column_stack([Z, Z[:, 0] + Z[:, 1], Z[:, 2]])
    if trouble == "skewed":
        Z[:, 0] = np.exp(2.0 * Z[:, 0])
    eta = 0.3 * np.clip(Z[:, 0], -3, 3) + 0.3 * Z[:, 1]
    y = {
        "binomial": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "gamma": rng.gamma(2.0, np.exp(eta)),
        "gaussian": eta + rng.normal(size=n),
    }[family]
    weight = np.where(rng.random(n) < 0.3, 0.0, 1.0) if trouble == "zero weights" else None
    cluster = rng.integers(0, 40, n) ** 2 // 40 if trouble == "unequal clusters" else None
    model = sq.OrthogonalGLMRegressor(family, orthogonal_on="new rows")
    try:
        model.fit(Z, y, protected=x, sample_weight=weight, cluster=cluster)
    except NotOrthogonalError:
        return
    found = model.solution_.certificate.new_rows
    assert model.solution_.certificate.is_orthogonal
    assert np.isfinite([found.correlation, found.upper, found.loss]).all() and found.correlation <= found.upper <= 1.0
