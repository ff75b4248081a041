"""Coders of a wider feature space: hinges of numeric columns, and products of columns.

All values are bounded by those of the training rows: numbers are clipped to the inner 99 % of them, and products are of
ranks between 0 and 1 and of dummies, so that no new row lies outside the rows of the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from setsquare._typing import Array, IntArray
from setsquare.tables.coders import Coder, NumberCoder, Numeric, Unseen, locate_levels
from setsquare.tables.column import Level, TableRows, label

#: Points of the empirical distribution function between which ranks are interpolated.
RANK_POINTS = 21
#: Quantiles to which numeric columns of more values than that are clipped.
TAILS = (0.005, 0.995)


@dataclass(frozen=True, slots=True)
class Hinges(NumberCoder):
    """A numeric column, clipped to the inner 99 % of the training rows, and ``max(x - knot, 0)`` for each knot.

    Each is divided by its standard deviation in the training rows, so that one ridge penalty suits all.

    Attributes
    ----------
    name : str
    low, high : float
        Range to which the column is clipped.
    knots : tuple of float
    scales : tuple of float
        Standard deviations of the column and of each hinge.
    fill, indicator
        As in :class:`Numeric`.

    Examples
    --------
    >>> Hinges("age", 17.0, 90.0, (30.0, 45.0), (13.0, 9.0, 5.0)).names
    ('age', 'age>30', 'age>45')
    """

    name: str
    low: float
    high: float
    knots: tuple[float, ...]
    scales: tuple[float, ...]
    fill: float | None = None
    indicator: bool = False

    @property
    def made(self) -> tuple[str, ...]:
        """The column, and one name per knot."""
        return (self.name, *(f"{self.name}>{knot_label(knot)}" for knot in self.knots))

    def write(self, values: Array, out: Array) -> None:
        """Write the clipped values and their hinges."""
        x = np.clip(values, self.low, self.high)
        for j, (knot, scale) in enumerate(zip((self.low, *self.knots), self.scales, strict=True)):
            np.maximum(x - knot, 0.0, out=out[:, j])
            out[:, j] /= scale


def learn_hinges(base: Numeric, values: Array, most: int) -> Hinges:
    """Learn the hinges of a column from its training values (n,), which may be missing: at most this many knots.

    A column of few values gets a knot at each inner one, others at quantiles; where one value fills several quantiles,
    the remaining knots go to the quantiles of the other values. More than 0.5 % of the rows are on each side of a knot.

    Examples
    --------
    >>> learn_hinges(Numeric("x"), np.array([0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 3).knots
    (1.0, 4.0)
    """
    x, distinct = _sorted(values)
    low, high = _range(x, distinct)
    knots = tuple(knot for knot in _knots(x, distinct, most) if low < knot < high)
    scales = tuple(s if s > 0.0 else 1.0 for s in _deviations(np.clip(x, low, high), (low, *knots)))
    return Hinges(base.name, low, high, knots, scales, base.fill, base.indicator)


def _sorted(values: Array) -> tuple[Array, Array]:
    """Sorted values without missing ones, all and distinct."""
    x = np.sort(values[~np.isnan(values)])
    return x, _distinct(x)


def _distinct(x: Array) -> Array:
    """Distinct values of sorted ones."""
    first = np.ones(len(x), dtype=bool)
    np.not_equal(x[1:], x[:-1], out=first[1:])
    return x[first]


def _range(x: Array, distinct: Array) -> tuple[float, float]:
    """Range in which a column varies: of many values the inner 99 % of the rows, lest a few rows decide a slope."""
    whole = float(x[0]), float(x[-1])
    if len(distinct) <= RANK_POINTS:
        return whole
    low, high = map(float, x[_places(len(x), TAILS)])
    return (low, high) if low < high else whole


def _knots(x: Array, distinct: Array, most: int) -> tuple[float, ...]:
    """Knots of sorted values."""
    if len(distinct) <= 2 or most < 1:
        return ()
    found = distinct[1:-1] if len(distinct) <= most + 2 else _quantiles(x, most)
    if len(found) < min(most, len(distinct) - 2):  # values that are repeated fill several quantiles
        near = found[np.minimum(np.searchsorted(found, x), len(found) - 1)] if len(found) else np.nan
        rest = x[near != x]
        found = np.union1d(found, _quantiles(rest, most - len(found))) if len(rest) else found
    few = TAILS[0] * len(x)  # a hinge that bends for fewer rows says nothing about others like them
    inside = found[(np.searchsorted(x, found) > few) & (len(x) - np.searchsorted(x, found, "right") > few)]
    return tuple({knot_label(float(knot)): float(knot) for knot in inside}.values())


def _quantiles(x: Array, count: int, *, ends: bool = False) -> Array:
    """Distinct quantiles of sorted values at equal distances, with or without the smallest and the largest value."""
    shares = np.arange(0 if ends else 1, count + (2 if ends else 1)) / (count + 1)
    return _distinct(x[_places(len(x), shares)])


def _places(n: int, shares: ArrayLike) -> IntArray:
    """Positions of quantiles among n sorted values, each the nearest value."""
    return np.asarray(np.rint(np.asarray(shares) * (n - 1)), dtype=np.intp)


def _deviations(x: Array, knots: tuple[float, ...]) -> list[float]:
    """Standard deviation of ``max(x - knot, 0)`` for sorted values."""
    found = []
    for knot in knots:
        above = x[np.searchsorted(x, knot, "right") :] - knot
        mean = above.sum() / len(x)
        found.append(float(np.sqrt((((above - mean) ** 2).sum() + (len(x) - len(above)) * mean**2) / len(x))))
    return found


def knot_label(knot: float) -> str:
    """Write a knot as it stands in a column name."""
    return f"{knot:.8g}"


@dataclass(frozen=True, slots=True)
class Products(Coder):
    """Products of two columns: of the ranks of numeric ones, between 0 and 1, and of dummies of levels.

    Attributes
    ----------
    columns : tuple of str
    curves : tuple of (points, ranks)
        For each numeric column, values and their ranks, between which ranks are interpolated; empty for a category.
    levels : tuple of tuples of levels
        For each category, the levels that take part; empty for a numeric column.
    fills : tuple of float
        What stands for a missing value of a numeric column.
    pairs : tuple of (int, int, int, int)
        For each product: column and level of the first factor, column and level of the second; level 0 of numbers.

    Examples
    --------
    >>> curve = ((17.0, 90.0), (0.0, 1.0))
    >>> Products(("age", "job"), (curve, ()), ((), ("clerk",)), (40.0, 0.0), ((0, 0, 1, 0),)).names
    ('age:job[clerk]',)
    """

    columns: tuple[str, ...] = field()  # not the property of the base
    curves: tuple[tuple[tuple[float, ...], ...], ...]
    levels: tuple[tuple[Level, ...], ...]
    fills: tuple[float, ...]
    pairs: tuple[tuple[int, int, int, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Output column names."""
        return tuple(f"{self._label(a, i)}:{self._label(b, j)}" for a, i, b, j in self.pairs)

    @property
    def sources(self) -> tuple[str, ...]:
        """The two columns behind each product, joined by a colon."""
        return tuple(f"{self.columns[a]}:{self.columns[b]}" for a, _, b, _ in self.pairs)

    @property
    def constant(self) -> tuple[str, ...]:
        """None: products that do not vary are never chosen."""
        return ()

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Fill `out`; rows with unseen levels are counted by the coders of the columns themselves."""
        needed = {factor for a, i, b, j in self.pairs for factor in ((a, i), (b, j))}
        factors = self._factors(rows, {a for a, _ in needed})
        for place, (a, i, b, j) in enumerate(self.pairs):
            np.multiply(factors[a, i], factors[b, j], out=out[:, place])
        return {}

    def with_pairs(self, pairs: Sequence[tuple[int, int, int, int]]) -> Products:
        """Return the coder of these products."""
        return Products(self.columns, self.curves, self.levels, self.fills, tuple(pairs))

    def factors(self, rows: TableRows) -> tuple[Array, list[tuple[int, int]]]:
        """Values (n, f) of all factors, and column and level of each."""
        found = self._factors(rows, set(range(len(self.columns))))
        return np.column_stack(list(found.values())), list(found)

    def _factors(self, rows: TableRows, asked: set[int]) -> dict[tuple[int, int], Array]:
        found: dict[tuple[int, int], Array] = {}
        for a in sorted(asked):
            if self.curves[a]:
                values = rows.numbers(self.columns[a])
                filled = np.where(np.isnan(values), self.fills[a], values)
                points, ranks = self.curves[a]
                found[a, 0] = np.interp(filled, points, ranks)
                continue
            codes = locate_levels(self.levels[a], rows.levels(self.columns[a]))
            found |= {(a, i): (codes == i).astype(np.float64) for i in range(len(self.levels[a]))}
        return found

    def _label(self, a: int, i: int) -> str:
        return self.columns[a] if self.curves[a] else f"{self.columns[a]}[{label(self.levels[a][i])}]"


def rank_curve(values: Array) -> tuple[tuple[float, ...], ...]:
    """Points of a column's empirical distribution, and their ranks (half of the ties counted).

    Examples
    --------
    >>> rank_curve(np.array([0.0, 0.0, 0.0, 1.0]))
    ((0.0, 1.0), (0.375, 0.875))
    """
    x, distinct = _sorted(values)
    if len(distinct) > RANK_POINTS:
        distinct = _quantiles(x, RANK_POINTS - 2, ends=True)
    ranks = 0.5 * (np.searchsorted(x, distinct, "left") + np.searchsorted(x, distinct, "right")) / len(x)
    return tuple(distinct.tolist()), tuple(ranks.tolist())
