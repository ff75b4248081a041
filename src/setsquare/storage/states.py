"""Conversion of fitted estimators to trees of plain values and arrays, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from setsquare import families
from setsquare.errors import InputError, excerpt
from setsquare.estimators import (
    LinearOrthogonalizer,
    OrthogonalGLMClassifier,
    OrthogonalGLMRegressor,
    PredictionOrthogonalizer,
)
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor
from setsquare.families import Family
from setsquare.families.activations import ACTIVATIONS
from setsquare.glm.certificate import TRAINING_ROWS
from setsquare.glm.deferred import Deferred
from setsquare.glm.solution import HeldProblem, Refits, StandardErrors
from setsquare.glm.solver import Certificate, Solution, Status
from setsquare.projection import Basis, Eraser, GeneralizedProjector, Projector, Transport
from setsquare.projection.cells import Cells as TransportCells
from setsquare.projection.controls import Controls
from setsquare.storage.checks import check_model, read_classes
from setsquare.tables import Design, Formula
from setsquare.tables.coders import SavedTerms
from setsquare.tables.formula_check import SavedFormula
from setsquare.tables.frame import is_formula
from setsquare.tables.roles import Reader

State = dict[str, Any]


def write_state(model: Any) -> State:
    """Return the complete state of a fitted model."""
    kind = type(model)
    if _KINDS.get(kind.__name__, (None,))[0] is not kind:
        raise InputError(
            f"A {kind.__name__} cannot be saved without pickle: save one of {', '.join(sorted(_KINDS))}, or use the "
            "model's own format; for a model or pipeline of scikit-learn that is skops.io.dump of the package skops."
        )
    check_is_fitted(model)
    _check_formula(model)
    names = getattr(model, "feature_names_in_", None)
    classes = getattr(model, "classes_", None)
    state = {
        "class": kind.__name__,
        "parameters": {key: _parameter(key, value) for key, value in model.get_params(deep=False).items()},
        "n_features_in": getattr(model, "n_features_in_", None),
        "feature_names_in": None if names is None else [str(name) for name in names],
        "classes": None if classes is None else {"values": classes.tolist(), "dtype": classes.dtype.str},
    }
    for name in _fitted(kind, _part(model)):
        value = getattr(model, f"{name}_", None)
        state[name] = _CODERS[name][0](value) if name in _CODERS else value
    return state


def read_state(state: State) -> Any:
    """Undo :func:`write_state`."""
    if state["class"] not in _KINDS:
        raise InputError(
            f"holds a {excerpt(state['class'], 60)!r}, which this version of setsquare does not know: update setsquare"
        )
    kind, _ = _KINDS[state["class"]]
    attributes = {}
    for name in _fitted(kind, next((part for part in _PARTS if part in state), "projector")):
        if state.get(name) is not None:  # older files lack the newer attributes
            attributes[f"{name}_"] = _CODERS[name][1](state[name]) if name in _CODERS else state[name]
    attributes |= _derived(kind, attributes)
    parameters = dict(state["parameters"])
    if "solution" in state:  # written before predictions could be orthogonal on new rows
        parameters.setdefault("orthogonal_on", TRAINING_ROWS)
    if "coding" in parameters:  # the word before basis
        coding = parameters.pop("coding")
        parameters["basis"] = "linear" if coding == "dummy" else coding
    if isinstance(parameters.get("family"), dict):
        parameters["family"] = families.family(**parameters["family"])
    for name in ("protected", "basis"):
        if is_formula(parameters.get(name), ()):
            parameters[name] = SavedFormula(parameters[name])
    if "estimator_" in attributes:
        parameters["estimator"] = attributes["estimator_"]
    if state["n_features_in"] is not None:
        attributes["n_features_in_"] = state["n_features_in"]
    if state["feature_names_in"] is not None:
        attributes["feature_names_in_"] = np.asarray(state["feature_names_in"], dtype=object)
    if state["classes"] is not None:
        attributes["classes_"] = read_classes(state["classes"]["values"], state["classes"]["dtype"])
    model = kind(**parameters)
    vars(model).update(attributes)
    check_model(model)
    return model


def _part(model: Any) -> str:
    """Name of the attribute that holds the correction of a :class:`LinearOrthogonalizer`, without its underscore."""
    return next((part for part in _PARTS if hasattr(model, f"{part}_")), "projector")


def _fitted(kind: type, part: str) -> tuple[str, ...]:
    """Names of the fitted attributes that are saved, without their underscore."""
    names = _KINDS[kind.__name__][1]
    return (*names, part) if kind is LinearOrthogonalizer else names


def _derived(kind: type, attributes: State) -> State:
    """Fitted attributes that follow from the saved ones."""
    derived: State = {}
    if reader := attributes.get("reader_"):
        derived["protected_names_"] = np.asarray(reader.protected.names, dtype=object)
    if solution := attributes.get("solution_"):
        scalar = kind is OrthogonalGLMRegressor
        derived["n_iter_"] = solution.n_iter
        derived["coefficient_names_"] = np.asarray(attributes["reader_"].feature_names, dtype=object)
        derived["intercept_"] = float(solution.intercept.tolist()[0]) if scalar else solution.intercept
        derived["coef_"] = solution.coef[0] if scalar else solution.coef
    return derived


def _parameter(name: str, value: Any) -> Any:
    if name == "estimator":
        return None  # replaced by the fitted one
    if isinstance(value, Family):
        return _write_family(value)
    if isinstance(value, SavedFormula):
        return str(value)
    if value is None or isinstance(value, str | int | float | np.generic | list | tuple | dict):
        return value
    raise InputError(
        f"The parameter {name} is a {type(value).__name__}, which cannot be saved: set it to a plain value."
    )


def _write_solution(solution: Solution) -> State:
    parts = {f.name: getattr(solution, f.name) for f in fields(Solution) if f.name != "trace"}
    found = {"status": str(solution.status), "certificate": solution.certificate.state(), "errors": solution.std_error}
    refits = solution.refits.found  # those that were made; saving makes none
    return parts | found | {"few_rows": solution.few_rows, "refits": None if refits is None else refits._asdict()}


def _read_solution(state: State) -> Solution:
    parts = {"status": Status(state["status"]), "certificate": Certificate.of_state(_tuples(state["certificate"]))}
    errors, few = state.get("errors"), state.get("few_rows")  # older files have none
    known = None
    if errors is not None:
        known = StandardErrors(errors, np.zeros(errors.shape, dtype=bool) if few is None else few.astype(bool))
    parts |= {"errors": Deferred(known), "refits": HeldProblem(None, _read_refits(state.get("refits"), errors))}
    return Solution(**{name: value for name, value in state.items() if name != "few_rows"} | parts, trace=())


def _read_refits(state: State | None, errors: Any) -> Refits | None:
    if state is None:
        return None
    refits = Refits(**state)
    *values, n_refits, n_failed = refits
    same = all(np.shape(each) == np.shape(errors) and np.asarray(each).dtype.kind == "f" for each in values)
    if not same or not all(type(count) is int and count >= 0 for count in (n_refits, n_failed)):
        raise InputError("holds refits that do not belong to its coefficients")
    return refits


def _write_projector(projector: Projector | GeneralizedProjector) -> State:
    parts = {f.name: getattr(projector, f.name) for f in fields(projector)} | {"basis": asdict(projector.basis)}
    if isinstance(projector, GeneralizedProjector):
        parts["activation"] = _write_activation(projector.activation)
    return parts


def _read_projector(state: State) -> Projector | GeneralizedProjector:
    parts = state | {"basis": Basis(**_tuples(state["basis"]))}
    if "activation" not in parts:
        return Projector(**parts)
    return GeneralizedProjector(**parts | {"activation": families.activation(parts["activation"])})


def _write_transport(transport: Transport) -> State:
    parts = {f.name: getattr(transport, f.name) for f in fields(transport)}
    linear = {name: _write_projector(parts[name]) for name in ("first", "last")}
    cells = {"thresholds": list(transport.cells.thresholds), "codes": transport.cells.codes}
    return parts | linear | {"cells": cells}


def _read_transport(state: State) -> Transport:
    linear = {name: _read_projector(state[name]) for name in ("first", "last")}
    cells = TransportCells(tuple(state["cells"]["thresholds"]), state["cells"]["codes"])
    return Transport(**state | linear | {"cells": cells})


def _write_reader(reader: Reader) -> State:
    return {
        "features": None if reader.features is None else _write_design(reader.features),
        "protected": _write_design(reader.protected),
        "inside": list(reader.inside),
        "use_protected": reader.use_protected,
        "given": None if reader.given is None else _write_design(reader.given),
    }


def _read_reader(state: State) -> Reader:
    features = None if state["features"] is None else Design.from_dict(state["features"])
    protected, inside = Design.from_dict(state["protected"]), tuple(state["inside"])
    given = state.get("given")  # older files have none
    return Reader(
        features, protected, inside, state["use_protected"], None if given is None else Design.from_dict(given)
    )


def _write_design(design: Design) -> State:
    coders = tuple(coder.saved if isinstance(coder, Formula) else coder for coder in design.coders)
    return replace(design, coders=coders).to_dict()


def _check_formula(model: Any) -> None:
    """Refuse models that would have to evaluate a formula after they are loaded."""
    reader = getattr(model, "reader_", None)
    evaluates = isinstance(model, PredictionOrthogonalizer) or getattr(model, "using", "features") != "features"
    if evaluates and reader and any(_has_no_program(coder) for coder in reader.protected.coders):
        raise InputError(
            f"A {type(model).__name__} with this formula cannot be saved, since it would be evaluated to predict: use "
            "only arithmetic, log, exp, sqrt, C, poly, center, scale and bs in it, or name the protected columns."
        )


def _has_no_program(coder: Any) -> bool:
    return isinstance(coder, SavedTerms) or (isinstance(coder, Formula) and coder.program is None)


def _write_family(family: Family) -> State:
    return {"name": family.name, "link": family.link, "parameter": family.parameter}


def _write_activation(activation: Any) -> str:
    if activation.name not in ACTIVATIONS:
        raise InputError(f"The activation {activation.name} cannot be saved: use one of {', '.join(ACTIVATIONS)}.")
    return str(activation.name)


def _tuples(state: State) -> State:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in state.items()}


#: How an attribute is written and read, unless it is a plain value or an array.
_CODERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "activation": (_write_activation, families.activation),
    "boundary": (lambda distances: distances, tuple),
    "controls": (lambda c: c and {f.name: getattr(c, f.name) for f in fields(Controls)}, lambda c: Controls(**c)),
    "design": (_write_design, Design.from_dict),
    "eraser": (lambda eraser: {f.name: getattr(eraser, f.name) for f in fields(Eraser)}, lambda state: Eraser(**state)),
    "estimator": (write_state, read_state),
    "family": (_write_family, lambda state: families.family(**state)),
    "projector": (_write_projector, _read_projector),
    "reader": (_write_reader, _read_reader),
    "solution": (_write_solution, _read_solution),
    "transport": (_write_transport, _read_transport),
}
#: Attributes of which a LinearOrthogonalizer has one.
_PARTS = ("eraser", "transport", "projector")
_GLM = ("reader", "family", "solution", "has_offset", "has_weight", "n_dropped", "l2")
_PLAIN = ("design", "family", "intercept", "coef")
_PREDICTION = (
    "reader",
    "controls",
    "projector",
    "estimator",
    "activation",
    "boundary",
    "n_boundary",
    "n_outside",
    "learned_on",
)
#: Classes that can be saved, each with its fitted attributes.
_KINDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "OrthogonalGLMClassifier": (OrthogonalGLMClassifier, _GLM),
    "OrthogonalGLMRegressor": (OrthogonalGLMRegressor, _GLM),
    "LinearOrthogonalizer": (LinearOrthogonalizer, ("reader", "controls")),
    "PredictionOrthogonalizer": (PredictionOrthogonalizer, _PREDICTION),
    "PlainGLMClassifier": (PlainGLMClassifier, _PLAIN),
    "PlainGLMRegressor": (PlainGLMRegressor, _PLAIN),
}
