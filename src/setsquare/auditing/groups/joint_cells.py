"""Means of groups and their covariance from sums over joint cells: a few passes over the rows for all partitions.

A joint cell is a combination of one group of each partition. Sums of weights, values and squares in the joint cells
give the means of all groups and, for groups g and h of any two partitions, the sum over their common rows of
``w^2 (v - m_g) (v - m_h)``; nothing of the size of the rows is formed for each partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.auditing.groups.partitions import Partition

#: Largest number of cells times groups.
MOST = 1_000_000
#: A variance below this share of the sum of squares that it is computed from has lost too many digits.
LOST = 1e-6


@dataclass(frozen=True, slots=True)
class JointCells:
    """Joint cells of several partitions.

    Attributes
    ----------
    codes : integer ndarray of shape (n,)
        Cell of each row.
    members : ndarray of shape (cells, K) of 0 and 1
        Groups of all partitions, one after the other, that a cell belongs to.
    """

    codes: IntArray
    members: Array

    @classmethod
    def of(cls, partitions: Sequence[Partition]) -> JointCells | None:
        """Cells that have a row; None if there are too many."""
        codes, groups = np.zeros(len(partitions[0].codes), dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
        n_groups = sum(len(part.labels) for part in partitions)
        for part in partitions:
            size = len(part.labels) + 1
            if size * len(groups) * n_groups > 100 * MOST:
                return None
            codes = codes * size + part.codes + 1
            there = np.flatnonzero(np.bincount(codes))
            if len(there) * n_groups > MOST:
                return None
            if len(there) <= there[-1]:  # renumber the cells that have a row
                place = np.zeros(int(there[-1]) + 1, dtype=np.int64)
                place[there] = np.arange(len(there))
                codes = place[codes]
            groups = np.column_stack([groups[there // size], there % size - 1])
        columns = [groups[:, [s]] == np.arange(len(part.labels)) for s, part in enumerate(partitions)]
        return cls(codes, np.hstack(columns).astype(np.float64))

    def sums(self, x: Array | None, kept: BoolArray | None = None) -> Array:
        """Sums of x in the cells, or counts, over all rows or those to keep."""
        codes = self.codes if kept is None else self.codes[kept]
        x = x if x is None or kept is None else x[kept]
        return np.bincount(codes, x, len(self.members)).astype(np.float64)

    def means(
        self, values: Array, weight: Array | None, kept: BoolArray | None, *, binary: bool
    ) -> tuple[Array, Array, Array | None] | None:
        """Weighted mean of each group (K,), NaN without weight, covariance (K, K) of these means, and skewness (K,).

        The skewness is that of the values of each group; values of 0 and 1 have none.

        None if the squares lose too many digits: where values hardly vary within a group.

        Parameters
        ----------
        values : ndarray of shape (n,)
        weight : ndarray of shape (n,) or None
        kept : boolean ndarray of shape (n,) or None
            Rows to use.
        binary : bool
            Whether the values are 0 and 1.

        Examples
        --------
        >>> from setsquare.auditing.groups.partitions import partition_rows
        >>> cells = JointCells.of(partition_rows(["a", "a", "b", "b"], min_group=1))
        >>> mean, covariance, _ = cells.means(np.array([0.0, 1.0, 1.0, 1.0]), None, None, binary=True)
        >>> mean.tolist(), covariance.round(9).tolist()
        ([0.5, 1.0], [[0.25, 0.0], [0.0, 0.0]])
        """
        M, near = self.members, 0.0 if binary else float(values.mean())
        v = values if binary else values - near  # few digits are lost in squares; with 0 and 1 none
        w2 = None if weight is None else weight * weight
        w, first = self.sums(weight, kept), self.sums(_times(weight, v), kept)
        q0, q1 = (w, first) if w2 is None else (self.sums(w2, kept), self.sums(w2 * v, kept))
        q2 = q1 if binary else self.sums(_times(w2, v * v), kept)
        total = M.T @ w
        with np.errstate(all="ignore"):
            mean = np.where(total > 0.0, (M.T @ first) / total, np.nan)
            inverse = np.where(total > 0.0, 1.0 / total, 0.0)
        m = np.nan_to_num(mean)
        Q0, Q1, Q2 = ((M * q[:, None]).T @ M for q in (q0, q1, q2))
        C = Q2 - (m + m[:, None]) * Q1 + m * m[:, None] * Q0
        if not binary and bool((np.diag(C) < LOST * np.diag(Q2)).any()):
            return None
        varies = np.diag(C) > 0.0
        C = np.where(varies & varies[:, None], C, 0.0)  # a group without variance has no covariance: only rounding
        rows = M.T @ (self.sums(None, kept) if weight is None else self.sums((weight > 0.0).astype(np.float64), kept))
        factor = inverse * np.sqrt(np.where(rows > 1.0, rows / np.maximum(rows - 1.0, 1.0), 1.0))
        skewness = None if binary else self._skewness(v, m, np.diag(C), weight, kept)
        return mean + near, C * factor * factor[:, None], skewness

    def _skewness(self, v: Array, mean: Array, squares: Array, weight: Array | None, kept: BoolArray | None) -> Array:
        # In units of the largest value and weight: cubes of large ones would overflow.
        unit, heaviest = float(np.abs(v).max()) or 1.0, 1.0 if weight is None else float(weight.max()) or 1.0
        cube = None if weight is None else (weight / heaviest) ** 3
        v, mean, squares = v / unit, mean / unit, squares / unit / unit / heaviest / heaviest
        square = v * v
        s0, s1, s2, s3 = (
            self.members.T @ self.sums(x, kept)
            for x in (cube, _times(cube, v), _times(cube, square), _times(cube, square * v))
        )
        third = s3 - 3.0 * mean * s2 + 3.0 * mean**2 * s1 - mean**3 * s0
        return skewness_of_values(squares, third, self.effective_sizes(weight, kept))

    def effective_sizes(self, weight: Array | None, kept: BoolArray | None) -> Array:
        """Effective number of rows of each group (K,): ``(sum w)^2 / sum w^2``."""
        total = self.members.T @ self.sums(weight, kept)
        squares = total if weight is None else self.members.T @ self.sums(weight * weight, kept)
        with np.errstate(all="ignore"):
            return np.asarray(np.nan_to_num(total**2 / squares))


def _times(weight: Array | None, x: Array) -> Array:
    return x if weight is None else weight * x


def skewness_of_values(second: Array, third: Array, n: Array) -> Array:
    """Skewness of n values from sums of squares and cubes of their influences, corrected for few values; NaN if none.

    Examples
    --------
    >>> skewness_of_values(np.array([0.75]), np.array([0.375]), np.array([4.0])).round(2).tolist()
    [2.0]
    """
    with np.errstate(all="ignore"):
        found = np.sqrt(n) * third / second**1.5 * np.sqrt(n * (n - 1.0)) / np.maximum(n - 2.0, 1.0)
    return np.where((second > 0.0) & np.isfinite(found), found, np.nan)
