"""Tests of dependence beyond linear effects: curvature, combinations of groups, and spread.

A prediction that is high for the young and the old alike has no linear effect of age; one that is low for Black women
alone can have small effects of race and sex; one whose mean is the same in two groups can still put many more people of
one group above a threshold. Three tests complement the test of linear effects:

* *curvature*: natural splines of each numeric column, given the linear effects;
* *combinations*: products of two different columns, given the columns themselves;
* *spread*: the size of the residuals, ``|r| - k r``. The term with ``k = mean(sign(r))`` corrects for the estimated
  means: without it the test rejects far more than 5 % of the samples for skewed predictions. For several classes the
  sizes are summed: labels then have no separate spread, as it follows from their means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np

from setsquare._typing import Array
from setsquare.auditing.bounds import bound_length
from setsquare.auditing.cells import CellRows
from setsquare.auditing.evaluations.records import ALL, Evaluation, Test, holm
from setsquare.auditing.evaluations.score import EXPLAINED, Answer, Question, Sample, answer, orthonormal
from setsquare.rows.blocks import Block, Rows
from setsquare.rows.parallel import Sums

#: Knots of the splines, in standard deviations from the mean.
KNOTS = (-1.6, -0.7, 0.0, 0.7, 1.6)
#: Smallest number of rows in a tested combination of groups, and largest number of combinations.
FEW_ROWS, MOST_CELLS = 20, 60
#: Residuals below this share of their standard deviation have no sign.
ROUNDING = 1e-9
TITLE = "curvature, combinations and spread"
CURVATURE, COMBINATIONS, SPREAD = "curvature", "combinations", "spread"


@dataclass(frozen=True, slots=True)
class Shape:
    """Derived columns: splines and products of the protected columns.

    Attributes
    ----------
    knots : tuple of (int, ndarray)
        Position of a numeric column, and the knots of its spline.
    products : tuple of (int, int)
        Positions of two columns whose product is tested.
    mean : ndarray of shape (p,)
    scale : ndarray of shape (p,)
    """

    knots: tuple[tuple[int, Array], ...]
    products: tuple[tuple[int, int], ...]
    mean: Array
    scale: Array

    @property
    def n_curves(self) -> int:
        """Number of columns of the splines."""
        return sum(len(knots) - 2 for _, knots in self.knots)

    def apply(self, X: Array) -> Array:
        """Protected columns (b, p) followed by the derived ones."""
        p, first = X.shape[1], X.shape[1] + self.n_curves
        out = np.empty((len(X), first + len(self.products)), order="F")  # columns are filled one by one
        out[:, :p] = X
        if self.knots:
            out[:, p:first] = np.vstack([_spline(X[:, j], knots) for j, knots in self.knots]).T
        used = sorted({j for pair in self.products for j in pair})
        centred = {j: (X[:, j] - self.mean[j]) / self.scale[j] for j in used}
        for column, (a, b) in enumerate(self.products, start=first):
            np.multiply(centred[a], centred[b], out=out[:, column])
        return out


def _spline(x: Array, knots: Array) -> Array:
    """Nonlinear terms of a natural cubic spline, (knots - 2, b)."""
    low, high = knots[0], knots[-1]
    t = (x - low) / (high - low)
    u = (knots - low) / (high - low)
    cubes = np.maximum(t - u[:, None], 0.0)
    cubes *= cubes * cubes  # a power of 3 takes ten times as long
    last = (cubes[:-1] - cubes[-1]) / (1.0 - u[:-1, None])
    return np.asarray(last[:-1] - last[-1])


def plan_shape(sample: Sample, ends: tuple[Array, Array], groups: tuple[bool, ...], sources: tuple[str, ...]) -> Shape:
    """Choose knots within the range of each numeric column, and products of columns of different sources.

    Products of groups with too few rows in common are omitted; if there are too many, the most frequent are kept.
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
    share = np.where(np.asarray(groups), mean - ends[0], 0.5)  # share of the rows in a group
    count = sample.n_rows * np.where(np.outer(groups, groups), _smallest_cell(share, S), share * (1.0 - share))
    count = np.round(count, 6)  # from moments: 20 rows may be 19.999999999
    varying = [j for j in range(p) if spread[j] > 0.0]
    pairs = [(a, b) for a, b in combinations(varying, 2) if sources[a] != sources[b]]
    pairs = [(a, b) for a, b in pairs if min(count[a, b], count[b, a]) >= FEW_ROWS]
    common = sorted(pairs, key=lambda pair: -min(count[pair], count[pair[::-1]]))[:MOST_CELLS]
    return Shape(tuple(knots), tuple(sorted(common)), mean, np.where(spread > 0.0, spread, 1.0))


