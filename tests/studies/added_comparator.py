"""A comparator of one's own, and what a study does with it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from rich.progress import Progress

from setsquare import Problem, solve
from studies.comparators import COMPARATORS, Fit, LinearComparator
from studies.paper.cells import Cells
from studies.paper.record import Record


class DropFeatures(LinearComparator):
    """The comparator of docs/extend.md in short: a GLM on features that hardly correlate with the protected ones."""

    needs_protected = False

    def solve(self, problem: Problem) -> Fit:
        X = np.asarray(problem.protected)
        q = problem.features.shape[1]
        kept = np.abs(np.corrcoef(problem.features.T, X.T)[:q, q:]).max(axis=1) < 0.1
        found = solve(Problem(problem.features[:, kept], problem.outcome, None, problem.family))
        coef = np.zeros(q)
        coef[kept] = found.coef[0]
        return Fit(problem.family, float(found.intercept[0]), coef, None, 0.0)


def check(module: ModuleType, record: Record, cells: Cells, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Run a study, of which all other cells are known, with the comparator."""
    monkeypatch.setitem(COMPARATORS, "drop", DropFeatures)
    taken = module.run(quick=True, cells=Cells(cells.path), progress=Progress(disable=True))
    assert "drop" in taken.data["compas"]["methods"] and "drop" not in record.data["compas"]["methods"]
    assert any("drop" in row for table in taken.tables for row in table.rows)
    assert not any(why.startswith("drop") for why in taken.missed)  # the authors saved nothing to compare it with
    assert module.draw(taken, folder / "figure.png").stat().st_size > 10_000
