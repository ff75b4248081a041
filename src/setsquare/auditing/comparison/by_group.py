"""Rows by protected group, and their predictions: means, quantiles, histograms, calibration; all in linear time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.comparison.performance import Bin, Interval, Scale, interval, mean_metric
from setsquare.auditing.comparison.predicted_rows import Sample
from setsquare.families import Family
from setsquare.rows.blocks import mean_weight
from setsquare.tables.column import Levels, label, read
from setsquare.tables.frame import open_table

#: Largest number of levels shown separately; the least frequent of more are pooled.
MOST_LEVELS = 12


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
    """

    column: str
    labels: tuple[str, ...]
    rows: tuple[IntArray, ...]
    centres: tuple[float, ...] = ()
    n_pooled: int = 0

    def in_order(self, order: IntArray) -> list[IntArray]:
        """The rows of each group in the ``order`` (n,) of all rows, in linear time."""
        codes = np.empty(len(order), dtype=np.intp)
        for k, rows in enumerate(self.rows):
            codes[rows] = k
        return [order[places] for places in _split(codes[order], len(self.rows))]


def group_rows(table: Table, keep: BoolArray | None = None, *, n_slices: int = 10) -> tuple[Groups, ...]:
    """Group the rows by each column of a table; missing values are a group of their own.

    Parameters
    ----------
    table : dataframe or array of n rows
    keep : boolean ndarray of shape (n,), optional
        Rows to use; the groups index into these rows.
    n_slices : int
        Number of slices of about equal size, for a column with more than a dozen distinct numbers.

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
        if isinstance(column, Levels):
            found.append(_of_levels(name, column.codes, tuple(map(label, column.levels))))
        else:
            found.append(_of_numbers(name, column.values, n_slices))
    return tuple(found)


def _of_numbers(name: str, x: Array, n_slices: int) -> Groups:
    known = x[~np.isnan(x)]
    values = np.unique(known)
    if len(values) <= MOST_LEVELS:
        codes = np.where(np.isnan(x), -1, np.searchsorted(values, x))
        return _of_levels(name, codes, tuple(f"{value:g}" for value in values))
    cuts = np.unique(np.quantile(known, np.arange(1, n_slices) / n_slices, method="higher"))
    codes = np.where(np.isnan(x), len(cuts) + 1, np.searchsorted(cuts, x, side="right"))
    ends = [f"{known.min():.4g}", *(f"{cut:.4g}" for cut in cuts), f"{known.max():.4g}"]
    labels = [f"{low} to {high}" for low, high in pairwise(ends)]
    rows = _split(codes, len(cuts) + 2)
    there = [k for k, part in enumerate(rows) if len(part)]
    return Groups(
        name,
        tuple([*labels, "missing"][k] for k in there),
        tuple(rows[k] for k in there),
        tuple(float(x[rows[k]].mean()) for k in there),
    )


def _of_levels(name: str, codes: IntArray, labels: tuple[str, ...]) -> Groups:
    """Levels in their order, then the pooled infrequent levels, then missing values."""
    counts = np.bincount(codes + 1, minlength=len(labels) + 1)[1:]
    there = np.flatnonzero(counts)
    few = len(there) <= MOST_LEVELS
    shown = there if few else np.sort(there[np.argsort(-counts[there], kind="stable")[: MOST_LEVELS - 1]])
    place = np.full(len(labels) + 1, len(shown))  # the pooled group
    place[shown + 1], place[0] = np.arange(len(shown)), len(shown) + 1
    n_pooled = len(there) - len(shown)
    names = [*(labels[k] for k in shown), f"{n_pooled} other levels", "missing"]
    rows = _split(place[codes + 1], len(names))
    used = [k for k, part in enumerate(rows) if len(part)]
    return Groups(name, tuple(names[k] for k in used), tuple(rows[k] for k in used), (), n_pooled)


def _split(codes: IntArray, n_groups: int) -> list[IntArray]:
    """Rows of each group, in linear time: numpy uses a radix sort for such small integers."""
    order = np.argsort(codes.astype(np.int16), kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes, minlength=n_groups))[:-1])


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


def reliabilities(
    y: Array, values: Array, groups: Groups, family: Family, sample: Sample, order: IntArray | None = None
) -> tuple[Reliability, ...]:
    """Calibration of each group, in ten bins of about equal weight by increasing prediction; ties share a bin.

    Without the slope of :func:`setsquare.auditing.comparison.performance.calibration`, which would need a fit per
    group.

    Examples
    --------
    >>> from setsquare.families import family
    >>> groups = Groups("sex", ("f",), (np.arange(4),))
    >>> y, prediction = np.array([0.0, 1.0, 1.0, 1.0]), np.array([0.2, 0.2, 0.7, 0.7])
    >>> found = reliabilities(y, prediction, groups, family("binomial"), Sample())[0]
    >>> [(round(one.prediction, 1), one.outcome.estimate) for one in found.bins]
    [(0.2, 0.5), (0.7, 1.0)]
    """
    scale: Scale = "logit" if family.name == "binomial" else "identity" if family.name == "gaussian" else "log"
    found = []
    for rows in groups.in_order(np.argsort(values, kind="stable") if order is None else order):
        weight, cluster = sample.part(rows)
        outcome, prediction, share = y[rows], values[rows], mean_weight(len(rows), weight)
        apart = interval(mean_metric("difference", outcome - prediction, share), sample.confidence, cluster)
        n_bins = 10 if len(rows) >= SMALL else 5
        reached = np.cumsum(share) - 0.5 * share
        cuts = np.searchsorted(reached, np.arange(n_bins) / n_bins)
        cuts = np.unique(np.searchsorted(prediction, prediction[cuts]))
        bins = []
        for low, high in pairwise([*cuts.tolist(), len(rows)]):
            part = slice(low, high)
            own = share[part] / share[part].sum()
            seen = mean_metric("outcome", outcome[part], own, None, scale)
            near = interval(seen, sample.confidence, None if cluster is None else cluster[part])
            bins.append(Bin(float(own @ prediction[part]), near, high - low))
        found.append(Reliability(len(rows), float(share @ outcome), float(share @ prediction), apart, tuple(bins)))
    return tuple(found)


def histogram_edges(values: tuple[Array, ...], n_bins: int = 40) -> tuple[Array, int]:
    """Edges that hold 99.8 % of all predictions, and how many predictions lie beyond them."""
    low = min(float(np.quantile(v, 0.001)) for v in values)
    high = max(float(np.quantile(v, 0.999)) for v in values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    beyond = sum(int(np.count_nonzero((v < low) | (v > high))) for v in values)
    return np.linspace(low, high, n_bins + 1), beyond


def _quantiles(values: Array, share: Array) -> tuple[float, ...]:
    """Weighted quantile of increasing values: the smallest that at least a share of the weight does not exceed."""
    reached = np.cumsum(share)
    places = np.searchsorted(reached, np.asarray(QUANTILES) * reached[-1] * (1.0 - 1e-12))
    return tuple(values[places].tolist())
