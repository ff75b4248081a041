"""Golden cases of storage: every place of every kind of model file with odd values, and what is said about each."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.make_models import FOLDER, draw
from tests.golden.outcomes import outcome

import setsquare as sq
from setsquare.estimators.unconstrained import PlainGLMRegressor
from setsquare.storage import container, files, models
from setsquare.storage.states import read_state

#: Models beside those of the fixtures.
MORE: dict[str, tuple[Any, str]] = {
    "transport": (sq.LinearOrthogonalizer(["sex"], moments=2, missing="level"), "label"),
    "given": (sq.OrthogonalGLMClassifier(["sex"], given=["member"], missing="level"), "label"),
    "linear-given": (sq.LinearOrthogonalizer(["sex"], given=["member"], missing="level"), "label"),
    "formula": (sq.LinearOrthogonalizer("~ sex * poly(x1, 2) + bs(x2, df=4)", missing="level"), "label"),
    "spline": (sq.LinearOrthogonalizer(["x0"], basis="spline", missing="level"), "label"),
    "kernel": (sq.LinearOrthogonalizer(["x0", "sex"], basis={"kernel": 0.3}, missing="level"), "label"),
    "expand": (sq.OrthogonalGLMClassifier(["sex"], expand="auto", missing="level"), "label"),
    "plain": (PlainGLMRegressor("poisson", missing="level"), "count"),
}
FIXTURES = {path.stem.removeprefix("model-v1-"): path for path in sorted(FOLDER.glob("*.setsquare"))}
NAMES = (*FIXTURES, *MORE)
ODD: dict[str, Any] = {
    "nothing": None,
    "true": True,
    "minus one": -1,
    "not a number": float("nan"),
    "huge": 1e200,
    "text": "x",
    "list": [],
    "mapping": {},
    "gone": ...,
}
DAMAGES: dict[str, Callable[[np.ndarray], Any]] = {
    "nan": lambda a: np.where(np.arange(a.size).reshape(a.shape) == a.size - 1, np.nan, a),
    "short": lambda a: a[..., :-1],
    "long": lambda a: np.concatenate([a, a[..., :1]], axis=-1),
    "axis": lambda a: a[None],
    "flags": lambda a: a > 0,
    "none": lambda a: None,
    "rows": lambda a: a[:-1],
}


@cache
def tree(name: str) -> dict[str, Any]:
    """State of a fitted model."""
    if name in FIXTURES:
        return dict(container.unpack(FIXTURES[name].read_bytes())["model"])
    table, outcomes = draw()
    model, y = MORE[name]
    return dict(container.unpack(models.dump(model.fit(table, outcomes[y])))["model"])


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a tree; of long lists the first two and the last."""
    if at:
        yield at
    keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    for key in keys if len(keys) <= 3 or isinstance(node, dict) else [0, 1, keys[-1]]:
        yield from places(node[key], (*at, key))


def changed(name: str, at: tuple[Any, ...], change: Any) -> Any:
    """The tree with another value in one place."""
    found = copy.deepcopy(tree(name))
    node: Any = found
    for key in at[:-1]:
        node = node[key]
    if change is ...:
        del node[at[-1]]
    else:
        node[at[-1]] = change(node[at[-1]]) if callable(change) else copy.deepcopy(change)
    return found


def said(state: Any) -> str:
    """What is said about a tree; nothing where it is read."""
    try:
        models._model({"format": models.FORMAT, "schema": models.SCHEMA, "model": state})
    except sq.errors.InputError as error:
        # What is in brackets after "lacks a part" is Python's own sentence, which changes with its version.
        short = re.sub(r"lacks a part .*", "lacks", str(error)).removesuffix(": save the model again")
        return re.sub(r"holds no usable model \(its parts do not fit together: (.*)\)", r"fit: \1", short)
    return ""


def at_place(name: str, at: tuple[Any, ...]) -> Any:
    value: Any = tree(name)
    for key in at:
        value = value[key]
    return value


def sweep(name: str, kind: str) -> dict[str, str]:
    """Sentences for one change in every place, with the places of each."""
    found: dict[str, list[str]] = {}
    for number, at in enumerate(places(tree(name))):
        is_array = isinstance(at_place(name, at), np.ndarray)
        change = DAMAGES[kind] if kind in DAMAGES else ODD[kind]
        if is_array == (kind in DAMAGES):
            found.setdefault(said(changed(name, at, change)), []).append(str(number))
    return {sentence: " ".join(where) for sentence, where in found.items()}


