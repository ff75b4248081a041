"""Golden cases of the estimators: every class, option and method, with warnings and refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from tests.golden.outcomes import outcome
from tests.golden.recorder import describe, differences

import setsquare as sq
from setsquare.estimators import folds, group_thresholds, odds_thresholds, training_rows
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor
from setsquare.families import family, tweedie
from setsquare.storage.models import dump, unpack
from setsquare.storage.states import read_state

CASES: dict[str, Callable[[], Any]] = {}
N = 160


@cache
def data() -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Features of several kinds, protected columns and outcomes."""
    rng = np.random.default_rng(17)
    sex, race = rng.choice(["f", "m"], N, p=[0.4, 0.6]), rng.choice(["a", "b", "c"], N)
    table = pd.DataFrame({f"x{j}": rng.normal(size=N) + 0.6 * (sex == "m") for j in range(5)})
    table = table.assign(kind=rng.choice(["u", "v", "w"], N), sex=sex, race=race, age=rng.normal(40.0, 10.0, N))
    signal = 0.8 * table["x0"].to_numpy() - 0.5 * table["x1"].to_numpy()
    mean = np.exp(0.4 * signal)
    outcomes = {
        "label": np.where(signal + rng.logistic(size=N) > 0.3, "yes", "no"),
        "class": np.array(["p", "q", "r"])[np.digitize(signal + rng.normal(size=N), [-0.3, 0.7])],
        "count": rng.poisson(mean).astype(float),
        "number": signal + rng.normal(size=N),
        "cost": rng.poisson(mean) * rng.gamma(2.0, size=N),
        "positive": mean * rng.gamma(3.0, size=N),
        "weight": rng.uniform(0.5, 2.0, N),
        "offset": rng.normal(size=N) * 0.2,
        "cluster": rng.integers(40, size=N),
    }
    return table, outcomes


NEW = slice(0, 9)
METHODS = ("predict", "predict_proba", "decision_function", "predict_log_proba", "transform")
#: What depends on how a loop went rather than on where it ended.
LEFT_OUT = ("n_iter_", "solution_", "reader_", "moments_", "estimator_", "projector_", "eraser_", "transport_")


def fitted(model: Any, y: Any = None, *, table: Any = None, new: Any = None, **options: Any) -> dict[str, Any]:
    """A model after its fit: what it learned, and what it makes of new rows."""
    features, outcomes = data()
    table = features if table is None else table
    beside = options.pop("beside", None)
    if beside is not None:
        options["protected"] = features[beside]
    model.fit(table, outcomes[y] if isinstance(y, str) else y, **options)
    rows = table[NEW] if new is None else new
    also = {"protected": features[beside][NEW]} if beside is not None else {}
    return learned(model) | used(model, rows, also, outcomes[y][NEW] if isinstance(y, str) else None)


def learned(model: Any) -> dict[str, Any]:
    """Fitted attributes."""
    names = sorted(name for name in vars(model) if name.endswith("_") and name[0] != "_" and name not in LEFT_OUT)
    found: dict[str, Any] = {name: getattr(model, name) for name in names}
    if hasattr(model, "solution_"):
        solution = model.solution_
        found |= {"status": str(solution.status), "certificate": solution.certificate.state()}
        found |= {"std_error": solution.std_error, "text": str(solution.certificate)}
    for name in ("projector_", "eraser_", "transport_"):
        if hasattr(model, name):
            found[name] = getattr(model, name)
    return found


def used(model: Any, rows: Any, also: dict[str, Any], y: Any = None) -> dict[str, Any]:
    """What each method gives for rows."""
    found: dict[str, Any] = {}
    for name in METHODS:
        if hasattr(model, name):
            found[name] = outcome(lambda n=name: getattr(model, n)(rows, **also))
            if "error" in found[name]:
                found[name] = outcome(lambda n=name: getattr(model, n)(rows))
    if y is not None and hasattr(model, "score"):
        found["score"] = outcome(lambda: model.score(rows, y, **also))
    if hasattr(model, "get_feature_names_out"):
        found["names"] = outcome(lambda: list(model.get_feature_names_out()))
    return found


