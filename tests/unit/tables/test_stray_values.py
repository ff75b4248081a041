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
from setsquare.tables.validation import stray_values

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
