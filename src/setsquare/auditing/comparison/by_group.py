"""Rows by protected group, and their predictions: means, quantiles, histograms, calibration; all in linear time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.comparison.calibration import Bin
from setsquare.auditing.comparison.metric import Interval, interval, link_scale, mean_metric
from setsquare.auditing.comparison.predicted_rows import Sample
from setsquare.auditing.groups.partitions import MOST_VALUES, Partition, partition_column
from setsquare.families import Family
from setsquare.rows.blocks import mean_weight
from setsquare.tables.column import Column, Numbers, read
from setsquare.tables.frame import open_table


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of rows.

    Attributes
    ----------
    column : str
    labels : tuple of str
        ``Black``, or ``17 to 28`` for a slice.
    rows : tuple of integer ndarray
        The rows of each group; none is empty.
    centres : tuple of float
        Mean of a continuous column in each slice; empty for levels.
    n_pooled : int
        Number of levels pooled into one group.
    masked : tuple of str
        Groups that are left out because they have too few rows, each with their number; their rows are in no group.
    """

    column: str
    labels: tuple[str, ...]
    rows: tuple[IntArray, ...]
    centres: tuple[float, ...] = ()
    n_pooled: int = 0
    masked: tuple[str, ...] = ()

    def in_order(self, order: IntArray) -> list[IntArray]:
        """The rows of each group in the ``order`` (n,) of all rows, in linear time."""
        codes = np.full(len(order), len(self.rows))  # rows in no group come last
        for k, rows in enumerate(self.rows):
            codes[rows] = k
        return [order[places] for places in _split(codes[order], len(self.rows) + 1)[:-1]]


def group_rows(
    table: Table, keep: BoolArray | None = None, *, n_slices: int = 10, rounded: bool = False, min_group: int = 1
) -> tuple[Groups, ...]:
    """Group the rows by each column of a table; missing values are a group of their own.

    Parameters
    ----------
    table : dataframe or array of n rows
    keep : boolean ndarray of shape (n,), optional
        Rows to use; the groups index into these rows.
    n_slices : int
        Number of slices of about equal size, for a column with more than a dozen distinct numbers.
    rounded : bool
        Whether slices have short ends and names, as the bands of numbers by group have.
    min_group : int
        Groups with fewer rows are pooled, or left out if they have fewer rows together as well.

    Examples
    --------
    >>> groups = group_rows([["b", 1.0], ["a", 2.0], ["b", 2.0]])
    >>> [(g.column, g.labels, [rows.tolist() for rows in g.rows]) for g in groups]
    [('x0', ('a', 'b'), [[1], [0, 2]]), ('x1', ('1', '2'), [[0], [1, 2]])]
    """
    frame = open_table(table)
    found = []
    for name in frame.names:
        column = read(frame, name) if keep is None else read(frame, name).take(keep)
        part = partition_column(name, column, n_slices, rounded=rounded)
        found.append(_hide_small(_slices(part, column) if part.edges else _levels(part), min_group))
    return tuple(found)


def _hide_small(groups: Groups, min_group: int) -> Groups:
    """Pool or leave out groups of too few rows, whose numbers would be those of single rows."""
    sizes = [len(rows) for rows in groups.rows]
    small = [k for k, size in enumerate(sizes) if size < min_group]
    if not small:
        return groups
    large = [k for k in range(len(sizes)) if k not in small]
    labels, rows = [groups.labels[k] for k in large], [groups.rows[k] for k in large]
    masked = tuple(f"{groups.column}: {groups.labels[k]} ({sizes[k]})" for k in small)
    if not groups.centres and sum(sizes[k] for k in small) >= min_group:
        labels.append(f"{len(small)} small groups")
        rows.append(np.sort(np.concatenate([groups.rows[k] for k in small])))
    centres = tuple(groups.centres[k] for k in large) if groups.centres else ()
    return Groups(groups.column, tuple(labels), tuple(rows), centres, groups.n_pooled, masked)


def _slices(part: Partition, column: Column) -> Groups:
    """Slices of a numeric column in their order, then missing values."""
    assert isinstance(column, Numbers)
    count, x = len(part.labels), column.values
    rows = [places for places in _split(np.where(part.codes < 0, count, part.codes), count + 1) if len(places)]
    labels = (*part.labels, "missing")[: len(rows)]
    return Groups(part.source, labels, tuple(rows), tuple(float(x[places].mean()) for places in rows))


def _levels(part: Partition) -> Groups:
    """Levels in their order, then the pooled infrequent levels, then missing values."""
    n_levels = len(part.labels)
    shown = np.arange(n_levels)
    if n_levels > MOST_VALUES:
        shown = np.sort(np.argsort(-part.counts, kind="stable")[: MOST_VALUES - 1])
    place = np.full(n_levels + 1, len(shown))  # the pooled group
    place[shown], place[-1] = np.arange(len(shown)), len(shown) + 1
    n_pooled = n_levels - len(shown)
    names = [*(part.labels[k] for k in shown), f"{n_pooled} other levels", "missing"]
    rows = _split(place[part.codes], len(names))
    used = [k for k, places in enumerate(rows) if len(places)]
    return Groups(part.source, tuple(names[k] for k in used), tuple(rows[k] for k in used), (), n_pooled)


def _split(codes: IntArray, n_groups: int) -> list[IntArray]:
    """Rows of each group, in linear time: numpy uses a radix sort for such small integers."""
    order = np.argsort(codes.astype(np.int16), kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes, minlength=n_groups))[:-1])


