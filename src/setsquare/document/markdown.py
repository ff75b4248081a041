"""A document as Markdown; names from the user's data are escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from setsquare.document.formats import capital, grid_of, lead, visible

_SIGNS = re.compile(r"([\\`*_\[\]|#~$!{}]|^[-+=>]|(?<=:)//|(?<=www)\.|@)")


def render(document: Mapping[str, Any]) -> str:
    """Write the document as Markdown with pipe tables."""
    parts = [f"# {escape(document['title'])}"] if document["title"] else []
    for each in document["verdicts"]:
        verdict = escape(lead(each) + each["verdict"] if each["model"] else capital(each["verdict"]))
        parts.append(f"**{verdict}.** {escape(each['sentence'])}")
        parts += [escape(each["statistics"])] if each["statistics"] else []
    for section in document["sections"]:
        parts.append(f"## {escape(section['title'])}")
        parts += map(escape, section["text"])
        for table in section["tables"]:
            head, *rows = [[escape(word) for word in row] for row in grid_of(table)]
            rule = ["---" if column["kind"] == "text" else "---:" for column in table["columns"]]
            lines = "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])
            parts.append(f"{escape(table['caption'])}\n\n{lines}")
        parts += ["\n".join(f"* {escape(note)}" for note in section["notes"])] if section["notes"] else []
    return "\n\n".join(parts) + "\n"


def escape(words: object) -> str:
    r"""Escape text for Markdown: no tags, emphasis, links or table cells.

    Examples
    --------
    >>> print(escape("<b>|a_b|"))
    &lt;b>\|a\_b\|
    """
    escaped = _SIGNS.sub(r"\\\1", visible(words))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")
