"""What an experiment found, as tables with reasons: on screen, as Markdown, and as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from setsquare.document import number, p_value
from setsquare.errors import InputError

#: A number, a sentence, or nothing.
Cell: TypeAlias = str | float | int | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table to be read: the paper's figures, those of its set-up, and the honest ones, side by side.

    Attributes
    ----------
    title : str
    columns : tuple of str
    rows : sequence of tuple
        As many cells as columns: numbers stay numbers, so that files keep all digits.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]

    def shown(self) -> list[list[str]]:
        """Rows as people read them."""
        return [[shown(cell, name) for cell, name in zip(row, self.columns, strict=True)] for row in self.rows]


@dataclass(frozen=True, slots=True)
class Record:
    """What an experiment found.

    Attributes
    ----------
    name, title : str
    tables : tuple of Table
    reasons : tuple of str
        Why figures differ from the printed ones: a sentence or two each.
    data : dict
        Everything else that was measured, for the figure and for files: what JSON can hold.
    missed : tuple of str
        Printed figures that could not be reproduced, each with the cause.
    made : dict
        Commits of the library, dates and processor minutes, see :meth:`studies.paper.cells.Cells.made`.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    reasons: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    missed: tuple[str, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Record:
        """Read ``NAME.json`` as :meth:`write` left it."""
        try:
            whole = json.loads(path.read_text(encoding="utf-8"))
            tables = tuple(
                Table(t["title"], tuple(t["columns"]), [tuple(row) for row in t["rows"]]) for t in whole["tables"]
            )
            reasons, missed = (tuple(whole[key]) for key in ("reasons", "missed"))
            return Record(
                whole["name"], whole["title"], tables, reasons, whole["data"], missed, dict(whole.get("made", {}))
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"{path} is damaged: run python -m studies {path.stem} --fresh again.") from error

    def cell(self, table: int, column: str, **where: Cell) -> Cell:
        """One cell of a table, with all digits: in the first row in which other columns have these values.

        Examples
        --------
        >>> Record("x", "", (Table("", ("data", "corr"), [("a", 0.96543)]),)).cell(0, "corr", data="a")
        0.96543
        """
        found = self.tables[table]
        for row in found.rows:
            values = dict(zip(found.columns, row, strict=True))
            if all(values.get(key) == wanted for key, wanted in where.items()):
                return values[column]
        raise KeyError(column)

    def value(self, table: int, column: str, **where: Cell) -> str:
        """The same cell as it is read."""
        return shown(self.cell(table, column, **where))

    def size(self, table: int, column: str, **where: Cell) -> float:
        """The same cell as a number."""
        return float(str(self.cell(table, column, **where)))

    def show(self, console: Console | None = None) -> None:
        """Print the tables and the reasons."""
        console = console or Console()
        console.print(f"[bold]{self.title}[/bold]")
        for table in self.tables:
            console.print(_drawn(table))
        for reason in (*self.reasons, *(f"Not reproduced: {sentence}" for sentence in self.missed)):
            console.print(f"* {reason}", markup=False)

    def to_markdown(self, image: str | None = None) -> str:
        """The same as a section of a page."""
        parts = [f"## {self.title}"]
        parts += [f"![{self.title}]({image})"] if image else []
        for table in self.tables:
            rows = [list(table.columns), ["---"] * len(table.columns), *table.shown()]
            lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
            parts.append("\n".join([f"**{table.title}**", "", *lines]))
        parts += ["\n".join(f"* {reason}" for reason in self.reasons)] if self.reasons else []
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write ``NAME.json`` with everything, and a CSV file for each table; return the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        tables = [{"title": t.title, "columns": t.columns, "rows": [list(row) for row in t.rows]} for t in self.tables]
        whole = {
            "name": self.name,
            "title": self.title,
            "tables": tables,
            "reasons": self.reasons,
            "missed": self.missed,
            "made": dict(self.made),
            "data": dict(self.data),
        }
        paths = [folder / f"{self.name}.json"]
        paths[0].write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        for k, table in enumerate(self.tables):
            paths.append(folder / (f"{self.name}.csv" if len(self.tables) == 1 else f"{self.name}_{k + 1}.csv"))
            with paths[-1].open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([table.columns, *table.rows])
        return paths


def shown(cell: Cell, column: str = "") -> str:
    """A cell as people read it; a column "p" or "p, ..." holds p-values.

    Examples
    --------
    >>> shown(0.123456), shown(3), shown(None), shown(2.2e-16), shown("yes"), shown(0.0, "p, HC3")
    ('0.123', '3', '', '2.20e-16', 'yes', '<1e-300')
    """
    if cell is None or isinstance(cell, str):
        return cell or ""
    if column == "p" or column.startswith("p, "):
        return p_value(float(cell))
    return str(cell) if isinstance(cell, int) else number(cell)


def _drawn(table: Table) -> RichTable:
    """For the terminal: what repeats from row to row in the first columns is shown once."""
    drawn = RichTable(title=table.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    for j, column in enumerate(table.columns):
        numeric = any(isinstance(row[j], float | int) for row in table.rows)
        drawn.add_column(column, justify="right" if numeric else "left", overflow="fold")
    before: list[str] = []
    for row in table.shown():
        same = 0
        while same < min(len(row) - 1, len(before)) and row[same] == before[same] and not _is_number(row[same]):
            same += 1
        drawn.add_row(*[""] * same, *(escape(cell) for cell in row[same:]))
        before = row
    return drawn


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
