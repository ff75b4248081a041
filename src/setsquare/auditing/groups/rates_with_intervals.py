"""Numbers of all groups with simultaneous intervals, and summary numbers of each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.auditing.groups.critical_values import critical_value
from setsquare.auditing.groups.intervals import Estimates, difference, ends, ratio, root, single
from setsquare.auditing.groups.partitions import Partition
from setsquare.auditing.groups.rates import Number
from setsquare.notes import Note

#: Numbers as sentences begin with them.
WORDS = {"tpr": "TPR", "fpr": "FPR", "ppv": "PPV", "npv": "NPV", "auc": "AUC"}
WORDS |= {"ratio": "The ratio to the reference group", "impact_ratio": "The impact ratio"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A number with the ends of its interval, (K,) each; NaN where there is none."""

    value: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary number of one partition, with its interval.

    ``mean_difference``, ``demographic_parity_difference``, ``demographic_parity_ratio`` (smallest selection rate over
    the largest) or ``equalized_odds_difference`` (the larger of the largest differences in TPR and FPR), as fairlearn
    defines them.
    """

    source: str
    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measures:
    """Numbers by name, in the order of partitions and groups; summaries; notes."""

    columns: Mapping[str, Measured]
    summaries: tuple[Summary, ...]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions of groups: offset of each partition, which are shown, and each group's reference."""

    starts: IntArray
    shown: BoolArray
    reference: IntArray

    def pairs(self, known: BoolArray, s: int) -> tuple[IntArray, IntArray]:
        """All pairs of groups of one partition that are shown and known."""
        here = np.arange(self.starts[s], self.starts[s + 1])
        here = here[(known & self.shown)[here]]
        both = np.array(list(combinations(here.tolist(), 2)), dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]


def measure_numbers(
    numbers: Mapping[str, Number],
    partitions: Sequence[Partition],
    *,
    confidence: float = 0.95,
    rng: np.random.Generator,
    ratios: bool = True,
) -> Measures:
    """Numbers of every group with intervals that hold for all groups at once, number by number.

    Parameters
    ----------
    numbers : mapping of str to Number
        See :func:`count_numbers`.
    partitions : sequence of Partition
    confidence : float
        Probability that the intervals of one number hold for all groups of all partitions.
    rng : numpy.random.Generator
    ratios : bool
        Whether means have ratios, as they do if no prediction is negative.

    Examples
    --------
    >>> from setsquare.auditing.groups.rates import Rows, count_numbers
    >>> from setsquare.auditing.groups.partitions import partition_rows
    >>> rng = np.random.default_rng(0)
    >>> group = np.repeat(["a", "b"], [300, 700])
    >>> hired = (rng.random(1000) < np.where(group == "a", 0.2, 0.5)).astype(float)
    >>> groups = partition_rows(group)
    >>> found = measure_numbers(count_numbers(Rows(hired, hired), groups), groups, rng=rng)
    >>> ratio = found.columns["impact_ratio"]
    >>> [round(float(x[0]), 2) for x in (ratio.value, ratio.low, ratio.high)]
    [0.4, 0.31, 0.51]
    """
    starts = np.concatenate([[0], np.cumsum([len(part.labels) for part in partitions])])
    reference = np.concatenate(
        [np.full(len(part.labels), part.reference + start) for part, start in zip(partitions, starts[:-1], strict=True)]
    )
    layout = _Layout(starts, np.concatenate([part.shown for part in partitions]), reference)
    columns = _columns(numbers, layout, confidence, rng, ratios)
    summaries = _summaries(numbers, layout, partitions, confidence, rng, columns)
    return Measures(columns, summaries, _note_undefined(numbers, columns, layout, partitions))


def _columns(
    numbers: Mapping[str, Number], layout: _Layout, confidence: float, rng: np.random.Generator, ratios: bool
) -> dict[str, Measured]:
    found = {}
    for name, number in numbers.items():
        found[name] = _own(number.estimates, layout, confidence, rng)
        if name in ("mean", "selection_rate"):
            gap, quotient = ("difference", "ratio") if name == "mean" else ("selection_difference", "impact_ratio")
            found[gap] = _contrast(number.estimates, layout, confidence, rng, log=False)
            if ratios or name == "selection_rate":
                found[quotient] = _contrast(number.estimates, layout, confidence, rng, log=True)
            else:
                found[quotient] = Measured(*(np.full(len(layout.shown), np.nan) for _ in range(3)))
    if "calibration" in numbers and numbers["outcome"].estimates.is_rate and numbers["mean"].estimates.is_rate:
        found["calibration"] = _calibration(numbers, layout, confidence, rng)
    return found


