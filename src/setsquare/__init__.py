"""Setsquare: models that provably ignore what they must not use.

Names are imported when they are first used, so that ``import setsquare`` is quick and needs no optional package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from setsquare._lazy import names_by_module

if TYPE_CHECKING:
    from setsquare import auditing, datasets, errors, families, nn, projection, report, tables
    from setsquare.auditing import (
        AuditResult,
        Comparison,
        ProbeResult,
        Tradeoff,
        audit,
        audit_correction,
        audit_model,
        compare,
        maximum_test,
        monitor,
        probe,
        tradeoff,
    )
    from setsquare.estimators import (
        GroupThresholds,
        LinearOrthogonalizer,
        OrthogonalGLMClassifier,
        OrthogonalGLMRegressor,
        PredictionOrthogonalizer,
        PrincipalComponents,
    )
    from setsquare.glm import Problem, Solution, solve
    from setsquare.projection import pho
    from setsquare.rows import Stream
    from setsquare.storage import load, save

__version__ = "0.1.0"
_MODULES = ("auditing", "datasets", "tables", "errors", "families", "nn", "projection", "report")

__all__ = [
    "AuditResult",
    "Comparison",
    "GroupThresholds",
    "LinearOrthogonalizer",
    "OrthogonalGLMClassifier",
    "OrthogonalGLMRegressor",
    "PredictionOrthogonalizer",
    "PrincipalComponents",
    "ProbeResult",
    "Problem",
    "Solution",
    "Stream",
    "Tradeoff",
    "audit",
    "audit_correction",
    "audit_model",
    "auditing",
    "compare",
    "datasets",
    "errors",
    "families",
    "load",
    "maximum_test",
    "monitor",
    "nn",
    "pho",
    "probe",
    "projection",
    "report",
    "save",
    "solve",
    "tables",
    "tradeoff",
]


_find = names_by_module(
    __name__,
    {
        "auditing": (
            "AuditResult",
            "Comparison",
            "ProbeResult",
            "Tradeoff",
            "audit",
            "audit_correction",
            "audit_model",
            "compare",
            "maximum_test",
            "monitor",
            "probe",
            "tradeoff",
        ),
        "estimators": (
            "GroupThresholds",
            "LinearOrthogonalizer",
            "OrthogonalGLMClassifier",
            "OrthogonalGLMRegressor",
            "PredictionOrthogonalizer",
            "PrincipalComponents",
        ),
        "glm": ("Problem", "Solution", "solve"),
        "projection": ("pho",),
        "rows": ("Stream",),
        "storage": ("load", "save"),
    },
)


def __getattr__(name: str) -> Any:
    return import_module(f"setsquare.{name}") if name in _MODULES else _find(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
