"""Reports: results as text, Markdown, LaTeX, JSON, and one html page that needs no network.

One function makes a report of one audit, of before and after, or of a comparison of several models::

    report = build(
        audits,               # an AuditResult, a mapping of names to them ({"as trained": a, "corrected": b}), or a
                              # Comparison; the first is "before", and each has its verdict at the head, by name
        predictions=None,     # what was audited: an array, or a mapping with the same names; gives the distributions
                              # (a comparison has them, and everything else of its rows)
        protected=None,       # the protected columns of the same rows
        outcome=None,         # gives performance and calibration; needs predictions
        certificate=None,     # of a corrected model: model.solution_.certificate
        sample_weight=None,   # of the rows, as in the audit
        cluster=None,         # rows that belong together, as in the audit
        positive=None,        # the positive class of the outcome; a comparison knows it
        title=None,
        method=(),            # sentences on how the model was made
        command=None,         # to reproduce it
        data=None,            # where the rows come from: {"file": "train.csv", "sha256": "..."}; any names
    )
    report.to_html("report.html")     # also .to_text() .to_markdown() .to_latex() .to_json() .to_dict()

A report holds aggregates, never rows. The page needs the extra ``report`` (jinja2); everything else needs nothing.
"""

from __future__ import annotations

from setsquare.auditing.documents.build import build
from setsquare.document import Document, Headline

Report = Document

__all__ = ["Headline", "Report", "build"]
