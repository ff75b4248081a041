"""Rank-revealing, orthonormal basis of the protected columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from setsquare._typing import Array
from setsquare.errors import InputError, MissingValuesError
from setsquare.projection.moments import Moments
from setsquare.rows.blocks import ArrayRows, Block, Rows, mean_weight
from setsquare.rows.parallel import row_slices
from setsquare.tables.validation import refuse_constant_protected

#: A column is collinear if a smaller share of it than this lies outside the span of the earlier columns.
COLLINEAR = 1e-9
#: A column whose standard deviation is below this share of its mean is constant: the variation is rounding error.
CONSTANT = 1e-13
#: If no pivot of the Gram matrix is smaller than this (relative, not squared), its Cholesky factor is accurate enough.
WELL_CONDITIONED = 1e-3
#: Eigenvalues of a correlation matrix below this share of the largest are rounding error.
LOST = 1e-13


@dataclass(frozen=True, slots=True)
class Basis:
    """``Q = (X - mean) @ transform`` has mean zero and ``Q' diag(w) Q = I`` on the rows that it was fitted on.

    Tolerances are relative to the standard deviation of each column, so a group of 0.1 % of the rows or a column
    measured in millionths is treated like any other.

    Attributes
    ----------
    mean : ndarray of shape (p,)
    transform : ndarray of shape (p, r)
    names : tuple of str
        Names of the p columns.
    constant, collinear : tuple of str
        Columns without a direction of their own: constant, or a linear combination of earlier columns.

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
        """Number of directions in the basis."""
        return int(self.transform.shape[1])

    @property
    def dropped(self) -> tuple[str, ...]:
        """Columns without a direction of their own."""
        return self.constant + self.collinear

    def apply(self, X: Array) -> Array:
        """Coordinates of the rows of ``X`` (n, p) in the basis, (n, r)."""
        centred = np.subtract(X, self.mean, dtype=np.float64, order="F")
        return (self.transform.T @ centred.T).T  # column-major, like the features

    def reach(self, low: Array, high: Array) -> float:
        """Upper bound on the norm of a row in the basis, for columns between ``low`` and ``high`` (p,)."""
        widest = np.maximum(high - self.mean, self.mean - low)
        return float(widest @ np.linalg.norm(self.transform, axis=1))


def protected_basis(X: Array, weight: Array | None = None, names: tuple[str, ...] | None = None) -> Basis:
    """Fit a :class:`Basis` of the columns of ``X`` (n, p).

    The row weights (n,) may have any scale; the names are for messages, x0, x1, ... by default.
    """
    n, p = X.shape
    check_rows(n, p)
    nothing = np.zeros((n, 0))
    rows = ArrayRows(nothing, nothing, nothing, mean_weight(n, weight), X=X)
    return basis_of_rows(Moments.of(X, weight), names or tuple(f"x{j}" for j in range(p)), rows)


def basis_of_rows(moments: Moments, names: tuple[str, ...], rows: Rows) -> Basis:
    """Fit a :class:`Basis` to protected columns with these moments; the rows are read where squares are not enough."""
    gram = moments.scatter / moments.weight
    _check_finite(gram, names)
    R = cholesky_factor(gram)
    if R is None:
        first = np.zeros_like(gram)
        R = stack_factors(first, rows.reduce(partial(_factor, moments.mean), stack_factors))
    return settle_basis(moments.mean, R, names)


def keeps_all(mean: Array, R: Array) -> bool:
    """Whether :func:`settle_basis` would keep every column: none is constant or collinear."""
    spread = np.linalg.norm(R, axis=0)
    if not (spread > CONSTANT * np.abs(mean)).all():
        return False
    limit = np.maximum(COLLINEAR, 4.0 * np.finfo(float).eps * np.abs(mean) / spread)
    return bool((np.abs(np.diag(R)) / spread > limit).all())


