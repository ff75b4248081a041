"""One look for all figures: colours that colour-blind readers can tell apart, sizes for a page."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.requirements import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, black last.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Inches: one column of a two-column page, and both.
COLUMN, PAGE = 3.4, 7.0
_LOOK: dict[str, Any] = {
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
}


def subplots(rows: int = 1, columns: int = 1, width: float = PAGE, height: float = 3.0, **options: Any) -> Any:
    """A figure and its axes (rows, columns)."""
    require("Figures need", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure, fine enough for print."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)
    return path


def look() -> AbstractContextManager[None]:
    """Context in which figures are drawn."""
    require("Figures need", "matplotlib")
    import matplotlib

    context: Any = matplotlib.rc_context
    common: AbstractContextManager[None] = context(_LOOK)
    return common
