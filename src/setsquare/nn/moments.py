"""Running moments of a layer over its batches, and the linear correction computed from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor, nn

from setsquare.errors import InputError
from setsquare.nn.distributed import is_distributed, sum_over_processes
from setsquare.nn.functional import has_values

Momentum: TypeAlias = float | Literal["auto"] | None
#: With momentum "auto" the moments average over at least this many batches and this many rows per coefficient.
BATCHES, ROWS = 10, 200
#: A training batch with fewer rows per coefficient than this is supplemented by the running moments.
PAST = 10
#: Smaller eigenvalues of the protected columns' correlation matrix mean collinearity.
MIN_EIGENVALUE = 1e-10


class DoubleModule(nn.Module):
    """A module whose buffers stay in double precision: ``model.half()`` must not round moments."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for name, buffer in self.named_buffers(recurse=False):  # shapes depend on the batches seen
            if prefix + name in state_dict:
                setattr(self, name, buffer.new_zeros(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class RunningMoments(DoubleModule):
    """Means of products of the design ``D = [1, (X - anchor) / scale]`` with itself and with the units (n, d).

    Anchor and scale are the mean and standard deviation of the first batch, so that no digits are lost however far a
    column is from zero. A batch of n rows has the weight ``n / (n + decay * rows)``, and ``rows`` becomes the
    denominator; the first batch has the weight 1. With ``decay = 1`` these are the exact moments of all rows; below 1,
    earlier batches fade.
    """

    anchor: Tensor  # (p,)
    scale: Tensor  # (p,)
    rows: Tensor  # (1,) effective number of rows in memory
    skipped: Tensor  # (1,) number of batches left out because a unit was infinite or NaN
    gram: Tensor  # (1 + p, 1 + p)
    response: Tensor  # (1 + p, d)

    def __init__(self, momentum: Momentum, n_given: int = 0) -> None:
        super().__init__()
        self.momentum = momentum
        #: Number of columns, the last ones, whose effects are estimated and not subtracted: controls.
        self.n_given = n_given
        #: Rows per sample: positions of one sample share its protected columns, and count as one row where it matters
        #: whether a batch determines the coefficients.
        self.n_repeats = 1.0
        #: Whether the buffers have their sizes, and no batch was seen.
        self.allocated = False
        #: Coefficients, with the version of the moments that they belong to.
        self._known: tuple[tuple[int, ...], Tensor] | None = None
        for name in ("anchor", "scale", "rows", "skipped", *self._shapes(0, 0)):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        self.reset()

    def _shapes(self, m: int, d: int) -> dict[str, tuple[int, ...]]:
        return {"gram": (m, m), "response": (m, d)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._known = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self.remember_coefficients()

    def reset(self) -> None:
        """Forget all batches, and the numbers of columns and units."""
        zeros, self.allocated, self._known = self.anchor.new_zeros, False, None
        for name in ("anchor", "scale", *self._shapes(0, 0)):
            setattr(self, name, zeros(0))
        # Not of shape (): torch.compile treats such a float64 as a constant and loses what is written to it.
        self.rows, self.skipped = zeros(1), zeros(1)

    @property
    def is_empty(self) -> bool:
        """Whether no batch was seen."""
        if self.anchor.numel() and self.allocated:  # a copy that averages weights may have got the moments since
            self.allocated = not bool(self.rows > 0.0)
        return self.anchor.numel() == 0 or self.allocated

    def allocate(self, p: int, d: int) -> None:
        """Give the buffers their sizes before the first batch, for copies that are updated tensor by tensor."""
        if self.is_empty:
            self.anchor, self.scale = self.rows.new_zeros(p), self.rows.new_ones(p)
            for name, shape in self._shapes(1 + p, d).items():
                setattr(self, name, self.rows.new_zeros(shape))
            self.allocated = True

    def design(self, X: Tensor, d: int) -> Tensor:
        """Return the design (n, 1 + p) of the rows ``X``; the first batch sets anchor, scale and shapes.

        Controls, which have no effect on a correction, may be left out of ``X`` once they are known.
        """
        if not self.is_empty and self.n_given and X.shape[1] == len(self.anchor) - self.n_given:
            X = torch.cat([X, self.anchor[-self.n_given :].expand(X.shape[0], -1)], dim=1)
        if self.is_empty:
            self.allocated = False
            n, total = self._count(X), sum_over_processes(X.sum(0))
            self.anchor = total / n
            spread = (sum_over_processes((X - self.anchor).square().sum(0)) / n).sqrt()
            self.scale = torch.where(spread > 0.0, spread, 1.0)
            for name, shape in self._shapes(1 + X.shape[1], d).items():
                setattr(self, name, X.new_zeros(shape))
        if self.response.shape != (1 + X.shape[1], d):
            p, before = len(self.anchor), self.response.shape[1]
            raise InputError(
                f"The batch has {X.shape[1]} protected column(s) and {d} units, earlier batches had {p} and {before}: "
                "use one layer for each shape, or reset its moments."
            )
        return torch.cat([torch.ones_like(X[:, :1]), (X - self.anchor) / self.scale], dim=1)

    def coefficients(self) -> Tensor:
        """Shift and effects (1 + p, d) to subtract from the units, estimated from all rows in memory."""
        known = self._known
        if known is not None and (torch.compiler.is_compiling() or known[0] == self._counted()):
            return known[1]
        return self._effects(self.gram) @ self.response

    def remember_coefficients(self) -> None:
        """Compute the coefficients once for moments that stay as they are, so that exported graphs hold the numbers."""
        self._known = None
        version = self._counted()
        if version and not self.is_empty:
            self._known = version, self.coefficients()

    def _counted(self) -> tuple[int, ...]:
        """What changes whenever the moments do; empty if that is not known."""
        parts = (self.gram, self.response)
        if not has_values(*parts) or any(part.is_inference() for part in parts):
            return ()
        return tuple(number for part in parts for number in (part._version, part.data_ptr()))

    def _effects(self, gram: Tensor) -> Tensor:
        """Matrix from mean products to what is subtracted: effects of the protected columns, not of the controls."""
        M = effects_of(gram)
        if not self.n_given:
            return M
        subtracted = torch.cat([M[1 : -self.n_given], torch.zeros_like(M[-self.n_given :])])
        return torch.cat([-(gram[0, 1:] @ subtracted)[None], subtracted])

    def correct(self, units: Tensor, X: Tensor) -> Tensor:
        """Subtract from each row the effect of its protected columns, estimated from all rows in memory."""
        D, B = self.design(X, units.shape[1]).to(units.dtype), self.coefficients().to(units.dtype)
        return torch.addmm(units, D, B, alpha=-1.0)

    def average(self) -> Tensor:
        """Correction of each unit (d,), averaged over the population."""
        return self.gram[0] @ self.coefficients()

    def learn(self, units: Tensor, X: Tensor) -> Tensor:
        """Correct a batch by its own moments blended with the running ones, and update these.

        Gradients flow through the moments of the batch.
        """
        self._known = None
        D = self.design(X, units.shape[1])
        n, narrow = self._count(D), D.to(units.dtype)
        gram = sum_over_processes(D.T @ D) / n
        response = sum_over_processes((narrow.T @ units.detach()).to(D.dtype)) / n
        share = self._share(n)
        M = self._effects(self.gram.lerp(gram, share))
        B = M @ self.response.lerp(response, share)
        self._remember(n, torch.isfinite(response).all(), gram=gram, response=response)
        corrected: Tensor = LinearCorrection.apply(units, B, narrow, M, share / n)  # type: ignore[no-untyped-call]
        return corrected

    @staticmethod
    def _count(rows: Tensor) -> float:
        n = float(len(rows))
        return float(sum_over_processes(rows.new_tensor(n))) if is_distributed() else n

    def _past(self, n: float) -> Tensor:
        if self.momentum is None:
            return self.rows
        enough = ROWS * len(self.gram) * self.n_repeats
        momentum = min(n / enough, 1.0 / BATCHES) if self.momentum == "auto" else self.momentum
        return (1.0 - momentum) * self.rows

    def _is_ample(self, n: float) -> bool:
        return n >= self._enough()

    def _enough(self) -> float:
        """Number of rows that determine the coefficients."""
        return PAST * len(self.gram) * self.n_repeats

    def _share(self, n: float) -> Tensor | float:
        """Weight of a training batch: 1, or less if it has too few rows; the running moments have the rest.

        Only the batch's own moments have gradients and follow the weights: a network learns to exploit the others' lag.
        """
        return 1.0 if self._is_ample(n) else n / (n + self._past(n).clamp(max=self._enough() - n))

    @torch.no_grad()
    def _remember(self, n: float, finite: Tensor, **moments: Tensor) -> None:
        rows = n + self._past(n)
        entry = n / rows
        for name, new in moments.items():
            old = getattr(self, name)
            old.lerp_(torch.where(finite, new.to(old.dtype), old), entry)  # in place: replicas share this memory
        self.rows.copy_(torch.where(finite, rows, self.rows))
        self.skipped.add_((~finite).to(self.skipped.dtype))


def effects_of(gram: Tensor) -> Tensor:
    """Matrix (1 + p, 1 + p) that maps mean products ``D'y`` to least-squares effects and the shift that keeps means.

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
    # The variance of a constant column is rounding error, so the column gets no effect.
    varies = variance > 100.0 * torch.finfo(gram.dtype).eps * gram.diagonal()[1:]
    scale = torch.where(varies, variance, torch.inf).rsqrt()
    values, vectors = torch.linalg.eigh(covariance * torch.outer(scale, scale))
    whiten = scale[:, None] * vectors * torch.where(values > MIN_EIGENVALUE, values, torch.inf).rsqrt()
    whiten = torch.cat([-(centre @ whiten)[None], whiten])
    return whiten @ whiten.T


class LinearCorrection(torch.autograd.Function):
    """``units - DB`` (n, d) with ``B = M R``, where the batch contributes ``weight * D'units`` to the moments ``R``."""

    @staticmethod
    def forward(ctx: Any, units: Tensor, B: Tensor, D: Tensor, M: Tensor, weight: Tensor | float) -> Tensor:
        """Apply the coefficients ``B``, which were computed beforehand."""
        ctx.save_for_backward(D, M)
        ctx.weight = weight
        return torch.addmm(units, D, B.to(D.dtype), alpha=-1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Project the gradient in the same way, in proportion to the weight of the batch."""
        D, M = ctx.saved_tensors
        (G,) = gradients
        lam = ctx.weight * (M.T @ sum_over_processes((D.T @ G).to(M.dtype)))
        return torch.addmm(G, D, lam.to(D.dtype), alpha=-1.0), None, None, None, None
