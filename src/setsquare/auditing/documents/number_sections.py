"""Section with the numbers of each group: means, rates, error rates, and their summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from setsquare.auditing.groups.standards import DISCLAIMER
from setsquare.document import Section, section, table
from setsquare.document.document import Form
from setsquare.document.formats import percent

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


def number_section(audits: Audits) -> Section | None:
    """Numbers of each group with their intervals; shown in brief if there are decisions."""
    found = {name: audit.numbers for name, audit in audits.items() if audit.numbers is not None}
    if not found:
        return None
    first = next(iter(found.values()))
    tables = [table for caption, columns in TABLES for table in _numbers(caption, columns, found)]
    tables += [table for caption, columns in TABLES for table in _numbers(caption, columns, found, cells=True)]
    tables += [_summaries(found), *(_filed(one.standard, name) for name, one in found.items() if one.standard)]
    references = "; ".join(f"{group.source}: {group.name}" for group in first.groups if group.is_reference)
    text = [
        f"Differences and ratios are to the reference group ({references}). Intervals of one number hold for all "
        f"groups at once with {percent(first.confidence)} confidence."
    ]
    notes = list(dict.fromkeys(note for one in found.values() for note in (*one.notes, *one.measures.notes)))
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
    if not used:
        return []
    rows = []
    for k, group in enumerate(first.groups):
        if (group.source in crossed) == cells:
            for model, one in found.items():
                rows.append(
                    [f"{group.source}: {group.name}", model, group.n, *(_cell(one, name, k) for name, _ in used)]
                )
    kinds = [("text", "group", "model"), ("count", "rows"), ("interval", *(title for _, title in used))]
    name = f"{caption} and combination" if cells else caption
    form: Form = "folded" if cells else "grid"
    return [table(name, kinds, rows, detail=cells or used[0][0] not in IN_BRIEF, form=form)]


def _cell(numbers: GroupNumbers, name: str, k: int) -> Any:
    one = numbers.measures.columns[name]
    value = float(one.value[k])
    low, high = float(one.low[k]), float(one.high[k])
    ends = [None, None] if low == value == high else [low, high]  # the reference group is compared with itself
    return None if value != value else [value, *ends]


def _summaries(found: dict[str, GroupNumbers]) -> dict[str, Any]:
    rows = [
        [SUMMARIES[one.name], one.source, model, [one.value, one.low, one.high]]
        for model, numbers in found.items()
        for one in numbers.measures.summaries
        if one.value == one.value
    ]
    return table("Summary by column", [("text", "number", "column", "model"), ("interval", "value")], rows)


def _filed(standard: StandardTable, model: str) -> dict[str, Any]:
    columns = standard.columns()
    kinds = [("text", "source", "group"), ("count", "n", list(columns)[3]), ("number", *list(columns)[4:8])]
    kinds += [("text", "below_four_fifths")] if "below_four_fifths" in columns else []
    rows = [
        [{True: "yes", False: "no"}.get(cell, cell) if isinstance(cell, bool) else cell for cell in row]
        for row in zip(*columns.values(), strict=True)
    ]
    name = {"ll144": "Local Law 144", "four-fifths": "Four-fifths rule"}[standard.standard]
    return table(f"{name}{f' ({model})' if model else ''}. {DISCLAIMER}", kinds, rows)
