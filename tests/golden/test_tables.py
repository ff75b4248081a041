"""Golden cases of tables: each returns plain values that any change of a number, a name or a sentence would change."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.preprocessing import PolynomialFeatures
from tests.golden.outcomes import outcome

from setsquare import tables
from setsquare.tables import arrow, formula_program, frame, mixed_matrix

CASES: dict[str, Callable[[], Any]] = {}


def case(name: str, function: Callable[[], Any]) -> None:
    assert name not in CASES
    CASES[name] = function


def people(n: int = 40) -> pd.DataFrame:
    """A table with numbers, text, booleans and a category with a level that does not occur."""
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, n).astype(float),
            "sex": rng.choice(["f", "m"], n),
            "race": pd.Categorical(rng.choice(["w", "b", "a"], n, p=[0.5, 0.3, 0.2]), ["w", "b", "a", "none"]),
            "owner": rng.random(n) < 0.4,
            "income": rng.lognormal(3.0, 1.0, n),
        }
    )


def holes(n: int = 40) -> pd.DataFrame:
    """The same with missing values."""
    table = people(n)
    table.loc[[1, 5, 7], "age"] = np.nan
    table.loc[[2, 5], "sex"] = None
    table.loc[[3], "race"] = None
    return table


def later() -> pd.DataFrame:
    """New rows: unseen levels, values out of range, a missing one."""
    return pd.DataFrame(
        {
            "age": [10.0, 30.5, 99.0, np.nan],
            "sex": ["m", "x", "f", "x"],
            "race": ["b", "w", "q", "a"],
            "owner": [True, False, False, True],
            "income": [0.1, 20.0, 5000.0, 30.0],
        }
    )


KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda t: t,
    "polars": lambda t: pl.from_pandas(t),
    "pyarrow": lambda t: pa.Table.from_pandas(t, preserve_index=False),
    "chunks": lambda t: pa.concat_tables([pa.Table.from_pandas(p, preserve_index=False) for p in (t[:13], t[13:])]),
    "lazy": lambda t: pl.from_pandas(t).lazy(),
    "reader": lambda t: pa.Table.from_pandas(t, preserve_index=False).to_reader(),
    "objects": lambda t: t.astype(object),
    "array": lambda t: t.astype(object).to_numpy(),
}
BASES: dict[str, Any] = {
    "linear": "linear",
    "cells": "cells",
    "spline": "spline",
    "kernel": {"kernel": 0.2},
    "formula": "~ age * sex + race + owner + log(income)",
    "transformer": PolynomialFeatures(2, include_bias=False),
}


def learned(table: Any, new: Any = None, **options: Any) -> dict[str, Any]:
    """A design: what it says, and what it makes of its own and of new rows."""
    found = tables.learn(table, **options)
    code = found.apply(table)
    result = {
        "columns": found.columns,
        "names": found.names,
        "sources": found.sources,
        "constant": found.constant,
        "ball": str(found.ball),
        "has_codes": found.has_codes,
        "stored_width": found.stored_width,
        "values": code.values,
        "keep": code.keep,
        "pooled": dict(code.n_pooled),
        "split": found.split(table).values,
    }
    if new is not None:
        other = found.apply(new)
        result |= {"new": other.values, "new_pooled": dict(other.n_pooled), "new_keep": other.keep}
    return result


for kind, convert in KINDS.items():
    case(f"learn-{kind}", lambda c=convert: learned(c(people())))
    if kind != "reader":
        case(f"learn-missing-{kind}", lambda c=convert: learned(c(holes()), missing="level"))
        case(f"learn-drop-{kind}", lambda c=convert: learned(c(holes()), missing="drop"))
    case(f"learn-error-{kind}", lambda c=convert: learned(c(holes())))
    case(f"names-{kind}", lambda c=convert: (tables.column_names(c(people())), tables.n_rows(c(people()))))
    case(f"select-{kind}", lambda c=convert: tables.select(c(people(6)), [0, -1]))
    case(f"drop-{kind}", lambda c=convert: tables.drop(c(people(6)), [1, 3, 4]))
    case(f"slice-{kind}", lambda c=convert: tables.slice_rows(c(people(6)), 2, 3))
    keep = np.array([True, False, True, True, False, False])
    case(f"filter-{kind}", lambda c=convert, k=keep: tables.filter_rows(c(people(6)), k))
    case(f"backend-{kind}", lambda c=convert: (frame.backend_of(None, c(people(6))), arrow.is_unread(c(people(6)))))
for kind, basis in BASES.items():
    for rule in ("error", "drop", "level"):
        data = people if rule == "error" else holes
        case(f"basis-{kind}-{rule}", lambda b=basis, r=rule, d=data: learned(d(60), basis=b, missing=r))
    case(f"unseen-{kind}", lambda b=basis: learned(people(), later(), basis=b))
    case(f"pool-{kind}", lambda b=basis: learned(holes(60), later(), basis=b, missing="level", unseen="pool"))
    case(f"largest-{kind}", lambda b=basis: learned(people(), basis=b, largest=True))
    case(f"reference-{kind}", lambda b=basis: learned(people(), basis=b, reference={"race": "a", "sex": "m"}))
case("pool-drop", lambda: learned(holes(), later()[:3], missing="drop", unseen="pool"))
case("columns-by-position", lambda: learned(people(), columns=[-1, 1]))
case("column-by-name", lambda: learned(people(), columns="race"))
case("series", lambda: learned(people()["age"]))
case("unnamed-series", lambda: learned(people()["sex"].rename(None)))
case("list", lambda: learned([["a", 1.0], ["b", 2.0], ["a", 3.0]]))
case("text-array", lambda: learned(np.array(["a", "b", "a"])))
case("booleans", lambda: learned(np.array([[True, False], [False, False], [True, True]])))
case("integers", lambda: learned(np.array([[1, 2], [3, 4]], dtype=np.uint8)))
case("sparse", lambda: learned(sparse.csr_matrix([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])))
case("sparse-columns", lambda: learned(sparse.coo_array([[1, 0], [0, 2], [3, 0]]), columns=[1]))
case("sparse-nan", lambda: learned(sparse.csr_matrix([[np.nan, 0.0], [np.inf, 2.0], [3.0, np.inf]])))
case("floats-nan-drop", lambda: learned(np.array([[1.0, np.nan], [2.0, 3.0], [4.0, 5.0]]), missing="drop"))
case("floats-nan-level", lambda: learned(np.array([[1.0, np.nan], [2.0, 3.0], [4.0, 5.0]]), missing="level"))
case("constant-text", lambda: learned(pd.DataFrame({"a": ["x"] * 3, "b": [1.0, 2.0, 3.0]})))
case("decimals", lambda: learned(pd.DataFrame({"a": [decimal.Decimal("1.5"), None, 2]}), missing="level"))
case("many-levels", lambda: learned(pd.DataFrame({"a": [f"l{i % 40:02}" for i in range(120)], "b": range(120)})))
case("many-codes", lambda: _codes())
BAD: dict[str, Callable[[], Any]] = {
    "dates": lambda: learned(pd.DataFrame({"d": [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)]})),
    "timestamps": lambda: learned(pd.DataFrame({"d": pd.to_datetime(["2020-01-01", "2021-01-01"])})),
    "polars-dates": lambda: learned(pl.DataFrame({"d": [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)]})),
    "complex": lambda: learned(np.array([1 + 2j, 3.0])),
    "lists": lambda: learned(pd.DataFrame({"a": [[1], [2]]})),
    "mixed": lambda: learned(pd.DataFrame({"a": [1, "x", True, "y", 2.5]})),
    "mixed-dates": lambda: learned(pd.DataFrame({"a": ["x", datetime.date(2020, 1, 1)]})),
    "infinite": lambda: learned(pd.DataFrame({"a": [1.0, np.inf, -np.inf]})),
    "one-infinite": lambda: learned(pd.DataFrame({"a": [1.0, np.inf, 2.0]})),
    "blank": lambda: learned(pd.DataFrame({"a": [None, None], "b": [1.0, 2.0]}), missing="level"),
    "blank-numbers": lambda: learned(pd.DataFrame({"a": [np.nan, np.nan], "b": [1.0, 2.0]}), missing="level"),
    "all-dropped": lambda: learned(pd.DataFrame({"a": [None, "x"], "b": [1.0, np.nan]}), missing="drop"),
    "no-rows": lambda: learned(people(0)),
    "no-columns": lambda: learned(people()[[]]),
    "no-names": lambda: learned(people(), columns=[]),
    "unknown": lambda: learned(people(), columns=["agee"]),
    "unknown-far": lambda: learned(people(), columns=["zzzz"]),
    "unknown-many": lambda: learned(np.zeros((2, 9)), columns=["zzzz"]),
    "unknown-eight": lambda: learned(np.zeros((2, 8)), columns=["zzzz"]),
    "position": lambda: learned(people(), columns=[5]),
    "negative": lambda: learned(people(), columns=[-6]),
    "boolean-position": lambda: learned(people(), columns=[True]),
    "float-position": lambda: learned(people(), columns=[1.0]),
    "position-and-name": lambda: learned(pd.DataFrame({"1": [1.0, 2.0], "0": [3.0, 4.0]}), columns=[1]),
    "twice": lambda: learned(people(), columns=["age", 0]),
    "duplicates": lambda: learned(pd.DataFrame([[1.0, 2.0]], columns=["a", "a"])),
    "output-twice": lambda: learned(pd.DataFrame({"a": ["x", "y"], "a[y]": [1.0, 2.0]})),
    "levels-twice": lambda: learned(pd.DataFrame({"a": ["missing", None, "y"]}), missing="level"),
    "ragged": lambda: learned([[1.0], [1.0, 2.0]]),
    "cube": lambda: learned(np.zeros((2, 2, 2))),
    "masked": lambda: learned(np.ma.array([1.0, 2.0], mask=[True, False])),
    "identifier": lambda: learned(pd.DataFrame({"a": [f"id{i}" for i in range(60)]})),
    "identifier-limit": lambda: learned(pd.DataFrame({"a": [f"id{i}" for i in range(51)]})),
    "strays": lambda: learned(pd.DataFrame({"a": [str(i) for i in range(20)] + ["."]})),
    "both": lambda: tables.learn(people(), "age", formula="~ age"),
    "formula-basis": lambda: tables.learn(people(), "~ age", basis="cells"),
    "reference-unknown": lambda: learned(people(), reference={"race": "z"}),
    "reference-numeric": lambda: learned(people(), reference={"age": 30}),
    "reference-column": lambda: learned(people(), reference={"rac": "a"}),
    "basis-unknown": lambda: learned(people(), basis="dummy"),
    "basis-other": lambda: learned(people(), basis="splines"),
    "basis-type": lambda: learned(people(), basis=PolynomialFeatures),
    "kernel-bound": lambda: learned(people(), basis={"kernel": 1.0}),
    "kernel-zero": lambda: learned(people(), basis={"kernel": 0.0}),
    "kernel-int": lambda: learned(people(), basis={"kernel": 1}),
    "kernel-two": lambda: learned(people(), basis={"kernel": 0.1, "other": 0.1}),
    "kernel-rows": lambda: learned(people(8), basis={"kernel": 0.001}),
    "kernel-constant": lambda: learned(pd.DataFrame({"a": [1.0, 1.0]}), basis="kernel"),
    "missing-rule": lambda: learned(people(), missing="keep"),
    "unseen-rule": lambda: learned(people(), unseen="drop"),
    "cells-codes": lambda: learned(pd.DataFrame({"a": [0.0, 1.0] * 20, "b": ["x", "y"] * 20}), basis="cells"),
    "formula-over-other": lambda: learned(people(), columns=["age"], basis="~ age + sex"),
    "formula-over-less": lambda: learned(people(), columns=["age", "sex"], basis="~ age"),
    "now-text": lambda: learned(people(), later().assign(age="x")),
    "now-strays": lambda: learned(people(), later().assign(age=["1", "2", "3", "."])),
    "now-numeric": lambda: learned(people(), later().assign(sex=1.0)),
    "now-missing": lambda: learned(people(), later()[3:]),
    "now-absent": lambda: learned(people(), later().drop(columns="age")),
    "unseen-many": lambda: tables.learn(pd.DataFrame({"a": ["x", "y"]})).apply(pd.DataFrame({"a": list("abcdefb")})),
    "unseen-five": lambda: tables.learn(pd.DataFrame({"a": ["x", "y"]})).apply(pd.DataFrame({"a": list("abcde")})),
    "pandas-lazy": lambda: learned(type("Lazy", (), {"compute": None})()),
}
for kind, bad in BAD.items():
    case(f"bad-{kind}", bad)


def _codes() -> Any:
    """Categories of many levels remain codes; all that a mixed matrix does with them."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame(
        {
            "a": pd.Categorical.from_codes(np.arange(300) % 80, [f"a{i}" for i in range(80)]),
            "x": rng.normal(size=300),
            "b": rng.choice(["p", "q", "r", "s"], 300),
            "c": rng.choice([f"c{i}" for i in range(30)], 300),
            "d": rng.choice(["no", "yes"], 300),
        }
    )
    found = tables.learn(table)
    Z = found.split(table).values
    return found.has_codes, found.stored_width, found.sources, describe(Z, rng), describe(found.split_batch(table), rng)


