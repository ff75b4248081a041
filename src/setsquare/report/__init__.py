"""Reports: results as text, Markdown, LaTeX, JSON, and one html page that needs no network.

``report = build(result)`` makes one of an audit, of a mapping of names to audits (before and after) or of a comparison;
``report.to_html("report.html")`` writes the page, and ``to_text``, ``to_markdown``, ``to_latex``,
``to_docx``, ``to_json`` the rest. ``model_card(model, result)`` describes a corrected model.
A report holds aggregates, never rows. The page needs the extra ``report`` (jinja2); everything else needs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from setsquare.auditing.audit_predictions import Audited
from setsquare.auditing.comparison.performance import score_models
from setsquare.auditing.comparison.predicted_rows import PredictedRows, read_rows, rows_of_audit
from setsquare.auditing.comparison.result import Comparison
from setsquare.auditing.documents.assemble import assemble
from setsquare.auditing.documents.group_sections import describe_groups
from setsquare.auditing.groups.partitions import MIN_GROUP
from setsquare.auditing.result import AuditResult
from setsquare.document import Document, Headline
from setsquare.errors import InputError
from setsquare.glm.solver import Certificate
from setsquare.notes import Note
from setsquare.report.card import ModelCard, model_card

Report = Document

__all__ = ["Headline", "ModelCard", "Report", "build", "model_card"]


def build(
    audits: AuditResult | Mapping[str, AuditResult] | Comparison,
    *,
    predictions: Any = None,
    protected: Any = None,
    outcome: Any = None,
    certificate: Certificate | None = None,
    sample_weight: Any = None,
    cluster: Any = None,
    positive: object = None,
    min_group: int = MIN_GROUP,
    title: str | None = None,
    method: Sequence[str] = (),
    command: str | None = None,
    data: Mapping[str, str] | None = None,
) -> Document:
    """Build a report of one audit, of before and after, or of a comparison of models.

    Sections without data are omitted. A report contains aggregates only, never rows.

    Parameters
    ----------
    audits : AuditResult, mapping of name to AuditResult, or Comparison
        The others are compared with the first. The verdict on each is at the head of the report, by name.
    predictions : array of n rows, or mapping of name to arrays, optional
        The audited predictions, under the same names; an array belongs to the last audit. Adds distributions by group.
        A comparison has them already.
    protected : dataframe or array of n rows, optional
        The protected columns as they were audited.
    outcome : array of n values, optional
        Adds performance and calibration of `predictions`. A comparison has both already.
    certificate : Certificate of a fit, optional
        Certificate of the corrected model, ``model.solution_.certificate``.
    sample_weight, cluster : array of n values, optional
        As in the audit.
    positive : class of the outcome, optional
        As in the audit or the comparison.
    min_group : int
        Groups with fewer rows are pooled, or have no numbers; a comparison has decided this already.
    title : str, optional
        By default a question that names the protected columns.
    method : sequence of str
        Sentences on how the models were fitted.
    command : str, optional
        Command that reproduces this report.
    data : mapping of str to str, optional
        Origin of the rows, such as ``{"file": "train.csv", "sha256": "9f86..."}``.

    Examples
    --------
    >>> import numpy as np
    >>> import setsquare as sq
    >>> rng = np.random.default_rng(0)
    >>> age, signal = rng.normal(50, 10, 2000), rng.normal(size=2000)
    >>> before, after = signal + 0.02 * age, signal - np.polyval(np.polyfit(age, signal, 1), age)
    >>> report = build({"before": sq.audit(before, age), "after": sq.audit(after, age)})
    >>> print(report.title, [(each.model, each.verdict) for each in report.verdicts])
    Do the predictions depend on x0? [('before', 'leak'), ('after', 'no leak found')]
    """
    more: dict[str, Any] = {"title": title, "method": method, "command": command, "data": data}
    if isinstance(audits, Comparison):
        return audits.document(certificate=certificate, **more)
    named = _named(audits)
    if predictions is None:
        if outcome is not None:
            raise InputError("An outcome is compared with predictions: pass predictions= too.")
        return assemble(named, certificate=certificate, **more)
    _check_same_rows(named.values(), sample_weight, cluster)
    last = list(named.values())[-1]
    rows = read_rows(
        _same_names(predictions, named),
        protected,
        outcome,
        family=last.glm,
        confidence=last.confidence,
        sample_weight=sample_weight,
        cluster=cluster,
        positive=(last.positive or None) if positive is None and outcome is None else positive,
    )
    return _with_rows(named, rows, min_group, certificate=certificate, **more)


def build_audited(audited: Audited, protected: Any, notes: tuple[Note, ...], min_group: int, **more: Any) -> Document:
    """Report of an audit, with distributions of the rows that it has read.

    Parameters
    ----------
    audited : Audited
    protected : table of n rows
        The protected columns before coding.
    notes : tuple of Note
        Notes on the rows, in front of those of the audit.
    min_group : int
    **more
        ``title``, ``method``, ``command`` and ``data``; see :func:`build`.
    """
    result = replace(audited.result, notes=(*notes, *audited.result.notes))
    return _with_rows({"": result}, rows_of_audit(audited, protected), min_group, **more)


def _with_rows(named: dict[str, AuditResult], rows: PredictedRows, min_group: int, **more: Any) -> Document:
    scores = score_models(rows)
    groups = describe_groups(rows, named=len(named) > 1, min_group=min_group)
    return assemble(named, scores=scores, groups=groups, **more)


def _named(audits: Any) -> dict[str, AuditResult]:
    """Audits by name; the name of a single audit is empty."""
    named = {"": audits} if isinstance(audits, AuditResult) else dict(audits) if isinstance(audits, Mapping) else {}
    if not named or not all(isinstance(audit, AuditResult) for audit in named.values()):
        raise InputError("Pass a result of audit or compare, or a mapping of names to results of audit.")
    return {str(name): audit for name, audit in named.items()}


def _check_same_rows(audits: Iterable[AuditResult], sample_weight: Any, cluster: Any) -> None:
    """Refuse summaries by group without the clusters or weights that the audit had."""
    for audit in audits:
        if audit.is_clustered and cluster is None:
            raise InputError("The audit had clusters, which intervals by group need as well: pass cluster=.")
        if audit.is_weighted and sample_weight is None:
            raise InputError("The audit had weights, which means by group need as well: pass sample_weight=.")


def _same_names(predictions: Any, named: Mapping[str, AuditResult]) -> dict[str, Any]:
    given = dict(predictions) if isinstance(predictions, Mapping) else {list(named)[-1]: predictions}
    if not given or not set(given) <= set(named):
        raise InputError(
            f"Predictions are named {', '.join(map(str, given)) or 'by nothing'} and audits {', '.join(named)}: use "
            "the same names."
        )
    return {name: given[name] for name in named if name in given}
