"""Conversion of fitted estimators to trees of plain values and arrays, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from setsquare import families
from setsquare.errors import InputError
from setsquare.estimators import (
    LinearOrthogonalizer,
    OrthogonalGLMClassifier,
    OrthogonalGLMRegressor,
    PredictionOrthogonalizer,
)
from setsquare.estimators.unconstrained import PlainGLM, PlainGLMClassifier, PlainGLMRegressor
from setsquare.families import Family
from setsquare.families.activations import ACTIVATIONS
from setsquare.glm.solver import Certificate, Solution, Status
from setsquare.projection import Basis, Eraser, GeneralizedProjector, Projector
from setsquare.tables import Design, Formula
from setsquare.tables.roles import Reader

State = dict[str, Any]


def write_state(model: Any) -> State:
    """Return the complete state of a fitted model."""
    kind = type(model).__name__
    if type(model) not in _KINDS:
        raise InputError(
            f"A {kind} cannot be saved without pickle: save one of {', '.join(sorted(_NAMES))}, or use the model's "
            "own format."
        )
    check_is_fitted(model)
    names = getattr(model, "feature_names_in_", None)
    classes = getattr(model, "classes_", None)
    return {
        "class": kind,
        "parameters": {key: _parameter(key, value) for key, value in model.get_params(deep=False).items()},
        "n_features_in": getattr(model, "n_features_in_", None),
        "feature_names_in": None if names is None else [str(name) for name in names],
        "classes": None if classes is None else {"values": classes.tolist(), "dtype": classes.dtype.str},
        **_KINDS[type(model)][0](model),
    }


def read_state(state: State) -> Any:
    """Undo :func:`write_state`."""
    if state["class"] not in _NAMES:
        raise InputError(f"holds a {state['class']!r}, which this version of setsquare does not know: update setsquare")
    kind = _NAMES[state["class"]]
    attributes = _KINDS[kind][1](state)
    parameters = dict(state["parameters"])
    if isinstance(parameters.get("family"), dict):
        parameters["family"] = families.family(**parameters["family"])
    if "estimator_" in attributes:
        parameters["estimator"] = attributes["estimator_"]
    if state["n_features_in"] is not None:
        attributes["n_features_in_"] = state["n_features_in"]
    if state["feature_names_in"] is not None:
        attributes["feature_names_in_"] = np.asarray(state["feature_names_in"], dtype=object)
    if state["classes"] is not None:
        attributes["classes_"] = np.array(state["classes"]["values"], dtype=state["classes"]["dtype"])
    model = kind(**parameters)
    vars(model).update(attributes)
    return model


def _parameter(name: str, value: Any) -> Any:
    if name == "estimator":
        return None  # replaced by the fitted one
    if isinstance(value, Family):
        return _family(value)
    if value is None or isinstance(value, str | int | float | np.generic | list | tuple | dict):
        return value
    raise InputError(
        f"The parameter {name} is a {type(value).__name__}, which cannot be saved: set it to a plain value."
    )


def _write_glm(model: Any) -> State:
    solution = {f.name: getattr(model.solution_, f.name) for f in fields(Solution) if f.name != "trace"}
    return {
        "reader": _reader(model.reader_),
        "family": _family(model.family_),
        "solution": solution
        | {"status": str(model.solution_.status), "certificate": asdict(model.solution_.certificate)},
        "has_offset": model.has_offset_,
        "n_dropped": model.n_dropped_,
    }


def _read_glm(state: State) -> State:
    found = state["solution"]
    parts = {"status": Status(found["status"]), "certificate": Certificate(**_tuples(found["certificate"]))}
    solution, roles = Solution(**found | parts, trace=()), _read_roles(state)
    scalar = state["class"] == "OrthogonalGLMRegressor"
    return roles | {
        "solution_": solution,
        "family_": families.family(**state["family"]),
        "n_iter_": solution.n_iter,
        "has_offset_": state["has_offset"],
        "n_dropped_": state["n_dropped"],
        "coefficient_names_": np.asarray(roles["reader_"].feature_names, dtype=object),
        "intercept_": float(solution.intercept[0]) if scalar else solution.intercept,
        "coef_": solution.coef[0] if scalar else solution.coef,
    }


def _write_features(model: Any) -> State:
    if model.using == "protected":
        return _write_linear(model)
    eraser = {f.name: getattr(model.eraser_, f.name) for f in fields(Eraser)}
    return {"reader": _reader(model.reader_), "eraser": eraser}


def _read_features(state: State) -> State:
    if "eraser" not in state:
        return _read_linear(state)
    return _read_roles(state) | {"eraser_": Eraser(**state["eraser"])}


def _write_linear(model: Any) -> State:
    projector = model.projector_
    parts = {f.name: getattr(projector, f.name) for f in fields(projector)} | {"basis": asdict(projector.basis)}
    if "activation" in parts:
        parts["activation"] = _activation(projector.activation)
    return {"reader": _reader(model.reader_), "projector": parts}


def _read_linear(state: State) -> State:
    parts = dict(state["projector"])
    parts["basis"] = Basis(**_tuples(parts["basis"]))
    if "activation" in parts:
        parts["activation"] = families.activation(parts["activation"])
    kind = GeneralizedProjector if "activation" in parts else Projector
    return _read_roles(state) | {"projector_": kind(**parts)}


def _write_prediction(model: Any) -> State:
    return _write_linear(model) | {
        "estimator": write_state(model.estimator_),
        "activation": _activation(model.activation_),
        "boundary": getattr(model, "boundary_", None),
        "n_boundary": model.n_boundary_,
        "n_outside": model.n_outside_,
    }


def _read_prediction(state: State) -> State:
    attributes = _read_linear(state) | {
        "estimator_": read_state(state["estimator"]),
        "activation_": families.activation(state["activation"]),
        "n_boundary_": state["n_boundary"],
        "n_outside_": state["n_outside"],
    }
    return attributes if state["boundary"] is None else attributes | {"boundary_": tuple(state["boundary"])}


def _write_plain(model: PlainGLM) -> State:
    parts = {"design": _design(model.design_), "family": _family(model.family_)}
    return parts | {"intercept": model.intercept_, "coef": model.coef_}


def _read_plain(state: State) -> State:
    parts = {"design_": Design.from_dict(state["design"]), "family_": families.family(**state["family"])}
    return parts | {"intercept_": state["intercept"], "coef_": state["coef"]}


def _reader(reader: Reader) -> State:
    return {
        "features": None if reader.features is None else _design(reader.features),
        "protected": _design(reader.protected),
        "inside": list(reader.inside),
        "use_protected": reader.use_protected,
    }


def _read_roles(state: State) -> State:
    saved = state["reader"]
    features = None if saved["features"] is None else Design.from_dict(saved["features"])
    reader = Reader(features, Design.from_dict(saved["protected"]), tuple(saved["inside"]), saved["use_protected"])
    return {"reader_": reader, "protected_names_": np.asarray(reader.protected.names, dtype=object)}


def _design(design: Design) -> State:
    if any(isinstance(coder, Formula) for coder in design.coders):
        raise InputError("A model with a formula cannot be saved: name the protected columns, or use coding='cells'.")
    return design.to_dict()


def _family(family: Family) -> State:
    return {"name": family.name, "link": family.link, "parameter": family.parameter}


def _activation(activation: Any) -> str:
    if activation.name not in ACTIVATIONS:
        raise InputError(f"The activation {activation.name} cannot be saved: use one of {', '.join(ACTIVATIONS)}.")
    return str(activation.name)


def _tuples(state: State) -> State:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in state.items()}


#: Classes that can be saved, each with its writer and the reader of its attributes.
_KINDS: dict[type, tuple[Callable[[Any], State], Callable[[State], State]]] = {
    OrthogonalGLMClassifier: (_write_glm, _read_glm),
    OrthogonalGLMRegressor: (_write_glm, _read_glm),
    LinearOrthogonalizer: (_write_features, _read_features),
    PredictionOrthogonalizer: (_write_prediction, _read_prediction),
    PlainGLMClassifier: (_write_plain, _read_plain),
    PlainGLMRegressor: (_write_plain, _read_plain),
}
_NAMES = {kind.__name__: kind for kind in _KINDS}
