"""Running moments of a layer: what it remembers of the batches that it has seen, and the correction that they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from setsquare.errors import InputError
from setsquare.nn.implicit import (
    ACTIVATIONS,
    ImplicitCorrection,
    LinearCorrection,
    Minimum,
    Prior,
    assemble,
    minimise,
    row_sums,
    solve_units,
    sum_over_processes,
    unpack,
)

Momentum: TypeAlias = float | Literal["auto"] | None
#: With momentum "auto" the moments remember this many batches, and this many rows for each coefficient, at least.
BATCHES, ROWS = 10, 200
#: A training batch with fewer rows than this for each coefficient is filled up with the past.
PAST = 10
#: Eigenvalues of the protected columns' correlation matrix below this are collinearity.
COLLINEAR = 1e-10
#: Newton steps of the first batch, which has no solution to start from, and of the others. These stop at a correlation
#: far below what chance makes in a batch, and leave some units for the next.
FIRST_STEPS, STEPS, TOLERANCE, STRAGGLERS = 30, 3, 1e-2, 0.02
#: With small batches a step of the running solution shifts pre-activations by this share of their size, at most.
STRIDE = 0.3


class RunningMoments(nn.Module):
    """Means of products of the design ``D = [1, (X - anchor) / scale]`` with itself and with the units (n, d).

    Anchor and scale are those of the first batch, so that no digits are lost however far a column is from zero. A batch
    of n rows enters with the share ``n / (n + decay * rows)``, and ``rows`` becomes the denominator. With
    decay one these are the exact moments of all rows, below it the past fades; the first batches count in full.

    Attributes
    ----------
    anchor, scale : Tensor of shape (p,)
    rows : Tensor of shape (1,)
        Rows that are remembered.
    skipped : Tensor of shape (1,)
        Batches that were left out because a unit was infinite or NaN.
    gram : Tensor of shape (1 + p, 1 + p)
    response : Tensor of shape (1 + p, d)
    """

    anchor: Tensor
    scale: Tensor
    rows: Tensor
    skipped: Tensor
    gram: Tensor
    response: Tensor

    def __init__(self, momentum: Momentum) -> None:
        super().__init__()
        self.momentum = momentum
        for name in ("anchor", "scale", "rows", "skipped", *self._shapes(0, 0)):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        self.reset()

    def _shapes(self, m: int, d: int) -> dict[str, tuple[int, ...]]:
        return {"gram": (m, m), "response": (m, d)}

    def reset(self) -> None:
        """Forget everything, the numbers of columns and units too."""
        zeros = self.anchor.new_zeros
        for name in ("anchor", "scale", *self._shapes(0, 0)):
            setattr(self, name, zeros(0))
        # Not of shape (): torch.compile takes such a float64 for a constant, and what is written to it is lost.
        self.rows, self.skipped = zeros(1), zeros(1)

    @property
    def is_empty(self) -> bool:
        """Whether no batch was seen."""
        return self.anchor.numel() == 0

    def design(self, X: Tensor, d: int) -> Tensor:
        """Design (n, 1 + p) of the rows ``X`` for d units, whose first batch sets what is still open."""
        if self.is_empty:
            n, total = self._count(X), sum_over_processes(X.sum(0))
            self.anchor = total / n
            spread = (sum_over_processes((X - self.anchor).square().sum(0)) / n).sqrt()
            self.scale = torch.where(spread > 0.0, spread, 1.0)
            for name, shape in self._shapes(1 + X.shape[1], d).items():
                setattr(self, name, X.new_zeros(shape))
        if self.response.shape != (1 + X.shape[1], d):
            p, before = len(self.anchor), self.response.shape[1]
            raise InputError(
                f"The batch has {X.shape[1]} protected column(s) and {d} units, those before had {p} and {before}: "
                "use one layer for each shape, or reset its moments."
            )
        return torch.cat([torch.ones_like(X[:, :1]), (X - self.anchor) / self.scale], dim=1)

    def coefficients(self) -> Tensor:
        """Shift and effects (1 + p, d) to subtract from the units, from all that is remembered."""
        return effects_of(self.gram) @ self.response

    def correct(self, units: Tensor, X: Tensor) -> Tensor:
        """Subtract from each row what its protected columns explain, by all that is remembered."""
        D, B = self.design(X, units.shape[1]).to(units.dtype), self.coefficients().to(units.dtype)
        return torch.addmm(units, D, B, alpha=-1.0)

    def average(self) -> Tensor:
        """Correction of each unit (d,), averaged over the population."""
        return self.gram[0] @ self.coefficients()

    def learn(self, units: Tensor, X: Tensor) -> Tensor:
        """Correct a batch by its own moments blended with the past, and remember it.

        Gradients flow through the batch's share.
        """
        D = self.design(X, units.shape[1])
        n, narrow = self._count(D), D.to(units.dtype)
        gram = sum_over_processes(D.T @ D) / n
        response = sum_over_processes((narrow.T @ units.detach()).to(D.dtype)) / n
        share = self._share(n)
        M = effects_of(self.gram.lerp(gram, share))
        B = M @ self.response.lerp(response, share)
        self._remember(n, torch.isfinite(response).all(), gram=gram, response=response)
        corrected: Tensor = LinearCorrection.apply(units, B, narrow, M, share / n)  # type: ignore[no-untyped-call]
        return corrected

    @staticmethod
    def _count(rows: Tensor) -> Tensor:
        return sum_over_processes(rows.new_tensor(float(len(rows))))

    def _past(self, n: Tensor) -> Tensor:
        if self.momentum is None:
            return self.rows
        m = len(self.gram)
        momentum = (n / (ROWS * m)).clamp(max=1.0 / BATCHES) if self.momentum == "auto" else self.momentum
        return (1.0 - momentum) * self.rows

    def _share(self, n: Tensor) -> Tensor:
        """Share of a training batch: all, unless it has too few rows; then the past fills them up.

        Only the batch's own part has gradients and keeps up with the weights: a network learns to use what lags behind.
        """
        lacking = (PAST * len(self.gram) - n).clamp(min=0.0)
        return n / (n + torch.minimum(self._past(n), lacking))

    def _missing(self, n: Tensor) -> Tensor:
        """How many rows there should be, relative to those that there are: zero but for the first of small batches."""
        m, rows = len(self.gram), n + self._past(n)
        return torch.where(n < PAST * m, (2 * PAST * m / rows - 1.0).clamp(min=0.0), 0.0)

    @torch.no_grad()
    def _remember(self, n: Tensor, finite: Tensor, **moments: Tensor) -> None:
        rows = n + self._past(n)
        for name, new in moments.items():
            old = getattr(self, name)
            old.copy_(torch.where(finite, old.lerp(new, n / rows), old))  # in place: a replica shares this memory
        self.rows.copy_(torch.where(finite, rows, self.rows))
        self.skipped.add_((~finite).to(self.skipped.dtype))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RunningMoments:
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)  # follow the device, but let no model.half() round the moments
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for name, buffer in self.named_buffers(recurse=False):  # their shapes are those of the batches seen
            if prefix + name in state_dict:
                setattr(self, name, buffer.new_zeros(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


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
            old = n / (n + self._past(n))
            hold = self._missing(n) * self.slope.lerp(slope, old) * self.gram.lerp(gram, old)[:, :, None]
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
            units, found.B, narrow, n, prior.share, prior.centre, prior.K, self.activation
        )
        result: Tensor = corrected
        return result

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


def effects_of(gram: Tensor) -> Tensor:
    """Matrix (1 + p, 1 + p) that makes least-squares effects, and the shift that keeps means, of mean products ``D'y``.

    Examples
    --------
    >>> import torch
    >>> D = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    >>> y = torch.tensor([[1.0], [2.0], [5.0], [6.0]])
    >>> effects_of(D.T @ D / 4) @ D.T @ y / 4
    tensor([[-2.],
            [ 4.]])
    """
    centre = gram[0, 1:]
    covariance = gram[1:, 1:] - torch.outer(centre, centre)
    variance = covariance.diagonal()
    # What is left of a constant column is rounding: a column like that has no effect.
    varies = variance > 100.0 * torch.finfo(gram.dtype).eps * gram.diagonal()[1:]
    scale = torch.where(varies, variance, torch.inf).rsqrt()
    values, vectors = torch.linalg.eigh(covariance * torch.outer(scale, scale))
    whiten = scale[:, None] * vectors * torch.where(values > COLLINEAR, values, torch.inf).rsqrt()
    whiten = torch.cat([-(centre @ whiten)[None], whiten])
    return whiten @ whiten.T
