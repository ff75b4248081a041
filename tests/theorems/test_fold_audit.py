"""Held-out audits: pooled folds of a corrected model look too good, and the bounds of ``audit_model`` still hold.

Features are protected columns and noise, so the correlations of a linear model on new rows are known exactly.
"""

from __future__ import annotations

import math
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold

import setsquare as sq
from setsquare._typing import Array
from setsquare.auditing.certificate import Certificate, ColumnBound
from setsquare.auditing.fold_bounds import allow_for_fit

N, P, N_SAMPLES = 200, 3, 30
#: At least so many of the bounds must hold: with a coverage of 95 %, fewer happen in one of a thousand runs.
ENOUGH = stats.binom.ppf(0.001, N_SAMPLES, 0.95)


class Corrected(sq.OrthogonalGLMRegressor):
    """Keeps its coefficients where a test finds them."""

    fitted: ClassVar[list[tuple[Array, float]]] = []

    def fit(self, X: Array, y: Array, protected: Array | None = None) -> Corrected:
        super().fit(X, y, protected=protected)
        self.fitted.append((np.ravel(self.coef_), float(np.ravel(self.intercept_)[0])))
        return self


class Plain(LinearRegression):
    fitted: ClassVar[list[tuple[Array, float]]] = []

    def fit(self, X: Array, y: Array) -> Plain:
        super().fit(X, y)
        self.fitted.append((self.coef_, float(self.intercept_)))
        return self


def draw(rng: np.random.Generator, leak: float) -> tuple[Array, Array, Array]:
    X = rng.normal(size=(N, P))
    Z = rng.normal(size=(N, P + 3))
    Z[:, :P] += leak * X
    return Z, Z @ [0.6, 0.6, 0.6, 1.0, 0.5, 0.0] + rng.normal(size=N), X


def correlations(coef: Array, leak: float) -> Array:
    """Correlations on new rows with each protected column; the columns are independent of each other."""
    return leak * coef[:P] / math.sqrt(coef @ coef + leak**2 * (coef[:P] @ coef[:P]))


@cache
def simulate(model: type[Corrected | Plain], leak: float, folds: int) -> dict[str, Array]:
    """Bounds of all columns and of the first: of the model, and of its pooled predictions; and what they must cover."""
    found: dict[str, list[float]] = {}
    rng = np.random.default_rng(0)
    for _ in range(N_SAMPLES):
        Z, y, X = draw(rng, leak)
        model.fitted.clear()
        whole = sq.audit_model(model(), Z, y, X, cv=KFold(folds))
        models = list(model.fitted)[:folds]  # the last one is fitted to all rows, for the leave-one-out bounds
        pooled = np.empty(N)
        for (coef, intercept), (_, test) in zip(models, KFold(folds).split(Z), strict=True):
            pooled[test] = Z[test] @ coef + intercept
        naive = sq.audit(pooled, X)
        final = model().fit(Z, y, X) if model is Corrected else model().fit(Z, y)
        each = np.array([correlations(coef, leak) for coef, _ in models])
        last = correlations(np.ravel(final.coef_), leak)
        sample = {
            "bound": whole.certificate.correlation_upper,
            "pooled bound": naive.certificate.correlation_upper,
            "column bound": whole.certificate.columns[0].correlation_upper,
            "pooled column bound": naive.certificate.columns[0].correlation_upper,
            "p": whole.p_value,
            "pooled p": naive.p_value,
            "estimate": naive.certificate.correlation,
            "folds": float(np.mean(np.linalg.norm(each, axis=1))),
            "final": float(np.linalg.norm(last)),
            "column": abs(float(last[0])),
        }
        for name, value in sample.items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("folds", [pytest.param(2, marks=pytest.mark.slow), 5])
def test_bounds_of_corrected_models_hold_and_pooled_ones_do_not(folds: int) -> None:
    found = simulate(Corrected, 1.0, folds)
    assert (found["pooled bound"] >= found["folds"]).mean() < 0.8
    assert (found["bound"] >= found["folds"]).sum() >= ENOUGH
    assert (found["bound"] >= found["final"]).sum() >= ENOUGH
    assert (found["column bound"] >= found["column"]).sum() >= ENOUGH
    assert (found["bound"] < 3.0 * np.mean(found["folds"])).all()  # a bound that is too wide would hold, too


