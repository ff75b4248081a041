"""Features of which some are categories: numbers as a dense part, categories as one small integer per row.

A category with K levels stands for K dummy columns, of which the reference has none, but it is never written out: its
products with other columns are sums by level. The memory is that of the numbers and the codes, and a cross-product
costs a few operations per row and pair of *input* columns, however many levels they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from setsquare._typing import Array

Index: TypeAlias = NDArray[np.intp]
#: Combinations of levels up to which categories are merged: sums by level then stay in the fastest cache.
MOST_CELLS = 512


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
    columns : ndarray of shape (bounds[-1],) or (bounds[-1], c)
        Position of each level's dummy among the q columns; -1 for a level without one. A level of several categories
        merged into one (:meth:`merged`) has a dummy of each.
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
    def onto(self) -> Any:
        """CSR matrix (q, levels) that adds up values of levels by column."""
        columns = self.columns.reshape(self.n_levels, -1)
        levels, slots = np.nonzero(columns >= 0)
        return sparse.csr_array((np.ones(len(levels)), (columns[levels, slots], levels)), (self.width, self.n_levels))

    @cached_property
    def dummies(self) -> Any:
        """CSR matrix (n, levels) of the dummies of all levels; its indices are the codes themselves."""
        (n, c), dummies = self.codes.shape, sparse.csr_array((len(self.codes), self.n_levels))
        dummies.data, dummies.indices = _ones(n * c), self.codes.reshape(-1)
        dummies.indptr = np.arange(0, n * c + 1, c, dtype=np.int32)
        return dummies

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The categories."""
        return tuple(self._part(first, last) for first, last in pairwise(self.bounds))

    def _part(self, first: int, last: int) -> Part:
        onto = self.onto[:, first:last].tocsr()
        columns = np.flatnonzero(np.diff(onto.indptr))
        return Part(slice(first, last), columns, onto[columns])

    @cached_property
    def pairs(self) -> dict[tuple[int, int], Index]:
        """Combination of levels of each row, numbered from 0, for each pair of categories."""
        levels = [self.codes[:, j].astype(np.intp) - first for j, first in enumerate(self.bounds[:-1])]
        sizes = np.diff(self.bounds).tolist()
        return {(i, j): levels[i] * sizes[j] + levels[j] for i, j in combinations(range(len(levels)), 2)}

    @cached_property
    def _from_columns(self) -> Any:
        """``onto`` transposed; a transpose costs more than a small product."""
        return self.onto.T.tocsr()

    @cached_property
    def _by_level(self) -> Any:
        return self.dummies.T

    def __reduce__(self) -> tuple[Any, ...]:
        return MixedMatrix, (self.dense, self.places, self.codes, self.bounds, self.columns, self.width)

    def __getitem__(self, rows: Any) -> MixedMatrix:
        return replace(self, dense=self.dense[rows], codes=np.ascontiguousarray(self.codes[rows]))

    def __matmul__(self, B: Array) -> Array:
        full = self._from_columns @ B
        product = self.dense @ B[self.places]
        if full.ndim > 1 and full.shape[1] > 1:
            product += self.dummies @ full
        else:  # a gather for each category is faster than a sparse product
            for codes in self.codes.T:
                product += full[codes]
        return np.asarray(product)

    def __rmatmul__(self, A: Array) -> Array:
        return (self.T @ A.T).T

    @property
    def T(self) -> Turned:
        """Transpose, which supports ``mixed.T @ array``."""
        return Turned(self)

    def sums_by_level(self, thin: Array) -> Array:
        """Sums (levels, t) of ``thin`` (n, t) over the rows of each level."""
        return np.asarray(self._by_level @ np.ascontiguousarray(thin))

    def counts(self) -> Index:
        """Number of rows in which each column (q,) is stored: all for numbers, those of its level for a dummy."""
        counts = self.onto @ np.bincount(self.codes.reshape(-1), minlength=self.n_levels)
        counts[self.places] = len(self.codes)
        return np.asarray(counts, dtype=np.intp)

    def squares(self, weight: Array) -> Array:
        """Weighted sums of squares (q,) of the columns."""
        squares = self.onto @ self.sums_by_level(weight)
        squares[self.places] = weight @ np.square(self.dense)
        return np.asarray(squares)

    def merged(self, most: int = MOST_CELLS) -> MixedMatrix:
        """Merge categories, smallest first, into one whose levels are their observed combinations.

        Products are then sums by fewer codes per row. A category is merged as long as there are at most ``most``
        combinations.
        """
        sizes = np.diff(self.bounds)
        groups = group_sizes(sizes.tolist(), most)
        if len(groups) == len(sizes):
            return self
        codes, columns, bounds = np.empty((len(self.codes), len(groups)), np.int32), list[Index](), [0]
        deepest = max(map(len, groups))
        for i, group in enumerate(groups):
            found = np.zeros(len(self.codes), dtype=np.intp)
            for j in group:
                found *= sizes[j]
                found += self.codes[:, j] - self.bounds[j]
            seen = np.flatnonzero(np.bincount(found))
            place = np.zeros(seen[-1] + 1, dtype=np.int32)
            place[seen] = np.arange(bounds[-1], bounds[-1] + len(seen))
            codes[:, i] = place[found]
            bounds.append(bounds[-1] + len(seen))
            parts = np.full((len(seen), deepest), -1, dtype=np.intp)
            for slot, (j, level) in enumerate(zip(group, np.unravel_index(seen, sizes[group]), strict=True)):
                parts[:, slot] = self.columns[self.bounds[j] + level]
            columns.append(parts)
        return replace(self, codes=codes, bounds=tuple(bounds), columns=np.concatenate(columns))

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


