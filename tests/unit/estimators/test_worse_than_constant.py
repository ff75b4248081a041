"""A fit for new rows that predicts them worse than a constant says so."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.unit.estimators.rows_of_two_groups import useful, useless

import setsquare as sq
from setsquare.cli.terminal import phrase
from setsquare.errors import WorseThanConstantWarning
from setsquare.glm import Problem, solve
from setsquare.glm.certificate import Certificate
from setsquare.notes import message


def test_a_fit_that_is_worse_than_a_constant_warns_with_numbers_and_what_to_do():
    Z, y, x = useless()
    with pytest.warns(WorseThanConstantWarning) as caught:
        model = sq.OrthogonalGLMClassifier(orthogonal_on="new rows").fit(Z, y, protected=x)
    certificate, note = model.solution_.certificate, message(caught[0].message)
    found = certificate.new_rows
    assert note.code == "worse-than-constant" and note.severity == "warning"
    assert (note.fields["loss"], note.fields["null"]) == (found.loss, found.loss_constant)
    assert found.loss > found.loss_constant + found.loss_error > found.loss_constant > certificate.loss_null
    assert certificate.is_worse_than_constant and certificate.to_dict()["is_worse_than_constant"]
    assert ["Worse than a constant on new rows", "YES", ""] in certificate.table()["rows"]
    new = useless(100_000, seed=1)
    p = model.predict_proba(new[0])[:, 1]
    assert -np.mean(np.log(np.where(new[1] > 0, p, 1 - p))) > 1.01 * np.log(2)  # it is so
    assert "use l2='auto', fewer features" in note and "orthogonal_on='training rows'" in note
    said = phrase(note)
    assert "--l2 auto" in said and "--orthogonal-on training-rows" in said and "--method generalized" in said


@pytest.mark.parametrize(
    ("draw", "options"),
    [
        (useful, {"orthogonal_on": "new rows"}),
        (useless, {"orthogonal_on": "new rows", "l2": "auto"}),
        (useless, {"orthogonal_on": "training rows"}),  # nothing was promised about new rows
    ],
)
def test_other_fits_do_not_warn(draw, options):
    Z, y, x = draw()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # with so strong a ridge a row decides, which another warning says
        warnings.simplefilter("error", WorseThanConstantWarning)
        model = sq.OrthogonalGLMClassifier(**options).fit(Z, y, protected=x)
    certificate = model.solution_.certificate
    assert certificate.is_worse_than_constant == (options["orthogonal_on"] == "training rows")
    assert ("Worse than a constant" in str(certificate)) == certificate.is_worse_than_constant


def test_a_chosen_ridge_is_not_advised_again():
    Z, y, x = useless()
    solution = solve(Problem(Z, y, x), orthogonal_on="new rows")
    with pytest.warns(WorseThanConstantWarning, match=r"parameters\): use fewer features or protected columns"):
        sq.estimators.warn.judge(solution, automatic=True)


@pytest.mark.parametrize("clustered", [False, True])
def test_the_standard_error_is_that_of_refits(clustered):
    rng = np.random.default_rng(3)
    n = 60
    x = rng.normal(size=n)
    Z = rng.normal(size=(n, 4)) + 0.5 * x[:, None]
    y = Z[:, 0] + rng.normal(size=n)
    offset = 0.3 * rng.normal(size=n)
    cluster = np.arange(n) // 3 if clustered else None
    units = np.arange(n) if cluster is None else cluster
    found = solve(Problem(Z, y, x, offset=offset, cluster=cluster))
    more, constant = np.zeros(units.max() + 1), 0.0
    for unit in range(len(more)):
        out = units == unit
        kept = None if cluster is None else cluster[~out]
        refit = solve(Problem(Z[~out], y[~out], x[~out], offset=offset[~out], cluster=kept))
        eta = Z[out] @ refit.coef[0] + refit.intercept[0] + offset[out]
        null = np.mean(y - offset) + offset[out]
        more[unit] = 0.5 * np.sum((y[out] - eta) ** 2 - (y[out] - null) ** 2) / n
        constant += 0.5 * np.sum((y[out] - offset[out] - np.mean((y - offset)[~out])) ** 2) / n
    error = np.sqrt(np.sum(more**2) - more.sum() ** 2 / len(more))
    new_rows = found.certificate.new_rows
    np.testing.assert_allclose(new_rows.loss - found.certificate.loss_null, more.sum(), rtol=1e-6)
    np.testing.assert_allclose(new_rows.loss_error, error, rtol=1e-6)
    np.testing.assert_allclose(new_rows.loss_constant, constant, rtol=5e-3)  # first order in 1 / units


def test_a_certificate_of_an_earlier_version_has_no_standard_error():
    Z, y, x = useless()
    state = solve(Problem(Z, y, x)).certificate.state()
    del state["new_rows"]["loss_constant"], state["new_rows"]["loss_error"]
    old = Certificate.of_state(state)
    assert old.new_rows.loss_error is None and not old.is_worse_than_constant


@pytest.mark.parametrize("family", ["binomial", "poisson", "gamma", "negative_binomial", "multinomial"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_constant_is_left_out_one_row_at_a_time_too(family, weighted):
    rng = np.random.default_rng(4)
    n = 150
    x = rng.normal(size=n)
    Z = rng.normal(size=(n, 3))
    y = {"gamma": rng.gamma(2.0, size=n), "multinomial": rng.integers(0, 3, n)}.get(family, rng.integers(0, 2, n))
    w = rng.integers(1, 4, n).astype(float) if weighted else np.ones(n)
    found = solve(Problem(Z, y.astype(float), x, family, weight=w)).certificate
    w = w / w.sum()
    Y = (y[:, None] == np.arange(3)).astype(float) if family == "multinomial" else y[:, None].astype(float)
    mean = (w @ Y - w[:, None] * Y) / (1.0 - w)[:, None]
    glm = sq.families.family(family)
    if family == "multinomial":
        loss = -np.log(mean[np.arange(n), y])
    else:
        loss = glm.row_losses(Y[:, 0], glm.activation.inverse(mean[:, 0]))[0]
    gap = w @ loss - found.loss_null
    np.testing.assert_allclose(found.new_rows.loss_constant - found.loss_null, gap, rtol=0.05)
    assert gap > 0.2 / n
