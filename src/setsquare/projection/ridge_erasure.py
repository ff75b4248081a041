"""Erasure for new rows: the protected columns are predicted by the ridge regression that predicts them best there.

An eraser removes from the features what depends on a linear prediction of the protected columns, ``W'z``: its kernel is
``S W``, S the covariance of the features. A linear probe on new rows then finds what this prediction missed,

    R²(left) = R²(best linear prediction) - R²(prediction by W, on new rows),

if S is known, and more if S is estimated from N rows of d features: then R²(prediction) counts ``1 / (1 + d / N)`` of
itself. LEACE has ``S W = S_zx``, estimated from the rows with protected columns: d noisy entries, ``d / n`` of noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.errors import InputError
from setsquare.projection.basis import Basis
from setsquare.projection.linear import coordinates
from setsquare.rows.parallel import BLOCK_BYTES, Sums, add_up, sum_over_rows

#: Ridge penalties tried, relative to the largest eigenvalue of the features' covariance.
PENALTIES = np.concatenate([[0.0], np.geomspace(1e-6, 10.0, 15)])
#: Eigenvalues below this share of the largest are rounding error.
ROUNDING = 1e-12
#: A row with a larger leverage than this decides its own prediction, so that leaving it out is not possible.
FULL = 1.0 - 1e-8


@dataclass(frozen=True, slots=True)
class RidgeFit:
    """Ridge prediction of the protected columns that is best when each row is left out.

    Attributes
    ----------
    directions : ndarray of shape (q, k)
        Directions of uncorrelated scores of variance 1 that span the predictions.
    loadings : ndarray of shape (k, q)
        Least-squares effects of the scores on the features.
    correlations : ndarray of shape (k,)
        Multiple correlation of each score with the protected columns.
    explained : ndarray of shape (p,)
        Estimated R² of each protected column given the features on new rows; NaN if there are too few rows to tell.
    predicted : ndarray of shape (p,)
        R² of each protected column given the left-out predictions.
    rank : int
    n_rows : float
        Number of independent rows that these are worth.
    error : float
        Mean squared error of the left-out predictions, in the basis of the protected columns.
    """

    directions: Array
    loadings: Array
    correlations: Array
    explained: Array
    predicted: Array
    rank: int
    n_rows: float
    error: float


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Rows with protected columns.

    Attributes
    ----------
    Z : ndarray of shape (n, q)
    X : ndarray of shape (n, p)
    basis : Basis
        Basis of ``X``, with r directions.
    share : ndarray of shape (n,)
        Weights that sum to 1.
    cluster : ndarray of shape (n,) or None
        Codes 0, 1, ... of rows that are left out together.
    """

    Z: Array
    X: Array
    basis: Basis
    share: Array
    cluster: IntArray | None = None

    def by_cluster(self) -> Iterator[tuple[Array, Array, Array]]:
        """Features (c, m, q), basis (c, m, r) and root weights (c, m) of batches of clusters with m rows each."""
        assert self.cluster is not None
        counts = np.bincount(self.cluster)
        order = np.lexsort([self.cluster, counts[self.cluster]])
        sizes = counts[self.cluster[order]]
        for m in np.unique(sizes):
            rows = order[sizes == m].reshape(-1, m)
            step = max(1, BLOCK_BYTES // (8 * m * max(self.Z.shape[1], m)))
            for start in range(0, len(rows), step):
                batch = rows[start : start + step]
                Q = coordinates(self.basis, self.X[batch.ravel()]).reshape(*batch.shape, -1)
                yield self.Z[batch.ravel()].reshape(*batch.shape, -1), Q, np.sqrt(self.share[batch])


def fit_ridge(data: LabelledRows, mean: Array, S_zz: Array, S_zq: Array, scale: Array) -> RidgeFit:
    """Fit the ridge regression of the protected columns on features divided by ``scale``, in one pass over the rows.

    Parameters
    ----------
    data : LabelledRows
    mean, S_zz, S_zq : ndarray
        Mean of the features, their covariance, and their covariance with the basis.
    scale : ndarray of shape (q,)
        Units in which the penalty is the same for every feature.
    """
    values, vectors = np.linalg.eigh(S_zz / np.outer(scale, scale))
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = np.flatnonzero(values[: len(data.Z) - 1] > ROUNDING * values[0])
    values = values[kept]
    whitening = vectors[:, kept] / scale[:, None] / np.sqrt(values)
    R = whitening.T @ S_zq
    shrunk = values[:, None] / (values[:, None] + values[0] * PENALTIES)
    leave_out = _leave_one_out if data.cluster is None else _leave_cluster_out
    sums = leave_out(data, mean @ whitening, whitening, R, shrunk)
    error = np.where(sums.full == 0, sums.error, np.inf)
    best = int(np.argmin(error))
    if not np.isfinite(error[best]):
        raise InputError(
            "One row or cluster has nearly all the weight, so that the others say nothing of it: use more rows, or "
            'orthogonal_on="training rows".'
        )
    U, size, _ = np.linalg.svd(shrunk[:, [best]] * R, full_matrices=False)
    U = U[:, size > ROUNDING]
    directions = whitening @ U
    n_rows = independent_rows(data, mean @ whitening, whitening)
    explained, predicted = _by_column(data.basis, R, sums.cross[best], sums.own[best], n_rows)
    correlations = np.linalg.norm(U.T @ R, axis=1)
    parts = (directions, directions.T @ S_zz, correlations, explained, predicted, len(values), n_rows)
    return RidgeFit(*parts, float(error[best]))


def effective_rows(share: Array) -> float:
    """Number of equally weighted rows that determine as much as these weights, which sum to 1."""
    return float(1.0 / (share @ share))


def independent_rows(data: LabelledRows, centre: Array, whitening: Array) -> float:
    """Number of independent rows that would determine the covariances with the protected columns as well as these.

    ``Z @ whitening - centre`` (n, k) are orthonormal features. Independent rows have noise of ``k r / n`` in all.
    """
    most = effective_rows(data.share)
    if data.cluster is None:
        return most
    noise = 0.0
    for Z, Q, root in data.by_cluster():
        U = (Z @ whitening - centre) * root[:, :, None]
        noise += float(np.sum(np.square(np.swapaxes(U, 1, 2) @ (Q * root[:, :, None]))))
    return float(min(most, whitening.shape[1] * data.basis.rank / noise))


def unbiased_gram(R: Array, n_rows: float) -> Array:
    """Adjusted R² as a matrix: of the basis of the protected columns given features, from covariances ``R`` (k, r)."""
    k, r = R.shape
    if n_rows <= k + 2:
        return np.full((r, r), np.nan)
    return np.asarray(np.eye(r) - (np.eye(r) - R.T @ R) * (n_rows - 1.0) / (n_rows - k - 1.0))


def column_coordinates(basis: Basis) -> Array:
    """Coordinates (r, p) of the protected columns, scaled to variance 1, in the basis; zero for dropped columns."""
    kept = [j for j, name in enumerate(basis.names) if name not in basis.dropped]
    found = np.zeros((basis.rank, len(basis.names)))
    found[:, kept] = np.linalg.inv(basis.transform[kept])
    return np.asarray(found / np.maximum(np.linalg.norm(found, axis=0), np.finfo(float).tiny))


def quadratic_forms(M: Array, A: Array) -> Array:
    """``a' M a`` for each column of ``A``, at least 0."""
    return np.asarray(np.maximum(np.einsum("rp,rs,sp->p", A, M, A), 0.0))


def _by_column(basis: Basis, R: Array, cross: Array, own: Array, n_rows: float) -> tuple[Array, Array]:
    A = column_coordinates(basis)
    predicted = quadratic_forms(cross.T @ np.linalg.pinv(own, rcond=1e-10, hermitian=True) @ cross, A)
    return np.maximum(quadratic_forms(unbiased_gram(R, n_rows), A), predicted), predicted


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """Sums over left-out predictions F, one per penalty: squared errors, F'Q, F'F, and rows that cannot be left out."""

    error: Array
    cross: Array
    own: Array
    full: Array


def _leave_one_out(data: LabelledRows, centre: Array, whitening: Array, R: Array, shrunk: Array) -> _LeftOut:
    n_penalties, r = shrunk.shape[1], R.shape[1]
    coefficients = (shrunk[:, :, None] * R[:, None, :]).reshape(len(R), -1)

    def kernel(rows: slice, _: Array) -> Sums:
        U = data.Z[rows] @ whitening - centre
        Q, w = coordinates(data.basis, data.X[rows]), data.share[rows]
        leverage = w[:, None] * (np.square(U) @ shrunk + 1.0)
        fitted = (U @ coefficients).reshape(len(U), n_penalties, r)
        left = np.maximum(1.0 - leverage, 1.0 - FULL)
        error = (Q[:, None, :] - fitted) / left[:, :, None]
        F = Q[:, None, :] - error
        weighted = w[:, None, None] * F
        return (
            np.einsum("i,ilr->l", w, np.square(error)),
            np.einsum("ils,ir->lsr", weighted, Q),
            np.einsum("ils,ilt->lst", weighted, F),
            np.count_nonzero(leverage > FULL, axis=0),
        )

    return _LeftOut(*sum_over_rows(kernel, len(data.Z), data.Z.shape[1] + n_penalties * (1 + 3 * r)))


def _leave_cluster_out(data: LabelledRows, centre: Array, whitening: Array, R: Array, shrunk: Array) -> _LeftOut:
    """As above with the rows of a cluster left out together, which takes a system of their number for each cluster."""

    def kernel(Z: Array, Q: Array, root: Array) -> Sums:
        U = Z @ whitening - centre
        weighted = Q * root[:, :, None]
        parts = [_solve_clusters(U, weighted, root, R, g) for g in shrunk.T]
        return tuple(np.array(part) for part in zip(*parts, strict=True))

    return _LeftOut(*add_up(kernel(*batch) for batch in data.by_cluster()))


def _solve_clusters(U: Array, Q: Array, root: Array, R: Array, g: Array) -> tuple[float, Array, Array, int]:
    """Sums over clusters (c, m) for one penalty; ``Q`` and ``root`` are weighted by roots of the weights."""
    hat = ((U * g) @ np.swapaxes(U, 1, 2) + 1.0) * root[:, :, None] * root[:, None, :]
    full = np.linalg.eigvalsh(hat)[:, -1] > FULL
    hat[full] = 0.0
    fitted = (U @ (g[:, None] * R)) * root[:, :, None]
    error = np.linalg.solve(np.eye(U.shape[1]) - hat, Q - fitted)
    F = Q - error
    cross, own = np.einsum("cms,cmr->sr", F, Q), np.einsum("cms,cmt->st", F, F)
    return float(np.sum(np.square(error))), cross, own, int(np.count_nonzero(full))
