"""Tables of two standards: the four-fifths rule and New York City's Local Law 144. This is not legal advice.

Sources: Uniform Guidelines on Employee Selection Procedures, 29 CFR 1607.4 D (1978); New York City Administrative Code
20-870 to 20-874 (Local Law 144 of 2021) and Rules of the City of New York, title 6, 5-300 to 5-304 (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from setsquare._typing import Array, IntArray, Table
from setsquare.auditing.groups.partitions import MIN_GROUP, Partition
from setsquare.auditing.groups.rates import Rows
from setsquare.auditing.groups.result import GroupNumbers
from setsquare.errors import InputError
from setsquare.notes import Note, Option
from setsquare.tables.frame import to_frame
from setsquare.tables.validation import check_choice

STANDARDS = ("four-fifths", "ll144")
#: Ratio to the highest selection rate below which the four-fifths rule sees evidence of adverse impact.
FOUR_FIFTHS = 0.8
#: Share of the rows below which Local Law 144 allows a category to be left out, if that is stated.
SMALL_SHARE = 0.02
SOURCES = {
    "four-fifths": "Uniform Guidelines on Employee Selection Procedures, 29 CFR 1607.4 D.",
    "ll144": "New York City Local Law 144 of 2021; 6 RCNY 5-300 to 5-304.",
}
DISCLAIMER = "This table is not legal advice."


@dataclass(frozen=True, slots=True)
class StandardRow:
    """One group: rows, selected rows (or rows above the median), their rate and its ratio to the highest rate.

    A group that is left out has no ratio; one with too few rows (``min_group=``) has no rate either.
    """

    source: str
    group: str
    n: int
    selected: int | None
    rate: float
    impact_ratio: float
    low: float
    high: float
    is_left_out: bool = False
    is_below: bool | None = None


@dataclass(frozen=True, slots=True)
class StandardTable:
    """Table in the form of a standard.

    Attributes
    ----------
    standard : {"four-fifths", "ll144"}
    rate : str
        ``selection_rate``, or ``scoring_rate`` (share of scores above the median of all rows).
    rows : tuple of StandardRow
    n_unknown : tuple of (str, int)
        Rows without a group, by column.
    notes : tuple of Note
    backend : str
    """

    standard: str
    rate: str
    rows: tuple[StandardRow, ...]
    n_unknown: tuple[tuple[str, int], ...]
    notes: tuple[Note, ...]
    backend: str = "pandas"

    def columns(self) -> dict[str, list[Any]]:
        """Columns of the table as plain lists."""
        named = {
            "source": "source",
            "group": "group",
            "n": "n",
            "selected" if self.rate == "selection_rate" else "above_median": "selected",
            self.rate: "rate",
            "impact_ratio": "impact_ratio",
            "impact_ratio_low": "low",
            "impact_ratio_high": "high",
        }
        if self.standard == "four-fifths":
            named["below_four_fifths"] = "is_below"
        return {name: [getattr(row, field) for row in self.rows] for name, field in named.items()}

    def table(self) -> Table:
        """The table as a dataframe; a group that was left out has no impact ratio."""
        return to_frame(self.columns(), self.backend)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        columns = self.columns()
        return {
            "standard": self.standard,
            "source": SOURCES[self.standard],
            "rows": [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)],
            "unknown": dict(self.n_unknown),
            "notes": list(map(str, self.notes)),
        }


def standard_rows(rows: Rows, standard: str) -> tuple[Rows, str]:
    """Rows with the decisions that a standard is about, and the name of their rate.

    Local Law 144 takes decisions, or else scores above the median of all rows; the four-fifths rule needs decisions.

    Examples
    --------
    >>> found, rate = standard_rows(Rows(np.array([0.1, 0.4, 0.6, 0.9])), "ll144")
    >>> found.decision.tolist(), rate
    ([0.0, 0.0, 1.0, 1.0], 'scoring_rate')
    """
    check_choice("standard", standard, STANDARDS)
    if rows.decision is not None:
        return rows, "selection_rate"
    if standard == "four-fifths":
        raise InputError("The four-fifths rule compares selection rates: pass threshold= or decisions=.")
    above = (rows.score > _median(rows.score, rows.weight)).astype(np.float64)
    return replace(rows, decision=above), "scoring_rate"


def keep_shares(partitions: Sequence[Partition], standard: str) -> tuple[Partition, ...]:
    """Partitions without the groups that a standard allows to leave out."""
    if standard != "ll144":
        return tuple(partitions)
    kept = []
    for part in partitions:
        share = part.counts / max(len(part.codes), 1)
        kept.append(replace(part, shown=part.shown & (share >= SMALL_SHARE)))
    return tuple(kept)


def fill_standard(
    numbers: GroupNumbers,
    standard: str,
    rate: str,
    unknown: tuple[tuple[str, int], ...] = (),
    min_group: int = MIN_GROUP,
) -> StandardTable:
    """Fill the table of a standard from numbers of :func:`standard_rows` and :func:`keep_shares`.

    ``unknown`` has the rows without a group, by column; groups with fewer than ``min_group`` rows have no numbers.
    """
    ratios = numbers.measures.columns["impact_ratio_highest"]
    rates = numbers.numbers["selection_rate"].estimates.value
    found = []
    for k, group in enumerate(numbers.groups):
        is_known = group.n >= min_group and bool(np.isfinite(rates[k]))
        own = float(rates[k]) if is_known else float("nan")
        selected = round(own * group.weight) if is_known else None
        ratio, low, high = (float(part[k]) for part in (ratios.value, ratios.low, ratios.high))
        below = None if standard != "four-fifths" or np.isnan(ratio) else ratio < FOUR_FIFTHS
        row = (group.source, group.name, group.n, selected, own, ratio, low, high, not group.is_shown, below)
        found.append(StandardRow(*row))
    return StandardTable(standard, rate, tuple(found), unknown, _notes(standard, rate, found, unknown), numbers.backend)


def _notes(
    standard: str, rate: str, rows: Sequence[StandardRow], unknown: Sequence[tuple[str, int]]
) -> tuple[Note, ...]:
    notes = [Note("standard-source", "Standard: {source} {more}", source=SOURCES[standard], more=DISCLAIMER)]
    listed = ", ".join(f"{source} {count}" for source, count in unknown)
    absent = Note("unknown-groups", "Rows of unknown category, left out of the table: {rows}.", rows=listed)
    if standard != "ll144":
        notes += [absent] if any(count for _, count in unknown) else []
        text = "A selection rate below {limit:.0%} of the highest one is generally regarded as adverse impact."
        return (*notes, Note("four-fifths-ratio", text, limit=FOUR_FIFTHS))
    text = "The impact ratio is a group's {rate} divided by the highest one. The law sets no threshold for it."
    notes.append(Note("ll144-ratio", text, rate=rate.replace("_", " ")))
    notes.append(absent)
    gone = [row for row in rows if row.is_left_out]
    if stated := [f"{row.source}: {row.group} ({row.n} rows, rate {row.rate:.3f})" for row in gone if row.rate >= 0.0]:
        text = "No impact ratio is given for groups with fewer than {limit} % of the rows: {groups}."
        fields = {"limit": f"{100 * SMALL_SHARE:g}", "groups": "; ".join(stated)}
        notes.append(Note("groups-left-out", text, severity="caution", **fields))
    if any(np.isnan(row.rate) for row in gone):
        text = "The law asks for the rates of all groups; those of the smallest are masked here: {min_group:pass}."
        notes.append(Note("masked-rates", text, severity="caution", min_group=Option("min_group", 1)))
    return tuple(notes)


def _median(score: Array, weight: Array | None) -> float:
    if weight is None:
        return float(np.median(score))
    order: IntArray = np.argsort(score, kind="stable")
    reached = np.cumsum(weight[order])
    return float(score[order][np.searchsorted(reached, 0.5 * reached[-1])])
