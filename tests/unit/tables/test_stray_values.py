"""Text columns that are numeric but for a few values are refused by name, unless they are declared as categories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import setsquare as sq
from setsquare import tables
from setsquare.errors import InputError
from setsquare.tables.text_values import stray_values

N = 400
RNG = np.random.default_rng(0)
AGE = [".", *RNG.integers(20, 53, N - 1).astype(str).tolist()]
SCORE = RNG.random(N)


@pytest.fixture(params=[pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "pyarrow"])
def table(request: pytest.FixtureRequest) -> Any:
    return request.param({"age": AGE, "x": RNG.normal(size=N)})


def test_a_stray_point_in_a_protected_column_is_named(table: Any) -> None:
    with pytest.raises(InputError, match=r"Column 'age' holds numbers but for '\.' \(1 row\).*34 groups.*category"):
        sq.audit(SCORE, tables.select(table, ["age"]))


def test_a_stray_point_in_a_feature_is_named(table: Any) -> None:
    with pytest.raises(InputError, match=r"'age' holds numbers but for '\.'"):
        sq.OrthogonalGLMRegressor().fit(table, SCORE, protected=SCORE**2)


def test_text_in_an_array_is_looked_at_too() -> None:
    with pytest.raises(InputError, match=r"'x0' holds numbers but for '\.'"):
        sq.audit(SCORE, np.array(AGE, dtype=object)[:, None])


@pytest.mark.parametrize(
    "declared",
    [
        lambda: pd.DataFrame({"age": AGE}).astype("category"),
        lambda: pl.DataFrame({"age": AGE}).cast(pl.Categorical),  # not at import: polars then has threads, which
        lambda: pl.DataFrame({"age": AGE}).cast(pl.Enum(sorted(set(AGE)))),  # forks of benchmarks.mutants lack
        lambda: pa.table({"age": pa.array(AGE).dictionary_encode()}),
    ],
    ids=["pandas", "polars", "enum", "pyarrow"],
)
def test_a_category_is_taken_for_groups(declared: Callable[[], Any]) -> None:
    assert sq.audit(SCORE, declared()).n_protected == 33


def test_naming_a_reference_declares_groups() -> None:
    assert sq.audit(SCORE, pd.DataFrame({"age": AGE}), reference={"age": "30"}).n_protected == 33


@pytest.mark.parametrize(
    ("values", "strays"),
    [
        (["1", "2", "3"], []),  # text on purpose: groups of digits
        (["01", "2", "x"], []),
        (["1", "2", "3", "4", "5", "?", "NA"], ["?", "NA"]),
        (["0", "1", "2", "3+"], ["3+"]),
        (["1.5", " 2 ", "-3e4", ".5", "nan"], ["nan"]),
        (["250.01", "V57", "E909", "401"], []),
        ([str(k) for k in range(400)] + [f"V{k}" for k in range(40)], []),
        ([True, False], []),
    ],
)
def test_what_counts_as_stray(values: list[Any], strays: list[str]) -> None:
    assert stray_values(values) == strays


def test_batches_of_a_stream_are_looked_at_together() -> None:
    # No batch alone shows that the column is numeric but for one value.
    parts = [pa.table({"age": AGE[a : a + 100], "score": SCORE[a : a + 100]}) for a in range(0, N, 100)]
    stream = sq.Stream(parts)
    with pytest.raises(InputError, match=r"'age' holds numbers but for '\.'"):
        sq.audit(stream["score"], stream[["age"]])


def test_new_rows_with_a_stray_value_are_told_which() -> None:
    ages = np.array(AGE[1:], dtype=float)
    model = sq.OrthogonalGLMRegressor().fit(
        pd.DataFrame({"age": ages, "x": SCORE[1:]}), SCORE[1:], protected=SCORE[1:] ** 2 + ages
    )
    with pytest.raises(InputError, match=r"'age' was numeric in training and now holds other values too \('\.'\)"):
        model.predict(pd.DataFrame({"age": AGE, "x": SCORE}))


def test_numbers_with_a_text_among_them_are_told_which() -> None:
    with pytest.raises(InputError, match=r"'x0' mixes types \(number, text, such as '\.'\)"):
        sq.audit(SCORE, np.array([".", *range(N - 1)], dtype=object)[:, None])


WRITTEN = {
    "numbers": [f"{j / 10 + 0.05:.2f}" for j in range(N)],
    "numbers, with commas": [f"{j / 10 + 0.05:.2f}".replace(".", ",") for j in range(N)],
    "percentages": [f"{j / 10:.1f}%" for j in range(N)],
    "dates": [f"{j % 28 + 1:02d}.{j % 12 + 1:02d}.{2000 + j % 20}" for j in range(N)],
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_numbers_and_dates_as_text_are_refused(kind: str) -> None:
    """Before, each value became a group of its own."""
    told = rf"Column 'a' holds {kind.split(',')[0]} as text \(.*groups: .*convert the column to a category"
    with pytest.raises(InputError, match=told):
        sq.audit(SCORE, pd.DataFrame({"a": WRITTEN[kind]}))
    with pytest.raises(InputError, match=f"The column of predictions holds {kind.split(',')[0]} as text"):
        sq.compare({"a": WRITTEN[kind]}, np.where(SCORE > 0.5, "yes", "no"), SCORE**2)


def test_codes_as_text_are_groups() -> None:
    codes = [f"{j % 30:05d}" for j in range(N)]
    assert sq.audit(SCORE, pd.DataFrame({"a": codes})).n_protected == 29
    whole = [str(j % 30 + 1) for j in range(N)]
    assert sq.audit(SCORE, pd.DataFrame({"a": whole})).n_protected == 29
    grades = [str(j % 8 / 2) for j in range(N)]
    assert sq.audit(SCORE, pd.DataFrame({"a": grades})).n_protected == 7
    versions = pd.DataFrame({"a": [f"1.{j % 30}.0" for j in range(N)]})
    assert sq.audit(SCORE, versions).n_protected == 29


def test_dates_and_lists_are_refused_with_advice() -> None:
    days = pd.date_range("2024-01-01", periods=N)
    with pytest.raises(InputError, match=r"Column 'd' holds dates or times: leave it out.*days since"):
        sq.audit(SCORE, pd.DataFrame({"d": days}))
    vectors = list(RNG.normal(size=(N, 3)))
    for table in (pd.DataFrame({"v": vectors}), pl.DataFrame({"v": np.stack(vectors)}), pa.table({"v": vectors})):
        with pytest.raises(InputError, match=r"Column 'v' holds a list of values in each row.*np\.stack"):
            sq.LinearOrthogonalizer().fit(table, protected=SCORE)


def test_strange_labels_are_not_all_listed() -> None:
    labels = [f"label {j}" for j in range(30)] + ["yes"] * (N - 30)
    with pytest.raises(InputError, match=r"label 0, label 1, label 10, label 11, label 12, … are not among"):
        sq.compare({"a": labels}, np.where(SCORE > 0.5, "yes", "no"), SCORE**2)
