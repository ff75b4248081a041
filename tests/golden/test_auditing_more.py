"""Golden cases of audits with unusual rows: zeros of counts, many classes, groups that are numbers; and of refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from tests.golden.outcomes import outcome

import setsquare as sq
from setsquare import auditing
from setsquare.auditing import audit_corrections
from setsquare.auditing.comparison import metric
from setsquare.families import family

CASES: dict[str, Callable[[], Any]] = {}
N = 100


@cache
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(41)
    x = rng.integers(0, 2, N)
    noise = rng.normal(size=N)
    return pd.DataFrame(
        {
            "sex": np.where(x, "m", "f"),
            "level": rng.integers(0, 3, N).astype(float),
            "many": rng.integers(0, 20, N).astype(float),
            "name": np.array([f"n{k:02}" for k in range(14)])[rng.integers(0, 14, N)],
            "age": rng.normal(40.0, 9.0, N),
            "one": 1.0,
            "text": "same",
            "score": 1.0 / (1.0 + np.exp(-noise - 0.5 * x)),
            "count": rng.poisson(np.exp(0.2 * noise + 0.3 * x)).astype(float),
            "zeros": np.maximum(noise + 0.3 * x, 0.0),
            "y": (rng.random(N) < 0.5 + 0.1 * x).astype(int),
            "kind": np.array(["p", "q", "r", "s", "t", "u", "v", "w"])[rng.integers(0, 8, N)],
            "weight": rng.uniform(0.2, 2.0, N),
            "z0": noise,
            "z1": rng.normal(size=N),
        }
    )


def case(name: str, function: Callable[[], Any]) -> None:
    assert name not in CASES
    CASES[name] = function


def audit(column: str = "score", protected: Any = ("sex",), **options: Any) -> Any:
    found = sq.audit(rows()[column], rows()[list(protected)], **{"n_permutations": 19} | options)
    return found.to_dict(), str(found)


case("counts", lambda: audit("count", family="poisson", protected=("sex", "age")))
case("counts-model", lambda: audit("count", family="poisson", vcov="model"))
case("zeros", lambda: audit("zeros", family=sq.families.family("tweedie", parameter=1.5)))
case(
    "zeros-weight",
    lambda: audit("zeros", family=sq.families.family("tweedie", parameter=1.2), sample_weight=rows()["weight"]),
)
case("levels", lambda: audit(protected=("level",), threshold=0.5))
case("levels-unknown", lambda: audit(protected=("level",), threshold=0.5, reference={"level": 7}))
case("many", lambda: audit(protected=("many",), threshold=0.5, min_group=2))
case("names", lambda: audit(protected=("name",), threshold=0.5, min_group=4, outcome=rows()["y"]))
case("names-unknown", lambda: audit(protected=("name",), threshold=0.5, reference={"name": "other"}))
case("names-standard", lambda: audit(protected=("name", "sex"), threshold=0.5, standard="four-fifths", min_group=6))
case("median", lambda: audit(standard="ll144"))
case("median-weight", lambda: audit(standard="ll144", sample_weight=rows()["weight"]))
case("given-constant", lambda: audit(given=rows()[["one"]]))
case("given-text", lambda: audit(given=rows()[["text"]]))
case("given-word", lambda: audit(given="age"))
case("given-number", lambda: audit(given=3.0))
case("given-array", lambda: audit(given=rows()["age"].to_numpy()))
case("given-partly-constant", lambda: audit(given=rows()[["one", "age"]]))
case("given-outcome-text", lambda: audit(given="outcome", outcome=np.where(rows()["y"], "yes", "no")))
case("given-outcome-same", lambda: audit(given="outcome", outcome=np.ones(N)))
case("given-outcome-number", lambda: audit("count", given="outcome", outcome=rows()["age"]))
case("linear-classes", lambda: sq.audit(classes(), rows()[["sex"]], evaluation="linear"))
case("missing-all", lambda: sq.audit(np.full(N, np.nan), rows()[["sex"]], missing="drop"))
case("missing-outcome", lambda: audit(outcome=rows()["y"].where(np.arange(N) > 2), threshold=0.5))
case("missing-decisions", lambda: audit(decisions=rows()["y"].where(np.arange(N) > 2)))
case("decisions-column", lambda: audit(decisions=rows()[["y"]], outcome=rows()[["y"]]))
case("decisions-columns", lambda: audit(decisions=rows()[["y", "level"]]))
case("min-group-0", lambda: audit(threshold=0.5, min_group=0))
case("max-columns", lambda: sq.maximum_test(np.ones(N), rows()[["age"]]))
case("max-constant", lambda: sq.maximum_test(rows()["score"], rows()[["text"]]))
case("max-names", lambda: sq.maximum_test(rows()["score"], rows()[["age", "name"]], n_draws=99).to_dict())


def classes(columns: int = 3) -> np.ndarray:
    raw = np.exp(
        np.outer(rows()["z0"], np.linspace(-0.5, 0.5, columns)) + 0.2 * np.cos(np.arange(N * columns)).reshape(N, -1)
    )
    return raw / raw.sum(axis=1, keepdims=True)


def tensor() -> np.ndarray:
    return np.sin(np.arange(N * 6.0)).reshape(N, 2, 3) + 0.4 * (rows()["sex"] == "m").to_numpy()[:, None, None]


def maps() -> Any:
    one, two = (sq.audit(tensor(), rows()[[name]], n_permutations=19).effect_map for name in ("sex", "level"))
    again = sq.audit(tensor(), rows()[["sex"]], n_permutations=19).effect_map
    other = sq.audit(2.0 * tensor(), rows()[["sex"]], n_permutations=19).effect_map
    return [one == again, one == two, one == other, one == "map"]


case("maps", maps)
case("tensor-constant", lambda: said(sq.audit(tensor(), rows()[["text", "sex"]], n_permutations=19)))
case(
    "tensor-rows",
    lambda: said(
        sq.audit(np.repeat(tensor(), 2, axis=0), np.repeat(rows()["sex"], 2), n_permutations=19, max_rows=100)
    ),
)


def said(result: Any) -> Any:
    return result.to_dict(), str(result)


def model(estimator: Any, y: str = "y", protected: Any = None, **options: Any) -> Any:
    table = rows()[["z0", "z1", "sex"] if isinstance(protected, list) else ["z0", "z1"]]
    protected = rows()[["sex"]] if protected is None else protected
    return said(sq.audit_model(estimator, table, rows()[y], protected, **{"cv": 3} | options))


case("model-labels", lambda: model(RidgeClassifier()))
case("model-kinds", lambda: model(RidgeClassifier(), "kind"))
case("model-other-cv", lambda: model(LogisticRegression(), cv="other"))
case("model-prefit", lambda: model(LogisticRegression().fit(rows()[["z0", "z1"]], rows()["y"]), cv="prefit"))
case(
    "model-prefit-labels",
    lambda: model(RidgeClassifier().fit(rows()[["z0", "z1"]], rows()["kind"]), "kind", cv="prefit"),
)
case("model-named", lambda: model(sq.OrthogonalGLMClassifier(protected=["sex"]), protected=["sex"]))
case("model-values", lambda: model(LogisticRegression(), protected=tuple(rows()["sex"])))
case("model-given", lambda: model(LogisticRegression(), given=rows()[["age"]]))
case("model-given-outcome", lambda: model(LinearRegression(), "age", given="outcome"))
case("model-threshold", lambda: model(LogisticRegression(), threshold=0.5, outcome=rows()["y"], standard="four-fifths"))


def compare(predictions: Any, y: str = "y", protected: Any = ("sex",), **options: Any) -> Any:
    return said(sq.compare(predictions, rows()[y], rows()[list(protected)], **options))


P = {"plain": "score", "other": "y"}
case("compare-array", lambda: compare(rows()["score"]))
case("compare-nothing", lambda: compare({}))
case("compare-kinds", lambda: compare({"a": classes(8), "b": classes(8)[:, ::-1]}, "kind"))
case("compare-kinds-groups", lambda: compare({"a": classes(8)}, "kind", ("name", "age")))
case("compare-two-widths", lambda: compare({"a": classes(8), "b": classes(3)}, "kind"))
case("compare-tensor", lambda: compare({"a": tensor()}))
case("compare-columns", lambda: compare({"a": np.arange(N * 3.0).reshape(N, 3)}, "age"))
case("compare-names", lambda: compare({name: rows()[one] for name, one in P.items()}, protected=("name", "many")))
case("compare-constant", lambda: compare({"a": rows()["score"], "b": np.full(N, 0.4)}))
case("compare-getitem", lambda: sq.compare({"a": rows()["score"]}, rows()["y"], rows()[["sex"]])["b"])
case("compare-scores", lambda: sq.compare({"a": rows()["score"]}, rows()["y"], rows()[["sex"]]).scores())
case("compare-counts", lambda: compare({"a": rows()["count"] + 0.5, "b": np.ones(N)}, "count", family="poisson"))

PAIRS: dict[str, tuple[Any, Any, str]] = {
    "lengths": (np.ones(4), np.ones(3), "binomial"),
    "empty": (np.ones(0), np.ones(0), "binomial"),
    "axes": (np.ones((4, 2)), np.ones((4, 2)), "binomial"),
    "classes": (np.array([0.0, 1.0, 2.0, 1.0]), np.full((4, 3), 1.0 / 3.0), "multinomial"),
    "gap": (np.array([0.0, 1.0, 3.0, 1.0]), np.full((4, 3), 1.0 / 3.0), "multinomial"),
    "half": (np.array([0.0, 0.5, 2.0, 1.0]), np.full((4, 3), 1.0 / 3.0), "multinomial"),
    "sums": (np.eye(4, 3) + np.array([[0.0], [0.0], [0.0], [1.0]]), np.full((4, 3), 1.0 / 3.0), "multinomial"),
    "flat": (np.array([0.0, 1.0]), np.array([0.3, 0.6]), "multinomial"),
}
for name, (y, mu, glm) in PAIRS.items():
    case(f"pair-{name}", lambda y=y, mu=mu, glm=glm: metric.read_pair(y, mu, family(glm), None))
case(
    "unpaired",
    lambda: auditing.difference(
        auditing.performance(rows()["y"], rows()["score"], "binomial")[0],
        auditing.performance(rows()["y"], rows()["score"], "binomial")[1],
    ),
)
case(
    "unit-rows",
    lambda: auditing.performance(rows()["count"].to_numpy(), np.where(np.arange(N) < 3, -1.0, 2.0), "poisson"),
)


def leakage(Z: Any = None, y: Any = None, X: Any = None, **options: Any) -> Any:
    Z = rows()[["z0", "z1"]].round().to_numpy() if Z is None else Z
    y = rows()["y"].to_numpy() if y is None else y
    X = rows()[["age"]].to_numpy() if X is None else X
    found = audit_corrections.audit_correction(Z, y, X, LogisticRegression(), **{"cv": 3, "n_shuffles": 2} | options)
    return found, str(found), found.flagged


case("leakage", leakage)
case("leakage-rows", lambda: leakage(X=rows()[["age"]].to_numpy()[:9]))
case("leakage-outcomes", lambda: leakage(y=rows()["y"].to_numpy()[:9]))
case("leakage-one-class", lambda: leakage(y=np.zeros(N, dtype=int)))
case("leakage-rare-class", lambda: leakage(y=(np.arange(N) < 2).astype(int)))
case("leakage-just-enough", lambda: leakage(y=(np.arange(N) % 33 == 0).astype(int), cv=4))


def flags() -> Any:
    fields = dict.fromkeys(audit_corrections.ConfoundLeakage.__dataclass_fields__)
    make = audit_corrections.ConfoundLeakage
    asked = [(p, c) for p in (0.01, 0.05, 0.2) for c in (0.4, 0.5, 0.6)]
    return [
        make(**fields | {"p_value": p, "confidence": 0.95, "shuffled": 0.5, "shuffled_corrected": c}).flagged
        for p, c in asked
    ]


case("flags", flags)


@pytest.mark.parametrize("name", CASES)
def test_more_audits(golden, name):
    golden(outcome(CASES[name]))
