"""Outputs of a network's layer at test time, for all rows of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from setsquare import tables
from setsquare.errors import InputError, MissingValuesError
from setsquare.nn.batches import MaskOf, call_with_protected, refuse_lost_mask, refuse_shuffled, split_batch
from setsquare.nn.blinded import Blinded
from setsquare.nn.functional import refuse_ids
from setsquare.nn.hook_checks import find_attention_masks, fit_attention_mask, mask_of_layer
from setsquare.nn.network_layers import call_model, check_layer, choose_tensor, eval_mode, list_layers, takes_protected
from setsquare.nn.row_axes import Rows, read_mask, to_units
from setsquare.nn.unit_axes import LastWeights
from setsquare.tables.validation import check_same_rows


@dataclass
class OutputCollector:
    """Collects the units of a layer, batch by batch; arguments as in :func:`~setsquare.nn.audit_layer`."""

    layer: str
    output: int | str | None
    batch_dim: int
    pool: int | tuple[int, ...] | Callable[[Tensor], Tensor] | None
    max_values: int
    rows: Rows = "samples"
    mask: MaskOf | None = None
    n_calls: int = 0
    n_values: int = 0
    parts: list[np.ndarray[Any, Any]] = field(default_factory=list)
    counts: list[np.ndarray[Any, Any]] = field(default_factory=list)  # positions that count, of each sample
    batch: Any = None
    network: nn.Module = field(default_factory=nn.Identity)
    weights: LastWeights = field(default_factory=LastWeights)

    def __post_init__(self) -> None:
        name, _, number = self.layer.rpartition("#")
        self.name, self.call = (name, int(number)) if name and number.isdecimal() else (self.layer, 1)

    def take(self, out: Any) -> None:
        """Store the output of the layer, if this is the requested call."""
        self.n_calls += 1
        if self.n_calls != self.call:
            return
        y = choose_tensor(self.layer, out, self.output, "audited")
        try:
            y = (y.dequantize() if y.is_quantized else y).movedim(self.batch_dim, 0)
            if self.pool is None:
                self.weights.check(self.layer, y, self.rows)
            y = self.pool(y) if callable(self.pool) else y if self.pool is None else y.mean(self.pool)
            y = y if self.rows == "samples" else self._sum_positions(y)
            y = y[:, None] if y.ndim == 1 else y
        except IndexError as error:
            raise InputError(
                f"Layer {self.layer!r} returns shape {tuple(y.shape)}: choose batch_dim= and pool= to match ({error})."
            ) from None
        self._check(y)
        y = y.to(torch.promote_types(y.dtype, torch.float32), memory_format=torch.contiguous_format)
        self.parts.append(y.numpy(force=True).copy())  # the network may overwrite it in place

    def _sum_positions(self, y: Tensor) -> Tensor:
        """Sums (n, d) over the positions of each sample that count."""
        units = to_units(y, self.rows).double()
        mask = self.own_mask(y) if self.mask is None else self.mask(self.batch)
        kept = read_mask(mask, y, self.rows)
        kept = kept if kept is not None else torch.ones(len(units), dtype=torch.bool, device=y.device)
        self.counts.append(kept.view(len(y), -1).sum(1).numpy(force=True))
        return torch.where(kept[:, None], units, 0.0).view(len(y), -1, units.shape[1]).sum(1)

    def own_mask(self, y: Tensor) -> Tensor | None:
        """Mask of the positions among the inputs of the batch, if there is one."""
        inputs = _inputs(self.batch)
        masks = find_attention_masks(self.network, (), inputs) if isinstance(inputs, Mapping) else {}
        return fit_attention_mask(mask_of_layer(self.network, self.name, masks), y, self.rows)

    def _check(self, y: Tensor) -> None:
        self.n_values += y.numel()
        if self.n_values > self.max_values:
            raise InputError(
                f"Layer {self.layer!r} has {y[0].numel()} units and so more than {self.max_values} values in all rows: "
                "pool= over space or time, pass fewer rows, or increase max_values."
            )
        if self.parts and self.parts[0].shape[1:] != y.shape[1:]:
            raise InputError(
                f"Layer {self.layer!r} returned units of shape {self.parts[0].shape[1:]}, then {tuple(y.shape[1:])}: "
                "pool= over the axis that changes."
            )
        if not bool(torch.isfinite(y).all()):
            raise MissingValuesError(
                f"Layer {self.layer!r} returned missing (NaN) or infinite values in batch {len(self.parts) + 1}: check "
                "the inputs and the weights."
            )

    def units(self) -> np.ndarray[Any, Any]:
        """Units (n, ...) of all samples.

        If positions are rows, this is the mean of a sample, whose distance from the overall mean is multiplied by its
        share of the positions. Its covariance with the protected columns is that of the positions, and unlike these,
        samples are independent.
        """
        units = np.concatenate(self.parts)
        if self.rows == "samples":
            return units
        counts = np.concatenate(self.counts)[:, None]
        mean = units.sum(0) / counts.sum()
        result: np.ndarray[Any, Any] = mean + (units - counts * mean) / counts.mean()
        return result


def collect_outputs(
    model: nn.Module,
    loader: Iterable[Any],
    collector: OutputCollector,
    protected: Any = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> tuple[np.ndarray[Any, Any], Any]:
    """Return the units (n, ...) of a layer and the protected columns of the same rows; sets ``collector.n_calls``."""
    if protected is not None:
        refuse_shuffled(loader)
    collector.network = network = model.model if isinstance(model, Blinded) else model
    check_layer(collector.name, [info.name for info in list_layers(network)])
    forward, columns = forward or partial(_call, joined=protected is not None), []
    hooks = _after_all_hooks(network.get_submodule(collector.name), collector.take)
    with torch.no_grad(), eval_mode(model), collector.weights.following(collector.rows), hooks:
        for number, batch in enumerate(loader, 1):
            collector.n_calls, collector.batch = 0, batch
            forward(model, batch)
            if len(collector.parts) < number:
                raise InputError(
                    f"The network did not run the layer {collector.layer!r} as a module: choose one that it calls (a "
                    "fused kernel may bypass inner modules)."
                )
            if protected is None:
                columns.append(_last(batch))
                _check_rows(collector.layer, len(collector.parts[-1]), len(columns[-1]), "a batch")
    if not collector.parts:
        raise InputError("The loader gave no batches: pass at least one.")
    units = collector.units()
    if protected is None:
        return units, np.concatenate(columns)
    if torch.is_tensor(protected):
        refuse_ids(protected)
        protected = protected.numpy(force=True)
    _check_rows(collector.layer, len(units), tables.n_rows(protected), "the loader")
    return units, protected


def _call(model: nn.Module, batch: Any, joined: bool) -> None:
    """Run a model on the inputs of a batch, and on its protected columns if the model takes them.

    ``joined`` says that the protected columns of all rows are given apart from the batches.
    """
    if takes_protected(model):
        call_with_protected(model, batch)
    else:
        refuse_lost_mask(model, [*batch, None] if joined and isinstance(batch, tuple | list) else batch)
        call_model(model, _inputs(batch))


def _inputs(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name != "protected"}
    return batch[0] if isinstance(batch, tuple | list) else batch


def _last(batch: Any) -> np.ndarray[Any, Any]:
    _, protected = split_batch(batch)
    if not torch.is_tensor(protected):
        return np.asarray(protected)
    refuse_ids(protected)
    return protected.numpy(force=True)


def _check_rows(layer: str, n_units: int, n_protected: int, where: str) -> None:
    check_same_rows(
        f"The output of layer {layer!r} for {where} has",
        n_units,
        "the protected columns have",
        n_protected,
        advice=", or pass batch_dim= if another axis is the batch",
    )


@contextmanager
def _after_all_hooks(module: nn.Module, take: Callable[[Any], None]) -> Iterator[None]:
    """Pass the output of a module to ``take``, after all other hooks, one of which may be a correction."""
    handles: list[RemovableHandle] = []

    def come_last(*_: Any) -> None:
        while len(handles) > 1:
            handles.pop().remove()
        handles.append(module.register_forward_hook(lambda _module, _inputs, out: take(out)))

    handles.append(module.register_forward_pre_hook(come_last))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
