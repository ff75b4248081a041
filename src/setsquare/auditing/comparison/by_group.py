"""Predictions within protected groups: means, quantiles, histograms, calibration. Aggregates only, in linear time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.auditing.comparison.calibration import Bin
from setsquare.auditing.comparison.groups import Groups
from setsquare.auditing.comparison.performance import Interval, Scale, interval, mean_metric
from setsquare.families import Family
from setsquare.rows.blocks import mean_weight

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


@dataclass(frozen=True, slots=True)
class Sample:
    """Weights and clusters of the rows (or None), and the confidence level of intervals."""

    weight: Array | None = None
    cluster: IntArray | None = None
    confidence: float = 0.95

    def part(self, rows: IntArray) -> tuple[Array | None, IntArray | None]:
        """Weights and clusters of some rows."""
        weight = None if self.weight is None else self.weight[rows]
        return weight, None if self.cluster is None else self.cluster[rows]


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

    Without the slope of :func:`setsquare.auditing.comparison.calibration.calibration`, which would need a fit per
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
