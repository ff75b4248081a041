"""Audits: does a set of predictions follow the protected columns, how closely, and how sure is that.

``audit`` takes nothing but predictions and protected columns; ``audit_model`` refits a model in folds first;
``audit_correction`` looks for information that a correction of features adds; ``probe`` tries to recover the protected
columns from representations; ``compare`` puts several predictions side by side. Evaluation models are one file each:
``glm``, ``tensor``, ``relu``, ``forest``, ``independence``.
"""

from __future__ import annotations

from .certificate import Certificate
from .comparison import Comparison, compare
from .correction import audit_correction
from .leakage import ConfoundLeakage
from .model import audit_model
from .predictions import audit
from .probe_result import ProbeResult
from .probes import probe
from .records import Effect, Evaluation, Test, benjamini_hochberg, holm
from .result import AuditResult
from .tensor import EffectMap
from .verdict import Verdict

__all__ = [
    "AuditResult",
    "Certificate",
    "Comparison",
    "ConfoundLeakage",
    "Effect",
    "EffectMap",
    "Evaluation",
    "ProbeResult",
    "Test",
    "Verdict",
    "audit",
    "audit_correction",
    "audit_model",
    "benjamini_hochberg",
    "compare",
    "holm",
    "probe",
]
