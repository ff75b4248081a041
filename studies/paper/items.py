"""Every item of the paper in one table: printed, here, on new rows, the verdict, and what shows it."""

from __future__ import annotations

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


def _joint(records: Records) -> list[Row]:
    """Rows that need several records; none without them."""
    try:
        return items_figures.joint(records["fig3"], records["fig-forest"], records["table6"])
    except (KeyError, IndexError):
        return []


def summary(records: Records) -> Table:
    """One row for each item of the paper; an item that was not run, or only in part, says so."""
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
    return Table("Items of the paper", columns, [*rows, *appendix()])
