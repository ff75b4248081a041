"""Directions of an erasure by conjugate gradients, without the covariance of the features on all rows.

An erasure needs ``D = S^-1 C`` for a few columns: S the covariance of the features, C that with the protected columns.
The covariance on some of the rows takes a fraction of the time, and is near enough to S for conjugate gradients to
reach D in a few products with S, each of which reads the features once. As in :mod:`single_precision`, C alone decides
that nothing is left; how accurate D is decides only how little the features change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from setsquare._typing import Array
from setsquare.projection.basis import keeps_all
from setsquare.projection.oblique import ROUNDING
from setsquare.projection.single_precision import FEW as FEW_COLUMNS
from setsquare.projection.single_precision import Protected, factor_if_enough, single_cross, single_moments
from setsquare.rows.parallel import Sums, row_slices, share_out, single_threaded_blas
from setsquare.rows.products import thin_scores, thin_sums

#: Rows of the sample as a multiple of the features: many if they are there, and the fewest that are worth it.
MANY, FEW = 10, 4
#: The sample has at most every third row.
LEAST_STEP = 3
#: Multiplications of the covariance on all rows from which a sample is worth its while.
WORTH = 1e9
#: Relative error of the directions, in the norm of S, that is small enough: the features change by its square more.
ACCURATE = 3e-3
#: Most products with the covariance.
MOST_PRODUCTS = 12
#: Size of a block of rows in float64; half of it in single precision.
BLOCK = 2**22


@dataclass(frozen=True, slots=True)
class Sampled:
    """Means, covariances with the protected columns, and directions.

    Attributes
    ----------
    mean : ndarray of shape (q,)
    cross : ndarray of shape (q, r)
        Covariances of the features with the columns that are erased or preserved.
    directions : ndarray of shape (q, r)
        ``S^-1 cross``, to a relative error of :data:`ACCURATE`.
    """

    mean: Array
    cross: Array
    directions: Array

    def whiten(self) -> tuple[Array, Array, Array]:
        """Covariances (q, r) of whitened features with the columns, their directions (q, r) and loadings (r, q).

        Features can be whitened by any root of S. By one of them, only the first r whitened features are correlated
        with the columns.
        """
        gram = self.cross.T @ self.directions
        values, vectors = np.linalg.eigh((gram + gram.T) / 2.0)
        size = np.sqrt(np.maximum(values, 0.0))
        covariances = np.zeros_like(self.cross)
        covariances[: len(size)] = size[:, None] * vectors.T
        root = np.divide(vectors, size, out=np.zeros_like(vectors), where=size > ROUNDING)
        return covariances, self.directions @ root, root.T @ self.cross.T


def find_directions(Q: Protected, Z: NDArray[np.floating], weight: Array | None) -> Sampled | None:
    """Directions for features ``Z`` (n, q) in single precision and columns ``Q`` (n, r).

    None where the sample would be too large a part of the rows, where it is too close to collinear, or where it is too
    far from the rest for conjugate gradients to end soon: then all rows decide.
    """
    n, q = Z.shape
    if n * q * q < WORTH:
        return None
    step = max(n // (MANY * q), LEAST_STEP)
    if n // step < FEW * q:
        return None
    some = slice(0, n, step)
    sample = Z[some]
    few = single_moments(np.zeros((len(sample), 0)), sample, None if weight is None else weight[some])
    S = few.scatter / few.weight if few.weight > 0.0 else np.full((q, q), np.nan)
    R = factor_if_enough(few.mean, S, Z.dtype)
    if R is None or not keeps_all(few.mean, R):
        return None
    with single_threaded_blas():  # threads of small triangular systems would compete with those of the blocks
        mean, cross = single_cross(Q, Z, weight)
        if not (np.isfinite(mean).all() and np.isfinite(cross).all()):
            return None
        D = _conjugate_gradients(Z, weight, mean, cross, R)
    return None if D is None else Sampled(mean, cross, D)


def _conjugate_gradients(
    Z: NDArray[np.floating], weight: Array | None, mean: Array, cross: Array, R: Array
) -> Array | None:
    """Solve ``S D = cross`` column by column, all columns in one product, with ``R'R`` as preconditioner."""
    D, left = np.zeros_like(cross), cross.copy()
    scaled = _precondition(R, left)
    step, size = scaled.copy(), np.einsum("qr,qr->r", left, scaled)
    first = np.where(size > 0.0, size, 1.0)
    for _ in range(MOST_PRODUCTS):
        if (size <= ACCURATE**2 * first).all():
            return D
        product = _covariance_times(Z, weight, mean, step)
        curvature = np.einsum("qr,qr->r", step, product)
        if not (np.isfinite(curvature).all() and (curvature >= 0.0).all()):
            return None
        length = np.divide(size, curvature, out=np.zeros_like(size), where=curvature > 0.0)
        D += length * step
        left -= length * product
        scaled = _precondition(R, left)
        before, size = size, np.einsum("qr,qr->r", left, scaled)
        step = scaled + np.divide(size, before, out=np.zeros_like(size), where=before > 0.0) * step
    return None


def _precondition(R: Array, A: Array) -> Array:
    return np.asarray(lapack.dtrtrs(R, lapack.dtrtrs(R, A, trans=1)[0])[0])


def _covariance_times(Z: NDArray[np.floating], weight: Array | None, mean: Array, A: Array) -> Array:
    """``S A`` for ``A`` (q, r): products in single precision, sums of blocks in float64."""
    size = np.linalg.norm(A, axis=0)
    size = np.where(size > 0.0, size, 1.0)
    B = (A / size).T.astype(np.float32)
    centre = (B.astype(np.float64) @ mean).astype(np.float32)[:, None]
    counted = None if weight is None else weight.astype(np.float32)

    def work(share: Sequence[slice]) -> Sums:
        total, count = np.zeros(B.shape), np.zeros(len(B))
        with np.errstate(invalid="ignore", over="ignore"):  # shows as products that are not finite
            for rows in share:
                z = Z[rows]
                scores = thin_scores(z, B, FEW_COLUMNS)
                scores -= centre
                if counted is not None:
                    scores *= counted[rows]
                total += thin_sums(z, scores, FEW_COLUMNS)
                count += scores.sum(axis=1)
        return total, count

    total, count = share_out(work, list(row_slices(len(Z), Z.shape[1], BLOCK)))
    weights = float(len(Z) if weight is None else weight.sum())
    with np.errstate(invalid="ignore"):
        return np.asarray((total.T - np.outer(mean, count)) * size / weights)