@pytest.mark.parametrize("kind", [*ODD, *DAMAGES])
@pytest.mark.parametrize("name", NAMES)
def test_every_place(golden, name, kind):
    golden(sweep(name, kind))


@pytest.mark.parametrize("name", NAMES)
def test_state(golden, name):
    golden([".".join(map(str, at)) for at in places(tree(name)) if not isinstance(at_place(name, at), dict | list)])


@pytest.mark.parametrize("name", NAMES)
def test_values(golden, name):
    found = {key: value for key, value in tree(name).items() if key != "solution"}
    golden(found | {"coef": tree(name).get("solution", {}).get("coef")})


TREES: dict[str, Any] = {
    "plain": {"a": [1, 2.5, None, True, "ü"], "b": {"c": float("-inf"), "d": float("nan")}},
    "arrays": {"a": np.arange(6.0).reshape(2, 3), "b": [np.array([True, False]), np.array([1, 2], np.uint8)]},
    "fortran": {"a": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.zeros((0, 3))},
    "scalars": {"a": np.float64(1.5), "b": np.int64(3), "c": np.bool_(True)},
    "odd": {"a": {"b": [object()]}},
    "texts": {"a": np.array(["x"])},
    "objects": {"a": np.array([None])},
    "complex": {"a": np.array([1j])},
    "list": [1, 2],
}


@pytest.mark.parametrize("name", TREES)
def test_trees(golden, name):
    golden(outcome(lambda: container.unpack(container.pack(TREES[name]))))


def test_bytes_are_the_same_each_time(golden):
    content = container.pack({"a": np.arange(3.0), "b": "ü"})
    golden({"length": len(content), "digest": content[-64:].decode()})


@pytest.mark.parametrize("version", [None, 0, 1, 2, "1", "x" * 100])
@pytest.mark.parametrize("form", ["setsquare model", "other"])
def test_formats(golden, version, form):
    golden(outcome(lambda: type(models._model({"format": form, "schema": version, "model": tree("plain")})).__name__))


@pytest.mark.parametrize("kind", ["folder", "nowhere", "twice", "read", "loop", "new", "device"])
def test_targets(golden, kind, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "file").write_text("x")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    paths: dict[str, tuple[list[Path], list[Path]]] = {
        "folder": ([tmp_path / "here"], []),
        "nowhere": ([tmp_path / "none" / "a"], []),
        "twice": ([tmp_path / "a", tmp_path / "b" / ".." / "a"], []),
        "read": ([tmp_path / "here" / ".." / "file"], [tmp_path / "file"]),
        "loop": ([tmp_path / "loop"], []),
        "new": ([tmp_path / "a", tmp_path / "b"], [tmp_path / "file"]),
        "device": ([Path("/dev/null")], []),
    }
    found = outcome(lambda: files.check_targets(*paths[kind]))
    golden({key: str(value).replace(str(tmp_path), "") for key, value in found.items()})


def test_unsaved(golden):
    from sklearn.linear_model import LinearRegression
    from sklearn.preprocessing import StandardScaler

    table, outcomes = draw()
    y = outcomes["label"]
    named = {"protected": ["x0"], "missing": "level"}
    kinds = {
        "foreign": lambda: LinearRegression(),
        "unfitted": lambda: sq.LinearOrthogonalizer(["sex"]),
        "transformer": lambda: sq.LinearOrthogonalizer(**named, basis=StandardScaler()).fit(table),
        "wrapped": lambda: sq.PredictionOrthogonalizer(LinearRegression(), "linear", protected=["x0"]).fit(
            table[["x0", "x1", "x2"]], outcomes["count"]
        ),
        "formula": lambda: sq.LinearOrthogonalizer("~ np.maximum(x0, 0)", missing="level").fit(table, y),
        "state": lambda: sq.OrthogonalGLMClassifier(**named, random_state=np.random.RandomState(0)).fit(table, y),
    }
    golden(
        {name: outcome(lambda m=make: type(models.unpack(models.dump(m()))).__name__) for name, make in kinds.items()}
    )


def test_reading_models_again(golden):
    table, _ = draw()
    found = {}
    for name in NAMES:
        model = read_state(tree(name))
        method = next(m for m in ("transform", "predict_proba", "predict") if hasattr(model, m))
        found[name] = outcome(lambda m=model, f=method: getattr(m, f)(table[:9]))
    golden(found)
