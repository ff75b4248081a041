"""Dependence that effects of the columns do not see: curves, combinations of groups, and spread.

A prediction that is high for the young and the old alike has no linear effect of age; one that is low for Black women
alone can have small effects of race and sex; one whose mean is the same in two groups can still put many more people of
one group above a threshold. Three tests look for these, beside the one of linear effects:

* *curvature*: natural splines of each numeric column, given the linear effects;
* *combinations*: products of the groups of different columns, given the columns themselves;
* *spread*: the size of the residuals, ``|r| - k r``. The term with ``k = mean(sign(r))`` makes up for the estimated
  means: without it skewed predictions would be called uneven in far more than 5 % of the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np

from setsquare.auditing.association import bound_length
from setsquare.auditing.records import ALL, Evaluation, Test
from setsquare.auditing.score import Answer, Question, Sample, answer, blocks_of, orthonormal
from setsquare.rows import Block, Rows, Sums
from setsquare.typing import Array

#: Knots of the splines, in standard deviations from the mean.
KNOTS = (-1.6, -0.7, 0.0, 0.7, 1.6)
#: Rows that a combination of groups must have to be tested, and the most combinations.
FEW_ROWS, MOST_CELLS = 20, 60
TITLE = "curvature, combinations and spread"
CURVATURE, COMBINATIONS, SPREAD = "curvature", "combinations", "spread"


@dataclass(frozen=True, slots=True)
class Shape:
    """Further columns that are made of the protected ones.

    Attributes
    ----------
    knots : tuple of (int, ndarray)
        Position of a numeric column, and the knots of its spline.
    products : tuple of (int, int)
        Positions of two indicators whose product is tested.
    """

    knots: tuple[tuple[int, Array], ...]
    products: tuple[tuple[int, int], ...]

    @property
    def n_curves(self) -> int:
        """Number of columns of the splines."""
        return sum(len(knots) - 2 for _, knots in self.knots)

    def apply(self, X: Array) -> Array:
        """Protected columns (b, p) with the further ones beside them."""
        curves = [_spline(X[:, j], knots) for j, knots in self.knots]
        cells = [X[:, a] * X[:, b] for a, b in self.products]
        return np.column_stack([X, *curves, *cells])


def _spline(x: Array, knots: Array) -> Array:
    """Non-linear terms of a natural cubic spline, (b, knots - 2)."""
    low, high = knots[0], knots[-1]
    t = (x - low) / (high - low)
    u = (knots - low) / (high - low)
    cubes = np.maximum(t[:, None] - u, 0.0) ** 3
    last = (cubes[:, :-1] - cubes[:, -1:]) / (1.0 - u[:-1])
    return np.asarray(last[:, :-1] - last[:, -1:])


def plan_shape(sample: Sample, ends: tuple[Array, Array], groups: tuple[bool, ...], sources: tuple[str, ...]) -> Shape:
    """Choose knots within the range of each numeric column, and the products of indicators of different sources.

    Products of too few rows are left out; of too many the most common stay.
    """
    p = sample.n_columns
    mean, S = sample.moments.mean[:p], sample.moments.scatter[:p, :p]
    spread = np.sqrt(np.maximum(np.diag(S), 0.0))
    knots = []
    for j, is_group in enumerate(groups):
        places = mean[j] + spread[j] * np.asarray(KNOTS)
        places = np.unique(np.clip(places, ends[0][j], ends[1][j]))
        if not is_group and spread[j] > 0.0 and len(places) >= 3:
            knots.append((j, places))
    indicators = [j for j, is_group in enumerate(groups) if is_group]
    count = sample.rows.n_rows * _smallest_cell(mean, S + np.outer(mean, mean))
    pairs = [(a, b) for a, b in combinations(indicators, 2) if sources[a] != sources[b] and count[a, b] >= FEW_ROWS]
    common = sorted(pairs, key=lambda pair: -count[pair])[:MOST_CELLS]
    return Shape(tuple(knots), tuple(sorted(common)))


def _smallest_cell(share: Array, both: Array) -> Array:
    """Smallest share of the four cells of each pair of indicators, (p, p)."""
    either = share[:, None] + share - both
    return np.minimum(np.minimum(both, 1.0 - either), np.minimum(share[:, None], share) - both)


@dataclass(frozen=True, slots=True)
class Mapped:
    """Rows with something else made of each block."""

    rows: Rows
    change: Callable[[Block], Block]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.rows.n_rows

    @property
    def blocks(self) -> Iterator[Block]:
        """Blocks in their order, where the rows are in memory."""
        return map(self.change, blocks_of(self.rows))

    def reduce(self, kernel: Callable[[Block], Sums]) -> Sums:
        """Add up what ``kernel`` returns for each block."""
        return self.rows.reduce(lambda block: kernel(self.change(block)))


def evaluate_shape(
    sample: Sample, ends: tuple[Array, Array], groups: tuple[bool, ...], sources: tuple[str, ...], level: float
) -> Evaluation:
    """Test curvature, combinations and spread.

    Parameters
    ----------
    sample : Sample
        Protected columns, and the predictions as responses.
    ends : (ndarray of shape (p,), ndarray of shape (p,))
        Smallest and largest value of each column.
    groups : tuple of bool
        Which columns are indicators.
    sources : tuple of str
    level : float
        Confidence of the bounds.
    """
    p, shape = sample.n_columns, plan_shape(sample, ends, groups, sources)
    found: list[Answer] = []
    if not np.diag(sample.moments.scatter)[:p].any() or not np.diag(sample.moments.scatter)[p:].any():
        return Evaluation("shape", TITLE, (), Test(ALL, math.nan, 0.0, math.nan, "nothing to test"))
    if shape.knots or shape.products:
        wider = _widen(sample, shape)
        extra = np.arange(wider.n_columns) - p
        curves, cells = (extra >= 0) & (extra < shape.n_curves), extra >= shape.n_curves
        asked = [Question(CURVATURE, curves, cells), Question(COMBINATIONS, cells, curves)]
        found += answer(wider, [question for question in asked if question.chosen.any()])
    found += _test_spread(sample)
    numeric, crossed = [j for j, _ in shape.knots], [j for pair in shape.products for j in pair]
    columns = {CURVATURE: numeric, COMBINATIONS: crossed, SPREAD: range(p)}
    tests = tuple(
        replace(
            one.test,
            sources=tuple(dict.fromkeys(sources[j] for j in sorted(columns[one.test.name]))),
            upper=_bound(one, sample, level),
        )
        for one in found
    )
    p_values = [test.p_value for test in tests if not math.isnan(test.p_value)]
    smallest = min(1.0, len(p_values) * min(p_values)) if p_values else math.nan
    count = len(p_values)
    joint = Test(ALL, min(p_values, default=1.0), count, smallest, f"smallest of {count} p-values, times {count}")
    return Evaluation("shape", TITLE, (), joint, further=tests)


def _widen(sample: Sample, shape: Shape) -> Sample:
    """Sample of the protected columns and the further ones."""
    rows = Mapped(sample.rows, partial(_change_columns, shape))
    p, mean = sample.n_columns, sample.moments.mean
    shift = np.concatenate([shape.apply(mean[None, :p])[0], mean[p:]])
    d = p + shape.n_curves + len(shape.products)
    return Sample.of(rows, shift, d, equal_weights=sample.equal_weights, cluster=sample.cluster)


def _change_columns(shape: Shape, block: Block) -> Block:
    return replace(block, Z=shape.apply(np.asarray(block.Z)))


def _test_spread(sample: Sample) -> tuple[Answer, ...]:
    p, S = sample.n_columns, sample.moments.scatter
    mean, everything = sample.moments.mean, np.ones(p, dtype=bool)
    T = orthonormal(S[:p, :p])
    slopes = T @ (T.T @ S[:p, p:])
    lean = sample.rows.reduce(partial(_lean, mean, slopes))[0]
    size = np.sqrt(np.maximum(np.diag(S)[p:] - np.sum(slopes * S[:p, p:], axis=0), 0.0))
    rows = Mapped(sample.rows, partial(_change_response, mean, slopes, lean))
    shift = np.concatenate([mean[:p], 0.8 * size])
    spread = Sample.of(rows, shift, p, equal_weights=sample.equal_weights, cluster=sample.cluster)
    return answer(spread, [Question(SPREAD, everything, ~everything)])


def _residual(mean: Array, slopes: Array, block: Block) -> Array:
    p = len(slopes)
    return np.asarray(block.y - mean[p:] - (np.asarray(block.Z) - mean[:p]) @ slopes)


def _lean(mean: Array, slopes: Array, block: Block) -> Sums:
    return (block.weight @ np.sign(_residual(mean, slopes, block)),)


def _change_response(mean: Array, slopes: Array, lean: Array, block: Block) -> Block:
    residual = _residual(mean, slopes, block)
    return replace(block, y=np.abs(residual) - lean * residual)


def _bound(found: Answer, sample: Sample, level: float) -> float | None:
    """Upper bound on the multiple correlation that a test is about, of one response."""
    if not found.covariance.size or not found.variance > 0.0:
        return None
    c, V = found.score[:, 0] / math.sqrt(found.variance), found.covariance / found.variance
    return bound_length(float(c @ c), V, 1.0 / sample.n, sample.n, level)
