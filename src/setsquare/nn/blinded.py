"""A network whose layers are corrected by hooks, without a change of its code."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

from setsquare.errors import InputError
from setsquare.nn.compiled import attach
from setsquare.nn.functional import read_protected
from setsquare.nn.hook_checks import (
    CORRECTED,
    check_axes,
    check_call,
    find_attention_masks,
    fit_attention_mask,
    hint,
    mask_of_layer,
    refuse_idle,
    refuse_replaced,
    refuse_uncorrected,
    refuse_unhooked,
    warn_of_others,
)
from setsquare.nn.layer import Orthogonalize, Where
from setsquare.nn.moments import RunningMoments
from setsquare.nn.network_layers import (
    choose_tensor,
    eval_mode,
    has_parameter,
    put_tensor,
    takes_protected,
)
from setsquare.nn.packed import repack, unpack
from setsquare.nn.row_axes import to_units
from setsquare.nn.uncorrected import mark_others
from setsquare.nn.unit_axes import LastWeights
from setsquare.nn.weight_watch import watch_frozen

#: Modules whose input is a pre-activation that the generalised projection can correct.
_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh"}


def listed_name(model: nn.Module, name: str) -> str:
    """Name of the layer of the original network that a correction of a blinded network belongs to.

    ``name`` is that of an Orthogonalize module; one outside a blinded network keeps it.

    Examples
    --------
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Sequential(nn.Linear(3, 4)))
    >>> listed_name(Blinded(network, [], None, 0), "corrections.0/0")
    '0.0'
    """
    parent, _, key = name.rpartition(".")
    owner = model.get_submodule(parent.rpartition(".")[0])
    is_correction = isinstance(owner, Blinded) and model.get_submodule(parent) is owner.corrections
    return key.replace("/", ".") if is_correction else name


class Blinded(nn.Module):
    """A network with blinded layers, created by :func:`~setsquare.nn.blind`.

    Attributes
    ----------
    model : torch.nn.Module
        The original network; it has hooks only while the wrapper runs it, or inside the context.
    corrections : ModuleDict of Orthogonalize
        Corrections by layer name, with "/" for "."; the second call of a layer in a forward pass has its own, "name#2".
    protected : Tensor
        Protected columns of the batch, for calls of the original network inside the context.
    mask : Tensor
        Positions of the batch that count, (n, positions), for ``rows`` "tokens" or "pixels". By default the
        ``attention_mask`` of the call, if there is one.
    """

    def __init__(
        self, model: nn.Module, layers: Iterable[str], output: int | str | None, batch_dim: int, **settings: Any
    ) -> None:
        super().__init__()
        self.model, self.layers, self.output, self.batch_dim = model, tuple(layers), output, batch_dim
        self.settings = settings
        self.corrections = nn.ModuleDict()
        self.protected: Tensor | None = None
        self.mask: Tensor | None = None
        self._masks: dict[str, Tensor] = {}  # among the inputs of the network
        self._outputs: list[tuple[str, weakref.ref[Tensor]]] = []  # of blinded layers, before the correction
        self._calls: Counter[str] | None = None  # calls per layer, while the network runs
        self._kept: str | None = None  # layer whose correction no hook has replaced so far
        self._n_passes, self._depth = 0, 0
        self._handles: list[RemovableHandle] = []
        self._others: dict[str, list[str]] = {}  # uses of tensors beside the corrected one, in the first pass
        self._weights: LastWeights | None = LastWeights()  # that ran in the first pass
        self._traced = False  # whether the hooks act that compilation leaves on the layers
        for name in self.layers:
            self._correction(name, 1)

    def forward(self, *inputs: Any, protected: Tensor | None = None, mask: Tensor | None = None, **named: Any) -> Any:
        """Run the network on a batch with its protected columns (n, p), and the mask of its positions if there is one.

        A network whose own ``forward`` has a parameter ``mask`` gets it; set the attribute ``mask`` instead.
        """
        before, n_passes = (self.protected, self.mask), self._n_passes
        self.protected = self.protected if protected is None else protected
        if mask is not None and has_parameter(self.model, "mask"):
            named["mask"] = mask
        elif mask is not None:
            self.mask = mask
        if takes_protected(self.model):  # already blinded, or built with Orthogonalize layers
            named["protected"] = self.protected
        self._install()
        try:
            with self._watching():
                out = self._run_traced(inputs, named) if self._traced else self.model(*inputs, **named)
        finally:
            self.protected, self.mask = before
            self._remove()
        self._check_passed(n_passes)
        return out

    def allocate(self, *inputs: Any, protected: Tensor, **named: Any) -> Blinded:
        """Give the moments of all layers their sizes by one pass, from which nothing is learned.

        Needed where a copy of the network is updated tensor by tensor from the first batch on, as
        ``torch.optim.swa_utils.AveragedModel`` does: call it before making the copy.
        """
        X = read_protected(protected, protected)

        def size(layer: Orthogonalize, y: Tensor) -> Tensor:
            if isinstance(layer.moments, RunningMoments):
                layer.moments.allocate(X.shape[1], to_units(y, layer.rows).shape[1])
            return y

        try:
            for layer in self._own_corrections():
                layer.override = lambda y, _protected, _mask, layer=layer: size(layer, y)
            with torch.no_grad(), eval_mode(self):
                self(*inputs, protected=protected, **named)
        finally:
            for layer in self._own_corrections():
                layer.override = None
        return self

    def _watching(self) -> AbstractContextManager[Any]:
        """Record the weights before corrections that were loaded in a frozen state."""
        if torch.compiler.is_compiling() or not any(c.is_unwatched for c in self._own_corrections()):
            return nullcontext()
        return watch_frozen(self, self._own_corrections())

    def _own_corrections(self) -> list[Orthogonalize]:
        return [module for module in self.corrections.values() if isinstance(module, Orthogonalize)]

    def __enter__(self) -> Blinded:
        if not self._depth:
            self._n_passes = 0
        self._install()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._remove()
        if not self._depth:
            self.protected = self.mask = None
        if kind is None:
            self._check_passed(0)

    def _install(self) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._calls, self._handles = None, []
        if torch.compiler.is_dynamo_compiling():
            self._traced = attach(self)
            return
        modules = {name: self.model.get_submodule(name) for name in self.layers}
        if getattr(self, "_is_replica", False):  # DataParallel replicas share the hooks of the original
            for module in (self.model, *modules.values()):
                module._forward_hooks = module._forward_hooks.copy()
                module._forward_pre_hooks = module._forward_pre_hooks.copy()
        elif self._weights is not None:
            self._handles += self._weights.follow(self.settings["rows"])
        begin = lambda model, inputs, named: self._begin(model, inputs, named)  # noqa: E731
        self._handles.append(self.model.register_forward_pre_hook(begin, with_kwargs=True))
        for name, module in modules.items():
            if self._corrects_input(module):
                hook = module.register_forward_pre_hook(
                    lambda module, inputs, named, name=name: self._correct_input(name, module, inputs, named),
                    with_kwargs=True,
                )
                first = module.register_forward_hook(
                    lambda _module, inputs, out, name=name: self._check_input(name, inputs, out), prepend=True
                )
                self._handles.append(first)
            else:
                # Before all other hooks: some record the output, as those of transformers do for hidden_states.
                hook = module.register_forward_hook(
                    lambda module, _, out, name=name: self._correct_output(name, module, out), prepend=True
                )
            last = module.register_forward_hook(lambda _module, _, out, name=name: self._check_kept(name, out))
            self._handles += [hook, last]
        self._handles.append(self.model.register_forward_hook(lambda model, _, out: self._end(model, out)))

    def _remove(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._traced = False
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def _run_traced(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._begin(self.model, inputs, named)
        out = self.model(*inputs, **named)
        self._end(self.model, out)
        return out

    def _begin(self, model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if model is self.model:
            self._calls, self._outputs = Counter(), []
            self._masks = find_attention_masks(model, inputs, named)

    def _end(self, model: nn.Module, out: Any) -> None:
        calls = self._calls
        if model is not self.model or calls is None:
            return
        self._calls, self._n_passes, self._masks, self._weights = None, self._n_passes + 1, {}, None
        uncorrected, self._outputs = self._outputs, []
        refuse_uncorrected(out, uncorrected)
        refuse_idle([name for name in self.layers if not calls[name]])
        for name, uses in self._others.items():
            if uses:
                warn_of_others(name, uses)
                uses.clear()

    def _check_passed(self, n_passes: int) -> None:
        if self._n_passes == n_passes:
            refuse_unhooked(self.layers)

    def _corrects_input(self, module: nn.Module) -> bool:
        return type(module) in _ACTIVATIONS and self._where(module) != "post"

    def _where(self, module: nn.Module) -> Where | None:
        known = type(module) in _ACTIVATIONS or self.settings["activation"] is not None
        known = known and self.settings["moments"] == 1 and self.settings["inference"] != "features"
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
                    f"Layer {name!r} ({type(module).__name__}) has no known activation: pass the one that the network "
                    'applies to its output, such as activation="relu".'
                )
            self.corrections[key] = Orthogonalize(**settings)
        correction = self.corrections[key]
        assert isinstance(correction, Orthogonalize)
        return correction

    def _correct_input(
        self, name: str, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        y = inputs[0] if inputs else named["input"]
        corrected = self._correct(name, module, y)
        self._keep(name, y, corrected)
        return ((corrected, *inputs[1:]), named) if inputs else (inputs, named | {"input": corrected})

    def _check_input(self, name: str, inputs: tuple[Any, ...], out: Any) -> None:
        """Mark the output of an activation, if it was computed from the corrected input."""
        if self._kept == name and (not inputs or CORRECTED.get(id(inputs[0])) is inputs[0]):
            CORRECTED[id(out)] = out

    def _keep(self, name: str, y: Tensor, corrected: Tensor) -> None:
        """Note a correction, which no later hook of the same layer may replace."""
        if corrected is not y and not torch.compiler.is_compiling():
            self._kept, CORRECTED[id(corrected)] = name, corrected

    def _correct_output(self, name: str, module: nn.Module, out: Any) -> Any:
        y = choose_tensor(name, out, self.output, "corrected")
        if y is not out and name not in self._others and not torch.compiler.is_compiling():
            out = mark_others(out, self.output, self._others.setdefault(name, []))
        if isinstance(y, PackedSequence):
            return put_tensor(out, self.output, self._correct_packed(name, module, y))
        corrected = self._correct(name, module, y)
        self._keep(name, y, corrected)
        if self._kept == name:
            self._outputs.append((name, weakref.ref(y)))
        return corrected if isinstance(out, Tensor) else put_tensor(out, self.output, corrected)

    def _correct_packed(self, name: str, module: nn.Module, packed: PackedSequence) -> PackedSequence:
        """Correct the steps of packed sequences; the padding that unpacking adds does not count."""
        if self.settings["rows"] != "tokens":
            raise InputError(
                f'Layer {name!r} returns packed sequences, whose rows are steps: blind it with rows="tokens".'
            )
        y, mask = unpack(packed)
        before, self.mask = (self.mask, self.batch_dim), mask
        self.batch_dim = 0
        try:
            corrected = self._correct(name, module, y)
        finally:
            self.mask, self.batch_dim = before
        return repack(corrected, packed)

    def _check_kept(self, name: str, out: Any) -> None:
        kept, self._kept = self._kept, None
        if kept != name or not self._depth or isinstance(out, PackedSequence):
            return
        y = out if isinstance(out, Tensor) else choose_tensor(name, out, self.output, "corrected")
        if CORRECTED.get(id(y)) is not y:
            refuse_replaced(name)

    def _correct(self, name: str, module: nn.Module, y: Tensor) -> Tensor:
        if not self._depth:  # a copy of the network made inside the context still has the hooks
            return y
        check_call(name, self._calls is not None, module is self.model.get_submodule(name))
        assert self._calls is not None
        check_axes(name, y, self.batch_dim)
        self._calls[name] += 1
        correction = self._correction(name, self._calls[name]).train(module.training)
        if correction.moments.rows.device != y.device:
            correction.to(y.device)
        rows = y.movedim(self.batch_dim, 0)
        if self._weights is not None:
            self._weights.check(name, rows, correction.rows)
        try:
            corrected: Tensor = correction(rows, self.protected, self._mask_of(name, correction, rows))
        except InputError as error:
            raise type(error)(f"Layer {name!r}: {error}{hint(self.protected, y, self.batch_dim)}") from None
        # The very object where nothing was corrected: views of it would look corrected.
        return y if corrected is rows else corrected.movedim(0, self.batch_dim)

    def _mask_of(self, name: str, correction: Orthogonalize, y: Tensor) -> Tensor | None:
        """Mask of the positions of ``y`` (n, ...) if the correction learns from them: given, or the attention mask."""
        learning = correction.override is not None or (
            correction.training and not correction.frozen and not correction.is_mapped
        )
        if not learning or self.mask is not None:
            return self.mask if learning else None
        return fit_attention_mask(mask_of_layer(self.model, name, self._masks), y, correction.rows)

    def __getstate__(self) -> dict[str, Any]:  # a copy starts outside the context
        outside = {"_handles": [], "_depth": 0, "_calls": None, "_outputs": [], "_kept": None, "_masks": {}}
        return self.__dict__ | outside

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for key in state_dict:  # repeated calls of a layer are known only from the saved state
            if key.startswith(f"{prefix}corrections.") and "#" in key:
                name, call = key[len(f"{prefix}corrections.") :].split(".")[0].split("#")
                self._correction(name.replace("/", "."), int(call))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