def _own(numbers: Estimates, layout: _Layout, confidence: float, rng: np.random.Generator) -> Measured:
    used = np.flatnonzero(layout.shown & numbers.is_known)
    c = critical_value(numbers.covariance, used, None, confidence, rng)
    return _masked(layout, numbers.value, *single(numbers, c))


def _contrast(
    numbers: Estimates, layout: _Layout, confidence: float, rng: np.random.Generator, *, log: bool
) -> Measured:
    """Differences or ratios to the reference group of each partition; the reference itself has 0 or 1."""
    every, to = np.arange(len(layout.shown)), layout.reference
    used = every[layout.shown & layout.shown[to] & numbers.is_known & numbers.is_known[to] & (every != to)]
    c = critical_value(_log(numbers, to) if log else numbers.covariance, used, to[used], confidence, rng)
    value, low, high = (ratio if log else difference)(numbers, c, every, to)
    value = np.where(layout.shown[to], value, np.nan)
    own = (every == to) & np.isfinite(value)
    ends = (np.where(own, value, np.where(np.isfinite(value), end, np.nan)) for end in (low, high))
    return _masked(layout, value, *ends)


def _calibration(
    numbers: Mapping[str, Number], layout: _Layout, confidence: float, rng: np.random.Generator
) -> Measured:
    """Mean outcome minus mean prediction, from the intervals of the two: a group without positives is not certain."""
    y, s, gap = (numbers[name].estimates for name in ("outcome", "mean", "calibration"))
    used = np.flatnonzero(layout.shown & y.is_known & s.is_known)
    c = critical_value(gap.covariance, used, None, confidence, rng)
    (y_low, y_high), (s_low, s_high) = ends(y, c), ends(s, c)
    with np.errstate(all="ignore"):
        shared = 0.5 * (y.error**2 + s.error**2 - gap.error**2)  # covariance of the two means
        rho = np.nan_to_num(shared / (y.error * s.error), posinf=0.0, neginf=0.0)
    down, up = root(y.value - y_low, s_high - s.value, rho), root(y_high - y.value, s.value - s_low, rho)
    return _masked(layout, gap.value, gap.value - down, gap.value + up)


def _masked(layout: _Layout, *parts: Array) -> Measured:
    return Measured(*(np.where(layout.shown, part, np.nan) for part in parts))


def _log(numbers: Estimates, reference: IntArray | None = None) -> Array:
    """Covariance of the logarithms.

    A reference counts as larger by its standard error. All ratios have it in common: if its variance is overestimated
    because it is too small by chance, they seem more alike than they are, and the critical value is too small.
    """
    value = numbers.value.copy()
    if reference is not None:
        here = np.unique(reference)
        value[here] += np.where(value[here] > 0.0, numbers.error[here], 0.0)
    with np.errstate(all="ignore"):
        scale = np.where(value > 0.0, 1.0 / value, 0.0)
    return np.asarray(numbers.covariance * scale * scale[:, None])


def _summaries(
    numbers: Mapping[str, Number],
    layout: _Layout,
    partitions: Sequence[Partition],
    confidence: float,
    rng: np.random.Generator,
    columns: dict[str, Measured],
) -> tuple[Summary, ...]:
    """Summaries from simultaneous intervals of all pairs; the ratio to the highest rate is added to the columns."""
    every = range(len(partitions))
    found = []
    gaps = _pairs(numbers["mean"].estimates, layout, every, confidence, rng)
    found += [_largest("mean_difference", partitions[s].source, [gaps[s]]) for s in every]
    if "selection_rate" in numbers:
        rates = numbers["selection_rate"].estimates
        gaps = _pairs(rates, layout, every, confidence, rng)
        name = "demographic_parity_difference"
        found += [_largest(name, partitions[s].source, [gaps[s]]) for s in every]
        columns["impact_ratio_highest"], ratios = _to_highest(rates, layout, partitions, confidence, rng)
        found += ratios
    if "tpr" in numbers:
        half = 0.5 + 0.5 * confidence  # the error is shared by the two rates
        both = [_pairs(numbers[name].estimates, layout, every, half, rng) for name in ("tpr", "fpr")]
        name = "equalized_odds_difference"
        found += [_largest(name, partitions[s].source, [gaps[s] for gaps in both]) for s in every]
    return tuple(found)


def _pairs(
    numbers: Estimates, layout: _Layout, every: range, confidence: float, rng: np.random.Generator
) -> list[tuple[Array, Array, Array]]:
    """Differences of all pairs of groups within each partition, with simultaneous intervals."""
    pairs = [layout.pairs(numbers.is_known, s) for s in every]
    i, j = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    c = critical_value(numbers.covariance, i, j, confidence, rng)
    return [difference(numbers, c, *pair) for pair in pairs]


