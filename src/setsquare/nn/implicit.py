"""Generalised projection of many units at once, with its derivative by the implicit function theorem.

Each of the d units has a convex problem in the m unknowns ``B``, the unit's shift and its effects of the design ``D``:

    share * mean_i H(eta_i - D_i B)  +  B'K B / 2 - c'B  +  target * centre'B

With ``share = 1`` and no more its minimum makes ``h(eta - DB)`` uncorrelated with the design and keeps its mean. The
quadratic terms are what earlier batches left behind: a layer that sees few rows at a time solves for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from setsquare.nn.activations import ACTIVATIONS, Activation

#: Sums over rows go block by block of so many numbers: what stays in the cache costs least.
BLOCK = 2**18
#: A Newton step is at most this many times as long as the output is large.
FAR = 10.0


@dataclass(frozen=True, slots=True)
class Prior:
    """What the problem knows besides the rows at hand.

    Attributes
    ----------
    share : float, or Tensor of shape () or (1,)
        Weight of the rows at hand.
    centre : Tensor of shape (m,)
        Mean of the design.
    target : Tensor of shape (d,)
        Mean that the output keeps.
    scale : Tensor of shape (m,)
        Standard deviation of each column of the design; of the intercept, one.
    K : Tensor of shape (m, m, d), optional
    c : Tensor of shape (m, d), optional
        Nothing, where the rows at hand are all.
    """

    share: Tensor | float
    centre: Tensor
    target: Tensor
    scale: Tensor
    K: Tensor | None = None
    c: Tensor | None = None


class Sums(NamedTuple):
    """Means over the rows at some ``B``, and the problem that they make.

    ``out`` (m, d) is the mean product of design and output, ``curvature`` (m(m+1)/2, d) that of the design with itself
    and the slopes. ``value``, ``gap`` (the largest covariance), ``spread`` and ``size`` (standard deviation and root
    mean square of the output) and ``magnitude`` (of the terms of the value) are (d,), ``gradient`` is (m, d).
    """

    out: Tensor
    curvature: Tensor
    value: Tensor
    gradient: Tensor
    gap: Tensor
    spread: Tensor
    size: Tensor
    magnitude: Tensor


class Minimum(NamedTuple):
    """Solution (m, d), the sums at the start and there, and whether each unit (d,) is within the tolerance."""

    B: Tensor
    first: Sums
    last: Sums
    residual: Tensor
    converged: Tensor


def row_sums(eta: Tensor, D: Tensor, B: Tensor, h: Activation) -> Tensor:
    """Everything that is a sum over rows, stacked: (2 + m + m(m+1)/2, d), in the precision of ``B``.

    Sums of ``H(u)``, ``h(u)²``, of the design with ``h(u)``, and of its products with ``h'(u)``.
    """
    (n, d), m = eta.shape, D.shape[1]
    k = n if torch.compiler.is_compiling() else min(n, -(-BLOCK // d))
    total = eta.new_zeros(2 + m + m * (m + 1) // 2, d)
    memory = eta.new_empty(2, k, d)
    beta, P = B.to(eta.dtype), products(D)
    for start in range(0, n, k):
        rows = slice(start, start + k)
        u, spare = memory[:, : len(eta[rows])]
        terms = h.terms(torch.addmm(eta[rows], D[rows], beta, alpha=-1.0, out=u), spare)
        total[0] += terms.value
        total[1] += terms.square
        total[2 : 2 + m].addmm_(D[rows].T, terms.out)
        total[2 + m :].addmm_(P[rows].T, terms.slope)
    return total.to(B.dtype)


def products(D: Tensor) -> Tensor:
    """Products of each two columns, (n, m(m+1)/2): weighted sums of them are the upper triangles of Gram matrices."""
    m = D.shape[1]
    return torch.cat([D[:, i:] * D[:, i : i + 1] for i in range(m)], dim=1)


def unpack(upper: Tensor) -> Tensor:
    """Symmetric matrices (m, m, d) from their upper triangles (m(m+1)/2, d)."""
    m = int((2 * len(upper)) ** 0.5)
    pairs = [(min(i, j), max(i, j)) for i in range(m) for j in range(m)]
    index = [i * (2 * m - i + 1) // 2 + j - i for i, j in pairs]
    return upper.index_select(0, torch.tensor(index, device=upper.device)).view(m, m, -1)


def assemble(total: Tensor, rows: Tensor | float, B: Tensor, prior: Prior) -> Sums:
    """Sums and problem at ``B`` from the stacked sums over ``rows`` rows."""
    m, share = len(B), prior.share
    mean = total / rows
    integral, square, out, curvature = mean[0], mean[1], mean[2 : 2 + m], mean[2 + m :]
    pull = prior.target * (prior.centre @ B)
    value = share * integral + pull
    magnitude = share * integral.abs() + pull.abs()
    gradient = prior.centre[:, None] * prior.target - share * out
    if prior.K is not None and prior.c is not None:
        pulled = (prior.K * B).sum(1)
        quadratic = ((0.5 * pulled - prior.c) * B).sum(0)
        value, magnitude = value + quadratic, magnitude + quadratic.abs()
        gradient = gradient + pulled - prior.c
    gap = (gradient / prior.scale[:, None]).abs().amax(0)
    spread = (square - out[0].square()).clamp_min(0.0).sqrt()
    return Sums(out, curvature, value, gradient, gap, spread, square.sqrt(), magnitude)


def solve_units(A: Tensor, b: Tensor, drop: float = 0.0) -> Tensor:
    """Solve d positive semi-definite systems ``A`` (m, m, d) by elimination; a flat direction gets no part.

    A direction is flat when elimination leaves no more than ``drop`` of its diagonal. All units take each of the m
    steps together, which for small m is faster than a factorisation a unit, on any device.
    """
    limit = drop * A.diagonal().T
    system = torch.cat([A, b[:, None]], dim=1)
    rows = []
    for k in range(len(b)):
        pivot = system[0, 0]
        row = system[0, 1:] * torch.where(pivot > limit[k], pivot, torch.inf).reciprocal()
        system = torch.addcmul(system[1:, 1:], system[1:, :1], row, value=-1.0)
        rows.append(row)
    x = rows[-1]
    for row in rows[-2::-1]:
        x = torch.cat([row[-1:] - (row[:-1] * x).sum(0, keepdim=True), x])
    return x


def minimise(
    sums: Callable[[Tensor], Sums],
    B: Tensor,
    prior: Prior,
    *,
    eps: float,
    tolerance: float,
    aim: float,
    max_iter: int,
    stragglers: float = 0.0,
    noise: Callable[[], float] | None = None,
) -> Minimum:
    """Minimise by Newton steps from ``B`` (m, d), damped as Levenberg and Marquardt do where one fails.

    A unit stops at the residual ``aim`` (a correlation), or below ``tolerance`` when steps no longer halve it.
    ``eps`` is the rounding of the sums, and ``noise()`` that of what is summed, where it is not the same each time. All
    stop when at most a share ``stragglers`` of them is left; compiled, after ``max_iter`` steps, because then no branch
    may depend on data.
    """
    rounding, tiny = 50.0 * eps, torch.finfo(B.dtype).tiny
    first = state = sums(B)
    damping, residual = torch.zeros_like(state.gap), torch.full_like(state.gap, torch.inf)
    finished = torch.zeros_like(state.gap, dtype=torch.bool)
    for n_iter in range(max_iter + 1):
        flat = state.spread <= 100.0 * rounding * state.size
        left = state.gap / torch.where(flat, state.size.clamp_min(tiny), state.spread)
        left = torch.where(torch.isfinite(state.size), left, torch.inf)  # squares that overflow show nothing
        reached = (left <= tolerance) | ((state.gap <= rounding * state.size) & torch.isfinite(left))
        idle = (damping == 0.0) & (left >= 0.5 * residual)
        finished = finished | (left <= aim) | (reached & idle)
        residual = left
        if n_iter == max_iter or (
            not torch.compiler.is_compiling() and int((~finished).sum()) <= stragglers * len(finished)
        ):
            break
        A = unpack(state.curvature)
        A = A if prior.K is None else prior.share * A + prior.K
        diagonal = A.diagonal()
        reach = state.magnitude / torch.maximum(state.size, prior.target.abs()).clamp_min(tiny)
        steepness = state.gradient.square().sum(0).sqrt()
        # The last term bounds the step where next to nothing is curved, and vanishes with the gradient.
        diagonal.add_(
            (4.0 * eps * diagonal.sum(1) + tiny + damping + steepness / (FAR * reach).clamp_min(tiny))[:, None]
        )
        step = -solve_units(A, state.gradient)
        step = torch.where(finished, 0.0, step)
        trial = sums(B + step)
        fell = trial.value <= state.value + 1e-4 * (state.gradient * step).sum(0)
        hidden = (trial.value - state.value).abs() <= 500.0 * (eps if noise is None else noise()) * state.magnitude
        better = fell | (hidden & (trial.gap <= torch.maximum(0.9 * state.gap, rounding * state.size)))
        better = better & ~finished
        length = torch.minimum(step.square().sum(0).sqrt(), reach)
        least = steepness / length.clamp_min(tiny)
        eased = torch.where(damping > 1e-3 * least, damping / 8.0, 0.0)
        damping = torch.where(better, eased, torch.maximum(4.0 * damping, least))
        B = torch.where(better, B + step, B)
        state = Sums(*(torch.where(better, new, old) for new, old in zip(trial, state, strict=True)))
    return Minimum(B, first, state, residual, reached)


class ImplicitCorrection(torch.autograd.Function):
    """``eta - DB`` (n, d) and ``B`` as functions of ``eta``, differentiated at the solution, not through the steps.

    With ``s = h'(eta - DB)``, ``s0 = h'(eta)`` and the Hessian ``A``, the condition of the minimum gives
    ``A dB = share / n * (D'(s deta) - centre 1'(s0 deta))``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        eta: Tensor,
        B: Tensor,
        D: Tensor,
        rows: Tensor | float,
        share: Tensor | float,
        centre: Tensor,
        K: Tensor | None,
        activation: str,
        shared: bool,
        curvature: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Apply ``B``, which was found before, with the mean ``curvature`` there if that is known.

        ``shared`` if the rows of all processes made it.
        """
        found = B.clone()
        ctx.save_for_backward(eta, found, D, centre, K, curvature)
        ctx.weight, ctx.share, ctx.activation, ctx.shared = share / rows, share, activation, shared
        return torch.addmm(eta, D, found.to(D.dtype), alpha=-1.0), found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Solve with the Hessian at the solution; every operation here can be differentiated once more."""
        eta, B, D, centre, K, curvature = ctx.saved_tensors
        G, pull = gradients
        h, twice = ACTIVATIONS[ctx.activation], torch.is_grad_enabled()
        u = torch.addmm(eta, D, B.to(D.dtype), alpha=-1.0)
        pull = sum_over_processes(pull - (D.T @ G).to(B.dtype), ctx.shared)
        if curvature is None or twice:
            A = ctx.weight * unpack(sum_over_processes((products(D).T @ h.slope(u)).to(B.dtype), ctx.shared))
        else:
            A = ctx.share * unpack(curvature)
        A = A if K is None else A + K
        # What is flat at the solution moves no output: it gets no part of the gradient.
        lam = solve_units(A, pull, drop=100.0 * torch.finfo(D.dtype).eps) * ctx.weight
        along, lift = D @ lam.to(D.dtype), (centre @ lam).to(D.dtype).expand_as(eta)
        if twice:
            change = G + along * h.slope(u) - lift * h.slope(eta)
        else:  # the same in place
            change = h.times_slope(along, u, out=along).add_(G).sub_(h.times_slope(lift, eta, out=u))
        return change, *(None,) * 9


class LinearCorrection(torch.autograd.Function):
    """``units - DB`` (n, d) with ``B = M R``, in whose moments ``R`` the batch's ``D'units`` has a weight."""

    @staticmethod
    def forward(ctx: Any, units: Tensor, B: Tensor, D: Tensor, M: Tensor, weight: Tensor | float) -> Tensor:
        """Apply ``B``, which was found before."""
        ctx.save_for_backward(D, M)
        ctx.weight = weight
        return torch.addmm(units, D, B.to(D.dtype), alpha=-1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The same projection of the gradient, as far as the batch's share goes."""
        D, M = ctx.saved_tensors
        (G,) = gradients
        lam = ctx.weight * (M @ sum_over_processes((D.T @ G).to(M.dtype)))
        return torch.addmm(G, D, lam.to(D.dtype), alpha=-1.0), None, None, None, None


def is_distributed() -> bool:
    """Whether other processes have rows of the same batch."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_processes(part: Tensor, shared: bool = True) -> Tensor:
    """Sum over the processes of a distributed run; elsewhere, or if the rows are not shared, the tensor itself."""
    if shared and is_distributed():
        part = part.clone()
        dist.all_reduce(part)
    return part
