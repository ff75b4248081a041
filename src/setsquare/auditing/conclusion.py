"""Result of an audit from its evaluations and bounds: verdict, reason and notes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from setsquare.auditing.certificate import Certificate
from setsquare.auditing.evaluations.nonlinear import PERMUTATION_BASED
from setsquare.auditing.evaluations.records import Evaluation
from setsquare.auditing.evaluations.tensor import EffectMap
from setsquare.auditing.protected import Protected
from setsquare.auditing.result import AuditResult
from setsquare.auditing.verdict import DEFAULT_LIMITS, Limits, Verdict, is_tautology, judge
from setsquare.families import Family
from setsquare.notes import Note, Option


@dataclass(frozen=True, slots=True)
class Settings:
    """How an audit is done; see :func:`audit`."""

    vcov: str = "HC3"
    confidence: float = 0.95
    limits: Limits = DEFAULT_LIMITS
    n_permutations: int = 499
    max_rows: int | None = None
    seed: int = 0


def nothing_to_leak(n: int, p: int, confidence: float, glm: Family) -> AuditResult:
    """Result for constant predictions."""
    return AuditResult(
        verdict=Verdict.NONE,
        reason="Every prediction is the same, so nothing can leak.",
        evaluations=(),
        certificate=Certificate(n, p, confidence, 0.0, 0.0, "", ()),
        setting="",
        glm=glm,
        n=n,
        n_protected=p,
        confidence=confidence,
    )


def conclude_audit(
    blank: AuditResult,
    evaluations: tuple[Evaluation, ...],
    bounds: Certificate,
    settings: Settings,
    protected: Protected,
    effect_map: EffectMap | None = None,
) -> AuditResult:
    """Verdict, reason and notes."""
    decision = judge(evaluations, bounds, confidence=settings.confidence, limits=settings.limits)
    return replace(
        blank,
        verdict=decision.verdict,
        reason=decision.reason,
        found=decision.found,
        members=decision.members,
        limits=settings.limits,
        evaluations=evaluations,
        certificate=bounds,
        notes=(*blank.notes, *_cautions(evaluations, protected, bounds, settings)),
        effect_map=effect_map,
    )


def _cautions(
    evaluations: tuple[Evaluation, ...], protected: Protected, bounds: Certificate, settings: Settings
) -> tuple[Note, ...]:
    notes = []
    factor = max((3 if e.name == "independence" else 1 for e in evaluations if e.name in PERMUTATION_BASED), default=0)
    if factor * len(evaluations) > (1.0 - settings.confidence) * (settings.n_permutations + 1):
        text = (
            "With {count} permutations no p-value can be significant after adjustment for this many tests: raise "
            "n_permutations."
        )
        notes.append(Note("few-permutations", text, severity="warning", count=settings.n_permutations))
    if settings.vcov != "HC3" and any(e.name == "tensor" for e in evaluations):
        text = "Standard errors in the effect map are HC3, not {vcov}."
        notes.append(Note("effect-map-errors", text, vcov=settings.vcov))
    blind = [e.name for e in evaluations if e.name in (*PERMUTATION_BASED, "tensor")]
    listed = ", ".join(blind)
    if blind and protected.cluster is not None:
        text = "The permutation test(s) of {tests} ignore the clusters."
        notes.append(Note("clusters-ignored", text, severity="caution", tests=listed))
    if any(name != "tensor" for name in blind) and protected.weight is not None:
        text = "The permutation test(s) of {tests} ignore the weights."
        notes.append(Note("weights-ignored", text, severity="caution", tests=listed))
    if is_tautology(bounds):
        text = (
            "The predictions are orthogonal to these columns up to rounding: they were corrected on these same rows. "
            "New rows can differ: audit held-out predictions."
        )
        notes.append(Note("corrected-rows", text, severity="warning"))
    if settings.vcov == "model" and any(evaluation.name == "glm" for evaluation in evaluations):
        text = (
            "Model-based standard errors are meant for observed outcomes. For predictions they are far too large, "
            "and the test hardly ever rejects. They are the paper's; use {robust} to find a leak."
        )
        notes.append(Note("model-based-errors", text, severity="warning", robust=Option("vcov", "HC3")))
    return tuple(notes)
