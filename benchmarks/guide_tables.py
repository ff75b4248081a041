"""Tables in the guides that a benchmark writes from its kept results, between two comments with its command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.frame import HERE

GUIDES = HERE.parent / "docs" / "guide"


def place(text: str, name: str, lines: Sequence[str]) -> str:
    r"""Put lines between the comments of a benchmark in a page.

    >>> place("a\n<!-- from benchmarks.b -->\nold\n<!-- end -->\nz", "b", ["new"])
    'a\n<!-- from benchmarks.b -->\nnew\n<!-- end -->\nz'
    """
    before, begin, rest = text.partition(f"<!-- from benchmarks.{name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not begin or not end:
        raise ValueError(f"The page has no place for the table of benchmarks.{name}.")
    return "".join([before, begin, *(f"{line}\n" for line in lines), end, after])


def write(page: str, name: str, lines: Sequence[str]) -> Path:
    """Write the table of a benchmark into a guide."""
    path = GUIDES / page
    path.write_text(place(path.read_text(encoding="utf-8"), name, lines), encoding="utf-8")
    return path
