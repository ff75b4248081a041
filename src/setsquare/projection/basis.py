"""A rank-revealing, orthonormal basis of the protected columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, lapack

from setsquare._typing import Array
from setsquare.errors import InputError, MissingValuesError
from setsquare.projection.moments import Moments
from setsquare.rows.blocks import mean_weight, row_slices
from setsquare.tables.validation import refuse_constant_protected

#: A column whose part outside the span of the columns before it is smaller than this share of it is collinear.
COLLINEAR = 1e-9
#: A column that varies by less than this share of its mean is constant: rounding is not variation.
CONSTANT = 1e-13
#: Columns whose Gram matrix has no smaller pivot than this (relative, not squared) lose nothing by it.
WELL_CONDITIONED = 1e-3
#: Eigenvalues of a correlation matrix below this share of the largest are rounding.
LOST = 1e-13


@dataclass(frozen=True, slots=True)
class Basis:
    """``Q = (X - mean) @ transform`` has mean zero and ``Q' diag(w) Q = I`` on the rows that it was fitted on.

    Each column is judged relative to its own spread, so a group of 0.1 % of the rows or a column measured in
    millionths counts like any other.

    Attributes
    ----------
    mean : ndarray of shape (p,)
    transform : ndarray of shape (p, r)
    names : tuple of str
        Names of the p columns.
    constant, collinear : tuple of str
        Columns that needed no direction of their own: without variation, or a linear combination of earlier ones.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([0.0, 1.0, 2.0, 5.0])
    >>> basis = protected_basis(np.column_stack([x, 1e-6 * x**2, 3 * x]), names=("a", "b", "c"))
    >>> basis.rank, basis.collinear
    (2, ('c',))
    """

    mean: Array
    transform: Array
    names: tuple[str, ...]
    constant: tuple[str, ...] = ()
    collinear: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """Number of directions that are removed."""
        return int(self.transform.shape[1])

    @property
    def dropped(self) -> tuple[str, ...]:
        """Columns without a direction of their own."""
        return self.constant + self.collinear

    def apply(self, X: Array) -> Array:
        """Coordinates of the rows of ``X`` (n, p) in the basis, (n, r)."""
        centred = np.subtract(X, self.mean, dtype=np.float64, order="F")
        return (self.transform.T @ centred.T).T  # column by column in memory, like the features

    def reach(self, low: Array, high: Array) -> float:
        """Length of the farthest corner of ranges ``low`` to ``high`` (p,) of the columns: no row is farther out."""
        widest = np.maximum(high - self.mean, self.mean - low)
        return float(widest @ np.linalg.norm(self.transform, axis=1))


def protected_basis(X: Array, weight: Array | None = None, names: tuple[str, ...] | None = None) -> Basis:
    """Fit a :class:`Basis` of the columns of ``X`` (n, p).

    Parameters
    ----------
    X : ndarray of shape (n, p)
    weight : ndarray of shape (n,), optional
        Any scale; equal by default.
    names : tuple of str, optional
        For messages; x0, x1, ... by default.
    """
    n, p = X.shape
    check_rows(n, p)
    names = names or tuple(f"x{j}" for j in range(p))
    moments = Moments.of(X, weight)
    mean, gram = moments.mean, moments.scatter / moments.weight
    _check_finite(gram, names)
    R = cholesky_factor(gram)
    return settle_basis(mean, _triangular_factor(X, mean, mean_weight(n, weight)) if R is None else R, names)


def settle_basis(mean: Array, R: Array, names: tuple[str, ...]) -> Basis:
    """Return the basis of columns with this mean and ``R'R = (X - mean)' diag(w) (X - mean)``, R triangular."""
    p = len(mean)
    spread = np.linalg.norm(R, axis=0)
    varies = spread > CONSTANT * np.abs(mean)
    scaled = R / np.where(varies, spread, 1.0)
    # A copy that is shifted far from zero differs from the original by rounding alone: no direction of its own.
    limit = np.maximum(COLLINEAR, 4.0 * np.finfo(float).eps * np.abs(mean) / np.where(varies, spread, 1.0))
    kept = _independent(scaled, np.flatnonzero(varies), limit)
    if not kept:
        refuse_constant_protected(names)
    upper = scaled if len(kept) == p else np.linalg.qr(scaled[:, kept], mode="r")
    transform = np.zeros((p, len(kept)))
    transform[kept] = lapack.dtrtri(upper)[0] / spread[kept, None]
    collinear = tuple(names[j] for j in range(p) if varies[j] and j not in kept)
    return Basis(mean, transform, names, tuple(names[j] for j in np.flatnonzero(~varies)), collinear)


def basis_of_moments(moments: Moments, names: tuple[str, ...] | None = None) -> Basis:
    """Fit a :class:`Basis` to the moments of the columns, where the rows are gone.

    Squares have half the digits: a column of which less than about 1e-6 lies outside the span of others is collinear.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([0.0, 1.0, 2.0, 5.0])
    >>> basis_of_moments(Moments.of(np.column_stack([x, x**2, 3 * x]))).collinear
    ('x2',)
    """
    names = names or tuple(f"x{j}" for j in range(len(moments.mean)))
    _check_finite(moments.scatter, names)
    gram = moments.scatter / moments.weight
    R = cholesky_factor(gram)
    if R is None:
        spread = np.sqrt(np.maximum(np.diag(gram), 0.0))
        divisor = np.where(spread > 0.0, spread, 1.0)
        values, vectors = np.linalg.eigh(gram / np.outer(divisor, divisor))
        values = np.where(values > LOST * values[-1], values, 0.0)
        R = stack_factors(np.zeros_like(gram), np.sqrt(values)[:, None] * vectors.T) * spread
    return settle_basis(moments.mean, R, names)


def check_rows(n: int, p: int) -> None:
    """Refuse more protected columns than rows: nothing but a constant is orthogonal to all of them."""
    if n <= p:
        raise InputError(f"Too few rows (n_samples = {n}) for {p} protected column(s): give more rows than columns.")


def _check_finite(gram: Array, names: tuple[str, ...]) -> None:
    if not np.isfinite(gram).all():
        listed = ", ".join(np.asarray(names)[~np.isfinite(np.diag(gram))])
        raise MissingValuesError(
            f"Protected column(s) {listed} have missing or infinite values, or values whose squares exceed "
            "float64: remove, fill or rescale them."
        )


def cholesky_factor(gram: Array) -> Array | None:
    """Triangular R with ``R'R = gram``; None where that would lose digits that tell columns apart."""
    spread = np.sqrt(np.maximum(np.diag(gram), 0.0))
    if not spread.all():
        return None
    try:
        R = np.linalg.cholesky(gram / np.outer(spread, spread)).T
    except LinAlgError:
        return None
    return np.asarray(R * spread) if np.min(np.diag(R)) > WELL_CONDITIONED else None


