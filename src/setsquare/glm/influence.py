"""Correlation of predictions and protected columns, with and without the most influential rows.

One pass over the rows gives both: sums over all rows but a few, and those few rows themselves. Subtracting a row from a
sum would leave its rounding error behind, so the influential rows are never added in the first place.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.projection.basis import CONSTANT
from setsquare.rows.blocks import Block

#: Maximum number of rows left out, and maximum share of all rows (one row is always left out).
MOST_ROWS, MOST_SHARE = 10, 0.01


class Floor(NamedTuple):
    """Spread below which a prediction counts as constant: absolute, and relative to the spread over all classes."""

    absolute: float
    relative: float


class Sums(NamedTuple):
    """Weighted sums over rows of K predictions and p protected columns, both relative to a reference value.

    Shapes: ``weight`` (); ``total`` and ``square`` (K,); ``total_x`` and ``square_x`` (p,); ``cross`` (p, K).
    """

    weight: Array
    total: Array
    square: Array
    total_x: Array
    square_x: Array
    cross: Array

    @classmethod
    def of(cls, gap: Array, x: Array, w: Array) -> Sums:
        """Sum over rows of predictions ``gap`` (b, K), protected columns ``x`` (b, p) and weights (b,)."""
        weighted = w[:, None] * gap
        if gap.shape[1] == 1:  # plain vectors
            square = np.asarray([np.dot(weighted[:, 0], gap[:, 0])])
        else:
            square = np.einsum("nk,nk->k", weighted, gap)
        total_x, square_x = np.dot(w, x), np.dot(w, np.square(x))
        return cls(np.asarray(w.sum()), weighted.sum(axis=0), square, total_x, square_x, np.dot(x.T, weighted))

    def plus(self, other: Sums) -> Sums:
        """Add the sums of other rows."""
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Sums over all rows but the most influential ones, and those rows themselves; tallies can be added.

    Attributes
    ----------
    rest : Sums
        Sums over the rows not listed.
    influence, weight : ndarray of shape (m,)
        Contribution of each listed row to the spread of the predictions, largest first, and its weight.
    gap : ndarray of shape (m, K)
    x : ndarray of shape (m, p)
    prediction, outcome : float
        Largest distance of a prediction and of an outcome from the mean of the intercept-only model.
    """

    rest: Sums
    influence: Array
    weight: Array
    gap: Array
    x: Array
    prediction: float
    outcome: float

    @classmethod
    def of(cls, gap: Array, x: Array, w: Array, outcome: Array) -> Tally:
        """Tally rows of centred predictions (b, K), protected columns (b, p) and outcomes (b, k), with weights (b,)."""
        distance = _squares(gap)
        influence = w * distance
        top = _largest(influence)
        others = w.copy()
        others[top] = 0.0
        rest = Sums.of(gap, x, others)
        farthest = (float(np.sqrt(d.max(initial=0.0))) for d in (distance, _squares(outcome)))
        return cls(rest, influence[top], w[top], gap[top], x[top], *farthest)

    def __add__(self, other: Tally) -> Tally:
        influence = np.concatenate([self.influence, other.influence])
        w, gap, x = (np.concatenate(pair) for pair in zip(self._listed, other._listed, strict=True))
        top = _largest(influence)
        back = np.ones(len(influence), dtype=bool)
        back[top] = False
        rest = self.rest.plus(other.rest).plus(Sums.of(gap[back], x[back], w[back]))
        farthest = max(self.prediction, other.prediction), max(self.outcome, other.outcome)
        return Tally(rest, influence[top], w[top], gap[top], x[top], *farthest)

    @property
    def _listed(self) -> tuple[Array, Array, Array]:
        return self.weight, self.gap, self.x

    def correlations(self, mean_x: Array, floor: Floor) -> Array:
        """Largest |corr| of a protected column with a prediction: over all rows, and without the first listed ones.

        A protected column that varies by no more than the rounding of its mean ``mean_x`` has no correlation.
        """
        sums = self._without_each()
        n = sums.weight[:, None]
        mean, mean_of_x = sums.total / n, sums.total_x / n
        spread = np.sqrt(np.maximum(sums.square / n - mean**2, 0.0))
        spread_x = np.sqrt(np.maximum(sums.square_x / n - mean_of_x**2, 0.0))
        varies = spread_x > CONSTANT * np.maximum(np.abs(mean_x), 1e3 * np.abs(mean_of_x))
        covariance = np.abs(sums.cross / n[:, :, None] - mean_of_x[:, :, None] * mean[:, None, :])
        smallest = floor.relative * np.sqrt((spread**2).sum(axis=1, keepdims=True))
        limit = np.maximum(np.maximum(spread, smallest), max(floor.absolute, np.finfo(float).tiny))
        divisor = np.where(varies, spread_x, np.inf)[:, :, None] * limit[:, None, :]
        return np.asarray((covariance / divisor).max(axis=(1, 2), initial=0.0))

    def _without_each(self) -> Sums:
        """Sums over all rows, then without the most influential row, without the two most influential, and so on."""
        (m, p), K = self.x.shape, self.gap.shape[1]
        widths = (1, K, K, p, p, p * K)
        ends = list(accumulate(widths, initial=0))
        table = np.empty((1 + m, ends[-1]))  # all sums side by side
        parts = [table[:, start:stop] for start, stop in pairwise(ends)]
        cross = self.x[:, :, None] * self.gap[:, None, :]
        values = (1.0, self.gap, self.gap**2, self.x, self.x**2, cross.reshape(m, p * K))
        for part, rest, rows in zip(parts, self.rest, values, strict=True):
            part[0], part[:0:-1] = rest.ravel(), rows
        table[:0:-1] *= self.weight[:, None]
        table[:] = np.add.accumulate(table)[::-1]
        weight, total, square, total_x, square_x, cross = parts
        return Sums(weight[:, 0], total, square, total_x, square_x, cross.reshape(m + 1, p, K))

    def without_few(self, correlations: Array, n_rows: int) -> tuple[float, int]:
        """Largest correlation when up to 1 % of the rows are left out, and the number of rows left out."""
        most = min(len(self.influence), max(1, int(MOST_SHARE * n_rows)), n_rows - 2)
        if most < 1:
            return 0.0, 0
        count = 1 + int(np.argmax(correlations[1 : 1 + most]))
        return float(correlations[count]), count


