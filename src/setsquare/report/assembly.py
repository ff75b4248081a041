"""From results to a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from setsquare.auditing import AuditResult, Comparison
from setsquare.errors import InputError
from setsquare.glm.solver import Certificate
from setsquare.report import by_level, prose, sections
from setsquare.report.material import Material, read_material
from setsquare.report.record import Headline, Report

_CONTENT = ("text", "notes", "tables", "figures")


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
    title: str | None = None,
    method: Sequence[str] = (),
    command: str | None = None,
    data: Mapping[str, str] | None = None,
) -> Report:
    """Make a report of one audit, of before and after, or of a comparison of models.

    Sections for which there are no data are left out. A report holds aggregates, never rows.

    Parameters
    ----------
    audits : AuditResult, mapping of name to AuditResult, or Comparison
        The first is what the others are compared with. Each has its verdict at the head of the report, by name.
    predictions : array of n rows, or mapping of name to arrays, optional
        What was audited, under the same names; an array belongs to the last audit. Gives distributions by level.
    protected : dataframe or array of n rows, optional
        The protected columns as they were audited.
    outcome : array of n values, optional
        Gives performance and calibration of `predictions`. The scores of a comparison are shown as they are.
    certificate : solvers.Certificate, optional
        Of the corrected model, ``model.solution_.certificate``.
    sample_weight, cluster : array of n values, optional
        As in the audit.
    positive : class of the outcome, optional
        As in the audit or the comparison.
    title : str, optional
        By default a question that names the protected columns.
    method : sequence of str
        Sentences on how the models were made.
    command : str, optional
        What makes this report again.
    data : mapping of str to str, optional
        Where the rows come from, such as ``{"file": "train.csv", "sha256": "9f86..."}``.

    Examples
    --------
    >>> import numpy as np
    >>> import setsquare as sq
    >>> rng = np.random.default_rng(0)
    >>> age, signal = rng.normal(50, 10, 2000), rng.normal(size=2000)
    >>> before, after = signal + 0.02 * age, signal - np.polyval(np.polyfit(age, signal, 1), age)
    >>> report = build({"before": sq.audit(before, age), "after": sq.audit(after, age)})
    >>> print(report.title, [(each.model, each.verdict) for each in report.verdicts])
    Do the predictions follow x0? [('before', 'leak'), ('after', 'no leak found')]
    """
    named, scores = _named(audits)
    last = list(named.values())[-1]
    if positive is None and (outcome is None or isinstance(audits, Comparison)):
        positive = last.positive or None
    if predictions is not None:
        _check_same_rows(named.values(), sample_weight, cluster)
    material = _material(named, last, predictions, protected, outcome, sample_weight, cluster, positive)
    if not scores and material is not None:  # a comparison has them: numbers are computed once
        scores = material.scores()
    parts = (
        sections.summary(named, scores),
        prose.meaning(named, certificate, with_outcome=outcome is not None),
        sections.effects(named),
        sections.leakage(named),
        by_level.levels(material),
        by_level.calibration(material),
        sections.performance(named, scores),
        sections.certificate(certificate),
        prose.method(named, [*(audits.notes if isinstance(audits, Comparison) else ()), *method]),
        prose.reproduce(command, data or {}),
    )
    names = prose.joined(prose.sources(last)) or "the protected columns"
    return Report(
        title or f"Do the predictions follow {names}?",
        tuple(Headline(name, str(audit.verdict), audit.reason) for name, audit in named.items()),
        tuple(part for part in parts if part is not None and any(part[key] for key in _CONTENT)),
    )


def _named(audits: Any) -> tuple[dict[str, AuditResult], dict[str, Any]]:
    """Audits and scores by name; a single audit needs none."""
    if isinstance(audits, Comparison):
        return {s.name: s.audit for s in audits.sides}, {s.name: s.scores for s in audits.sides}
    named = {"": audits} if isinstance(audits, AuditResult) else dict(audits) if isinstance(audits, Mapping) else {}
    if not named or not all(isinstance(audit, AuditResult) for audit in named.values()):
        raise InputError("Give a result of audit or compare, or a mapping of names to results of audit.")
    return {str(name): audit for name, audit in named.items()}, {}


def _check_same_rows(audits: Iterable[AuditResult], sample_weight: Any, cluster: Any) -> None:
    """Refuse to show numbers of rows without the clusters or weights that the audit had."""
    for audit in audits:
        if audit.is_clustered and cluster is None:
            raise InputError("The audit had clusters, which intervals by group need as well: pass cluster=.")
        if audit.is_weighted and sample_weight is None:
            raise InputError("The audit had weights, which means by group need as well: pass sample_weight=.")


def _material(
    named: Mapping[str, AuditResult],
    last: AuditResult,
    predictions: Any,
    protected: Any,
    outcome: Any,
    sample_weight: Any,
    cluster: Any,
    positive: object,
) -> Material | None:
    if predictions is None:
        if outcome is not None:
            raise InputError("An outcome is compared with predictions: pass predictions= too.")
        return None
    given = dict(predictions) if isinstance(predictions, Mapping) else {list(named)[-1]: predictions}
    if not given or not set(given) <= set(named):
        raise InputError(
            f"Predictions are named {', '.join(map(str, given)) or 'by nothing'} and audits {', '.join(named)}: use "
            "the same names."
        )
    given = {name: given[name] for name in named if name in given}
    return read_material(
        given,
        protected,
        outcome,
        family=last.family,
        confidence=last.confidence,
        sample_weight=sample_weight,
        cluster=cluster,
        positive=positive,
    )
