"""The document of one audit, or of several models side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from setsquare.auditing.documents import explanations, sections
from setsquare.document import Document, Headline, Section
from setsquare.document.document import has_content
from setsquare.document.formats import joined

if TYPE_CHECKING:
    from setsquare.auditing.comparison.compare import Side
    from setsquare.auditing.documents.sections import Audits, Scores
    from setsquare.glm.solver import Certificate


def assemble(
    audits: Audits,
    *,
    scores: Scores | None = None,
    sides: Sequence[Side] = (),
    groups: Sequence[Section] = (),
    certificate: Certificate | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
    method: Sequence[str] = (),
    command: str | None = None,
    data: Mapping[str, str] | None = None,
) -> Document:
    """Assemble the sections for which there are data; nothing is computed here.

    ``sides`` are those of a comparison, with calibration; ``groups`` are sections by protected group; ``notes`` are
    added to those of the audits. For the other arguments see :func:`setsquare.report.build`.
    """
    several = len(audits) > 1
    headlines = tuple(Headline(name * several, str(audit.verdict), audit.reason) for name, audit in audits.items())
    scores = scores or {}
    if not several:  # a single model needs no name
        audits, scores = dict(zip([""], audits.values(), strict=True)), dict(zip([""], scores.values(), strict=False))
    parts = (
        sections.summary(audits, scores, sides),
        explanations.meaning(audits, certificate, with_calibration=any(part["id"] == "calibration" for part in groups)),
        sections.effects(audits),
        sections.bounds({name: audit.certificate for name, audit in audits.items()}),
        *groups,
        sections.performance(audits, scores),
        sections.certificate(certificate),
        explanations.method(audits, method),
        explanations.notes(audits, notes),
        explanations.reproduce(command, data or {}),
    )
    names = joined(explanations.sources(list(audits.values())[-1])) or "the protected columns"
    return Document(
        title or f"Do the predictions depend on {names}?",
        headlines,
        tuple(part for part in parts if part is not None and has_content(part)),
    )