def glm(y: str, **options: Any) -> Any:
    """One of our two GLM classes for an outcome."""
    options = {"protected": ["sex", "race"]} | options
    if y in ("label", "class"):
        return sq.OrthogonalGLMClassifier(**options)
    kinds = {"count": "poisson", "number": "gaussian", "cost": tweedie(1.5), "positive": "gamma"}
    return sq.OrthogonalGLMRegressor(options.pop("family", kinds[y]), **options)


def case(name: str, function: Callable[[], Any]) -> None:
    assert name not in CASES
    CASES[name] = function


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "label": ("label", {}),
    "class": ("class", {}),
    "count": ("count", {}),
    "number": ("number", {}),
    "cost": ("cost", {}),
    "positive": ("positive", {}),
    "log": ("positive", {"family": "gaussian", "link": "log"}),
    "ridge": ("label", {"l2": 0.1}),
    "auto-ridge": ("label", {"l2": "auto"}),
    "auto-ridge-number": ("number", {"l2": "auto"}),
    "new-rows": ("number", {"protected": ["age"], "orthogonal_on": "new rows"}),
    "new-rows-label": ("label", {"protected": ["sex"], "orthogonal_on": "new rows"}),
    "new-rows-class": ("class", {"orthogonal_on": "new rows"}),
    "max-correlation": ("label", {"max_correlation": 0.9}),
    "max-correlation-low": ("label", {"max_correlation": 0.01}),
    "confidence": ("number", {"confidence": 0.8}),
    "budget": ("label", {"budget": 0.05}),
    "budget-number": ("number", {"budget": 0.2}),
    "threshold": ("label", {"threshold": 0.4}),
    "given": ("label", {"given": ["kind"]}),
    "given-outcome": ("label", {"given": "outcome"}),
    "given-number": ("number", {"given": ["age", "kind"]}),
    "relax": ("label", {"relax": "box"}),
    "relax-factor": ("label", {"relax": {"box": 2.0}}),
    "relax-new-rows": ("number", {"relax": "box", "orthogonal_on": "new rows"}),
    "use": ("label", {"use_protected": True}),
    "cells": ("label", {"basis": "cells"}),
    "spline": ("number", {"protected": ["age"], "basis": "spline"}),
    "kernel": ("number", {"protected": ["age", "sex"], "basis": {"kernel": 0.2}}),
    "formula": ("label", {"protected": "~ sex * race"}),
    "reference": ("number", {"reference": {"race": "c", "kind": "w"}}),
    "large": ("label", {"solver": "large"}),
    "sqp": ("count", {"solver": "sqp"}),
    "restarts": ("cost", {"n_restarts": 2, "random_state": 3}),
    "few-iterations": ("cost", {"max_iter": 1}),
    "loose": ("count", {"tol": 1e-3}),
    "expand": ("label", {"expand": "auto"}),
    "expand-number": ("number", {"expand": "auto", "l2": "auto"}),
}
for name, (y, options) in OPTIONS.items():
    case(f"glm-{name}", lambda y=y, o=options: fitted(glm(y, **o), y))
ROWS = {"sample_weight": "weight", "offset": "offset", "cluster": "cluster"}
for word, column in ROWS.items():
    for y in ("label", "count", "class"):
        case(f"glm-{word}-{y}", lambda w=word, c=column, y=y: fitted(glm(y), y, **{w: data()[1][c]}))
    case(
        f"glm-new-{word}",
        lambda w=word, c=column: fitted(glm("label", orthogonal_on="new rows"), "label", **{w: data()[1][c]}),
    )
