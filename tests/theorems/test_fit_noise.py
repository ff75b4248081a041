"""A fit that is exact on its own rows is off on other rows by its sampling error, and an audit can allow for that."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression

import setsquare as sq
from setsquare.auditing.fit_noise import allow_for_fit_noise


def rows(n, rng, pull=0.0):
    X = rng.normal(size=(n, 2))
    Z = np.column_stack([X, np.zeros((n, 2))]) + rng.normal(size=(n, 4))
    return Z, X, Z @ [1.0, 0.5, 1.0, 0.0] + pull * X[:, 0] + rng.normal(size=n)


def audit(seed, n=200, m=600, model=None, **options):
    rng = np.random.default_rng(seed)
    Z, X, y = rows(n, rng)
    model = sq.OrthogonalGLMRegressor("gaussian", **options) if model is None else model
    model.fit(Z, y, **({} if isinstance(model, LinearRegression) else {"protected": X}))
    Z, X, y = rows(m, rng)
    return sq.audit_model(model, Z, y, X, cv="prefit", evaluation="glm", n_permutations=99)


def noted(result):
    return [note for note in result.notes if note.code == "fit-noise"]


def test_the_statistic_is_as_much_larger_as_the_fit_is_small():
    """With 600 rows for 200 of the fit it is 4 chi-squared variables of 2 degrees of freedom, not one."""
    found = np.array([audit(seed).evaluations[0].joint.statistic for seed in range(30)])
    assert 5.0 < found.mean() < 12.0  # 8 and a little for the overfitted constraint; 2 without the fit's error
    assert np.mean(stats.chi2.sf(found, 2) < 0.05) > 0.25  # 47 % expected
    assert np.mean(stats.chi2.sf(found / 4.0, 2) < 0.05) < 0.15


def test_a_note_gives_the_p_value_that_allows_for_it():
    result = next(one for one in map(audit, range(40)) if 0.01 < one.p_value < 0.05)
    (note,) = noted(result)
    test = result.evaluations[0].joint
    assert (
        note.fields["p"] == f"{stats.chi2.sf(test.statistic / 4.0, 2):.2g}"
        and float(note.fields["p"]) > 2 * test.p_value
    )
    assert note.fields["share"] == f"{100 * stats.chi2.sf(stats.chi2.isf(0.05, 2) / 4.0, 2):.0f} %"
    assert "fitted to 200 rows" in note and "600 other rows" in note


@pytest.mark.parametrize("options", [{"budget": 0.5}, {"relax": "box"}, {"model": LinearRegression()}])
def test_models_that_are_not_exact_on_their_rows_have_none(options):
    assert not any(noted(audit(seed, **options)) for seed in range(3))


def test_an_audit_that_finds_nothing_has_none():
    result = next(one for one in map(audit, range(40)) if one.p_value > 0.05)
    assert not noted(result)
    assert allow_for_fit_noise(result, sq.OrthogonalGLMRegressor("gaussian")) is result  # not fitted