def describe(Z: mixed_matrix.MixedMatrix, rng: np.random.Generator) -> dict[str, Any]:
    """Everything that a mixed matrix computes."""
    n, q = Z.shape
    thin, wide, weight = rng.normal(size=(n, 2)), rng.normal(size=(q, 3)), rng.random(n)
    merged = Z.merged()
    mean = np.where(np.arange(q) % 7 == 0, 0.3, 0.0)
    gram = np.zeros((q, q))
    Z.parts[0].put(gram, Z.parts[-1], np.full((len(Z.parts[0].columns), len(Z.parts[-1].columns)), 0.5))
    by_level = rng.random((Z.n_levels, 2))
    return {
        "shape": Z.shape,
        "dtype": str(Z.dtype),
        "nbytes": Z.nbytes,
        "stored": Z.stored,
        "n_levels": Z.n_levels,
        "bounds": Z.bounds,
        "array": Z.toarray(),
        "rows": Z[3:9].toarray(),
        "product": Z @ wide,
        "vector": Z @ wide[:, 0],
        "turned": Z.T @ thin,
        "left": thin.T @ Z,
        "sums": Z.sums_by_level(weight),
        "counts": Z.counts(),
        "squares": Z.squares(weight),
        "merged": merged.toarray(),
        "merged_bounds": merged.bounds,
        "merged_squares": merged.squares(weight),
        "merged_few": Z.merged(40).bounds,
        "merged_counts": merged.counts(),
        "take": Z.take([2, 0]),
        "put": Z.put([1, 3], thin).toarray(),
        "centred": Z.centred(mean).toarray(),
        "centred_ones": Z.centred(mean, ones=True).toarray(),
        "pairs": {str(key): value for key, value in Z.pairs.items()},
        "folds": [part.fold(by_level[part.levels]) for part in Z.parts],
        "folds_merged": [part.fold(rng.random((part.size, 2))) for part in merged.parts],
        "diagonals": [part.fold_diagonal(by_level[part.levels, 0]) for part in Z.parts],
        "diagonals_merged": [part.fold_diagonal(rng.random(part.size)) for part in merged.parts],
        "gram": gram,
        "sizes": [part.size for part in merged.parts],
    }


