"""Columns of every type, from every kind of table, against arrays written by hand and pandas.get_dummies."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from setsquare import tables
from setsquare.errors import InputError, MissingValuesError, UnseenLevelError
from setsquare.tables.validation import are_finite


def nullable(data: Any, **options: Any) -> pd.DataFrame:
    with np.errstate(invalid="ignore"):  # pandas 2.2 casts infinite values to integers, to see whether they are any
        return pd.DataFrame(data).convert_dtypes(**options)


MAKERS: dict[str, Any] = {
    "pandas": pd.DataFrame,
    "pandas-object": lambda data: pd.DataFrame(data).astype(object),
    "pandas-nullable": lambda data: nullable(data),
    "pandas-arrow": lambda data: nullable(data, dtype_backend="pyarrow"),
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
}


@pytest.fixture(params=[*MAKERS, "numpy"])
def make(request: pytest.FixtureRequest) -> Any:
    """A function from a dict of lists to a table; numpy columns would be x0, x1, …, so the dict uses those."""
    if request.param == "numpy":
        return lambda data: np.array(list(zip(*data.values(), strict=True)), dtype=object)
    return MAKERS[request.param]


DATA = {
    "x0": ["White", "Black", "Asian", "White"],
    "x1": [31, 44, 27, 60],
    "x2": [True, False, True, True],
    "x3": [0.5, 1.5, -2.0, 0.0],
}
CODED = np.array([[0, 1, 31, 1, 0.5], [1, 0, 44, 0, 1.5], [0, 0, 27, 1, -2.0], [0, 1, 60, 1, 0.0]])


def test_every_kind_of_table_gives_the_same_matrix(make: Any) -> None:
    learned = tables.learn(make(DATA))
    encoded = learned.apply(make(DATA))
    assert encoded.names == learned.names == ("x0[Black]", "x0[White]", "x1", "x2[True]", "x3")
    assert encoded.sources == ("x0", "x0", "x1", "x2", "x3")
    np.testing.assert_array_equal(encoded.values, CODED)
    assert encoded.values.dtype == np.float64 and encoded.values.flags.f_contiguous
    assert encoded.keep is None and encoded.n_pooled == {}


@pytest.mark.parametrize("kind", ["polars", "pyarrow", "pandas-object"])
def test_a_design_learned_on_pandas_applies_to_other_tables(kind: str) -> None:
    learned = tables.learn(pd.DataFrame(DATA))
    shuffled = {name: DATA[name] for name in ("x3", "x2", "x0", "x1")}
    np.testing.assert_array_equal(learned.apply(MAKERS[kind](shuffled)).values, CODED)


def test_dummies_agree_with_pandas() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.choice(list("pqrs"), 200), "b": rng.choice(["y", "n"], 200)})
    expected = pd.get_dummies(frame, drop_first=True, dtype=float)
    encoded = tables.learn(frame).apply(frame)
    np.testing.assert_array_equal(encoded.values, expected.to_numpy())
    assert [name.replace("[", "_").rstrip("]") for name in encoded.names] == list(expected.columns)


def test_the_reference_is_chosen_by_value_or_by_its_text(make: Any) -> None:
    learned = tables.learn(make(DATA), reference={"x0": "White", "x2": "True"})
    assert learned.names == ("x0[Asian]", "x0[Black]", "x1", "x2[False]", "x3")
    np.testing.assert_array_equal(learned.apply(make(DATA)).values[:, 3], [0, 1, 0, 0])


@pytest.mark.parametrize(
    "series",
    [
        pd.Series(pd.Categorical(["lo", "hi", "lo"], categories=["lo", "mid", "hi"])),
        pd.Series(pd.Categorical(["lo", "hi", "lo"], categories=["lo", "mid", "hi"], ordered=True)),
        pl.Series(["lo", "hi", "lo"], dtype=pl.Enum(["lo", "mid", "hi"])),
        pa.chunked_array([pa.DictionaryArray.from_arrays([0, 2, 0], ["lo", "mid", "hi"])]),
    ],
    ids=["pandas", "pandas-ordered", "polars-enum", "pyarrow"],
)
def test_categoricals_keep_the_declared_order_of_observed_levels(series: Any) -> None:
    table = pa.table({"x0": series}) if isinstance(series, pa.ChunkedArray) else series
    learned = tables.learn(table)
    assert learned.names == ("x0[hi]",)
    np.testing.assert_array_equal(learned.apply(table).values, [[0], [1], [0]])


def test_a_polars_categorical_does_not_depend_on_the_order_in_which_levels_were_met() -> None:
    learned = tables.learn(pl.DataFrame({"a": pl.Series(["z", "b", "a"], dtype=pl.Categorical)}))
    assert learned.names == ("a[b]", "a[z]")


@pytest.mark.parametrize(
    ("table", "names", "values"),
    [
        (pd.DataFrame({"a": pd.Categorical([3, 1, 3], categories=[3, 2, 1])}), ("a[1]",), [[0], [1], [0]]),
        (pd.DataFrame({"a": pd.cut(pd.Series([1, 9, 5]), [0, 4, 10])}), ("a[(4, 10]]",), [[0], [1], [1]]),
        (pa.table({"a": pa.DictionaryArray.from_arrays([1, 0, 1], [10, 5])}), ("a[5]",), [[1], [0], [1]]),
        (pl.DataFrame({"a": [Decimal("1.5"), Decimal("2"), Decimal("0")]}), ("a",), [[1.5], [2], [0]]),
        (np.array([Decimal("1.5"), 2, np.float32(0)], dtype=object), ("x0",), [[1.5], [2], [0]]),
        (np.array(["b", "a", "b"]), ("x0[b]",), [[1], [0], [1]]),
        (np.array([True, False, True]), ("x0[True]",), [[1], [0], [1]]),
        ([[1, "a"], [2, "b"], [3, "a"]], ("x0", "x1[b]"), [[1, 0], [2, 1], [3, 0]]),
        (np.array([[1, 2], [3, 4], [5, 6]], dtype=np.uint8), ("x0", "x1"), [[1, 2], [3, 4], [5, 6]]),
    ],
    ids=["cat-int", "interval", "dict-int", "decimal", "object-number", "text", "bool", "list", "uint8"],
)
def test_unusual_columns(table: Any, names: tuple[str, ...], values: Any) -> None:
    learned = tables.learn(table)
    assert learned.names == names
    np.testing.assert_array_equal(learned.apply(table).values, values)
    assert tables.Design.from_dict(json.loads(json.dumps(learned.to_dict()))) == learned


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (pl.DataFrame({"d": [date(2020, 1, 1)]}), "holds dates or times: leave it out"),
        (pd.DataFrame({"d": pd.to_timedelta([1], unit="s")}), "holds dates or times: leave it out"),
        (pl.DataFrame({"d": [[1, 2]]}), "holds a list of values in each row"),
        (pd.DataFrame({"d": [1j]}), "of type Unknown.*leave it out"),
        (pd.DataFrame({"d": [{1}]}), "of type object.*leave it out"),
    ],
)
def test_columns_that_cannot_be_read_are_named_with_their_kind(table: Any, kind: str) -> None:
    with pytest.raises(InputError, match=f"Column 'd' {kind}"):
        tables.learn(table)


@pytest.mark.parametrize("mixed", [[1, "a"], [True, "a"], [True, 1], [date(2020, 1, 1), "a"]])
def test_mixed_object_columns_are_refused(mixed: list[Any]) -> None:
    with pytest.raises(InputError, match=r"'x0' mixes types .*convert"):
        tables.learn(np.array(mixed, dtype=object))


MISSING = {"x0": ["b", None, "a", "b"], "x1": [1.0, 3.0, None, 8.0], "x2": [True, False, None, True]}


def test_missing_values_are_refused_with_counts(make: Any) -> None:
    with pytest.raises(MissingValuesError, match=r"columns 'x0' \(1\), 'x1' \(1\), 'x2' \(1\); fill.*drop.*level"):
        tables.learn(make(MISSING))


def test_rows_with_missing_values_are_dropped_and_reported(make: Any) -> None:
    learned = tables.learn(make(MISSING), missing="drop")
    # Only b and True are left: a was seen in a dropped row.
    assert learned.names == ("x1",) and learned.constant == ("x0", "x2")
    encoded = learned.apply(make(MISSING))
    np.testing.assert_array_equal(encoded.keep, [True, False, False, True])
    np.testing.assert_array_equal(encoded.values, [[1], [8]])


def test_missing_becomes_a_level(make: Any) -> None:
    learned = tables.learn(make(MISSING), missing="level")
    assert learned.names == ("x0[b]", "x0[missing]", "x1", "x1[missing]", "x2[True]", "x2[missing]")
    expected = [[1, 0, 1, 0, 1, 0], [0, 1, 3, 0, 0, 0], [0, 0, 4, 1, 0, 1], [1, 0, 8, 0, 1, 0]]
    np.testing.assert_array_equal(learned.apply(make(MISSING)).values, expected)
    assert tables.Design.from_dict(json.loads(json.dumps(learned.to_dict()))) == learned


def test_a_pyarrow_dictionary_with_nulls_keeps_them() -> None:
    table = pa.table({"a": pa.DictionaryArray.from_arrays([1, 0, None], ["z", "a"])})
    encoded = tables.learn(table, missing="level").apply(table)
    assert encoded.names == ("a[a]", "a[missing]")
    np.testing.assert_array_equal(encoded.values, [[1, 0], [0, 0], [0, 1]])


@pytest.mark.parametrize("frame", [pl.DataFrame({"a": [1.0, None, float("nan")]}), np.array([1.0, np.nan, np.nan])])
def test_nan_and_null_both_count_as_missing(frame: Any) -> None:
    with pytest.raises(MissingValuesError, match=r"\(2\)"):
        tables.learn(frame)
    np.testing.assert_array_equal(tables.learn(frame, missing="drop").apply(frame).values, [[1]])


def test_missing_values_that_training_did_not_have_follow_the_unseen_rule(make: Any) -> None:
    complete = {"x0": ["b", "a"], "x1": [1.0, 3.0]}
    later = {"x0": ["b", None], "x1": [None, 3.0]}
    with pytest.raises(UnseenLevelError, match=r"'x0' has 1 row .*'missing' \(1\)"):
        tables.learn(make(complete), missing="level").apply(make(later))
    with pytest.raises(MissingValuesError, match="'x1' has 1 missing"):
        tables.learn(make(complete), "x1", missing="level").apply(make(later))
    encoded = tables.learn(make(complete), missing="level", unseen="pool").apply(make(later))
    np.testing.assert_array_equal(encoded.values, [[1, 2], [0, 3]])
    assert encoded.n_pooled == {"x0": 1, "x1": 1}


def test_a_column_of_nothing(make: Any) -> None:
    nothing = {"x0": [None, None], "x1": [1.0, 2.0]}
    with pytest.raises(MissingValuesError, match="'x0' has missing values only"):
        tables.learn(make(nothing), missing="level")
    with pytest.raises(InputError, match="No row is left"):
        tables.learn(make(nothing), missing="drop")
    trained = tables.learn(make({"x0": ["a", None, "b"], "x1": [1.0, 2.0, 3.0]}), missing="level")
    np.testing.assert_array_equal(trained.apply(make(nothing)).values, [[0, 1, 1], [0, 1, 2]])


def test_a_real_level_called_missing_does_not_merge_with_missing_values() -> None:
    with pytest.raises(InputError, match="'a' has two levels written 'missing'"):
        tables.learn(pd.DataFrame({"a": ["missing", None, "b"]}), missing="level")


@pytest.mark.parametrize("missing", ["error", "drop", "level"])
def test_infinite_values_are_always_refused(make: Any, missing: Any) -> None:
    with pytest.raises(MissingValuesError, match="'x0' has 2 infinite values"):
        tables.learn(make({"x0": [np.inf, 1.0, -np.inf]}), missing=missing)


def test_unseen_levels_are_refused_with_their_counts(make: Any) -> None:
    learned = tables.learn(make({"x0": ["a", "b", "a"]}))
    with pytest.raises(UnseenLevelError, match=r"'x0' has 3 rows .*'c' \(2\), 'd' \(1\); recode.*reference 'a'"):
        learned.apply(make({"x0": ["c", "d", "b", "c"]}))


def test_unseen_levels_are_pooled_and_counted(make: Any) -> None:
    learned = tables.learn(make({"x0": ["a", "b", "a"]}), unseen="pool", reference={"x0": "b"})
    encoded = learned.apply(make({"x0": ["c", "d", "a", "b"]}))
    np.testing.assert_array_equal(encoded.values, [[0], [0], [1], [0]])
    assert encoded.n_pooled == {"x0": 2}


CELLS = {"x0": ["M", "F", "M", "F", "M"], "x1": [1, 2, 3, 4, 5], "x2": ["b", "a", "a", "c", "b"]}


def test_all_cells(make: Any) -> None:
    learned = tables.learn(make(CELLS), basis="cells")
    assert learned.names == ("x0:x2[F,c]", "x0:x2[M,a]", "x0:x2[M,b]", "x1")
    assert learned.sources == ("x0:x2", "x0:x2", "x0:x2", "x1")
    expected = [[0, 0, 1, 1], [0, 0, 0, 2], [0, 1, 0, 3], [1, 0, 0, 4], [0, 0, 1, 5]]
    np.testing.assert_array_equal(learned.apply(make(CELLS)).values, expected)
    assert tables.Design.from_dict(json.loads(json.dumps(learned.to_dict()))) == learned


def test_the_reference_cell_follows_the_reference_levels() -> None:
    learned = tables.learn(pd.DataFrame(CELLS), basis="cells", reference={"x0": "M", "x2": "b"})
    assert learned.names == ("x0:x2[M,a]", "x0:x2[F,a]", "x0:x2[F,c]", "x1")


def test_unseen_cells_follow_the_unseen_rule(make: Any) -> None:
    later = {"x0": ["F", "M", "X", "M", "M"], "x1": [1, 2, 3, 4, 5], "x2": ["b", "c", "a", "b", "z"]}
    with pytest.raises(
        UnseenLevelError, match=r"'x0:x2' has 4 rows .*'F,b' \(1\), 'M,c' \(1\), 'M,z' \(1\), 'X,a' \(1\)"
    ):
        tables.learn(make(CELLS), basis="cells").apply(make(later))
    encoded = tables.learn(make(CELLS), basis="cells", unseen="pool").apply(make(later))
    np.testing.assert_array_equal(
        encoded.values, [[0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 3], [0, 0, 1, 4], [0, 0, 0, 5]]
    )
    assert encoded.n_pooled == {"x0:x2": 4}


def test_cells_of_one_or_no_categorical_are_plain_columns() -> None:
    assert tables.learn(pd.DataFrame(CELLS), ["x0", "x1"], basis="cells").names == ("x0[M]", "x1")
    assert tables.learn(pd.DataFrame(CELLS), ["x1"], basis="cells").names == ("x1",)


def test_cells_of_many_columns_do_not_overflow() -> None:
    rng = np.random.default_rng(1)
    table = rng.integers(0, 40, size=(50, 14)).astype("U")  # 40**14 combinations exceed 64 bits
    values = tables.learn(table, basis="cells").apply(table).values
    assert values.shape == (50, 49)
    np.testing.assert_array_equal(values.sum(axis=0), 1)


def test_a_single_level_gives_no_column_and_is_listed(make: Any) -> None:
    learned = tables.learn(make({"x0": ["a", "a"], "x1": [True, True], "x2": [1, 2]}))
    assert learned.names == ("x2",) and learned.constant == ("x0", "x1")
    assert learned.columns == ("x0", "x1", "x2")
    cells = tables.learn(make({"x0": ["a", "a"], "x1": [True, True], "x2": [1, 2]}), basis="cells")
    assert cells.names == ("x2",) and cells.constant == ("x0:x1",)


def test_a_column_must_keep_its_kind() -> None:
    with pytest.raises(InputError, match="'a' was numeric in training"):
        tables.learn(pd.DataFrame({"a": [1, 2]})).apply(pd.DataFrame({"a": ["1", "2"]}))
    with pytest.raises(InputError, match="'a' was categorical in training"):
        tables.learn(pd.DataFrame({"a": ["1", "2"]})).apply(pd.DataFrame({"a": [1, 2]}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": {"x0": "Martian"}}, "'x0' has no level 'Martian'.*'Asian', 'Black', 'White'"),
        ({"reference": {"race": "White"}}, "names the column 'race', which is not among"),
        ({"reference": {"x1": 31}}, "'x1' is numeric and has no reference level"),
        ({"basis": "onehot"}, "basis='onehot' is not one of 'linear', 'cells'"),
        ({"missing": "ignore"}, "missing='ignore' is not one of"),
        ({"unseen": "drop"}, "unseen='drop' is not one of"),
        ({"columns": []}, "No column is named"),
        ({"columns": "x0", "formula": "~ x0"}, "not both"),
    ],
)
def test_wrong_options(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tables.learn(make(DATA), **options)


def test_output_names_that_collide_are_refused() -> None:
    with pytest.raises(InputError, match=r"Two output columns would be called 'a\[y\]'"):
        tables.learn(pd.DataFrame({"a": ["x", "y"], "a[y]": [1.0, 2.0]}))


def test_a_design_pickles(make: Any) -> None:
    learned = tables.learn(make(DATA), basis="cells")
    assert pickle.loads(pickle.dumps(learned)) == learned


def test_importing_loads_no_dataframe_library() -> None:
    code = (
        "import sys, setsquare.tables as d; d.learn([[1, 'a'], [2, 'b']]).apply([[1, 'a']]); "
        "print({'pandas', 'polars', 'pyarrow', 'formulaic'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


def test_a_missing_number_of_an_array_is_a_level_of_its_own() -> None:
    rows = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0], [0.0, 1.0]])
    design = tables.learn(rows, missing="level")
    assert design.names == ("x0", "x1", "x1[missing]")
    np.testing.assert_array_equal(design.apply(rows).values[1], [3.0, 3.0, 1.0])
    complete = tables.learn(np.nan_to_num(rows), missing="level", unseen="pool")  # the mean is kept
    np.testing.assert_array_equal(complete.apply(rows).values[1], [3.0, 2.25])


@pytest.mark.parametrize("place", [0, 999, 1000, 1001, 2000, 2001, 2499])
def test_a_number_that_is_not_finite_is_found_wherever_it_is(place: int) -> None:
    values = np.full(2500, 1e308)  # the sum is infinite, so that each number is looked at
    assert are_finite(values)
    values[place] = np.nan
    assert not are_finite(values)
