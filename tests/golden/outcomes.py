"""What a call comes to, as plain values: its result, its warnings, or the sentence with which it is refused."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from setsquare.errors import SetsquareWarning
from setsquare.families import Family
from setsquare.families.activations import Activation
from setsquare.tables.mixed_matrix import MixedMatrix

#: Rounding errors, as texts print them: another machine has others.
SMALL = re.compile(r"-?\b\d(\.\d+)?e-(0[89]|1\d|2\d)\b")
#: Lines with versions, in Markdown and LaTeX: other machines have others, and torch only where something imported it.
VERSION = re.compile(
    r"^(\| )?(Python|setsquare|numpy|scipy|scikit-learn|pandas|polars|pyarrow|torch)( \| | & )\d.*\n", re.M
)


def outcome(function: Callable[[], Any]) -> dict[str, Any]:
    """Call a function: its result, or the error, and the warnings of this package."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        try:
            found["result"] = plain(function())
        except Exception as error:
            found["error"] = plain(f"{type(error).__name__}: {str(error)[:400]}")
    said = [plain(f"{type(one.message).__name__}: {one.message}") for one in caught]
    own = [text for text, one in zip(said, caught, strict=True) if issubclass(one.category, SetsquareWarning)]
    return found | ({"warnings": own} if own else {})


def plain(value: Any) -> Any:
    """Dataframes and matrices as columns, inside of whatever holds them."""
    if value is None or isinstance(value, int | float | np.generic):  # most values; narwhals is slow to pass them on
        return value
    if isinstance(value, MixedMatrix):
        return {"mixed": value.toarray(), "codes": value.codes, "places": value.places, "columns": value.columns}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, list | tuple):
        if len(value) > 1 and all(isinstance(one, Mapping) and list(one) == list(value[0]) for one in value):
            return {"by column": {str(key): plain([one[key] for one in value]) for key in value[0]}}
        return [plain(one) for one in value]
    if isinstance(value, str):
        text = VERSION.sub("", SMALL.sub("tiny", value))
        return f" {text}" if text.startswith("#") else text  # arrays are recorded as texts that start so
    if isinstance(value, Family):
        return str(value)
    if isinstance(value, Activation):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value) if not field.name.startswith("_"))
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    frame = nw.from_native(value, eager_only=True, allow_series=True, pass_through=True)
    if isinstance(frame, nw.Series):
        frame = frame.to_frame() if frame.name else frame.alias("").to_frame()
    if isinstance(frame, nw.DataFrame):
        return {str(frame.implementation): {name: frame[name].to_list() for name in map(str, frame.columns)}}
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.dtype != np.float64:
        return {str(value.dtype): value.astype(np.float64)}
    return value
