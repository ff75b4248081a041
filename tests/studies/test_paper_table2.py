"""Table 2 of the paper: R's effects without a correction, none with it, and the label in the column of Xu et al."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm
from rich.progress import Progress

from setsquare import datasets
from studies.paper import benchmark_sets, table2
from studies.paper.catalogue import targets
from studies.paper.cells import Cells
from studies.paper.names import CONSTRAINED
from studies.paper.record import Record

TERMS = ("sex_male", "race_asian", "race_black", "race_other", "race_white")


@pytest.fixture(scope="module")
def cells() -> Cells:
    return Cells()


@pytest.fixture(scope="module")
def record(cells: Cells) -> Record:
    if not datasets.available("adult_uci"):
        pytest.skip("the data set adult_uci is not on this machine: set SETSQUARE_DATA")
    return table2.run(quick=True, cells=cells, progress=Progress(disable=True))


def effects(record: Record, method: str, key: str = "estimate") -> list[float]:
    return [record.data[method]["all"]["effects"][term][key] for term in TERMS]


def test_features_and_protected_columns_are_those_of_appendix_f(record: Record) -> None:
    data = datasets.load_adult("uci", table2=True)
    assert set(data.features) == {"age", "workclass", "education", "marital_status", "relationship", "hours_per_week"}
    assert set(data.protected) == {"sex", "race"} and not set(data.protected) & set(data.features)


def test_effects_without_a_correction_are_those_of_r(record: Record) -> None:
    in_r = targets()["table2_adult"]["measured_with_the_authors_code"]
    assert effects(record, "without") == pytest.approx([in_r["without"][term] for term in TERMS], abs=1e-5)
    assert effects(record, "without", "p_model") == pytest.approx([in_r["without_p"][t] for t in TERMS], rel=1e-4)


def test_no_effect_is_left_where_the_paper_leaves_some(record: Record) -> None:
    printed = [targets()["table2_adult"]["corrected"][term][0] for term in TERMS]
    assert max(map(abs, printed)) == 0.131
    assert max(map(abs, effects(record, CONSTRAINED))) < 1e-7
    assert max(map(abs, effects(record, "without"))) > 1.0
    assert record.data[CONSTRAINED]["all"]["correlation"] < 1e-8


def test_statsmodels_finds_no_effect_either(record: Record) -> None:
    data = benchmark_sets.encode(datasets.load_adult("uci", table2=True), "adult")
    X = sm.add_constant(data.X)

    def largest(predictions: np.ndarray) -> float:
        # From a start that is not the answer.
        fit = sm.GLM(predictions, X, family=sm.families.Binomial()).fit(start_params=np.full(6, 0.1), tol=1e-14)
        return float(np.abs(fit.params[1:]).max())

    assert largest(benchmark_sets.corrected(data, data)) < 1e-7
    assert largest(benchmark_sets.without(data, data)) == pytest.approx(max(effects(record, "without")), rel=1e-7)


def test_the_published_column_of_xu_is_the_label(record: Record) -> None:
    printed = [targets()["table2_adult"]["xu"][term][0] for term in TERMS]
    assert effects(record, table2.LABEL) == pytest.approx(printed, abs=5e-4)
    assert record.data[table2.LABEL]["all"]["accuracy"]["estimate"] == pytest.approx(1.0, abs=1e-12)
    proper = effects(record, "Xu, as defined")
    assert 0.1 < proper[0] < 0.5 * printed[0]  # the features still stand for sex


def test_new_rows_show_the_difference(record: Record) -> None:
    without, corrected = (record.data[name]["new"] for name in ("without", CONSTRAINED))
    assert without["correlation"] > 10 * without["by_chance"]
    assert corrected["correlation"] < 2 * corrected["by_chance"]
    assert without["p_value"] < 1e-100 and corrected["p_value"] > 0.01
    assert "new" not in record.data[table2.LABEL]


def test_a_run_goes_on_where_it_was(record: Record, cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table2, "measure", lambda *_: pytest.fail("this cell is known"))
    assert table2.run(quick=True, cells=cells, progress=Progress(disable=True)) == record


def test_it_is_shown_and_drawn(record: Record, tmp_path: Path) -> None:
    assert [len(table.rows) for table in record.tables] == [20, 15, 5]
    page = record.to_markdown()
    assert "| without | race_other | -0.165 | -0.161 | -0.161 |" in page
    assert table2.draw(record, tmp_path / "table2.png").stat().st_size > 10_000
