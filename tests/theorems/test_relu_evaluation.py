"""THEORY §5, audited: the ReLU evaluation model's global optimum, on outputs that leak and on outputs that do not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, minimize

from setsquare import tables
from setsquare.auditing.evaluations.relu import ReluFit, fit_relu
from setsquare.auditing.evaluations.relu_cells import branch_and_bound
from setsquare.auditing.evaluations.relu_descent import Cells
from setsquare.projection import GeneralizedProjector, project_out


def relu(u: np.ndarray) -> np.ndarray:
    return np.maximum(u, 0.0)


def losses(y: np.ndarray, X: np.ndarray, w: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Weighted mean squared error at each row (a, b) of ``points``, straight from the definition."""
    return (w / w.sum()) @ (y[:, None] - relu(points[:, 0] + X @ points[:, 1:].T)) ** 2


def grid(p: int, reach: float, steps: int, intercept: bool) -> np.ndarray:
    axis = np.linspace(-reach, reach, steps)
    return np.array(list(itertools.product(*[axis if intercept else [0.0], *[axis] * p])))


def draw_outcome(rng: np.random.Generator, n: int, kind: str) -> np.ndarray:
    """Outputs of a ReLU, outputs of either sign, outputs that are nearly constant, and none."""
    y = rng.normal(size=n)
    return {"relu": relu(y), "signed": y, "flat": 2.0 + 0.1 * y, "negative": y - 1.0, "zero": 0.0 * y}[kind]


OUTCOMES = ("relu", "signed", "flat", "negative", "zero")


def assert_never_beaten(fit: ReluFit, y: np.ndarray, X: np.ndarray, w: np.ndarray, points: np.ndarray) -> None:
    """The reported loss is that of the reported coefficients, and no other point has a smaller one, near or far."""
    optimum = np.append(fit.intercept, fit.coef)
    assert fit.loss == pytest.approx(losses(y, X, w, optimum[None])[0], rel=1e-10, abs=1e-14)
    rng = np.random.default_rng(0)
    near = optimum + rng.normal(size=(300, len(optimum))) * 10.0 ** rng.uniform(-6, 0, size=(300, 1))
    near[:, 0] *= points[:, 0].any()  # without an intercept the grid has none
    assert losses(y, X, w, np.vstack([points, near])).min() >= fit.loss * (1.0 - 1e-10) - 1e-15
    assert fit.exact and fit.gain_bound == fit.gain


# ----------------------------------------------------------------------------- brute force never beats the exact audit
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", OUTCOMES)
def test_one_column_against_a_fine_grid(kind: str, intercept: bool) -> None:
    points = grid(1, 6.0, 181 if intercept else 4001, intercept)
    for seed in range(25):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(3, 14))
        x = np.append(np.round(rng.normal(size=n), int(rng.integers(0, 3))), [0.5, -1.0])  # with ties where rounded
        y, w = draw_outcome(rng, n + 2, kind), rng.exponential(size=n + 2)
        fit = fit_relu(y, x[:, None], intercept=intercept, weight=w, rng=rng)
        assert fit.method == ("cells" if kind == "zero" else "one column")
        assert_never_beaten(fit, y, x[:, None], w, points)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", OUTCOMES)
@pytest.mark.parametrize("levels", [(3,), (2, 2), (3, 2)])
def test_categoricals_against_a_fine_grid(levels: tuple[int, ...], kind: str, intercept: bool) -> None:
    p = sum(levels) - len(levels)
    points = grid(p, 4.0, {1: 201, 2: 101, 3: 33, 4: 13}[p + intercept], intercept)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        factors = np.vstack([list(itertools.product(*map(range, levels))), rng.integers(0, levels, (20, len(levels)))])
        X = np.column_stack([factors[:, j] == k for j, m in enumerate(levels) for k in range(1, m)]).astype(float)
        y, w = draw_outcome(rng, len(X), kind) + 0.5 * factors[:, 0] * (kind != "zero"), rng.exponential(size=len(X))
        fit = fit_relu(y, X, intercept=intercept, weight=w, rng=rng)
        assert fit.method == "cells"
        assert_never_beaten(fit, y, X, w, points)


def best_in_pattern(D: np.ndarray, y: np.ndarray, signs: np.ndarray) -> float:
    """Least squares on the active rows, each row on its side of 0, by a general solver."""
    on = signs > 0.0
    found = minimize(
        lambda t: np.sum((D[on] @ t - y[on]) ** 2),
        np.zeros(D.shape[1]),
        jac=lambda t: 2.0 * D[on].T @ (D[on] @ t - y[on]),
        method="SLSQP",
        constraints=LinearConstraint(D * signs[:, None], 0.0, np.inf),
        options={"ftol": 1e-14},
    )
    return float(np.mean((y - relu(D @ found.x)) ** 2))


