"""A document as a Word file, by python-docx (an optional package); figures become their summaries in words."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import docx
from docx.enum.text import WD_ALIGN_PARAGRAPH
from docx.shared import Pt, RGBColor

from setsquare.document.formats import TONES, answer, capital, grid_of, lead, tone_name, visible


def render(document: Mapping[str, Any]) -> bytes:
    """Bytes of a .docx file."""
    file = docx.Document()
    about = file.core_properties
    about.author, about.title, about.comments = "", visible(document["title"])[:255], ""
    if document["title"]:
        file.add_heading(visible(document["title"]), level=0)
    for each in document["verdicts"]:
        _add_verdict(file, each)
    for section in document["sections"]:
        if section["title"]:
            file.add_heading(visible(section["title"]), level=1)
        for paragraph in (*section["text"], *(figure["summary"] for figure in section["figures"])):
            file.add_paragraph(visible(paragraph))
        for table in section["tables"]:
            _add_table(file, table)
        for note in section["notes"]:
            file.add_paragraph(visible(note), style="List Bullet")
    stream = io.BytesIO()
    file.save(stream)
    return stream.getvalue()


def _add_verdict(file: Any, each: Mapping[str, Any]) -> None:
    paragraph = file.add_paragraph()
    found = answer(each["verdict"])
    named = f"{visible(lead(each) + found if each['model'] else capital(found))}. "
    run = paragraph.add_run(named if each["verdict"] else visible(lead(each)))
    run.bold = True
    run.font.color.rgb = RGBColor.from_string(TONES[tone_name(each["verdict"])].printed.lstrip("#").upper())
    paragraph.add_run(visible(each["sentence"]))
    if each["statistics"]:
        file.add_paragraph(visible(each["statistics"]))


def _add_table(file: Any, table: Mapping[str, Any]) -> None:
    rows = grid_of(table)
    if table["caption"]:
        file.add_paragraph(visible(table["caption"]), style="Caption")
    grid = file.add_table(rows=0, cols=len(rows[0]), style="Light List")
    for i, row in enumerate(rows):
        cells = grid.add_row().cells
        for j, (cell, words) in enumerate(zip(cells, row, strict=True)):
            run = cell.paragraphs[0].add_run(words)
            run.font.size = Pt(9)
            run.bold = i == 0
            if j and table["columns"][j]["kind"] != "text":
                cell.paragraphs[0].alignment = WD_ALIGN_PARAGRAPH.RIGHT
    file.add_paragraph()