#: Bins of a histogram.
N_BINS = 40
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: Smaller groups get fewer calibration bins.
SMALL = 500


@dataclass(frozen=True, slots=True)
class Spread:
    """Predictions of one group: rows, mean, quantiles at 5, 25, 50, 75 and 95 %, share of the group in each bin."""

    n: int
    mean: Interval
    quantiles: tuple[float, ...]
    histogram: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reliability:
    """Calibration of one group: rows, mean outcome, mean prediction, their difference, and bins."""

    n: int
    outcome: float
    prediction: float
    difference: Interval
    bins: tuple[Bin, ...]


def spreads(
    values: Array, groups: Groups, edges: Array, sample: Sample, order: IntArray | None = None
) -> tuple[Spread, ...]:
    """Summarise the predictions of each group; values beyond the histogram's `edges` are in its end bins.

    ``order`` holds the rows by increasing prediction, if already known.

    Examples
    --------
    >>> groups = Groups("sex", ("f", "m"), (np.array([0, 1]), np.array([2, 3])))
    >>> found = spreads(np.array([0.2, 0.4, 0.6, 0.8]), groups, np.array([0.0, 0.5, 1.0]), Sample())
    >>> [(one.n, round(one.mean.estimate, 2), one.histogram) for one in found]
    [(2, 0.3, (1.0, 0.0)), (2, 0.7, (0.0, 1.0))]
    """
    found = []
    for rows in groups.in_order(np.argsort(values, kind="stable") if order is None else order):
        weight, cluster = sample.part(rows)
        part, share = values[rows], mean_weight(len(rows), weight)
        mean = interval(mean_metric("mean", part, share), sample.confidence, cluster)
        heights = np.histogram(np.clip(part, edges[0], edges[-1]), edges, weights=share)[0]
        found.append(Spread(len(rows), mean, _quantiles(part, share), tuple(heights.tolist())))
    return tuple(found)


def spreads_by_column(
    values: Mapping[str, Array], columns: Sequence[Groups], edges: Array, sample: Sample
) -> list[dict[str, tuple[Spread, ...]]]:
    """Summaries of the groups of each column, by model; see :func:`spreads`."""
    orders = {side: np.argsort(v, kind="stable") for side, v in values.items()}
    return [{side: spreads(v, groups, edges, sample, orders[side]) for side, v in values.items()} for groups in columns]


def reliabilities(
    y: Array,
    values: Array,
    groups: Groups,
    family: Family,
    sample: Sample,
    order: IntArray | None = None,
    min_rows: int = 1,
) -> tuple[Reliability, ...]:
    """Calibration of each group, in ten bins of about equal weight by increasing prediction; ties share a bin.

    Bins with fewer than ``min_rows`` rows are left out. Without the slope of
    :func:`setsquare.auditing.comparison.calibration.calibration`, which would need a fit per group.

    Examples
    --------
    >>> from setsquare.families import family
    >>> groups = Groups("sex", ("f",), (np.arange(4),))
    >>> y, prediction = np.array([0.0, 1.0, 1.0, 1.0]), np.array([0.2, 0.2, 0.7, 0.7])
    >>> found = reliabilities(y, prediction, groups, family("binomial"), Sample())[0]
    >>> [(round(one.prediction, 1), one.outcome.estimate) for one in found.bins]
    [(0.2, 0.5), (0.7, 1.0)]
    """
    scale = link_scale(family)
    found = []
    for rows in groups.in_order(np.argsort(values, kind="stable") if order is None else order):
        weight, cluster = sample.part(rows)
        outcome, prediction, share = y[rows], values[rows], mean_weight(len(rows), weight)
        apart = interval(mean_metric("difference", outcome - prediction, share), sample.confidence, cluster)
        n_bins = min(10 if len(rows) >= SMALL else 5, max(1, len(rows) // min_rows))
        reached = np.cumsum(share) - 0.5 * share
        cuts = np.searchsorted(reached, np.arange(n_bins) / n_bins)
        cuts = np.unique(np.searchsorted(prediction, prediction[cuts[cuts < len(rows)]]))
        bins = []
        for low, high in pairwise([*cuts.tolist(), len(rows)]):
            if high - low < min_rows:
                continue
            part = slice(low, high)
            own = share[part] / share[part].sum()
            seen = mean_metric("outcome", outcome[part], own, None, scale)
            near = interval(seen, sample.confidence, None if cluster is None else cluster[part])
            bins.append(Bin(float(own @ prediction[part]), near, high - low))
        found.append(Reliability(len(rows), float(share @ outcome), float(share @ prediction), apart, tuple(bins)))
    return tuple(found)


def histogram_edges(values: tuple[Array, ...]) -> tuple[Array, int]:
    """Edges that hold 99.8 % of all predictions, and how many predictions lie beyond them."""
    low = min(float(np.quantile(v, 0.001)) for v in values)
    high = max(float(np.quantile(v, 0.999)) for v in values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    beyond = sum(int(np.count_nonzero((v < low) | (v > high))) for v in values)
    return np.linspace(low, high, N_BINS + 1), beyond


def _quantiles(values: Array, share: Array) -> tuple[float, ...]:
    """Weighted quantile of increasing values: the smallest that at least a share of the weight does not exceed."""
    reached = np.cumsum(share)
    places = np.searchsorted(reached, np.asarray(QUANTILES) * reached[-1] * (1.0 - 1e-12))
    return tuple(values[places].tolist())
