"""Mergeable means and cross-products.

Two :class:`Moments` of disjoint rows merge into those of all of them (Chan, Golub, LeVeque 1979), so they can be
gathered block by block, batch by batch or machine by machine, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare.rows import as_double, is_sparse, row_slices, weighted_product
from setsquare.typing import Array, Matrix


@dataclass(frozen=True, slots=True)
class Moments:
    """Weighted means of ``A`` (n, p) and ``B`` (n, d), and the cross-product of their deviations.

    Attributes
    ----------
    weight : float
        Sum of the weights.
    mean_a, mean_b : ndarray of shape (p,), (d,)
    cross : ndarray of shape (p, d)
        ``sum_i w_i (a_i - mean_a)(b_i - mean_b)'``.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.arange(6.0).reshape(3, 2)
    >>> whole, parts = Moments.of(A), Moments.of(A[:1]).merge(Moments.of(A[1:]))
    >>> bool(np.allclose(whole.cross, parts.cross))
    True
    """

    weight: float
    mean_a: Array
    mean_b: Array
    cross: Array

    @classmethod
    def of(cls, A: Matrix, B: Matrix | None = None, weight: Array | None = None) -> Moments:
        """Gather the moments of ``A`` with ``B`` (with itself by default) in one pass over the rows."""
        width = A.shape[1] + (0 if B is None else B.shape[1])
        total = None
        for rows in row_slices(A.shape[0], width):
            a, w = as_double(A[rows]), np.ones(A[rows].shape[0]) if weight is None else weight[rows]
            part = cls._of_block(a, a if B is None else as_double(B[rows]), w)
            total = part if total is None else total.merge(part)
        if total is None:
            raise ValueError("Moments need at least one row.")
        return total

    @classmethod
    def _of_block(cls, a: Matrix, b: Matrix, w: Array) -> Moments:
        weight = float(w.sum())
        scale = 1.0 / weight if weight > 0.0 else 0.0
        mean_a, mean_b = np.asarray(w @ a) * scale, np.asarray(w @ b) * scale
        if is_sparse(a) or is_sparse(b):  # centring would fill the zeros
            return cls(weight, mean_a, mean_b, weighted_product(a, w, b) - weight * np.outer(mean_a, mean_b))
        return cls(weight, mean_a, mean_b, weighted_product(a - mean_a, w, b - mean_b))

    def merge(self, other: Moments) -> Moments:
        """Moments of the rows of both."""
        weight = self.weight + other.weight
        share = other.weight / weight if weight > 0.0 else 0.0
        gap_a, gap_b = other.mean_a - self.mean_a, other.mean_b - self.mean_b
        return Moments(
            weight,
            self.mean_a + share * gap_a,
            self.mean_b + share * gap_b,
            self.cross + other.cross + self.weight * share * np.outer(gap_a, gap_b),
        )

    def partial_fit(self, A: Matrix, B: Matrix | None = None, weight: Array | None = None) -> Moments:
        """Moments with further rows added."""
        return self.merge(Moments.of(A, B, weight))