def _mixed() -> Any:
    rng = np.random.default_rng(8)
    codes = [rng.integers(0, 3, 20), rng.integers(0, 2, 20)]
    Z = mixed_matrix.join(rng.normal(size=(20, 2)), codes, [3, 2], [False, True, False, True])
    return describe(Z, rng)


case("mixed", _mixed)
for most in (5, 6, 29, 30, 31, 1000):
    case(f"group-sizes-{most}", lambda m=most: mixed_matrix.group_sizes([5, 2, 3, 40, 1, 5], m))

FORMULAS = (
    "~ age",
    "~ sex * race",
    "~ 0 + sex:age",
    "~ C(race, contr.sum) + owner",
    "~ C(race, contr.helmert):age",
    "~ poly(age, 3)",
    "~ bs(age, df=5) + sex",
    "~ bs(age, knots=(30, 50), degree=2)",
    "~ center(age) + scale(income)",
    "~ log(income) + np.sqrt(age) - sex",
    "~ I(age ** 2 / 10 + 3 * income - 1)",
    "~ I(-age) + exp(age / 100):sex",
    "~ (sex + race) ** 2",
    "~ np.maximum(age, 40)",
    "~ `income`",
    "~ sex / race",
    "~ log1p(abs(age - 40))",
)
for place, text in enumerate(FORMULAS):
    case(f"formula-{place:02}", lambda t=text: _formula(t))
    case(f"formula-missing-{place:02}", lambda t=text: learned(holes(), formula=t, missing="level"))