def settle_basis(mean: Array, R: Array, names: tuple[str, ...]) -> Basis:
    """Return the basis of columns with this mean and ``R'R = (X - mean)' diag(w) (X - mean)``, R triangular."""
    p = len(mean)
    spread = np.sqrt(np.einsum("ij,ij->j", R, R))
    varies = spread > CONSTANT * np.abs(mean)
    scaled = R / np.where(varies, spread, 1.0)
    # A copy of a column that is shifted far from zero differs from it only by rounding, so it gets no direction.
    limit = np.maximum(COLLINEAR, 4.0 * np.finfo(float).eps * np.abs(mean) / np.where(varies, spread, 1.0))
    kept = _independent(scaled, varies.nonzero()[0], limit)
    if not kept:
        refuse_constant_protected(names)
    upper = scaled if len(kept) == p else np.linalg.qr(scaled[:, kept], mode="r")
    transform = np.zeros((p, len(kept)))
    transform[kept] = lapack.dtrtri(upper)[0] / spread[kept, None]
    collinear = tuple(names[j] for j in range(p) if varies[j] and j not in kept)
    return Basis(mean, transform, names, tuple(names[j] for j in (~varies).nonzero()[0]), collinear)


def leverages(basis: Basis, block: Block) -> Array:
    """Leverage of each row in a linear model with an intercept on the features of a block, which the basis is of."""
    Q = basis.apply(block.Z)
    return np.asarray(block.weight * (1.0 + np.einsum("nr,nr->n", Q, Q)))


def largest_leverage(basis: Basis, rows: Rows) -> float:
    """Largest of the leverages of all rows."""
    return rows.reduce(partial(_largest, basis), max)


def _largest(basis: Basis, block: Block) -> float:
    return float(leverages(basis, block).max())


def basis_of_moments(moments: Moments, names: tuple[str, ...] | None = None) -> Basis:
    """Fit a :class:`Basis` to the moments of the columns, without their rows.

    Squaring halves the digits: a column is collinear if a share of less than about 1e-6 is outside the span of others.

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
    """Refuse p >= n: only a constant is orthogonal to as many protected columns as rows."""
    if n <= p:
        raise InputError(f"Too few rows (n_samples = {n}) for {p} protected column(s): pass more rows than columns.")


def _check_finite(gram: Array, names: tuple[str, ...]) -> None:
    if not np.isfinite(gram).all():
        listed = ", ".join(np.asarray(names)[~np.isfinite(np.diag(gram))])
        raise MissingValuesError(
            f"Protected column(s) {listed} have missing or infinite values, or values whose squares exceed "
            "float64: remove, fill or rescale them."
        )


def cholesky_factor(gram: Array, smallest: float = WELL_CONDITIONED) -> Array | None:
    """Triangular R with ``R'R = gram``; None if columns are too close to collinear for this to be accurate."""
    spread = np.sqrt(np.maximum(gram.diagonal(), 0.0))
    if not spread.all():
        return None
    R, failed = lapack.dpotrf(gram / (spread[:, None] * spread))
    return None if failed or not R.diagonal().min() > smallest else np.asarray(R * spread)


def _factor(mean: Array, block: Block) -> Array:
    """R with ``R'R = (X - mean)' diag(w) (X - mean)``, or as many rows as there are where these are fewer."""
    R = np.zeros((0, len(mean)))
    X = np.asarray(block.X)
    for rows in row_slices(*X.shape):
        R = stack_factors(R, (np.asarray(X[rows], dtype=np.float64) - mean) * np.sqrt(block.weight[rows])[:, None])
    return R


def stack_factors(R: Array, A: Array) -> Array:
    """Update the triangular factor ``R`` with the rows of ``A``.

    QR keeps twice the digits of the Gram matrix, enough to distinguish nearly collinear columns from collinear ones.
    """
    return np.asarray(np.linalg.qr(np.vstack([R, A]), mode="r"))


def _independent(R: Array, candidates: NDArray[np.intp], limit: Array) -> list[int]:
    """Indices of the columns of ``R`` that are not linear combinations of the columns kept before them."""
    outside = np.abs(R.diagonal())  # norm of each column outside the span of the earlier ones
    if len(candidates) == len(R) and (outside > limit).all():
        return list(range(len(R)))
    kept: list[int] = []
    V = np.zeros((R.shape[0], 0))
    for j in candidates:
        v = R[:, j]
        for _ in range(2):  # the second pass removes the rounding error of the first
            v = v - V @ (V.T @ v)
        size = np.linalg.norm(v)
        if size > limit[j]:
            kept.append(int(j))
            V = np.column_stack([V, v / size])
    return kept
