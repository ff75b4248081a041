"""Audits: do predictions depend on protected columns, how strongly, and how certain is that.

``audit`` needs only predictions and protected columns; ``audit_model`` first refits a model in folds;
``audit_correction`` tests for information that a correction of features adds; ``probe`` tries to recover the protected
columns from representations; ``maximum_test`` tests many columns at once; ``compare`` compares several predictions;
``tradeoff`` shows what a correction costs. Each evaluation model has its own module: ``glm``, ``tensor``, ``relu``,
``forest``, ``independence``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from setsquare._lazy import names_by_module

if TYPE_CHECKING:
    from setsquare.auditing.audit_corrections import ConfoundLeakage, audit_correction
    from setsquare.auditing.audit_models import audit_model
    from setsquare.auditing.audit_predictions import audit
    from setsquare.auditing.certificate import Certificate
    from setsquare.auditing.comparison.compare import compare
    from setsquare.auditing.comparison.metric import Interval, Metric, difference, interval
    from setsquare.auditing.comparison.performance import performance
    from setsquare.auditing.comparison.result import Comparison
    from setsquare.auditing.evaluations.forest import forest_importances, forest_r2
    from setsquare.auditing.evaluations.glm import fit_glm
    from setsquare.auditing.evaluations.records import Effect, Evaluation, Test, benjamini_hochberg, holm
    from setsquare.auditing.evaluations.tensor import EffectMap, unit_correlations
    from setsquare.auditing.groups.result import GroupNumbers
    from setsquare.auditing.many_columns import MaximumTest, maximum_test
    from setsquare.auditing.monitoring.monitor import MonitorResult, monitor
    from setsquare.auditing.probes.probe import probe
    from setsquare.auditing.probes.result import ProbeResult
    from setsquare.auditing.protected import Protected
    from setsquare.auditing.result import AuditResult
    from setsquare.auditing.tradeoffs.budget_path import tradeoff
    from setsquare.auditing.tradeoffs.points import TradeoffPoint
    from setsquare.auditing.tradeoffs.result import Tradeoff
    from setsquare.auditing.verdict import Limits, Verdict

__all__ = [
    "AuditResult",
    "Certificate",
    "Comparison",
    "ConfoundLeakage",
    "Effect",
    "EffectMap",
    "Evaluation",
    "GroupNumbers",
    "Interval",
    "Limits",
    "MaximumTest",
    "Metric",
    "MonitorResult",
    "ProbeResult",
    "Protected",
    "Test",
    "Tradeoff",
    "TradeoffPoint",
    "Verdict",
    "audit",
    "audit_correction",
    "audit_model",
    "benjamini_hochberg",
    "compare",
    "difference",
    "fit_glm",
    "forest_importances",
    "forest_r2",
    "holm",
    "interval",
    "maximum_test",
    "monitor",
    "performance",
    "probe",
    "tradeoff",
    "unit_correlations",
]
__getattr__ = names_by_module(
    __name__,
    {
        "audit_corrections": ("ConfoundLeakage", "audit_correction"),
        "audit_models": ("audit_model",),
        "audit_predictions": ("audit",),
        "certificate": ("Certificate",),
        "comparison.compare": ("compare",),
        "comparison.metric": ("Interval", "Metric", "difference", "interval"),
        "comparison.performance": ("performance",),
        "comparison.result": ("Comparison",),
        "evaluations.forest": ("forest_importances", "forest_r2"),
        "evaluations.glm": ("fit_glm",),
        "evaluations.records": ("Effect", "Evaluation", "Test", "benjamini_hochberg", "holm"),
        "evaluations.tensor": ("EffectMap", "unit_correlations"),
        "groups.result": ("GroupNumbers",),
        "many_columns": ("MaximumTest", "maximum_test"),
        "monitoring.monitor": ("MonitorResult", "monitor"),
        "probes.probe": ("probe",),
        "probes.result": ("ProbeResult",),
        "protected": ("Protected",),
        "result": ("AuditResult",),
        "tradeoffs.points": ("TradeoffPoint",),
        "tradeoffs.result": ("Tradeoff",),
        "tradeoffs.budget_path": ("tradeoff",),
        "verdict": ("Limits", "Verdict"),
    },
)


def __dir__() -> list[str]:
    return __all__
