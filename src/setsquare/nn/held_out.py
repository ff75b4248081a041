"""Whether a correction that was fitted on some rows holds on rows that the network was not trained on.

The layers of an overfitted network depend on the protected columns differently on its training rows. A correction
learned there is exact there, and leaves a correlation on held-out rows that is larger than the sampling error of both.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from setsquare._typing import Array
from setsquare.errors import InputError, TrainingRowsWarning
from setsquare.nn.activations import ACTIVATIONS
from setsquare.nn.layer import Orthogonalize
from setsquare.nn.network_layers import eval_mode

#: Probability of a false warning, over all units and protected columns.
FALSE_WARNINGS = 0.01


@dataclass(slots=True)
class Sums:
    """Sums over rows of units and protected columns, from which their correlations follow.

    They are sums of distances from the first row, so that no digits are lost far from zero.
    """

    n_rows: int = 0
    parts: list[Tensor] = field(default_factory=list)
    first: tuple[Tensor, Tensor] | None = None

    def add(self, units: Tensor, X: Tensor) -> None:
        """Add rows, units (n, d) and protected columns (n, p)."""
        a, x = units.detach().double(), X.double()
        self.first = (a[0], x[0]) if self.first is None else self.first
        a, x = a - self.first[0], x - self.first[1]
        found = [a.sum(0), x.sum(0), a.square().sum(0), x.square().sum(0), x.T @ a]
        self.parts = found if not self.n_rows else [old + new for old, new in zip(self.parts, found, strict=True)]
        self.n_rows += len(a)

    def correlations(self) -> Tensor:
        """Correlations (p, d); zero for constant units and columns."""
        a, x, aa, xx, xa = (part / self.n_rows for part in self.parts)
        va, vx = aa - a.square(), xx - x.square()
        size = torch.outer(vx.clamp(min=0.0).sqrt(), va.clamp(min=0.0).sqrt())
        varies = torch.outer(vx > 1e-12 * xx, va > 1e-12 * aa)
        return torch.where(varies, (xa - torch.outer(x, a)) / torch.where(varies, size, 1.0), 0.0)


def chance(n_fitted: int, n_held_out: int, n_tests: int) -> float:
    """Largest correlation on held-out rows that sampling error explains, with that of the rows of the fit.

    Examples
    --------
    >>> round(chance(1000, 1000, 1), 3)
    0.115
    """
    z = float(special.ndtri(1.0 - 0.5 * FALSE_WARNINGS / n_tests))
    return z * math.sqrt(1.0 / n_fitted + 1.0 / n_held_out)


def layers_on(
    model: nn.Module, names: Iterable[str], loader: Iterable[Any], forward: Callable[[nn.Module, Any], Any]
) -> dict[str, Sums]:
    """Sums of the corrected activations of each layer and the protected columns over the rows of a loader."""
    layers = {name: layer for name in names if isinstance(layer := model.get_submodule(name), Orthogonalize)}
    found = {name: Sums() for name in layers}

    def look(layer: Orthogonalize, sums: Sums) -> Callable[[Tensor, Tensor | None, Tensor | None], Tensor]:
        def override(y: Tensor, protected: Tensor | None, mask: Tensor | None) -> Tensor:
            inside, layer.override = layer.override, None
            try:
                out: Tensor = layer(y, protected, mask)
            finally:
                layer.override = inside
            if len(out):
                units, X = layer.select(out, protected, mask)
                is_before = layer.where == "generalized" and layer.activation is not None
                sums.add(ACTIVATIONS[str(layer.activation)].h(units) if is_before else units, X)
            return out

        return override

    try:
        for name, layer in layers.items():
            layer.override = look(layer, found[name])
        with torch.no_grad(), eval_mode(model):
            for batch in loader:
                forward(model, batch)
    finally:
        for layer in layers.values():
            layer.override = None
    if any(not sums.n_rows for sums in found.values()):
        raise InputError("The held-out loader gave no rows: pass at least one batch.")
    return found


def warn_if_left(what: str, correlations: Any, n_fitted: int, n_held_out: int, advice: str) -> float:
    """Largest absolute correlation on held-out rows; warn if it exceeds what sampling error explains."""
    values: Array = np.abs(np.asarray(correlations, dtype=np.float64))
    left, limit = float(values.max(initial=0.0)), chance(n_fitted, n_held_out, max(values.size, 1))
    if left > limit:
        warnings.warn(
            f"On {n_held_out} held-out rows {what} has a correlation of up to {left:.2f} with the protected columns, "
            f"more than chance ({limit:.2f}): {advice}",
            TrainingRowsWarning,
            stacklevel=4,
        )
    return left
