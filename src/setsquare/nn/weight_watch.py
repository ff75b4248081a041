"""Notice that weights before a fitted correction changed, which makes the correction stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from setsquare.nn.functional import is_concrete

#: Change of a sum of weights, relative to their size, that is rounding error of the sum itself.
ROUNDING = 1e-13
#: Number of tensors that are looked at in each call, apart from the changes that torch counts.
SAMPLE = 16
#: Types of numbers that are summed as they are; others, such as whole numbers, are converted.
SUMMED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Attributes by which layers of peft (LoRA and others) choose the adapters that act, and how strongly.
ADAPTER_STATE = ("_disable_adapters", "_active_adapter", "scaling")
#: Modules that hold parameters and have no forward pass.
LISTS = (nn.ParameterList, nn.ParameterDict)


@dataclass(slots=True)
class WeightWatch:
    """Fingerprint of parameters and buffers, taken again only where something suggests a change.

    Torch counts changes in place, except those through ``tensor.data``: these show in a few numbers that are read in
    each call (on a CPU), and in all of them when the layer is switched between training and ``eval``. On other devices
    only the latter: to read numbers in each call would wait for the device.

    Attributes
    ----------
    places : list of (Module, str)
        Where the tensors are.
    parts : list of (Module, str, Module)
        Modules inside others: one that is replaced, as by an adapter, changes the network without changing a tensor.
    kinds : str
        Types of the modules that have no others inside, such as activations.
    adapters : list of Module
        Modules whose adapters can be switched off, which changes no tensor.
    packed : list of (Module, str)
        Where weights are that are neither parameters nor buffers, as those of quantised layers.
    """

    places: list[tuple[nn.Module, str]]
    parts: list[tuple[nn.Module, str, nn.Module]]
    kinds: str
    adapters: list[nn.Module]
    packed: list[tuple[nn.Module, str]]
    seen: tuple[Any, ...] = ()
    values: Tensor = field(default_factory=lambda: torch.zeros(0, 4, dtype=torch.float64))
    moved: bool = False
    objects: list[Any] = field(default_factory=list)  # held, so that no other object gets their identity

    @classmethod
    def of(cls, modules: Iterable[nn.Module]) -> Self:
        """Watch the tensors that these modules own directly."""
        own = dict.fromkeys(modules)
        places, parts, packed = [], [], []
        for module in own:
            tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            places += [(module, name) for name, _ in tensors]
            parts += [(module, name, child) for name, child in module.named_children() if child in own]
            packed += [(module, name) for name, value in vars(module).items() if isinstance(value, torch.ScriptObject)]
        kinds = " ".join(type(module).__name__ for module in own if not module._modules)
        adapters = [module for module in own if hasattr(module, ADAPTER_STATE[0])]
        watch = cls(places, parts, kinds, adapters, packed)
        watch.seen, watch.values = (), watch._fingerprint()
        return watch

    def has_moved(self, training: bool = False) -> bool:
        """Return whether a watched tensor has other values than at the start; conversions of the dtype do not count.

        Inside a transform of ``torch.func``, and on the meta device, tensors have no values to compare.
        """
        if any(module._modules.get(name) is not child for module, name, child in self.parts):
            return True
        tensors: list[Tensor] = [getattr(module, name) for module, name in self.places if hasattr(module, name)]
        if len(tensors) < len(self.places):
            return True
        if is_concrete(*tensors):
            versions = [_version(tensor) for tensor in tensors]
            objects = [getattr(module, name, None) for module, name in self.packed]
            seen = (training, versions, _sample(tensors), self._switches(), [id(packed) for packed in objects])
            if seen != self.seen or any(version == UNCOUNTED for _, version in versions):
                self.seen, self.moved = seen, not _same(self._fingerprint(), self.values)
                self.objects = objects
        return self.moved

    def expect(self, values: Tensor) -> None:
        """Compare with another fingerprint (k, 4), that of the weights which a loaded correction was fitted to."""
        if not _same(self._fingerprint(), values):
            self.values, self.moved, self.seen = values, True, ()

    def _switches(self) -> str:
        states = [{name: getattr(module, name, None) for name in ADAPTER_STATE} for module in self.adapters]
        return repr(states) if states else ""

    def _fingerprint(self) -> Tensor:
        checksum = float(crc32((self.kinds + self._switches()).encode()))
        own = [[checksum, checksum, 1.0, torch.finfo(torch.float64).eps]]
        kinds = torch.tensor(own, dtype=torch.float64, device="cpu")
        places = [*self.places, *self.packed]
        rows = [_summary(part) for module, name in places for part in _unpack(getattr(module, name, None))]
        return torch.cat([row.cpu() if not row.is_meta else row for row in rows] + [kinds])


def _unpack(packed: Any) -> Iterator[Tensor]:
    """Plain tensors inside weights: packed ones hand them out as their state, others (torchao) are made of them."""
    if isinstance(packed, Tensor) and hasattr(packed, "__tensor_flatten__"):
        for name in packed.__tensor_flatten__()[0]:
            yield from _unpack(getattr(packed, name))
    elif isinstance(packed, Tensor):
        yield packed.dequantize() if packed.is_quantized else packed
    elif isinstance(packed, torch.ScriptObject):
        yield from _unpack(packed.__getstate__())
    elif isinstance(packed, tuple | list):
        for part in packed:
            yield from _unpack(part)


#: Version of a tensor whose changes torch does not count.
UNCOUNTED = -1


def _version(tensor: Tensor) -> tuple[int, int]:
    if tensor.is_meta:
        return 0, tensor._version
    return tensor.data_ptr(), UNCOUNTED if tensor.is_inference() else tensor._version


def _summary(tensor: Tensor) -> Tensor:
    """Weighted sum, norm, size and relative rounding of a tensor, (1, 4); the weights tell rows and columns apart."""
    exact = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    exact = exact if exact.dtype in SUMMED else exact.double()
    n = max(1, exact.shape[0]) if exact.ndim > 1 else 1
    table = exact.reshape(n, exact.numel() // n)
    total = sum(table.sum(axis, dtype=torch.float64) @ _weights(table.shape[1 - axis], table) for axis in (0, 1))
    norm = torch.linalg.vector_norm(exact, dtype=torch.float64)
    numbers = (norm.new_tensor(float(v)) for v in (exact.numel(), torch.finfo(exact.dtype).eps))
    return torch.stack([0.5 * torch.as_tensor(total), norm, *numbers])[None]


def _weights(n: int, like: Tensor) -> Tensor:
    """Numbers between 0.5 and 1.5 without a pattern (n,), the same on every device."""
    return 0.5 + (torch.arange(n, dtype=torch.float64, device=like.device) * 0.6180339887498949) % 1.0


def _sample(tensors: Sequence[Tensor]) -> list[float]:
    """One number of each of a few tensors that can be read without waiting for another device."""
    near = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.numel()]
    some = [next(_unpack(tensor)) for tensor in near[:: max(1, len(near) // SAMPLE)]]
    return [float(tensor.detach()[tuple(size // 2 for size in tensor.shape)]) for tensor in some]


def _same(new: Tensor, old: Tensor) -> bool:
    if new.shape != old.shape or bool((new[:, 2] != old[:, 2]).any()):
        return False
    eps = torch.maximum(new[:, 3], old[:, 3])
    share = torch.where(new[:, 3] == old[:, 3], ROUNDING, 2.0 * eps)  # a conversion rounds every weight
    norm = torch.maximum(new[:, 1], old[:, 1])
    room = share[:, None] * torch.stack([norm * new[:, 2].sqrt(), norm], dim=1) + torch.finfo(torch.float64).tiny
    same: Tensor = (new[:, :2] - old[:, :2]).abs() <= room
    return bool(same.all())


@dataclass(slots=True)
class Progress:
    """Modules of a model whose forward passes have started, and which of them have ended."""

    model: nn.Module
    started: set[nn.Module] = field(default_factory=set)
    ended: set[nn.Module] = field(default_factory=set)

    def watch(self, layer: nn.Module) -> WeightWatch:
        """Watch what came before a correction: modules that started, and all parts of those that have ended.

        A fused kernel reads the weights of inner modules without running them, and lists of parameters never run.
        """
        before = self.started | {part for module in self.ended for part in module.modules()}
        before |= {part for module in self.started for part in module.children() if isinstance(part, LISTS)}
        before |= {part for module in self.started if isinstance(part := getattr(module, "moments", None), nn.Module)}
        return WeightWatch.of(m for m in self.model.modules() if m in before and m not in set(layer.modules()))


@contextmanager
def follow(model: nn.Module) -> Iterator[Progress]:
    """Note which modules of a model run."""
    own, progress = set(model.modules()), Progress(model)

    def begin(module: nn.Module, _: Any) -> None:
        if module in own:
            progress.started.add(module)

    def end(module: nn.Module, *_: Any) -> None:
        if module in own:
            progress.ended.add(module)

    handles = [register_module_forward_pre_hook(begin), register_module_forward_hook(end)]
    try:
        yield progress
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def watch_frozen(model: nn.Module, corrections: Iterable[Any]) -> Iterator[None]:
    """Watch the weights before each frozen correction that runs and is not watched yet, as after loading."""
    with follow(model) as progress:
        handles = [
            correction.register_forward_pre_hook(
                lambda layer, _: layer.resume(progress.watch(layer)) if layer.is_unwatched else None
            )
            for correction in corrections
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