case("glm-beside", lambda: fitted(glm("label", protected=None), "label", beside=["sex", "age"]))
case("glm-arrays", lambda: fitted(glm("number", protected=[-1]), "number", table=_numbers()))
case("glm-float32", lambda: fitted(glm("number", protected=[-1]), "number", table=_numbers().astype(np.float32)))
case("glm-pyarrow", lambda: fitted(glm("label"), "label", table=_arrow(), new=_arrow().slice(0, 9)))
case("glm-reader", lambda: fitted(glm("label"), "label", table=_arrow().to_reader(), new=_arrow().slice(0, 9)))
for rule in ("error", "drop", "level", "model"):
    case(
        f"glm-missing-{rule}",
        lambda r=rule: fitted(glm("label", missing=r), "label", table=_holes(), new=data()[0][NEW]),
    )
    case(
        f"linear-missing-{rule}",
        lambda r=rule: fitted(sq.LinearOrthogonalizer(["sex"], missing=r), table=_holes(), new=data()[0][NEW]),
    )
for rule in ("error", "pool"):
    case(f"glm-unseen-{rule}", lambda r=rule: fitted(glm("label", unseen=r), "label", new=_unseen()))
    case(
        f"linear-unseen-{rule}",
        lambda r=rule: fitted(
            sq.LinearOrthogonalizer(["sex"], unseen=r), table=_coded(), new=_coded()[NEW].assign(sex="x")
        ),
    )


def _numbers() -> np.ndarray:
    table = data()[0]
    return np.column_stack([table[[f"x{j}" for j in range(5)]].to_numpy(), table["sex"] == "m"]).astype(float)


def _arrow() -> Any:
    return pa.Table.from_pandas(data()[0], preserve_index=False)


def _holes() -> pd.DataFrame:
    table = data()[0].copy()
    table.loc[3:20, "sex"] = None
    table.loc[[40, 41], "x2"] = np.nan
    return table


def _partly() -> pd.DataFrame:
    return data()[0].assign(sex=_holes()["sex"])


def _coded() -> pd.DataFrame:
    return data()[0].drop(columns=["kind", "race"])


def _unseen() -> pd.DataFrame:
    table = data()[0][NEW].copy()
    table.loc[[2, 5], "kind"] = "new"
    return table


def _stream(y: str, **options: Any) -> Any:
    table, outcomes = data()
    roles = options.pop("roles", {})
    columns = {name: outcomes[name] for name in (y, *roles.values())}
    rows = pa.Table.from_pandas(table.assign(**columns), preserve_index=False)
    model = glm(y, **options).fit(sq.Stream(rows.to_batches(max_chunksize=50)), y, **roles)
    return learned(model) | used(model, table[NEW], {})


for y in ("label", "count"):
    case(f"stream-{y}", lambda y=y: _stream(y))
    case(f"stream-weight-{y}", lambda y=y: _stream(y, roles={"sample_weight": "weight"}))
    case(f"stream-offset-{y}", lambda y=y: _stream(y, roles={"offset": "offset"}))
case("stream-cells", lambda: _stream("label", basis="cells"))
case("stream-spline", lambda: _stream("label", basis="spline"))
case("stream-relax", lambda: _stream("label", relax="box"))
case("stream-model", lambda: _stream("label", missing="model"))
case("stream-expand", lambda: _stream("label", expand="auto"))
case("stream-given", lambda: _stream("label", given=["kind"]))

LINEAR: dict[str, dict[str, Any]] = {
    "plain": {},
    "features": {"using": "features"},
    "features-new": {"using": "features", "orthogonal_on": "new rows"},
    "shrinkage": {"using": "features", "orthogonal_on": "new rows", "shrinkage": 0.1},
    "given": {"given": ["age"]},
    "cells": {"protected": ["sex", "race"], "basis": "cells"},
    "moments": {"moments": 2},
    "moments-features": {"moments": 2, "using": "features"},
    "moments-preserve": {"moments": 2, "using": "features", "preserve": ["x0"]},
    "preserve": {"using": "features", "preserve": ["x0"]},
    "no-copy": {"copy": False},
    "spline": {"protected": ["age"], "basis": "spline"},
}
for name, options in LINEAR.items():
    case(f"linear-{name}", lambda o=options: fitted(sq.LinearOrthogonalizer(**{"protected": ["sex"]} | o), "label"))
    case(
        f"linear-weight-{name}",
        lambda o=options: fitted(
            sq.LinearOrthogonalizer(**{"protected": ["sex"]} | o), "label", sample_weight=data()[1]["weight"]
        ),
    )
