"""Notice that weights before a fitted correction changed, which makes the correction stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from setsquare.nn.functional import has_values

#: Values per tensor that are compared.
SAMPLE = 64


@dataclass(slots=True)
class WeightWatch:
    """Fingerprint of parameters and buffers: a few values of each, read again only when torch counted a change."""

    places: list[tuple[nn.Module, str]]
    versions: list[tuple[int, int]] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    moved: bool = False

    @classmethod
    def of(cls, modules: Iterable[nn.Module]) -> Self:
        """Watch the tensors that these modules own directly."""
        places = []
        for module in modules:
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            places += [(module, name) for name, tensor in own if tensor.is_floating_point()]
        watch = cls(places)
        watch.renew()
        return watch

    def renew(self) -> None:
        """Take the present weights as those that the correction was fitted to."""
        tensors = self._tensors()
        self.versions, self.values, self.moved = [_version(t) for t in tensors], [_sample(t) for t in tensors], False

    def has_moved(self) -> bool:
        """Return whether a watched tensor has other values than at the start; conversions of the dtype do not count.

        Inside a transform of ``torch.func``, and on the meta device, tensors have no values to compare.
        """
        tensors = self._tensors()
        if not has_values(*tensors):
            return self.moved
        versions = [_version(tensor) for tensor in tensors]
        if not self.moved and versions != self.versions:
            self.versions = versions
            self.moved = not all(map(_same, map(_sample, tensors), self.values))
        return self.moved

    def _tensors(self) -> list[Tensor]:
        return [getattr(module, name) for module, name in self.places]


def _version(tensor: Tensor) -> tuple[int, int]:
    if tensor.is_meta:
        return 0, tensor._version
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE].clone()


def _same(new: Tensor, old: Tensor) -> bool:
    if new.shape != old.shape:
        return False
    if new.dtype == old.dtype:
        return bool(torch.equal(new.to(old.device), old))
    eps = 2.0 * max(torch.finfo(new.dtype).eps, torch.finfo(old.dtype).eps)
    return bool(torch.allclose(new.double().cpu(), old.double().cpu(), rtol=eps, atol=1e-7))


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
    """Watch the weights before each frozen correction that runs and is not watched yet."""
    with started_modules(model) as started:
        handles = [
            correction.register_forward_pre_hook(
                lambda layer, _: layer.freeze(watch_before(layer, started)) if layer.is_unwatched else None
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
