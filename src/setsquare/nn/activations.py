"""Activation functions for tensors: the torch counterpart of :mod:`setsquare.families.activations`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Activation(NamedTuple):
    """An increasing function ``h``, its antiderivative ``H`` and its slope."""

    H: Callable[[Tensor], Tensor]
    h: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]

    def terms(self, u: Tensor, spare: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what a Newton step needs; ``u`` and ``spare`` may be overwritten.

        These are the column sums of ``H(u)`` and ``h(u)²``, both (d,), and ``h(u)`` and ``h'(u)``, both (n, d).
        """
        if self.h is torch.relu:
            out = u.relu_()
            square = torch.mul(out, out, out=spare).sum(0)
            return 0.5 * square, square, out, torch.sign(out, out=spare)
        out = self.h(u)
        return self.H(u).sum(0), torch.mul(out, out, out=spare).sum(0), out, self.slope(u)

    def times_slope(self, g: Tensor, u: Tensor, out: Tensor) -> Tensor:
        """Write ``g h'(u)`` to ``out``, which may be ``g`` or ``u`` itself."""
        if self.h is torch.relu:
            torch.ops.aten.threshold_backward.grad_input(g, u, 0.0, grad_input=out)
            return out
        return torch.mul(g, self.slope(u), out=out)


ACTIVATIONS = {
    "identity": Activation(lambda u: 0.5 * u.square(), lambda u: u, torch.ones_like),
    "relu": Activation(lambda u: 0.5 * u.relu().square(), torch.relu, lambda u: (u > 0.0).to(u.dtype)),
    # Products of two sigmoids: 1 - h² would lose all digits to cancellation where h is close to 1.
    "sigmoid": Activation(lambda u: -F.logsigmoid(-u), torch.sigmoid, lambda u: torch.sigmoid(u) * torch.sigmoid(-u)),
    "tanh": Activation(
        lambda u: -u - F.logsigmoid(-2.0 * u),
        torch.tanh,
        lambda u: 4.0 * torch.sigmoid(2.0 * u) * torch.sigmoid(-2.0 * u),
    ),
    "exp": Activation(torch.exp, torch.exp, torch.exp),
}
