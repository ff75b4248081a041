"""Erasure: an affine map of the features that leaves no correlation with the protected columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.projection.basis import Basis, cholesky_factor, keeps_all, settle_basis
from setsquare.projection.linear import Projector, coordinates, subtract_product
from setsquare.projection.moments import Moments
from setsquare.projection.single_precision import is_enough, single_moments
from setsquare.rows.blocks import Sums, row_slices, sum_over_rows
from setsquare.tables.validation import refuse_not_finite

#: Canonical correlations below this are rounding error; such directions are kept.
ROUNDING = 1e-9
#: Features from which their squares take most of the time, so that single precision pays off.
LARGE_GRAM = 256


@dataclass(frozen=True, slots=True)
class Eraser:
    """Affine map of the features that makes them uncorrelated with the protected columns, without using these.

    ``r(z) = z - S_zx (S_xz S^- S_zx)^- S_xz S^- (z - mean)``: the protected columns are replaced by their best linear
    prediction from the features, and the effect of this prediction is removed. Equivalently, the features are replaced
    by their residuals on the canonical variates ``s = (z - mean) @ directions``. Among all affine maps that leave no
    correlation, this one changes the features least, in the Mahalanobis and every other quadratic norm (LEACE, Belrose
    et al. 2023).

    Attributes
    ----------
    mean : ndarray of shape (q,)
    directions : ndarray of shape (q, k)
    loadings : ndarray of shape (k, q)
        Least-squares effects of the variates on the features.
    correlations : ndarray of shape (k,)
        Canonical correlation of each variate with the protected columns, before erasure.
    rank : int
        Rank of the features; nothing remains of them if k equals it.

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
        """Fit to features ``Z`` (n, q) and protected columns ``X`` (n, p) with their basis.

        Takes one pass over the rows unless some features are nearly collinear.
        """
        n, q = Z.shape
        if n <= q:
            raise InputError(
                f"Too few rows (n_samples = {n}) to correct {q} features without the protected columns: pass more "
                'rows, reduce the features first (a few principal components), or choose using="protected".'
            )
        moments, R = _moments(Z, _Coordinates(basis, X), weight)
        mean, S = moments.mean[basis.rank :], moments.scatter[basis.rank :] / moments.weight
        S_zq, S_zz = S[:, : basis.rank], S[:, basis.rank :]
        if (np.sqrt(np.maximum(np.diag(S_zz), 0.0)) <= 1e-12 * np.abs(mean)).all():
            raise InputError("Every feature is constant, so there is nothing to correct: pass features that vary.")
        names = names or tuple(f"x{j}" for j in range(q))
        if R is None:
            return cls._fit_collinear(Z, basis.apply(X), weight, names)
        if keeps_all(mean, R):  # triangular solves for a few columns, where a basis would need the inverse
            U, correlations = _singular(lapack.dtrtrs(R, S_zq, trans=1)[0])
            directions, rank = lapack.dtrtrs(R, U)[0], q
        else:
            own = settle_basis(mean, R, names)
            directions, correlations = _variates(own, own.transform.T @ S_zq)
            rank = own.rank
        loadings = directions.T @ S_zz
        # Adjust the loadings to the rounded directions, so that their rounding error cancels.
        loadings += np.linalg.lstsq(S_zq.T @ directions, S_zq.T - S_zq.T @ directions @ loadings, rcond=None)[0]
        return cls(mean, directions, loadings, correlations, rank)

    @classmethod
    def _fit_collinear(cls, Z: Array, Q: Array, weight: Array | None, names: tuple[str, ...]) -> Eraser:
        """Fit nearly collinear features, which moments cannot distinguish, in several passes over the rows."""
        prediction = Projector.fit(Q, Z, weight, names)
        own = prediction.basis
        directions, correlations = _variates(own, prediction.coefficients)
        loadings = np.zeros((0, Z.shape[1]))
        if len(correlations):
            scores = np.empty((len(Z), len(correlations)))
            for rows in row_slices(*Z.shape):
                scores[rows] = (Z[rows] - own.mean) @ directions
            effects = Projector.fit(Z, scores, weight)
            loadings = effects.basis.transform @ effects.coefficients
        return cls(own.mean, directions, loadings, correlations, own.rank)

    def apply(self, Z: Array, out: Array | None = None) -> Array:
        """Correct features ``Z`` (n, q), without the protected columns; ``out=Z`` corrects in place."""
        out = np.empty_like(Z, dtype=np.result_type(Z.dtype, np.float32), subok=False) if out is None else out
        centre = self.mean @ self.directions  # centring the scores, not the features, keeps all their digits

        def kernel(rows: slice, memory: Array) -> Sums:
            subtract_product(Z[rows], Z[rows] @ self.directions - centre, self.loadings, memory, out[rows])
            return ()

        sum_over_rows(kernel, *Z.shape)
        return out


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """Protected columns in their basis, computed block by block when they are read."""

    basis: Basis
    X: Array

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.X), self.basis.rank

    def __getitem__(self, rows: slice) -> Array:
        return coordinates(self.basis, self.X[rows])


def _moments(Z: Array, protected: _Coordinates, weight: Array | None) -> tuple[Moments, Array | None]:
    """Joint moments of protected columns and features, and the triangular factor of the features' covariances.

    Many features in single precision need no more, unless they are too close to collinear for it. The factor is None if
    they are so even for float64.
    """
    if Z.dtype == np.float32 and Z.shape[1] >= LARGE_GRAM:
        moments = single_moments(protected, Z, weight)
        S = _covariances(moments, protected)
        R = cholesky_factor(S)
        if R is not None and is_enough(S, R):
            return moments, R
    moments = Moments.of([protected, Z], weight)
    return moments, cholesky_factor(_covariances(moments, protected))


def _covariances(moments: Moments, protected: _Coordinates) -> Array:
    """Covariances of the features, after a check that they and those with the protected columns are finite."""
    rank = protected.shape[1]
    if not np.isfinite(moments.scatter[rank:]).all():
        refuse_not_finite("The features have")
    return np.asarray(moments.scatter[rank:, rank:] / moments.weight)


def _variates(own: Basis, coefficients: Array) -> tuple[Array, Array]:
    """Directions of the canonical variates and their correlations, from coefficients in orthonormal bases."""
    U, correlations = _singular(coefficients)
    return own.transform @ U, correlations


def _singular(coefficients: Array) -> tuple[Array, Array]:
    """Left singular vectors and singular values, without those that are rounding error."""
    U, correlations, _ = np.linalg.svd(coefficients, full_matrices=False)
    kept = correlations > ROUNDING
    return U[:, kept], correlations[kept]
