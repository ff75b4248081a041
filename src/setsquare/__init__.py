"""Setsquare: models that provably ignore what they must not use.

Names are imported when they are first used, so that ``import setsquare`` is quick and needs no optional package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from setsquare import auditing, datasets, errors, families, nn, projection, report, tables

    __version__: str
    from setsquare.auditing import (
        AuditResult,
        Comparison,
        ProbeResult,
        audit,
        audit_correction,
        audit_model,
        compare,
        probe,
    )
    from setsquare.estimators import (
        LinearOrthogonalizer,
        OrthogonalGLMClassifier,
        OrthogonalGLMRegressor,
        PredictionOrthogonalizer,
        PrincipalComponents,
    )
    from setsquare.glm import Problem, Solution, solve
    from setsquare.rows import Stream
    from setsquare.storage import load, save

_HOME = {
    "AuditResult": "setsquare.auditing",
    "Comparison": "setsquare.auditing",
    "LinearOrthogonalizer": "setsquare.estimators",
    "OrthogonalGLMClassifier": "setsquare.estimators",
    "OrthogonalGLMRegressor": "setsquare.estimators",
    "PredictionOrthogonalizer": "setsquare.estimators",
    "PrincipalComponents": "setsquare.estimators",
    "ProbeResult": "setsquare.auditing",
    "Problem": "setsquare.glm",
    "Solution": "setsquare.glm",
    "Stream": "setsquare.rows",
    "audit": "setsquare.auditing",
    "audit_correction": "setsquare.auditing",
    "audit_model": "setsquare.auditing",
    "compare": "setsquare.auditing",
    "load": "setsquare.storage",
    "probe": "setsquare.auditing",
    "save": "setsquare.storage",
    "solve": "setsquare.glm",
}
_MODULES = ("auditing", "datasets", "tables", "errors", "families", "nn", "projection", "report")

__all__ = [
    "AuditResult",
    "Comparison",
    "LinearOrthogonalizer",
    "OrthogonalGLMClassifier",
    "OrthogonalGLMRegressor",
    "PredictionOrthogonalizer",
    "PrincipalComponents",
    "ProbeResult",
    "Problem",
    "Solution",
    "Stream",
    "audit",
    "audit_correction",
    "audit_model",
    "auditing",
    "compare",
    "datasets",
    "errors",
    "families",
    "load",
    "nn",
    "probe",
    "projection",
    "report",
    "save",
    "solve",
    "tables",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "__version__":
        return import_module("importlib.metadata").version("setsquare")
    if name in _MODULES:
        return import_module(f"setsquare.{name}")
    raise AttributeError(f"module 'setsquare' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
