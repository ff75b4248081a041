"""Means and cross-products that can be taken block by block and merged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare.rows import row_slices, weighted_gram
from setsquare.typing import Array

#: Large enough for the matrix product to be as fast as it gets, small beside the data.
BLOCK_BYTES = 2**25


@dataclass(frozen=True, slots=True)
class Moments:
    """Total weight, means and centred cross-products of the columns of a matrix.

    Sums are float64 whatever the rows are stored as. Rows are read once, block by block, so they may be a memory map.

    Attributes
    ----------
    weight : float
        Number of rows, or the sum of their weights.
    mean : ndarray of shape (q,)
    scatter : ndarray of shape (q, q)
        ``sum_i w_i (a_i - mean)(a_i - mean)'``; not finite where a value is not.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.random.default_rng(0).normal(size=(100, 3))
    >>> whole, parts = Moments.of(A), Moments.of(A[:30]).merge(Moments.of(A[30:]))
    >>> bool(np.allclose(whole.scatter, parts.scatter, rtol=1e-13)), parts.weight
    (True, 100.0)
    """

    weight: float
    mean: Array
    scatter: Array

    @classmethod
    def of(cls, A: Array, weight: Array | None = None) -> Moments:
        """Moments of the rows of ``A`` (n, q)."""
        n, q = A.shape
        w = np.ones(n) if weight is None else weight
        shift, first, scatter = np.zeros(q), np.zeros(q), np.zeros((q, q))
        with np.errstate(invalid="ignore", over="ignore"):
            for rows in row_slices(n, q, BLOCK_BYTES):
                block = np.array(A[rows], dtype=np.float64, order="F")
                if rows.start == 0:  # far from zero squares would lose the digits of the spread
                    shift = block.mean(axis=0)
                block -= shift
                scatter += weighted_gram(block, w[rows])
                first += w[rows] @ block
            total = float(w.sum())
            return cls(total, shift + first / total, scatter - np.outer(first, first) / total)

    def merge(self, other: Moments) -> Moments:
        """Moments of the rows of both."""
        total = self.weight + other.weight
        step = other.mean - self.mean
        scatter = self.scatter + other.scatter + np.outer(step, step) * (self.weight * other.weight / total)
        return Moments(total, self.mean + step * (other.weight / total), scatter)