BAD_FORMULAS = (
    "age",
    "~",
    "~ 1",
    "y ~ age",
    "~ agee",
    "~ age | sex",
    "~ I(open('a'))",
    "~ age ** 21",
    "~ age ** 20",
    "~ I(age ** 21)",
    "~ I(2 ** age)",
    "~ I(2 ** 3)",
    "~ np.linalg(age)",
    "~ np.clip(age, 20, 40)",
    "~ contr.other(age)",
    "~ C(race, contr.bad)",
    "~ log(age, _x=1)",
    "~ log(**age)",
    "~ age.mean()",
    "~ age[0]",
    "~ lambda: 0",
    "~ I('a' * 99)",
    "~ I(age + [1])",
    "~ log(age - 1000)",
    "~ bs(age",
    "~ _age",
    "~ C(race, levels=['w', 'a'])",
    "~ age" + " + age" * 5000,
)
for place, text in enumerate(BAD_FORMULAS):
    case(f"bad-formula-{place:02}", lambda t=text: learned(people(), formula=t))


def _formula(text: str) -> Any:
    table, new = people(), later()[:1].assign(age=33.0)
    found = tables.learn(table, formula=text)
    (coder,) = found.coders
    saved = coder.saved
    again = tables.Design((saved,), "error", "error")
    result: dict[str, Any] = {"learned": learned(table, new, formula=text), "kind": type(saved).__name__}
    result |= {"saved": saved.names, "saved_columns": saved.columns, "constant": saved.constant}
    try:
        result["again"] = again.apply(table).values
    except Exception as error:
        result["refused"] = f"{type(error).__name__}: {error}"
    return result | {"program": getattr(saved, "program", None), "dict": again.to_dict()}


