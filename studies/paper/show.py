"""The experiments on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from setsquare.errors import InputError
from studies.paper import page as page_of_results
from studies.paper.catalogue import ENTRIES, find, run


def catalogue() -> None:
    """Print every table and figure of the paper with its status."""
    table = Table("name", "in the paper", "what", "status")
    for entry in ENTRIES:
        table.add_row(entry.name, entry.label, entry.title, entry.status)
    _console().print(table)


def experiments(names: Sequence[str], folder: Path, *, quick: bool = False, fresh: bool = False) -> None:
    """Run experiments one after the other (all that can be run, by default), and print what they found."""
    console = _console()
    chosen = [find(name) for name in names] or [entry for entry in ENTRIES if entry.module]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    for entry in chosen:
        with Progress(*columns, console=console, transient=True) as progress:
            record, paths = run(entry.name, folder, quick=quick, fresh=fresh, progress=progress)
        record.show(console)
        console.print("Written: " + ", ".join(str(path) for path in paths) + "\n", markup=False)


def page(folder: Path) -> None:
    """Write what a folder holds as one Markdown page beside it: ``studies/results`` becomes ``studies/results.md``."""
    if not any((folder / f"{entry.name}.json").exists() for entry in ENTRIES):
        raise InputError(f"The folder {folder} holds no results: run python -m studies --output {folder} first.")
    path = folder.with_suffix(".md")
    path.write_text(page_of_results.write(folder), encoding="utf-8")
    _console().print(f"Written: {path}", markup=False)


def _console() -> Console:
    """The terminal as it is; wide enough for every table where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=140)
