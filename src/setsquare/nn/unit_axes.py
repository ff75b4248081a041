"""Notice that the units of a layer are on its last axis where ``rows="pixels"`` takes the second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

from setsquare.errors import InputError
from setsquare.nn.row_axes import Rows

#: Attributes of modules of torch, and of others in their manner, that say how many units the output has.
N_UNITS = ("out_features", "out_channels", "embedding_dim", "embed_dim")
#: Modules whose output has its units on the last axis, whatever the sizes of the axes.
LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.MultiheadAttention, nn.LSTM, nn.GRU, nn.RNN)


@dataclass(slots=True)
class LastWeights:
    """The last module with weights of its own that ran: the sizes of these tell units from positions."""

    module: nn.Module | None = None

    def follow(self, rows: Rows) -> list[RemovableHandle]:
        """Look at all modules that run, until the handles are removed, if this kind of rows is to be checked."""
        is_checked = rows == "pixels" and not torch.compiler.is_compiling()
        return [register_module_forward_hook(self._note)] if is_checked else []

    @contextmanager
    def following(self, rows: Rows) -> Iterator[None]:
        """Look at all modules that run inside the context."""
        handles = self.follow(rows)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, module: nn.Module, *_: Any) -> None:
        if n_units(module):
            self.module = module

    def check(self, name: str, y: Tensor, rows: Rows) -> None:
        """Refuse pixels of an output (n, ..., units) whose units are on the last axis."""
        if rows != "pixels" or self.module is None or y.ndim < 3:
            return
        sizes, second, last = n_units(self.module), int(y.shape[1]), int(y.shape[-1])
        # Where both axes have the same size, only the type of the module can tell.
        found = y.ndim == 3 and type(self.module) in LAST if second == last else second not in sizes
        if found and last > 1 and last in sizes:
            raise InputError(
                f"The weights before the output of layer {name!r}, of shape {tuple(y.shape)}, have {last} units, which "
                f'are its last axis, and rows="pixels" would take the second ({second}): pass rows="tokens".'
            )


def n_units(module: nn.Module) -> set[int]:
    """Numbers of units that the weights which a module owns directly give its output; empty if they do not tell.

    Weights with one number per unit tell, such as biases; those of positions and pairs of units do not.

    Examples
    --------
    >>> from torch import nn
    >>> n_units(nn.Linear(3, 4)), n_units(nn.LSTM(3, 5, bidirectional=True)), n_units(nn.ReLU())
    ({4}, {10}, set())
    """
    if isinstance(module, nn.RNNBase):
        return {(module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)}
    named = {size for name in N_UNITS if isinstance(size := getattr(module, name, None), int)}
    if named:
        return named
    shapes = [parameter.shape for parameter in module.parameters(recurse=False)]
    long = [[size for size in shape if size > 1] for shape in shapes]
    return {sizes[0] for sizes in long if len(sizes) == 1}
