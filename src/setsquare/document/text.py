"""A document as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from setsquare.document.formats import grid_of, headline, visible

WIDTH = 100


def render(document: Mapping[str, Any]) -> str:
    """Write the document as text."""
    return "\n".join(_lines(document)).lstrip("\n") + "\n"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    if document["title"]:
        yield visible(document["title"])
    for each in document["verdicts"]:
        yield textwrap.fill(visible(headline(each)), WIDTH)
        if each["statistics"]:
            yield textwrap.fill(visible(each["statistics"]), WIDTH)
    for section in document["sections"]:
        if section["title"]:
            title = visible(section["title"])
            yield f"\n{title}\n{'-' * len(title)}"
        yield from (textwrap.fill(visible(paragraph), WIDTH) for paragraph in section["text"])
        for table in section["tables"]:
            yield f"\n{visible(table['caption'])}\n{grid(grid_of(table))}".replace("\n\n", "\n")
        for note in section["notes"]:
            yield textwrap.fill(visible(note), WIDTH, initial_indent="* ", subsequent_indent="  ")


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Rows in aligned columns, the first to the left and the others to the right."""
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [f"{cell:<{widths[0]}}" if j == 0 else f"{cell:>{widths[j]}}" for j, cell in enumerate(row)]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)
