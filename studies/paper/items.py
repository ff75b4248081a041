"""Every item of the paper in one table: printed, here, on new rows, the verdict, and what shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from statistics import StatisticsError
from typing import TypeAlias

from studies.paper import items_figures, items_tables
from studies.paper.items_proved import OPEN, Row, appendix, theory
from studies.paper.record import Record, Table

Records: TypeAlias = Mapping[str, Record]

SECTIONS: dict[str, tuple[str, Callable[[Record], list[Row]]]] = {
    "table1": ("Table 1", items_tables.table1),
    "fig1": ("Figure 1", items_figures.fig1),
    "table2": ("Table 2", items_tables.table2),
    "fig3": ("Figure 3", items_figures.fig3),
    "table3": ("Table 3", items_tables.table3),
    "table4": ("Table 4", items_tables.table4),
    "movies": ("Movies", items_tables.movies),
    "fig4": ("Figure 4", items_figures.fig4),
    "fig-forest": ("Figure 5", items_figures.forest),
    "table6": ("Table 6", items_tables.table6),
    "fig-sim": ("Figures 7 to 12", items_figures.sim),
    "concepts": ("Appendix C", items_figures.concepts),
    "optimisers": ("Appendix E.2, MDMM", items_tables.optimisers),
}

#: Sections and appendices that items without one in their names belong to.
PLACES = {
    "Definitions": "3.1",
    "Lemma 3": "3.2",
    "Corollary 4": "3.2",
    "Example 2": "3.3",
    "Theorem 5": "3.3",
    "Corollary 6": "3.4",
    "Figure 1": "3",
    "p-values": "4",
    "Table 1": "4.2.1",
    "Table 2": "4.1.1",
    "Figure 3": "4.1.2",
    "Figures 3": "4.1.2",
    "Table 3": "4.1.2",
    "Table 4": "4.2.2",
    "Movies": "4.2.3",
    "Figure 4": "4.3",
    "Caveat": "5",
    "Figure 5": "6",
    "Outlook": "6",
    "Lemma 8": "E.1",
    "Table 5": "F",
    "Table 6": "F.7",
    "Figures 7": "G.1",
}


def place(item: str) -> tuple[int, ...]:
    """Where an item is in the paper: chapter, section, subsection; appendices come after chapters.

    Examples
    --------
    >>> place("Section 4.1.2, methods"), place("Appendix E.2, MDMM"), place("Table 6")
    ((4, 1, 2), (69, 2), (70, 7))
    """
    named = re.match(r"(?:Sections?|Appendix) ([\d.]+|[A-G](?:\.\d)?)", item)
    where = named[1] if named else next(found for name, found in PLACES.items() if item.startswith(name))
    return tuple(int(part) if part.isdigit() else ord(part) for part in where.rstrip(".").split("."))


def _joint(records: Records) -> list[Row]:
    """Rows that need several records; none without them."""
    try:
        return items_figures.joint(records["fig3"], records["fig-forest"], records["table6"])
    except (KeyError, IndexError):
        return []


def summary(records: Records) -> Table:
    """One row for each item, in the order of the paper; an item that was not run, or only in part, says so."""
    rows = theory()
    for name, (item, make) in SECTIONS.items():
        try:
            rows += make(records[name])
        except (KeyError, IndexError, StatisticsError):
            ours = "in part only (a quick run?)" if name in records else "not run"
            rows.append((item, "", ours, "", OPEN, f"`{name}`"))
        if name == "fig-forest":
            rows += _joint(records)
    columns = ("item", "printed", "ours", "held out", "verdict", "shown by")
    return Table("Items of the paper", columns, sorted([*rows, *appendix()], key=lambda row: place(str(row[0]))))
