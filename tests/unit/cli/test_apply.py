"""``setsquare apply``: models that were saved from Python, on tables whose columns are in another order."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import setsquare as sq
from setsquare.cli.apply import render_table
from setsquare.cli.arguments import main

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORED = json.loads((FIXTURES / "model-v1.json").read_text())


def apply(rows: pd.DataFrame, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Predictions of the command for rows in a CSV file."""
    rows.to_csv(folder / "rows.csv", index=False)
    arguments = ["apply", str(folder / "rows.csv"), "--model", str(model), "--write-predictions", str(folder / "p.csv")]
    monkeypatch.setattr("sys.argv", ["setsquare", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    return pd.read_csv(folder / "p.csv")


@pytest.mark.parametrize("name", STORED["predictions"])
def test_a_model_saved_from_python_predicts_whatever_the_order_of_the_columns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, expected = pd.DataFrame(STORED["rows"]), np.array(STORED["predictions"][name])
    found = apply(rows[rows.columns[::-1]], FIXTURES / f"model-v1-{name}.setsquare", tmp_path, monkeypatch)
    numbers = found.drop(columns="prediction") if "probability[no]" in found or "probability[0]" in found else found
    np.testing.assert_allclose(numbers.to_numpy().reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)


def test_a_model_that_also_predicts_from_the_protected_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pd.DataFrame(STORED["rows"] * 20)
    rng = np.random.default_rng(0)
    numeric = [f"x{j}" for j in range(5)]
    rows[numeric] += rng.normal(size=(len(rows), 5))
    y = rng.random(len(rows)) < 0.5
    model = sq.OrthogonalGLMClassifier(protected=["sex"], use_protected=True, missing="level").fit(rows, y)
    sq.save(model, tmp_path / "m.setsquare")
    found = apply(rows[rows.columns[::-1]], tmp_path / "m.setsquare", tmp_path, monkeypatch)
    np.testing.assert_allclose(found["probability[True]"], model.predict_proba(rows)[:, 1], rtol=1e-12)


RISKY = ["=1+1", "+cmd", "-2+3", "@SUM(A1)", " =1", "\t=1"]
PLAIN = ["Ann", "-3", "+4.5", "-1e-5", "a=b", ""]


@pytest.mark.parametrize("is_category", [False, True])
def test_csv_neutralises_texts_that_spreadsheets_evaluate(is_category: bool):
    texts = pa.array([*RISKY, *PLAIN])
    table = pa.table({"name": texts.dictionary_encode() if is_category else texts, "=x": range(len(texts))})
    rows = list(csv.reader(io.StringIO(render_table(table, Path("out.csv")).decode())))
    assert rows[0] == ["name", "'=x"]
    assert [row[0] for row in rows[1:]] == [*(f"'{text}" for text in RISKY), *PLAIN]
    raw = list(csv.reader(io.StringIO(render_table(table, Path("out.csv"), raw_text=True).decode())))
    assert [row[0] for row in raw[1:]] == [*RISKY, *PLAIN] and raw[0] == ["name", "=x"]
    kept = pq.read_table(io.BytesIO(render_table(table, Path("out.parquet"))))
    assert kept.column("name").to_pylist() == [*RISKY, *PLAIN]  # no spreadsheet opens it as text
