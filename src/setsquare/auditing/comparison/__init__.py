"""Comparison of several predictions of one outcome: leakage, performance and calibration."""

from __future__ import annotations

from setsquare.auditing.comparison.compare import Comparison, compare

__all__ = ["Comparison", "compare"]
