"""Predictions within protected groups: means, quantiles, histograms, calibration. Aggregates only, linear in rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.comparison.calibration import Bin
from setsquare.auditing.comparison.groups import Groups, group_rows
from setsquare.auditing.comparison.performance import Interval, Scale, interval, mean_metric
from setsquare.families import Family
from setsquare.notes import Note
from setsquare.rows.blocks import mean_weight

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: Groups below this have few bins of calibration.
SMALL = 500
#: Classes that are shown one by one.
MOST_CLASSES = 6


@dataclass(frozen=True, slots=True)
class Spread:
    """Predictions of one group: rows, mean, quantiles at 5, 25, 50, 75 and 95 %, share of the group in each bin."""

    n: int
    mean: Interval
    quantiles: tuple[float, ...]
    histogram: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reliability:
    """Calibration of one group: rows, mean outcome and prediction, the first minus the second, and bins."""

    n: int
    outcome: float
    prediction: float
    difference: Interval
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Predictions of each model by the groups of one protected column.

    Attributes
    ----------
    column : str
    response : str
        The class that the probabilities are of; empty for a single prediction.
    labels : tuple of str
    centres : tuple of float
        Mean of a continuous column in each of its slices; empty for groups.
    ends : tuple of float
        Where the histograms begin and end.
    overall : dict of name to float
        Mean prediction of all rows.
    spreads : dict of name to tuple of Spread
    """

    column: str
    response: str
    labels: tuple[str, ...]
    centres: tuple[float, ...]
    ends: tuple[float, float]
    overall: dict[str, float]
    spreads: dict[str, tuple[Spread, ...]]


@dataclass(frozen=True, slots=True)
class GroupCalibration:
    """Calibration of each model by the groups of one protected column."""

    column: str
    labels: tuple[str, ...]
    sides: dict[str, tuple[Reliability, ...]]


@dataclass(frozen=True, slots=True)
class ByGroup:
    """Predictions and calibration by protected group; of several classes the predicted one is judged."""

    distributions: tuple[Distribution, ...]
    calibrations: tuple[GroupCalibration, ...]
    has_classes: bool
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """What the rows have beside a prediction: weights and clusters (or None), and the confidence of intervals."""

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
    """Summarise the predictions of each group; `edges` are the histogram's, and its ends take what is beyond them.

    ``order`` are the rows by increasing prediction, where they are known.

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
    """Calibration of each group, in ten bins of about equal weight by increasing prediction; equal ones share a bin.

    The slope that :func:`setsquare.auditing.comparison.calibration.calibration` adds would be a fit for each group.

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
    """Smallest of some increasing values that at least a share of the weight does not exceed."""
    reached = np.cumsum(share)
    places = np.searchsorted(reached, np.asarray(QUANTILES) * reached[-1] * (1.0 - 1e-12))
    return tuple(values[places].tolist())


@dataclass(frozen=True, slots=True)
class PredictedRows:
    """Predictions of each model for the same rows, and what is known of these rows.

    Attributes
    ----------
    values : dict of name to ndarray of shape (n,) or (n, K)
        Empty where units of a layer were audited: they are no predictions.
    family : Family
    classes : tuple of str
        Names of the K classes.
    protected : table or None
    outcome : ndarray of shape (n,) or None
    sample : Sample
    keep : boolean ndarray or None
        Rows of `protected` that take part.
    n_dropped : int
        Rows without a prediction, an outcome or a weight.
    """

    values: dict[str, Array]
    family: Family
    classes: tuple[str, ...]
    protected: Table | None
    outcome: Array | None
    sample: Sample
    keep: BoolArray | None = None
    n_dropped: int = 0

    def weighted(self) -> PredictedRows:
        """The rows that have a weight."""
        weight, cluster = self.sample.weight, self.sample.cluster
        if weight is None or bool((keep := weight > 0.0).all()):
            return self
        return replace(
            self,
            values={name: values[keep] for name, values in self.values.items()},
            outcome=None if self.outcome is None else self.outcome[keep],
            sample=replace(self.sample, weight=weight[keep], cluster=None if cluster is None else cluster[keep]),
            keep=keep,
            n_dropped=int((~keep).sum()),
        )


