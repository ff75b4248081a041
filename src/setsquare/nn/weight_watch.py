"""Notice that weights before a fitted correction changed, which makes the correction stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from setsquare.nn.functional import has_values

#: Change of a sum of weights, relative to their size, that is rounding error of the sum itself.
ROUNDING = 1e-13


@dataclass(slots=True)
class WeightWatch:
    """Fingerprint of parameters and buffers: sum and norm of each, taken again only when torch counted a change.

    Attributes
    ----------
    places : list of (Module, str)
        Where the tensors are.
    parts : list of (Module, str, Module)
        Modules inside others: one that is replaced, as by an adapter, changes the network without changing a tensor.
    """

    places: list[tuple[nn.Module, str]]
    parts: list[tuple[nn.Module, str, nn.Module]]
    versions: list[tuple[int, int]] = field(default_factory=list)
    values: Tensor = field(default_factory=lambda: torch.zeros(0, 4, dtype=torch.float64))
    moved: bool = False

    @classmethod
    def of(cls, modules: Iterable[nn.Module]) -> Self:
        """Watch the tensors that these modules own directly."""
        own = dict.fromkeys(modules)
        places, parts = [], []
        for module in own:
            tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            places += [(module, name) for name, _ in tensors]
            parts += [(module, name, child) for name, child in module.named_children() if child in own]
        watch = cls(places, parts)
        watch.renew()
        return watch

    def renew(self) -> None:
        """Take the present weights as those that the correction was fitted to."""
        tensors = [getattr(module, name) for module, name in self.places]
        self.versions, self.values, self.moved = [_version(t) for t in tensors], _fingerprint(tensors), False

    def has_moved(self) -> bool:
        """Return whether a watched tensor has other values than at the start; conversions of the dtype do not count.

        Inside a transform of ``torch.func``, and on the meta device, tensors have no values to compare.
        """
        if self.moved or any(module._modules.get(name) is not child for module, name, child in self.parts):
            self.moved = True
            return True
        tensors: list[Tensor] = [getattr(module, name) for module, name in self.places if hasattr(module, name)]
        if len(tensors) < len(self.places):
            self.moved = True
        elif has_values(*tensors):
            versions = [_version(tensor) for tensor in tensors]
            if versions != self.versions or any(version == UNCOUNTED for _, version in versions):
                self.versions = versions
                self.compare(self.values)
        return self.moved

    def compare(self, values: Tensor) -> None:
        """Note whether the weights have another fingerprint than these values (k, 4)."""
        now = _fingerprint([getattr(module, name) for module, name in self.places])
        self.moved = self.moved or not _same(now, values)


#: Version of a tensor whose changes torch does not count.
UNCOUNTED = -1


def _version(tensor: Tensor) -> tuple[int, int]:
    if tensor.is_meta:
        return 0, tensor._version
    return tensor.data_ptr(), UNCOUNTED if tensor.is_inference() else tensor._version


def _fingerprint(tensors: Sequence[Tensor]) -> Tensor:
    """Sum, norm, size and relative rounding of each tensor, (k, 4)."""
    rows = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        flat = flat.float() if flat.dtype == torch.bool else flat
        exact = flat.double() if not flat.is_floating_point() else flat
        eps = torch.finfo(exact.dtype).eps
        total, norm = exact.sum(dtype=torch.float64), torch.linalg.vector_norm(exact, dtype=torch.float64)
        rows.append(torch.stack([total, norm, *(total.new_tensor(float(v)) for v in (len(flat), eps))]))
    return torch.stack([row.cpu() if not row.is_meta else row for row in rows]) if rows else torch.zeros(0, 4).double()


def _same(new: Tensor, old: Tensor) -> bool:
    if new.shape != old.shape or bool((new[:, 2] != old[:, 2]).any()):
        return False
    eps = torch.maximum(new[:, 3], old[:, 3])
    share = torch.where(new[:, 3] == old[:, 3], ROUNDING, 2.0 * eps)  # a conversion rounds every weight
    norm = torch.maximum(new[:, 1], old[:, 1])
    room = share[:, None] * torch.stack([norm * new[:, 2].sqrt(), norm], dim=1) + torch.finfo(torch.float64).tiny
    same: Tensor = (new[:, :2] - old[:, :2]).abs() <= room
    return bool(same.all())


@contextmanager
def started_modules(model: nn.Module) -> Iterator[dict[nn.Module, None]]:
    """Collect the modules of a model in the order in which their forward passes start."""
    own, started = set(model.modules()), dict[nn.Module, None]()

    def note(module: nn.Module, _: Any) -> None:
        if module in own:
            started[module] = None

    handle = register_module_forward_pre_hook(note)
    try:
        yield started
    finally:
        handle.remove()


@contextmanager
def watch_frozen(model: nn.Module, corrections: Iterable[Any]) -> Iterator[None]:
    """Watch the weights before each frozen correction that runs and is not watched yet, as after loading."""
    with started_modules(model) as started:
        handles = [
            correction.register_forward_pre_hook(
                lambda layer, _: layer.resume(watch_before(layer, started)) if layer.is_unwatched else None
            )
            for correction in corrections
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def watch_before(layer: nn.Module, started: Iterable[nn.Module]) -> WeightWatch:
    """Watch the modules that started before a correction, with the moments of earlier corrections."""
    before = [module for module in started if module is not layer]
    moments = [part for module in before if isinstance(part := getattr(module, "moments", None), nn.Module)]
    return WeightWatch.of([*before, *moments])
