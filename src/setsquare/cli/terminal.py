"""Results on the terminal: the verdict first, tables that fit, and nothing that a file can make the terminal do."""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from setsquare.auditing import AuditResult, Comparison, render
from setsquare.cli.escape import as_options, clean
from setsquare.errors import SetsquareWarning

T = TypeVar("T")
#: Prose is not set wider than this, nor tables in a pipe narrower than they are.
PROSE, PIPE = 88, 1000
_COLOURS = {"leak": "bold red", "no leak found": "bold green"}


class Screen(Console):
    """A console that prints texts as they are."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False, soft_wrap=False)
        if not self.is_terminal:
            self.width = PIPE

    def on_broken_pipe(self) -> NoReturn:
        """Leave it to the caller, which knows the exit code."""
        raise BrokenPipeError

    def say(self, text: str, *, indent: str = "", first: str | None = None) -> None:
        """Print a paragraph; words stay whole."""
        lines = textwrap.wrap(
            clean(text),
            min(PROSE, self.width),
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        self.print("\n".join(lines), soft_wrap=True)

    def title(self, text: str) -> None:
        """Print a headline."""
        self.print(Text(f"\n{clean(text)}", style="bold"))

    def notes(self, notes: Sequence[str]) -> None:
        """Print notes as a list, each once."""
        if notes:
            self.title("Notes")
        for note in dict.fromkeys(notes):
            self.say(as_options(note), indent="  ", first="* ")

    def written(self, paths: Sequence[Path]) -> None:
        """Name the files that were written."""
        if paths:
            self.print("\nWritten: " + ", ".join(clean(str(path)) for path in paths), soft_wrap=True)

    def grid(self, rows: Sequence[Sequence[str]], caption: str = "") -> None:
        """Print a table whose first row is the head; what is too wide goes below, and no word is broken."""
        if caption:
            self.title(caption)
        rows = [[clean(cell) for cell in row] for row in rows]
        widths = _widths(rows)
        if sum(widths) + 2 * len(widths) > self.width:  # intervals go below their estimates
            rows = [[row[0], *(cell.replace(" [", "\n[") for cell in row[1:])] for row in rows]
            widths = _widths(rows)
        widths[0] = min(widths[0], self.width // 2)
        start = 1
        while start < len(widths):
            reach = widths[0] + np.cumsum(np.asarray(widths[start:]) + 2)
            stop = start + max(1, int(np.sum(reach <= self.width)))
            table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
            for j in (0, *range(start, stop)):
                side: Any = "right" if j else "left"
                table.add_column(rows[0][j], justify=side, width=widths[j], no_wrap=True, overflow="ellipsis")
            for row in rows[1:]:
                table.add_row(row[0], *row[start:stop])
            self.print(table)
            start = stop

    def verdict(self, result: AuditResult, name: str = "") -> None:
        """Print verdict and reason."""
        word = str(result.verdict).upper()
        lines = textwrap.wrap(clean(f"{name}{word}. {result.reason}"), min(PROSE, self.width), break_on_hyphens=False)
        text = Text("\n".join(lines))
        text.highlight_words([word], _COLOURS.get(str(result.verdict), "bold yellow"))
        self.print(text, soft_wrap=True)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]


def show_audit(screen: Screen, result: AuditResult) -> None:
    """Print what the verdict of an audit rests on."""
    result = cleaned(result)
    screen.say(render.summary(result))
    for evaluation in result.evaluations:
        screen.title(evaluation.title[0].upper() + evaluation.title[1:])
        if evaluation.effects:
            screen.grid(render.effect_rows(evaluation.effects))
        screen.grid(render.test_rows(evaluation, result.members))
    if result.certificate.columns:
        confidence = f"{100 * result.certificate.confidence:g} %"
        screen.grid(render.bound_rows(result), f"Upper bounds on what is left, with {confidence} confidence")


def show_comparison(screen: Screen, comparison: Comparison, caption: str) -> None:
    """Print predictions side by side."""
    comparison = cleaned(comparison)
    screen.say(render.comparison_summary(comparison))
    rows = render.comparison_rows(comparison)
    # Of a single side the verdict has been told.
    screen.grid(rows if len(comparison.sides) > 1 else [rows[0], *rows[5:]], caption)
    if len(comparison.sides) > 1:
        screen.grid(render.difference_rows(comparison), f"Differences to {comparison.sides[0].name}")


def cleaned(value: T) -> T:
    """Clean every text in a record, however deep."""
    new: Any = value
    if type(value) is str:
        new = clean(str(value))
    elif isinstance(value, tuple):
        new = tuple(map(cleaned, value))
    elif is_dataclass(value) and not isinstance(value, type):
        new = replace(value, **{field.name: cleaned(getattr(value, field.name)) for field in fields(value)})
    return cast(T, new)


@contextmanager
def working(what: str, *, quiet: bool) -> Iterator[Any]:
    """Show on the error stream that something is being done; yields a function that says what."""
    screen = Screen(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=quiet or not screen.is_terminal) as progress:
        task = progress.add_task(clean(what))
        yield lambda text: progress.update(task, description=clean(text))


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Gather the library's warnings as notes; others go their way."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SetsquareWarning)
        yield notes
    for warning in caught:
        if issubclass(warning.category, SetsquareWarning):
            notes.append(str(warning.message))
        else:
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno, sys.stderr)
