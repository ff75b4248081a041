"""Erasure for new rows: the protected columns are predicted by the ridge regression that predicts them best there.

An eraser removes from the features what depends on a linear prediction of the protected columns, ``W'z``: its kernel is
``S W``, S the covariance of the features. A linear probe on new rows then finds what this prediction missed,

    R²(left) = R²(best linear prediction) - R²(prediction by W, on new rows),

if S is known, and more if S is estimated from N rows of d features: then R²(prediction) counts ``1 / (1 + d / N)`` of
itself. LEACE has ``S W = S_zx``, estimated from the rows with protected columns: d noisy entries, ``d / n`` of noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array
from setsquare.projection.basis import Basis
from setsquare.projection.linear import coordinates
from setsquare.rows.blocks import Sums, sum_over_rows

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
    error : float
        Mean squared error of the left-out predictions, in the basis of the protected columns.
    """

    directions: Array
    loadings: Array
    correlations: Array
    explained: Array
    predicted: Array
    rank: int
    error: float


def fit_ridge(
    Z: Array, X: Array, basis: Basis, share: Array, mean: Array, S_zz: Array, S_zq: Array, scale: Array
) -> RidgeFit:
    """Fit the ridge regression of the protected columns on features divided by ``scale``, in one pass over the rows.

    Parameters
    ----------
    Z : ndarray of shape (n, q)
    X : ndarray of shape (n, p)
    basis : Basis
        Basis of ``X``, with r directions.
    share : ndarray of shape (n,)
        Weights that sum to 1.
    mean, S_zz, S_zq : ndarray
        Mean of the features, their covariance, and their covariance with the basis.
    scale : ndarray of shape (q,)
        Units in which the penalty is the same for every feature.
    """
    values, vectors = np.linalg.eigh(S_zz / np.outer(scale, scale))
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = np.flatnonzero(values[: len(Z) - 1] > ROUNDING * values[0])
    values = values[kept]
    whitening = vectors[:, kept] / scale[:, None] / np.sqrt(values)
    R = whitening.T @ S_zq
    shrunk = values[:, None] / (values[:, None] + values[0] * PENALTIES)
    sums = _leave_one_out(Z, X, basis, share, mean @ whitening, whitening, R, shrunk)
    best = int(np.argmin(np.where(sums.full == 0, sums.error, np.inf)))
    U, size, _ = np.linalg.svd(shrunk[:, [best]] * R, full_matrices=False)
    U = U[:, size > ROUNDING]
    directions = whitening @ U
    explained, predicted = _by_column(basis, R, sums.cross[best], sums.own[best], effective_rows(share))
    correlations = np.linalg.norm(U.T @ R, axis=1)
    error = float(sums.error[best])
    return RidgeFit(directions, directions.T @ S_zz, correlations, explained, predicted, len(values), error)


def effective_rows(share: Array) -> float:
    """Number of equally weighted rows that determine as much as these weights, which sum to 1."""
    return float(1.0 / (share @ share))


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
    return found / np.maximum(np.linalg.norm(found, axis=0), np.finfo(float).tiny)


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


def _leave_one_out(
    Z: Array, X: Array, basis: Basis, share: Array, centre: Array, whitening: Array, R: Array, shrunk: Array
) -> _LeftOut:
    n_penalties, r = shrunk.shape[1], R.shape[1]
    coefficients = (shrunk[:, :, None] * R[:, None, :]).reshape(len(R), -1)

    def kernel(rows: slice, _: Array) -> Sums:
        U = Z[rows] @ whitening - centre
        Q, w = coordinates(basis, X[rows]), share[rows]
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

    return _LeftOut(*sum_over_rows(kernel, len(Z), Z.shape[1] + n_penalties * (1 + 3 * r)))
