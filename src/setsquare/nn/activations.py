"""Activation functions for tensors: the torch counterpart of :mod:`setsquare.families.activations`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from setsquare.errors import InputError
from setsquare.families.activations import GELU_LOWEST, LEAK
from setsquare.families.custom_activation import NODES, WEIGHTS, check_increasing


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
    "leaky_relu": Activation(
        lambda u: 0.5 * u * F.leaky_relu(u, LEAK),
        lambda u: F.leaky_relu(u, LEAK),
        lambda u: torch.full_like(u, LEAK).masked_fill(u > 0.0, 1.0),
    ),
    "softplus": Activation(
        lambda u: _softplus_antiderivative(u), lambda u: torch.logaddexp(u, u.new_zeros(())), torch.sigmoid
    ),
    "elu": Activation(
        lambda u: torch.where(u > 0.0, 0.5 * u.square(), torch.expm1(u.clamp(max=0.0)) - u.clamp(max=0.0)),
        F.elu,
        lambda u: u.clamp(max=0.0).exp(),
    ),
    "gelu": Activation(
        lambda u: torch.where(u > GELU_LOWEST, 0.5 * ((u.square() - 1.0) * _share(u) + u * _density(u)), torch.inf),
        F.gelu,
        lambda u: _share(u) + u * _density(u),
    ),
}


def _share(u: Tensor) -> Tensor:
    share: Tensor = torch.special.ndtr(u)
    return share


def _density(u: Tensor) -> Tensor:
    density: Tensor = torch.exp(-0.5 * u.square()) / (2.0 * torch.pi) ** 0.5
    return density


def _softplus_antiderivative(u: Tensor) -> Tensor:
    """``-Li2(-e^u)``, by quadrature of its smooth part ``log(1 + x t) / t`` and reflection."""
    x = torch.exp(-u.abs())
    tail = torch.zeros_like(u)
    for t, w in zip(NODES.tolist(), WEIGHTS.tolist(), strict=True):
        tail += (w / t) * torch.log1p(x * t)
    return torch.where(u > 0.0, 0.5 * u.square() + torch.pi**2 / 6.0 - tail, tail)


def _integral(h: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Antiderivative from 0 by quadrature."""

    def H(u: Tensor) -> Tensor:
        total = torch.zeros_like(u)
        for t, w in zip(NODES.tolist(), WEIGHTS.tolist(), strict=True):
            total += w * h(t * u)
        return u * total

    return H


def register_activation(
    name: str,
    h: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    antiderivative: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Make an increasing activation known to layers and to the generalised projection under a name.

    Parameters
    ----------
    name : str
    h, slope : callable
        The function and its derivative, elementwise on tensors. A function that decreases anywhere on [-30, 30] is
        refused, and so is a slope that is not its derivative.
    antiderivative : callable, optional
        By default computed by quadrature.

    Examples
    --------
    >>> import torch
    >>> from setsquare.nn.functional import generalized_project_out
    >>> leaky = lambda u: torch.where(u > 0, u, 0.2 * u)
    >>> register_activation("leaky 0.2", leaky, lambda u: torch.where(u > 0, 1.0, 0.2))
    >>> pre, x = torch.tensor([-1.0, 1.0, 0.0, 3.0]).double(), torch.tensor([0.0, 0.0, 1.0, 1.0]).double()
    >>> out = ACTIVATIONS["leaky 0.2"].h(generalized_project_out(pre, x, "leaky 0.2"))
    >>> bool((out[:2].mean() - out[2:].mean()).abs() < 1e-9)
    True
    """
    if name in BUILT_IN:
        raise InputError(f"The name {name!r} belongs to an activation of the library: choose another one.")

    def on_arrays(function: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda u: function(torch.from_numpy(np.array(u))).double().numpy()

    check_increasing(name, on_arrays(h), on_arrays(slope))
    ACTIVATIONS[name] = Activation(antiderivative or _integral(h), h, lambda u: slope(u).to(u.dtype))


#: Names that cannot be given to other functions.
BUILT_IN = frozenset(ACTIVATIONS)


def refuse_decreasing(name: str, pre: Tensor) -> None:
    """Refuse pre-activations at which GELU decreases."""
    if name == "gelu" and pre.numel() and float(pre.detach().min()) <= GELU_LOWEST:
        raise InputError(
            f"GELU decreases below {GELU_LOWEST:.4f}, and the pre-activations go down to "
            f'{float(pre.detach().min()):.3g}: correct its output linearly (where="post").'
        )
