"""Probes: models that try to recover the protected columns from a representation."""

from __future__ import annotations

from setsquare.auditing.probes.probe import probe
from setsquare.auditing.probes.result import ProbeResult

__all__ = ["ProbeResult", "probe"]
