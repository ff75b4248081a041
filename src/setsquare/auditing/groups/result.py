"""Numbers by group as a result: tables, summaries and the sentence on the two most different groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from setsquare._typing import Array, Table
from setsquare.auditing.groups.partitions import Partition
from setsquare.auditing.groups.rates import Number
from setsquare.auditing.groups.rates_with_intervals import Measures, measure_numbers
from setsquare.notes import Note
from setsquare.tables.frame import to_frame

if TYPE_CHECKING:
    from setsquare.auditing.groups.standards import StandardTable

#: Columns of the table in their order; each is followed by its ``_low`` and ``_high``.
COLUMNS = (
    "mean",
    "difference",
    "ratio",
    "selection_rate",
    "selection_difference",
    "impact_ratio",
    "impact_ratio_highest",
    "tpr",
    "fpr",
    "ppv",
    "npv",
    "accuracy",
    "auc",
    "outcome",
    "calibration",
)
#: Groups with fewer rows are named with their number of rows.
FEW_ROWS = 100


@dataclass(frozen=True, slots=True)
class Group:
    """A group: its source and name, number of rows, sum of weights, and whether it is shown and the reference."""

    source: str
    name: str
    n: int
    weight: float
    is_shown: bool
    is_reference: bool


@dataclass(frozen=True)  # without slots, for a cached property
class GroupNumbers:
    """Numbers of every group; intervals are computed when they are first asked for.

    Attributes
    ----------
    partitions : tuple of Partition
        Without their rows.
    groups : tuple of Group
    numbers : mapping of str to Number
    confidence : float
        Probability that the intervals of one number hold for all groups at once.
    seed : int
        Seed of the critical values.
    backend : str
        Dataframe library of the tables.
    notes : tuple of Note
    is_positive : bool
        Whether no prediction is negative, so that means have ratios.
    is_weighted : bool
        Whether rows have weights.
    standard : StandardTable or None
        The table of a standard, if one was asked for.
    selected : str
        When a row counts as selected, in words; empty without decisions.
    """

    partitions: tuple[Partition, ...]
    groups: tuple[Group, ...]
    numbers: Mapping[str, Number]
    confidence: float
    seed: int
    backend: str
    notes: tuple[Note, ...]
    is_positive: bool
    is_weighted: bool = False
    standard: StandardTable | None = None
    selected: str = ""

    def filed(self, standard: StandardTable) -> GroupNumbers:
        """The same numbers with the table of a standard."""
        return replace(self, standard=standard)

    @cached_property
    def measures(self) -> Measures:
        """Numbers with intervals, and summaries."""
        rng = np.random.default_rng(self.seed)
        return measure_numbers(
            self.numbers, self.partitions, confidence=self.confidence, rng=rng, ratios=self.is_positive
        )

    def table(self) -> Table:
        """One row per group: ``source``, ``group``, ``n``, and each number with ``..._low`` and ``..._high``."""
        return to_frame(self.columns(), self.backend)

    def columns(self) -> dict[str, list[Any]]:
        """Columns of the table as plain lists."""
        found: dict[str, list[Any]] = {
            "source": [group.source for group in self.groups],
            "group": [group.name for group in self.groups],
            "n": [group.n for group in self.groups],
        }
        if self.is_weighted:
            found["weight"] = [group.weight for group in self.groups]
        for name in COLUMNS:
            if name in self.measures.columns:
                one = self.measures.columns[name]
                found[name], found[f"{name}_low"], found[f"{name}_high"] = (
                    part.tolist() for part in (one.value, one.low, one.high)
                )
        return found

    def summary(self) -> Table:
        """One row per summary number and source: ``source``, ``number``, ``value``, ``low``, ``high``."""
        rows = self.measures.summaries
        names = {"source": "source", "number": "name", "value": "value", "low": "low", "high": "high"}
        return to_frame({key: [getattr(row, field) for row in rows] for key, field in names.items()}, self.backend)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: one mapping per group, the summaries, and the table of a standard if one was asked for."""
        columns = self.columns()
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        for row, group in zip(rows, self.groups, strict=True):
            row["is_reference"], row["is_masked"] = group.is_reference, not group.is_shown
        summaries = [
            {"source": s.source, "number": s.name, "value": s.value, "low": s.low, "high": s.high}
            for s in self.measures.summaries
        ]
        filed = {} if self.standard is None else {"standard": self.standard.to_dict()}
        return {"confidence": self.confidence, "groups": rows, "summaries": summaries, **filed}

    def sentence(self, what: str = "Mean prediction", among: Sequence[str] = ()) -> str:
        """Sentence on the two most different groups of a column; empty if no column has two groups.

        With decisions it gives selection rates and their ratio, otherwise means.

        Parameters
        ----------
        what : str
            Name of the mean.
        among : sequence of str
            Columns to choose from; by default all columns, without their intersections.
        """
        rate = self.numbers.get("selection_rate")
        values = (rate or self.numbers["mean"]).estimates.value
        columns = among or [part.source for part in self.partitions if not part.parts]
        extremes = _extremes(self.groups, values, columns)
        if extremes is None:
            return ""
        low, high = (self.groups[k] for k in extremes)
        a, b = (float(values[k]) for k in extremes)
        # A number beside a band, or beside a code, needs a colon, or a word.
        if a == b:
            equal = f"{100 * a:.1f} %" if rate is not None else _short(a, b)
            return f"{'Share selected,' if rate is not None else what} by {low.source}: {equal} in every group."
        is_pair = sum(g.source == low.source for g in self.groups) == 2
        about = [_aside([*([] if is_pair else [word]), *_few(g)]) for g, word in ((low, "lowest"), (high, "highest"))]
        is_code = any(text[-1:].isdigit() for text in (low.name, high.name))
        if rate is None:
            colon = ":" if is_code else ""
            first, second = (f"{g.name}{colon} {_short(x, y)}" for g, x, y in ((low, a, b), (high, b, a)))
            return f"{what} by {low.source}: {first}{about[0]}, {second}{about[1]}."
        group = "" if any(c.isalpha() for c in low.name + high.name) else "group "
        # "of": the shares are of each group, not of those who are selected.
        first, second = f"{100 * a:.1f} % of {group}{low.name}", f"{100 * b:.1f} % of {group}{high.name}"
        least, most = ("lower", "higher") if is_pair else ("lowest", "highest")
        ratio = f" The {least} share is {a / b:.2f} times the {most}." if a > 0.0 else ""
        return f"Share selected, by {low.source}: {first}{about[0]}, {second}{about[1]}.{ratio}"


def _few(group: Group) -> list[str]:
    """Number of rows of a group that is so small that readers need it."""
    return [f"{group.n} rows of data"] if group.n < FEW_ROWS else []


def _aside(words: Sequence[str]) -> str:
    return f" ({'; '.join(words)})" if words else ""


def _extremes(groups: Sequence[Group], values: Array, among: Sequence[str]) -> tuple[int, int] | None:
    """Positions of the smallest and the largest number of the column where they differ most."""
    best: tuple[float, int, int] | None = None
    for source in among:
        here = [k for k, g in enumerate(groups) if g.source == source and g.is_shown and np.isfinite(values[k])]
        if len(here) > 1:
            low, high = min(here, key=values.__getitem__), max(here, key=values.__getitem__)
            gap = float(values[high] - values[low])
            if best is None or gap > best[0]:
                best = gap, low, high
    return None if best is None else best[1:]


def _short(value: float, other: float) -> str:
    """A mean with two decimals, or with as many as tell two means apart."""
    for digits in (2, 3, 4):
        if f"{value:.{digits}f}" != f"{other:.{digits}f}":
            return f"{value:.{digits}f}" if max(abs(value), abs(other)) < 1000.0 else f"{value:.4g}"
    return f"{value:.4g}"
