"""Reports: results as text, Markdown, LaTeX, JSON, and one html page that needs no network.

``report = build(result)`` makes one of an audit, of a mapping of names to audits (before and after) or of a comparison;
``report.to_html("report.html")`` writes the page, and ``to_text``, ``to_markdown``, ``to_latex``, ``to_json`` the rest.
A report holds aggregates, never rows. The page needs the extra ``report`` (jinja2); everything else needs nothing.
"""

from __future__ import annotations

from setsquare.auditing.documents.build import build
from setsquare.document import Document, Headline

Report = Document

__all__ = ["Headline", "Report", "build"]
