"""Notice that a network uses tensors of a layer's output that are not corrected, such as the states of an LSTM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from setsquare.nn.functional import has_values
from setsquare.nn.network_layers import put_tensor


class Marked(Tensor):
    """A tensor that counts the operations which read its values; their results are ordinary tensors."""

    uses: list[str]
    place: str

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation without marks, and note the places of the marked tensors if it returns tensors."""
        found: list[Marked] = []
        plain, named = _unmark(args, found), _unmark(kwargs or {}, found)
        out = func(*plain, **named)
        if any(isinstance(part, Tensor) for part in (out if isinstance(out, tuple | list) else (out,))):
            for tensor in found:
                tensor.__dict__["uses"].append(tensor.__dict__["place"])
        return out


def _unmark(value: Any, found: list[Marked]) -> Any:
    if isinstance(value, Marked):
        found.append(value)
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor)
    if type(value) in (tuple, list):
        return type(value)(_unmark(part, found) for part in value)
    if type(value) is dict:
        return {key: _unmark(part, found) for key, part in value.items()}
    return value


def mark_others(out: Any, chosen: int | str | None, uses: list[str]) -> Any:
    """Mark the tensors of a layer's output apart from the chosen one; ``uses`` will have the places that are read."""
    if not isinstance(out, tuple | list | Mapping):
        return out
    for key in list(out) if isinstance(out, Mapping) else range(len(out)):
        if key != chosen and (marked := _mark(out[key], repr(key), uses)) is not out[key]:
            out = put_tensor(out, key, marked)
    return out


def _mark(value: Any, place: str, uses: list[str]) -> Any:
    if type(value) is Tensor and value.is_floating_point() and has_values(value):
        marked = value.as_subclass(Marked)
        marked.__dict__.update(uses=uses, place=place)
        return marked
    return type(value)(_mark(part, place, uses) for part in value) if type(value) in (tuple, list) else value