@pytest.mark.parametrize("intercept", [True, False])
def test_patterns_one_by_one_find_the_same_optimum(intercept: bool) -> None:
    """All 2^6 patterns, each a convex problem: branch and bound misses none."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(6, 2)), rng.normal(size=6) + 0.3
        D = np.column_stack([np.ones(6), X]) if intercept else X
        best = min(best_in_pattern(D, y, np.array(signs)) for signs in itertools.product([1.0, -1.0], repeat=6))
        fit = fit_relu(y, X, intercept=intercept, rng=rng)
        assert fit.exact and fit.method == "cells"
        assert fit.loss == pytest.approx(best, rel=1e-7)
        D = np.linalg.qr(D)[0] * np.sqrt(6.0)  # from 0 the tree has no descent to lean on
        tree = branch_and_bound(Cells(D, y, np.full(6, 1 / 6), np.eye(2), intercept), np.zeros(D.shape[1]))
        assert tree.exact and tree.bound == pytest.approx(best, rel=1e-7)


# ------------------------------------------------------------------------------------------------- what is published
def test_the_counter_example() -> None:
    """Loss 2 at b = 0 and 1 at b = 1, as sums over the two rows."""
    X, y = np.array([[1.0], [-1.0]]), np.array([1.0, 1.0])
    fit = fit_relu(y, X, intercept=False, rng=np.random.default_rng(0))
    assert 2.0 * fit.loss_null == 2.0 and 2.0 * fit.loss == pytest.approx(1.0, rel=1e-14)
    assert abs(fit.coef[0]) == pytest.approx(1.0, rel=1e-14) and fit.gain == pytest.approx(0.5)


def draw_groups(seed: int = 0, n: int = 900) -> tuple[np.ndarray, np.ndarray]:
    """Pre-activations whose spread depends on the group, and two factors coded by all cells."""
    rng = np.random.default_rng(seed)
    factors = np.column_stack([rng.choice(["a", "b", "c"], n), rng.choice(["u", "v"], n)])
    X = tables.learn(factors, basis="cells").apply(factors).values
    cell = X @ np.arange(1, X.shape[1] + 1)
    return rng.normal(size=n) * (0.5 + 0.7 * cell), X


@pytest.mark.parametrize("seed", range(5))
def test_the_published_correction_leaks_and_the_generalised_projection_does_not(seed: int) -> None:
    pre, X = draw_groups(seed)
    published = relu(project_out(pre, X))
    generalised = GeneralizedProjector.fit(pre, X, "relu").predict(pre, X)
    before, after = (fit_relu(y, X, rng=np.random.default_rng(seed)) for y in (published, generalised))
    assert before.exact and before.gain > 0.05
    assert after.exact and abs(after.gain) < 1e-12 and after.loss_null > 0.1


@pytest.mark.parametrize("kind", ["relu", "signed"])
def test_equal_cell_means_leave_no_gain_with_an_intercept(kind: str) -> None:
    """For the saturated coding and for any other coding of the same cells."""
    rng = np.random.default_rng(1)
    y, (_, X) = draw_outcome(rng, 900, kind) + 0.2, draw_groups()
    cell = X @ np.arange(1, X.shape[1] + 1)
    y = y + cell * 0.2
    means = np.array([y[cell == c].mean() for c in range(6)])
    equal = y - means[cell.astype(int)] + y.mean()
    for coding in (X, np.column_stack([cell % 2, cell // 2 == 1, cell // 2 == 2]).astype(float), cell[:, None]):
        assert fit_relu(y, coding, rng=rng).gain > 0.02
        fit = fit_relu(equal, coding, rng=rng)
        assert fit.exact and abs(fit.gain) < 1e-12


# ----------------------------------------------------------------------------------------------------- what cannot be
@pytest.mark.parametrize("p", [1, 2])
def test_without_an_intercept_zero_is_optimal_only_where_outputs_vanish(p: int) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        here = np.arange(30) < 12
        X = np.round(rng.normal(size=(30, p)), 1) * here[:, None]
        outside = here & X.any(axis=1)
        y = relu(rng.normal(size=30))
        safe = fit_relu(np.where(outside, 0.0, y), X, intercept=False, rng=rng)
        assert safe.exact and safe.gain == 0.0 and not safe.coef.any()
        one = np.where(outside, 0.0, y)
        one[np.flatnonzero(outside)[0]] = 1.0  # a single positive output is enough
        leaky = fit_relu(one, X, intercept=False, rng=rng)
        assert leaky.gain > 1e-5 and leaky.coef.any()
