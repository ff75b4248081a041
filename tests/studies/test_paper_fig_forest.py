"""Forests as evaluation models: what they find, and what takes it away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress
from tests.studies import added_comparator

from setsquare import datasets
from studies.paper import benchmark_sets, fig_forest
from studies.paper.benchmark_sets import BenchmarkSet
from studies.paper.cells import Cells
from studies.paper.names import CONSTRAINED
from studies.paper.record import Record

SMALL = fig_forest.QUICK


def require(name: str) -> BenchmarkSet:
    if not datasets.available({"health": "health_retirement"}.get(name, name)):
        pytest.skip(f"the data set {name} is not on this machine: set SETSQUARE_DATA")
    return benchmark_sets.load(name)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Cells:
    return Cells(tmp_path_factory.mktemp("cells") / "fig-forest.jsonl")


@pytest.fixture(scope="module")
def record(cells: Cells) -> Record:
    require("compas")
    return fig_forest.run(quick=True, cells=cells, progress=Progress(disable=True))


def test_on_compas_a_forest_finds_nothing_after_the_correction_and_did_before(record: Record) -> None:
    without, ours = (record.data["compas"]["methods"][method] for method in ("without", CONSTRAINED))
    for setting in fig_forest.SETTINGS:
        assert fig_forest.significant(without, setting) == ["sex", "race"]
        assert without[setting]["r2"] > 0.04 and without[setting]["r2_p"] <= 0.01
        assert fig_forest.significant(ours, setting) == []
        assert abs(ours[setting]["r2"]) < 0.005 and ours[setting]["r2_p"] > 0.05


def drawn(n: int) -> BenchmarkSet:
    """Outcomes that follow a protected column in a curve."""
    rng = np.random.default_rng(0)
    x, group = rng.normal(size=n), rng.integers(0, 2, size=n).astype(float)
    Z = np.column_stack([x, x**2 + rng.normal(size=n), rng.normal(size=(n, 12))])
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(1.0 - Z[:, 1] - group))).astype(float)
    X = np.column_stack([group, x])
    return BenchmarkSet("drawn", "binomial", Z, y, X, tuple(f"z{j}" for j in range(14)), ("group[b]", "x"))


def test_splines_take_away_a_curve_that_the_column_alone_leaves() -> None:
    data = drawn(3000)
    group, x = data.X.T

    def correlations(predictions: np.ndarray) -> np.ndarray:
        return np.abs([np.corrcoef(predictions, part)[0, 1] for part in (group, x, x**2)])

    before, after = (correlations(method(data, data)) for method in (benchmark_sets.corrected, fig_forest.splines))
    assert before[:2].max() < 1e-8 and before[2] > 0.5
    assert after.max() < 1e-8  # a parabola is a cubic spline
    assert list(fig_forest._numeric(data)) == [False, True]


def test_a_forest_sees_the_curve() -> None:
    data = drawn(1500)
    for method, leak in ((CONSTRAINED, True), (fig_forest.SPLINES, False)):
        found = fig_forest.measure(data, method, "rows of the fit", **SMALL)
        assert (found["r2_p"] <= 0.05) == leak
        assert ("x" in fig_forest.significant({"rows of the fit": found}, "rows of the fit")) == leak


def test_what_the_paper_says() -> None:
    assert fig_forest.says("bank", CONSTRAINED) == "significant" == fig_forest.says("compas", "Zafar")
    assert fig_forest.says("compas", CONSTRAINED) == "not significant"
    assert fig_forest.says("adult", CONSTRAINED) is None
    assert {fig_forest.says(*pair) for pair in (("bank", "Berk"), ("health", "Zafar"))} == {"failed"}


def test_a_run_goes_on_where_it_was(record: Record, cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("measure", "half"):
        monkeypatch.setattr(fig_forest, name, lambda *_, **__: pytest.fail("this cell is known"))
    assert fig_forest.run(quick=True, cells=Cells(cells.path), progress=Progress(disable=True)) == record


def test_a_comparator_that_was_added_takes_part(record, cells, monkeypatch, tmp_path: Path) -> None:
    added_comparator.check(fig_forest, record, cells, monkeypatch, tmp_path)


def test_it_is_drawn(record: Record, tmp_path: Path) -> None:
    assert fig_forest.draw(record, tmp_path / "fig-forest.png").stat().st_size > 10_000


@pytest.mark.slow
def test_on_bank_age_is_left_and_splines_take_most_of_it_away() -> None:
    data = require("bank")
    for setting in fig_forest.SETTINGS:
        without, ours, splines = (
            fig_forest.measure(data, method, setting, **SMALL | {"rows": 2000})
            for method in ("without", CONSTRAINED, fig_forest.SPLINES)
        )
        assert without["r2"] > ours["r2"] > 0.08 and ours["r2_p"] <= 0.01
        assert splines["r2"] < 0.1 * ours["r2"]
        assert ours["importances"]["age"]["p_value"] <= 0.05