def _triangular_factor(X: Array, mean: Array, w: Array) -> Array:
    """R with ``R'R = (X - mean)' diag(w) (X - mean)``."""
    R = np.zeros((X.shape[1],) * 2)
    for rows in row_slices(*X.shape):
        R = stack_factors(R, (np.asarray(X[rows], dtype=np.float64) - mean) * np.sqrt(w[rows])[:, None])
    return R


def stack_factors(R: Array, A: Array) -> Array:
    """R of the rows behind ``R`` and of those in ``A``.

    A QR keeps twice the digits of the Gram matrix: that tells a nearly collinear column from a collinear one.
    """
    return np.asarray(np.linalg.qr(np.vstack([R, A]), mode="r"))


def _independent(R: Array, candidates: NDArray[np.intp], limit: Array) -> list[int]:
    """Of the columns of the triangular ``R``, those that are not a combination of the ones kept before them."""
    outside = np.abs(np.diag(R))  # the size of each column outside the span of all those before it
    if len(candidates) == len(R) and (outside > limit).all():
        return list(range(len(R)))
    kept: list[int] = []
    V = np.zeros((R.shape[0], 0))
    for j in candidates:
        v = R[:, j]
        for _ in range(2):  # once more removes what rounding left
            v = v - V @ (V.T @ v)
        size = np.linalg.norm(v)
        if size > limit[j]:
            kept.append(int(j))
            V = np.column_stack([V, v / size])
    return kept
