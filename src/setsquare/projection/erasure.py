"""Erasure: an affine map of features alone that leaves no correlation with the protected columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare.errors import InputError
from setsquare.projection.basis import Basis
from setsquare.projection.linear import Projector
from setsquare.rows import row_slices
from setsquare.typing import Array

#: Canonical correlations below this are rounding: to take such a direction out would lose it for nothing.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Eraser:
    """An affine map of the features alone, after which they are uncorrelated with the protected columns.

    ``r(z) = z - S_zx (S_xz S^- S_zx)^- S_xz S^- (z - mean)``: the protected columns are replaced by their best linear
    prediction from the features, and what that explains is taken out. In other words, features are regressed on their
    canonical variates ``s = (z - mean) @ directions`` with the protected columns. Of all affine maps that leave no
    correlation it changes the features least, in the Mahalanobis and every other quadratic norm (LEACE, Belrose et al.
    2023).

    Attributes
    ----------
    mean : ndarray of shape (q,)
    directions : ndarray of shape (q, k)
    loadings : ndarray of shape (k, q)
        Least-squares effects of the variates on the features.
    correlations : ndarray of shape (k,)
        Of each variate with the protected columns, before it is taken out.
    rank : int
        Of the features; nothing is left of them where k equals it.

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare.projection import protected_basis
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(50, 1))
    >>> Z = X + rng.normal(size=(50, 3))
    >>> erased = Eraser.fit(Z, protected_basis(X), X).apply(Z)
    >>> bool(np.abs((X - X.mean()).T @ erased).max() < 1e-12)
    True
    """

    mean: Array
    directions: Array
    loadings: Array
    correlations: Array
    rank: int

    @classmethod
    def fit(
        cls, Z: Array, basis: Basis, X: Array, weight: Array | None = None, names: tuple[str, ...] | None = None
    ) -> Eraser:
        """Fit to features ``Z`` (n, q) and protected columns ``X`` (n, p) with their basis."""
        _check_features(Z)
        prediction = Projector.fit(basis.apply(X), Z, weight, names)
        # Singular values, because both bases are orthonormal, are the canonical correlations.
        U, correlations, _ = np.linalg.svd(prediction.coefficients, full_matrices=False)
        kept = correlations > ROUNDING
        mean, directions = prediction.basis.mean, prediction.basis.transform @ U[:, kept]
        loadings = np.zeros((0, Z.shape[1]))
        if kept.any():
            scores = np.empty((len(Z), directions.shape[1]))
            for rows in row_slices(*Z.shape):
                scores[rows] = (Z[rows] - mean) @ directions
            effects = Projector.fit(Z, scores, weight)
            loadings = effects.basis.transform @ effects.coefficients
        return cls(mean, directions, loadings, correlations[kept], prediction.basis.rank)

    def apply(self, Z: Array) -> Array:
        """Correct features (n, q); needs no protected columns."""
        out = np.empty_like(Z)
        for rows in row_slices(*Z.shape):
            out[rows] = Z[rows] - (Z[rows] - self.mean) @ self.directions @ self.loadings
        return out


def _check_features(Z: Array) -> None:
    n, q = Z.shape
    if n <= q:
        raise InputError(
            f"Too few rows (n_samples = {n}) to correct {q} features without the protected columns: give more rows, "
            'reduce the features first (a few principal components), or choose using="protected".'
        )
    low, high = Z.min(axis=0), Z.max(axis=0)
    if (high - low <= 1e-12 * np.maximum(np.abs(low), np.abs(high))).all():
        raise InputError("Every feature is constant: there is nothing to correct; give features that vary.")
