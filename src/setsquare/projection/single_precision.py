"""Erasure of features in single precision: products in float32 where their rounding is harmless, sums in float64.

The covariance of the features with the protected columns is computed in float64, and it alone decides whether the
erased features are uncorrelated with these: the loadings are fitted to it for whatever directions were found. The
covariance of the features among themselves, which takes nearly all the time, only decides how little the features
change, and is computed in single precision block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from setsquare._typing import Array
from setsquare.projection.moments import Moments
from setsquare.rows.parallel import Sums, n_cores, row_slices, share_out
from setsquare.rows.products import thin_sums

Single = NDArray[np.float32]
#: Features from which BLAS shares a product over the cores, not the blocks of rows: one sum of squares is held at once.
MANY_FEATURES = 1000
#: Rows of a block at most: longer sums in single precision lose digits.
MOST_ROWS = 4096
#: Rows that are converted to float64 at a time, for products with the protected columns: they stay in the cache.
PIECE = 256
#: Columns up to which products with vectors are faster than a matrix product, for rows in the cache.
FEW = 5
#: Smallest eigenvalue of the correlations, times the root of their number, for which single precision is enough. Its
#: error is about 6e-8 of this root, so that the directions are accurate to a few percent, and the change of the
#: features exceeds the smallest possible one by the square of that.
ENOUGH = 5e-6


class Protected(Protocol):
    """Protected columns in their basis, read by slices of rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns."""
        ...

    def __getitem__(self, rows: slice) -> Array: ...


def single_moments(Q: Protected, Z: NDArray[np.floating], weight: Array | None) -> Moments:
    """Joint moments of ``Q`` (n, r) and ``Z`` (n, q): squares of ``Z`` in single precision, all else in float64."""
    (n, q), r = Z.shape, Q.shape[1]
    shares = 1 if q >= MANY_FEATURES else n_cores()
    step = -(-n // (-(-n // (MOST_ROWS * shares)) * shares))  # so that every core has as many rows
    shift = _near_means(Z[:step])

    def work(share: Sequence[slice]) -> Sums:
        scatter, room, cross = np.zeros((q, q)), np.empty((step, q), dtype=np.float32), _Cross(r, q)
        with np.errstate(invalid="ignore", over="ignore"):  # shows as sums that are not finite
            for rows in share:
                cross.add(Q[rows], Z[rows], None if weight is None else weight[rows])
                z = np.subtract(Z[rows], shift, out=room[: rows.stop - rows.start])
                if weight is not None:
                    z *= np.sqrt(weight[rows]).astype(np.float32)[:, None]
                scatter += z.T @ z  # numpy detects the symmetry and does half the work
        return scatter, *cross.sums(shift)

    slices = [slice(start, min(start + step, n)) for start in range(0, n, step)]
    bounds = np.linspace(0, len(slices), min(len(slices), shares) + 1).astype(int)
    parts = [slices[a:b] for a, b in pairwise(bounds)]
    sums = share_out(lambda some: work(some[0]), parts) if len(parts) > 1 else work(slices)
    return _join(*sums, shift=shift, total=float(n if weight is None else weight.sum()))


def single_cross(Q: Protected, Z: NDArray[np.floating], weight: Array | None) -> tuple[Array, Array]:
    """Means of ``Z`` (n, q), and its covariances (q, r) with ``Q`` (n, r), all in float64."""
    (n, q), r = Z.shape, Q.shape[1]
    shift = _near_means(Z[:MOST_ROWS])

    def work(share: Sequence[slice]) -> Sums:
        found = _Cross(r, q)
        with np.errstate(invalid="ignore"):
            for rows in share:
                found.add(Q[rows], Z[rows], None if weight is None else weight[rows])
        return found.sums(shift)

    cross, first, _, first_q = share_out(work, list(row_slices(n, q, 8 * q * min(MOST_ROWS, n))))
    total = float(n if weight is None else weight.sum())
    with np.errstate(invalid="ignore"):
        return shift + first / total, (cross - np.outer(first, first_q) / total) / total


def _near_means(first: NDArray[np.floating]) -> Single:
    """Means of the first rows; not finite where these are not."""
    with np.errstate(invalid="ignore"):
        return np.asarray(first.mean(axis=0, dtype=np.float64), dtype=np.float32)


class _Cross:
    """Sums of products with the protected columns in float64, piece by piece."""

    def __init__(self, r: int, q: int) -> None:
        self.cross, self.total, self.square = np.zeros((r + 1, q)), np.zeros(r + 1), np.zeros((r + 1, r))
        self.memory = np.empty((PIECE, q))

    def add(self, x: Array, block: NDArray[np.floating], weight: Array | None) -> None:
        """Add some rows."""
        wide = np.ones((x.shape[1] + 1, len(x)))
        wide[:-1] = x.T
        if weight is not None:
            wide *= weight
        self.square += wide @ x
        self.total += wide.sum(axis=1)
        for start in range(0, len(x), PIECE):
            some = block[start : start + PIECE]
            np.copyto(self.memory[: len(some)], some)
            self.cross += thin_sums(self.memory[: len(some)], wide[:, start : start + PIECE], FEW)

    def sums(self, shift: Single) -> Sums:
        """Products of shifted features with the protected columns, their sums, and those of the protected columns."""
        r = self.square.shape[1]
        with np.errstate(invalid="ignore"):
            cross = self.cross - np.outer(self.total, shift)
        return cross[:r].T, cross[r], self.square[:r], self.square[r]


def _join(
    scatter: Array, cross: Array, first: Array, square: Array, first_q: Array, *, shift: Single, total: float
) -> Moments:
    """Moments of both parts side by side from sums over the rows, in which the features are shifted."""
    sums = np.concatenate([first_q, first])
    whole = np.block([[square, cross.T], [cross, scatter]])
    with np.errstate(invalid="ignore"):
        whole -= np.outer(sums, sums) / total
        return Moments(total, np.concatenate([np.zeros(len(first_q)), shift.astype(np.float64)]) + sums / total, whole)


def is_enough(S: Array, R: Array) -> bool:
    """Whether single precision is enough for covariances ``S = R'R``, by the smallest eigenvalue of the correlations.

    ``R`` is triangular; the eigenvalue is LAPACK's estimate for the 1-norm, which is never larger.
    """
    size = np.sqrt(np.diag(S))
    norm = float(((np.abs(S) / size[:, None]).sum(axis=0) / size).max())
    rcond, failed = lapack.dpocon(np.asfortranarray(R / size), norm)
    return not failed and rcond * norm > ENOUGH * len(R) ** 0.5
