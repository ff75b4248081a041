"""Blind the layers of a network as it is, without touching its code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from setsquare.errors import InputError, NotOrthogonalError
from setsquare.nn.layer import Inference, Orthogonalize, Where
from setsquare.nn.moments import Momentum

#: Modules whose input is a pre-activation that the generalised projection knows how to correct.
_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh"}


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """A layer that can be blinded: its name, type, the shapes that it returned, and its calls in one pass."""

    name: str
    type: str
    shapes: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.type})" + "".join(f" {shape}" for shape in self.shapes)


def list_layers(model: nn.Module, *inputs: Any, **named: Any) -> list[LayerInfo]:
    """Layers of a model that :func:`blind` can take; with example inputs, also the shapes that they return.

    The model runs once in ``eval`` mode. Layers that it did not run, or that return no tensor, have no shapes.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    >>> for layer in list_layers(model, torch.zeros(2, 3)):
    ...     print(layer)
    0 (Linear) (2, 4)
    1 (ReLU) (2, 4)
    """
    modules = {name: module for name, module in model.named_modules() if name}
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in modules}

    def note(name: str, out: Any) -> None:
        shapes[name] += [tuple(out.shape)] if isinstance(out, Tensor) else []

    if inputs or named:
        handles = [m.register_forward_hook(lambda _m, _i, out, n=name: note(n, out)) for name, m in modules.items()]
        try:
            with torch.no_grad(), evaluating(model):
                model(*inputs, **named)
        finally:
            for handle in handles:
                handle.remove()
    return [LayerInfo(name, type(module).__name__, tuple(shapes[name])) for name, module in modules.items()]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context in which a model is in ``eval`` mode; afterwards each module is as it was."""
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, flag in training.items():
            module.training = flag


