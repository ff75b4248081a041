"""Golden cases of audits: every evaluation model, option and result, with whole documents as text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from tests.golden.outcomes import outcome

import setsquare as sq
from setsquare import auditing
from setsquare.auditing import Limits

CASES: dict[str, Callable[[], Any]] = {}
N = 240


@cache
def data() -> pd.DataFrame:
    """Protected columns, predictions of several kinds, outcomes and decisions."""
    rng = np.random.default_rng(29)
    sex, race = rng.choice(["f", "m"], N, p=[0.45, 0.55]), rng.choice(["a", "b", "c"], N, p=[0.5, 0.35, 0.15])
    table = pd.DataFrame({"sex": sex, "race": race, "age": rng.normal(40.0, 10.0, N)})
    noise = rng.normal(size=N)
    signal = 0.8 * noise + 0.6 * (sex == "m") + 0.01 * (table["age"] - 40.0)
    chance = 1.0 / (1.0 + np.exp(-signal))
    return table.assign(
        score=chance,
        fair=1.0 / (1.0 + np.exp(-noise)),
        number=10.0 + 3.0 * signal,
        count=np.exp(0.5 * signal),
        y=(rng.random(N) < chance).astype(int),
        label=np.where(rng.random(N) < chance, "yes", "no"),
        decision=(chance > 0.55).astype(int),
        weight=rng.uniform(0.5, 2.0, N),
        cluster=rng.integers(50, size=N),
        site=rng.choice(["north", "south"], N),
        bent=(table["age"] - 40.0) ** 2 / 100.0 + 0.3 * noise,
        wide=noise * np.where(sex == "m", 2.0, 0.5),
        day=rng.permutation(N),
    )


def case(name: str, function: Callable[[], Any]) -> None:
    assert name not in CASES
    CASES[name] = function


def audit(column: str = "score", protected: Any = ("sex", "race"), **options: Any) -> Any:
    """An audit of a column."""
    table = data()
    rows = {
        name: table[options[name]] for name in ("outcome", "decisions", "sample_weight", "cluster") if name in options
    }
    if isinstance(options.get("given"), list):
        rows["given"] = table[options["given"]]
    protected = table[list(protected)] if isinstance(protected, tuple) else protected
    return sq.audit(table[column], protected, **{"n_permutations": 39} | options | rows)


def said(result: Any, tables: bool = False) -> dict[str, Any]:
    """All that a result says; its tables repeat the same numbers."""
    found = {"dict": result.to_dict()}
    if not tables:
        asked = result.numbers is not None and (len(result.numbers.table().columns) > 9 or result.numbers.standard)
        return found if asked else {"dict": found["dict"] | {"groups": None}}
    found["table"] = outcome(lambda: result.table(adjusted=True))
    for name in ("groups", "group_summary", "tests"):
        if hasattr(result, name):
            found[name] = outcome(getattr(result, name))
    return found


AUDITS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fair": {"column": "fair"},
    "number": {"column": "number"},
    "age": {"protected": ("age",)},
    "all": {"protected": ("sex", "race", "age")},
    "bent": {"column": "bent", "protected": ("age",)},
    "wide": {"column": "wide"},
    "label": {"column": "label"},
    "positive": {"column": "label", "positive": "no"},
    "decision": {"column": "decision"},
    "poisson": {"column": "count", "family": "poisson"},
    "gamma": {"column": "count", "family": "gamma"},
    "gaussian": {"family": "gaussian"},
    "tweedie": {"column": "count", "family": sq.families.family("tweedie", parameter=1.5)},
    "HC0": {"vcov": "HC0"},
    "HC1": {"vcov": "HC1"},
    "HC2": {"vcov": "HC2"},
    "model": {"vcov": "model"},
    "cluster": {"cluster": "cluster"},
    "cluster-vcov": {"cluster": "cluster", "vcov": "cluster"},
    "cluster-missing": {"vcov": "cluster"},
    "weight": {"sample_weight": "weight"},
    "weight-cluster": {"sample_weight": "weight", "cluster": "cluster"},
    "linear": {"evaluation": "linear"},
    "glm": {"evaluation": "glm"},
    "shape": {"evaluation": ["glm", "shape"], "protected": ("sex", "race", "age")},
    "relu": {"evaluation": "relu", "protected": ("age",), "column": "bent"},
    "relu-origin": {"evaluation": "relu without intercept", "protected": ("age",), "column": "bent"},
    "forest": {
        "evaluation": "forest",
        "protected": ("age", "sex"),
        "column": "bent",
        "n_permutations": 19,
        "max_rows": 100,
    },
    "independence": {"evaluation": "independence", "protected": ("sex", "age")},
    "independence-rows": {"evaluation": "independence", "max_rows": 100},
    "gcm": {"evaluation": "gcm", "given": ["age"]},
    "given": {"given": ["age"]},
    "given-site": {"given": ["age", "site"], "sample_weight": "weight"},
    "given-outcome": {"given": "outcome", "outcome": "y"},
    "given-cluster": {"given": ["age"], "cluster": "cluster"},
    "given-protected": {"given": ["sex"]},
    "cells": {"basis": "cells"},
    "spline": {"basis": "spline", "protected": ("age",)},
    "kernel": {"basis": {"kernel": 0.2}, "protected": ("age", "sex")},
    "formula": {"basis": "~ sex * race"},
    "reference": {"reference": {"race": "c", "sex": "f"}},
    "confidence": {"confidence": 0.8},
    "tolerance": {"tolerance": 0.9},
    "tolerance-0": {"tolerance": 0.0},
    "limits": {"tolerance": Limits(0.9, 0.9, 0.9)},
    "limits-difference": {"tolerance": Limits(0.9, 0.01, 0.2)},
    "limits-shape": {"column": "wide", "tolerance": Limits(0.9, 0.9, 0.9)},
    "setting": {"setting": "held out"},
    "threshold": {"threshold": 0.5},
    "threshold-outcome": {"threshold": 0.5, "outcome": "y"},
    "decisions": {"decisions": "decision"},
    "decisions-outcome": {"decisions": "decision", "outcome": "label"},
    "outcome": {"outcome": "y"},
    "groups-weight": {"threshold": 0.5, "outcome": "y", "sample_weight": "weight"},
    "groups-cluster": {"threshold": 0.5, "outcome": "y", "cluster": "cluster"},
    "groups-age": {"threshold": 0.5, "outcome": "y", "protected": ("age",)},
    "min-group": {"threshold": 0.5, "min_group": 60},
    "four-fifths": {"threshold": 0.6, "standard": "four-fifths"},
    "four-fifths-decisions": {"decisions": "decision", "standard": "four-fifths"},
    "ll144": {"standard": "ll144"},
    "ll144-decisions": {"decisions": "decision", "standard": "ll144"},
}
for name, options in AUDITS.items():
    case(f"audit-{name}", lambda o=options: said(audit(**o)))
for name in ("plain", "groups-cluster", "groups-age", "given", "HC0"):
    case(f"tables-{name}", lambda o=AUDITS[name]: said(audit(**o), tables=True))
TEXTS = (
    "plain",
    "fair",
    "all",
    "bent",
    "limits",
    "given-outcome",
    "decisions-outcome",
    "groups-age",
    "ll144",
    "reference",
)
for name in TEXTS:
    case(f"text-{name}", lambda o=AUDITS[name]: str(audit(**o)))
for name in ("plain", "groups-cluster", "four-fifths", "shape"):
    case(f"markdown-{name}", lambda o=AUDITS[name]: audit(**o).to_markdown())
    case(f"sections-{name}", lambda o=AUDITS[name]: _shape_of(audit(**o).document()))
case("latex", lambda: audit(threshold=0.5).to_latex())
case("notebook", lambda: audit(threshold=0.5)._repr_html_())


def _shape_of(document: Any) -> Any:
    """Titles, columns and notes of a document; its numbers are in the results."""
    tree = document.to_dict()
    return [
        (
            part.get("name"),
            part.get("title"),
            [(t.get("title"), t.get("columns")) for t in part.get("tables", [])],
            part.get("notes"),
        )
        for part in tree.get("sections", [])
    ]


BAD: dict[str, dict[str, Any]] = {
    "evaluation": {"evaluation": "other"},
    "no-evaluation": {"evaluation": []},
    "vcov": {"vcov": "HC9"},
    "confidence": {"confidence": 0.4},
    "tolerance": {"tolerance": -0.1},
    "tolerance-1": {"tolerance": 1.5},
    "permutations": {"n_permutations": 0},
    "max-rows": {"max_rows": 99},
    "min-group": {"min_group": 1},
    "threshold": {"threshold": float("nan")},
    "both": {"threshold": 0.5, "decisions": "decision"},
    "standard": {"standard": "other"},
    "standard-alone": {"standard": "four-fifths"},
    "family": {"family": "poisson", "column": "wide"},
    "family-name": {"family": "other"},
    "positive": {"positive": 1},
    "given-alone": {"given": "outcome"},
    "gcm-alone": {"evaluation": "gcm"},
    "basis": {"basis": "other"},
    "missing": {"missing": "other"},
    "reference": {"reference": {"race": "z"}},
    "reference-column": {"reference": {"rac": "a"}},
    "outcome-text": {"outcome": "race"},
    "decisions-text": {"decisions": "race"},
    "constant": {"protected": ("one",)},
}
for name, options in BAD.items():
    case(f"bad-{name}", lambda o=options: said(audit(**_with_one(o))))


def _with_one(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"protected": np.ones(N)} if options.get("protected") == ("one",) else options


SMALL = slice(0, 14)
case("small", lambda: said(sq.audit(data()["score"][SMALL], data()[["sex"]][SMALL])))
case("small-text", lambda: str(sq.audit(data()["fair"][SMALL], data()[["sex"]][SMALL])))
case("constant", lambda: said(sq.audit(np.full(N, 0.3), data()[["sex"]])))
case("constant-text", lambda: str(sq.audit(np.full(N, 0.3), data()[["sex"]])))
case("corrected", lambda: said(sq.audit(_corrected(), data()[["sex"]])))
case("corrected-text", lambda: str(sq.audit(_corrected(), data()[["sex"]])))
case("classes", lambda: said(sq.audit(_classes(), data()[["sex"]], classes=["p", "q", "r"])))
case("classes-text", lambda: str(sq.audit(_classes(), data()[["sex", "race"]])))
case(
    "two-columns",
    lambda: said(sq.audit(_classes()[:, :2] / _classes()[:, :2].sum(1, keepdims=True), data()[["sex"]], positive=None)),
)
case("three-labels", lambda: said(sq.audit(np.array(["p", "q", "r"])[np.arange(N) % 3], data()[["sex"]])))
case("tensor", lambda: said(sq.audit(_tensor(), data()[["sex"]], n_permutations=39)))
case("tensor-text", lambda: str(sq.audit(_tensor(), data()[["sex", "race"]], n_permutations=39)))
case("tensor-map", lambda: sq.audit(_tensor(), data()[["sex"]], n_permutations=39).effect_map)
case(
    "tensor-weight",
    lambda: said(sq.audit(_tensor(), data()[["sex"]], n_permutations=39, sample_weight=data()["weight"])),
)
case("tensor-cluster", lambda: said(sq.audit(_tensor(), data()[["sex"]], n_permutations=39, cluster=data()["cluster"])))
case(
    "tensor-binomial",
    lambda: said(sq.audit((_tensor().reshape(N, -1)[:, :3] > 0) * 1.0, data()[["sex"]], "binomial", n_permutations=19)),
)
case("tensor-linear", lambda: said(sq.audit(_tensor(), data()[["sex"]], evaluation="linear", n_permutations=19)))
case("tensor-shape", lambda: said(sq.audit(_tensor(), data()[["sex"]], evaluation="shape")))
case(
    "units",
    lambda: auditing.unit_correlations(
        _tensor().reshape(N, -1), np.column_stack([data()["age"], data()["sex"] == "m"]), data()["weight"].to_numpy()
    ),
)
for kind, convert in {
    "polars": pl.from_pandas,
    "pyarrow": lambda t: pa.Table.from_pandas(t, preserve_index=False),
}.items():
    case(
        f"audit-{kind}",
        lambda c=convert: said(sq.audit(data()["score"].to_numpy(), c(data()[["sex", "age"]]), threshold=0.5)),
    )
for rule in ("error", "drop", "level", "model"):
    case(
        f"missing-{rule}",
        lambda r=rule: said(sq.audit(data()["score"], _holes(), missing=r, threshold=0.5, outcome=data()["y"])),
    )
case("missing-predictions", lambda: said(sq.audit(data()["score"].where(np.arange(N) > 3), data()[["sex"]])))
case(
    "missing-predictions-drop",
    lambda: said(sq.audit(data()["score"].where(np.arange(N) > 3), data()[["sex"]], missing="drop")),
)
case("lengths", lambda: sq.audit(data()["score"][:9], data()[["sex"]]))
case("stream", lambda: _stream())
case("stream-weight", lambda: _stream(sample_weight="weight"))
case("stream-given", lambda: _stream(given=["x"]))
case("stream-threshold", lambda: _stream(threshold=0.5))


def _stream(**options: Any) -> Any:
    batches = pa.Table.from_pandas(data(), preserve_index=False).to_batches(max_chunksize=70)
    stream = sq.Stream(batches)
    return said(sq.audit(stream["score"], stream[["sex", "race"]], **options))


def _holes() -> pd.DataFrame:
    table = data()[["sex", "race"]].copy()
    table.loc[5:30, "sex"] = None
    return table


def _corrected() -> np.ndarray:
    table = data()
    return table["number"].to_numpy() - table.groupby("sex")["number"].transform("mean").to_numpy() + 10.0


def _classes() -> np.ndarray:
    table = data()
    raw = np.column_stack([np.exp(table["number"] / 6.0), np.exp(table["fair"]), 1.0 + table["weight"]])
    return raw / raw.sum(axis=1, keepdims=True)


def _tensor() -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.normal(size=(N, 2, 3)) + 0.5 * (data()["sex"] == "m").to_numpy()[:, None, None] * np.array([1.0, 0, 0])


def features() -> pd.DataFrame:
    rng = np.random.default_rng(6)
    table = data()
    return pd.DataFrame({f"z{j}": table["number"] * (j == 0) + rng.normal(size=N) for j in range(3)})


MODELS: dict[str, dict[str, Any]] = {
    "folds": {"cv": 3},
    "in-sample": {"cv": None},
    "time": {"cv": 3, "time": "day"},
    "time-none": {"cv": None, "time": "day"},
    "weight": {"cv": 3, "sample_weight": "weight"},
    "cluster": {"cv": 3, "cluster": "cluster"},
    "given": {"cv": 3, "given": "outcome"},
    "seed": {"cv": 4, "random_state": 9},
    "threshold": {"cv": 3, "threshold": 0.5, "outcome": "y"},
}
for name, options in MODELS.items():
    case(f"model-{name}", lambda o=options: _audit_model(LogisticRegression(), "y", **o))
case("model-regression", lambda: _audit_model(LinearRegression(), "number", cv=3))
case("model-prefit", lambda: _audit_model(LinearRegression().fit(features(), data()["number"]), "number", cv="prefit"))
case("model-ours", lambda: _audit_model(sq.OrthogonalGLMClassifier(), "label", cv=3))
case("model-ours-text", lambda: _audit_model(sq.OrthogonalGLMRegressor(), "number", cv=3, text=True))
case("model-ours-time", lambda: _audit_model(sq.OrthogonalGLMRegressor(), "number", cv=3, time="day"))
case("model-wrapped", lambda: _audit_model(sq.PredictionOrthogonalizer(LinearRegression(), "linear"), "number", cv=3))


def _audit_model(model: Any, y: str, text: bool = False, **options: Any) -> Any:
    table = data()
    options = {k: table[v] if isinstance(v, str) and v in table else v for k, v in options.items()}
    steps: list[tuple[int, int]] = []
    protected = table[["sex", "age"]]
    result = sq.audit_model(model, features(), table[y], protected, progress=lambda *s: steps.append(s), **options)
    return str(result) if text else (said(result), steps)


COMPARED: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight": {"sample_weight": "weight"},
    "cluster": {"cluster": "cluster"},
    "confidence": {"confidence": 0.8},
    "threshold": {"threshold": 0.5},
    "age": {"protected": ["age"]},
}
for name, options in COMPARED.items():
    case(f"compare-{name}", lambda o=options: _compare(**o))
case("compare-text", lambda: _compare(text=True, threshold=0.5))
case("compare-counts", lambda: _compare(y=np.round(data()["count"] * 2), columns=("count", "weight"), family="poisson"))
case("compare-numbers", lambda: _compare(y=data()["number"], columns=("number", "bent")))
case("compare-one", lambda: _compare(columns=("score",)))
case("compare-labels", lambda: _compare(y=data()["label"], columns=("score", "fair")))
case("compare-bad", lambda: _compare(y=data()["y"][:9]))


def _compare(
    y: Any = None, columns: Any = ("score", "fair"), text: bool = False, protected: Any = ("sex",), **options: Any
) -> Any:
    table = data()
    options = {k: table[v] if isinstance(v, str) and v in table else v for k, v in options.items()}
    y = table["y"] if y is None else y
    result = sq.compare({name: table[name] for name in columns}, y, table[list(protected)], **options)
    if text:
        return str(result)
    found = {"dict": result.to_dict()}
    for name in ("table", "performance", "calibration", "groups", "by_group", "differences"):
        if hasattr(result, name):
            found[name] = outcome(getattr(result, name))
    return found


for name in ("binomial", "gaussian", "poisson", "gamma", "multinomial"):
    case(f"performance-{name}", lambda n=name: _performance(n))
    case(f"performance-weight-{name}", lambda n=name: _performance(n, data()["weight"].to_numpy()))


def _performance(name: str, weight: Any = None) -> Any:
    table = data()
    pairs = {
        "binomial": (table["y"], table["score"]),
        "gaussian": (table["number"], 2.0 + table["number"] * 0.7),
        "poisson": (np.round(table["count"]), table["count"]),
        "gamma": (table["count"], table["weight"]),
        "multinomial": (_classes().argmax(1), _classes()),
    }
    y, p = (np.asarray(one, dtype=float) for one in pairs[name])
    found = auditing.performance(y, p, name, weight)
    cluster = table["cluster"].to_numpy()
    pairs_of = [auditing.difference(one, one, 0.9) for one in found]
    return (
        found,
        [auditing.interval(one) for one in found],
        [auditing.interval(one, 0.8, cluster) for one in found],
        pairs_of,
    )


def _monitor(**options: Any) -> Any:
    table = data().sort_values("day").reset_index(drop=True)
    state, steps = None, []
    for start in (0, 60, 61, 150):
        stop = {0: 60, 60: 61, 61: 150, 150: N}[start]
        part = table[start:stop]
        state = sq.monitor(part["score"], part[["sex", "race"]], state=state, **options)
        steps.append((state.to_dict(), state.table(), state.reason))
    return steps, str(state)


case("monitor", _monitor)
case("monitor-reference", lambda: _monitor(reference={"sex": "f"}))
case("monitor-confidence", lambda: _monitor(confidence=0.6))
case("monitor-bounds", lambda: _monitor(bounds=(-1.0, 2.0)))
case("monitor-alarm", lambda: _alarm())
case("monitor-change", lambda: _alarm(change=True))
case("monitor-outside", lambda: sq.monitor([0.1, 1.2], ["a", "b"]))
case("monitor-inside", lambda: sq.monitor([0.0, 1.0], ["a", "b"]).table())
case("monitor-text", lambda: sq.monitor(["x", "y"], ["a", "b"]))
case("monitor-one", lambda: sq.monitor([0.1, 0.2], ["a", "a"]))
case("monitor-missing", lambda: sq.monitor([0.1, np.nan], ["a", "b"]))
case("monitor-numbers", lambda: sq.monitor(data()["score"], data()[["age"]]).to_dict())
case(
    "monitor-later",
    lambda: sq.monitor([0.1, 0.3], ["a", "c"], state=sq.monitor([0.1, 0.2, 0.2], ["a", "b", "a"])).to_dict(),
)
case(
    "monitor-other",
    lambda: sq.monitor([0.1], ["a"], state=sq.monitor([0.1, 0.2, 0.2], ["a", "b", "a"]), confidence=0.8),
)
case(
    "monitor-other-bounds",
    lambda: sq.monitor([0.1], ["a"], state=sq.monitor([0.1, 0.2, 0.2], ["a", "b", "a"]), bounds=(0, 2)),
)
for low, high in ((0.0, 0.0), (1.0, 0.0), (0.0, float("inf"))):
    case(f"monitor-bounds-{low}-{high}", lambda b=(low, high): sq.monitor([0.0, 0.0], ["a", "b"], bounds=b))


def _alarm(change: bool = False) -> Any:
    rng = np.random.default_rng(2)
    sex = rng.choice(["f", "m"], 900)
    shift = 0.35 * (sex == "m") * (1.0 if not change else np.where(np.arange(900) < 600, 1.0, -1.0))
    score = np.clip(0.35 + shift + 0.1 * rng.normal(size=900), 0.0, 1.0)
    found = sq.monitor(score[:450], sex[:450])
    later = sq.monitor(score[450:], sex[450:], state=found)
    return [(one.to_dict(), one.is_alarm, str(one)) for one in (found, later)]


def _probe(**options: Any) -> Any:
    table = data()
    Z = features().assign(z1=lambda t: t["z1"] + (table["sex"] == "m"))
    steps: list[tuple[int, int]] = []
    options = {"cv": 3, "max_rows": 150} | options
    result = sq.probe(Z, table[["sex"]], progress=lambda *s: steps.append(s), **options)
    return result.to_dict(), result.table(), str(result), len(steps)


for kind in ("linear", "logistic", "other"):
    case(f"probe-{kind}", lambda k=kind: _probe(probes=[k]))
case("probe-cluster", lambda: _probe(probes=["linear"], cluster=data()["cluster"]))
case("probe-folds", lambda: _probe(probes=["linear"], cv=1))
case("probe-features", lambda: _probe(probes=["linear"], features=data()[["number"]]))
case(
    "probe-two",
    lambda: sq.probe(
        {"a": features(), "b": features() * 0 + 1.0}, data()[["race", "age"]], probes=["linear"], cv=3
    ).to_dict(),
)
for draws in (98, 99, 120):
    case(f"maximum-{draws}", lambda d=draws: _maximum(n_draws=d))
case("maximum-weight", lambda: _maximum(sample_weight=data()["weight"].to_numpy()))
case("maximum-cluster", lambda: _maximum(cluster=data()["cluster"].to_numpy()))
case("maximum-confidence", lambda: _maximum(confidence=0.8, random_state=3))
case("maximum-short", lambda: sq.maximum_test(data()["score"][:9], data()[["age"]]))


def _maximum(**options: Any) -> Any:
    table = data()
    X = features().assign(age=table["age"], sex=table["sex"], flat=1.0)
    found = sq.maximum_test(table["score"], X, **{"n_draws": 99} | options)
    return found.to_dict(), found.table(), str(found)


TRADES: dict[str, dict[str, Any]] = {
    "few": {"budgets": 3},
    "list": {"budgets": [0.0, 0.1, 1.0]},
    "one": {"budgets": 1},
    "two": {"budgets": 2},
    "outside": {"budgets": [0.0, 1.1]},
    "negative": {"budgets": [-0.1, 1.0]},
    "order": {"budgets": [1.0, 0.0]},
    "training": {"budgets": 3, "new_rows": False},
    "confidence": {"budgets": 3, "confidence": 0.8},
    "weight": {"budgets": 3, "sample_weight": "weight"},
    "cluster": {"budgets": 3, "cluster": "cluster"},
    "offset": {"budgets": 3, "offset": "fair"},
}
for name, options in TRADES.items():
    case(f"tradeoff-{name}", lambda o=options: _tradeoff(sq.OrthogonalGLMClassifier(), "label", **o))
case("tradeoff-number", lambda: _tradeoff(sq.OrthogonalGLMRegressor(), "number", budgets=3))
case("tradeoff-other", lambda: _tradeoff(LogisticRegression(), "label", budgets=3))


def _tradeoff(model: Any, y: str, **options: Any) -> Any:
    table = data()
    options = {k: table[v].to_numpy() if isinstance(v, str) and v in table else v for k, v in options.items()}
    found = sq.tradeoff(model, features(), table[y], table[["sex"]], **options)
    return found.to_dict(), found.table(), str(found)


case("correction", lambda: _correction(LogisticRegression(), "label"))
case("correction-number", lambda: _correction(LinearRegression(), "number"))
case("correction-shuffles", lambda: _correction(LinearRegression(), "number", n_shuffles=1))
case("correction-folds", lambda: _correction(LinearRegression(), "number", cv=1))


def _correction(model: Any, y: str, **options: Any) -> Any:
    table = data()
    Z = features().round()
    found = sq.audit_correction(Z, table[y], table[["age"]], model, **{"cv": 3, "n_shuffles": 2} | options)
    return found, str(found), found.reason, found.flagged


def _adjusted() -> Any:
    p = [0.01, 0.04, 0.03, 0.5, 0.04, float("nan")]
    return auditing.holm(p), auditing.benjamini_hochberg(p), auditing.holm([]), auditing.benjamini_hochberg([0.2])


case("adjusted", _adjusted)
case(
    "forest-importances",
    lambda: auditing.forest_importances(
        data()["bent"].to_numpy(),
        data()[["age", "weight"]].to_numpy(),
        ["age", "weight"],
        ["age", "weight"],
        rng=np.random.default_rng(0),
        n_permutations=4,
        n_trees=8,
        max_rows=150,
    ),
)


#: Nearly collinear columns make these differ by up to 3e-6 between kernels of OpenBLAS.
SENSITIVE = {"audit-spline", "model-weight"}


@pytest.mark.parametrize("name", CASES)
def test_auditing(golden, name):
    golden(outcome(CASES[name]), relative=1e-5 if name in SENSITIVE else 1e-6)
