"""Formulas as plain data: the columns that formulaic makes, and nothing from data that do not fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from setsquare import tables
from setsquare.errors import InputError
from setsquare.storage.checks import check_design
from setsquare.tables.design import Design
from setsquare.tables.formula import Formula
from setsquare.tables.learned_terms import LearnedTerms


def rows(seed: int = 0, n: int = 80) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"age": rng.uniform(20.0, 80.0, n), "x": rng.uniform(-1.0, 1.0, n)})
    table.loc[:1, "age"], table.loc[:1, "x"] = [20.0, 80.0], [-1.0, 1.0]  # the same range in every sample
    return table.assign(sex=rng.choice(["f", "m"], n), race=rng.choice(["a", "b", "c"], n))


FORMULAS = (
    "~ sex * race + age",
    "~ 0 + sex:race:age",
    "~ C(race, contr.sum):x + C(sex)",
    "~ C(race, contr.helmert) * C(sex, contr.treatment('m'))",
    "~ bs(age, df=5) + bs(x, df=4, degree=2):sex",
    "~ poly(age, 3) + poly(x, 1)",
    "~ center(age) + scale(x) + log(age) + np.sqrt(age) + np.exp(-x / 2)",
    "~ I(x ** 2 - 3 * x) + log(center(age) ** 2 + 1)",
    "~ sex:log10(age) + scale(np.abs(x))",
)


@pytest.mark.parametrize("text", FORMULAS)
def test_a_program_makes_the_columns_of_the_formula_for_new_rows(text: str) -> None:
    learned = tables.learn(rows(), text)
    (formula,) = learned.coders
    assert isinstance(formula, Formula) and isinstance(formula.saved, LearnedTerms)
    design = Design.from_dict(Design((formula.saved,), learned.missing, learned.unseen).to_dict())
    check_design(design)
    later = rows(1, 30)
    expected, found = learned.apply(later), design.apply(later)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-10, atol=1e-10)
    assert found.names == expected.names and design.columns == learned.columns


@pytest.mark.parametrize("text", ["~ cr(x, df=4)", "~ np.arctan(x)", "~ C(age)", "~ bs(x, knots=[0.0])", "~ I(x > 0)"])
def test_other_formulas_have_no_program(text: str) -> None:
    (formula,) = tables.learn(rows(), text).coders
    assert isinstance(formula, Formula) and formula.program is None


def test_missing_values_and_new_levels_follow_the_same_rules() -> None:
    table = rows()
    table.loc[3, "age"], table.loc[4, "race"] = np.nan, None
    learned = tables.learn(table, "~ log(age) + race", missing="level", unseen="pool")
    (formula,) = learned.coders
    design = Design((formula.saved,), "level", "pool")  # type: ignore[attr-defined]
    later = table.assign(race=table["race"].replace("a", "new"))
    expected, found = learned.apply(later), design.apply(later)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-12)
    assert expected.n_pooled["race"] > 0 and found.names == expected.names
    assert dict(found.n_pooled) == dict(expected.n_pooled)


def test_values_that_a_formula_cannot_take_are_refused() -> None:
    for text, column, value, match in (
        ("~ log(age)", "age", -1.0, "gives values that are not finite in the column 'log.age.'"),
        ("~ bs(age, df=4)", "age", 90.0, "outside the range of the spline, 20 to 80"),
    ):
        (formula,) = tables.learn(rows(), text).coders
        later = rows().assign(**{column: value})
        with pytest.raises(InputError, match=match):
            Design((formula.saved,), "error", "error").apply(later)  # type: ignore[attr-defined]


def nested(depth: int) -> tuple[Any, ...]:
    node: tuple[Any, ...] = ("column", "age")
    for _ in range(depth):
        node = ("log", node)
    return node


AGE = ("column", "age")
HOSTILE: tuple[Any, ...] = (
    (("os.system", AGE),),
    (("__class__", AGE),),
    (("column", "nothing"),),
    (("column", "race"),),
    (("levels", "race", ((1.0,), (2.0,))),),
    (("levels", "race", ((1.0,), (2.0, 3.0), (1.0,))),),
    (("levels", "race", ((), (), ())),),
    (("levels", "age", ((1.0,),)),),
    (("number", float("nan")),),
    (("number", "1"),),
    (("number", True),),
    (("+", AGE),),
    (("log", ("levels", "race", ((1.0,), (2.0,), (3.0,)))),),
    (("**", AGE, ("poly", AGE, (1.0, 2.0), (1.0, 1.0, 1.0))),),
    (("scaled", AGE, 1.0, 0.0),),
    (("scaled", AGE, 1.0),),
    (("poly", AGE, (), (1.0,)),),
    (("poly", AGE, (1.0,), (1.0, -1.0)),),
    (("poly", AGE, (1.0,), (1.0,)),),
    (("spline", AGE, (1.0, 0.0, 2.0, 3.0, 4.0), 1),),
    (("spline", AGE, (0.0, 0.0, 0.0, 0.0), 1),),
    (("spline", AGE, (0.0, 1.0), 3),),
    (("spline", AGE, (0.0, 0.5, 1.0, 2.0), -1),),
    (("spline", AGE, (0.0, 0.0, 1.0, 1.0), 1.5),),
    (nested(100),),
    (AGE, AGE),  # one column more than names
    ((),),
    (),
    AGE,
    "age",
    None,
)


@pytest.mark.parametrize("program", HOSTILE, ids=lambda program: str(program)[:40])
def test_a_program_that_does_not_fit_together_is_refused(program: Any) -> None:
    variables = (("age", None, False), ("race", ("a", "b", "c")))
    terms = program if not isinstance(program, tuple) or program in ((), AGE, ((),)) else (program,)
    terms = tuple((node,) for node in program) if program == (AGE, AGE) else terms
    good = LearnedTerms("~ x", variables, ((AGE,),), ("age",), ("age",), ())
    check_design(Design((good,), "error", "error"))
    with pytest.raises(InputError, match="fit together"):
        check_design(Design((LearnedTerms("~ x", variables, terms, ("age",), ("age",), ()),), "error", "error"))
