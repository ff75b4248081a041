"""Every part of a saved model with which it predicts, damaged in every way: refused when it is loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.unit.storage.test_models import FIXTURES

import setsquare as sq
from setsquare.errors import InputError
from setsquare.storage.checks import LARGEST, MAX_LABELS, read_classes
from setsquare.storage.container import pack, unpack
from setsquare.storage.models import dump
from setsquare.storage.states import read_state


def edited(change: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
    return lambda array: change(array.copy())


def put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """The last number replaced."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(float)
        array.flat[-1] = value
        return array

    return change


DAMAGES: dict[str, Callable[[np.ndarray], Any]] = {
    "missing": put(np.nan),
    "infinite": put(-np.inf),
    "too large": put(-1.5 * LARGEST),
    "one less": edited(lambda array: array[..., :-1]),
    "one more": edited(lambda array: np.concatenate([array, array[..., :1]], axis=-1)),
    "another axis": edited(lambda array: array[None]),
    "truth values": edited(lambda array: array > 0.0),
    "a list": edited(lambda array: array.tolist()),
    "nothing": edited(lambda array: None),
    "text": edited(lambda array: "text"),
}
#: Rows fewer or more, for what has two axes or more.
ROWS: dict[str, Callable[[np.ndarray], Any]] = {
    "a row less": edited(lambda array: array[:-1]),
    "a row more": edited(lambda array: np.concatenate([array, array[:1]])),
}
PROJECTOR = ("basis.mean", "basis.transform", "coefficients")
TRANSPORT = (
    "mean",
    "loadings",
    "transform",
    "centres",
    "maps",
    *(f"{k}.{p}" for k in ("first", "last") for p in PROJECTOR),
)
PLACES: dict[str, tuple[str, ...]] = {
    "classifier": ("solution.coef", "solution.intercept"),
    "multinomial": ("solution.coef", "solution.intercept"),
    "regressor": ("solution.coef", "solution.intercept"),
    "tweedie": ("solution.coef", "solution.intercept"),
    "generalized": (*(f"projector.{part}" for part in PROJECTOR), "estimator.coef", "estimator.intercept"),
    "linear": (*(f"projector.{part}" for part in PROJECTOR), "estimator.coef", "estimator.intercept"),
    "features": tuple(f"projector.{part}" for part in PROJECTOR),
    "features_alone": ("eraser.mean", "eraser.directions", "eraser.loadings"),
    "transport": tuple(f"transport.{part}" for part in TRANSPORT),
}


@cache
def content(name: str) -> bytes:
    """A saved model."""
    if name != "transport":
        return (FIXTURES / f"model-v1-{name}.setsquare").read_bytes()
    rng = np.random.default_rng(0)
    x = np.arange(200) % 2.0
    Z = rng.normal(size=(200, 3)) * (1.0 + x)[:, None] + x[:, None]
    return dump(sq.LinearOrthogonalizer(moments=2).fit(Z, protected=x))


def states(name: str, place: str, changes: dict[str, Callable[[np.ndarray], Any]]) -> dict[str, dict[str, Any]]:
    """States of a model with each change in one place."""
    found = {}
    for what, change in changes.items():
        state = copy.deepcopy(unpack(content(name))["model"])
        *path, last = place.split(".")
        node = state
        for key in path:
            node = node[key]
        node[last] = change(np.asarray(node[last]))
        found[what] = state
    return found


def accepted(state: dict[str, Any]) -> bool:
    """Whether a state is read; everything but a refusal is an error."""
    try:
        read_state(unpack(pack({"model": state}))["model"])
    except (InputError, LookupError, TypeError, ValueError, AttributeError):  # the latter are phrased by load
        return False
    return True


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, places in PLACES.items() for place in places])
def test_a_damaged_array_is_refused(name: str, place: str) -> None:
    assert accepted(states(name, place, {"same": lambda array: array})["same"])
    assert accepted(states(name, place, {"large": put(LARGEST)})["large"])
    node: Any = unpack(content(name))["model"]
    for key in place.split("."):
        node = node[key]
    changes = DAMAGES | (ROWS if np.ndim(node) > 1 else {})
    passed = [what for what, state in states(name, place, changes).items() if accepted(state)]
    assert passed == []


def test_class_labels_are_of_a_type_of_labels_and_small() -> None:
    assert read_classes(["a", "b"], "<U1").tolist() == ["a", "b"]
    assert read_classes([0, 1], "<i8").dtype == np.int64 and read_classes([True, False], "|b1").dtype == bool
    assert read_classes(["a", None], "|O").tolist() == ["a", None]
    widest = MAX_LABELS // 8  # characters of 4 bytes in two labels
    assert len(read_classes(["a", "b"], f"<U{widest}")) == 2
    for values, kind in (
        (["a", "b"], f"<U{widest + 1}"),
        (["a"], "|S1"),
        (["a"], "<M8[s]"),
        ("ab", "<U1"),
        ([[1]], "|O"),
    ):
        with pytest.raises(InputError, match="classes"):
            read_classes(values, kind)