def describe_groups(rows: PredictedRows) -> ByGroup:
    """Summarise the predictions, and the calibration where there is an outcome, by each protected column."""
    if rows.protected is None or not rows.values:
        return ByGroup((), (), rows.family.is_vector, ())
    notes: list[Note] = []
    if rows.n_dropped:
        text = "{count:,} rows without a prediction, an outcome or a weight are left out."
        notes.append(Note("rows-left-out", text, count=rows.n_dropped))
    groups = group_rows(rows.protected, rows.keep)
    found = [
        one
        for response, values in _responses(rows, notes)
        for one in _distributions(rows, groups, response, values, notes)
    ]
    return ByGroup(tuple(found), _calibrations(rows), rows.family.is_vector, tuple(dict.fromkeys(notes)))


def _responses(rows: PredictedRows, notes: list[Note]) -> list[tuple[str, dict[str, Array]]]:
    """One set of predictions, or one for each class."""
    if not rows.family.is_vector:
        return [("", rows.values)]
    first = next(iter(rows.values.values()))
    names = rows.classes or tuple(map(str, range(first.shape[1])))
    shown = np.sort(np.argsort(-first.mean(axis=0), kind="stable")[:MOST_CLASSES])
    if len(shown) < len(names):
        text = "The {shown} most frequent of {count} classes are shown."
        notes.append(Note("classes-not-shown", text, shown=len(shown), count=len(names)))
    return [(names[k], {side: values[:, k] for side, values in rows.values.items()}) for k in shown]


def _distributions(
    rows: PredictedRows, groups: tuple[Groups, ...], response: str, values: dict[str, Array], notes: list[Note]
) -> list[Distribution]:
    edges, beyond = histogram_edges(tuple(values.values()))
    ends = float(edges[0]), float(edges[-1])
    if beyond:
        of = f" of class {response}" if response else ""
        text = "{count:,} predictions{of} beyond {low:.4g} and {high:.4g} are in the end bins."
        notes.append(Note("beyond-histogram", text, count=beyond, of=of, low=ends[0], high=ends[1]))
    found = []
    orders = {side: np.argsort(v, kind="stable") for side, v in values.items()}
    overall = {side: float(np.average(v, weights=rows.sample.weight)) for side, v in values.items()}
    for one in groups:
        own = {side: spreads(v, one, edges, rows.sample, orders[side]) for side, v in values.items()}
        found.append(Distribution(one.column, response, one.labels, one.centres, ends, overall, own))
        if one.n_pooled:
            text = "The {count} smallest levels of {column} are shown together."
            notes.append(Note("levels-pooled", text, count=one.n_pooled, column=one.column))
    return found


def _calibrations(rows: PredictedRows) -> tuple[GroupCalibration, ...]:
    """Calibration by group, with quarters of continuous columns: a group must hold enough rows for a curve."""
    if rows.outcome is None or rows.protected is None:
        return ()
    pairs = {side: _judged(rows.outcome, values) for side, values in rows.values.items()}
    orders = {side: np.argsort(values, kind="stable") for side, (_, values) in pairs.items()}
    return tuple(
        GroupCalibration(
            groups.column,
            groups.labels,
            {
                side: reliabilities(y, v, groups, rows.family, rows.sample, orders[side])
                for side, (y, v) in pairs.items()
            },
        )
        for groups in group_rows(rows.protected, rows.keep, n_slices=4)
    )


def _judged(y: Array, values: Array) -> tuple[Array, Array]:
    """Outcome and prediction; of several classes, whether the predicted one was right, and its probability."""
    if values.ndim == 1:
        return y, values
    top = values.argmax(axis=1)
    return (y == top).astype(np.float64), values[np.arange(len(y)), top]
