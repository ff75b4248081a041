"""Rows with equal protected columns as one cell: what is summed over a million rows is summed over a few hundred cells.

Sex, race and age in years have some hundred different rows. Given the protected columns, the sums of an audit are
polynomials in the prediction: of degree two in regressions, their sandwich covariances and score tests, of degree six
in the influence of the rows on a correlation. Two rows with the mean and the variance of a cell have the same sums of
degree two; sums of powers give the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.projection.moments import Ranges
from setsquare.rows.blocks import ArrayRows

#: Rows from which cells are formed, and the least number of rows per cell.
FEWEST_ROWS, LEAST_PER_CELL = 20_000, 20
#: Largest sum of the powers of a distance from the mean that a cell needs.
MOST_POWERS = 6
#: Least share of the variance within the cells for which sums of powers keep enough digits.
WITHIN = 1e-4


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows of equal weight by their protected columns.

    Attributes
    ----------
    codes : integer ndarray of shape (n,)
        Cell of each row.
    values : ndarray of shape (c, p)
        The protected columns of each cell.
    counts : ndarray of shape (c,)
        Rows of each cell.
    """

    codes: IntArray
    values: Array
    counts: Array

    @classmethod
    def of(cls, X: Array, found: Ranges) -> Cells | None:
        """Cells of columns of whole numbers, with their ranges; None if there are too few rows for each.

        Examples
        --------
        >>> from setsquare.rows.blocks import ArrayRows
        >>> X = np.tile([[1.0, 5.0], [0.0, 7.0]], (20_000, 1))
        >>> nothing, weight = np.zeros((40_000, 0)), np.full(40_000, 1.0 / 40_000)
        >>> cells = Cells.of(X, ArrayRows(X, nothing, nothing, weight).reduce(Ranges.of, Ranges.merge))
        >>> cells.values.tolist(), cells.counts.tolist()
        ([[0.0, 7.0], [1.0, 5.0]], [20000.0, 20000.0])
        """
        n, most = len(X), len(X) // LEAST_PER_CELL
        if n < FEWEST_ROWS or not found.is_whole.all():
            return None
        codes, n_codes = np.zeros(n, dtype=np.int64), 1
        for x, low, high in zip(X.T, found.low, found.high, strict=True):
            if high - low >= most:
                return None
            codes *= int(high - low) + 1
            codes += (x - low).astype(np.int64)
            n_codes *= int(high - low) + 1
            if n_codes > most:  # number only those that have a row
                there = np.flatnonzero(np.bincount(codes))
                if (n_codes := len(there)) > most:
                    return None
                place = np.zeros(int(there[-1]) + 1, dtype=np.int64)
                place[there] = np.arange(n_codes)
                codes = place[codes]
        counts = np.bincount(codes)
        there = np.flatnonzero(counts)
        if len(there) < len(counts):
            place = np.zeros(len(counts), dtype=np.int64)
            place[there] = np.arange(len(there))
            codes, counts = place[codes], counts[there]
        some = np.zeros(len(counts), dtype=np.int64)
        some[codes] = np.arange(n)
        return cls(codes, X[some], counts.astype(np.float64))

    def sums(self, x: Array) -> Array:
        """Sums of one number per row, by cell."""
        return np.asarray(np.bincount(self.codes, x, len(self.counts)), dtype=np.float64)

    def pairs(self, response: Array) -> CellRows:
        """Two rows for each cell, with the mean and the variance of its responses (n,)."""
        mean = self.sums(response) / self.counts
        gap = response - mean[self.codes]
        step = self.sums(gap) / self.counts  # what rounding has left
        spread = np.sqrt(np.maximum(self.sums(np.square(gap, out=gap)) / self.counts - step * step, 0.0))
        y = np.concatenate([mean + step + spread, mean + step - spread])
        weight = np.tile(self.counts / (2.0 * len(self.codes)), 2)
        nothing = np.zeros((len(y), 0))
        return CellRows(np.tile(self.values, (2, 1)), y[:, None], nothing, weight, cells=self, response=response)

    def powers(self, x: Array) -> Array:
        """Sums of the powers 0 to 6 of one number per row, by cell, (7, c)."""
        found, power = [self.counts], x.copy()
        for _ in range(MOST_POWERS):
            found.append(self.sums(power))
            power *= x
        return np.stack(found)


@dataclass(frozen=True)
class CellRows(ArrayRows):
    """Two rows for each cell, which have the sums over all rows of what is quadratic in the response.

    Attributes
    ----------
    cells : Cells
    response : ndarray of shape (n,)
        Response of each of the rows that they stand for.
    """

    cells: Cells | None = None
    response: Array | None = None

    @property
    def varies_within(self) -> bool:
        """Whether so much of the variance is within the cells that sums of powers keep its digits."""
        upper, lower = self.y[: len(self.y) // 2, 0], self.y[len(self.y) // 2 :, 0]
        gap, share = self.y[:, 0] - self.weight @ self.y[:, 0], self.weight[: len(upper)]
        return bool(share @ np.square(upper - lower) >= 2.0 * WITHIN * (self.weight @ np.square(gap)))
