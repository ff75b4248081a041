"""Access to the layers of a network: list and check them, choose among their outputs, run the network on a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from typing import Any

import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from setsquare.errors import InputError


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """A layer that can be blinded: its name, type, and the shape of its output for each call in a forward pass."""

    name: str
    type: str
    shapes: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.type})" + "".join(f" {shape}" for shape in self.shapes)


def list_layers(model: nn.Module, *inputs: Any, **named: Any) -> list[LayerInfo]:
    """List the layers that :func:`~setsquare.nn.blind` accepts; with example inputs, also their output shapes.

    With inputs, the model runs once in ``eval`` mode. Layers that did not run, or that do not return a tensor, have no
    shapes. A module with several names is listed under each of them.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    >>> for layer in list_layers(model, torch.zeros(2, 3)):
    ...     print(layer)
    0 (Linear) (2, 4)
    1 (ReLU) (2, 4)
    """
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in modules}

    def note(name: str, out: Any) -> None:
        shapes[name] += [tuple(out.shape)] if isinstance(out, Tensor) else []

    if inputs or named:
        handles = [m.register_forward_hook(lambda _m, _i, out, n=name: note(n, out)) for name, m in modules.items()]
        try:
            with torch.no_grad(), eval_mode(model):
                model(*inputs, **named)
        finally:
            for handle in handles:
                handle.remove()
    return [LayerInfo(name, type(module).__name__, tuple(shapes[name])) for name, module in modules.items()]


def check_layer(name: str, names: Sequence[str], kind: str = "layer") -> None:
    """Refuse a layer that is not among ``names``, and suggest the closest names."""
    if name not in names:
        near = get_close_matches(name, names, n=3, cutoff=0.4) or names[-3:]
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else "it has none."
        raise InputError(
            f"The network has no {kind} {name!r}: {hint} setsquare.nn.list_layers(model) lists all layers."
        )


def choose_tensor(name: str, out: Any, output: int | str | None, purpose: str) -> Any:
    """Return the output of a layer, or element ``output`` of a tuple or dict; error messages name the ``purpose``.

    Packed sequences count as a tensor.
    """
    if isinstance(out, Tensor | PackedSequence):
        return out
    keys = list(out) if isinstance(out, Mapping) else range(len(out)) if isinstance(out, tuple | list) else []
    choice = [key for key in keys if isinstance(out[key], Tensor | PackedSequence)]
    if output not in choice:
        given = "" if output is None else f", and output={output!r} is not a tensor"
        raise InputError(
            f"Layer {name!r} returns a {type(out).__name__}{given}: choose the tensor to be {purpose}, "
            f"output={' or '.join(map(repr, choice)) or '...'}."
        )
    return out[output]


def put_tensor(out: Any, key: int | str | None, value: Any) -> Any:
    """Copy a tuple, list or dict with one element replaced; a tensor, or packed sequences, is replaced itself."""
    if isinstance(out, Tensor | PackedSequence):
        return value
    if isinstance(out, Mapping):
        return type(out)({**out, key: value})  # type: ignore[call-arg]
    items = [value if index == key else item for index, item in enumerate(out)]
    return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set a model to ``eval`` mode; afterwards, restore the mode of each module."""
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, flag in training.items():
            module.training = flag


def call_model(model: nn.Module, inputs: Any, **named: Any) -> Any:
    """Run a model on inputs: a tensor, or a tuple or dict of its arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs, **named)
    return model(*(inputs if isinstance(inputs, tuple | list) else [inputs]), **named)


def takes_protected(model: nn.Module) -> bool:
    """Whether the ``forward`` of a model takes ``protected=``."""
    return has_parameter(model, "protected")


def has_parameter(model: nn.Module, name: str) -> bool:
    """Whether the ``forward`` of a model has a parameter of this name."""
    return name in signature(model.forward).parameters


def in_checkpoint() -> bool:
    """Whether the caller runs inside :func:`torch.utils.checkpoint.checkpoint`."""
    if torch.compiler.is_compiling():
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            return True
    return False


def refuse_checkpoint(what: str) -> None:
    """Refuse to learn inside :func:`torch.utils.checkpoint.checkpoint`, which runs a part of a network again."""
    if in_checkpoint():
        raise InputError(
            f"{what} runs inside torch.utils.checkpoint, which runs it again for the gradient, so it would learn "
            "twice: call it outside the checkpoint, or switch checkpointing off."
        )
