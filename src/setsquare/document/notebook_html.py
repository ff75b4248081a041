"""A document as an html fragment for notebooks; :mod:`setsquare.document.html_page` makes pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from setsquare.document.formats import fragment_style, grid_of, lead, tone_name, visible

STYLE = """
.sq{font:14px/1.45 system-ui,sans-serif;color:#1b1f24;max-width:60rem}
.sq h3{margin:1.4em 0 .4em;font-size:1.05em}
.sq .verdict{padding:.6em .9em;border-left:5px solid;border-radius:3px;margin-bottom:.6em}
.sq table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0}
.sq caption{text-align:left;font-weight:600;padding:.4em 0}
.sq th,.sq td{padding:.2em .8em;text-align:right;border-bottom:1px solid #e3e6ea;white-space:nowrap}
.sq th:first-child,.sq td:first-child{text-align:left;padding-left:0}
.sq th{font-weight:600;color:#57606a}.sq p{margin:.3em 0;color:#57606a}.sq ul{padding-left:1.2em;color:#57606a}
"""


def render(document: Mapping[str, Any]) -> str:
    """Write the document, without its figures."""
    parts = [f"<div class='sq'><style>{STYLE}{fragment_style()}</style>"]
    for each in document["verdicts"]:
        name = f"<b>{_text(lead(each) + each['verdict'])}</b><br>"
        more = f"<br><small>{_text(each['statistics'])}</small>" if each["statistics"] else ""
        parts.append(f"<div class='verdict {tone_name(each['verdict'])}'>{name}{_text(each['sentence'])}{more}</div>")
    for section in document["sections"]:
        parts += [f"<h3>{_text(section['title'])}</h3>"] if section["title"] else []
        parts += [f"<p>{_text(paragraph)}</p>" for paragraph in section["text"]]
        parts += [_table(table["caption"], grid_of(table)) for table in section["tables"]]
        if section["notes"]:
            parts.append("<ul>" + "".join(f"<li>{_text(note)}</li>" for note in section["notes"]) + "</ul>")
    return "".join([*parts, "</div>"])


def _text(words: object) -> str:
    return escape(visible(words))


def _table(caption: str, rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    cells = "".join(f"<th>{_text(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in body)
    over = f"<caption>{_text(caption)}</caption>" if caption else ""
    return f"<table>{over}<thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
