"""The document of one audit, or of several models side by side: its order, and the sections of text."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from setsquare.auditing.documents import sections
from setsquare.auditing.documents.first_screen import summary
from setsquare.auditing.documents.number_sections import number_section
from setsquare.auditing.verdict import IN_SAMPLE, LINEAR, Verdict
from setsquare.document import Document, Headline, Section, section, table
from setsquare.document.document import has_content
from setsquare.document.formats import capital, joined, number, percent
from setsquare.notes import lead

if TYPE_CHECKING:
    from setsquare.auditing.comparison.result import Side
    from setsquare.auditing.documents.sections import Audits, Scores
    from setsquare.auditing.result import AuditResult
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
    headlines = tuple(
        Headline(name * several, str(audit.verdict), audit.reason, audit.statistics) for name, audit in audits.items()
    )
    scores = scores or {}
    if not several:  # a single model needs no name
        audits, scores = dict(zip([""], audits.values(), strict=True)), dict(zip([""], scores.values(), strict=False))
    parts = (
        summary(audits, scores, sides),
        _meaning(audits, certificate, with_calibration=any(part["id"] == "calibration" for part in groups)),
        number_section(audits),
        sections.effects(audits),
        *(_mark_untested(part, audits) for part in groups),
        sections.performance(audits, scores),
        sections.bounds({name: audit.certificate for name, audit in audits.items()}),
        sections.certificate(certificate),
        _notes(audits, notes),
        _method(audits, method, command, data or {}),
    )
    names = joined(sections.sources_of(list(audits.values())[-1])) or "the protected columns"
    return Document(
        title or f"Do the predictions depend on {names}?",
        headlines,
        tuple(part for part in parts if part is not None and has_content(part)),
    )


_MODULES = ("setsquare", "numpy", "scipy", "sklearn", "pandas", "polars", "pyarrow", "torch")


def _said(verdict: Verdict, audits: Sequence[AuditResult], names: str) -> str:
    """Meaning of a verdict that some audits share."""
    if verdict == Verdict.LEAK:
        return (
            f'The predictions depend on {names} more than chance explains (verdict "leak"). An audit can be mistaken: '
            f"if 100 models that ignore {names} were audited like this, at most about "
            f"{100 * (1 - audits[0].confidence):g} of them would be reported wrongly. This is not the chance that this "
            "result is wrong."
        )
    if verdict == Verdict.TRACE:
        upper = max(audit.certificate.correlation_upper for audit in audits)
        return (
            f'The predictions depend on {names}, but only slightly (verdict "trace"): with '
            f"{percent(audits[0].confidence)} confidence the correlation is at most {number(upper)}. For single groups "
            "see the bounds below."
        )
    if verdict == Verdict.NONE:
        return (
            f'No dependence on {names} was found (verdict "no leak found"). Any dependence that was missed is small: '
            "see the bounds below. This does not prove that there is none."
        )
    return (
        f"No dependence on {names} was found, but there are too few rows to rule out one that matters (verdict "
        '"inconclusive: n too small"). Do not read this as an all-clear.'
    )


def _meaning(audits: Audits, certificate: Certificate | None, *, with_calibration: bool) -> Section:
    """Interpretation of the verdicts, and its limits."""
    audit = list(audits.values())[-1]
    names = joined(sections.sources_of(audit)) or "the protected columns"
    verdicts: dict[Verdict, list[str]] = {}
    for name, each in audits.items():
        verdicts.setdefault(each.verdict, []).append(name)
    text = [
        "Predictions depend on a column if they differ between its groups or, for numbers such as age, change with it. "
        "A row is one line of the data: one person, application or image, say."
    ]
    for verdict, by in verdicts.items():
        lead_in = f"{joined(by)}: " if len(audits) > 1 else ""
        text.append(lead_in + _said(verdict, [audits[name] for name in by], names))
    notes = ["The result holds for these rows and similar ones. Other people, places or times need their own audit."]
    if audit.setting == IN_SAMPLE:
        notes.append("The model was fitted to the audited rows. On new rows it can depend on the columns.")
    if all(evaluation.name in LINEAR for evaluation in audit.evaluations):
        notes.append(
            "Only mean predictions were tested. A larger spread in one group, or a curve along a numeric column, was "
            "not tested: audit with shape, forest or independence for those."
        )
    notes += [
        "A dependence does not prove a cause, and there may be a harmless explanation: that is for people to judge.",
        f"Columns other than {names} were not audited.",
        "Predictions that do not depend on a column are only one part of fairness: error rates and calibration can "
        + ("still differ between groups; see the calibration by group below." if with_calibration else "still differ."),
    ]
    if certificate is not None:
        notes.append("The certificate is exact on the training rows. On other rows, rely on the audit instead.")
    return section("meaning", "What this does and does not show", text=text, notes=notes, detail=True)


def _mark_untested(part: Section, audits: Audits) -> Section:
    """Say below figures of distributions if curves and spreads in them were not tested."""
    tested = all(any(e.name not in LINEAR for e in audit.evaluations) for audit in audits.values())
    if part["id"] != "levels" or tested:
        return part
    return {**part, "text": [*part["text"], "Curves and spreads in these figures were not tested, only means."]}


def _method(audits: Audits, sentences: Sequence[str], command: str | None, data: Mapping[str, str]) -> Section:
    """Method and assumptions; command, data and versions that reproduce the document."""
    last = list(audits.values())[-1]
    about = [
        f"The predictions ({last.family}, {last.n:,} rows, {last.setting}) are regressed on the {last.n_protected} "
        "coded protected columns by an evaluation model. The verdict is based on the joint test of all effects, and on "
        "tests of each column and of curvature, combinations of groups and spread; p-values are adjusted for all of "
        "these.",
        "The method assumes that rows (with cluster-robust standard errors: clusters) are independent, and that the "
        "protected columns are recorded without error.",
    ]
    titles = dict.fromkeys(f"{capital(e.title)}." for audit in audits.values() for e in audit.evaluations)
    rows = [["command", command]] if command else []
    rows += [[f"data: {key}", str(value)] for key, value in data.items()]
    used = table("Command, data and versions", [("text", "what", "value")], [*rows, *_versions()], form="folded")
    title = "Method and assumptions"
    return section("method", title, text=about, notes=[*sentences, *titles], tables=[used], detail=True)


def _notes(audits: Audits, further: Sequence[str]) -> Section:
    """Notes on the result, each once; a note on some of the models names them.

    Those on numbers by group stand beside these.
    """
    said: dict[str, list[str]] = {}
    for name, audit in audits.items():
        elsewhere = () if audit.numbers is None else audit.numbers.notes
        for note in (note for note in audit.all_notes if note not in elsewhere):
            said.setdefault(note, []).append(name)
    own = [note if len(by) == len(audits) else lead(joined(by), note) for note, by in said.items()]
    return section("notes", "Notes", notes=list(dict.fromkeys([*further, *own])))


def _versions() -> list[tuple[str, str]]:
    """Versions of Python and of the packages that this process has imported."""
    imported = [(name, sys.modules[name]) for name in _MODULES if name in sys.modules]
    found = [("scikit-learn" if name == "sklearn" else name, str(module.__version__)) for name, module in imported]
    return [("Python", platform.python_version()), *found]
