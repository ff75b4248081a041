"""Reading of decisions, outcomes and thresholds for numbers by group."""

from __future__ import annotations

from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError, MissingValuesError
from setsquare.notes import Note, Option
from setsquare.tables.outcome import class_name, positive_class
from setsquare.tables.validation import check_per_row, is_missing


def read_decisions(score: Array, threshold: float | None, decisions: Any, positive: object = None) -> Array | None:
    """Decisions as 0 and 1: as given, by a threshold, or the predictions themselves if these are all 0 and 1.

    A prediction at the threshold is a positive decision.

    Examples
    --------
    >>> read_decisions(np.array([0.2, 0.5, 0.7]), 0.5, None)
    array([0., 1., 1.])
    >>> read_decisions(np.array([0.2, 0.5]), None, ["no", "yes"])
    array([0., 1.])
    """
    if threshold is not None and decisions is not None:
        raise InputError("Both a threshold and decisions were given: pass one of them.")
    if threshold is not None:
        if not np.isfinite(threshold):
            raise InputError(f"threshold={threshold} must be a finite number.")
        return (score >= threshold).astype(np.float64)
    if decisions is not None:
        return read_binary(read_column(decisions, len(score), "decisions"), "decisions", positive)
    return score if ((score == 0.0) | (score == 1.0)).all() else None


def read_binary(array: np.ndarray[Any, Any], what: str, positive: object = None) -> Array:
    """A column of two classes as 0 and 1; anything else is refused.

    Examples
    --------
    >>> read_binary(np.array([True, False]), "decisions")
    array([1., 0.])
    """
    _refuse_missing(array, what)
    names, codes = np.unique(array.astype(str) if array.dtype.kind == "O" else array, return_inverse=True)
    classes = [class_name(value) for value in names.tolist()]
    asked = positive if positive is not None and _is_among(classes, positive) else None
    if set(classes) <= {"0", "1"} or (array.dtype.kind == "b"):
        one = class_name(asked) if asked is not None else "True" if array.dtype.kind == "b" else "1"
    elif len(classes) == 2:
        one = positive_class(classes, asked)
    else:
        listed = ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")
        text = "{what} must be 0 and 1, or two classes of which {positive} names one; it has the values {values}."
        raise InputError(Note("not-binary", text, "info", what=what, positive=Option("positive"), values=listed))
    return np.array([float(name.casefold() == one.casefold()) for name in classes])[codes]


def read_outcome(array: np.ndarray[Any, Any], positive: object = None) -> Array:
    """An outcome as 0 and 1 if it has two values or is text, otherwise as numbers.

    Examples
    --------
    >>> read_outcome(np.array([1.5, 2.0, 7.0]))
    array([1.5, 2. , 7. ])
    """
    _refuse_missing(array, "outcome")
    if array.dtype.kind in "iuf" and len(np.unique(array)) > 2:
        return array.astype(np.float64)
    return read_binary(array, "outcome", positive)


def read_column(values: Any, n_rows: int, what: str) -> np.ndarray[Any, Any]:
    """One value per row as an array, whatever holds them."""
    native = nw.from_native(values, eager_only=True, allow_series=True, pass_through=True)
    array = native.to_numpy() if isinstance(native, nw.Series | nw.DataFrame) else np.asarray(values)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    check_per_row(what, array, n_rows)
    return array.astype(object) if array.dtype.kind not in "biuf" else array


def _refuse_missing(array: np.ndarray[Any, Any], what: str) -> None:
    if array.dtype.kind == "O":
        count = sum(map(is_missing, array.tolist()))
    else:
        count = int((~np.isfinite(array)).sum()) if array.dtype.kind == "f" else 0
    if count:
        raise MissingValuesError(f"{what} has {count} missing value(s): leave those rows out, or fill them in.")


def _is_among(names: list[str], asked: object) -> bool:
    return class_name(asked).casefold() in [name.casefold() for name in names]