case(
    "linear-beside",
    lambda: fitted(sq.LinearOrthogonalizer(), table=_coded().drop(columns="sex"), beside=["sex", "race"]),
)
case(
    "linear-adapt",
    lambda: learned(
        sq.LinearOrthogonalizer(["sex"], using="features", orthogonal_on="new rows").fit(_coded()).adapt(_coded()[:80])
    ),
)
case("linear-partial", lambda: _partial(sq.LinearOrthogonalizer(["sex"])))
case("linear-partial-features", lambda: _partial(sq.LinearOrthogonalizer(["sex"], using="features")))
case("linear-partial-drop", lambda: _partial(sq.LinearOrthogonalizer(["sex"], missing="drop")))
case("linear-partial-moments", lambda: _partial(sq.LinearOrthogonalizer(["sex"], moments=2)))
case("glm-model", lambda: fitted(glm("label", missing="model"), "label", table=_partly(), new=data()[0][NEW]))
case("glm-model-number", lambda: fitted(glm("number", missing="model"), "number", table=_partly(), new=data()[0][NEW]))
case("linear-new-rows", lambda: sq.LinearOrthogonalizer(["sex"], using="features").fit(_coded()).new_rows_)


def _partial(model: Any) -> Any:
    table = _coded()
    weight = data()[1]["weight"]
    model.partial_fit(table[:60], sample_weight=weight[:60]).partial_fit(table[60:100], sample_weight=weight[60:100])
    other = (
        clone(model)
        .partial_fit(table[:60], sample_weight=weight[:60])
        .partial_fit(table[100:], sample_weight=weight[100:])
    )
    return learned(model), used(model, table[NEW], {}), outcome(lambda: learned(model.merge(other)))


PREDICTION: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "label": (PlainGLMClassifier(), "label", {}),
    "class": (PlainGLMClassifier(), "class", {}),
    "count": (PlainGLMRegressor("poisson"), "count", {}),
    "linear": (PlainGLMRegressor(), "number", {"method": "linear"}),
    "linear-label": (PlainGLMClassifier(), "label", {"method": "linear"}),
    "tree": (DecisionTreeClassifier(max_depth=3, random_state=0), "label", {}),
    "deep-tree": (DecisionTreeClassifier(random_state=0), "label", {}),
    "regression": (LinearRegression(), "number", {}),
    "activation": (LinearRegression(), "number", {"activation": "identity"}),
    "exp": (PlainGLMRegressor("poisson"), "count", {"activation": "exp"}),
    "cv": (PlainGLMClassifier(), "label", {"cv": 3, "random_state": 4}),
    "no-cv": (PlainGLMClassifier(), "label", {"cv": None}),
    "use": (PlainGLMClassifier(), "label", {"use_protected": True}),
    "given": (PlainGLMClassifier(), "label", {"given": ["age"]}),
    "cells": (PlainGLMClassifier(), "label", {"protected": ["sex", "race"], "basis": "cells"}),
    "no-method": (PlainGLMClassifier(), "label", {"method": "other"}),
    "no-activation": (PlainGLMClassifier(), "label", {"activation": "other"}),
}
for name, (base, y, options) in PREDICTION.items():
    case(
        f"prediction-{name}",
        lambda b=base, y=y, o=options: fitted(_wrap(b, **o), y, table=_coded() if "race" not in str(o) else _numeric()),
    )
    case(
        f"prediction-weight-{name}",
        lambda b=base, y=y, o=options: fitted(
            _wrap(b, **o), y, table=_coded() if "race" not in str(o) else _numeric(), sample_weight=data()[1]["weight"]
        ),
    )
case(
    "prediction-cluster",
    lambda: fitted(_wrap(PlainGLMClassifier()), "label", table=_coded(), cluster=data()[1]["cluster"]),
)
for prefit in (True, "held out", "other"):
    case(f"prediction-prefit-{prefit}", lambda p=prefit: fitted(_wrap(_ready(), prefit=p), "label", table=_coded()))
