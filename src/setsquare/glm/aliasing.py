"""Detection of aliased features, accurate to near machine precision.

A Gram matrix carries half the digits of the features: it cannot distinguish ``start`` from ``end = start + duration``,
in seconds over a year, if durations are minutes. A feature that lies almost entirely in the span of earlier features
is therefore *residualised* on them, row by row. If the residuals exceed rounding error, they replace the feature, at
full precision; otherwise the feature is aliased.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from setsquare._typing import Array, Matrix
from setsquare.rows.blocks import Block, Rows, is_sparse
from setsquare.rows.parallel import Sums
from setsquare.rows.wide import Slab
from setsquare.tables.mixed_matrix import MixedMatrix

#: Share of a feature's variance outside the span of earlier ones below which its residuals are computed.
SUSPECT = 1e-6
#: Standard deviation of the residuals, as a share of the feature's own, up to which it is aliased.
ALIASED = 1e-7
#: Number of rounding errors allowed for in a value that was computed from others.
ROUNDINGS = 4.0
#: Features that are eliminated before their effect on all later ones is computed, by one matrix product.
PANEL = 64
#: Share of nonzero rows from which a sparse feature is centred: storing it densely then costs little more.
FILLED = 0.95
#: Ratio of standard deviation to mean below which a feature counts as constant: centred before, and not centred.
CONSTANT, CONSTANT_SPARSE = 1e-13, 1e-7


@dataclass(frozen=True, slots=True)
class Separated:
    """Linearly independent features.

    Attributes
    ----------
    second : ndarray of shape (1 + q, 1 + q)
        Second moments of ones and the features in the rows.
    kept : ndarray of int
        Features that are not linear combinations of earlier ones.
    gram, scale : ndarray
        Their correlations (q, q) and standard deviations (q,).
    unmix : ndarray of shape (q, q) or None
        The features in the rows are ``(Z - mean) @ unmix``; None where they are ``Z - mean``.
    """

    second: Array
    kept: NDArray[np.intp]
    gram: Array
    scale: Array
    unmix: Array | None = None


class Copies(NamedTuple):
    """Features that are linear combinations of others, exactly or nearly.

    Attributes
    ----------
    free, suspect : ndarray of int
        Clearly independent features, and features to be tested by their residuals on these.
    B : ndarray of shape (free, suspect)
        Regression coefficients of the suspects on the free features.
    mean : ndarray of shape (suspect,)
        Mean of the residuals, once known.
    """

    free: NDArray[np.intp]
    suspect: NDArray[np.intp]
    B: Array
    mean: Array = np.zeros(0)


def correlations(second: Array, mean: Array) -> tuple[Array, Array]:
    """Correlations of the features, and their standard deviations (1 for a constant)."""
    first = second[0, 1:]
    cross = second[1:, 1:] - first[:, None] * first
    spread = np.sqrt(np.maximum(cross.diagonal(), 0.0))
    # Rounding error is not variation; it is larger where the mean was not subtracted first (sparse features).
    varies = (spread > CONSTANT * np.abs(mean)) & (spread > CONSTANT_SPARSE * np.abs(first))
    divisors = np.where(varies, spread, np.inf)
    return cross / (divisors[:, None] * divisors), np.where(varies, spread, 1.0)


def are_independent(gram: Array, limit: float) -> bool:
    """Whether every feature has more than ``limit`` of its variance outside the span of earlier ones."""
    if not len(gram):
        return True
    factor, failed = lapack.dpotrf(gram, clean=0)
    return not failed and bool(factor.diagonal().min() ** 2 > limit)


def independent(gram: Array, limit: float) -> NDArray[np.intp]:
    """Features with more than ``limit`` of their variance outside the span of earlier ones.

    ``gram`` has 1 on its diagonal, or 0 for a constant feature.

    Examples
    --------
    >>> import numpy as np
    >>> independent(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), 1e-6)
    array([0, 2])
    """
    if are_independent(gram, limit):
        return np.arange(len(gram))
    rest, kept = gram.copy(), list[int]()
    for start in range(0, len(gram), PANEL):
        stop = min(start + PANEL, len(gram))
        found = []
        for j in range(start, stop):  # after elimination the diagonal holds the unexplained variance
            if rest[j, j] > limit:
                found.append(j)
                rest[j + 1 :, j + 1 : stop] -= np.outer(rest[j + 1 :, j], rest[j + 1 : stop, j] / rest[j, j])
        below = rest[stop:, found]
        rest[stop:, stop:] -= (below / rest[found, found]) @ below.T
        kept += found
    return np.asarray(kept, dtype=np.intp)


def separate(
    second: Array,
    mean: Array,
    noise: Array,
    rows: Rows,
    replace: Callable[[Copies], tuple[Rows, Array]],
) -> tuple[Separated, Rows]:
    """Find features that are linear combinations of others, and replace near copies by their residuals.

    Parameters
    ----------
    second : ndarray of shape (1 + q, 1 + q)
        Second moments of ones and the features less ``mean`` in the rows.
    noise : ndarray of shape (q,)
        Rounding error of a value of each feature.
    rows : Rows
    replace : callable
        Takes copies; returns rows with centred residuals in place of the suspects, and their second moments.
    """
    gram, scale = correlations(second, mean)
    if gram.diagonal().all() and are_independent(gram, SUSPECT):
        return Separated(second, np.arange(len(gram)), gram, scale), rows
    total, unmix, lost = scale, np.eye(len(mean)), np.diag(gram) == 0.0
    while True:
        copies = _copies(gram, scale, lost)
        if not len(copies.suspect):
            break
        noise = noise.copy()
        noise[copies.suspect] += np.abs(copies.B).T @ noise[copies.free]
        limit = np.maximum(ALIASED * total[copies.suspect], ROUNDINGS * noise[copies.suspect])
        shift, spread = _residuals_of(rows, copies, limit)
        more = spread > limit
        lost[copies.suspect[~more]] = True
        if not more.any():
            break
        copies = Copies(copies.free, copies.suspect[more], copies.B[:, more], shift[more])
        step = np.eye(len(mean))
        step[np.ix_(copies.free, copies.suspect)] = -copies.B
        unmix = unmix @ step
        rows, second = replace(copies)
        gram, scale = correlations(second, mean)
    same = bool((unmix == np.eye(len(mean))).all())
    return Separated(second, np.flatnonzero(~lost), gram, scale, None if same else unmix), rows


def _copies(gram: Array, scale: Array, lost: NDArray[np.bool_]) -> Copies:
    left = np.flatnonzero(~lost)
    inner = gram[np.ix_(left, left)]
    apart = independent(inner, SUSPECT)
    free, suspect = left[apart], np.delete(left, apart)
    if not len(suspect):
        return Copies(free, suspect, np.zeros((len(free), 0)))
    B = np.linalg.solve(gram[np.ix_(free, free)], gram[np.ix_(free, suspect)])
    return Copies(free, suspect, B * scale[suspect] / scale[free, None])


def residuals(Z: Matrix, copies: Copies) -> Array:
    """Residuals of the suspects on the free features; ``Z`` (n, 1 + q) starts with a column of ones."""
    C = np.zeros((Z.shape[1], len(copies.suspect)))  # a single product avoids copying the features
    C[1 + copies.free] = -copies.B
    C[1 + copies.suspect, range(len(copies.suspect))] = 1.0
    return np.asarray(Z @ C)


def _residuals_of(rows: Rows, copies: Copies, limit: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the residuals, computed row by row; exact where they may exceed ``limit``."""
    shift = np.zeros(len(copies.suspect))
    mean, square = rows.reduce(partial(_residual_sums, copies, shift))
    if ((mean**2 > 1e-2 * square) & (square > limit**2)).any():
        shift = mean  # sparse features are not centred: repeat around the mean, at full precision
        mean, square = rows.reduce(partial(_residual_sums, copies, shift))
    return shift + mean, np.sqrt(np.maximum(square - mean**2, 0.0))


