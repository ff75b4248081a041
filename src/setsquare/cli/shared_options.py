"""Options that the commands with an audit share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Options:
    """Options for reading columns, for the audit, and for its output."""

    categorical: tuple[str, ...] = ()
    """Columns of numbers that are codes of groups, comma-separated."""
    group_cells: bool = False
    """Protect every combination of the groups, not only each protected column on its own."""
    missing: Literal["error", "drop", "level"] = "error"
    """Refuse missing values, drop their rows, or make them a group of their own."""
    confidence: float = 0.95
    """Confidence of intervals and bounds."""
    tolerance: float = 0.05
    """Largest correlation that counts as a trace instead of a leak; 0 makes everything that is detected a leak."""
    group_tolerance: float = 0.1
    """Largest difference between groups that counts as a trace, in standard deviations of the predictions."""
    shape_tolerance: float = 0.2
    """Largest correlation with curves, combinations of groups and spread that counts as a trace."""
    html: Path | None = None
    """Write a report as one self-contained HTML page."""
    json: Path | None = None
    """Write the results as JSON."""
    fail_on_leak: bool = False
    """End with exit code 1 if a leak is found."""
    quiet: bool = False
    """Print the verdict only."""

    @property
    def audit(self) -> dict[str, Any]:
        """Options of `setsquare.audit`; with ``--missing drop`` incomplete rows are left out before it."""
        from setsquare.auditing import Limits

        return {
            "coding": "cells" if self.group_cells else "dummy",
            "missing": "level" if self.missing == "level" else "error",
            "confidence": self.confidence,
            "tolerance": Limits(self.tolerance, self.group_tolerance, self.shape_tolerance),
        }

    @property
    def outputs(self) -> list[Path]:
        """Files to write."""
        return [path for path in (self.html, self.json) if path is not None]
