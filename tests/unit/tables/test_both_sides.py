"""Both sides of conditions of two parts and of limits of tables: kinds of columns, formulas, roles, transformers."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.preprocessing import FunctionTransformer

import setsquare as sq
from setsquare.errors import InputError
from setsquare.families import family
from setsquare.tables import column, formula_check, formula_program, learn, smooth
from setsquare.tables.design import Design
from setsquare.tables.frame import open_table
from setsquare.tables.outcome import positive_class, read_family
from setsquare.tables.roles import _check_kinds
from setsquare.tables.summary import see
from setsquare.tables.validation import check_finite


def rows(values: Any, missing: str = "level") -> Any:
    return column.TableRows(open_table(pd.DataFrame({"a": values})), ("a",), missing)


def test_a_category_that_is_a_number_now():
    assert rows([np.nan, np.nan]).levels("a").codes.tolist() == [-1, -1]
    with pytest.raises(InputError, match="was categorical in training and is now numeric"):
        rows([np.nan, 1.0]).levels("a")
    assert rows(["u", None]).levels("a").levels == ("u",)


def test_rows_that_are_all_dropped():
    frame = open_table(pd.DataFrame({"a": [np.nan, 1.0], "b": [1.0, np.nan]}))
    with pytest.raises(InputError):
        column.open_rows(frame, ("a", "b"), "drop")
    assert column.open_rows(frame, ("a",), "drop").n == 1
    assert column.open_rows(frame, ("a", "b"), "level").n == 2


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_many_short_columns_are_those_of_a_few(kind, monkeypatch):
    table = pd.DataFrame({f"c{j}": np.arange(4.0) + j for j in range(6)})
    table["c2"], table["c3"], table["c4"] = [1, 2, 3, 4], [1.0, np.nan, 2.0, 3.0], ["u", "v", "u", "v"]
    many = table if kind == "pandas" else pa.Table.from_pandas(table, preserve_index=False)

    def read(most: int) -> list[Any]:
        monkeypatch.setattr(column, "MANY_COLUMNS", most)
        frame = open_table(many)
        values = [column.read(frame, name) for name in table]
        return [one.values if hasattr(one, "values") else one.codes for one in values]

    for one, other in zip(read(6), read(7), strict=True):
        np.testing.assert_array_equal(one, other)
    infinite = pd.DataFrame({f"c{j}": [1.0, np.inf if j == 1 else 2.0] for j in range(6)})
    monkeypatch.setattr(column, "MANY_COLUMNS", 6)
    with pytest.raises(InputError, match="c1"):
        column.read(open_table(infinite), "c1")


def test_integers_of_arrow_beyond_those_of_floats():
    table = pa.table({"a": pa.array([2**53 + 1, 3], pa.int64())})
    assert column.read(open_table(table), "a").values.tolist() == [float(2**53), 3.0]


def test_columns_of_nothing_of_an_unknown_kind():
    blank = pa.table({"a": pa.nulls(3), "b": [1.0, 2.0, 3.0]})
    assert column.read(open_table(blank), "a").missing.all()
    dates = pa.table({"a": pa.array([None, 1], pa.date32())})
    with pytest.raises(InputError, match="a"):
        column.read(open_table(dates), "a")


def test_lengths_and_powers_of_formulas():
    longest = "~ a" + " " * (formula_check.MAX_LENGTH - 3)
    formula_check.check_text(longest)
    with pytest.raises(InputError, match="characters: write at most"):
        formula_check.check_text(longest + " ")
    formula_check.check_text(f"~ a**{formula_check.MAX_POWER}")
    for power in (str(formula_check.MAX_POWER + 1), "9" * 9, "9" * 10, "0" * 9 + "1"):
        with pytest.raises(InputError, match="has a power above"):
            formula_check.check_text(f"~ a**{power}")
    formula_check.check_text("~ a**" + "0" * 8 + "1")
    for length, allowed in ((1000, True), (1001, False)):
        assert formula_check._is_plain_constant(ast.Constant("u" * length)) is allowed
    assert not formula_check._is_plain_constant(ast.Constant("u'v")) and formula_check._is_plain_constant(
        ast.Constant(None)
    )


def test_columns_of_formulas_one_of_which_is_not_finite():
    with pytest.raises(InputError, match="not finite in the column 'b'"):
        formula_check.check_values("~ a + b", np.array([[1.0, np.inf], [2.0, 3.0]]), ["a", "b"])
    formula_check.check_values("~ a + b", np.ones((2, 2)), ["a", "b"])


@pytest.mark.parametrize(("expression", "name"), [("C(a)", "a"), ("C(1)", None), ("a + b", None)])
def test_names_in_calls(expression, name):
    if name is None:
        with pytest.raises(formula_program._NoProgramError):
            formula_program._name_in_call(expression)
    else:
        assert formula_program._name_in_call(expression) == name


def test_one_value_beyond_a_spline():
    knots = (0.0, 0.0, 1.0, 1.0)
    inside = formula_program._spline(np.array([0.0, 0.25, 1.0]), knots, 1)
    np.testing.assert_allclose(inside[:, 0], [0.0, 0.25, 1.0])
    for wrong in (-0.1, 1.1):
        with pytest.raises(InputError, match="outside the range of the spline, 0 to 1"):
            formula_program._spline(np.array([0.5, wrong]), knots, 1)


def test_what_is_given_or_protected():
    table = pd.DataFrame({"z": np.arange(20.0), "u": np.cos(np.arange(20.0)), "x": np.arange(20) % 2.0, "one": 1.0})
    with pytest.raises(InputError, match=r"Nothing is given: the given column\(s\) \(one\) are constant"):
        sq.LinearOrthogonalizer(["x"], given=["one"]).fit(table.assign(one="s"))
    with pytest.raises(InputError, match="takes the protected columns themselves"):
        _check_kinds(None, ["x", "y"])
    _check_kinds(None, ["x", 1])
    _check_kinds(None, [])
    for named in (np.array(["x"]), np.zeros((2, 2)), pd.Series(["x"]), {"x"}):
        with pytest.raises(InputError, match="takes names or positions of columns"):
            _check_kinds(named, None)
    with pytest.raises(InputError, match="the list of protected columns is empty"):
        _check_kinds([], None)
    for fine in (None, "x", 1, np.int64(1), ["x"], (1,)):
        _check_kinds(fine, None)


MADE = {
    "flat": lambda U: np.ones(len(U)),
    "fewer": lambda U: U[:-1],
    "infinite": lambda U: np.where(np.arange(len(U))[:, None] == 0, np.inf, U),
}


@pytest.mark.parametrize("kind", MADE)
def test_transformers_that_give_other_rows(kind):
    table = pd.DataFrame({"a": np.arange(9.0), "b": np.arange(9) % 2.0})
    with pytest.raises(InputError, match="must give one row of finite numbers"):
        learn(table, ["a", "b"], basis=FunctionTransformer(MADE[kind]))
    assert learn(table, ["a", "b"], basis=FunctionTransformer(lambda U: 2.0 * U)).names


def test_a_category_in_one_of_two_batches():
    text = see(column.read(open_table(pd.DataFrame({"a": ["u", "v"]})), "a"))
    category = see(column.read(open_table(pd.DataFrame({"a": pd.Categorical(["u", "w"])})), "a"))
    assert text.is_category != category.is_category
    assert text.merge(category, "a").is_category and category.merge(text, "a").is_category
    assert not text.merge(text, "a").is_category


def test_two_classes_of_two_or_three_columns():
    y, asked = np.array([0.0, 1.0, 1.0]), family("multinomial")
    assert read_family(y, asked, n_columns=2).family.name == "binomial"
    assert read_family(y, asked, n_columns=3).family.name == "multinomial"
    assert read_family(np.arange(3.0), asked, n_columns=2).family.name == "multinomial"


def test_a_column_without_rows_has_no_values():
    found = column.read(open_table(pd.DataFrame({"a": np.zeros(0)})), "a")
    assert found.values.shape == (0,)


@pytest.mark.parametrize("text", ["poly(x, degree=2)", "poly(x, 2, raw=True)", "poly(x, 2)"])
def test_a_polynomial_is_a_program_if_it_has_a_degree_and_no_word(text):
    node = ast.parse(text, mode="eval").body
    states = {ast.unparse(node): {"alpha": {0: 1.0}, "norms2": {0: 2.0, 1: 3.0}}}

    def made() -> Any:
        return formula_program._node(node, states, ["x"])

    if text == "poly(x, 2)":
        assert made() == ("poly", ("column", "x"), (1.0,), (2.0, 3.0))
        return
    with pytest.raises(formula_program._NoProgramError):
        made()


def test_no_row_that_is_complete_in_features_and_protected_columns():
    table = pd.DataFrame({"z": [1.0, np.nan, 2.0, np.nan], "x": [np.nan, 1.0, np.nan, 0.0]})
    with pytest.raises(InputError, match="No row is complete in both features and protected columns"):
        sq.OrthogonalGLMRegressor(protected="x", missing="drop").fit(table, np.arange(4.0))


def test_the_spread_of_values_that_are_all_missing_or_weigh_nothing():
    assert smooth._deviation(np.full(3, np.nan), np.ones(3)) == 0.0
    assert smooth._deviation(np.arange(3.0), np.zeros(3)) == 0.0
    assert smooth._deviation(np.array([1.0, 3.0, np.nan, 50.0]), np.array([1.0, 1.0, 1.0, 0.0])) == 1.0


def test_rows_that_are_equal_are_chosen_once():
    chosen, G, left = smooth._factor(np.array([[1.0], [1.0]]), np.array([0.5, 0.5]), -1.0)
    assert list(chosen) == [0] and left == 0.0
    np.testing.assert_allclose(G, [[1.0], [1.0]])


def test_a_design_with_one_coder_of_the_user_is_not_plain_data():
    own = learn(pd.DataFrame({"a": [1.0, 2.0]})).coders[0]
    assert Design((own,), "error", "error").to_dict()["coders"][0]["kind"]
    with pytest.raises(InputError, match="cannot be written as plain data"):
        Design((own, SimpleNamespace(columns=("b",), names=("b",), sources=("b",))), "error", "error").to_dict()


@pytest.mark.parametrize(("classes", "has_numbers"), [(["3", "4"], True), (["3", "b"], False), (["a", "b"], False)])
def test_classes_one_of_which_is_a_number_are_no_numbers(classes, has_numbers):
    with pytest.raises(InputError, match="It is unclear which of the classes") as refused:
        positive_class(classes)
    assert ("if these are numbers" in str(refused.value)) is has_numbers


def test_a_table_of_protected_columns_only_lacks_none():
    table = pd.DataFrame({"x": [0.0, 1.0], "z": [1.0, 2.0]})
    reader = sq.LinearOrthogonalizer(protected="x").fit(table).reader_
    assert not reader.lacks_protected(table) and not reader.lacks_protected(table[["x"]])
    assert reader.lacks_protected(table[["z"]])


def test_an_array_of_a_kind_of_its_own_is_not_sparse():
    class Own(np.ndarray):
        pass

    values = np.array([[1.0, 2.0], [3.0, np.nan]]).view(Own)
    check_finite(values[:1], ("a", "b"), "")
    with pytest.raises(InputError, match="B has 1 NaN"):
        check_finite(values, ("a", "b"), "")
