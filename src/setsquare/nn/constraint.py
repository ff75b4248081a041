"""Constrained training: the weights move until the covariance with the protected columns is zero.

    min over w, max over lam   loss(w) + <lam, c(w)> + penalty/2 |c(w)|^2

with ``c`` (p x units) the covariances of the protected columns (orthonormalised) with the units, relative to a spread.
On minibatches the *value* of ``c`` is a running one and its *gradient* is the batch's: the gradient is unbiased but for
the lag of the running value, while the square of a noisy batch covariance would punish noise as if it were dependence.

By default the spread is a fixed one. Relative to the units' own, ``c`` has gradients without bound where they hardly
vary, as the predictions of a fresh network do: its noise outweighs the loss, and they stay constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from setsquare.errors import InputError
from setsquare.nn.functional import check_n_protected, flatten, read_protected, refuse_missing
from setsquare.nn.implicit import sum_over_processes
from setsquare.nn.moments import COLLINEAR
from setsquare.nn.network import in_double
from setsquare.tables.validation import check_choice

Method: TypeAlias = Literal["augmented_lagrangian", "mdmm"]
Scale: TypeAlias = float | Literal["unit", "shared"]
#: Ascent on the multipliers a call. The squared constraint of MDMM is small near zero, so its multiplier must run.
RATES = {"augmented_lagrangian": 0.25, "mdmm": 50.0}
#: A unit with a smaller spread than this, relative to `scale` or to its size, is constant.
CONSTANT = 0.01


class OrthogonalityConstraint(nn.Module):
    """Penalty that drives the covariance of any output of a network with the protected columns to zero.

    Add ``constraint(activations, protected)`` to the loss of each batch: predictions, activations, or activations
    pooled over space or time. The network needs no protected columns afterwards. What holds is what :attr:`residual`
    says: constrained training is exact only in the limit (:func:`~setsquare.nn.head.refit_head` is exact). Its
    multipliers must move more slowly than the weights: where the residual swings, lower ``rate``. A constant output is
    orthogonal to everything; :attr:`constant` and a residual of NaN tell when it came to that.

    Parameters
    ----------
    n_protected : int
        Columns of ``protected``; categories as dummy columns.
    method : {"augmented_lagrangian", "mdmm"}
        "augmented_lagrangian" has one multiplier for each covariance. "mdmm" is the paper's: one multiplier for the sum
        of squares, whose gradient vanishes on the constraint, so it comes near zero and stalls.
    penalty : float
        Weight of the squared covariances (for "mdmm" the damping, of the square of their sum).
    rate : float, optional
        Step of the multipliers in each training call; 0 leaves them to :meth:`step`.
    momentum : float
        Weight of a new batch in the running covariances; 1 where each batch is the whole data.
    scale : float, "unit" or "shared"
        The spread that covariances are relative to. A number: that of the outcome, for predictions; the default is that
        of a balanced binary one. "unit": each unit's own, so that every unit counts alike; gradients grow as the unit
        becomes constant, and each unit that dies (always zero after ReLU) lowers the penalty. "shared": that of all
        units together, so that the squares add up to the share of the units' variance that the protected columns
        explain. Take it for hidden layers: the death of a unit like the others leaves the penalty as it was.

    Attributes
    ----------
    multipliers : Tensor of shape (p, units), or (1, 1) for "mdmm"

    Notes
    -----
    In a distributed run the moments are those of the rows of all processes, so each must pass the same number of
    batches. The gradients of a process are those of its own rows, times the number of processes: averaged, as
    ``DistributedDataParallel`` does, they are those of all rows.

    Examples
    --------
    >>> import torch
    >>> sex = torch.tensor([0.0, 0.0, 1.0, 1.0])
    >>> constraint = OrthogonalityConstraint(1, rate=0.0)
    >>> float(constraint(torch.tensor([0.0, 1.0, 0.0, 1.0]), sex)), constraint.residual
    (0.0, 0.0)
    >>> constraint.reset()
    >>> float(constraint(torch.tensor([0.0, 0.0, 1.0, 1.0]), sex)), constraint.residual
    (5.0, 1.0)
    """

    multipliers: Tensor
    mean: Tensor
    variance: Tensor
    covariance: Tensor
    n_calls: Tensor
    n_rows: Tensor
    protected_mean: Tensor
    protected_scatter: Tensor

    def __init__(
        self,
        n_protected: int,
        method: Method = "augmented_lagrangian",
        *,
        penalty: float = 10.0,
        rate: float | None = None,
        momentum: float = 0.25,
        scale: Scale = 0.5,
    ) -> None:
        super().__init__()
        check_choice("method", method, tuple(RATES))
        check_n_protected(n_protected)
        if not (0.0 < scale < torch.inf if isinstance(scale, int | float) else scale in ("unit", "shared")):
            raise InputError(f"scale must be a spread above 0, 'unit' or 'shared', not {scale!r}.")
        if not 0.0 < momentum <= 1.0:
            raise InputError(f"momentum must be above 0 and at most 1, not {momentum}.")
        self.rate = RATES[method] if rate is None else rate
        if penalty < 0.0 or self.rate < 0.0:
            raise InputError(f"penalty and rate must be 0 or more, not {penalty} and {self.rate}.")
        self.n_protected, self.method, self.penalty, self.momentum = n_protected, method, penalty, momentum
        self.scale = scale
        for name in (
            "multipliers",
            "mean",
            "variance",
            "covariance",
            "n_calls",
            "n_rows",
            "protected_mean",
            "protected_scatter",
        ):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        self.reset()

    def reset(self) -> None:
        """Forget the multipliers and all that was seen; the number of units is open again."""
        p, zeros = self.n_protected, self.n_rows.new_zeros
        # Not of shape (): torch.compile takes such a float64 for a constant, and what is written to it is lost.
        self.n_calls, self.n_rows = zeros(1), zeros(1)
        self.protected_mean, self.protected_scatter = zeros(p), zeros(p, p)
        self._set_units(0)

    def forward(self, activations: Tensor, protected: Tensor) -> Tensor:
        """Penalty of a batch, a scalar to add to the loss.

        Parameters
        ----------
        activations : Tensor of shape (n, ...)
            Every entry but the first axis is a unit with a constraint of its own.
        protected : Tensor of shape (n, p), or (n,) for one column
        """
        A, X = flatten(activations), read_protected(protected, activations, self.n_protected)
        if self.n_rows.device != A.device:
            self.to(A.device)
        with torch.autocast(A.device.type, enabled=False):
            c = self._relative(*(self._learn(A, X) if self.training else self._evaluate(A, X)), self.scale)
            value = self._penalty(c).to(A.dtype)
        if self.training:
            self._ascend(c.detach(), self.rate)
        return value

    def step(self) -> None:
        """Take the classical step of the multipliers, by ``penalty`` times the running correlation.

        For ``rate=0``: call it once the weights have settled, such as after each epoch.
        """
        self._ascend(self._relative(self.covariance, self.variance, self.scale), self.penalty)

    @property
    def correlation(self) -> Tensor:
        """Running correlations of the orthonormalised protected columns with the units, (p, units)."""
        return self._relative(self.covariance, self.variance, "unit")

    @property
    def constant(self) -> Tensor:
        """Units (d,) without a spread, relative to ``scale`` or else to their size: their correlations say nothing."""
        reference = self.variance + self.mean.square() if isinstance(self.scale, str) else self.scale**2
        return self.variance <= CONSTANT**2 * reference

    @property
    def residual(self) -> float:
        """Largest running correlation of a unit that varies, as noisy as about ``1 / momentum`` batches are.

        NaN before the first call, and where all units have become constant.
        """
        left = self.correlation[:, ~self.constant]
        return float(left.abs().max()) if left.numel() else float("nan")

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"{self.n_protected}, {self.method!r}, penalty={self.penalty:g}, rate={self.rate:g}, scale={self.scale!r}"
        )

    def _learn(self, A: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """Covariance (p, d) and variance (d,), with this batch: running values with the gradient of its own."""
        p, d = self.n_protected, A.shape[1]
        first = len(self.mean) == 0
        self._check_units(d)
        sums = _sum_all(X.new_tensor([1.0, len(X)]), X.sum(0), A.detach().sum(0))
        one, n, x, a = torch.split(sums, [1, 1, p, d])
        weight = (1.0 / (1.0 + self.n_calls)).clamp(min=self.momentum)
        rows, mean = self.n_rows + n, self.mean.lerp(a / n, weight)
        apart = x / n - self.protected_mean
        protected_mean = self.protected_mean + apart * (n / rows)
        # Centred on the running means, the batch's covariance has no bias however small the batch is.
        covariance, variance = _products(A - mean.to(A.dtype), X - protected_mean)
        within = (X - x / n).T @ (X - x / n)
        sums = _sum_all(within.ravel(), covariance.detach().ravel(), variance.detach()) / n
        try:
            refuse_missing(sums, "The activations have", "lower the learning rate if the network diverged")
        except InputError:
            if first:  # a batch that is refused leaves no trace
                self._set_units(0)
            raise
        scatter, new_covariance, new_variance = torch.split(sums, [p * p, p * d, d])
        between = torch.outer(apart, apart) * (self.n_rows * n / rows)
        # All protected rows count alike: unlike the units they do not move, so nothing is forgotten.
        self.protected_scatter = self.protected_scatter + n * scatter.view(p, p) + between
        self.protected_mean, self.n_rows, self.n_calls, self.mean = protected_mean, rows, self.n_calls + 1.0, mean
        self.covariance = self.covariance.lerp(new_covariance.view(p, d), weight)
        self.variance = self.variance.lerp(new_variance, weight)
        return self._attach(covariance * (one / n), variance * (one / n))

    def _evaluate(self, A: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """The same without remembering the batch."""
        if len(self.mean) == 0:
            raise InputError("The constraint has not seen a batch: call it in training first.")
        self._check_units(A.shape[1])
        covariance, variance = _products(A - self.mean.to(A.dtype), X - self.protected_mean)
        return self._attach(covariance / len(A), variance / len(A))

    def _attach(self, covariance: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Running values with the gradient of those of a batch."""
        return (
            self.covariance + (covariance - covariance.detach()),
            self.variance + (variance - variance.detach()),
        )

    def _check_units(self, d: int) -> None:
        if len(self.mean) == 0:
            self._set_units(d)
        if len(self.mean) != d:
            raise InputError(
                f"The activations have {d} units, not {len(self.mean)} as before: use one constraint per layer."
            )

    def _set_units(self, d: int) -> None:
        p, zeros = self.n_protected, self.n_rows.new_zeros
        self.mean, self.variance, self.covariance = zeros(d), zeros(d), zeros(p, d)
        self.multipliers = zeros(1, 1) if self.method == "mdmm" else zeros(p, d)

    def _relative(self, covariance: Tensor, variance: Tensor, scale: Scale) -> Tensor:
        white = self._whitening() @ covariance
        if not isinstance(scale, str):
            return white / scale
        variance = variance.sum() if scale == "shared" else variance
        return white / torch.where(variance > 0.0, variance, 1.0).sqrt()  # a dead unit has no covariance either

    def _whitening(self) -> Tensor:
        """Symmetric inverse root of the protected columns' covariance: unlike a triangular one it moves smoothly."""
        S = self.protected_scatter / self.n_rows.clamp(min=1.0)
        variance = S.diagonal()
        scale = torch.where(variance > 0.0, variance, 1.0).rsqrt()
        values, vectors = torch.linalg.eigh(S * torch.outer(scale, scale))
        root = torch.where(values > COLLINEAR, values, torch.inf).rsqrt()
        whitening: Tensor = (vectors * root) @ vectors.T * scale
        return whitening

    def _penalty(self, c: Tensor) -> Tensor:
        squares = c.square().sum()
        if self.method == "mdmm":
            return (self.multipliers * squares).sum() + 0.5 * self.penalty * squares.square()
        return (self.multipliers * c).sum() + 0.5 * self.penalty * squares

    def _ascend(self, c: Tensor, rate: float) -> None:
        # A new tensor, because the backward pass still needs the old one.
        slope = c.square().sum() if self.method == "mdmm" else c
        self.multipliers = self.multipliers + rate * slope

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OrthogonalityConstraint:
        super()._apply(in_double(fn), recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        saved = state_dict.get(prefix + "mean")
        if saved is not None:
            self._set_units(len(saved))  # the number of units that the saved constraint had seen
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _products(Ac: Tensor, Xc: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of products (p, d) and of squares (d,) in double precision."""
    return (Xc.to(Ac.dtype).T @ Ac).double(), Ac.square().sum(0).double()


def _sum_all(*parts: Tensor) -> Tensor:
    """Parts end to end, summed over the processes of a distributed run in one message."""
    return sum_over_processes(torch.cat([part.double() for part in parts]))
