"""Choosing columns and rows of any table; sparse and plain matrices."""

from __future__ import annotations

from typing import Any

import dask.array
import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

from setsquare import tables
from setsquare.errors import InputError, MissingValuesError
from setsquare.tables.column import read
from setsquare.tables.frame import open_table, to_numpy

DATA = {"age": [1.0, 2.0], "sex": ["m", "f"], "race": ["a", "b"]}


@pytest.fixture(params=[pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "pyarrow"])
def table(request: pytest.FixtureRequest) -> Any:
    return request.param(DATA)


def test_names_and_size(table: Any) -> None:
    assert tables.column_names(table) == ("age", "sex", "race") and tables.n_rows(table) == 2


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(None, ("age", "sex", "race")), ("sex", ("sex",)), (-1, ("race",)), (["race", 0], ("race", "age"))],
)
def test_select_and_drop_keep_the_kind_of_table(table: Any, columns: Any, expected: tuple[str, ...]) -> None:
    chosen = tables.select(table, columns)
    assert type(chosen) is type(table) and tables.column_names(chosen) == expected
    rest = tables.drop(table, columns)
    gone = () if columns is None else expected
    assert type(rest) is type(table)
    assert tables.column_names(rest) == tuple(name for name in DATA if name not in gone)
    assert tables.learn(table, columns).columns == expected


def test_filter_rows(table: Any) -> None:
    kept = tables.filter_rows(table, np.array([False, True]))
    assert type(kept) is type(table) and tables.n_rows(kept) == 1
    np.testing.assert_array_equal(tables.learn(kept, "age").apply(kept).values, [[2.0]])
    assert tables.filter_rows(table, None) is table


def test_arrays_and_sparse_matrices_are_tables_too() -> None:
    array = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(tables.select(array, ["x2", 0]), array[:, [2, 0]])
    np.testing.assert_array_equal(tables.drop(sparse.csc_array(array), "x1").toarray(), array[:, [0, 2]])
    np.testing.assert_array_equal(
        tables.filter_rows(sparse.csr_array(array), np.array([True, False])).toarray(), array[:1]
    )


@pytest.mark.parametrize("series", [pd.Series(["a", "b"]), pl.Series(["a", "b"]), pd.Series(["a", "b"], name="g")])
def test_a_series_is_one_column(series: Any) -> None:
    name = series.name or "x0"
    assert tables.learn(series).names == (f"{name}[b]",)


def test_whole_number_names_are_read_by_position_and_written_as_text() -> None:
    frame = pd.DataFrame(np.arange(4.0).reshape(2, 2), columns=[5, 3])
    learned = tables.learn(frame, ["3", 0])
    assert learned.names == ("3", "5")
    np.testing.assert_array_equal(learned.apply(frame).values, [[1, 0], [3, 2]])


def test_unknown_columns_are_named_with_the_nearest(table: Any) -> None:
    with pytest.raises(InputError, match="no column 'rcae'; did you mean 'race'"):
        tables.learn(table, ["sex", "rcae"])
    with pytest.raises(InputError, match="no column 'zzz'; the table has 'age', 'sex', 'race'"):
        tables.learn(table, "zzz")
    with pytest.raises(InputError, match="no column at position 3"):
        tables.learn(table, 3)
    with pytest.raises(InputError, match="not by True"):
        tables.learn(table, [True])
    with pytest.raises(InputError, match="no column 'race'"):
        tables.learn(table).apply(tables.drop(table, "race"))


@pytest.mark.parametrize(
    "twice",
    [
        pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"]),
        pd.DataFrame([[1, 2]], columns=["1", 1]),
        pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]),
    ],
)
def test_duplicate_names_are_refused(twice: Any) -> None:
    with pytest.raises(InputError, match=r"must be unique, but '[a1]' occurs more than once"):
        tables.learn(twice)


