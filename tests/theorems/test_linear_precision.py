"""The linear correction is exact to rounding whatever the columns look like, also in many blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest

import setsquare as sq

N = 60_000

COLUMNS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as drawn": lambda B: B,
    "1e8 from zero": lambda B: B + 1e8,
    "a drift far from zero": lambda B: np.sort(B, axis=0) + 1e6,
    "twelve orders of magnitude": lambda B: B * [1e-6, 1.0, 1e6] + [1.0, 1e4, -1e7],
    "nearly collinear": lambda B: B @ [[1.0, 1.0, 0.0], [0.0, 1e-6, 0.0], [0.0, 0.0, 1.0]],
    "a group of one in ten thousand": lambda B: np.column_stack([B[:, :2], np.arange(N) % 10_000 == 0]),
}
FEATURES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as drawn": lambda Z: Z,
    "1e4 from zero": lambda Z: Z + 1e4,
    "on many scales": lambda Z: Z * 10.0 ** np.arange(-6, 6),
    "stored by columns": np.asfortranarray,
    "correlated": lambda Z: Z @ (1.0 + 0.1 * np.random.default_rng(1).normal(size=(12, 12))),
}


def correlation(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Largest |corr| of each protected column; centred twice, for the first mean is rounded."""
    for _ in range(2):
        X, Z = X - X.mean(axis=0), Z - Z.mean(axis=0)
    return np.abs(X.T @ Z / np.linalg.norm(X, axis=0)[:, None] / np.linalg.norm(Z, axis=0)).max(axis=1)


@lru_cache(maxsize=1)
def leaking(columns: str, features: str) -> tuple[np.ndarray, np.ndarray]:
    """Protected columns, and features that are correlated with each of them."""
    rng = np.random.default_rng(0)
    X = COLUMNS[columns](rng.normal(size=(N, 3)))
    unit = (X - X.mean(axis=0)) / X.std(axis=0)
    Z = FEATURES[features](unit @ rng.normal(size=(3, 12)) + rng.normal(size=(N, 12)))
    assert (correlation(X, Z) > 0.1).all()
    for array in (X, Z):
        array.flags.writeable = False
    return X, Z


@pytest.mark.parametrize("using", ["protected", "features"])
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("features", FEATURES)
def test_no_correlation_is_left_and_every_column_had_some(using: str, columns: str, features: str) -> None:
    X, Z = leaking(columns, features)
    corrected = sq.LinearOrthogonalizer(using=using).fit_transform(Z, protected=X)  # type: ignore[arg-type]
    assert correlation(X, corrected).max() < 1e-12
    known = np.finfo(float).eps * (np.abs(X.mean(axis=0)) / X.std(axis=0)).max()  # the means that are subtracted
    moved = np.abs(corrected.mean(axis=0) - Z.mean(axis=0)) / (Z.std(axis=0) + np.abs(Z.mean(axis=0)))
    assert moved.max() < 1e-12 + 10.0 * known


@pytest.mark.parametrize("share", [1e-3, 1e-6])
def test_what_is_left_of_a_feature_that_is_nearly_explained_is_uncorrelated_as_far_as_it_is_known(share: float) -> None:
    """Rounding of the feature is 1 / share times larger, seen from what is left."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    Z = X @ rng.normal(size=(3, 4)) + share * rng.normal(size=(N, 4))
    assert correlation(X, Z).min() > 0.1
    left = correlation(X, sq.LinearOrthogonalizer().fit_transform(Z, protected=X)).max()
    assert (
        left < 4e-14 / share
    )  # sums of 60 000 products: 5e-16 to 1e-15 with BLAS kernels for AVX2, to 2e-14 for AVX-512