case(
    "prediction-adapt",
    lambda: learned(_wrap(PlainGLMClassifier()).fit(_coded(), data()[1]["label"]).adapt(_coded()[:70])),
)
case(
    "prediction-beside",
    lambda: fitted(
        sq.PredictionOrthogonalizer(PlainGLMClassifier()), "label", table=_coded().drop(columns="sex"), beside=["sex"]
    ),
)


def _wrap(base: Any, **options: Any) -> Any:
    return sq.PredictionOrthogonalizer(
        clone(base) if not options.get("prefit") else base, **{"protected": ["sex"]} | options
    )


def _ready() -> Any:
    return LogisticRegression().fit(_coded().drop(columns="sex"), data()[1]["label"])


def _numeric() -> pd.DataFrame:
    return data()[0].drop(columns=["kind"])


PLAIN = {"label": PlainGLMClassifier(l2=0.01), "class": PlainGLMClassifier(), "number": PlainGLMRegressor(l2=0.1)}
PLAIN |= {"count": PlainGLMRegressor("poisson"), "positive": PlainGLMRegressor(family("gamma", "log"))}
for y, model in PLAIN.items():
    case(f"plain-{y}", lambda m=model, y=y: fitted(clone(m), y))
    case(f"plain-weight-{y}", lambda m=model, y=y: fitted(clone(m), y, sample_weight=data()[1]["weight"]))
for count in (1, 3, 0.5, 0.9, 1.0, None, 0, 7, -1, 1.5, True):
    for centre in (True, False):
        case(f"components-{count}-{centre}", lambda k=count, c=centre: _components(k, c))


def _components(count: Any, centre: bool) -> Any:
    Z = _numbers()
    model = sq.PrincipalComponents(count, center=centre).fit(Z)
    grown = (
        sq.PrincipalComponents(count, center=centre)
        .partial_fit(Z[:70])
        .partial_fit(Z[70:], sample_weight=np.full(90, 2.0))
    )
    other = sq.PrincipalComponents(count, center=centre).partial_fit(Z[:50])
    return (
        learned(model),
        model.transform(Z[:5]),
        learned(grown),
        learned(grown.merge(other)),
        list(model.get_feature_names_out()),
    )


SUMMARIES = {"label": {}, "count": {}, "class": {}, "number": {"orthogonal_on": "new rows"}, "cost": {}}
for y, options in SUMMARIES.items():
    case(f"summary-{y}", lambda y=y, o=options: _summary(glm(y, **o), y))
for name in ("ridge", "budget", "given", "expand", "use", "relax", "auto-ridge"):
    y, options = OPTIONS[name]
    case(f"summary-option-{name}", lambda y=y, o=options: _summary(glm(y, **o), y))
for confidence in (0.5, 0.49, 0.99, 1.0):
    case(f"summary-confidence-{confidence}", lambda c=confidence: _summary(glm("label"), "label", confidence=c))
case("summary-refits", lambda: _summary(glm("class"), "class", refits=25))


def _summary(model: Any, y: str, **options: Any) -> Any:
    table, outcomes = data()
    found = model.fit(table, outcomes[y]).summary(**{"refits": 0} | options)
    return found.to_dict(), str(found), found.table("polars")


for y in ("label", "number"):
    case(f"bootstrap-{y}", lambda y=y: _bootstrap(y))
case("bootstrap-cluster", lambda: _bootstrap("label", cluster=data()[1]["cluster"]))
case("bootstrap-weight", lambda: _bootstrap("number", sample_weight=data()[1]["weight"]))
case("bootstrap-few", lambda: _bootstrap("label", n_samples=1))


def _bootstrap(y: str, **options: Any) -> Any:
    table, outcomes = data()
    given = {k: v for k, v in options.items() if k in ("sample_weight", "cluster")}
    model = glm(y).fit(table, outcomes[y], **given)
    found = model.bootstrap(table, outcomes[y], **{"n_samples": 8, "random_state": 2} | options)
    return found.to_dict(), str(found)


