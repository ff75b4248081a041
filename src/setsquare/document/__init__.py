"""One document for every result, and its renderers: text, Markdown, LaTeX, JSON, html for notebooks, and a page.

Results build documents (:mod:`setsquare.auditing.documents`); the command line prints them with rich
(:mod:`setsquare.cli.terminal`). Labels, colours of verdicts and number formats are defined here once.
"""

from __future__ import annotations

from setsquare.document.document import Document, Documented, Headline, Section, plain, section, table, typed
from setsquare.document.formats import number, p_value

__all__ = [
    "Document",
    "Documented",
    "Headline",
    "Section",
    "number",
    "p_value",
    "plain",
    "section",
    "table",
    "typed",
]
