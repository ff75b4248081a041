"""The first figure: R's random numbers, the authors' paths as R gives them, and the exact optimum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from studies.paper import fig1
from studies.paper.cells import Cells
from studies.paper.r_random import RRandom


def test_random_numbers_are_those_of_r() -> None:
    """``set.seed(42); runif(2); set.seed(133); rnorm(2); set.seed(1); rbinom(8, 1, rep(c(.2, .8), 4))`` in R 4.2."""
    np.testing.assert_allclose(RRandom(42).uniform(2), [0.914806, 0.9370754], atol=1e-7)
    np.testing.assert_allclose(RRandom(1).normal(2), [-0.6264538, 0.1836433], atol=1e-7)
    rows = fig1.authors_rows()
    assert set(np.unique(rows.y)) == {0.0, 1.0} and 0.6 < rows.y.mean() < 0.75


@pytest.mark.parametrize(
    ("method", "expected"),
    [(fig1.CLASSICAL, {110: -0.1749207, 400: -0.1761299}), (fig1.PROJECTED, {110: 0.0008876475, 400: -0.02066319})],
)
def test_the_paths_are_those_of_the_authors_script_in_r(method: str, expected: dict[int, float]) -> None:
    rows = fig1.authors_rows()
    Z = fig1.features(method, rows, rows)
    Q = rows.x[:, None] / np.linalg.norm(rows.x) if method == fig1.PROJECTED else None
    along = fig1.correlations(Z, rows.x, fig1.fisher_scoring(Z, rows.y, 400, Q))
    for step, value in expected.items():
        assert along[step] == pytest.approx(value, abs=1e-6)


def test_classical_needs_its_intercept_and_only_the_exact_one_is_orthogonal(tmp_path: Path) -> None:
    record = fig1.run(quick=True, cells=Cells(), progress=Progress(disable=True))
    left = {method: abs(found["optimum"]) for method, found in record.data.items()}
    assert left[fig1.CLASSICAL] == pytest.approx(0.1396189, abs=1e-6)  # glm() in R
    assert left[fig1.WITH_INTERCEPT] == pytest.approx(0.00301133, abs=1e-6)
    assert left[fig1.EXACT] < 1e-9 < 1e-4 < left[fig1.MDMM] < 0.01 < left[fig1.PROJECTED]
    assert fig1.draw(record, tmp_path / "fig1.png").stat().st_size > 10_000