RATES = (0.1, 0.5, 0.99, None, 0.0, 1.0, "0.5")
for rate in RATES:
    case(f"rates-{rate!r}", lambda r=rate: _thresholds(rate=r))
for threshold in (0.2, 0.5, 0.9, 0.0, 1.0, -9.0, 99.0, float("nan")):
    case(f"threshold-{threshold}", lambda t=threshold: _thresholds(threshold=t))
    case(f"odds-{threshold}", lambda t=threshold: _thresholds(threshold=t, equalize="odds"))
case("rates-weight", lambda: _thresholds(rate=0.3, weight=True))
case("odds-weight", lambda: _thresholds(equalize="odds", weight=True))
case("odds-rate", lambda: _thresholds(equalize="odds", rate=0.3))
case("odds-other", lambda: _thresholds(equalize="other"))
case("rates-ties", lambda: _thresholds(rate=0.37, ties=True))
case("odds-ties", lambda: _thresholds(equalize="odds", ties=True, random_state=5))
case("rates-two-columns", lambda: _thresholds(rate=0.25, columns=["sex", "race"]))
case("rates-outcome", lambda: sq.GroupThresholds(0.3).fit([0.1, 0.9], ["a", "b"], outcome=[0, 1]))
case(
    "odds-one-class",
    lambda: sq.GroupThresholds(equalize="odds").fit([0.1, 0.9, 0.3], ["a", "b", "b"], outcome=[0, 1, 0]),
)
case("odds-three", lambda: sq.GroupThresholds(equalize="odds").fit([0.1, 0.9, 0.3], ["a", "b", "b"], outcome=[0, 1, 2]))
case("odds-none", lambda: sq.GroupThresholds(equalize="odds").fit([0.1, 0.9], ["a", "b"]))
case("rates-no-weight", lambda: sq.GroupThresholds(0.3).fit([0.1, 0.9], ["a", "b"], sample_weight=[1.0, 0.0]))
case("rates-numbers", lambda: sq.GroupThresholds(0.3).fit([0.1, 0.9], [1.5, 2.5]).table())
case("rates-many", lambda: sq.GroupThresholds(0.3).fit(np.arange(90) / 90, np.arange(90.0)).table())
case("rates-missing", lambda: sq.GroupThresholds(0.3).fit([0.1, 0.9], ["a", None]))
case("rates-unseen", lambda: sq.GroupThresholds(0.3).fit([0.1, 0.9], ["a", "b"]).decide([0.5], ["c"]))
case("rates-short", lambda: sq.GroupThresholds(0.3).fit([0.1, 0.9, 0.4], ["a", "b"]))


def _thresholds(columns: Any = "sex", weight: bool = False, ties: bool = False, **options: Any) -> Any:
    table, outcomes = data()
    rng = np.random.default_rng(3)
    y = (outcomes["label"] == "yes").astype(int)
    score = 1.0 / (1.0 + np.exp(-(table["x0"].to_numpy() + 0.5 * y + rng.normal(size=N))))
    score = np.round(score, 1) if ties else score
    given = {"sample_weight": outcomes["weight"]} if weight else {}
    given |= {"outcome": outcomes["label"]} if options.get("equalize") == "odds" else {}
    rule = sq.GroupThresholds(**options).fit(score, table[columns], **given)
    decided = rule.decide(score, table[columns])
    return learned(rule), decided, rule.table(), rule.decide(score[::-1] + 0.05, table[columns][::1])


def _find_thresholds() -> Any:
    s, w = np.array([0.1, 0.4, 0.4, 0.4, 0.8, 0.9]), np.array([1.0, 2.0, 0.5, 1.0, 1.0, 0.0])
    found = {str(rate): group_thresholds.find_threshold(s, w, rate) for rate in (0.01, 0.18, 0.2, 0.5, 0.8, 0.99)}
    y = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    return found, odds_thresholds.hull_of(s, y, w), odds_thresholds.hull_of(s, y, np.ones(6))


case("find-thresholds", _find_thresholds)


