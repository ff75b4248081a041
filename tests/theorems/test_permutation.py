"""Permutation tests: calibrated under independence for any sample size, and able to see what no correlation shows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from setsquare.auditing.evaluations.forest import forest_importances, forest_r2
from setsquare.auditing.evaluations.independence import MEASURES, independence

P_VALUES: dict[str, Callable[[np.ndarray, np.ndarray, np.random.Generator, int], float]] = {
    measure: lambda y, X, rng, B, measure=measure: (
        independence(y, X, ["x"] * X.shape[1], rng=rng, n_permutations=B, block_rows=30, measures=[measure])[
            0
        ].joint.p_value
    )
    for measure in MEASURES
}
P_VALUES["forest_r2"] = lambda y, X, rng, B: forest_r2(y, X, rng=rng, n_permutations=B, n_trees=10).p_value
P_VALUES["forest_importances"] = lambda y, X, rng, B: (
    forest_importances(y, X, list("ab")[: X.shape[1]], ["x"] * X.shape[1], rng=rng, n_permutations=B, n_trees=5)
    .by_source["x"]
    .p_value
)


@pytest.mark.parametrize("name", P_VALUES)
def test_calibrated_under_independence_and_not_under_dependence(name: str) -> None:
    """Skewed predictions, a group and a number, 60 rows: ``P(p <= 0.1) = 0.1`` without any asymptotics."""
    draws, B = {"forest_importances": (20, 9), "forest_r2": (60, 19)}.get(name, (120, 19))
    independent, dependent = [], []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        X = np.column_stack([rng.random(60) < 0.3, rng.normal(size=60)])
        y = rng.exponential(size=60)
        independent.append(P_VALUES[name](y, X, rng, B))
        if seed < 6:
            dependent.append(P_VALUES[name](y + 3.0 * X[:, 0] + 3.0 * np.abs(X[:, 1]), X, rng, B))
    rejections = np.sum(np.array(independent) <= 0.1 + 1e-12)
    low, high = stats.binom.interval(0.99, draws, 0.1)
    assert low <= rejections <= high
    assert np.mean(np.array(dependent) <= 0.1) >= 0.8


@pytest.mark.parametrize("name", P_VALUES)
def test_a_parabola_is_seen_though_no_correlation_is(name: str) -> None:
    """``y = x^2``: correlation 0, full dependence; the same predictions in another order pass."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.normal(size=150))
    x = np.concatenate([x, -x])[:, None]
    y = x[:, 0] ** 2 + 0.1 * rng.normal(size=300)
    assert abs(np.corrcoef(x[:, 0], y)[0, 1]) < 0.05
    assert P_VALUES[name](y, x, rng, 19) == 0.05
    assert P_VALUES[name](rng.permutation(y), x, rng, 19) > 0.05


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8])
def test_distance_correlation_of_two_normals(rho: float) -> None:
    """Székely, Rizzo and Bakirov (2007), Theorem 7; blocks bring no bias, which the plain estimate has."""
    rng = np.random.default_rng(2)
    n, b = 40_000, 50
    x, y = rng.multivariate_normal([0.0, 0.0], [[1.0, rho], [rho, 1.0]], size=n).T
    known = rho * np.arcsin(rho) + np.sqrt(1 - rho**2) - rho * np.arcsin(rho / 2) - np.sqrt(4 - rho**2) + 1
    known /= 1 + np.pi / 3 - np.sqrt(3)
    (found,) = independence(
        y, x[:, None], ["x"], rng=rng, n_permutations=1, max_rows=n, block_rows=b, measures=["distance_correlation"]
    )
    assert found.joint.n_blocks == n // b
    assert found.joint.statistic == pytest.approx(known, abs=0.008)
    plain = np.mean([_plain(x[i : i + b], y[i : i + b]) for i in range(0, 5000, b)])
    assert plain > known + 0.02


def _plain(x: np.ndarray, y: np.ndarray) -> float:
    """Squared distance correlation with doubly centred matrices."""
    A, B = (np.abs(v[:, None] - v) for v in (x, y))
    A, B = (D - D.mean(0) - D.mean(1)[:, None] + D.mean() for D in (A, B))
    return float(np.sum(A * B) / np.sqrt(np.sum(A * A) * np.sum(B * B)))


@pytest.mark.parametrize("measure", ["distance_correlation", "hsic"])
def test_the_measures_have_no_bias_under_independence(measure: str) -> None:
    rng = np.random.default_rng(3)
    y, X = rng.normal(size=400), rng.normal(size=(400, 3))
    (found,) = independence(y, X, ["a", "b", "c"], rng=rng, n_permutations=999, block_rows=100, measures=[measure])
    assert abs(found.joint.null_mean) < 4 / np.sqrt(999) * found.joint.null_sd
    assert np.mean([_plain(X[:, 0], rng.permutation(y)) for _ in range(20)]) > found.joint.null_sd  # which has one
