"""Erasure of many features: products in single precision where their rounding is harmless, sums in float64.

The covariance of the features with the protected columns is computed in float64, and it alone decides whether the
erased features are uncorrelated with these: the loadings are fitted to it for whatever directions were found. The
covariance of the features among themselves, which takes nearly all the time, only decides how little the features
change, and is computed in single precision block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from setsquare._typing import Array
from setsquare.projection.basis import cholesky_factor
from setsquare.projection.moments import Moments
from setsquare.rows.parallel import MANY_COLUMNS, Sums, n_cores, row_slices, share_out
from setsquare.rows.products import thin_sums, whole_lanes

#: Rows of a block at most: longer sums in single precision lose digits.
MOST_ROWS = 4096
#: Size of the rows that are multiplied by the protected columns at a time, in float64, and the fewest such rows.
PIECE_BYTES, LEAST_PIECE = 2**20, 256
#: Columns up to which products with vectors are faster than a matrix product, for rows in the cache.
FEW = 5
#: Smallest eigenvalue of the correlations, times the root of their number, for which single precision is enough. Its
#: error is about 6e-8 of this root, so that the directions are accurate to a few percent, and the change of the
#: features exceeds the smallest possible one by the square of that.
ENOUGH = 5e-6
#: The same for features in float64, whose directions keep four digits.
EXACT = 1e-3
#: Standard deviations whose squares are far from the ends of single precision.
SMALLEST, LARGEST = 1e-15, 1e15
#: Multiplications from which on features in float64 are worth a look at some of their rows, and so many rows a feature.
WORTH, MANY = 1e9, 10
#: Largest mean of such a feature in standard deviations: products with it are not centred before they are summed.
MOST_MEAN = 100.0


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
    shares = 1 if q >= MANY_COLUMNS else n_cores()
    step = -(-n // (-(-n // (MOST_ROWS * shares)) * shares))  # so that every core has as many rows
    shift = _near_means(Z[:step])

    def work(share: Sequence[slice]) -> Sums:
        scatter, room, cross = np.zeros((q, q)), np.empty((step, q), dtype=np.float32), _Cross(r, shift)
        with np.errstate(invalid="ignore", over="ignore"):  # shows as sums that are not finite
            for rows in share:
                z = room[: rows.stop - rows.start]
                cross.add(Q[rows], Z[rows], None if weight is None else weight[rows], z)
                if weight is not None:
                    z *= np.sqrt(weight[rows]).astype(np.float32)[:, None]
                scatter += z.T @ z  # numpy detects the symmetry and does half the work
        return scatter, *cross.sums()

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
        found = _Cross(r, shift)
        with np.errstate(invalid="ignore"):
            for rows in share:
                found.add(Q[rows], Z[rows], None if weight is None else weight[rows])
        return found.sums()

    cross, first, _, first_q = share_out(work, list(row_slices(n, q, 8 * q * min(MOST_ROWS, n))))
    total = float(n if weight is None else weight.sum())
    with np.errstate(invalid="ignore"):
        return shift + first / total, (cross - np.outer(first, first_q) / total) / total


def _near_means(first: NDArray[np.floating]) -> NDArray[np.floating]:
    """Means of the first rows in the type of the features; not finite where these are not."""
    with np.errstate(invalid="ignore"):
        return np.asarray(first.mean(axis=0, dtype=np.float64), dtype=first.dtype)


class _Cross:
    """Sums of products with the protected columns in float64, piece by piece."""

    def __init__(self, r: int, shift: NDArray[np.floating]) -> None:
        q, width = len(shift), r + 1 if r < FEW else whole_lanes(r + 1)
        self.cross, self.total, self.square = np.zeros((width, q)), np.zeros(width), np.zeros((width, r))
        self.shift, self.memory = shift, np.empty((max(LEAST_PIECE, PIECE_BYTES // (8 * q)), q))

    def add(self, x: Array, block: NDArray[np.floating], weight: Array | None, out: Any = None) -> None:
        """Add some rows; ``out`` takes their shifted features, while these are in the cache."""
        r = x.shape[1]
        wide = np.zeros((len(self.cross), len(x)))
        wide[:r], wide[r] = x.T, 1.0
        if weight is not None:
            wide *= weight
        self.square += np.dot(wide, x)
        self.total += wide.sum(axis=1)
        for start in range(0, len(x), len(self.memory)):
            rows = slice(start, min(start + len(self.memory), len(x)))
            some = block[rows]
            if out is not None:
                np.subtract(some, self.shift, out=out[rows])
            if some.dtype != np.float64:
                some = self.memory[: len(some)]
                np.copyto(some, block[rows])
            self.cross += thin_sums(some, wide[:, rows], FEW)

    def sums(self) -> Sums:
        """Products of shifted features with the protected columns, their sums, and those of the protected columns."""
        r = self.square.shape[1]
        with np.errstate(invalid="ignore"):
            cross = self.cross - np.outer(self.total, self.shift)
        return cross[:r].T, cross[r], self.square[:r], self.square[r]


def _join(
    scatter: Array,
    cross: Array,
    first: Array,
    square: Array,
    first_q: Array,
    *,
    shift: NDArray[np.floating],
    total: float,
) -> Moments:
    """Moments of both parts side by side from sums over the rows, in which the features are shifted."""
    sums = np.concatenate([first_q, first])
    whole = np.block([[square, cross.T], [cross, scatter]])
    with np.errstate(invalid="ignore"):
        whole -= np.outer(sums, sums) / total
        return Moments(total, np.concatenate([np.zeros(len(first_q)), shift.astype(np.float64)]) + sums / total, whole)


def is_enough(S: Array, R: Array, limit: float = ENOUGH) -> bool:
    """Whether single precision is enough for covariances ``S = R'R``, by the smallest eigenvalue of the correlations.

    ``R`` is triangular; the eigenvalue is LAPACK's estimate for the 1-norm, which is never larger.
    """
    size = np.sqrt(np.diag(S))
    if not (size.min() >= SMALLEST and size.max() <= LARGEST):
        return False
    norm = float(((np.abs(S) / size[:, None]).sum(axis=0) / size).max())
    rcond, failed = lapack.dpocon(np.asfortranarray(R / size), norm)
    return not failed and rcond * norm > limit * len(R) ** 0.5


def factor_if_enough(mean: Array, S: Array, kind: np.dtype[Any]) -> Array | None:
    """Triangular R with ``R'R = S`` where single precision is enough for features of this type; None elsewhere.

    Those in float64 must be near zero as well: their products with the protected columns are centred after the sum.
    """
    R = cholesky_factor(S) if np.isfinite(S).all() else None
    exact = kind == np.float64
    if R is None or not is_enough(S, R, EXACT if exact else ENOUGH):
        return None
    return None if exact and (np.abs(mean) > MOST_MEAN * np.sqrt(np.diag(S))).any() else R


def suits(Z: NDArray[np.floating], weight: Array | None) -> bool:
    """Whether the squares of many features (n, q) may be in single precision; of float64 ones some rows are looked at.

    Examples
    --------
    >>> Z = np.random.default_rng(0).normal(size=(60_000, 150))
    >>> suits(Z, None), suits(1000.0 + Z, None), suits(Z[:1000], None)
    (True, False, False)
    """
    n, q = Z.shape
    if Z.dtype != np.float64:
        return Z.dtype == np.float32
    if n * q * q < WORTH:
        return False
    some = slice(0, n, max(1, n // (MANY * q)))
    few = Moments.of(Z[some], None if weight is None else weight[some])
    return few.weight > 0.0 and factor_if_enough(few.mean, few.scatter / few.weight, Z.dtype) is not None
