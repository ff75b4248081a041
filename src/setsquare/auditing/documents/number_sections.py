"""Section with the numbers of each group: means, rates, error rates, and their summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from setsquare.auditing.documents.sections import references_of
from setsquare.auditing.groups.standards import DISCLAIMER
from setsquare.document import Section, section, table
from setsquare.document.document import Form
from setsquare.document.formats import joined, percent
from setsquare.notes import Note, Option

if TYPE_CHECKING:
    from setsquare.auditing.documents.sections import Audits
    from setsquare.auditing.groups.result import GroupNumbers
    from setsquare.auditing.groups.standards import StandardTable

#: Numbers in tables, by what they are about, with their headings.
TABLES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Mean predictions by group", (("mean", "mean"), ("difference", "difference"), ("ratio", "ratio"))),
    (
        "Decisions by group",
        (
            ("selection_rate", "selection rate"),
            ("impact_ratio", "impact ratio"),
            ("impact_ratio_highest", "ratio to the highest rate"),
        ),
    ),
    (
        "Error rates by group",
        (("tpr", "TPR"), ("fpr", "FPR"), ("ppv", "PPV"), ("npv", "NPV"), ("accuracy", "accuracy")),
    ),
    (
        "Outcomes by group",
        (("outcome", "mean outcome"), ("calibration", "outcome minus prediction"), ("auc", "AUC")),
    ),
)
#: First numbers of the tables that terminals and notebooks show.
IN_BRIEF = ("selection_rate",)
SUMMARIES = {
    "mean_difference": "Largest difference in means",
    "demographic_parity_difference": "Demographic parity difference",
    "demographic_parity_ratio": "Demographic parity ratio",
    "equalized_odds_difference": "Equalized odds difference",
}


#: What the error rates are.
RATES = (
    "TPR and FPR are the shares selected among rows with a positive and with a negative outcome. PPV is the share of "
    "positive outcomes among rows that are selected, NPV that of negative ones among the others."
)


def number_section(audits: Audits) -> Section | None:
    """Numbers of each group with their intervals; shown in brief if there are decisions."""
    found = {name: audit.numbers for name, audit in audits.items() if audit.numbers is not None}
    if not found:
        return None
    first = next(iter(found.values()))
    tables = [table for caption, columns in TABLES for table in _numbers(caption, columns, found)]
    tables += [table for caption, columns in TABLES for table in _numbers(caption, columns, found, cells=True)]
    tables.append(_summaries(found))
    tables += [table for name, one in found.items() if one.standard for table in _filed(one, one.standard, name)]
    references = "; ".join(f"{_columns(first)[g.source]}: {g.name}" for g in first.groups if g.is_reference)
    chosen = f"A row counts as selected if {first.selected}. " if first.selected else ""
    text = [
        f"{chosen}Differences and ratios are to the reference group ({references}). Intervals of one number hold for "
        f"all groups at once with {percent(first.confidence)} confidence."
    ]
    text += [RATES] if "tpr" in first.numbers else []
    notes = _note_references(audits)
    notes += list(dict.fromkeys(note for one in found.values() for note in (*one.notes, *one.measures.notes)))
    notes += [note for one in found.values() if one.standard for note in one.standard.notes]
    decided = any("selection_rate" in one.numbers for one in found.values())
    title = "Numbers by protected group"
    return section("numbers", title, text=text, notes=notes, tables=tables, detail=not decided)


def _numbers(
    caption: str, columns: Sequence[tuple[str, str]], found: dict[str, GroupNumbers], *, cells: bool = False
) -> list[dict[str, Any]]:
    """A table of the groups of single columns, or of the cells of several."""
    first = next(iter(found.values()))
    crossed = {part.source for part in first.partitions if part.parts}
    used = [(name, title) for name, title in columns if name in first.measures.columns]
    if not used or (used[0][0] == "mean" and _are_decisions(first)):
        return []
    rows, columns_of = [], _columns(first)
    for k, group in enumerate(first.groups):
        if (group.source in crossed) == cells:
            for model, one in found.items():
                label = f"{columns_of[group.source]}: {group.name}"
                rows.append([label, model, group.n, *(_cell(one, name, k) for name, _ in used)])
    kinds = [("text", "group", "model"), ("count", "rows"), ("interval", *(title for _, title in used))]
    name = f"{caption} and combination" if cells else caption
    form: Form = "folded" if cells else "grid"
    return [table(name, kinds, rows, detail=cells or used[0][0] not in IN_BRIEF, form=form)]


def _note_references(audits: Audits) -> list[Note]:
    """Note columns whose numbers by group are relative to another group than their effects."""
    numbers = [group for audit in audits.values() if audit.numbers is not None for group in audit.numbers.groups]
    largest = {group.source: group.name for group in numbers if group.is_reference}
    plain = {name: text.replace(", ", ",") for name, text in largest.items()}  # as cells are written in effects
    names = [name for name, level in references_of(audits).items() if plain.get(name, level) != level]
    if not names:
        return []
    text = (
        "These numbers are relative to the largest group, the effects below to another one: {columns}. To use one "
        "reference group for both, {reference:pass}."
    )
    listed = joined([f"{name} ({largest[name]} and {references_of(audits)[name]})" for name in names])
    return [Note("two-references", text, severity="info", columns=listed, reference=Option("reference"))]


def _are_decisions(numbers: GroupNumbers) -> bool:
    """Whether the predictions are the decisions themselves, so that means are selection rates."""
    rate, mean = numbers.numbers.get("selection_rate"), numbers.numbers["mean"]
    return rate is not None and bool(np.array_equal(rate.estimates.value, mean.estimates.value, equal_nan=True))


def _columns(numbers: GroupNumbers) -> dict[str, str]:
    """Names of the sources as readers see them: ``sex and race`` for combinations of both."""
    return {part.source: part.title for part in numbers.partitions}


def _cell(numbers: GroupNumbers, name: str, k: int) -> Any:
    one = numbers.measures.columns[name]
    return _known(float(one.value[k]), float(one.low[k]), float(one.high[k]))


def _summaries(found: dict[str, GroupNumbers]) -> dict[str, Any]:
    """One row per column (and model), one summary number beside the other."""
    rows = []
    for source, words in _columns(next(iter(found.values()))).items():
        for model, numbers in found.items():
            own = {one.name: one for one in numbers.measures.summaries if one.source == source}
            if _are_decisions(numbers):
                own.pop("mean_difference")
            cells = [own.get(name) for name in SUMMARIES]
            rows.append(
                [words, model, *(None if one is None else _known(one.value, one.low, one.high) for one in cells)]
            )
    return table("Summary by column", [("text", "column", "model"), ("interval", *SUMMARIES.values())], rows)


def _filed(numbers: GroupNumbers, standard: StandardTable, model: str) -> list[dict[str, Any]]:
    """Tables in the form that is filed: one for each column, one for their combinations."""
    name = {"ll144": "Local Law 144", "four-fifths": "Four-fifths rule"}[standard.standard]
    selected = "selected" if standard.rate == "selection_rate" else "above the median"
    tables = []
    for source, words in _columns(numbers).items():
        kinds = [("text", words), ("count", "applicants", selected), ("number", standard.rate.replace("_", " "))]
        kinds += [("interval", "impact ratio"), ("text", "below four fifths")]
        rows = [
            [row.group, row.n, row.selected, row.rate, _known(row.impact_ratio, row.low, row.high), _yes(row.is_below)]
            for row in standard.rows
            if row.source == source
        ]
        tables.append(table(f"{name}{f' ({model})' if model else ''}: {words}. {DISCLAIMER}", kinds, rows))
    return tables


def _known(value: float, low: float, high: float) -> list[float | None] | None:
    """An interval; without ends where a group is compared with itself."""
    return None if value != value else [value, None, None] if low == value == high else [value, low, high]


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"