@dataclass(frozen=True)  # without slots: the matrix is created on first access
class Part:
    """A category of a :class:`MixedMatrix`: its levels, its columns among all, the sparse map (columns, levels)."""

    levels: slice
    columns: Index
    onto: Any

    @property
    def size(self) -> int:
        """Number of levels."""
        return int(self.levels.stop - self.levels.start)

    @cached_property
    def _map(self) -> Array:
        return np.asarray(self.onto.toarray())

    @cached_property
    def _only(self) -> Index | None:
        """Level of each column, if no column has several, and no level several columns."""
        levels = self.onto.indices
        alone = (np.diff(self.onto.indptr) == 1).all() and len(np.unique(levels)) == len(levels)
        return levels.astype(np.intp) if alone else None

    @cached_property
    def _range(self) -> slice | None:
        """The columns as a slice, if they are consecutive."""
        first, last = (self.columns[0], self.columns[-1]) if len(self.columns) else (0, -1)
        return slice(first, last + 1) if last - first + 1 == len(self.columns) else None

    def fold(self, values: Array) -> Array:
        """Add up rows (levels, c) of levels by column."""
        return np.asarray(self._map @ values if self._only is None else values[self._only])

    def fold_diagonal(self, values: Array) -> Array:
        """The matrix (columns, columns) of products of dummies, given sums by level."""
        if self._only is not None:
            return np.diag(values[self._only])
        return np.asarray((self._map * values) @ self._map.T)

    def put(self, gram: Array, other: Part, block: Array) -> None:
        """Write a block of products with another category's dummies; slices are faster than lists of positions."""
        if self._range is None or other._range is None:
            gram[np.ix_(self.columns, other.columns)] = block
        else:
            gram[self._range, other._range] = block


@dataclass(frozen=True, slots=True)
class Turned:
    """Transpose of a :class:`MixedMatrix`."""

    matrix: MixedMatrix

    def __matmul__(self, thin: Array) -> Array:
        Z = self.matrix
        product = Z.onto @ Z.sums_by_level(thin)
        product[Z.places] = Z.dense.T @ thin
        return np.asarray(product)


def group_sizes(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Positions of categories that are merged: each group has at most ``most`` combinations, or one category.

    Examples
    --------
    >>> group_sizes([500, 5, 24, 18, 8], 256)
    [[1, 4], [3], [2], [0]]
    """
    groups, product = list[list[int]](), most + 1
    for j in sorted(range(len(sizes)), key=sizes.__getitem__):
        if product * sizes[j] <= most:
            groups[-1].append(j)
            product *= sizes[j]
        else:
            groups.append([j])
            product = sizes[j]
    return groups


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