def test_errors_of_folds_cancel_in_the_pooled_correlation_of_a_corrected_model() -> None:
    found = simulate(Corrected, 1.0, 5)
    assert found["estimate"].mean() < 0.4 * found["final"].mean()
    assert (found["p"] <= 0.05).sum() <= stats.binom.ppf(0.999, N_SAMPLES, 0.05)  # on the safe side
    # On its training rows the model has no correlation: on others, that of their sampling error.
    assert np.mean(found["final"] ** 2) == pytest.approx(P / N, rel=0.35)
    assert np.mean(found["folds"] ** 2) > np.mean(found["final"] ** 2)


def test_a_model_that_does_not_know_the_columns_loses_nothing() -> None:
    found = simulate(Plain, 0.3, 5)
    np.testing.assert_allclose(found["bound"], found["pooled bound"], rtol=0.03)
    assert (found["bound"] >= found["folds"]).sum() >= ENOUGH


def single(R: float, error: float, level: float = 0.95) -> ColumnBound:
    """Column with the correlation `R`, and the bound that a given error leads to, by brute force."""
    grid = np.linspace(0.0, 1.0, 200_001)
    likely = stats.norm.cdf((R - grid) / error) - stats.norm.cdf((-R - grid) / error) >= 1.0 - level
    upper = max(float(grid[likely].max(initial=0.0)), stats.norm.ppf(level) * error)
    return ColumnBound("x", "x", R, upper, "group", R, R + stats.norm.ppf(level) * error, None, error)


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("R", [0.0, 0.01, 0.03, 0.06, 0.3])
def test_widened_bound_is_the_quantile_of_the_length(R: float, p: int) -> None:
    error, growth = 0.05, 1.25
    column = single(R, error)
    widened = allow_for_fit(Certificate(400, p, 0.95, R, column.correlation_upper, "difference", p * (column,)), growth)
    a = np.zeros(p)
    a[0] = R
    draws = a - math.sqrt(growth) * error * np.random.default_rng(0).normal(size=(400_000, p))
    assert widened.correlation_upper == pytest.approx(np.quantile(np.linalg.norm(draws, axis=1), 0.95), rel=5e-3)
    alone = np.quantile(np.abs(draws[:, 0]), 0.95)
    assert widened.columns[0].correlation_upper == pytest.approx(alone, rel=5e-3)
    assert widened.columns[0].effect_upper == pytest.approx(alone, rel=5e-3)


@pytest.mark.parametrize("level", [0.5, 0.6, 0.95, 0.999])
@pytest.mark.parametrize(
    ("R", "upper"), [(0.0, 0.0), (0.0, 0.1), (0.2, 0.2), (0.2, 0.1), (0.5, 1.0), (math.nan, math.nan)]
)
def test_no_bound_becomes_tighter(R: float, upper: float, level: float) -> None:
    column = ColumnBound("x", "x", R, upper, "group", 1.0, math.inf, None)
    given = Certificate(100, 1, level, R, upper, "odds ratio", (column,))
    widened = allow_for_fit(given, 1.25)
    assert math.isnan(R) or upper <= widened.correlation_upper <= 1.0
    assert math.isinf(widened.columns[0].effect_upper)


def test_bounds_of_our_own_models_are_those_of_leave_one_out_predictions_and_tighter_than_those_of_folds() -> None:
    """With weights of the audit the bounds are those of the folds."""
    rng, leak, ratios, covered = np.random.default_rng(1), 0.5, [], 0
    for _ in range(N_SAMPLES):
        Z, y, X = draw(rng, leak)
        own = sq.audit_model(sq.OrthogonalGLMRegressor(), Z, y, X)
        model = sq.OrthogonalGLMRegressor().fit(Z, y, protected=X)
        found = model.solution_.certificate.new_rows
        assert own.certificate.correlation_upper == pytest.approx(max(found.upper, own.certificate.correlation))
        assert [note.code for note in own.notes].count("leave-one-out") == 1
        if len(ratios) < 12:
            folds = sq.audit_model(sq.OrthogonalGLMRegressor(), Z, y, X, sample_weight=np.ones(N))
            ratios.append(folds.certificate.correlation_upper / own.certificate.correlation_upper)
        covered += np.linalg.norm(correlations(np.ravel(model.coef_), leak)) <= own.certificate.correlation_upper
    assert covered >= ENOUGH
    assert np.median(ratios) > 1.05
