"""Erasure of features in single precision: exact all the same, and least change where single precision allows it."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.projection import Eraser, protected_basis
from setsquare.projection.basis import cholesky_factor
from setsquare.projection.erasure import LARGE_GRAM
from setsquare.projection.single_precision import is_enough

N, Q = 3000, 260


def draw(condition: float, far: float = 0.0, sd: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Features with eigenvalues from 1 to 1 / condition that know two protected columns."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(N) < 0.2, rng.normal(size=N)]).astype(float)
    turn = np.linalg.qr(rng.normal(size=(Q, Q)))[0]
    Z = rng.normal(size=(N, Q)) * np.geomspace(1.0, condition**-0.5, Q) @ turn
    Z += 0.3 * ((X - X.mean(axis=0)) / X.std(axis=0)) @ rng.normal(size=(2, Q)) * Z.std(axis=0)
    return (far + sd * Z).astype(np.float32), X


def correlation(X: np.ndarray, Z: np.ndarray) -> float:
    X, Z = X - X.mean(axis=0), Z.astype(np.float64) - Z.mean(axis=0, dtype=np.float64)
    return float(np.abs(X.T @ Z / np.linalg.norm(X, axis=0)[:, None] / np.linalg.norm(Z, axis=0)).max())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("far", "sd"), [(0.0, 1e-6), (100.0, 1.0), (-5e6, 1e5)])
@pytest.mark.parametrize("condition", [1.0, 1e8])
def test_no_correlation_is_left_in_float64_whatever_the_condition(
    condition: float, far: float, sd: float, weighted: bool
) -> None:
    """The map itself is exact: applied in float64, nothing is left; applied in float32, only the rounding of values."""
    Z, X = draw(condition, far, sd)
    weight = np.random.default_rng(1).integers(0, 3, size=N).astype(float) if weighted else None
    eraser = Eraser.fit(Z, protected_basis(X, weight), X, weight)
    rows = slice(None) if weight is None else np.repeat(np.arange(N), weight.astype(int))
    before, after = Z[rows].astype(np.float64), eraser.apply(Z.astype(np.float64))[rows]
    assert Q >= LARGE_GRAM and correlation(X[rows], before) > 0.2
    assert correlation(X[rows], after) < 1e-11 * (1.0 + np.abs(far) / sd)
    single = eraser.apply(Z)
    assert single.dtype == np.float32 and correlation(X[rows], single[rows]) < 3e-8 * (1.0 + np.abs(far) / sd)


@pytest.mark.parametrize("condition", [1.0, 30.0, 1e3, 1e7])
def test_the_features_change_hardly_more_than_by_the_map_of_float64(condition: float) -> None:
    Z, X = draw(condition)
    exact = Z.astype(np.float64)
    maps = [Eraser.fit(kind, protected_basis(X), X) for kind in (Z, exact)]
    spread = np.linalg.inv(np.cov(exact.T))
    changes = []
    for eraser in maps:
        moved = exact - eraser.apply(exact)
        changes.append(float(np.sum((moved @ spread) * moved)))
    assert changes[1] * (1.0 - 1e-9) <= changes[0] <= changes[1] * (1.0 + 1e-4)


def test_single_precision_is_used_where_it_is_enough_and_only_there() -> None:
    used = []
    for condition in (1.0, 30.0, 1e6):
        S = np.cov(draw(condition)[0].astype(np.float64).T)
        R = cholesky_factor(S)
        used.append(R is not None and is_enough(S, R))
    assert used[0] and not used[-1]
