"""Features of which some are categories: numbers as a dense part, categories as one small integer per row.

A category with K levels stands for K dummy columns, of which the reference has none, but it is never written out: its
products with other columns are sums by level. The memory is that of the numbers and the codes, and a cross-product
costs a few operations per row and pair of *input* columns, however many levels they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from setsquare._typing import Array

Index: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True)  # without slots: the dummies are created on first access
class MixedMatrix:
    """A matrix (n, q) stored as numbers and categories.

    Attributes
    ----------
    dense : ndarray of shape (n, d)
        The numeric columns.
    places : ndarray of shape (d,)
        Their positions among the q columns.
    codes : int32 ndarray of shape (n, c)
        Level of each row in each category; the levels of all categories are numbered consecutively.
    bounds : tuple of c + 1 ints
        The levels of category j are ``bounds[j], ..., bounds[j + 1] - 1``.
    columns : ndarray of shape (bounds[-1],)
        Position of each level's dummy among the q columns; -1 for a level without one.
    width : int
        q.

    Examples
    --------
    >>> import numpy as np
    >>> ages, races = np.array([[31.0], [44.0], [27.0]]), np.array([0, 2, 1])
    >>> Z = join(ages, [races], [3], [True, False])
    >>> Z.toarray()
    array([[ 0.,  0., 31.],
           [ 0.,  1., 44.],
           [ 1.,  0., 27.]])
    >>> Z @ np.array([[1.0], [2.0], [0.1]])
    array([[3.1],
           [6.4],
           [3.7]])
    """

    dense: Array
    places: Index
    codes: NDArray[np.int32]
    bounds: tuple[int, ...]
    columns: Index
    width: int

    #: numpy leaves ``array @ mixed`` to :meth:`__rmatmul__`.
    __array_ufunc__ = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self.codes), self.width

    @property
    def dtype(self) -> np.dtype[np.float64]:
        """Type of the values."""
        return np.dtype(np.float64)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers and codes."""
        return int(self.dense.nbytes + self.codes.nbytes)

    @property
    def stored(self) -> int:
        """Values per row that a product reads: numbers and codes."""
        return int(self.dense.shape[1] + self.codes.shape[1])

    @property
    def n_levels(self) -> int:
        """Levels of all categories, references included."""
        return self.bounds[-1]

    @cached_property
    def coded(self) -> Index:
        """Levels that have a column."""
        return np.flatnonzero(self.columns >= 0)

    @cached_property
    def dummies(self) -> Any:
        """CSR matrix (n, levels) of the dummies of all levels; its indices are the codes themselves."""
        (n, c), dummies = self.codes.shape, sparse.csr_array((len(self.codes), self.n_levels))
        dummies.data, dummies.indices = _ones(n * c), self.codes.reshape(-1)
        dummies.indptr = np.arange(0, n * c + 1, c, dtype=np.int32)
        return dummies

    def __reduce__(self) -> tuple[Any, ...]:
        return MixedMatrix, (self.dense, self.places, self.codes, self.bounds, self.columns, self.width)

    def __getitem__(self, rows: Any) -> MixedMatrix:
        return replace(self, dense=self.dense[rows], codes=np.ascontiguousarray(self.codes[rows]))

    def __matmul__(self, B: Array) -> Array:
        full = np.zeros((self.n_levels, *B.shape[1:]))
        full[self.coded] = B[self.columns[self.coded]]
        return np.asarray(self.dense @ B[self.places] + self.dummies @ full)

    def __rmatmul__(self, A: Array) -> Array:
        return (self.T @ A.T).T

    @property
    def T(self) -> Turned:
        """Transpose, which supports ``mixed.T @ array``."""
        return Turned(self)

    def sums_by_level(self, thin: Array) -> Array:
        """Sums (levels, t) of ``thin`` (n, t) over the rows of each level."""
        return np.asarray(self.dummies.T @ np.ascontiguousarray(thin))

    def counts(self) -> Index:
        """Number of rows in which each column (q,) is stored: all for numbers, those of its level for a dummy."""
        counts = np.full(self.width, len(self.codes), dtype=np.intp)
        counts[self.columns[self.coded]] = np.bincount(self.codes.reshape(-1), minlength=self.n_levels)[self.coded]
        return counts

    def squares(self, weight: Array) -> Array:
        """Weighted sums of squares (q,) of the columns."""
        squares = np.zeros(self.width)
        squares[self.places] = weight @ np.square(self.dense)
        squares[self.columns[self.coded]] = self.sums_by_level(weight)[self.coded]
        return squares

    def take(self, columns: Any) -> Array:
        """Some columns as a dense array (n, c)."""
        pick = np.zeros((self.width, len(columns)))
        pick[columns, range(len(columns))] = 1.0
        return self @ pick

    def toarray(self) -> Array:
        """The dense matrix (n, q)."""
        return self.take(range(self.width))

    def put(self, columns: Any, values: Array) -> MixedMatrix:
        """Replace some columns by numbers (n, c)."""
        stay = ~np.isin(self.places, columns)
        dense = np.concatenate([self.dense[:, stay], values], axis=1)
        return replace(
            self,
            dense=np.asfortranarray(dense),
            places=np.concatenate([self.places[stay], np.asarray(columns, dtype=np.intp)]),
            columns=np.where(np.isin(self.columns, columns), -1, self.columns),
        )

    def centred(self, mean: Array, *, ones: bool = False) -> MixedMatrix:
        """Subtract ``mean`` (q,) from the numbers, and from dummies for which it is not zero, which become numbers.

        With ``ones`` the result has a leading column of ones.
        """
        filled = np.setdiff1d(np.flatnonzero(mean), self.places)
        Z = self.put(filled, self.take(filled)) if len(filled) else self
        n, d = Z.dense.shape
        dense = np.empty((n, ones + d), order="F")
        dense[:, :ones] = 1.0
        np.subtract(Z.dense, mean[Z.places], out=dense[:, ones:])
        places = np.concatenate([np.zeros(int(ones), dtype=np.intp), Z.places + ones])
        return replace(
            Z, dense=dense, places=places, columns=np.where(Z.columns < 0, -1, Z.columns + ones), width=ones + Z.width
        )