def _programs() -> dict[str, Any]:
    """Programs of formulas that are damaged, and what is said about each."""
    column_, rows = ("column", "x"), ((0.0,), (1.0,))
    trees: dict[str, Any] = {
        "good": ((column_,), (("levels", "g", rows), ("log", column_))),
        "list": [(column_,)],
        "empty term": ((),),
        "text": ("x",),
        "unknown column": ((("column", "z"),),),
        "two columns": ((("column", "x", "x"),),),
        "number": ((("number", 1.0),),),
        "two numbers": ((("number", 1.0, 2.0),),),
        "nan": ((("number", float("nan")),),),
        "bool": ((("number", True),),),
        "levels of one": ((("levels", "g", rows[:1]),),),
        "ragged levels": ((("levels", "g", ((0.0,), (1.0, 2.0))),),),
        "empty levels": ((("levels", "g", ((), ())),),),
        "other levels": ((("levels", "h", rows),),),
        "sum": ((("+", column_, ("number", 2.0)),),),
        "sum of one": ((("+", column_),),),
        "sum of levels": ((("+", column_, ("levels", "g", rows)),),),
        "log of levels": ((("log", ("levels", "g", rows)),),),
        "log with state": ((("log", column_, 1.0),),),
        "unknown": ((("open", column_),),),
        "scaled": ((("scaled", column_, 1.0, 2.0),),),
        "scaled by 0": ((("scaled", column_, 1.0, 0.0),),),
        "poly": ((("poly", column_, (1.0, 2.0), (1.0, 2.0, 3.0)),),),
        "poly short": ((("poly", column_, (1.0, 2.0), (1.0, 2.0)),),),
        "poly zero": ((("poly", column_, (1.0,), (1.0, 0.0)),),),
        "poly none": ((("poly", column_, (), (1.0,)),),),
        "poly 100": ((("poly", column_, (1.0,) * 100, (1.0,) * 101),),),
        "poly 101": ((("poly", column_, (1.0,) * 101, (1.0,) * 102),),),
        "spline": ((("spline", column_, (0.0, 0.0, 1.0, 1.0), 1),),),
        "spline bool": ((("spline", column_, (0.0, 0.0, 1.0, 1.0), True),),),
        "spline degree 10": ((("spline", column_, (0.0,) * 11 + (1.0,) * 11, 10),),),
        "spline degree 11": ((("spline", column_, (0.0,) * 12 + (1.0,) * 12, 11),),),
        "spline negative": ((("spline", column_, (0.0, 0.0, 1.0, 1.0), -1),),),
        "spline short": ((("spline", column_, (0.0, 1.0, 2.0), 1),),),
        "spline order": ((("spline", column_, (0.0, 2.0, 1.0, 3.0), 1),),),
        "spline flat": ((("spline", column_, (1.0, 1.0, 1.0, 1.0), 1),),),
        "spline long": ((("spline", column_, tuple(map(float, range(10_000))), 1),),),
        "spline too long": ((("spline", column_, tuple(map(float, range(10_001))), 1),),),
    }
    deep: Any = column_
    for depth in range(40):
        trees[f"deep {depth + 2}"] = ((deep,),)
        deep = ("log", deep)
    trees["deep 41"] = ((deep,),)
    found: dict[str, Any] = {}
    for name, tree in trees.items():
        try:
            found[name] = formula_program.check_program(tree, ["x"], {"g": 2})
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return {name: value for name, value in found.items() if not name.startswith("deep") or name > "deep 38"}