def _smallest_cell(share: Array, S: Array) -> Array:
    """Smallest share of the four cells of each pair of indicators with the covariances ``S``, (p, p)."""
    both = S + np.outer(share, share)
    either = share[:, None] + share - both
    return np.minimum(np.minimum(both, 1.0 - either), np.minimum(share[:, None], share) - both)


def evaluate_shape(
    sample: Sample, ends: tuple[Array, Array], groups: tuple[bool, ...], sources: tuple[str, ...], confidence: float
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
    confidence : float
        Confidence of the bounds.
    """
    p, shape = sample.n_columns, plan_shape(sample, ends, groups, sources)
    if not np.diag(sample.moments.scatter)[:p].any() or _is_explained(sample):
        return Evaluation("shape", TITLE, (), Test(ALL, math.nan, 0.0, math.nan, "nothing to test"))
    found: list[Found] = []
    if shape.knots or shape.products:
        wider = _widen(sample, shape)
        extra = np.arange(wider.n_columns) - p
        curves, cells = (extra >= 0) & (extra < shape.n_curves), extra >= shape.n_curves
        asked = [
            (Question(CURVATURE, curves, cells), _curves(shape, sources)),
            (Question(COMBINATIONS, cells, curves), _pairs(shape, sources)),
        ]
        found += _ask(wider, [part for part in asked if part[0].chosen.any()], confidence)
    everything = Question(SPREAD, np.ones(p, dtype=bool), np.zeros(p, dtype=bool))
    found += _ask(_spread_sample(sample), [(everything, _each(sources))], confidence)
    tests = tuple(replace(whole.test, sources=names, upper=_bound(whole, sample, confidence)) for whole, names in found)
    p_values = [test.p_value for test in tests if not math.isnan(test.p_value)]
    smallest = min(1.0, len(p_values) * min(p_values)) if p_values else math.nan
    count = len(p_values)
    joint = Test(ALL, min(p_values, default=1.0), count, smallest, f"smallest of {count} p-values, times {count}")
    return Evaluation("shape", TITLE, (), joint, further=tests)


#: Source columns, and their derived columns.
Parts = list[tuple[tuple[str, ...], list[int]]]
#: An answer, and the source columns that are significant on their own; all of them if none is.
Found = tuple[Answer, tuple[str, ...]]


def _curves(shape: Shape, sources: tuple[str, ...]) -> Parts:
    ends = np.cumsum([0, *(len(knots) - 2 for _, knots in shape.knots)])
    return [((sources[j],), list(range(a, b))) for (j, _), a, b in zip(shape.knots, ends[:-1], ends[1:], strict=True)]


def _pairs(shape: Shape, sources: tuple[str, ...]) -> Parts:
    found: dict[tuple[str, ...], list[int]] = {}
    for i, (a, b) in enumerate(shape.products):
        found.setdefault((sources[a], sources[b]), []).append(i)
    return list(found.items())


def _each(sources: tuple[str, ...]) -> Parts:
    return [((source,), [j for j, s in enumerate(sources) if s == source]) for source in dict.fromkeys(sources)]


def _ask(sample: Sample, asked: Sequence[tuple[Question, Parts]], confidence: float) -> list[Found]:
    """Answer questions; where one is significant, each part of its columns is tested given the others."""
    found = []
    for whole, (question, parts) in zip(answer(sample, [one for one, _ in asked]), asked, strict=True):
        names = [sources for sources, _ in parts]
        if len(parts) > 1 and whole.test.p_value <= 1.0 - confidence:
            each = answer(sample, [_part(question, positions) for _, positions in parts])
            adjusted = holm([one.test.p_value for one in each])
            names = [own for own, p in zip(names, adjusted, strict=True) if p <= 1.0 - confidence] or names
        found.append((whole, tuple(dict.fromkeys(name for own in names for name in own))))
    return found


def _part(question: Question, positions: list[int]) -> Question:
    """Question on some of the chosen columns, given the others."""
    own = np.zeros(len(question.chosen), dtype=bool)
    own[np.flatnonzero(question.chosen)[positions]] = True
    return question._replace(chosen=own)


def _is_explained(sample: Sample) -> bool:
    """Whether the columns explain the predictions up to rounding, so that no residuals are left to test."""
    p, S = sample.n_columns, sample.moments.scatter
    T = orthonormal(S[:p, :p])
    total = np.diag(S)[p:]
    return bool((total - np.sum((T.T @ S[:p, p:]) ** 2, axis=0) <= EXPLAINED * total).all())


def _widen(sample: Sample, shape: Shape) -> Sample:
    """Sample of the protected columns and the derived ones."""
    rows = sample.rows.map(partial(_change_columns, shape))
    p, mean = sample.n_columns, sample.moments.mean
    shift = np.concatenate([shape.apply(mean[None, :p])[0], mean[p:]])
    d = p + shape.n_curves + len(shape.products)
    return _like(sample, rows, shift, d)


def _change_columns(shape: Shape, block: Block) -> Block:
    return replace(block, Z=shape.apply(np.asarray(block.Z)))


def _spread_sample(sample: Sample) -> Sample:
    """The same columns, with the size of the residuals as the response."""
    p, S, mean = sample.n_columns, sample.moments.scatter, sample.moments.mean
    T = orthonormal(S[:p, :p])
    slopes = T @ (T.T @ S[:p, p:])
    size = np.sqrt(np.maximum(np.diag(S)[p:] - np.sum(slopes * S[:p, p:], axis=0), 0.0))
    shift = np.append(mean[:p], 0.8 * size.sum())
    if isinstance(sample.rows, CellRows):
        return _like(sample, _cell_sizes(sample.rows, mean, slopes, ROUNDING * size), shift, p)
    signs, counted = sample.rows.reduce(partial(_signs, mean, slopes, ROUNDING * size))
    lean = signs / np.maximum(counted, 1e-300)
    return _like(sample, sample.rows.map(partial(_change_response, mean, slopes, lean)), shift, p)


def _like(sample: Sample, rows: Rows, shift: Array, n_columns: int) -> Sample:
    """Sample of other columns or responses of the same rows."""
    equal, cluster = sample.equal_weights, sample.cluster
    return Sample.of(rows, shift, n_columns, n_rows=sample.n_rows, equal_weights=equal, cluster=cluster)


def _cell_sizes(rows: CellRows, mean: Array, slopes: Array, least: Array) -> Rows:
    """Cells with the size of the residuals as the response."""
    cells, y = rows.cells, rows.response
    assert cells is not None and y is not None
    fit = mean[-1] + (cells.values - mean[:-1]) @ slopes[:, 0]
    residual = y - fit[cells.codes]
    size = np.abs(residual)
    counts = size > least[0]
    lean = float(np.sign(residual)[counts].sum()) / max(int(np.count_nonzero(counts)), 1)
    size -= lean * residual
    return cells.pairs(size)


def _residual(mean: Array, slopes: Array, block: Block) -> Array:
    p = len(slopes)
    return np.asarray(block.y - mean[p:] - (np.asarray(block.Z) - mean[:p]) @ slopes)


def _signs(mean: Array, slopes: Array, least: Array, block: Block) -> Sums:
    """Sums of the signs of the residuals, and of the weights; a group in which a label is absent has no residuals."""
    residual = _residual(mean, slopes, block)
    counts = np.abs(residual) > least
    return block.weight @ np.where(counts, np.sign(residual), 0.0), block.weight @ counts


def _change_response(mean: Array, slopes: Array, lean: Array, block: Block) -> Block:
    residual = _residual(mean, slopes, block)
    return replace(block, y=np.sum(np.abs(residual) - lean * residual, axis=1, keepdims=True))


def _bound(found: Answer, sample: Sample, confidence: float) -> float | None:
    """Upper bound on the multiple correlation that a test is about, for one response."""
    if not found.covariance.size or not found.variance > 0.0:
        return None
    c, V = found.score[:, 0] / math.sqrt(found.variance), found.covariance / found.variance
    return bound_length(float(c @ c), V, 1.0 / sample.n, sample.n, confidence)
