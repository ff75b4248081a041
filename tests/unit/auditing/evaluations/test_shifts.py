"""Statistics of cyclic shifts against a computation row by row."""

import numpy as np
import pytest

from setsquare.auditing.evaluations.shifts import LEAST_SHRUNK, MOST_SHRUNK, Shifts, size_of
from setsquare.projection import protected_basis


def by_rows(Q: np.ndarray, w: np.ndarray, y: np.ndarray) -> float:
    """The same statistic by a weighted regression and loops over rows."""
    n, r = Q.shape
    design = np.column_stack([np.ones(n), Q])
    coef = np.linalg.solve(design.T @ (w[:, None] * design), design.T @ (w * y))
    residual = y - design @ coef
    scores = w[:, None] * Q * residual[:, None]
    V = sum(np.outer(score, score) for score in scores)
    target = y.var() * sum(np.outer(q, q) * v**2 for q, v in zip(Q, w, strict=True))
    if r == 1:
        return float(coef[1] / np.sqrt(V[0, 0]))
    plain = w[:, None] * Q * (y - y.mean())[:, None]
    noise = sum(np.sum(np.outer(score, score) ** 2) for score in plain) - np.sum(V**2) / n
    share = np.clip(noise / (noise + np.sum((V - target) ** 2)), LEAST_SHRUNK, MOST_SHRUNK)
    return float(coef[1:] @ np.linalg.solve((1.0 - share) * V + share * target, coef[1:]))


@pytest.mark.parametrize("n", [60, 101])
@pytest.mark.parametrize("r", [1, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_all_shifts_equal_the_computation_row_by_row(n: int, r: int, weighted: bool) -> None:
    rng = np.random.default_rng([n, r])
    group = rng.choice(r + 1, n, p=np.r_[0.6, np.full(r, 0.4 / r)])
    X = (group[:, None] == np.arange(1, r + 1)).astype(float)
    w = rng.exponential(size=n) if weighted else np.ones(n)
    w /= w.sum()
    Q = protected_basis(X, w).apply(X)
    y = 1e6 + np.exp(rng.normal(size=n))
    at = np.array([0, 1, 7, n - 1])
    expected = [by_rows(Q, w, np.roll(y, -k)) for k in at]
    np.testing.assert_allclose(Shifts.of(Q, w).statistics(y, at), expected, rtol=1e-6)


def test_size_counts_the_products() -> None:
    Q = np.random.default_rng(0).normal(size=(30, 3))
    assert size_of(30, 3) == 30 * len(Shifts.of(Q, np.full(30, 1 / 30)).triples)