case("programs", _programs)


def _run_programs() -> Any:
    x, codes = np.linspace(0.1, 0.9, 7), np.array([0, 1, 1, 0, 1, 0, 1])
    found = {}
    for name in (*formula_program.FUNCTIONS, *formula_program.ARITHMETIC):
        parts = (("column", "x"),) * (2 if name in formula_program.ARITHMETIC else 1)
        out = np.zeros((7, 1))
        formula_program.run_program((((name, *parts),),), {"x": x}, {}, out)
        found[name] = out[:, 0]
    spline = ("spline", ("column", "x"), (0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0), 2)
    poly = ("poly", ("column", "x"), (0.5, 0.4, 0.6), (7.0, 2.0, 1.5, 0.5))
    levels = ("levels", "g", ((0.0, 1.0), (2.0, -1.0)))
    program = ((spline, levels), (poly,), (levels, poly), (("scaled", poly, 0.1, 2.0),), (("log", spline),))
    out = np.zeros((7, 3 * 2 + 3 + 6 + 1 + 1))
    formula_program.run_program(program, {"x": x}, {"g": codes}, out)
    return found, out, list(map(formula_program.width_of, (spline, poly, levels, ("column", "x"))))


case("run-programs", _run_programs)
case(
    "spline-outside",
    lambda: formula_program.run_program(
        ((("spline", ("column", "x"), (0.0, 0.0, 1.0, 1.0), 1),),), {"x": np.array([1.5])}, {}, np.zeros((1, 2))
    ),
)


@pytest.mark.parametrize("name", CASES)
def test_tables(golden, name):
    golden(outcome(CASES[name]))
