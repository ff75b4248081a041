"""Erasure: an affine map of the features that leaves no correlation with the protected columns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.errors import InputError
from setsquare.projection.basis import Basis, cholesky_factor, settle_basis
from setsquare.projection.linear import Projector, coordinates, subtract_product
from setsquare.projection.moments import Moments
from setsquare.projection.ridge_erasure import (
    LabelledRows,
    column_coordinates,
    effective_rows,
    fit_ridge,
    independent_rows,
    quadratic_forms,
    unbiased_gram,
)
from setsquare.rows.blocks import Sums, row_slices, sum_over_rows
from setsquare.tables.validation import refuse_not_finite

#: Canonical correlations below this are rounding error; such directions are kept.
ROUNDING = 1e-9


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
    explained, removed : ndarray of shape (p,)
        Estimated R² of each protected column given the features on new rows, and the part of it that the map removes
        there; NaN if there are too few rows to tell. The rest is what a linear probe finds on new rows.
    n_rows : float
        Number of rows behind the loadings.

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
    explained: Array = field(default_factory=lambda: np.zeros(0))
    removed: Array = field(default_factory=lambda: np.zeros(0))
    n_rows: float = 0.0

    @classmethod
    def fit(
        cls,
        Z: Array,
        basis: Basis,
        X: Array,
        weight: Array | None = None,
        names: tuple[str, ...] | None = None,
        cluster: IntArray | None = None,
    ) -> Eraser:
        """Fit to features ``Z`` (n, q) and protected columns ``X`` (n, p) with their basis.

        Takes one pass over the rows unless some features are nearly collinear. Clusters (codes 0, 1, ...) take another
        one and affect only the estimates for new rows.
        """
        n, q = Z.shape
        if n <= q:
            raise InputError(
                f"Too few rows (n_samples = {n}) to correct {q} features without the protected columns: pass more "
                'rows, reduce the features first (a few principal components), or choose using="protected".'
            )
        mean, S_zz, S_zq = _covariances(Z, basis, X, weight)
        names = names or tuple(f"x{j}" for j in range(q))
        R = cholesky_factor(S_zz)
        if R is None:
            return cls._fit_collinear(LabelledRows(Z, X, basis, _shares(n, weight), cluster), weight, names)
        own = settle_basis(mean, R, names)
        R_zq = own.transform.T @ S_zq
        directions, correlations = _variates(own, R_zq)
        loadings = directions.T @ S_zz
        # Adjust the loadings to the rounded directions, so that their rounding error cancels.
        loadings += np.linalg.lstsq(S_zq.T @ directions, S_zq.T - S_zq.T @ directions @ loadings, rcond=None)[0]
        data = LabelledRows(Z, X, basis, _shares(n, weight), cluster)
        return cls(mean, directions, loadings, correlations, own.rank, *_on_new_rows(data, own, R_zq))

    @classmethod
    def fit_for_new_rows(
        cls, Z: Array, basis: Basis, X: Array, weight: Array | None = None, cluster: IntArray | None = None
    ) -> Eraser:
        """Fit to the same rows, with the ridge prediction of the protected columns that is best for left-out rows.

        The penalty is the same for every feature in its own units or in standard deviations, whichever predicts better.
        There may be more features than rows. The rows of a cluster (codes 0, 1, ...) are left out together.
        """
        mean, S_zz, S_zq = _covariances(Z, basis, X, weight)
        data = LabelledRows(Z, X, basis, _shares(len(Z), weight), cluster)
        spread = np.sqrt(np.maximum(np.diag(S_zz), 0.0))
        spread = np.where(spread > 1e-12 * np.abs(mean), spread, np.inf)  # a constant feature says nothing
        finite = np.isfinite(spread)
        units = [np.where(finite, float(spread[finite].max()), np.inf), spread]
        best = min((fit_ridge(data, mean, S_zz, S_zq, scale) for scale in units), key=lambda fit: fit.error)
        removed = best.predicted / (1.0 + best.rank / best.n_rows)
        parts = (best.directions, best.loadings, best.correlations, best.rank)
        return cls(mean, *parts, best.explained, removed, best.n_rows)

    def adapt(self, Z: Array, weight: Array | None = None) -> Eraser:
        """Learn the means and loadings again from features ``Z`` (n, q) of rows whose protected columns are not known.

        The prediction of the protected columns stays; what is removed with it is then as exact as these rows allow.
        """
        share = _shares(len(Z), weight)
        scores, mean = np.empty((len(Z), self.directions.shape[1])), np.zeros(Z.shape[1])
        for rows in row_slices(*Z.shape):
            scores[rows] = Z[rows] @ self.directions
            mean += share[rows] @ Z[rows]
        n_rows = effective_rows(share)
        removed = self.removed * (1.0 + self.rank / self.n_rows) / (1.0 + self.rank / n_rows)
        return replace(self, mean=mean, loadings=_effects(Z, scores, weight), removed=removed, n_rows=n_rows)

    @property
    def before(self) -> float:
        """Largest correlation of a protected column with a linear probe of the features as they were, on new rows."""
        return float(np.sqrt(np.max(self.explained, initial=0.0)))

    @property
    def left(self) -> float:
        """Largest correlation of a protected column with a linear probe of the erased features, on new rows."""
        return float(np.sqrt(np.max(np.maximum(self.explained - self.removed, 0.0), initial=0.0)))

    @classmethod
    def _fit_collinear(cls, data: LabelledRows, weight: Array | None, names: tuple[str, ...]) -> Eraser:
        """Fit nearly collinear features, which moments cannot distinguish, in several passes over the rows."""
        Z = data.Z
        prediction = Projector.fit(data.basis.apply(data.X), Z, weight, names)
        own = prediction.basis
        directions, correlations = _variates(own, prediction.coefficients)
        loadings = np.zeros((0, Z.shape[1]))
        if len(correlations):
            scores = np.empty((len(Z), len(correlations)))
            for rows in row_slices(*Z.shape):
                scores[rows] = (Z[rows] - own.mean) @ directions
            loadings = _effects(Z, scores, weight)
        estimates = _on_new_rows(data, own, prediction.coefficients)
        return cls(own.mean, directions, loadings, correlations, own.rank, *estimates)

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


def _covariances(Z: Array, basis: Basis, X: Array, weight: Array | None) -> tuple[Array, Array, Array]:
    """Mean of the features, their covariance, and their covariance with the basis of the protected columns."""
    moments = Moments.of([_Coordinates(basis, X), Z], weight)
    mean, S = moments.mean[basis.rank :], moments.scatter[basis.rank :] / moments.weight
    if not np.isfinite(S).all():
        refuse_not_finite("The features have")
    if (np.sqrt(np.maximum(np.diag(S[:, basis.rank :]), 0.0)) <= 1e-12 * np.abs(mean)).all():
        raise InputError("Every feature is constant, so there is nothing to correct: pass features that vary.")
    return mean, S[:, basis.rank :], S[:, : basis.rank]


def _shares(n: int, weight: Array | None) -> Array:
    return np.full(n, 1.0 / n) if weight is None else weight / weight.sum()


def _effects(Z: Array, scores: Array, weight: Array | None) -> Array:
    """Least-squares effects of scores (n, k) on the features, (k, q)."""
    effects = Projector.fit(Z, scores, weight)
    return np.asarray(effects.basis.transform @ effects.coefficients)


def _on_new_rows(data: LabelledRows, own: Basis, R: Array) -> tuple[Array, Array, float]:
    """R² of each protected column on new rows, how much of it the erasure removes there, and the number of rows.

    ``R`` (k, r) are covariances of the features' own basis with that of the protected columns. The removed directions
    are those of ``R``, whose noise has the variance ``k / n`` in each column: of R² = T remains the parallel sum of T
    and the noise.
    """
    n_rows = independent_rows(data, own.mean @ own.transform, own.transform)
    T, A = unbiased_gram(R, n_rows), column_coordinates(data.basis)
    if not np.isfinite(T).all():
        return np.full(A.shape[1], np.nan), np.full(A.shape[1], np.nan), n_rows
    size, vectors = np.linalg.eigh(T)
    size = np.maximum(size, 0.0)
    T, kept = (vectors * size) @ vectors.T, size**2 / (size + len(R) / n_rows)
    return quadratic_forms(T, A), quadratic_forms((vectors * kept) @ vectors.T, A), n_rows


def _variates(own: Basis, coefficients: Array) -> tuple[Array, Array]:
    """Directions of the canonical variates and their correlations, which are singular values in orthonormal bases."""
    U, correlations, _ = np.linalg.svd(coefficients, full_matrices=False)
    kept = correlations > ROUNDING
    return own.transform @ U[:, kept], correlations[kept]
