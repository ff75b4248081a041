"""The real files, where they are: counts of the publications, level orders of R, the raw text of UCI."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from setsquare import datasets
from setsquare.datasets.registry import REGISTRY


def load(name: str, **options: Any) -> datasets.Dataset:
    """Load from the user's folder, or skip with the reason; never touch the network."""
    folder = os.environ.get("SETSQUARE_DATA")
    if not folder:
        pytest.skip("SETSQUARE_DATA is not set")
    for file in REGISTRY[name].files:
        if not (Path(folder) / file.path).is_file():
            pytest.skip(f"{file.path} is not in SETSQUARE_DATA")
    return datasets.load(name, **options)


#: rows, columns of the table, outcome, its levels, how many have the second one, protected columns
TABLES = {
    "adult": (30162, 14, "income", ["<=50K", ">50K"], 7508, ("race", "sex")),
    "adult_uci": (32561, 15, "income", ["<=50K", ">50K"], 7841, ("race", "sex")),
    "bank": (40195, 19, "subscribed", ["no", "yes"], None, ("age",)),
    "compas": (5855, 16, "two_year_recid", ["No", "Yes"], None, ("sex", "race")),
}


@pytest.mark.parametrize("name", TABLES)
def test_binomial_tables(name: str) -> None:
    rows, columns, outcome, levels, ones, protected = TABLES[name]
    data = load(name)
    assert data.table.shape == (rows, columns) and data.n_rows == REGISTRY[name].n_rows == rows
    assert (data.outcome, data.protected, data.family) == (outcome, protected, "binomial")
    assert list(data.table[outcome].cat.categories) == levels
    assert set(data.features) == set(data.table.columns) - {outcome}
    np.testing.assert_array_equal(data.y, (data.table[outcome] == levels[1]).astype(float))
    assert ones is None or data.y.sum() == ones
    assert isinstance(data.table.index, pd.RangeIndex) and not data.table.isna().any(axis=None)


@pytest.mark.parametrize(
    ("name", "column", "levels"),
    [
        ("adult", "race", ["White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"]),
        ("adult", "sex", ["Female", "Male"]),
        ("adult_uci", "race", ["Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White"]),
        (
            "compas",
            "race",
            ["African-American", "Asian", "Caucasian", "Hispanic", "Native American", "Other"],
        ),
        ("health_retirement", "race", ["Black", "Other", "White"]),
        ("health_retirement", "marriage", ["Married/Partner", "Not Married"]),
        (
            "bank",
            "month",
            ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
        ),
    ],
)
def test_levels_keep_the_order_of_r(name: str, column: str, levels: list[str]) -> None:
    assert list(load(name).table[column].cat.categories) == levels


def test_levels_without_rows_are_kept() -> None:
    counts = load("bank").table["month"].value_counts()
    assert counts["jan"] == counts["feb"] == 0
    assert load("adult").table["workclass"].value_counts()["Never-worked"] == 0


def test_health_retirement() -> None:
    data = load("health_retirement")
    assert data.table.shape == (12766, 26) and data.family == "poisson"
    assert data.protected == ("age", "gender", "marriage", "race")
    assert "race.ethnicity" not in data.table.columns and not data.table.isna().any(axis=None)
    assert np.array_equal(data.y, np.round(data.y)) and data.y.min() == 0
    # R: mean(yhat) of a Poisson model with intercept is mean(y); 0.5712830960582 in the reference run.
    assert data.y.mean() == pytest.approx(0.5712830960582, abs=1e-6)
    everything = load("health_retirement", complete=False)
    assert everything.table.shape == (38653, 26)
    assert everything.table["race"].isna().sum() == 98


@pytest.mark.parametrize(("name", "mean"), [("adult", 0.2489224899614), ("compas", 0.4606319358826)])
def test_outcome_means_match_the_reference_run_in_r(name: str, mean: float) -> None:
    assert load(name).y.mean() == pytest.approx(mean, abs=1e-6)


def assert_same_table(a: pd.DataFrame, b: pd.DataFrame) -> None:
    """Columns, index, types, categories and values; pandas compares categories value by value, which takes seconds."""
    assert list(a.columns) == list(b.columns) and a.index.equals(b.index)
    for name in a.columns:
        one, other = a[name], b[name]
        assert one.dtype == other.dtype
        if isinstance(one.dtype, pd.CategoricalDtype):
            assert list(one.cat.categories) == list(other.cat.categories) and one.cat.ordered == other.cat.ordered
            one, other = one.cat.codes, other.cat.codes
        np.testing.assert_array_equal(one, other)


def test_adult_for_table_2() -> None:
    data = load("adult_uci", table2=True)
    assert data.n_rows == 29170 and data.protected == ("sex", "race")
    assert data.features == (
        "age",
        "workclass",
        "education",
        "marital_status",
        "relationship",
        "hours_per_week",
    )
    assert (data.table["native_country"] == "United-States").all()
    assert len(data.table["native_country"].cat.categories) == 42
    us = load("adult_uci", united_states_only=True)
    assert_same_table(us.table, data.table)
    assert us.features == tuple(column for column in us.table.columns if column != "income")


def test_the_raw_text_of_uci_gives_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text written from the table has UCI's own checksum, and reading it gives the table back."""
    expected = load("adult_uci").table
    raw = REGISTRY["adult_uci"].files[0].alternatives[0]
    lines = [", ".join(map(str, row)) for row in expected.itertuples(index=False)]
    content = ("\n".join(lines) + "\n\n").encode()
    assert hashlib.sha256(content).hexdigest() == raw.sha256
    path = tmp_path / raw.path
    path.parent.mkdir()
    path.write_bytes(content)
    monkeypatch.setenv("SETSQUARE_DATA", str(tmp_path))
    assert_same_table(datasets.load_adult("uci").table, expected)
    assert datasets.available("adult_uci")


def test_acs_income() -> None:
    data = load("acs_income")
    assert data.table.shape == (332900, 11) and data.n_rows == REGISTRY["acs_income"].n_rows
    assert (data.outcome, data.protected, data.family) == ("PINCP", ("SEX", "RAC1P"), "binomial")
    assert data.y.sum() == 122651 and not data.table.isna().any(axis=None)
    levels = {name: len(column.cat.categories) for name, column in data.table.items() if column.dtype == "category"}
    assert levels == {"RAC1P": 9, "SCHL": 24, "POBP": 223, "SEX": 2, "OCCP": 529, "RELP": 18, "COW": 8, "MAR": 5}
    assert set(data.features) == {"SCHL", "POBP", "OCCP", "RELP", "COW", "MAR", "WKHP", "AGEP"}
    first = data.table.iloc[0]
    assert (first["RAC1P"], first["OCCP"], first["AGEP"]) == ("0", "8740", 20)  # as in the file
    assert list(data.table["MAR"].cat.categories) == ["1", "2", "3", "4", "5"]
