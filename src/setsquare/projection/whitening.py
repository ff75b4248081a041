"""Features as uncorrelated coordinates, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.projection.moments import Moments
from setsquare.projection.ridge_erasure import effective_rows
from setsquare.tables.validation import check_second_moments, refuse_constant_features

#: Eigenvalues of the correlations below this are collinearity: such directions are left as they are.
COLLINEAR = 1e-10


@dataclass(frozen=True, slots=True)
class Whitened:
    """``w = (z - mean) @ transform`` has uncorrelated columns, and ``z = mean + w @ loadings`` on the rows of the fit.

    Attributes
    ----------
    mean : ndarray of shape (q,)
    transform : ndarray of shape (q, r)
    loadings : ndarray of shape (r, q)
    share : ndarray of shape (n,)
        Weights of the rows, with sum 1.
    sides : ndarray of shape (s,)
        Means of further columns.
    """

    mean: Array
    transform: Array
    loadings: Array
    share: Array
    sides: Array

    @property
    def rank(self) -> int:
        """Number of directions in which the features vary."""
        return int(self.transform.shape[1])

    @property
    def n_rows(self) -> float:
        """Number of rows, or its counterpart for weighted ones."""
        return effective_rows(self.share)

    def apply(self, Z: Array) -> Array:
        """Coordinates (m, r) of features ``Z`` (m, q)."""
        return np.asarray((Z - self.mean) @ self.transform)


def whiten(Z: Array, weight: Array | None = None, sides: Sequence[Array] = (), *, turn_only: bool = False) -> Whitened:
    """Whiten features ``Z`` (n, q); ``sides`` are further columns (n, s), of which only the means are found.

    With ``turn_only`` the coordinates are uncorrelated but keep the variance that they have among the features, each in
    standard deviations: distances between rows stay as they are.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.random.default_rng(0).normal(size=(50, 2)) @ np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 1.0]])
    >>> own = whiten(Z)
    >>> own.rank, bool(np.allclose(np.cov(own.apply(Z).T, bias=True), np.eye(2)))
    (2, True)
    """
    n, q = Z.shape
    if n <= q:
        raise InputError(
            f"Too few rows (n_samples = {n}) to find the second moments of {q} features: pass more rows, or reduce the "
            "features first (PrincipalComponents)."
        )
    moments = Moments.of([Z, *sides], weight)
    S = moments.scatter[:q, :q] / moments.weight
    check_second_moments(np.diag(S))
    mean = moments.mean[:q]
    spread = np.sqrt(np.maximum(np.diag(S), 0.0))
    varies = spread > 1e-12 * np.abs(mean)
    if not varies.any():
        refuse_constant_features()
    scale = np.where(varies, spread, np.inf)
    values, vectors = np.linalg.eigh(S / np.outer(scale, scale))
    kept = values > COLLINEAR * values[-1]
    size = np.ones(kept.sum()) if turn_only else values[kept]
    transform = vectors[:, kept] / np.sqrt(size) / scale[:, None]
    share = np.full(n, 1.0 / n) if weight is None else weight / weight.sum()
    loadings = (transform / values[kept] * size).T @ S
    return Whitened(mean, transform, loadings, share, moments.mean[q:])
