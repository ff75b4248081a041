"""Whether the parts of a loaded model fit together: sizes, finite numbers, types of what a design holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from setsquare.errors import InputError
from setsquare.projection import Eraser, GeneralizedProjector, Transport
from setsquare.tables import Categorical, Cells, Design, Numeric
from setsquare.tables.coders import SavedTerms
from setsquare.tables.formula_program import check_program
from setsquare.tables.learned_terms import LearnedTerms

#: Numbers beyond this are no coefficients: their products with ordinary values would overflow.
LARGEST = 1e150
#: Most bytes of the class labels of a model.
MAX_LABELS = 1 << 26
_GLM = ("reader", "family", "solution", "has_offset", "n_dropped")
_PLAIN = ("design", "family", "intercept", "coef")
#: Attributes with which each kind of model predicts; files of earlier versions have them too.
_NEEDED = {
    "OrthogonalGLMClassifier": (*_GLM, "classes"),
    "OrthogonalGLMRegressor": _GLM,
    "LinearOrthogonalizer": ("reader",),
    "PredictionOrthogonalizer": ("reader", "projector", "estimator"),
    "PlainGLMClassifier": (*_PLAIN, "classes"),
    "PlainGLMRegressor": _PLAIN,
}
_LEVELS = (str, int, float, bool, type(None))


def check_model(model: Any) -> None:
    """Refuse a loaded model whose parts contradict each other; messages end a sentence about the file."""
    _check_complete(model)
    reader: Any = getattr(model, "reader_", None)
    for design in (getattr(reader, "features", None), getattr(reader, "protected", None), _design(model)):
        if design is not None:
            check_design(design)
    if reader is not None:
        _require(isinstance(reader.use_protected, bool) and _are_texts(reader.inside), "protected columns")
        _require(hasattr(model, "use_protected") or not reader.use_protected, "protected columns")
    _check_names(model)
    _require(reader is None or set(reader.inside) <= set(reader.protected.columns), "protected columns")
    if hasattr(model, "solution_"):
        _check_coefficients(model.solution_.intercept, model.solution_.coef, len(reader.feature_names), model)
    elif hasattr(model, "coef_"):
        _check_coefficients(model.intercept_, model.coef_, len(model.design_.names), model)
    if hasattr(model, "eraser_"):
        _check_eraser(model.eraser_, len(reader.feature_names))
    if hasattr(model, "transport_"):
        _check_transport(model.transport_, len(reader.feature_names), len(reader.protected.names))
    if hasattr(model, "projector_"):
        _check_projector(model.projector_, len(reader.protected.names), _n_units(model))
    for value in getattr(model, "boundary_", ()):
        _require(isinstance(value, int | float) and math.isfinite(value), "boundary")


def _check_complete(model: Any) -> None:
    """Refuse a model that lacks an attribute with which it predicts."""
    for name in _NEEDED[type(model).__name__]:
        _require(hasattr(model, f"{name}_"), name)
    if hasattr(model, "has_offset_"):
        _require(isinstance(model.has_offset_, bool), "offset")
    if hasattr(model, "using"):
        _require(model.using in ("features", "protected"), "parameter using")
        moves = getattr(model, "moments", 1) == 2
        _require(
            hasattr(model, "eraser_" if model.using == "features" else "transport_" if moves else "projector_"),
            "projector",
        )
    if hasattr(model, "method"):
        _require(model.method in ("linear", "generalized"), "method")
        _require(model.method == "linear" or hasattr(model, "activation_"), "activation")
        is_linear = model.method == "linear" or model.activation_.name == "identity"
        _require(is_linear != isinstance(model.projector_, GeneralizedProjector), "projector")
        _require(is_linear or len(getattr(model, "boundary_", ())) > 0, "boundary")


def read_classes(values: Any, dtype: Any) -> Any:
    """Class labels as an array, if their type is one of labels and does not ask for much memory."""
    kind = np.dtype(dtype)
    _require(isinstance(values, list) and all(isinstance(value, _LEVELS) for value in values), "classes")
    _require(kind.kind in "biufUO" and kind.itemsize * len(values) <= MAX_LABELS, "classes")
    return np.array(values, dtype=kind)


def check_design(design: Design) -> None:
    """Refuse coders that no training table gives."""
    _require(design.missing in ("error", "drop", "level") and design.unseen in ("error", "pool"), "rules of columns")
    for coder in design.coders:
        _require(_are_texts(coder.columns) and _are_texts(coder.names), "names of columns")
        if isinstance(coder, Numeric):
            _require(coder.fill is None or _is_number(coder.fill), f"fill of {coder.name!r}")
            _require(isinstance(coder.indicator, bool), f"indicator of {coder.name!r}")
        elif isinstance(coder, Categorical):
            _check_levels(coder.levels, coder.name)
        elif isinstance(coder, Cells):
            _check_cells(coder)
        elif isinstance(coder, SavedTerms):
            _require(isinstance(coder.text, str) and len(coder.names) == len(coder.sources), "formula")
        elif isinstance(coder, LearnedTerms):
            _check_terms(coder)


def _check_terms(terms: LearnedTerms) -> None:
    """Refuse a formula whose program has other variables, operations or columns than it names."""
    _require(isinstance(terms.text, str) and len(terms.names) == len(terms.sources), "formula")
    _require(
        all(len(one) in (2, 3) for one in terms.variables) and len(set(terms.columns)) == len(terms.columns), "formula"
    )
    check_design(Design(terms.coders, "error", "error"))
    numbers = [coder.name for coder in terms.coders if isinstance(coder, Numeric)]
    levels = {coder.name: len(coder.levels) for coder in terms.coders if isinstance(coder, Categorical)}
    count = check_program(terms.program, numbers, levels)
    indicators = sum(isinstance(coder, Numeric) and coder.indicator for coder in terms.coders)
    _require(count + indicators == len(terms.names), "formula")


def _check_levels(levels: Any, name: str) -> None:
    distinct = isinstance(levels, tuple) and all(isinstance(level, _LEVELS) for level in levels)
    _require(distinct and 0 < len(set(levels)) == len(levels), f"levels of {name!r}")


def _check_cells(coder: Cells) -> None:
    _require(len(coder.levels) == len(coder.columns) > 0, "cells")
    for levels, name in zip(coder.levels, coder.columns, strict=True):
        _check_levels(levels, name)
    sizes = [len(levels) for levels in coder.levels]
    for cell in coder.cells:
        inside = len(cell) == len(sizes) and all(
            type(i) is int and 0 <= i < n for i, n in zip(cell, sizes, strict=True)
        )
        _require(inside, "cells")
    _require(len(coder.cells) > 0 and list(coder.cells) == sorted(set(coder.cells)), "cells")


def _check_names(model: Any) -> None:
    names, count = getattr(model, "feature_names_in_", None), getattr(model, "n_features_in_", None)
    _require(count is None or (type(count) is int and count >= 0), "number of features")
    if names is not None:
        _require(_are_texts(names.tolist()) and count in (None, len(names)), "names of features")
        reader = getattr(model, "reader_", None)
        used = () if reader is None else (*reader.inside, *(reader.features.columns if reader.features else ()))
        inner = _design(getattr(model, "estimator_", None))
        used = (*used, *(inner.columns if inner is not None else ()))
        _require(set(used) <= set(names.tolist()), "names of features")
    elif count is not None and (design := _feature_design(model)) is not None:
        reader = getattr(model, "reader_", None)
        taken = 0 if reader is None or reader.use_protected else len(reader.inside)
        _require(count == len(design.columns) + taken, "number of features")
    classes, inner = getattr(model, "classes_", None), getattr(model, "estimator_", None)
    _require(classes is None or len(classes) >= 1, "classes")
    if inner is not None:
        _require(np.array_equal(getattr(inner, "classes_", ()), () if classes is None else classes), "classes")


def _feature_design(model: Any) -> Design | None:
    """Design of the features, which is that of the inner model where a correction is around one."""
    own = getattr(getattr(model, "reader_", None), "features", None)
    return own or _design(model) or _design(getattr(model, "estimator_", None))


def _check_coefficients(intercept: Any, coef: Any, n_features: int, model: Any) -> None:
    _check_array(coef, "coefficients", 2, n_features)
    classes = getattr(model, "classes_", None)
    count = _n_predictions(classes)
    _require(len(coef) == count and (classes is None or len(classes) > 1), "coefficients")
    _check_array(intercept, "intercept", 1, count)


def _check_eraser(eraser: Eraser, n_features: int) -> None:
    _check_array(eraser.mean, "means", 1, n_features)
    _check_array(eraser.loadings, "loadings", 2, n_features)
    _check_array(eraser.directions, "directions", 2, len(eraser.loadings))
    _require(len(eraser.directions) == n_features, "directions")


def _check_transport(transport: Transport, n_features: int, n_protected: int) -> None:
    for projector in (transport.first, transport.last):
        _check_projector(projector, n_protected, n_features)
    _check_array(transport.mean, "means", 1, n_features)
    _check_array(transport.loadings, "loadings", 2, n_features)
    rank, n_cells = len(transport.loadings), len(transport.maps)
    _check_array(transport.transform, "directions", 2, rank)
    _require(len(transport.transform) == n_features, "directions")
    _check_array(transport.centres, "means of cells", 2, rank)
    _check_array(transport.maps, "maps of cells", 3, rank)
    _require(transport.maps.shape[1] == rank and len(transport.centres) == n_cells, "maps of cells")
    _check_array(transport.cells.codes, "cells", 2, n_protected)
    _require(len(transport.cells.codes) == n_cells and len(transport.cells.thresholds) == n_protected, "cells")
    for cuts in transport.cells.thresholds:
        _check_array(cuts, "cells", 1)


def _n_units(model: Any) -> int:
    """Columns that a projector corrects: features, one prediction, or the probabilities of three classes and more."""
    if not hasattr(model, "estimator_"):
        return len(model.reader_.feature_names)
    return _n_predictions(getattr(model, "classes_", None))


def _n_predictions(classes: Any) -> int:
    return 1 if classes is None or len(classes) <= 2 else len(classes)


def _check_projector(projector: Any, n_protected: int, n_units: int) -> None:
    _check_array(projector.basis.mean, "means", 1, n_protected)
    _check_array(projector.basis.transform, "basis", 2)
    rank = projector.basis.transform.shape[1]
    _require(len(projector.basis.transform) == n_protected, "basis")
    _check_array(projector.coefficients, "coefficients", 2, n_units)
    _require(len(projector.coefficients) == rank + isinstance(projector, GeneralizedProjector), "coefficients")


def _check_array(array: Any, name: str, n_axes: int, width: int | None = None) -> None:
    """Refuse what is not an array of this shape with finite numbers of a usual size."""
    is_array = isinstance(array, np.ndarray) and array.dtype.kind in "fiu" and array.ndim == n_axes
    _require(is_array and width in (None, array.shape[-1]), name)
    if not np.isfinite(array).all() or (array.size and np.abs(array).max() > LARGEST):
        raise InputError(f"has {name} that are not finite or above {LARGEST:g}: save the model again")


def _design(model: Any) -> Design | None:
    return getattr(model, "design_", None)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= LARGEST


def _are_texts(values: Sequence[Any]) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(value, str) for value in values)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InputError(f"holds no usable model (its parts do not fit together: {what}): save the model again")
