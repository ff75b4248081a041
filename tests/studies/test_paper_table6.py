"""Table 6 of the paper: run times. What is fast is a matter of benchmarks; here it matters that all of it is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.progress import Progress

from setsquare import datasets
from studies.comparators import available
from studies.paper import table6
from studies.paper.cells import Cells
from studies.paper.names import CONSTRAINED, WITHOUT
from studies.paper.record import Record


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Cells:
    return Cells(tmp_path_factory.mktemp("cells") / "table6.jsonl")


@pytest.fixture(scope="module")
def record(cells: Cells) -> Record:
    if not datasets.available("compas"):
        pytest.skip("the data set compas is not on this machine: set SETSQUARE_DATA")
    return table6.run(quick=True, cells=cells, progress=Progress(disable=True))


def test_every_method_is_timed(record: Record) -> None:
    methods = record.data["compas"]["methods"]
    assert set(methods) == {CONSTRAINED, WITHOUT, *available("binomial")}
    for timed in methods.values():
        assert timed["rounds"] == 2
        low, high = timed["cpu_range"]
        assert 0.0 < low <= timed["cpu"] <= high


def test_only_the_exact_correction_leaves_nothing(record: Record) -> None:
    left = {method: timed["correlation"] for method, timed in record.data["compas"]["methods"].items()}
    assert left.pop(CONSTRAINED) < 1e-8
    assert min(left.values()) > 1e-3 and left[WITHOUT] > 0.3


def test_seconds_of_the_paper_and_of_r_stand_beside(record: Record) -> None:
    table = record.tables[0]
    rows = {row[2]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert (rows["Berk"]["printed"], rows["Berk"]["R, run again"]) == (1.18, 117.368)
    assert (rows[CONSTRAINED]["printed"], rows[CONSTRAINED]["R, run again"]) == (0.48, 0.69)
    assert rows[CONSTRAINED]["R / here"] == pytest.approx(0.69 / rows[CONSTRAINED]["here"])
    assert rows["classical (C^l)"]["printed"] is None


def test_printed_seconds_of_adult_belong_to_the_authors_rows() -> None:
    assert table6.published("adult 5000", CONSTRAINED) == 1.11
    assert table6.published("adult", CONSTRAINED) is None
    assert table6.published("health", "zafar") is None
    assert table6.in_r("adult", "komiyama-sp") == 22.135


def test_a_run_goes_on_where_it_was(record: Record, cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table6, "measure", lambda *_: pytest.fail("this cell is known"))
    again = table6.run(quick=True, cells=Cells(cells.path), progress=Progress(disable=True))
    assert again == record


def test_the_papers_method_runs_once_and_not_in_a_quick_run() -> None:
    assert len(table6._plan("poisson", False)) > len(table6._plan("poisson", True))
    assert "xu" not in {method for _, method in table6._plan("poisson", False)}


def test_it_is_drawn(record: Record, tmp_path: Path) -> None:
    assert table6.draw(record, tmp_path / "table6.png").stat().st_size > 10_000