def tally_block(block: Block, gap: Array, mean_x: Array, mean_y: Array) -> Array:
    """Tally of a block, wrapped in an array so that sums over blocks add it up."""
    x = np.subtract(np.asarray(block.X), mean_x, order="F")
    wrapped = np.empty(1, dtype=object)
    wrapped[0] = Tally.of(gap, x, block.weight, block.y - mean_y)
    return wrapped


def _squares(values: Array) -> Array:
    """Sum of squares of each row of ``values`` (b, k)."""
    return values[:, 0] ** 2 if values.shape[1] == 1 else np.einsum("nk,nk->n", values, values)


def _largest(influence: Array) -> IntArray:
    """Indices of the largest values, in decreasing order, to single precision: rows that are equal stay in order."""
    often = 3.0 * float(np.add.reduce(influence)) / max(len(influence), 1)  # few rows have more, but mostly enough do
    with np.errstate(over="ignore"):
        influence = influence.astype(np.float32)
        large = np.flatnonzero(influence > often)
    if len(influence) <= MOST_ROWS:
        return np.argsort(-influence, kind="stable")
    if len(large) < MOST_ROWS:
        large = np.arange(len(influence))
    top: IntArray = large[~(influence[large] < np.partition(influence[large], -MOST_ROWS)[-MOST_ROWS])]
    return top[np.argsort(-influence[top], kind="stable")[:MOST_ROWS]]
