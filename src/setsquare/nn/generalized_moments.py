"""Running moments of a generalised projection, which is a least-squares problem near its solution."""

from __future__ import annotations

import torch
from torch import Tensor

from setsquare.nn.activations import ACTIVATIONS
from setsquare.nn.distributed import sum_over_processes
from setsquare.nn.generalized_solver import (
    ImplicitCorrection,
    Minimum,
    Prior,
    assemble,
    minimise,
    row_sums,
    solve_units,
    unpack,
)
from setsquare.nn.moments import Momentum, RunningMoments

#: Newton steps for the first batch, which has no earlier solution to start from, and for later batches. Later batches
#: stop at a correlation far below that of chance, and leave a share of units (stragglers) to the next batch.
FIRST_STEPS, STEPS, TOLERANCE, STRAGGLERS = 30, 2, 1e-2, 0.02
#: With small batches, a step of the running solution shifts pre-activations by at most this share of their size.
STRIDE = 0.3


class GeneralizedMoments(RunningMoments):
    """Moments of a generalised projection, whose Newton step is least squares with weights ``h'`` (d per row).

    Each batch adds the quadratic approximation of its problem at the current solution: ``curvature`` and ``response``.
    The minimum of their sum is the correction for all rows in memory, up to the error of the earlier solutions.
    """

    curvature: Tensor  # ((1 + p)(2 + p) / 2, d), upper triangle of the mean ``D' diag(h') D``
    mean: Tensor  # (d,) mean activation before the correction, which the correction keeps
    solution: Tensor  # (1 + p, d)
    #: (1,) number of units of the last training batch that did not reach a correlation of 0.01 in the allowed steps.
    #: Their best solution is used, and the next batch starts from it.
    unsolved: Tensor

    def __init__(self, momentum: Momentum, activation: str) -> None:
        super().__init__(momentum)
        self.activation = activation
        self.register_buffer("unsolved", torch.zeros(1, dtype=torch.float64))

    def _shapes(self, m: int, d: int) -> dict[str, tuple[int, ...]]:
        more = {"curvature": (m * (m + 1) // 2, d), "mean": (d,), "solution": (m, d)}
        return super()._shapes(m, d) | more

    def coefficients(self) -> Tensor:
        """Shift and effects (1 + p, d) to subtract from the pre-activations, estimated from all rows in memory."""
        return self.solution

    def learn(self, units: Tensor, X: Tensor) -> Tensor:
        """Correct a batch by the joint solution for it and the rows in memory, and update the moments."""
        first = self.is_empty
        D = self.design(X, units.shape[1])
        n, narrow, h = self._count(D), D.to(units.dtype), ACTIVATIONS[self.activation]
        with torch.no_grad():
            square, mean = sum_over_processes(torch.stack([units.square().sum(0), h.h(units).sum(0)])) / n
            gram = sum_over_processes(D.T @ D) / n
            hold = None if self._is_ample(n) else self._hold(units, narrow, n, gram)
            prior = self._prior(n, gram, mean, hold)
            eps = torch.finfo(units.dtype).eps
            found = minimise(
                lambda B: assemble(sum_over_processes(row_sums(units, narrow, B, h)), n, B, prior),
                self.solution.to(units.dtype),
                prior,
                eps=eps,
                tolerance=TOLERANCE,
                aim=eps if first else TOLERANCE,
                max_iter=FIRST_STEPS if first else STEPS,
                stragglers=0.0 if first else STRAGGLERS,
            )
            self._learn_from(found, n, square, hold, gram=gram, mean=mean)
        corrected, _ = ImplicitCorrection.apply(  # type: ignore[no-untyped-call]
            units, found.B, narrow, n, prior.share, prior.centre, prior.K, self.activation, True, found.last.curvature
        )
        result: Tensor = corrected
        return result

    def _hold(self, units: Tensor, D: Tensor, n: float, gram: Tensor) -> Tensor:
        """Curvature (m, m, d) of pseudo-rows: the first few small batches do not determine a solution."""
        rows = n + self._past(n)
        missing = (2 * self._enough() / rows - 1.0).clamp(min=0.0)
        u = torch.addmm(units, D, self.solution.to(D.dtype), alpha=-1.0)
        slope = sum_over_processes(ACTIVATIONS[self.activation].slope(u).sum(0)) / n
        slope, gram = self.curvature[0].lerp(slope.to(gram.dtype), n / rows), self.gram.lerp(gram, n / rows)
        return missing * slope * gram[:, :, None]

    def _prior(self, n: float, gram: Tensor, mean: Tensor, hold: Tensor | None) -> Prior:
        share = self._share(n)
        blended, target = self.gram.lerp(gram, share), self.mean.lerp(mean.to(gram.dtype), share)
        centre, target, scale = (part.to(mean.dtype) for part in (blended[0], target, _scale(blended)))
        if hold is None:
            return Prior(share, centre, target, scale)
        K = (1.0 - share) * unpack(self.curvature) + hold
        c = (1.0 - share) * self.response + (hold * self.solution).sum(1)
        share = torch.as_tensor(share)  # shape (1,) would promote the dtype of what it multiplies
        return Prior(share.to(mean.dtype), centre, target, scale, K.to(mean.dtype), c.to(mean.dtype))

    def exact_prior(self) -> Prior:
        """Problem of all rows seen, without the quadratic approximation."""
        return Prior(1.0, self.gram[0], self.mean, _scale(self.gram))

    def _learn_from(self, found: Minimum, n: float, square: Tensor, hold: Tensor | None, **seen: Tensor) -> None:
        # The solution of a small batch can be extreme, and the quadratic there untypical of other batches.
        B, near = (found.B, found.last) if hold is None else (self.solution.to(found.B.dtype), found.first)
        response = (unpack(near.curvature) * B).sum(1) + near.out
        finite = torch.isfinite(square).all()
        self._remember(n, finite, curvature=near.curvature, response=response, **seen)
        self.unsolved.copy_((~found.converged).sum())
        dtype = B.dtype
        K, gram, start = unpack(self.curvature.to(dtype)), self.gram.to(dtype), self.solution.to(dtype)
        if hold is None:
            start = torch.where(self.rows == n, B, start)
        missing = (self.response - self.gram[0][:, None] * self.mean).to(dtype) - (K * start).sum(1)
        # Where few rows are active the quadratic is nearly flat: regularise slightly towards the previous solution.
        K = torch.addcmul(K, gram[:, :, None], 1e-3 * K.diagonal().sum(1) / gram.diagonal().sum())
        step = solve_units(K if hold is None else K + hold.to(dtype), missing, drop=1e-12)
        length = (step * (gram @ step)).sum(0).clamp_min(torch.finfo(dtype).tiny).sqrt()
        stride = (1.0 if hold is None else STRIDE) * square.sqrt()
        moved = torch.addcmul(start, step, (stride / length).clamp(max=1.0))  # the next batch takes the rest
        self.solution.copy_(torch.where(finite, moved, self.solution))


def _scale(gram: Tensor) -> Tensor:
    """Standard deviation of each design column; 1 for the intercept, infinite for constant columns."""
    variance = gram.diagonal() - gram[0].square()
    scale = torch.where(variance > 0.0, variance, torch.inf).sqrt()
    scale[0] = 1.0
    return scale