def _largest(name: str, source: str, parts: Sequence[tuple[Array, Array, Array]]) -> Summary:
    """Largest absolute difference of several sets of pairs."""
    value, low, high = (np.concatenate([part[k] for part in parts]) for k in range(3))
    if not len(value) or any(not len(part[0]) for part in parts):
        return Summary(source, name, *3 * (float("nan"),))
    bottom = np.maximum(np.maximum(low, -high), 0.0)
    top = np.maximum(np.abs(low), np.abs(high))
    return Summary(source, name, float(np.abs(value).max()), float(bottom.max()), float(top.max()))


def _to_highest(
    rates: Estimates,
    layout: _Layout,
    partitions: Sequence[Partition],
    confidence: float,
    rng: np.random.Generator,
) -> tuple[Measured, list[Summary]]:
    """Each rate over the highest of its partition, and the smallest of these ratios.

    The ratio to the highest rate is the smallest ratio to any group (at most 1), so simultaneous intervals of all
    pairs bound it whichever group is the highest.
    """
    pairs = [layout.pairs(rates.is_known, s) for s in range(len(partitions))]
    i, j = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    c = critical_value(_log(rates), i, j, confidence, rng)
    i, j = np.concatenate([i, j]), np.concatenate([j, i])
    _, low, high = ratio(rates, c, i, j)
    bottom, top, value = (np.where(layout.shown & rates.is_known, 1.0, np.nan) for _ in range(3))
    np.fmin.at(bottom, i, low)
    np.fmin.at(top, i, high)
    found = []
    for s, part in enumerate(partitions):
        here = np.arange(layout.starts[s], layout.starts[s + 1])
        here = here[(layout.shown & rates.is_known)[here]]
        highest = rates.value[here].max(initial=0.0)
        value[here] = rates.value[here] / highest if highest > 0.0 else np.nan
        ends = (bottom[here].min(), top[here].min()) if len(here) > 1 and highest > 0.0 else (np.nan, np.nan)
        least = float(value[here].min()) if len(here) > 1 else float("nan")
        found.append(Summary(part.source, "demographic_parity_ratio", least, *map(float, ends)))
    defined = np.isfinite(value)
    return Measured(value, np.where(defined, bottom, np.nan), np.where(defined, top, np.nan)), found


def _note_undefined(
    numbers: Mapping[str, Number], columns: Mapping[str, Measured], layout: _Layout, partitions: Sequence[Partition]
) -> tuple[Note, ...]:
    """Notes on numbers that are undefined in some group."""
    names = [f"{part.source}: {name}" for part in partitions for name in part.labels]
    notes = []
    for number in numbers.values():
        if number.undefined and (missing := layout.shown & ~np.isfinite(number.estimates.value)).any():
            text = "{number} is undefined in groups with {reason}: {groups}."
            fields = {
                "number": WORDS.get(number.name, number.name),
                "reason": number.undefined,
                "groups": _listed(names, missing),
            }
            notes.append(Note("undefined-number", text, severity="caution", **fields))
    decided = "selection_rate" in numbers and np.array_equal(
        numbers["mean"].estimates.value, numbers["selection_rate"].estimates.value, equal_nan=True
    )
    for name in ("impact_ratio",) if decided else ("ratio", "impact_ratio"):
        if name in columns and (missing := layout.shown & ~np.isfinite(columns[name].value)).any():
            text = "{number} is undefined where the reference group has a {value} of 0 or too few rows: {groups}."
            fields = {"number": WORDS[name], "value": "mean" if name == "ratio" else "rate"}
            fields["groups"] = _listed(names, missing)
            notes.append(Note("undefined-ratio", text, severity="caution", **fields))
    return tuple(notes)


def note_doubtful(numbers: Mapping[str, Number], partitions: Sequence[Partition]) -> tuple[Note, ...]:
    """Note means on which a few rows decide, with the groups."""
    names = [f"{part.title}: {name}" for part in partitions for name in part.labels]
    shown, notes = np.concatenate([part.shown for part in partitions]), []
    for name, words in (("mean", "mean prediction"), ("outcome", "mean outcome")):
        found = numbers[name].estimates.is_doubtful if name in numbers else None
        if found is not None and (found & shown).any():
            text = "A few extreme rows decide the {number} of {groups}: its intervals can be too short."
            groups = "all groups" if (found | ~shown).all() else _listed(names, found & shown)
            notes.append(Note("few-rows-decide", text, severity="warning", number=words, groups=groups))
    return tuple(notes)


def _listed(names: Sequence[str], chosen: BoolArray) -> str:
    found = [names[k] for k in np.flatnonzero(chosen).tolist()]
    return ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")
