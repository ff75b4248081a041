"""Constrained training: the weights move until the covariance with the protected columns is zero.

    min over w, max over lam   loss(w) + <lam, c(w)> + penalty/2 |c(w)|^2

with ``c`` (p x units) the correlations of the protected columns (orthonormalised) with the units. On minibatches the
*value* of ``c`` is a running one and its *gradient* is the batch's: the gradient is unbiased but for the lag of the
running value, while the square of a noisy batch covariance would punish noise as if it were dependence.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from setsquare.errors import InputError, MissingValuesError
from setsquare.nn.functional import flatten, read_protected

Method: TypeAlias = Literal["augmented_lagrangian", "mdmm"]
#: Ascent on the multipliers a call. The squared constraint of MDMM is small near zero, so its multiplier must run.
RATES = {"augmented_lagrangian": 0.05, "mdmm": 1.0}
#: Eigenvalues of the protected columns' correlation matrix below this are collinearity.
COLLINEAR = 1e-10
_BY_UNIT = ("multipliers", "mean", "variance", "covariance")


class OrthogonalityConstraint(nn.Module):
    """Penalty that drives the correlation of any output of a network with the protected columns to zero.

    Add ``constraint(activations, protected)`` to the loss of each batch: predictions, activations, or activations
    pooled over space or time. The network needs no protected columns afterwards. What holds is what :attr:`residual`
    says: constrained training is exact only in the limit (:func:`~setsquare.nn.head.refit_head` is exact). Its
    multipliers must move more slowly than the weights: where the residual swings, lower ``rate``.

    Parameters
    ----------
    n_protected : int
        Columns of ``protected``; categories as dummy columns.
    method : {"augmented_lagrangian", "mdmm"}
        "augmented_lagrangian" has one multiplier for each covariance. "mdmm" is the paper's: one multiplier for the sum
        of squares, whose gradient vanishes on the constraint, so it comes near zero and stalls.
    penalty : float
        Weight of the squared correlations (for "mdmm" the damping, of the square of their sum).
    rate : float, optional
        Step of the multipliers in each training call; 0 leaves them to :meth:`step`.
    momentum : float
        Weight of a new batch in the running covariances; 1 where each batch is the whole data.

    Attributes
    ----------
    multipliers : Tensor of shape (p, units), or (1, 1) for "mdmm"

    Examples
    --------
    >>> import torch
    >>> sex = torch.tensor([0.0, 0.0, 1.0, 1.0])
    >>> constraint = OrthogonalityConstraint(1, rate=0.0)
    >>> float(constraint(torch.tensor([0.0, 1.0, 0.0, 1.0]), sex)), constraint.residual
    (0.0, 0.0)
    >>> constraint.reset()
    >>> float(constraint(torch.tensor([0.0, 0.0, 1.0, 1.0]), sex)), constraint.residual
    (1.0, 1.0)
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
        penalty: float = 2.0,
        rate: float | None = None,
        momentum: float = 0.25,
    ) -> None:
        super().__init__()
        if method not in RATES:
            raise InputError(f"Unknown method {method!r}: choose one of {', '.join(RATES)}.")
        if n_protected < 1:
            raise InputError(f"n_protected must be the number of protected columns, at least 1, not {n_protected}.")
        if not 0.0 < momentum <= 1.0:
            raise InputError(f"momentum must be above 0 and at most 1, not {momentum}.")
        self.rate = RATES[method] if rate is None else rate
        if penalty < 0.0 or self.rate < 0.0:
            raise InputError(f"penalty and rate must be 0 or more, not {penalty} and {self.rate}.")
        self.n_protected, self.method, self.penalty, self.momentum = n_protected, method, penalty, momentum
        for name in (*_BY_UNIT, "n_calls", "n_rows", "protected_mean", "protected_scatter"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        self.reset()

    def reset(self) -> None:
        """Forget the multipliers and all that was seen; the number of units is open again."""
        p, zeros = self.n_protected, self.n_rows.new_zeros
        self.n_calls, self.n_rows = zeros(()), zeros(())
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
        with torch.autocast(A.device.type, enabled=False):
            c = self._correlation(*self._moments(A, X))
            value = self._penalty(c).to(A.dtype)
        if self.training:
            self._ascend(c.detach(), self.rate)
        return value

    def step(self) -> None:
        """Take the classical step of the multipliers, by ``penalty`` times the running correlation.

        For ``rate=0``: call it once the weights have settled, such as after each epoch.
        """
        self._ascend(self.correlation, self.penalty)

    @property
    def correlation(self) -> Tensor:
        """Running correlations of the orthonormalised protected columns with the units, (p, units)."""
        return self._correlation(self.covariance, self.variance)

    @property
    def residual(self) -> float:
        """Largest running correlation, as noisy as about ``1 / momentum`` batches are; NaN before the first call."""
        return float(self.correlation.abs().max()) if self.n_calls > 0 else float("nan")

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.n_protected}, {self.method!r}, penalty={self.penalty:g}, rate={self.rate:g}"

    def _moments(self, A: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """Covariance (p, d) and variance (d,): running values with the gradient of this batch."""
        if not self.n_calls:
            if not self.training:
                raise InputError("The constraint has not seen a batch: call it in training first.")
            self._set_units(A.shape[1])
        d = len(self.mean)
        if A.shape[1] != d:
            raise InputError(f"The activations have {A.shape[1]} units, not {d} as before: use one constraint a layer.")
        weight = max(self.momentum, 1.0 / (1.0 + float(self.n_calls)))
        rows, mean, scatter = self._seen(X) if self.training else (None, self.protected_mean, None)
        unit_mean = self.mean.lerp(A.detach().mean(0).double(), weight) if self.training else self.mean
        # Centred on the running means, the batch's covariance has no bias however small the batch is.
        Xc, Ac = X - mean, A - unit_mean.to(A.dtype)
        covariance, variance = (Xc.to(A.dtype).T @ Ac).double() / len(A), Ac.square().mean(0).double()
        if not torch.isfinite(variance).all():
            raise MissingValuesError(
                "The activations have missing or infinite values: lower the learning rate if the network diverged."
            )
        if rows is not None and scatter is not None:
            self.n_rows, self.protected_mean, self.protected_scatter = rows, mean, scatter
            self.n_calls, self.mean = self.n_calls + 1.0, unit_mean
            self.covariance = self.covariance.lerp(covariance.detach(), weight)
            self.variance = self.variance.lerp(variance.detach(), weight)
        return (
            self.covariance + (covariance - covariance.detach()),
            self.variance + (variance - variance.detach()),
        )

    def _set_units(self, d: int) -> None:
        p, zeros = self.n_protected, self.n_rows.new_zeros
        self.mean, self.variance, self.covariance = zeros(d), zeros(d), zeros(p, d)
        self.multipliers = zeros(1, 1) if self.method == "mdmm" else zeros(p, d)

    def _seen(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, mean and scatter of all protected rows so far: they do not move, so nothing is forgotten."""
        rows = self.n_rows + len(X)
        centre = X.mean(0)
        apart = centre - self.protected_mean
        mean = self.protected_mean + apart * (len(X) / rows)
        within = (X - centre).T @ (X - centre)
        between = torch.outer(apart, apart) * (self.n_rows * len(X) / rows)
        return rows, mean, self.protected_scatter + within + between

    def _correlation(self, covariance: Tensor, variance: Tensor) -> Tensor:
        spread = torch.where(variance > 0.0, variance, 1.0).sqrt()  # a dead unit has no covariance either
        return self._whitening() @ covariance / spread

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

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for name in _BY_UNIT:  # their shape is that of the units that the saved constraint had seen
            saved = state_dict.get(prefix + name)
            if saved is not None:
                setattr(self, name, self.n_rows.new_zeros(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
