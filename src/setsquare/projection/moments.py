"""Means, cross-products and ranges of columns, computed block by block and mergeable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from setsquare._typing import Array, BoolArray, Matrix
from setsquare.rows.blocks import Block
from setsquare.rows.parallel import OWN_CACHE, Sums, room, row_slices, sum_over_rows
from setsquare.rows.products import whole_lanes

#: Rows whose mean is near enough to that of all rows for their squares to keep their digits.
SAMPLE = 512


@dataclass(frozen=True, slots=True)
class Moments:
    """Total weight, means and centred cross-products of the columns of a matrix.

    Sums are in float64 whatever the dtype of the rows. Rows are read once, block by block, so they may be a memory map.

    Attributes
    ----------
    weight : float
        Number of rows, or the sum of their weights.
    mean : ndarray of shape (q,)
    scatter : ndarray of shape (q, q)
        ``sum_i w_i (a_i - mean)(a_i - mean)'``; not finite if a value is not.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.random.default_rng(0).normal(size=(100, 3))
    >>> whole, parts = Moments.of(A), Moments.of(A[:30]).merge(Moments.of(A[30:]))
    >>> bool(np.allclose(whole.scatter, parts.scatter, rtol=1e-13)), parts.weight
    (True, 100.0)
    >>> bool(np.allclose(Moments.of([A[:, :1], A[:, 1:]]).scatter, whole.scatter, rtol=1e-13))
    True
    """

    weight: float
    mean: Array
    scatter: Array

    @classmethod
    def of(cls, A: Matrix | Sequence[Matrix], weight: Array | None = None) -> Moments:
        """Moments of the rows of ``A`` (n, q), or of several side by side; each needs a shape and row slicing."""
        parts: list[Any] = list(A) if isinstance(A, list | tuple) else [A]
        n, ends = parts[0].shape[0], list(accumulate(part.shape[1] for part in parts))
        q = ends[-1]
        width = whole_lanes(q + 1)  # a column of ones for the sums, and zeros
        block_bytes = max(OWN_CACHE, 8 * q * q)  # adding up the products must cost less than computing them
        sample, counted = _sample(next(row_slices(n, q, block_bytes)), weight)
        with np.errstate(invalid="ignore", over="ignore"):  # far from zero, squares lose the digits of the variance
            shift = np.concatenate([part[sample][counted].mean(axis=0, dtype=np.float64) for part in parts])

        def kernel(rows: slice, memory: Array) -> Sums:
            blocks = [part[rows] for part in parts]
            block = room(memory, blocks[-1], width)
            block[:, q] = 1.0
            block[:, q + 1 :] = 0.0
            for values, stop in zip(blocks, ends, strict=True):
                columns = slice(stop - values.shape[1], stop)
                np.subtract(values, shift[columns], out=block[:, columns])
            if weight is not None:
                block *= np.sqrt(weight[rows])[:, None]
            product: Array = np.dot(block.T, block)  # numpy detects the symmetry and does half the work
            return product[:q, :q], product[:q, q]

        scatter, first = sum_over_rows(kernel, n, width, block_bytes)
        total = float(n if weight is None else weight.sum())
        with np.errstate(invalid="ignore", over="ignore"):
            return cls(total, shift + first / total, scatter - np.outer(first, first) / total)

    def merge(self, other: Moments) -> Moments:
        """Moments of the rows of both together."""
        total = self.weight + other.weight
        step = other.mean - self.mean
        scatter = self.scatter + other.scatter + np.outer(step, step) * (self.weight * other.weight / total)
        return Moments(total, self.mean + step * (other.weight / total), scatter)


def _sample(first: slice, weight: Array | None) -> tuple[slice, slice | BoolArray]:
    """Some of the first rows, and which of them count, for a value near the mean of each column.

    A column that varies only in rows of weight zero must come out as exactly constant, so these do not count.
    """
    some = slice(first.start, first.stop, max(1, (first.stop - first.start) // SAMPLE))
    if weight is None:
        return some, slice(None)
    counted = weight[some] > 0.0
    if not counted.any():
        some, counted = first, weight[first] > 0.0
    return some, slice(None) if counted.all() or not counted.any() else counted


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges, sums, weights and moments of columns over some rows; mergeable.

    Attributes
    ----------
    low, high, total : ndarray of shape (p,)
    is_whole : boolean ndarray of shape (p,)
        Which columns hold whole numbers only.
    heaviest, concentration : float
        Largest weight, and the sum of their squares.
    moments : Moments
    """

    low: Array
    high: Array
    total: Array
    is_whole: BoolArray
    heaviest: float
    concentration: float
    moments: Moments

    @classmethod
    def of(cls, block: Block) -> Ranges:
        """Summarise a block whose features are the columns."""
        columns, w = np.ascontiguousarray(np.asarray(block.Z).T), block.weight  # contiguous along the reductions
        return cls(
            columns.min(axis=1),
            columns.max(axis=1),
            columns.sum(axis=1),
            (np.floor(columns) == columns).all(axis=1),
            float(w.max()),
            float(w @ w),
            Moments.of(columns.T, w),
        )

    def merge(self, other: Ranges) -> Ranges:
        """Merge the summaries of two sets of rows."""
        return Ranges(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.total + other.total,
            self.is_whole & other.is_whole,
            max(self.heaviest, other.heaviest),
            self.concentration + other.concentration,
            self.moments.merge(other.moments),
        )