@dataclass(frozen=True, slots=True)
class Turned:
    """Transpose of a :class:`MixedMatrix`."""

    matrix: MixedMatrix

    def __matmul__(self, thin: Array) -> Array:
        Z = self.matrix
        product = np.zeros((Z.width, *thin.shape[1:]))
        product[Z.places] = Z.dense.T @ thin
        product[Z.columns[Z.coded]] = Z.sums_by_level(thin)[Z.coded]
        return product


def join(numbers: Array, codes: Sequence[NDArray[Any]], sizes: Sequence[int], is_coded: Sequence[bool]) -> MixedMatrix:
    """Put numbers (n, d) and categories, given by codes (n,) of so many levels, side by side.

    ``is_coded`` says for each part, from left to right, whether it is a category, without a column for level 0, or the
    next number.
    """
    bounds, places, columns, width = [0], list[int](), list[Index](), 0
    left = iter(sizes)
    for coded in is_coded:
        size = next(left) if coded else 2
        if coded:
            columns.append(np.arange(width - 1, width + size - 1))
            columns[-1][0] = -1
            bounds.append(bounds[-1] + size)
        else:
            places.append(width)
        width += size - 1
    stacked = np.empty((len(numbers), len(codes)), dtype=np.int32)
    for j, code in enumerate(codes):
        np.add(code, bounds[j], out=stacked[:, j], casting="unsafe")
    return MixedMatrix(numbers, np.array(places, np.intp), stacked, tuple(bounds), np.concatenate(columns), width)


_kept = np.ones(0)


def _ones(size: int) -> Array:
    """Read-only ones; all matrices share them."""
    global _kept
    if len(_kept) < size:
        grown = np.ones(size)
        grown.setflags(write=False)
        _kept = grown
    return _kept[:size]
