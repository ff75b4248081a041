"""Checks of a layer's fit: columns that do not vary, units that are switched off, rounding of the output."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor, nn

from setsquare.errors import DroppedColumnWarning, InputError, NotOrthogonalError, RoundingWarning
from setsquare.nn.activations import Activation
from setsquare.nn.moments import RunningMoments
from setsquare.tables.validation import refuse_constant_protected

#: Distance between neighbouring numbers at the mean of a unit, relative to its standard deviation, from which the
#: correlation that rounding leaves is measured; and the correlation from which it is warned of.
COARSE, LEFT = 0.05, 0.01


def refuse_no_rows(name: str) -> NoReturn:
    """Refuse a loader without rows."""
    raise InputError(f"The loader gave no rows for layer {name!r}: pass at least one batch.")


def refuse_compiled(model: nn.Module) -> None:
    """Refuse a compiled network, whose passes cannot be followed."""
    if any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in model.modules()):
        raise InputError(
            "The network is compiled, so its layers cannot be fitted: call fit_layer with the network itself, then "
            "compile it, torch.compile(blinded)."
        )


def check_columns(name: str, moments: RunningMoments, stacklevel: int) -> None:
    """Refuse protected columns that are all constant, and warn of some."""
    square = moments.gram.diagonal()[1:]
    varies = square - moments.gram[0, 1:].square() > 100.0 * torch.finfo(square.dtype).eps * square
    if not bool(varies.any()):
        refuse_constant_protected(("the last element of each batch",), f"remove from layer {name!r}")
    constant = (~varies).nonzero()[:, 0].tolist()
    if constant:
        warnings.warn(
            f"Protected column(s) {', '.join(map(str, constant))} (counted from 0) are constant in the rows of the "
            f"loader, so layer {name!r} keeps their effects, on other rows too: pass rows in which they vary, or leave "
            "the columns out.",
            DroppedColumnWarning,
            stacklevel=stacklevel,
        )


def switch_off(name: str, B: Tensor, off: Tensor, units: Tensor, activation: Activation) -> None:
    """Write coefficients to ``B`` (m, d) that make the activations of the units ``off`` constant.

    Far below every pre-activation in ``units`` (n, number off) the activation is constant, on new rows too; one that
    is not, such as a leaky ReLU, is refused.
    """
    B[:, off] = 0.0
    B[0, off] = 100.0 * (1.0 + float(units.abs().max()))
    out = activation.h(units - B[0, off])
    varies = out.amax(0) > out.amin(0)
    if bool(varies.any()):
        raise NotOrthogonalError(
            f"{int(varies.sum())} units of layer {name!r} were not solved, and their activation is not constant for "
            "low inputs, so they cannot be switched off: increase max_passes."
        )


@dataclass(slots=True)
class Rounding:
    """Sums of units over rows, which show whether the numbers of their dtype lie too far apart for a correction."""

    eps: float = 0.0
    n_rows: int = 0
    sums: list[Tensor] = field(default_factory=list)

    def add(self, units: Tensor, dtype: torch.dtype) -> None:
        """Add rows, units (n, d), that came in this dtype."""
        y = units.detach().double()
        first = self.sums[0] if self.sums else y[0]
        apart = y - first
        found = [apart.sum(0), apart.square().sum(0)]
        old = self.sums[1:] or [torch.zeros_like(part) for part in found]
        self.sums = [first, *(new + before for new, before in zip(found, old, strict=True))]
        self.eps, self.n_rows = max(self.eps, torch.finfo(dtype).eps), self.n_rows + len(y)

    @property
    def is_coarse(self) -> bool:
        """Whether a unit that varies is rounded by more than a small share of its standard deviation."""
        if not self.n_rows:
            return False
        first, total, square = self.sums
        mean = total / self.n_rows
        spread = (square / self.n_rows - mean.square()).clamp(min=0.0).sqrt()
        return bool(((spread > 0.0) & (self.eps * (first + mean).abs() > COARSE * spread)).any())


def warn_of_rounding(left: Iterable[tuple[str, float]], stacklevel: int) -> None:
    """Warn of layers whose output is rounded so coarsely that a correlation is left."""
    for name, correlation in left:
        if correlation > LEFT:
            warnings.warn(
                f"The output of layer {name!r} is rounded so coarsely that a correlation of up to {correlation:.2f} "
                "with the protected columns is left on the rows of the loader. Run the layer in a wider dtype, such as "
                "float32, or blind one whose units are centred, such as a normalisation.",
                RoundingWarning,
                stacklevel=stacklevel,
            )
