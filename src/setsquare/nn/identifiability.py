"""Post-hoc orthogonalisation for identifiability in torch; see :func:`setsquare.projection.pho`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from setsquare.errors import InputError


class IdentifiedHead(NamedTuple):
    """Intercept (), effects of the structured columns (p,), and the flexible part (n,) that is left."""

    intercept: Tensor
    coef: Tensor
    flexible: Tensor


def pho(
    structured: Tensor,
    flexible: Tensor,
    coef: Tensor | None = None,
    intercept: float | Tensor = 0.0,
    *,
    sample_weight: Tensor | None = None,
) -> IdentifiedHead:
    """Give the part of a network's output that is linear in structured columns to their effects.

    The predictions ``intercept + structured @ coef + flexible`` stay as they are, and ``coef`` becomes what a
    regression gives. Computed in double precision; gradients flow through it, so it can be part of a network.

    Parameters
    ----------
    structured : Tensor of shape (n, p)
        Columns without a constant, of full rank.
    flexible : Tensor of shape (n,)
        What the network adds to the linear predictor.
    coef : Tensor of shape (p,), optional
        Effects before; zero by default.
    intercept : float or Tensor
    sample_weight : Tensor of shape (n,), optional

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> found = pho(X, 2.0 * X[:, 0] + torch.tensor([1.0, -1.0, -1.0, 1.0]), torch.tensor([0.5]))
    >>> found.coef, found.flexible.round(decimals=4)
    (tensor([2.5000]), tensor([ 1., -1., -1.,  1.]))
    """
    X, u = structured.double(), flexible.double()
    if X.ndim != 2 or u.shape != (len(X),):
        raise InputError(
            f"The structured tensor has the shape {tuple(X.shape)} and the flexible part {tuple(u.shape)}: pass "
            "(n, p) and (n,)."
        )
    D = torch.cat([torch.ones_like(X[:, :1]), X], 1)
    root = torch.ones_like(u) if sample_weight is None else sample_weight.double().sqrt()
    Q, R = torch.linalg.qr(root[:, None] * D)
    moved = torch.linalg.solve_triangular(R, (Q.T @ (root * u))[:, None], upper=True)[:, 0]
    before = X.new_zeros(X.shape[1]) if coef is None else coef.double()
    kind = flexible.dtype
    first = torch.as_tensor(intercept, dtype=torch.float64) + moved[0]
    return IdentifiedHead(first.to(kind), (before + moved[1:]).to(kind), (u - D @ moved).to(kind))
