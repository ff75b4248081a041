"""Rare branches of tables: codes or dummies, reference levels, types of columns that cannot be coded."""

from __future__ import annotations

from types import SimpleNamespace

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from setsquare.errors import InputError
from setsquare.tables import design, smooth
from setsquare.tables.arrow import is_unread
from setsquare.tables.coders import Categorical, Numeric
from setsquare.tables.learn import learn
from setsquare.tables.mixed_matrix import join
from setsquare.tables.text_values import written_as_text


def test_many_values_remain_codes_and_few_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"a": np.array(list("abcdefghij"))[np.arange(40) % 10]})
    found = learn(table)
    assert found._n_dummies == 9 and not found.has_codes
    for limit, codes in ((9 * 40, False), (9 * 40 - 1, True)):
        monkeypatch.setattr(design, "FEW_VALUES", limit)
        values = found.split(table).values
        assert isinstance(values, np.ndarray) is not codes
        dense = values.toarray() if codes else values
        np.testing.assert_array_equal(dense, found.apply(table).values)


def test_the_reference_is_the_largest_level_if_asked() -> None:
    table = pd.DataFrame({"a": ["x", "y", "y", "z", "y"]})
    assert learn(table).names == ("a[y]", "a[z]") and learn(table, largest=True).names == ("a[x]", "a[z]")


@pytest.mark.parametrize("values", [[[1], None, [2]], [[1], [2], [3]]])
def test_lists_are_no_levels_even_if_some_are_missing(values: list[list[int] | None]) -> None:
    for table in (pl.DataFrame({"a": values}), pa.table({"a": values})):
        with pytest.raises(InputError, match="'a'") as caught:
            learn(table, missing="level")
        assert "missing" not in str(caught.value)
    with pytest.raises(InputError, match="missing values only"):
        learn(pl.DataFrame({"a": [None, None]}), missing="level")


class Streamed:
    """A foreign column or table that Arrow can read."""

    def __init__(self, data: pa.Table) -> None:
        self.data = data

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.data.__arrow_c_stream__(requested_schema)


def test_what_is_in_memory_is_not_unread() -> None:
    data = pa.table({"a": [1.0, 2.0]})
    assert is_unread(Streamed(data)) and is_unread(data.to_reader()) and is_unread(pl.DataFrame({"a": [1]}).lazy())
    for known in (data, data["a"], pl.DataFrame({"a": [1]}), pl.Series([1]), pd.Series([1]), np.ones(2), [1.0]):
        assert not is_unread(known)
    assert not is_unread(nw.from_native(pl.Series([1]), series_only=True))
    assert not is_unread(nw.from_native(pl.DataFrame({"a": [1]})))


def test_five_values_that_are_no_numbers_are_named() -> None:
    found = learn(pd.DataFrame({"a": [1.0, 2.0, 3.0]}))
    odd = [f"{k}?" for k in range(7)]
    with pytest.raises(InputError, match=r"'4[?]'") as caught:
        found.apply(pd.DataFrame({"a": [*map(str, range(40)), *odd]}))
    assert "'5?'" not in str(caught.value)


@pytest.mark.parametrize(("numeric", "rows"), [(0, 800), (1, 200), (1, 800), (2, 800), (3, 1600)])
def test_the_width_of_a_kernel_falls_with_the_rows_and_less_for_several_columns(
    numeric: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = []

    def learn_one(coders: object, rows: object, bound: float, width: float, weight: object) -> SimpleNamespace:
        widths.append(width)
        return SimpleNamespace(shift=np.zeros(10))

    monkeypatch.setattr(smooth, "_learn_kernel", learn_one)
    coders = [*(Numeric(f"x{j}") for j in range(numeric)), Categorical("g", ("a", "b"))]
    for room in (np.inf, 30.0, 29.0):
        smooth.learn_kernel(coders, SimpleNamespace(n=rows), 0.1, room)  # type: ignore[arg-type]
    first = min(1.0, (243 / rows) ** (0.2 / max(numeric, 1)))
    more = [min(1.0, first * 1.25**k) for k in range(8)]
    until = more.index(1.0) + 1
    assert widths == pytest.approx([first, first, *more[:until]])


@pytest.mark.parametrize(("count", "others", "kind"), [(19, 0, ""), (20, 0, "numbers"), (25, 1, ""), (19, 5, "")])
def test_only_many_texts_and_nothing_else_are_numbers_that_were_written(count: int, others: int, kind: str) -> None:
    assert written_as_text([*(f"{j}.5" for j in range(count)), *range(others)]) == kind


@pytest.mark.parametrize("n_categories", [1, 2])
def test_dummies_have_one_row_of_each_row(n_categories: int) -> None:
    codes = [np.array([0, 1, 2, 1]), np.array([1, 0, 1, 0])][:n_categories]
    dummies = join(np.zeros((4, 0)), codes, [3, 2][:n_categories], [True] * n_categories).dummies
    assert len(dummies.indptr) == 5 and dummies.shape == (4, [3, 5][n_categories - 1])
    np.testing.assert_array_equal(dummies.sum(axis=1), np.full(4, n_categories))