def test_a_column_asked_for_twice_is_refused(table: Any) -> None:
    with pytest.raises(InputError, match="'age' occurs more than once"):
        tables.learn(table, ["age", 0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (pd.DataFrame({"a": []}), "empty .0 rows, 1 columns"),
        (pd.DataFrame(index=[0, 1]), "0 columns"),
        (np.empty((3, 0)), "3 rows, 0 columns"),
        (np.zeros((2, 2, 2)), "not ndarray with 3 dimensions"),
        ({"a": [1]}, "not dict"),
        ([[1, 2], [3]], "equal lengths"),
        (np.ma.masked_array([1.0], [True]), "Masked"),
        (dask.array.zeros((2, 1)), "lazy Array.*compute"),
    ],
)
def test_tables_that_cannot_be_read(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tables.learn(wrong)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
@pytest.mark.parametrize("missing", ["error", "drop", "level"])
def test_sparse_matrices_pass_through(kind: Any, missing: Any) -> None:
    dense = np.array([[0, 1, 0], [2, 0, 3]])
    learned = tables.learn(kind(dense), [2, 1], missing=missing)
    encoded = learned.apply(kind(dense))
    assert sparse.issparse(encoded.values) and encoded.values.format == "csr"
    assert encoded.values.dtype == np.float64 and encoded.names == ("x2", "x1")
    np.testing.assert_array_equal(encoded.values.toarray(), dense[:, [2, 1]])
    np.testing.assert_array_equal(learned.apply(dense).values, dense[:, [2, 1]])


def test_sparse_float_matrices_are_not_copied() -> None:
    matrix = sparse.csr_array(np.eye(3))
    assert tables.learn(matrix).apply(matrix).values.data is matrix.data


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_sparse_matrices_must_be_finite(bad: float) -> None:
    with pytest.raises(MissingValuesError, match=r"not finite in 'x1' \(1\)"):
        tables.learn(sparse.csr_array([[0.0, bad], [1.0, 0.0]]), missing="drop")


def test_numeric_arrays_are_not_copied_and_still_checked() -> None:
    array = np.arange(6.0).reshape(3, 2)
    learned = tables.learn(array)
    assert np.shares_memory(learned.apply(array).values, array)
    array[1, 1] = np.nan
    with pytest.raises(MissingValuesError, match=r"'x1' \(1\)"):
        learned.apply(array)
    array[1, 1] = np.inf
    with pytest.raises(MissingValuesError, match="'x1' has 1 infinite value;"):
        learned.apply(array)


@pytest.mark.parametrize(
    "column",
    [
        pa.chunked_array([["b", None], ["a", "b"]]),
        pa.chunked_array([[True, None], [False, True]]),
        pa.chunked_array([pa.DictionaryArray.from_arrays([2, None, 0, 2], ["a", "unused", "b"])]),
        pa.chunked_array([pa.DictionaryArray.from_arrays([2, 1, 0, 2], ["a", None, "b"])]),
    ],
    ids=["text in chunks", "truth values", "category", "null in the dictionary"],
)
def test_levels_of_pyarrow_columns_are_coded_in_order_and_missing_ones_apart(column: pa.ChunkedArray) -> None:
    found = read(open_table(pa.table({"x": column})), "x")
    assert found.codes.tolist() == [1, -1, 0, 1]
    assert found.levels in (("a", "b"), (False, True))


@pytest.mark.parametrize("unused", [[], ["z"], ["b", "z"]], ids=["none", "one", "between and after"])
def test_a_missing_value_is_no_level_beside_categories_that_do_not_occur(unused: list[str]) -> None:
    column = pd.Categorical(["c", None, "a", "c"], categories=sorted(["a", "c", *unused]))
    found = read(open_table(pd.DataFrame({"x": column})), "x")
    assert found.codes.tolist() == [1, -1, 0, 1] and found.levels == ("a", "c") and found.is_category
    assert found.missing.tolist() == [False, True, False, False]
    assert found.declared == tuple(sorted(["a", "c", *unused]))
    with pytest.raises(MissingValuesError, match=r"'x' \(1\)"):
        tables.learn(pd.DataFrame({"x": column})).apply(pd.DataFrame({"x": column}))
    kept = tables.learn(pd.DataFrame({"x": column}), missing="drop")
    assert kept.names == ("x[c]",)
    coded = tables.learn(pd.DataFrame({"x": column}), missing="level")
    assert coded.names == ("x[c]", "x[missing]")
    np.testing.assert_array_equal(coded.apply(pd.DataFrame({"x": column})).values, [[1, 0], [0, 1], [0, 0], [1, 0]])


def test_numbers_of_pyarrow_columns_are_read_in_all_types() -> None:
    whole, parts = pa.chunked_array([[1, 2], [3]]), pa.chunked_array([[1.5, None]])
    assert to_numpy(nw.from_native(whole, series_only=True)).tolist() == [1, 2, 3]
    assert to_numpy(nw.from_native(whole.cast(pa.int8()), series_only=True)).tolist() == [1, 2, 3]
    assert np.isnan(to_numpy(nw.from_native(parts, series_only=True))[1])
    assert to_numpy(nw.from_native(parts.slice(0, 0), series_only=True)).shape == (0,)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "pyarrow"])
def test_integers_without_an_exact_float_are_read_as_the_nearest_one(make: Any) -> None:
    large = [2**53 + 1, 2**62, -(2**60) - 1]
    np.testing.assert_array_equal(tables.learn(make({"id": large})).apply(make({"id": large})).values[:, 0], large)
