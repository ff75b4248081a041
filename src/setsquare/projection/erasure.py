"""Erasure: an affine map of the features that leaves no correlation with the protected columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from scipy.linalg import lapack

from setsquare._typing import Array, IntArray
from setsquare.errors import InputError
from setsquare.projection.basis import Basis, cholesky_factor, keeps_all, settle_basis
from setsquare.projection.linear import Projector, coordinates, subtract_product
from setsquare.projection.moments import Moments
from setsquare.projection.oblique import find_oblique
from setsquare.projection.ridge_erasure import (
    LabelledRows,
    column_coordinates,
    effective_rows,
    fit_ridge,
    independent_rows,
    quadratic_forms,
    unbiased_gram,
)
from setsquare.projection.sampled_erasure import Sampled, find_directions
from setsquare.projection.single_precision import FEW, factor_if_enough, single_moments, suits
from setsquare.rows.parallel import OWN_CACHE, Sums, room, row_slices, sum_over_rows
from setsquare.rows.products import thin_scores
from setsquare.tables.validation import check_second_moments, refuse_constant_features

#: Features from which their squares take most of the time, so that single precision pays off.
LARGE_GRAM = 64
#: Condition of the basis of the protected columns up to which moments can be transformed to it, instead of the rows.
CONDITION = 100.0


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
    overlap : float
        Largest correlation between linear predictions, from the features, of the protected and of the preserved
        columns; NaN if none is preserved.
    kept : float
        Smallest share of the R² of a preserved column given the features that the erased features have, too; NaN if
        none is preserved.
    squares, squares_before : float
        Largest correlation of a squared linear combination of the features with a protected column on the training
        rows, after erasure of second moments and before; NaN if only means were erased.
    n_kept : int
        Number of directions that erasure of second moments keeps.

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
    overlap: float = float("nan")
    kept: float = float("nan")
    squares: float = float("nan")
    squares_before: float = float("nan")
    n_kept: int = -1

    @classmethod
    def fit(
        cls,
        Z: Array,
        basis: Basis,
        X: Array,
        weight: Array | None = None,
        names: tuple[str, ...] | None = None,
        cluster: IntArray | None = None,
        preserve: Array | None = None,
    ) -> Eraser:
        """Fit to features ``Z`` (n, q) and protected columns ``X`` (n, p) with their basis.

        The covariances of the features with the columns ``preserve`` (n, s) stay as they are: the erased features are
        the residuals from an oblique projection (SPLINCE, Holstege et al. 2025).

        Takes one pass over the rows unless some features are nearly collinear. Clusters (codes 0, 1, ...) take another
        one and affect only the estimates for new rows.
        """
        n, q = Z.shape
        if n <= q:
            raise InputError(
                f"Too few rows (n_samples = {n}) to correct {q} features without the protected columns: pass more "
                'rows, reduce the features first (a few principal components), or choose using="protected".'
            )
        sides = _Coordinates(basis, X, preserve)
        data = LabelledRows(Z, X, basis, _shares(n, weight), cluster)
        if Z.dtype == np.float32 and q >= LARGE_GRAM and cluster is None and preserve is None:
            sampled = find_directions(sides, Z, weight)
            if sampled is not None:
                return cls._fit_sampled(data, sampled)
        moments, R = _moments(Z, sides, weight)
        mean, S_zz, S_zs = _covariances(moments, sides.shape[1])
        S_zq = S_zs[:, : basis.rank]
        names = names or tuple(f"x{j}" for j in range(q))
        if R is None:
            return cls._fit_collinear(data, weight, names, preserve)
        if cluster is None and keeps_all(mean, R):  # triangular solves for a few columns; a basis needs the inverse
            R_zs, rank, n_rows = lapack.dtrtrs(R, S_zs, trans=1)[0], q, effective_rows(data.share)
            unwhiten: Callable[[Array], Array] = partial(_solve_triangular, R)
        else:
            own = settle_basis(mean, R, names)
            R_zs, rank = own.transform.T @ S_zs, own.rank
            n_rows = independent_rows(data, mean @ own.transform, own.transform)
            unwhiten = partial(np.matmul, own.transform)
        found = find_oblique(R_zs[:, : basis.rank], R_zs[:, basis.rank :])
        directions, loadings = unwhiten(found.left), unwhiten(found.variates).T @ S_zz
        loadings = _adjust(loadings, directions, S_zq)
        estimates = _on_new_rows(basis, R_zs[:, : basis.rank], n_rows)
        return cls(mean, directions, loadings, found.correlations, rank, *estimates, found.overlap, found.kept)

    @classmethod
    def fit_for_new_rows(
        cls, Z: Array, basis: Basis, X: Array, weight: Array | None = None, cluster: IntArray | None = None
    ) -> Eraser:
        """Fit to the same rows, with the ridge prediction of the protected columns that is best for left-out rows.

        The penalty is the same for every feature in its own units or in standard deviations, whichever predicts better.
        There may be more features than rows. The rows of a cluster (codes 0, 1, ...) are left out together.
        """
        mean, S_zz, S_zq = _covariances(_Coordinates(basis, X).moments(Z, weight), basis.rank)
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
    def _fit_sampled(cls, data: LabelledRows, sampled: Sampled) -> Eraser:
        """Fit with directions that were found without the covariance of all features on all rows."""
        R, directions, loadings = sampled.whiten()
        found, r, n_rows = find_oblique(R, R[:, :0]), data.basis.rank, effective_rows(data.share)
        directions, loadings = directions @ found.left[:r], found.left[:r].T @ loadings
        loadings = _adjust(loadings, directions, sampled.cross)
        estimates = _on_new_rows(data.basis, R, n_rows)
        return cls(sampled.mean, directions, loadings, found.correlations, len(R), *estimates)

    @classmethod
    def _fit_collinear(
        cls, data: LabelledRows, weight: Array | None, names: tuple[str, ...], preserve: Array | None
    ) -> Eraser:
        """Fit nearly collinear features, which moments cannot distinguish, in several passes over the rows."""
        Z, b = data.Z, data.basis.rank
        sides = data.basis.apply(data.X) if preserve is None else np.hstack([data.basis.apply(data.X), preserve])
        prediction = Projector.fit(sides, Z, weight, names)
        own, coefficients = prediction.basis, prediction.coefficients
        found = find_oblique(coefficients[:, :b], coefficients[:, b:])
        loadings = np.zeros((0, Z.shape[1]))
        if len(found.correlations):
            scores, variates = np.empty((len(Z), len(found.correlations))), own.transform @ found.variates
            for rows in row_slices(*Z.shape):
                scores[rows] = (Z[rows] - own.mean) @ variates
            loadings = _effects(Z, scores, weight)
        n_rows = independent_rows(data, own.mean @ own.transform, own.transform)
        estimates = _on_new_rows(data.basis, coefficients[:, :b], n_rows)
        parts = (own.transform @ found.left, loadings, found.correlations, own.rank)
        return cls(own.mean, *parts, *estimates, found.overlap, found.kept)

    def apply(self, Z: Array, out: Array | None = None) -> Array:
        """Correct features ``Z`` (n, q), without the protected columns; ``out=Z`` corrects in place."""
        out = np.empty_like(Z, dtype=np.result_type(Z.dtype, np.float32), subok=False) if out is None else out
        turned, loadings, single = np.ascontiguousarray(self.directions.T), self.loadings, out.dtype == np.float32
        centre = (turned @ self.mean)[:, None]  # centring the scores, not the features, keeps all their digits
        if single:  # errors of the loadings would add up over the rows; after their first digits the others round away
            near = loadings.astype(np.float32)
            loadings = np.vstack([(loadings - near).astype(np.float32), near])

        def kernel(rows: slice, memory: Array) -> Sums:
            z = Z[rows]
            if single:
                z = room(memory, z, Z.shape[1])
                np.copyto(z, Z[rows])
            scores = thin_scores(z, turned, FEW)
            scores -= centre
            if single:
                scores, memory = np.tile(scores, (2, 1)).astype(np.float32), memory.view(np.float32)
            subtract_product(Z[rows], scores.T, loadings, memory, out[rows])
            return ()

        sum_over_rows(kernel, len(Z), Z.shape[1], 2 * OWN_CACHE if single else OWN_CACHE)
        return out


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """Protected columns in their basis, computed block by block when they are read, and further columns."""

    basis: Basis
    X: Array
    further: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.X), self.basis.rank + (0 if self.further is None else self.further.shape[1])

    def __getitem__(self, rows: slice) -> Array:
        own = coordinates(self.basis, self.X[rows])
        return own if self.further is None else np.column_stack([own, self.further[rows]])

    def moments(self, Z: Array, weight: Array | None) -> Moments:
        """Joint moments of these columns and features ``Z`` (n, q)."""
        T = self.basis.transform
        size = np.linalg.norm(T, axis=1, keepdims=True)
        if self.further is not None or not size.all() or np.linalg.cond(T / size) > CONDITION:
            return Moments.of([self, Z], weight)
        found, p = Moments.of([self.X, Z], weight), len(T)
        mean = np.concatenate([(found.mean[:p] - self.basis.mean) @ T, found.mean[p:]])
        with np.errstate(invalid="ignore"):
            rows = np.vstack([T.T @ found.scatter[:p], found.scatter[p:]])
            return Moments(found.weight, mean, np.hstack([rows[:, :p] @ T, rows[:, p:]]))


def _moments(Z: Array, protected: _Coordinates, weight: Array | None) -> tuple[Moments, Array | None]:
    """Joint moments of protected columns and features, and the triangular factor of the features' covariances.

    Single precision is enough for the squares of many features, unless they are too close to collinear for it. The
    factor is None if they are so even for float64.
    """
    rank = protected.shape[1]
    if Z.shape[1] >= LARGE_GRAM and suits(Z, weight):
        moments = single_moments(protected, Z, weight)
        if Z.dtype == np.float32:
            check_second_moments(
                np.diag(moments.scatter)[rank:]
            )  # what exceeds single precision cannot be erased in it
        R = factor_if_enough(moments.mean[rank:], moments.scatter[rank:, rank:] / moments.weight, Z.dtype)
        if R is not None:
            return moments, R
    moments = protected.moments(Z, weight)
    return moments, cholesky_factor(_covariances(moments, rank)[1])


def _covariances(moments: Moments, rank: int) -> tuple[Array, Array, Array]:
    """Mean of the features, their covariance, and their covariance with the basis of the protected columns."""
    mean, S = moments.mean[rank:], moments.scatter[rank:] / moments.weight
    check_second_moments(np.diag(S[:, rank:]))
    if (np.sqrt(np.maximum(np.diag(S[:, rank:]), 0.0)) <= 1e-12 * np.abs(mean)).all():
        refuse_constant_features()
    return mean, S[:, rank:], S[:, :rank]


def _adjust(loadings: Array, directions: Array, S_zq: Array) -> Array:
    """Adjust the loadings to the rounded directions, so that their rounding error cancels."""
    left = S_zq.T - S_zq.T @ directions @ loadings
    return np.asarray(loadings + np.linalg.lstsq(S_zq.T @ directions, left, rcond=None)[0])


def _shares(n: int, weight: Array | None) -> Array:
    return np.full(n, 1.0 / n) if weight is None else weight / weight.sum()


def _effects(Z: Array, scores: Array, weight: Array | None) -> Array:
    """Least-squares effects of scores (n, k) on the features, (k, q)."""
    effects = Projector.fit(Z, scores, weight)
    return np.asarray(effects.basis.transform @ effects.coefficients)


def _on_new_rows(basis: Basis, R: Array, n_rows: float) -> tuple[Array, Array, float]:
    """R² of each protected column on new rows, how much of it the erasure removes there, and the number of rows.

    ``R`` (k, r) are covariances of the features' own basis with that of the protected columns, from ``n_rows``
    independent rows. The removed directions are those of ``R``, whose noise has the variance ``k / n`` in each column:
    of R² = T remains the parallel sum of T and the noise.
    """
    T, A = unbiased_gram(R, n_rows), column_coordinates(basis)
    if not np.isfinite(T).all():
        return np.full(A.shape[1], np.nan), np.full(A.shape[1], np.nan), n_rows
    size, vectors = np.linalg.eigh(T)
    size = np.maximum(size, 0.0)
    T, kept = (vectors * size) @ vectors.T, size**2 / (size + len(R) / n_rows)
    return quadratic_forms(T, A), quadratic_forms((vectors * kept) @ vectors.T, A), n_rows


def _solve_triangular(R: Array, A: Array) -> Array:
    """``R^-1 A`` for an upper triangular R."""
    return np.asarray(lapack.dtrtrs(R, A)[0])