class Blinded(nn.Module):
    """A network with some layers blinded; made by :func:`blind`.

    Attributes
    ----------
    model : torch.nn.Module
        The network itself: it has hooks only while it runs inside this one, or inside the context.
    corrections : ModuleDict of Orthogonalize
        By layer name, with "/" for "."; the second call of a layer in a pass has a correction of its own, "name#2".
    protected : Tensor
        Protected columns of the batch, for calls of the network itself inside the context.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[str], output: int | str | None, batch_dim: int, **settings: Any
    ) -> None:
        super().__init__()
        self.model, self.layers, self.output, self.batch_dim = model, tuple(layers), output, batch_dim
        self.settings = settings
        self.corrections = nn.ModuleDict()
        self.protected: Tensor | None = None
        self._calls: Counter[str] = Counter()
        self._handles: list[RemovableHandle] = []
        for name in self.layers:
            self._correction(name, 1)

    def forward(self, *inputs: Any, protected: Tensor | None = None, **named: Any) -> Any:
        """Run the network on a batch with its protected columns (n, p)."""
        inside, before = bool(self._handles), self.protected
        if not inside:
            self._install()
        self.protected = before if protected is None else protected
        try:
            out = self.model(*inputs, **named)
        finally:
            self.protected = before
            if not inside:
                self._remove()
        self._check_run()
        return out

    def __enter__(self) -> Blinded:
        self._install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        self.protected = None
        if kind is None and self._calls:
            self._check_run()

    def _install(self) -> None:
        self._calls.clear()
        self._handles = [self.model.register_forward_pre_hook(lambda *_: self._calls.clear())]
        for name in self.layers:
            module = self.model.get_submodule(name)
            if _enters(module, self._where(module)):
                hook = module.register_forward_pre_hook(
                    lambda module, inputs, name=name: (self._correct(name, module, inputs[0]), *inputs[1:])
                )
            else:
                hook = module.register_forward_hook(
                    lambda module, _, out, name=name: self._correct_output(name, module, out)
                )
            self._handles.append(hook)

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _where(self, module: nn.Module) -> Where | None:
        known = type(module) in _ACTIVATIONS or self.settings["activation"] is not None
        where: Where | None = self.settings["where"]
        return where if where is not None else "generalized" if known else "post"

    def _correction(self, name: str, call: int) -> Orthogonalize:
        key = name.replace(".", "/") + (f"#{call}" if call > 1 else "")
        if key not in self.corrections:
            module = self.model.get_submodule(name)
            settings = self.settings | {"where": self._where(module)}
            if settings["activation"] is None:
                settings["activation"] = _ACTIVATIONS.get(type(module))
            if settings["where"] == "generalized" and settings["activation"] is None:
                raise InputError(
                    f"Layer {name!r} ({type(module).__name__}) has no activation that is known: say which one the "
                    'network applies to it, such as activation="relu".'
                )
            self.corrections[key] = Orthogonalize(**settings)
        correction = self.corrections[key]
        assert isinstance(correction, Orthogonalize)
        return correction

    def _correct(self, name: str, module: nn.Module, y: Tensor) -> Tensor:
        self._calls[name] += 1
        correction = self._correction(name, self._calls[name])
        correction.train(module.training)
        batch = y.movedim(self.batch_dim, 0)
        try:
            corrected: Tensor = correction(batch, self.protected)
        except InputError as error:
            raise type(error)(f"Layer {name!r}: {error}{self._hint(y)}") from None
        return corrected.movedim(0, self.batch_dim)

    def _hint(self, y: Tensor) -> str:
        if self.protected is None:
            return " Call blinded(inputs, protected=X), or set .protected inside the context."
        rows = len(self.protected)
        other = [axis for axis in range(y.ndim) if y.shape[axis] == rows and axis != self.batch_dim]
        return f" If axis {other[0]} of the layer is the batch, pass batch_dim={other[0]}." if other else ""

    def _correct_output(self, name: str, module: nn.Module, out: Any) -> Any:
        if isinstance(out, Tensor):
            return self._correct(name, module, out)
        choice = _keys(out)
        if self.output not in choice or not isinstance(out[self.output], Tensor):
            raise InputError(
                f"Layer {name!r} returns a {type(out).__name__}: say which of its tensors is to be corrected, "
                f"output={' or '.join(repr(key) for key in choice if isinstance(out[key], Tensor)) or '...'}."
            )
        return _replaced(out, self.output, self._correct(name, module, out[self.output]))

    def _check_run(self) -> None:
        idle = [name for name in self.layers if not self._calls[name]]
        if idle:
            raise NotOrthogonalError(
                f"The network did not run the layer(s) {', '.join(idle)}, so nothing was corrected there: choose "
                "layers that it calls as modules (a fused kernel may replace inner ones)."
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for key in state_dict:  # later calls of a layer are known from the saved network only
            if key.startswith(f"{prefix}corrections.") and "#" in key:
                name, call = key[len(f"{prefix}corrections.") :].split(".")[0].split("#")
                self._correction(name.replace("/", "."), int(call))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def blind(
    model: nn.Module,
    layers: Sequence[str],
    protected: Tensor | None = None,
    *,
    n_protected: int | None = None,
    where: Where | None = None,
    activation: str | None = None,
    momentum: Momentum = "auto",
    inference: Inference = "protected",
    output: int | str | None = None,
    batch_dim: int = 0,
) -> Blinded:
    """Blind layers of a network to the protected columns: as a wrapper for good, or as a context for a while.

    Each layer gets an :class:`~setsquare.nn.Orthogonalize`, which learns whenever the layer is in training mode. Train
    the wrapper as any network; or blind a trained network, call :func:`~setsquare.nn.fit_layer`, and use it.

    Parameters
    ----------
    model : torch.nn.Module
        Its code and its state stay as they are.
    layers : sequence of str
        Names as in :func:`list_layers`. For an activation module (ReLU, Sigmoid, Tanh) the correction is the
        generalised one by default and enters before it, so that what leaves it is orthogonal.
    protected : Tensor of shape (n, p), optional
        Protected columns of the batches to come; else give them with each batch.
    n_protected, where, activation, momentum, inference
        Of each :class:`~setsquare.nn.Orthogonalize`.
    output : int or str, optional
        Which element to correct where a layer returns a tuple or a dict.
    batch_dim : int
        Axis of the rows; 1 for sequence-first transformers.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    >>> x, sex = torch.randn(20, 3), (torch.arange(20.0) % 2)[:, None]
    >>> blinded = blind(model, layers=["1"])
    >>> blinded(x, protected=sex).shape
    torch.Size([20, 1])
    >>> with blind(model, layers=["1"]) as b:
    ...     b.protected = sex
    ...     y = model(x)
    """
    names = [info.name for info in list_layers(model)]
    if isinstance(layers, str) or not layers:
        raise InputError(f"layers must be a list of layer names, such as {names[:2]}.")
    for name in layers:
        if name not in names:
            near = get_close_matches(name, names, n=3, cutoff=0.4) or names[:3]
            raise InputError(
                f"The network has no layer {name!r}: did you mean {', '.join(map(repr, near))}? "
                "setsquare.nn.list_layers(model) lists all of them."
            )
    settings = {"n_protected": n_protected, "where": where, "activation": activation}
    blinded = Blinded(model, layers, output, batch_dim, **settings, momentum=momentum, inference=inference)
    blinded.protected = protected
    return blinded


def _enters(module: nn.Module, where: Where | None) -> bool:
    """Whether the correction comes before the module rather than after it."""
    return type(module) in _ACTIVATIONS and where != "post"


def _keys(out: Any) -> list[int | str]:
    return list(out) if isinstance(out, Mapping) else list(range(len(out))) if isinstance(out, tuple | list) else []


def _replaced(out: Any, key: int | str | None, value: Tensor) -> Any:
    """Copy of a tuple, list or dict with one element replaced."""
    if isinstance(out, Mapping):
        return type(out)({**out, key: value})  # type: ignore[call-arg]
    items = [value if index == key else item for index, item in enumerate(out)]
    return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)
