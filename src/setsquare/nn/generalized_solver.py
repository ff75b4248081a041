"""Solver of the generalised projection for many units at once, with derivatives by the implicit function theorem.

Each of the d units has a convex problem in the m unknowns ``B``, its shift and the effects of the design ``D``:

    share * mean_i H(eta_i - D_i B)  +  B'K B / 2 - c'B  +  target * centre'B

With ``share = 1`` and without the quadratic terms, the minimum makes ``h(eta - DB)`` uncorrelated with the design and
keeps its mean. The quadratic terms represent earlier batches: a layer with small batches solves for all of their rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from setsquare.nn.activations import ACTIVATIONS, Activation
from setsquare.nn.distributed import sum_over_processes

#: Numbers per block in sums over rows: blocks that fit in the cache are fastest.
BLOCK = 2**18
#: Largest length of a Newton step, as a multiple of the size of the output.
FAR = 10.0


@dataclass(frozen=True, slots=True)
class Prior:
    """Everything in the problem besides the current rows."""

    share: Tensor | float  # weight of the current rows, () or (1,)
    centre: Tensor  # (m,) mean of the design
    target: Tensor  # (d,) mean of the output, which is kept
    scale: Tensor  # (m,) standard deviation of each design column; 1 for the intercept
    K: Tensor | None = None  # (m, m, d) and (m, d), quadratic terms of earlier rows, if there are any
    c: Tensor | None = None


class ProblemState(NamedTuple):
    """Means over the rows at a given ``B``, and the value and gradient of the problem.

    ``out`` (m, d) is the mean product of design and output, ``curvature`` (m(m+1)/2, d) that of the design with itself
    and the slopes. ``value``, ``gap`` (largest covariance), ``spread`` and ``size`` (standard deviation and root mean
    square of the output) and ``magnitude`` (sum of the absolute terms of the value) are (d,), ``gradient`` is (m, d).
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
    """Solution (m, d), the sums at the start and at the solution, and whether each unit (d,) converged."""

    B: Tensor
    first: ProblemState
    last: ProblemState
    residual: Tensor
    converged: Tensor


def row_sums(eta: Tensor, D: Tensor, B: Tensor, h: Activation) -> Tensor:
    """All sums over rows, stacked: (2 + m + m(m+1)/2, d), in the precision of ``B``.

    These are the sums of ``H(u)``, of ``h(u)²``, of the design times ``h(u)``, and of its products times ``h'(u)``.
    """
    (n, d), m = eta.shape, D.shape[1]
    k = n if torch.compiler.is_compiling() else min(n, -(-BLOCK // d))
    total = eta.new_zeros(2 + m + m * (m + 1) // 2, d)
    memory = eta.new_empty(2, k, d)
    beta, P = B.to(eta.dtype), products(D)
    for start in range(0, n, k):
        rows = slice(start, start + k)
        u, spare = memory[:, : len(eta[rows])]
        value, square, out, slope = h.terms(torch.addmm(eta[rows], D[rows], beta, alpha=-1.0, out=u), spare)
        total[0] += value
        total[1] += square
        total[2 : 2 + m].addmm_(D[rows].T, out)
        total[2 + m :].addmm_(P[rows].T, slope)
    return total.to(B.dtype)


def products(D: Tensor) -> Tensor:
    """Products of all pairs of columns, (n, m(m+1)/2); their weighted sums are upper triangles of Gram matrices."""
    m = D.shape[1]
    return torch.cat([D[:, i:] * D[:, i : i + 1] for i in range(m)], dim=1)


def unpack(upper: Tensor) -> Tensor:
    """Symmetric matrices (m, m, d) from their upper triangles (m(m+1)/2, d)."""
    m = int((2 * len(upper)) ** 0.5)
    pairs = [(min(i, j), max(i, j)) for i in range(m) for j in range(m)]
    index = [i * (2 * m - i + 1) // 2 + j - i for i, j in pairs]
    return upper.index_select(0, torch.tensor(index, device=upper.device)).view(m, m, -1)


def assemble(total: Tensor, rows: Tensor | float, B: Tensor, prior: Prior) -> ProblemState:
    """Compute the problem at ``B`` from the stacked sums over ``rows`` rows."""
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
    return ProblemState(out, curvature, value, gradient, gap, spread, square.sqrt(), magnitude)


def solve_units(A: Tensor, b: Tensor, drop: float = 0.0) -> Tensor:
    """Solve d positive semi-definite systems ``A`` (m, m, d) by elimination; flat directions get zero.

    A direction is flat if elimination leaves at most the share ``drop`` of its diagonal. All units take each of the m
    steps together, which for small m is faster than one factorisation per unit, on any device.
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
    sums: Callable[[Tensor], ProblemState],
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
    """Minimise by Newton steps from ``B`` (m, d), with Levenberg-Marquardt damping where a step fails.

    A unit stops at the residual ``aim`` (a correlation), or below ``tolerance`` when a step no longer halves it.
    ``eps`` is the rounding error of the sums, and ``noise()`` that of the summed values if it differs between calls.
    The loop ends when at most a share ``stragglers`` of the units is left; compiled, after ``max_iter`` steps, because
    a compiled graph cannot branch on data.
    """
    rounding, tiny = 50.0 * eps, torch.finfo(B.dtype).tiny
    first = state = sums(B)
    damping, residual = torch.zeros_like(state.gap), torch.full_like(state.gap, torch.inf)
    finished = torch.zeros_like(state.gap, dtype=torch.bool)
    for n_iter in range(max_iter + 1):
        flat = state.spread <= 100.0 * rounding * state.size
        left = state.gap / torch.where(flat, state.size.clamp_min(tiny), state.spread)
        left = torch.where(torch.isfinite(state.size), left, torch.inf)  # overflowing squares are not convergence
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
        # The last term bounds the step where the curvature is close to zero, and vanishes with the gradient.
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
        state = ProblemState(*(torch.where(better, new, old) for new, old in zip(trial, state, strict=True)))
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
        """Apply the solution ``B``, found beforehand; ``curvature`` is the mean there if known.

        ``shared`` means that the rows of all processes entered the solution.
        """
        found = B.clone()
        ctx.save_for_backward(eta, found, D, centre, K, curvature)
        ctx.weight, ctx.share, ctx.activation, ctx.shared = share / rows, share, activation, shared
        return torch.addmm(eta, D, found.to(D.dtype), alpha=-1.0), found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Solve with the Hessian at the solution; every operation is differentiable once more."""
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
        # Flat directions do not change the output, so they get no gradient.
        lam = solve_units(A, pull, drop=100.0 * torch.finfo(D.dtype).eps) * ctx.weight
        along, lift = D @ lam.to(D.dtype), (centre @ lam).to(D.dtype).expand_as(eta)
        if twice:
            change = G + along * h.slope(u) - lift * h.slope(eta)
        else:  # the same in place
            change = h.times_slope(along, u, out=along).add_(G).sub_(h.times_slope(lift, eta, out=u))
        return change, *(None,) * 9
