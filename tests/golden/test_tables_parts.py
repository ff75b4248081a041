"""Golden cases of the parts of tables: checks and their sentences, outcomes, roles, summaries, wider features."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from tests.golden.outcomes import outcome
from tests.golden.test_tables import holes, later, people

from setsquare import tables
from setsquare.families import family
from setsquare.tables import (
    column,
    expansion,
    frame,
    learn,
    partly_missing,
    roles,
    smooth,
    summary,
    text_values,
    validation,
)
from setsquare.tables import outcome as outcomes
from setsquare.tables.coders import Numeric, locate_cells, locate_levels, order_levels
from setsquare.tables.design import Design, read_stored

CASES: dict[str, Callable[[], Any]] = {}


def case(name: str, function: Callable[[], Any]) -> None:
    assert name not in CASES
    CASES[name] = function


def each(function: Callable[..., Any], *values: Any) -> Callable[[], Any]:
    """What a function makes of each of some values."""
    return lambda: [outcome(lambda v=value: function(*v) if isinstance(v, tuple) else function(v)) for value in values]


N_AN, INF = float("nan"), float("inf")
ROWS = [
    None,
    2.0,
    [1, 2, 3],
    [1.0, 0.0, 2.0],
    [0, 0, 0],
    [1, -1, 1],
    [1, N_AN, 1],
    [1, INF, 1],
    [1, 2],
    "a",
    [[1], [2], [3]],
]
case("weights", each(lambda v: validation.read_weight(v, 3), *ROWS))
case("offsets", each(lambda v: validation.read_offset(v, 3), *ROWS, np.ones((3, 2)), np.ones((2, 2))))
case("check-offset", each(lambda v: validation.check_offset(np.array(v)), [0.0], [N_AN], [-INF]))
CLUSTERS = [
    ["b", "a", "b"],
    [3, 1, 3],
    [1.5, N_AN, 1.5],
    ["a", None, "b"],
    [["a"], ["b"], ["a"]],
    [1, 2],
    np.array(["x", 2, "x"], object),
]
case("clusters", each(lambda v: validation.read_cluster(v, 3), *CLUSTERS, [True, False, True], np.zeros((3, 2))))
case("one-cluster", each(lambda v: validation.check_clusters(np.array(v)), [0, 0], [0, 1]))
DATES = [
    ["2024-05-31", "2023-01-01", "2024-05-31"],
    [3, 1, 2],
    [1.5, N_AN, 2.0],
    ["x", "y", "z"],
    [None, "2024-01-01", "2024-01-02"],
]
case(
    "times",
    each(lambda v: validation.read_time(v, 3), *DATES, [["2024-05-31"], ["2023-01-01"], ["2023-01-02"]], [1, 2]),
)
case("scores", each(validation.read_scores, [0.1, 2], [[0.1], [2]], [[1, 2]], [], [N_AN, INF, 1], "a", ["x"], 3.0))
case("is-missing", each(validation.is_missing, None, N_AN, pd.NA, pd.NaT, "", 0, np.array([1, 2])))
case("folds", each(validation.check_folds, (1, 5), (2, 5), (5, 5), (6, 5)))
case("confidence", each(validation.check_confidence, 0.49, 0.5, 0.999, 1.0))
case("cutoff", each(validation.check_cutoff, 0.0, N_AN, INF))
case("max-rows", each(validation.check_max_rows, None, 99, 100))
case("l2", each(validation.check_l2, -1e-9, 0.0, INF, N_AN))
case("moments", each(validation.check_moments, 1, 2, 3, 0, True))
case("classes", each(validation.check_classes, (["a"],), (["a", "b"],), (["a", "b"], False)))
case(
    "roles",
    each(
        validation.check_roles,
        {"protected": ["a"], "outcome": ["a"]},
        {"protected": ["a", "a"]},
        {"a": [None], "b": [None]},
    ),
)
case("same-rows", each(validation.check_same_rows, ("A has", 1, "b has", 2), ("A has", 2, "b has", 2)))
case("choice", each(validation.check_choice, ("x", "a", ("a", "b")), ("x", "c", ("a", "b"))))
case("one-column", each(lambda v: validation.check_one_column(np.array(v)), [1], [[1]]))
case("constant", each(lambda v: validation.refuse_constant_protected(list("abcdefg")[:v], "erase"), 1, 5, 6))
case("no-rows", each(validation.refuse_no_rows, ["a", "b"]))
case("lacking", each(validation.refuse_missing_outcome, 0, 1, 5))
case("features", each(lambda _: validation.refuse_constant_features(), 0))
BAD = np.array([[1.0, 2.0], [N_AN, 3.0], [N_AN, INF]])
case(
    "finite",
    each(
        lambda v: validation.check_finite(v, ["a", "b"], "feature"),
        BAD,
        BAD[:1],
        BAD[:, 1:],
        BAD[:, ::-1],
        sparse.csr_matrix(BAD),
    ),
)
case(
    "huge",
    each(lambda v: validation.check_finite(v, ["a", "b"], ""), np.full((3, 2), 1.7e308), sparse.csr_matrix(BAD[:1])),
)
case("require", each(lambda v: validation.require_finite("It has", np.array(v)), [1.0], [N_AN], [INF]))
INDEX = pd.DataFrame({"a": [1, 2, 3]}, index=[5, 6, 7])
ALIGNED = [INDEX[::-1], INDEX, INDEX[:2], INDEX.reset_index(), INDEX.set_axis([5, 5, 6]), [1, 2, 3], INDEX["a"][::-1]]
case("alignment", each(lambda v: validation.check_alignment(INDEX, v, "it"), *ALIGNED))


def _strays(n: int, bad: int) -> list[str]:
    return [str(i) for i in range(n - bad)] + [f"?{i}" for i in range(bad)]


SIZES = [
    (2, 1),
    (3, 1),
    (4, 1),
    (29, 10),
    (30, 10),
    (31, 10),
    (33, 11),
    (34, 11),
    (219, 10),
    (220, 11),
    (221, 11),
    (400, 20),
    (400, 21),
]
case("strays", each(lambda n, bad: len(text_values.stray_values(_strays(n, bad))), *SIZES))
WORDS = ["1", " 2 ", "+3.", "-.5", "1e5", "1E-5", "2.5e+3", ".", "e5", "1,5", "0x1", "", "1 2", "--1", "inf"]
case("stray-words", each(lambda v: text_values.stray_values([*map(str, range(90)), v]), *WORDS))
case("stray-kinds", each(text_values.stray_values, [1, 2, 3, "4"], [1, 2, 3], ["1", "2", 3, "4", "5"], []))
for bad in (1, 5, 6):
    case(f"refuse-strays-{bad}", lambda b=bad: text_values.refuse_strays("It", dict.fromkeys(_strays(90, b), 2)))

VALUES = [
    outcomes.Values(low, high, levels, text, whole, columns, lowest)
    for low, high, levels, text, whole, columns, lowest in itertools.product(
        (0.0, 1.0, -0.5), (1.0, 5.0), (1, 2, 3), (False, True), (False, True), (1, 3), (-0.1, 0.0)
    )
]
case("guesses", lambda: [" ".join(outcomes.guess_family(v)) for v in VALUES])
case("guesses-predictions", lambda: [" ".join(outcomes.guess_family(v, "predictions")) for v in VALUES])
COLUMNS = {
    "two": ["no", "yes", "no"],
    "three": ["a", "b", "c"],
    "one": ["a", "a"],
    "count": [0, 3, 1],
    "from-one": [1, 3, 2],
    "numbers": [1.5, 0.2, 7.0],
    "zero-one": [0, 1, 1],
    "flags": [True, False],
    "missing": [1.0, N_AN, 2.0],
    "absent": ["a", None, "b"],
    "strays": [str(i) for i in range(30)] + ["."],
    "many": [f"l{i}" for i in range(101)],
    "hundred": [f"l{i}" for i in range(100)],
    "dates": np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"),
    "bytes": np.array([b"a", b"b"]),
}
for kind, values in COLUMNS.items():
    array = np.array(values, object) if None in list(values) else np.asarray(values)
    case(f"family-{kind}", lambda a=array: _family(a))
    for asked in ("binomial", "multinomial", "poisson"):
        case(f"family-{kind}-{asked}", lambda a=array, f=asked: _family(a, family(f)))
    case(
        f"family-{kind}-columns",
        lambda a=array: _family(a, name="y", n_columns=3, lowest_prediction=-1.0, is_category=True),
    )
    case(f"outcome-{kind}", lambda a=array: outcomes.read_outcome(a, len(a)))


def _family(values: Any, asked: Any = None, **options: Any) -> Any:
    found = outcomes.read_family(values, asked, **options)
    return str(found.family), found.is_classes, str(found.reason)


case("outcome-none", lambda: outcomes.read_outcome(None, 3))
case("outcome-wide", lambda: outcomes.read_outcome(np.ones((3, 2)), 3))
case("outcome-column", lambda: outcomes.read_outcome(np.ones((3, 1)), 3))
case("outcome-short", lambda: outcomes.read_outcome(np.ones(3), 4))
case("outcome-infinite", lambda: outcomes.read_outcome(np.array([INF, 1.0]), 2))
PAIRS = [
    ("no", "yes"),
    ("0", "1"),
    ("1", "2"),
    ("-1", "1"),
    ("False", "True"),
    ("a", "b"),
    ("1", "x"),
    ("YES ", "yes"),
    ("1", "1.0"),
]
for first, second in PAIRS:
    classes = [first, second]
    asked = each(
        lambda v, c=classes: outcomes.positive_class(c, v), None, first, second, 1, True, 2.0, "B", b"a", "zzz"
    )
    case(f"positive-{first}-{second}", asked)
    named = each(
        lambda v, c=classes: outcomes.positive_class(c, None, v), ["p_a"], ["p_a", "p_b"], ["score"], ["p1", "1"]
    )
    case(f"positive-columns-{first}-{second}", named)
    case(
        f"positive-otherwise-{first}-{second}",
        lambda c=classes: outcomes.positive_class(c, None, ["x"], otherwise=c[0]),
    )
BORNE = [
    "approved",
    "p_approved",
    "P(approved)",
    "not approved",
    "probability[approved]",
    "approved approved",
    "p",
    "approved2",
]
case("bears", each(lambda v: [outcomes.bears(v, name) for name in ("approved", "p", "2", "", "approved 2")], *BORNE))
case("class-names", each(outcomes.class_name, 1, 1.0, 1.5, True, b"x", "x", np.float32(2), None, 1e20, np.int8(3)))
case("refuse-positive", each(outcomes.refuse_positive, 1, "a"))


def _summaries(kind: str) -> Any:
    table, rest = holes(30), people(30).assign(race=pd.Categorical(["z"] * 30, ["z", "w"]))
    names = list(table.columns)
    merged = {}
    for missing in ("error", "drop", "level"):
        seen = [tables.observe(one, names, missing=missing, cells=names) for one in (table, rest)]
        both = seen[0].merge(seen[1])
        merged[missing] = {
            "rows": (both.n_rows, both.n_kept),
            "cells": both.cells,
            "columns": {k: _seen(v) for k, v in both.columns.items()},
        }
        merged[missing]["design"] = outcome(
            lambda b=both, m=missing: tables.settle(b, names, missing=m, basis=kind).to_dict()
        )
    return merged


def _seen(seen: summary.Seen) -> Any:
    return (
        seen.n,
        seen.n_missing,
        seen.total,
        dict(seen.counts or {}),
        seen.declared,
        seen.is_category,
        seen.levels,
        seen.largest if seen.counts else None,
    )


for kind in ("linear", "cells", "spline"):
    case(f"summaries-{kind}", lambda k=kind: _summaries(k))
case("summaries-conflict", lambda: summary.Seen(2, 0, 3.0).merge(summary.Seen(2, 0, counts={"a": 2}), "x"))
case("summaries-blank", lambda: _seen(summary.Seen(2, 2).merge(summary.Seen(2, 0, counts={"a": 2}), "x")))
case("summaries-blank-numbers", lambda: _seen(summary.Seen(2, 2, counts={}).merge(summary.Seen(2, 0, 5.0), "x")))
CODES = [(40, 4, 1.0), (39, 4, 1.0), (40, 4, 0.5), (300, 20, 1.0), (300, 21, 1.0)]
case(
    "looks-like-codes",
    each(
        lambda n, k, step: summary.looks_like_codes(
            summary.see(column.Numbers(np.arange(n) % k * step), distinct=True)
        ),
        *CODES,
    ),
)
for levels in (50, 51, 60, 61, 62):
    rows = {50: 60, 51: 101, 60: 120, 61: 122, 62: 123}[levels]
    case(
        f"identifier-{levels}",
        lambda k=levels, n=rows: tables.learn(pd.DataFrame({"a": [f"l{i % k}" for i in range(n)]})).names,
    )
case("observed", lambda: summary.observed([np.array([2, 0, 2, 1]), np.array([0, 3, 0, 3]), np.array([1, 1, 1, 0])]))

LEVELS = column.Levels(np.array([0, 1, 2, -1, 1]), ("a", "b", "c"))
for known in (("a", "b", "c"), ("b", "a"), ("c", None, "a"), ()):
    case(f"locate-{known}", lambda k=known: locate_levels(k, LEVELS))
CELLS = ((0, 0, 1), (0, 2, 0), (1, 1, 1), (2, 0, 0))
case(
    "cells",
    lambda: locate_cells(
        CELLS, [np.array([0, 1, 2, 0, -1, 2]), np.array([2, 1, 0, 0, 1, 1]), np.array([0, 1, 0, 1, 1, 0])]
    ),
)
case(
    "order",
    each(
        order_levels,
        (["a", "b"], "x", "b"),
        (["a", "b"], "x", None),
        (["1", 1], "x", None),
        (["a"], "x", "c"),
        ([1, None], "x", 1),
    ),
)
case("partly", lambda: _partly(holes(70)))
case("partly-kernel", lambda: _partly(holes(70), basis={"kernel": 0.3}))
case("partly-formula", lambda: _partly(holes(70), columns="~ sex * age"))
case("partly-few", lambda: _partly(holes(70).assign(sex=[None] * 21 + ["f", "m"] * 24 + ["m"])))
case("partly-enough", lambda: _partly(holes(70).assign(sex=[None] * 20 + ["f", "m"] * 25)))
case("partly-none", lambda: _partly(holes(70).assign(sex=[None] * 70)))
case("partly-constant", lambda: _partly(holes(70).assign(sex=[None] * 10 + ["m"] * 60)))


def _partly(table: Any, columns: Any = ("sex", "age", "race"), **options: Any) -> Any:
    columns = list(columns) if isinstance(columns, tuple) else columns
    found = partly_missing.learn_partly(table, columns, **options)
    return found.names, partly_missing.encode_partly(found, table)


READERS: dict[str, dict[str, Any]] = {
    "inside": {"protected": ["sex", "race"]},
    "use": {"protected": ["sex"], "use_protected": True},
    "formula": {"protected": "~ sex * race"},
    "cells": {"protected": ["sex", "race"], "basis": "cells"},
    "given": {"protected": ["sex"], "given": ["age"]},
    "given-twice": {"protected": ["sex"], "given": ["sex"]},
    "drop": {"protected": ["sex"], "missing": "drop"},
    "drop-given": {"protected": ["sex"], "missing": "drop", "given": ["race"]},
    "level": {"protected": ["sex"], "missing": "level", "unseen": "pool"},
    "model": {"protected": ["sex"], "missing": "model"},
    "reference": {"protected": ["sex"], "reference": {"race": "b"}},
    "reference-unknown": {"protected": ["sex"], "reference": {"rac": "b"}},
    "all": {"protected": [0, 1, 2, 3, 4]},
    "none": {},
    "empty": {"protected": []},
    "table": {"protected": people()[["sex"]]},
    "position": {"protected": 1},
    "use-none": {"use_protected": True},
}
for name, options in READERS.items():
    for code in (True, False):
        case(f"reader-{name}-{code}", lambda o=options, c=code: _reader(o, code_features=c))
case("reader-codes", lambda: _reader({"protected": ["sex"]}, as_codes=True, protected_as_codes=True))
case(
    "reader-stored",
    lambda: roles.learn_reader(
        people()[["age", "income"]].to_numpy(), people()["sex"].to_numpy(), roles.Columns(), as_stored=True
    )[1],
)
case("reader-beside", lambda: _reader({}, beside=people()[["sex"]]))
case("reader-beside-short", lambda: _reader({}, beside=people()[["sex"]][:9]))
case("reader-twice", lambda: _reader({"protected": ["sex"]}, beside=people()[["sex"]]))
case("reader-names", lambda: _reader({}, beside=["sex", "race"]))
case("reader-constant", lambda: _reader({}, beside=np.full(40, "a")))
case("reader-beside-use", lambda: _reader({"use_protected": True}, beside=people()[["sex"]]))


def _reader(options: dict[str, Any], beside: Any = None, **how: Any) -> Any:
    rule = options.get("missing")
    table = holes() if rule in ("drop", "level") else people()
    if rule == "model":
        table["sex"] = table["sex"].where(np.arange(40) > 0)
    reader, rows = roles.learn_reader(table, beside, roles.Columns(**options), models_missing=True, **how)
    new = later()[:1]
    found: dict[str, Any] = {
        "Z": rows.Z,
        "X": rows.X,
        "keep": rows.keep,
        "C": rows.C,
        "features": tables.column_names(rows.features),
    }
    found |= {
        "inside": reader.inside,
        "names": reader.feature_names,
        "lacks": reader.lacks_protected(new.drop(columns="sex")),
    }
    side = None if reader.inside else new[["sex"]]
    found["protected"] = outcome(lambda: reader.protected_matrix(new, side))
    found["twice"] = outcome(lambda: reader.protected_matrix(new, None if side is not None else new[["sex"]]))
    found["given"] = outcome(lambda: reader.given_matrix(new))
    found["table"] = reader.feature_table(new)
    found["matrix"] = outcome(lambda: reader.feature_matrix(reader.feature_table(new)))
    return found


X = np.sort(np.random.default_rng(4).lognormal(size=200))
SHAPES = {
    "many": X,
    "few": np.arange(30) % 5 * 1.5,
    "two": np.arange(10) % 2 * 1.0,
    "heavy": np.repeat([0.0, 1.0, 2.0, 7.0], [90, 4, 3, 3]),
}
SHAPES |= {
    "one": np.ones(5),
    "missing": np.where(X > 2.0, N_AN, X),
    "21": np.arange(42) % 21 * 1.0,
    "22": np.arange(44) % 22 * 1.0,
    "edge": np.r_[np.zeros(300), X[:30]],
}
for name, x in SHAPES.items():
    for most in (0, 1, 3, 10):
        case(f"hinges-{name}-{most}", lambda x=x, m=most: _hinges(x, m))
    case(f"ranks-{name}", lambda x=x: expansion.rank_curve(x))
    case(f"spline-{name}", lambda x=x: smooth.learn_spline(Numeric("x", 1.0, True), x))


def _hinges(x: np.ndarray, most: int) -> Any:
    coder = expansion.learn_hinges(Numeric("x", 0.5, True), x, most)
    points = np.array([-5.0, 0.0, 0.7, 1.5, 3.0, 99.0])
    out = np.zeros((6, len(coder.made)))
    coder.write(points, out)
    return coder, coder.names, out


def _products() -> Any:
    table = holes()
    rows = column.open_rows(frame.open_table(table), ("age", "race", "sex"), "level")
    curve = expansion.rank_curve(table["age"].to_numpy())
    coder = expansion.Products(
        ("age", "race", "sex"),
        (curve, (), ()),
        ((), ("b", None), ("m",)),
        (40.0, 0.0, 0.0),
        ((0, 0, 1, 1), (1, 0, 2, 0), (0, 0, 0, 0)),
    )
    out = np.zeros((40, 3))
    pooled = coder.encode(rows, out, "error")
    again = Design.from_dict(Design((coder,), "level", "pool").to_dict())
    return (
        coder.names,
        coder.sources,
        coder.constant,
        out,
        pooled,
        coder.factors(rows),
        coder.with_pairs([(0, 0, 2, 0)]).names,
        again.names,
    )


case("products", _products)
case(
    "stored",
    lambda: [
        read_stored(tables.learn(X2), X2, learned=flag)
        for X2 in (np.ones((3, 2)), np.ones((3, 2), int), np.array([[N_AN, 1.0]]))
        for flag in (True, False)
    ],
)
case("write", lambda: _write(people()[["age", "income"]]))
case("write-coded", lambda: _write(people()))
case(
    "dicts",
    lambda: {
        name: Design.from_dict(tables.learn(people(), basis=name).to_dict()) == tables.learn(people(), basis=name)
        for name in ("linear", "cells", "spline", "kernel")
    },
)
case("dict-formula", lambda: tables.learn(people(), formula="~ age").to_dict())
case(
    "options",
    each(
        lambda v: learn.check_options(*v),
        ["linear", "error", "error"],
        ["x", "error", "error"],
        ["~ a", "drop", "pool"],
        ["linear", "model", "error"],
    ),
)


def _write(table: pd.DataFrame) -> Any:
    import pyarrow as pa

    found = tables.learn(table)
    made = []
    for kind in (table, pa.Table.from_pandas(table, preserve_index=False), pl.from_pandas(table)):
        out = np.full((len(table), len(found.names)), 9.0)
        made.append((found.write(kind, out), out))
    return made


@pytest.mark.parametrize("name", CASES)
def test_tables_parts(golden, name):
    golden(outcome(CASES[name]))
