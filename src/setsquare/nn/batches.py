"""Batches of a loader: inputs, protected columns and mask of each, kept in memory for further passes if they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from setsquare.errors import InputError
from setsquare.nn.network_layers import call_model, has_parameter

#: Samplers that change the order of the rows in each pass.
SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
#: Function of a batch that returns the mask of its positions, (n, positions).
MaskOf = Callable[[Any], Any]


def check_mask_of(mask: Any) -> None:
    """Refuse a mask that is not a function of a batch, such as the name or the values of one."""
    if mask is not None and not callable(mask):
        given = repr(mask) if isinstance(mask, str) else f"a {type(mask).__name__}"
        example = f'lambda batch: batch[0]["{mask}"]' if isinstance(mask, str) else "lambda batch: batch[1]"
        raise InputError(
            f"mask must be a function of a batch that returns the positions that count, such as {example}, not {given}."
        )


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return inputs and protected columns of ``(inputs, ..., protected)``, or of a dict with the key "protected".

    In ``(inputs, values)``, numbers of shape (n,) are refused: they may be the outcome.
    """
    if isinstance(batch, Mapping) and "protected" in batch:
        return {name: value for name, value in batch.items() if name != "protected"}, batch["protected"]
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise InputError(
            "A batch must be (inputs, ..., protected), or a dict with the key 'protected': for another format, pass "
            "forward= to call the model, or pass the columns of all rows as protected=."
        )
    values = batch[-1]
    is_number = isinstance(values, Tensor) or np.asarray(values).dtype.kind in "biuf"
    if len(batch) == 2 and is_number and np.ndim(values) == 1:
        raise InputError(
            f"The batches are (inputs, values) with values of shape ({len(values)},), which may be the outcome: "
            "pass protected columns as (inputs, outcome, protected), or with shape (n, 1)."
        )
    return batch[0], values


def call_with_protected(model: nn.Module, batch: Any, mask: MaskOf | None = None) -> None:
    """Run a model on a batch: ``model(inputs, protected=protected)``."""
    inputs, protected = split_batch(batch)
    refuse_lost_mask(model, batch)
    call_model(model, inputs, protected=protected, **({} if mask is None else {"mask": mask(batch)}))


def refuse_lost_mask(model: nn.Module, batch: Any) -> None:
    """Refuse ``(input_ids, attention_mask, ..., protected)``: only the first element is passed to the network."""
    if not isinstance(batch, tuple | list) or len(batch) < 3 or not isinstance(batch[0], Tensor):
        return
    own = [part for part in batch[1:-1] if isinstance(part, Tensor) and part.shape == batch[0].shape and part.ndim == 2]
    if any(bool((part == 0).any()) and bool(((part == 0) | (part == 1)).all()) for part in own) and any(
        has_parameter(module, "attention_mask") for module in model.modules()
    ):
        raise InputError(
            "The batches have an element of zeros and ones in the shape of the inputs, which may be the "
            "attention_mask, and only the first element is passed to the network, so padding would count: pass "
            "({'input_ids': ..., 'attention_mask': ...}, ..., protected), or forward=."
        )


@dataclass(frozen=True, slots=True)
class JoinedBatches:
    """Batches ``(inputs, ..., protected)`` of a loader and the protected columns of all its rows, in its order."""

    loader: Iterable[Any]
    protected: Any

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        start, total = 0, len(self.protected)
        for batch in self.loader:
            inputs, *others = batch if isinstance(batch, tuple | list) else [batch]
            several = inputs.values() if isinstance(inputs, Mapping) else inputs
            end = start + len(inputs if isinstance(inputs, Tensor | np.ndarray) else next(iter(several)))
            if end <= total:
                yield inputs, *(others or [None]), self.protected[start:end]
            start = end
        if start != total:
            raise InputError(
                f"The loader gave {start} rows and protected has {total}: pass the columns of the same rows."
            )


def refuse_shuffled(loader: Any, what: str = "protected") -> None:
    """Refuse a loader that changes the order of the rows where they must be matched with columns of all rows."""
    batches = getattr(loader, "batch_sampler", None)
    samplers = [getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]
    if any(isinstance(s, SHUFFLING) or (isinstance(s, DistributedSampler) and s.shuffle) for s in samplers):
        instead = ", or pass the protected columns as the last element of each batch" if what == "protected" else ""
        raise InputError(
            f"The loader shuffles its rows, so they cannot be matched with {what}: use shuffle=False{instead}."
        )


@dataclass(slots=True)
class KeptBatches:
    """The batches of a loader, which is read once if they take at most ``max_bytes``, otherwise once per pass."""

    loader: Iterable[Any]
    max_bytes: float
    reading: Iterator[Any] | None = None
    begun: list[Any] = field(default_factory=list)
    kept: list[Any] | None = None
    seen: set[int] = field(default_factory=set)
    n_readings: int = 0

    def first(self) -> Any:
        """Return the first batch; the next pass begins with it."""
        if isinstance(self.loader, list | tuple):
            self.kept = list(self.loader)
        source = self.kept if self.kept is not None else self._read()
        for batch in source:
            if self.kept is None:
                self.begun, self.reading = [batch], source  # type: ignore[assignment]
            return batch
        raise InputError("The loader gave no batch: pass at least one.")

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.loader, list | tuple) or self.kept is not None:
            yield from self.loader if self.kept is None else self.kept
            return
        kept: list[Any] | None = []
        room, begun, reading = self.max_bytes, self.begun, self.reading
        self.begun, self.reading = [], None
        for batch in chain(begun, self._read() if reading is None else reading):
            if kept is not None:
                room -= self._bytes(batch)
                kept.append(batch)
                kept = kept if room >= 0 else None
            yield batch
        self.kept = kept
        self.seen.clear()

    def _read(self) -> Iterator[Any]:
        if self.n_readings and isinstance(self.loader, Iterator):
            raise InputError(
                "An iterator can be read only once: pass a DataLoader as the loader, or increase max_bytes."
            )
        self.n_readings += 1
        return iter(self.loader)

    def _bytes(self, part: Any) -> float:
        """Size of a batch; infinite if it cannot be kept, such as where a loader fills the same memory again."""
        if isinstance(part, Tensor):
            pointer = part.data_ptr()
            again = pointer in self.seen and part.numel() > 0
            self.seen.add(pointer)
            return float("inf") if again else float(part.numel() * part.element_size())
        if isinstance(part, np.ndarray):
            return float(part.nbytes)
        if isinstance(part, Mapping):
            return sum(self._bytes(value) for value in part.values())
        if isinstance(part, tuple | list):
            return sum(self._bytes(value) for value in part)
        return 64.0 if part is None or isinstance(part, str | int | float) else float("inf")
