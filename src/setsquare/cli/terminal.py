"""Results on the terminal: the verdict first, tables that fit, and nothing that a file can make the terminal do."""

from __future__ import annotations

import shlex
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from setsquare.document import Document, Headline
from setsquare.document.formats import TONES, grid_of, headline, tone_name
from setsquare.errors import SetsquareWarning
from setsquare.notes import Note, Option, Surface

#: Prose is not set wider than this, nor tables in a pipe narrower than they are.
PROSE, PIPE = 88, 1000


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
        for note in dict.fromkeys(notes):
            self.say(phrase(note), indent="  ", first="* ")

    def show(self, document: Document) -> None:
        """Print the sections of a document."""
        for part in document.sections:
            self.title(part["title"])
            for paragraph in part["text"]:
                self.say(paragraph)
            for table in part["tables"]:
                self.grid(grid_of(table, clean), table["caption"])
            self.notes(part["notes"])

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

    def verdict(self, each: Headline, *, quiet: bool = False) -> None:
        """Print a verdict, its reason and, if not quiet, the statistics."""
        text = Text(
            "\n".join(textwrap.wrap(clean(headline(asdict(each))), min(PROSE, self.width), break_on_hyphens=False))
        )
        text.highlight_words([each.verdict.upper()], f"bold {colour(each.verdict)}")
        self.print(text, soft_wrap=True)
        if each.statistics and not quiet:
            self.say(each.statistics)


def colour(verdict: str) -> str:
    """Colour of a verdict on a terminal."""
    return TONES[tone_name(verdict)].terminal


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]


@contextmanager
def working(what: str, *, quiet: bool) -> Iterator[Any]:
    """Show on the error stream that something is being done; yields a function that says what."""
    screen = Screen(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(clean(what))
        yield lambda text: progress.update(task, description=clean(text))


@contextmanager
def collected_warnings() -> Iterator[list[Warning]]:
    """Gather the library's warnings; others go their way."""
    found: list[Warning] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SetsquareWarning)
        yield found
    for warning in caught:
        if isinstance(warning.message, SetsquareWarning):
            found.append(warning.message)
        else:
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno, sys.stderr)


_SAME = (
    *("family", "missing", "unseen", "method", "l2", "cluster", "positive", "confidence", "tolerance", "bounds"),
    *("threshold", "decisions", "reference", "standard", "basis", "relax", "evaluation", "expand", "budget", "given"),
)
#: Options of the command line by the argument of Python that they are.
_OPTIONS = {"cv": "folds", **{name: name for name in _SAME}}
_OPTIONS |= {name: name.replace("_", "-") for name in ("min_group", "orthogonal_on", "max_correlation")}


def as_option(option: Option, verb: str = "") -> str:
    """Name an argument as the command line has it.

    Examples
    --------
    >>> as_option(Option("missing", "drop"), "pass"), as_option(Option("family")), as_option(Option("vcov", "HC3"))
    ('pass --missing drop', '--family', "vcov='HC3'")
    """
    if option.name == "categorical":
        return "pass --categorical with its name"
    if option.name not in _OPTIONS:
        return format(option, verb)
    words = str(option.value).replace(" ", "-") if option.name == "orthogonal_on" else str(option.value)
    value = "" if option.value is None else f" {shlex.quote(words)}"
    return f"{verb} --{_OPTIONS[option.name]}{value}".strip()


def as_option_of_fit(option: Option, verb: str = "") -> str:
    """Name an argument that is decided when a model is fitted, for whoever applies the model."""
    return as_option(option, "fit the model with" if verb else "")


def phrase(sentence: str, surface: Surface = as_option) -> str:
    """A note in the words of the command line; other sentences stay as they are."""
    return sentence.phrase(surface) if isinstance(sentence, Note) else str(sentence)


def clean(text: object) -> str:
    r"""Write characters that steer a terminal (escapes, line breaks, changes of direction) as what they are.

    Examples
    --------
    >>> clean("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