def _residual_sums(copies: Copies, shift: Array, block: Block) -> Sums:
    R = residuals(block.Z, copies) - shift
    return block.weight @ R, block.weight @ np.square(R)


def centre_filled(Z: Matrix, mean: Array) -> Matrix:
    """Centre the sparse columns or dummies (n, q) with a nonzero ``mean``: those with almost no zeros (``FILLED``).

    Squares of values far from zero lose the variance to rounding. A column with more zeros has a standard deviation of
    at least a fifth of its mean, and does not need centring.
    """
    if isinstance(Z, MixedMatrix):
        return Z.centred(mean)
    columns = np.flatnonzero(mean)
    return _put_columns(Z, columns, as_double(Z[:, columns]).toarray() - mean[columns]) if len(columns) else Z


def _put_columns(Z: Matrix, columns: NDArray[np.intp], values: Array) -> Matrix:
    """Return a CSR matrix with ``columns`` replaced by ``values`` (n, c)."""
    stay = np.ones(Z.shape[1])
    stay[columns] = 0.0
    place = sparse.csr_array((np.ones(len(columns)), (np.arange(len(columns)), columns)), (len(columns), Z.shape[1]))
    rest = Z @ sparse.diags_array(stay, format="csr")
    rest.eliminate_zeros()
    return sparse.csr_array(rest + sparse.csr_array(values) @ place)


def put_residuals(copies: Copies, block: Block) -> Block:
    """Replace the suspects by their centred residuals; dense features are changed in place, unless they are a view."""
    R = residuals(block.Z, copies) - copies.mean
    if isinstance(block.Z, MixedMatrix):
        return replace(block, Z=block.Z.put(1 + copies.suspect, R))
    if is_sparse(block.Z):
        return replace(block, Z=_put_columns(block.Z, 1 + copies.suspect, R))
    Z = block.Z.toarray() if isinstance(block.Z, Slab) else block.Z
    Z[:, 1 + copies.suspect] = R
    return replace(block, Z=Z)


def rounding(eps: float, mean: Array, second: Array) -> Array:
    """Absolute rounding error of a value of each feature, given the relative rounding error ``eps``."""
    return np.asarray(eps * np.sqrt(mean**2 + 2.0 * mean * second[0, 1:] + second.diagonal()[1:]))


def precision(Z: Matrix) -> float:
    """Relative rounding error of the features; reduced for narrow types, which may hold exact whole numbers."""
    narrow = Z.dtype.kind == "f" and Z.dtype != np.float64
    return float(np.finfo(Z.dtype).eps) / 8.0 if narrow else float(np.finfo(float).eps)


def as_double(A: Matrix) -> Matrix:
    """Return ``A`` as float64, dense or CSR, without a copy if it already is."""
    return A.astype(np.float64, copy=False) if is_sparse(A) else np.asarray(A, dtype=np.float64)
