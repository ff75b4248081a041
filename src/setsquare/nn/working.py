"""Running moments of a generalised projection, whose problem is a least-squares one near its solution."""

from __future__ import annotations

import torch
from torch import Tensor

from setsquare.nn.activations import ACTIVATIONS
from setsquare.nn.implicit import (
    ImplicitCorrection,
    Minimum,
    Prior,
    assemble,
    minimise,
    row_sums,
    solve_units,
    sum_over_processes,
    unpack,
)
from setsquare.nn.moments import PAST, Momentum, RunningMoments

#: Newton steps of the first batch, which has no solution to start from, and of the others. These stop at a correlation
#: far below what chance makes in a batch, and leave some units for the next.
FIRST_STEPS, STEPS, TOLERANCE, STRAGGLERS = 30, 3, 1e-2, 0.02
#: With small batches a step of the running solution shifts pre-activations by this share of their size, at most.
STRIDE = 0.3


class WorkingMoments(RunningMoments):
    """The same for a generalised projection, whose Newton step is least squares with weights ``h'`` (d of them a row).

    Each batch leaves the quadratic that its problem is near the solution known by then: ``curvature`` and ``response``.
    Their minimum is the correction for all rows that are remembered, up to how far the earlier solutions were from it.

    Attributes
    ----------
    curvature : Tensor of shape ((1 + p)(2 + p) / 2, d)
        Upper triangles of the mean ``D' diag(h') D``.
    mean, slope : Tensor of shape (d,)
        Mean activation, which is kept, and mean slope, both before the correction.
    solution : Tensor of shape (1 + p, d)
    unsolved : Tensor of shape (1,)
        Units of the last training batch that were not solved to a correlation of 0.01 in the steps allowed: the best
        that was found is used, and is where the next batch starts from.
    """

    curvature: Tensor
    mean: Tensor
    slope: Tensor
    solution: Tensor
    unsolved: Tensor

    def __init__(self, momentum: Momentum, activation: str) -> None:
        super().__init__(momentum)
        self.activation = activation
        self.register_buffer("unsolved", torch.zeros(1, dtype=torch.float64))

    def _shapes(self, m: int, d: int) -> dict[str, tuple[int, ...]]:
        more = {"curvature": (m * (m + 1) // 2, d), "mean": (d,), "slope": (d,), "solution": (m, d)}
        return super()._shapes(m, d) | more

    def coefficients(self) -> Tensor:
        """Shift and effects (1 + p, d) to subtract from the pre-activations, from all that is remembered."""
        return self.solution

    def learn(self, units: Tensor, X: Tensor) -> Tensor:
        """Correct a batch by the solution for it and the past together, and remember it."""
        first = self.is_empty
        D = self.design(X, units.shape[1])
        n, narrow, h = self._count(D), D.to(units.dtype), ACTIVATIONS[self.activation]
        with torch.no_grad():
            memory = units.new_empty(2, *units.shape)
            plain = h.terms(memory[0].copy_(units), memory[1])
            sizes = torch.stack([plain.reach, plain.out.sum(0), plain.slope.sum(0)]).to(D.dtype)
            square, mean, slope = sum_over_processes(sizes) / n
            gram = sum_over_processes(D.T @ D) / n
            # The first of small batches determine nothing yet: stand-ins for the rows to come hold the solution.
            entry = n / (n + self._past(n))
            hold = self._missing(n) * self.slope.lerp(slope, entry) * self.gram.lerp(gram, entry)[:, :, None]
            prior = self._prior(self._share(n), gram, mean, hold)
            eps = torch.finfo(units.dtype).eps
            found = minimise(
                lambda B: assemble(sum_over_processes(row_sums(units, narrow, B, h, memory)), n, B, prior),
                self.solution.clone(),
                prior,
                eps=eps,
                tolerance=TOLERANCE,
                aim=eps if first else TOLERANCE,
                max_iter=FIRST_STEPS if first else STEPS,
                stragglers=0.0 if first else STRAGGLERS,
            )
            self._learn_from(found, n, square, hold, gram=gram, mean=mean, slope=slope)
        corrected, _ = ImplicitCorrection.apply(  # type: ignore[no-untyped-call]
            units, found.B, narrow, n, prior.share, prior.centre, prior.K, self.activation, True
        )
        result: Tensor = corrected
        return result

    def _missing(self, n: Tensor) -> Tensor:
        """How many rows there should be, relative to those that there are: zero but for the first of small batches."""
        m, rows = len(self.gram), n + self._past(n)
        return torch.where(n < PAST * m, (2 * PAST * m / rows - 1.0).clamp(min=0.0), 0.0)

    def _prior(self, share: Tensor, gram: Tensor, mean: Tensor, hold: Tensor) -> Prior:
        blended = self.gram.lerp(gram, share)
        K = (1.0 - share) * unpack(self.curvature) + hold
        c = (1.0 - share) * self.response + (hold * self.solution).sum(1)
        return Prior(share, blended[0], self.mean.lerp(mean, share), _scale(blended), K, c)

    def exact_prior(self) -> Prior:
        """Problem of all rows that were seen, without quadratic approximation."""
        nothing = torch.zeros_like(unpack(self.curvature))
        return Prior(self.rows.new_tensor(1.0), self.gram[0], self.mean, _scale(self.gram), nothing, nothing[0])

    def _learn_from(self, found: Minimum, n: Tensor, square: Tensor, hold: Tensor, **seen: Tensor) -> None:
        ample = n >= PAST * len(found.B)
        # A small batch's own solution can be far out, where its problem looks like no other.
        B = torch.where(ample, found.B, self.solution)
        curvature = torch.where(ample, found.last.curvature, found.first.curvature)
        response = (unpack(curvature) * B).sum(1) + torch.where(ample, found.last.out, found.first.out)
        finite = torch.isfinite(square).all()
        self._remember(n, finite, curvature=curvature, response=response, **seen)
        self.unsolved.copy_((~found.converged).sum())
        K, start = unpack(self.curvature), torch.where(ample & (self.rows == n), found.B, self.solution)
        missing = self.response - self.gram[0][:, None] * self.mean - (K * start).sum(1)
        # Where few rows were active the quadratic is nearly flat: hold on a little to what was there.
        hold = hold + 1e-3 * K.diagonal().sum(1) / self.gram.diagonal().sum() * self.gram[:, :, None]
        step = solve_units(K + hold, missing, drop=1e-12)
        length = (step * (self.gram @ step)).sum(0).clamp_min(torch.finfo(step.dtype).tiny).sqrt()
        stride = torch.where(ample, 1.0, STRIDE) * square.sqrt()
        moved = start + step * (stride / length).clamp(max=1.0)  # what is left comes with the next batch
        self.solution.copy_(torch.where(finite, moved, self.solution))


def _scale(gram: Tensor) -> Tensor:
    """Standard deviation of each column of the design; one for the intercept, infinite where nothing varies."""
    variance = gram.diagonal() - gram[0].square()
    scale = torch.where(variance > 0.0, variance, torch.inf).sqrt()
    scale[0] = 1.0
    return scale
