"""Formulas against formulaic itself, and our errors in place of its own."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import formulaic
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import setsquare as sq
from setsquare import tables
from setsquare.errors import InputError, MissingDependencyError, MissingValuesError, UnseenLevelError

FORMULA = "~ sex * race + bs(age, df=4)"


def data(seed: int, n: int = 60) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "age": rng.uniform(20, 80, n).tolist(),
        "sex": rng.choice(["f", "m"], n).tolist(),
        "race": rng.choice(["a", "b", "c"], n).tolist(),
        "flag": (rng.random(n) < 0.5).tolist(),
        "year": rng.choice([2019, 2020], n).tolist(),
    }


@pytest.fixture(params=[pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "pyarrow"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def inside(values: dict[str, list[Any]], train: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return values | {"age": np.clip(values["age"], min(train["age"]), max(train["age"])).tolist()}


def typed(values: dict[str, list[Any]]) -> pd.DataFrame:
    """A boolean is a categorical here; formulaic alone would take it for a number."""
    return pd.DataFrame(values).astype({"flag": "category"})


@pytest.mark.parametrize("formula", [FORMULA, "~ 0 + sex:age + flag + C(year) + log(age)", "~ poly(age, 2) - 1 + race"])
def test_state_is_learned_once_and_reused(make: Any, formula: str) -> None:
    train, later = data(0), inside(data(1), data(0))
    reference = formulaic.Formula(f"{formula} + 1").get_model_matrix(typed(train))
    learned = tables.learn(make(train), formula)
    assert learned.names == tuple(reference.columns[1:])
    np.testing.assert_allclose(learned.apply(make(train)).values, reference.to_numpy()[:, 1:], rtol=1e-12)
    expected = reference.model_spec.get_model_matrix(typed(later)).to_numpy()[:, 1:]
    np.testing.assert_allclose(learned.apply(make(later)).values, expected, rtol=1e-12)
    assert learned.columns == tuple(name for name in train if name in formula)


def test_sources_are_variables() -> None:
    learned = tables.learn(pd.DataFrame(data(0)), formula="~ race:sex + log(age) + I(age * year) + np.sqrt(age):flag")
    assert learned.sources[:2] == ("age", "age:year")
    assert set(learned.sources[2:]) == {"race:sex", "age:flag"}
    assert len(learned.names) == len(learned.sources)


def test_arrays_and_names_with_spaces() -> None:
    array = np.array([[1, "a"], [2, "b"], [3, "a"]], dtype=object)
    np.testing.assert_array_equal(tables.learn(array, "~ x0 * x1").apply(array).values[:, 2], [0, 2, 0])
    assert tables.learn(pd.DataFrame({"my col": [1.0, 2.0]}), "~ `my col`").sources == ("my col",)


def test_the_dot_stands_for_all_columns(make: Any) -> None:
    assert set(tables.learn(make(data(0)), "~ .").sources) == set(data(0))


def test_the_reference_level_is_ours(make: Any) -> None:
    learned = tables.learn(make(data(0)), "~ race", reference={"race": "b"})
    assert learned.names == ("race[T.a]", "race[T.c]")


def test_a_single_level_is_listed_as_constant() -> None:
    learned = tables.learn(pd.DataFrame({"a": ["u", "u"], "b": [1.0, 2.0]}), "~ a + b")
    assert learned.names == ("b",) and learned.constant == ("a",)


def test_unseen_levels(make: Any) -> None:
    train, later = data(0), inside(data(1), data(0))
    later["race"][:2] = ["x", "x"]
    with pytest.raises(UnseenLevelError, match=r"'race' has 2 rows .*'x' \(2\)"):
        tables.learn(make(train), FORMULA).apply(make(later))
    encoded = tables.learn(make(train), FORMULA, unseen="pool").apply(make(later))
    assert encoded.n_pooled == {"race": 2}
    later["race"][:2] = ["a", "a"]
    np.testing.assert_array_equal(encoded.values, tables.learn(make(train), FORMULA).apply(make(later)).values)


@pytest.mark.parametrize("unseen", ["error", "pool"])
def test_unseen_numbers_in_a_categorical_term_are_never_silent(make: Any, unseen: Any) -> None:
    learned = tables.learn(make(data(0)), "~ C(year)", unseen=unseen)
    with pytest.raises(UnseenLevelError, match=r"2031.*Convert the column to text"):
        learned.apply(make(data(0) | {"year": [2031] * 60}))


def test_missing_values(make: Any) -> None:
    train = data(0)
    train["age"][3], train["race"][5] = None, None
    with pytest.raises(MissingValuesError, match=r"'age' \(1\), 'race' \(1\)"):
        tables.learn(make(train), FORMULA)
    dropped = tables.learn(make(train), FORMULA, missing="drop").apply(make(train))
    assert dropped.keep is not None and np.flatnonzero(~dropped.keep).tolist() == [3, 5]
    complete = pd.DataFrame(train).dropna()
    np.testing.assert_array_equal(dropped.values, tables.learn(complete, FORMULA).apply(complete).values)
    # Columns outside the formula do not count.
    assert tables.learn(make(train), "~ sex").apply(make(train)).keep is None
    levels = tables.learn(make(train), "~ race + age", missing="level")
    assert levels.names == ("race[T.b]", "race[T.c]", "race[T.missing]", "age", "age[missing]")
    assert levels.sources == ("race", "race", "race", "age", "age")
    values = levels.apply(make(train)).values
    np.testing.assert_array_equal(np.flatnonzero(values[:, 2]), [5])
    np.testing.assert_array_equal(np.flatnonzero(values[:, 4]), [3])
    assert values[3, 3] == pytest.approx(np.mean([age for age in train["age"] if age is not None]))


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("~ rcae", "no column 'rcae'; did you mean 'race'"),
        ("~ sex +* race", "cannot be used"),
        ("~ sex | race", "one part only"),
        ("~ 1", "names no column"),
        ("~ nosuch(age)", "uses nosuch, which formulas may not"),
        ("~ log(age - 1000)", r"not finite in the column 'log\(age - 1000\)'"),
    ],
)
def test_wrong_formulas(make: Any, formula: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tables.learn(make(data(0)), formula=formula)


HOSTILE = (
    "I(__import__('os').mkdir('run'))",
    "np.load('run')",
    "np.ctypeslib.ctypes.cdll",
    "age.__class__",
    "I(open('run', 'w'))",
    "I(eval('1'))",
    "I([age for age in (1,)])",
    "I((lambda: age)())",
    "log(age, _context=age)",
    "log(*age)",
    "C(race, levels=['\\\\\"] or age'])",
    "C(race, contr.custom(age))",
    "contr.treatment.__init__(age)",
    "age[0]",
    "I('a' * 9)",
    "I([1] * 9)",
    "I(age ** 9 ** 9)",
    "I(2 ** 9 + age)",
    "I(f'{age}')",
    "I(age if age else 1)",
    "I(age := 1)",
    "I(age and 1)",
    "I({age: 1})",
    "I(__builtins__)",
)


@pytest.mark.parametrize("expression", HOSTILE)
def test_only_known_functions_are_evaluated(expression: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        tables.learn(pd.DataFrame(data(0)), f"~ race + {expression}")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("~ (age + year) ** 1000000", "power above 20"),
        ("~ (age + year) ^ 99", "power above 20"),
        ("~ " + "age + " * 9000 + "age", "characters: write at most"),
        ("~ I(age year)", "cannot be used"),
        ("~ race ** [0]", "cannot be used"),
        ("~ bs(age, df='a')", "cannot be used"),
        ("~ poly(age, degree=-1)", "cannot be used"),
        ("~ I(age / 0)", "cannot be used|not finite"),
        ("~ C(race, contr.treatment('nobody'))", "cannot be used"),
        ("~ Q('nobody')", "names no column|cannot be used"),
    ],
)
def test_formulas_that_go_wrong_get_one_sentence(formula: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        tables.learn(pd.DataFrame(data(0)), formula)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize("name", ["~ age", "~", "~ I(__import__('os').mkdir('run'))"])
def test_the_name_of_a_column_is_no_formula(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(data(0)).rename(columns={"sex": name})
    assert tables.learn(frame, name).columns == (name,)
    assert tables.learn(frame, "~ .").columns == tuple(frame.columns)
    z = np.random.default_rng(0).normal(size=(60, 3))
    numbers = pd.DataFrame(z, columns=list("abc")).assign(**{name: frame[name]})
    model = sq.OrthogonalGLMRegressor("gaussian", name).fit(numbers, z[:, 0] + z[:, 1] ** 2)
    assert model.reader_.inside == (name,) and not list(tmp_path.iterdir())


def test_a_left_side_is_refused() -> None:
    with pytest.raises(InputError, match="no left side"):
        tables.learn(pd.DataFrame(data(0)), formula="age ~ sex")


def test_beyond_the_knots_of_training_is_an_error() -> None:
    learned = tables.learn(pd.DataFrame(data(0)), FORMULA)
    with pytest.raises(InputError, match=r"cannot be used.*extrapolation"):
        learned.apply(pd.DataFrame(data(0) | {"age": [200.0] * 60}))


def test_a_formula_design_pickles_but_has_no_plain_data() -> None:
    frame = pd.DataFrame(data(0))
    learned = tables.learn(frame, FORMULA)
    again = pickle.loads(pickle.dumps(learned))
    np.testing.assert_array_equal(again.apply(frame).values, learned.apply(frame).values)
    with pytest.raises(InputError, match="cannot be written as plain data"):
        learned.to_dict()


def test_without_formulaic_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(MissingDependencyError, match=r"pip install formulaic"):
        tables.learn(pd.DataFrame(data(0)), "~ sex")
