"""Reading of decisions, outcomes and thresholds for numbers by group."""

from __future__ import annotations

from typing import Any

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError, MissingValuesError
from setsquare.notes import Note, Option
from setsquare.tables.outcome import class_name, positive_class
from setsquare.tables.validation import is_missing


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
        return read_binary(decisions, len(score), "decisions", positive)
    return score if ((score == 0.0) | (score == 1.0)).all() else None


def read_binary(values: Any, n_rows: int, what: str, positive: object = None) -> Array:
    """A column of two classes as 0 and 1; anything else is refused.

    Examples
    --------
    >>> read_binary([True, False], 2, "decisions")
    array([1., 0.])
    """
    array = _column(values, n_rows, what)
    if array.dtype.kind in "biuf":
        numbers = array.astype(np.float64)
        if not np.isfinite(numbers).all():
            raise MissingValuesError(f"{what} has missing values: remove those rows, or fill them in.")
        found = np.unique(numbers)
        if np.isin(found, (0.0, 1.0)).all() and (positive is None or class_name(positive) not in ("0",)):
            return numbers
        names = [class_name(value) for value in found.tolist()]
        codes = np.searchsorted(found, numbers)
    else:
        if any(map(is_missing, array.tolist())):
            raise MissingValuesError(f"{what} has missing values: remove those rows, or fill them in.")
        found, codes = np.unique(array.astype(str), return_inverse=True)
        names = found.tolist()
    if len(names) != 2:
        listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        text = "{what} must be 0 and 1, or two classes of which {positive} names one; it has the values {values}."
        raise InputError(Note("not-binary", text, what=what, positive=Option("positive"), values=listed))
    one = positive_class(names, positive if positive is not None and _is_among(names, positive) else None)
    return np.array([float(name == one) for name in names])[codes]


def read_numeric_outcome(values: Any, n_rows: int, positive: object = None) -> Array:
    """An outcome as 0 and 1 if it has two values or is text, otherwise as numbers."""
    array = _column(values, n_rows, "outcome")
    if array.dtype.kind in "iuf" and len(np.unique(array[:1000])) > 2:
        numbers = array.astype(np.float64)
        if not np.isfinite(numbers).all():
            raise MissingValuesError("outcome has missing values: remove those rows, or fill them in.")
        return numbers
    return read_binary(array, n_rows, "outcome", positive)


def _column(values: Any, n_rows: int, what: str) -> np.ndarray[Any, Any]:
    array = np.asarray(values.to_numpy(zero_copy_only=False) if hasattr(values, "num_chunks") else values)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1 or len(array) != n_rows:
        raise InputError(f"{what} has the shape {array.shape} but there are {n_rows} rows: give one value per row.")
    return array.astype(object) if array.dtype.kind in "UT" else array


def _is_among(names: list[str], asked: object) -> bool:
    return class_name(asked).casefold() in [name.casefold() for name in names]