def _folds(cv: Any, cluster: Any = None, classifier: bool = False, outcome_: Any = None, seed: int = 1) -> Any:
    y = np.arange(24) % 3 if outcome_ is None else outcome_
    return [(train, test) for train, test in folds.split_rows(cv, y, cluster, classifier, seed)]


case("folds-3", lambda: _folds(3))
case("folds-classes", lambda: _folds(3, classifier=True))
case("folds-clusters", lambda: _folds(3, cluster=np.arange(24) // 4))
case("folds-cluster-classes", lambda: _folds(3, cluster=np.arange(24) // 4, classifier=True))
for cv in (1, 0, 24, 25, 6, 7, 2.5, "5", True):
    case(f"folds-number-{cv!r}", lambda c=cv: len(_folds(c)))
    case(f"folds-number-clusters-{cv!r}", lambda c=cv: len(_folds(c, cluster=np.arange(24) // 4)))
case("folds-iterable", lambda: _folds([(np.arange(12), np.arange(12, 24)), (np.arange(12, 24), np.arange(12))]))
case("folds-overlap", lambda: _folds([(np.arange(13), np.arange(12, 24)), (np.arange(12, 24), np.arange(12))]))
case("folds-lacking", lambda: _folds([(np.arange(12), np.arange(12, 23)), (np.arange(12, 24), np.arange(12))]))
case(
    "folds-split-cluster",
    lambda: _folds([(np.arange(12), np.arange(12, 24)), (np.arange(12, 24), np.arange(12))], np.arange(24) // 5),
)
TIMES = {
    "numbers": np.arange(24)[::-1] * 1.5,
    "dates": np.array([f"2024-01-{i + 1:02}" for i in range(24)]),
    "ties": np.arange(24) // 6,
}
for name, time in TIMES.items():
    for cv in (1, 2, 3, 4, 23, 24):
        case(f"time-{name}-{cv}", lambda t=time, c=cv: folds.split_by_time(t, c, 24, None))
        case(f"time-clusters-{name}-{cv}", lambda t=time, c=cv: folds.split_by_time(t, c, 24, np.arange(24) % 12))
case(
    "too-good",
    lambda: [
        training_rows.too_good("it", np.linspace(0.0, 1.0, 40)[:, None], np.eye(2)[(np.arange(40) >= k) * 1])
        for k in (0, 5, 19, 20, 21, 40)
    ],
)

SAVED = (
    "label",
    "class",
    "count",
    "cost",
    "new-rows",
    "given",
    "cells",
    "spline",
    "kernel",
    "formula",
    "budget",
    "expand",
)
for name in SAVED:
    y, options = OPTIONS[name]
    case(f"saved-{name}", lambda y=y, o=options: _saved(glm(y, **o), y, data()[0]))
for name, options in LINEAR.items():
    case(
        f"saved-linear-{name}",
        lambda o=options: _saved(sq.LinearOrthogonalizer(**{"protected": ["sex"]} | o), "label", data()[0]),
    )
for name in ("label", "class", "count", "linear", "given", "tree"):
    base, y, options = PREDICTION[name]
    case(f"saved-prediction-{name}", lambda b=base, y=y, o=options: _saved(_wrap(b, **o), y, _coded()))


def _saved(model: Any, y: str, table: Any) -> Any:
    model.fit(table, data()[1][y])
    tree = unpack(dump(model))
    again = read_state(tree["model"])
    before, after = used(model, table[NEW], {}), used(again, table[NEW], {})
    same = {name: np.array_equal(before[name].get("result"), after[name].get("result")) for name in before}
    summary = outcome(lambda: str(again.summary())) if hasattr(again, "summary") else None
    kept = {name: same_values(value, learned(again).get(name)) for name, value in learned(model).items()}
    return same, kept, summary


def same_values(one: Any, other: Any) -> bool:
    return not differences(describe(one), describe(other), relative=0.0)


@pytest.mark.parametrize("name", CASES)
def test_estimators(golden, name):
    golden(outcome(CASES[name]))
