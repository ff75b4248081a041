"""Constrained training: a penalty with multipliers drives the covariance with the protected columns to zero.

    min over w, max over lam   loss(w) + <lam, c(w)> + penalty/2 |c(w)|^2

where ``c`` (p x units) holds the covariances of the orthonormalised protected columns with the units, divided by a
scale. On minibatches, the *value* of ``c`` is a running mean and its *gradient* is that of the batch. This gradient is
unbiased except for the lag of the running mean; the square of a noisy batch covariance would penalise noise as if it
were dependence.

By default the scale is a constant. Divided by the units' own standard deviation, ``c`` has unbounded gradients where
units hardly vary, as the predictions of an untrained network do: the noise outweighs the loss, and they stay constant.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from setsquare.errors import InputError
from setsquare.nn.distributed import sum_over_processes
from setsquare.nn.functional import check_n_given, check_n_protected, full_precision, refuse_missing
from setsquare.nn.moments import MIN_EIGENVALUE, DoubleModule
from setsquare.nn.network_layers import refuse_checkpoint
from setsquare.nn.row_axes import Rows, check_rows, select_rows
from setsquare.tables.validation import check_choice

Method: TypeAlias = Literal["augmented_lagrangian", "mdmm"]
Scale: TypeAlias = float | Literal["unit", "shared"]
#: Step of the multipliers per call. The squared constraint of MDMM is small near zero, so its step must be large.
RATES = {"augmented_lagrangian": 0.25, "mdmm": 50.0}
#: A unit with a standard deviation below this share of `scale`, or of its root mean square, counts as constant.
MIN_SPREAD = 0.01


class OrthogonalityConstraint(DoubleModule):
    """Penalty that drives the covariance of any output of a network with the protected columns to zero.

    Add ``constraint(activations, protected)`` to the loss of each batch: predictions, activations, or activations
    pooled over space or time. The network does not need the protected columns for prediction. Constrained training is
    exact only in the limit: :attr:`residual` is the correlation that remains on recent training batches, so audit the
    predictions on new rows (:func:`~setsquare.nn.head.refit_head` is exact on its rows). The multipliers must move more
    slowly than the weights: if the residual oscillates, reduce ``rate``. A constant output is orthogonal to everything;
    :attr:`constant` and a residual of NaN show when training ends there.

    Parameters
    ----------
    n_protected : int
        Number of columns of ``protected``; categories are dummy columns.
    method : {"augmented_lagrangian", "mdmm"}
        "augmented_lagrangian" has one multiplier per covariance. "mdmm" is the method of the paper: one multiplier for
        the sum of squares. The gradient of this sum vanishes on the constraint, so training stalls close to it.
    penalty : float
        Weight of the squared covariances; for "mdmm" the damping, the weight of the square of their sum.
    rate : float, optional
        Step of the multipliers in each training call; with 0 only :meth:`step` changes them.
    momentum : float
        Weight of a new batch in the running covariances; 1 if each batch is the whole data set.
    scale : float, "unit" or "shared"
        Standard deviation by which covariances are divided. A number, for predictions: that of the outcome; the default
        is that of a balanced binary outcome. "unit": each unit's own, so that all units have the same weight; gradients
        grow as a unit becomes constant, and each dead unit (always zero after ReLU) lowers the penalty. "shared": that
        of all units together, so that the squares add up to the share of the units' variance that the protected columns
        explain. Use "shared" for hidden layers: a typical unit that dies does not change the penalty.
    rows : {"samples", "tokens", "pixels"}
        As in :class:`~setsquare.nn.Orthogonalize`: with "tokens" or "pixels" the positions share one constraint
        per unit.
    n_given : int
        Number of further columns of ``protected``, the last ones, that are controls: the covariance is that with the
        residuals of the protected columns on them. For orthogonality within each class of an outcome, pass the columns
        of :func:`~setsquare.nn.within_classes`.

    Attributes
    ----------
    multipliers : Tensor of shape (p, units), or (1, 1) for "mdmm"

    Notes
    -----
    In a distributed run the moments are computed from the rows of all processes, so each process must pass the same
    number of batches. The gradients of a process are those of its own rows times the number of processes: their average
    over the processes, which ``DistributedDataParallel`` takes, is the gradient of all rows.

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
        rows: Rows = "samples",
        n_given: int = 0,
    ) -> None:
        super().__init__()
        check_rows(rows)
        self.rows: Rows = rows
        check_choice("method", method, tuple(RATES))
        check_n_protected(n_protected)
        check_n_given(n_given, n_protected, False)
        self.n_given, self._n_columns = n_given, n_protected + n_given
        if not (0.0 < scale < torch.inf if isinstance(scale, int | float) else scale in ("unit", "shared")):
            raise InputError(f"scale must be a positive number, 'unit' or 'shared', not {scale!r}.")
        if not 0.0 < momentum <= 1.0:
            raise InputError(f"momentum must be above 0 and at most 1, not {momentum}.")
        self.rate = RATES[method] if rate is None else rate
        if penalty < 0.0 or self.rate < 0.0:
            raise InputError(f"penalty and rate must be 0 or more, not {penalty} and {self.rate}.")
        self.n_protected, self.method, self.penalty, self.momentum = n_protected, method, penalty, momentum
        self.scale = scale
        for name in OrthogonalityConstraint.__annotations__:
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        self.reset()

    def reset(self) -> None:
        """Reset the multipliers and all moments; the next batch sets the number of units."""
        p, zeros = self._n_columns, self.n_rows.new_zeros
        # Not of shape (): torch.compile treats such a float64 as a constant and loses what is written to it.
        self.n_calls, self.n_rows = zeros(1), zeros(1)
        self.protected_mean, self.protected_scatter = zeros(p), zeros(p, p)
        self._set_units(0)

    def forward(self, activations: Tensor, protected: Tensor, mask: Tensor | None = None) -> Tensor:
        """Penalty of a batch, a scalar to add to the loss; ``protected`` is (n, p), or (n,) for one column.

        Each position of ``activations`` (n, ...) beyond the first axis is a unit with its own constraint, unless
        ``rows`` says otherwise; then ``mask`` (n, positions) is true for the positions that count.
        """
        if self.training:
            refuse_checkpoint("The constraint")
        A, X = select_rows(activations, protected, mask, self.rows, self._n_columns)
        if self.n_rows.device != A.device:
            self.to(A.device)
        with full_precision(A):
            c = self._relative(*(self._learn(A, X) if self.training else self._evaluate(A, X)), self.scale)
            value = self._penalty(c).to(A.dtype)
        if self.training:
            self._ascend(c.detach(), self.rate)
        return value

    def step(self) -> None:
        """Take the classical step of the multipliers: ``penalty`` times the running correlation.

        With ``rate=0``, call it when the weights have converged, for example after each epoch.
        """
        self._ascend(self._relative(self.covariance, self.variance, self.scale), self.penalty)

    @property
    def correlation(self) -> Tensor:
        """Running correlations of the orthonormalised protected columns with the units, (p, units)."""
        return self._relative(self.covariance, self.variance, "unit")

    @property
    def constant(self) -> Tensor:
        """Whether each unit (d,) is practically constant, relative to ``scale`` or else to its size."""
        reference = self.variance + self.mean.square() if isinstance(self.scale, str) else self.scale**2
        return self.variance <= MIN_SPREAD**2 * reference

    @property
    def residual(self) -> float:
        """Largest running correlation of a unit that varies, estimated from about ``1 / momentum`` batches.

        NaN before the first call, and if all units are constant.
        """
        left = self.correlation[:, ~self.constant]
        return float(left.abs().max()) if left.numel() else float("nan")

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"{self.n_protected}, {self.method!r}, penalty={self.penalty:g}, rate={self.rate:g}, scale={self.scale!r}"
        )

    def _learn(self, A: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """Update the running covariance (p, d) and variance (d,); return them with the gradients of this batch."""
        p, d = self._n_columns, A.shape[1]
        first = len(self.mean) == 0
        self._check_units(d)
        sums = _sum_all(X.new_tensor([1.0, len(X)]), X.sum(0), A.detach().sum(0))
        one, n, x, a = torch.split(sums, [1, 1, p, d])
        weight = (1.0 / (1.0 + self.n_calls)).clamp(min=self.momentum)
        rows, mean = self.n_rows + n, self.mean.lerp(a / n, weight)
        apart = x / n - self.protected_mean
        protected_mean = self.protected_mean + apart * (n / rows)
        # Centring on the running means keeps the covariance of a batch unbiased, however small the batch is.
        covariance, variance = _products(A - mean.to(A.dtype), X - protected_mean)
        within = (X - x / n).T @ (X - x / n)
        sums = _sum_all(within.ravel(), covariance.detach().ravel(), variance.detach()) / n
        try:
            refuse_missing(sums, "The activations have", "lower the learning rate if the network diverged")
        except InputError:
            if first:  # a refused batch must leave no trace
                self._set_units(0)
            raise
        scatter, new_covariance, new_variance = torch.split(sums, [p * p, p * d, d])
        between = torch.outer(apart, apart) * (self.n_rows * n / rows)
        # All protected rows have the same weight: unlike the units, they do not change during training.
        self.protected_scatter = self.protected_scatter + n * scatter.view(p, p) + between
        self.protected_mean, self.n_rows, self.n_calls, self.mean = protected_mean, rows, self.n_calls + 1.0, mean
        self.covariance = self.covariance.lerp(new_covariance.view(p, d), weight)
        self.variance = self.variance.lerp(new_variance, weight)
        return self._attach(covariance * (one / n), variance * (one / n))

    def _evaluate(self, A: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same without updating the running values."""
        if len(self.mean) == 0:
            raise InputError("The constraint has not seen a batch: call it in training mode first.")
        self._check_units(A.shape[1])
        covariance, variance = _products(A - self.mean.to(A.dtype), X - self.protected_mean)
        return self._attach(covariance / len(A), variance / len(A))

    def _attach(self, covariance: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the running values with the gradients of the batch values."""
        return self.covariance + (covariance - covariance.detach()), self.variance + (variance - variance.detach())

    def _check_units(self, d: int) -> None:
        if len(self.mean) == 0:
            self._set_units(d)
        if len(self.mean) != d:
            raise InputError(
                f"The activations have {d} units, not {len(self.mean)} as before: use one constraint per layer."
            )

    def _set_units(self, d: int) -> None:
        zeros = self.n_rows.new_zeros
        self.mean, self.variance, self.covariance = zeros(d), zeros(d), zeros(self._n_columns, d)
        self.multipliers = zeros(1, 1) if self.method == "mdmm" else zeros(self.n_protected, d)

    def _relative(self, covariance: Tensor, variance: Tensor, scale: Scale) -> Tensor:
        white = self._whitening() @ covariance
        if not isinstance(scale, str):
            return white / scale
        variance = variance.sum() if scale == "shared" else variance
        return white / torch.where(variance > 0.0, variance, 1.0).sqrt()  # a dead unit has no covariance either

    def _whitening(self) -> Tensor:
        """Symmetric inverse square root of the protected covariance; unlike a triangular one, it changes smoothly."""
        S = self.protected_scatter / self.n_rows.clamp(min=1.0)
        if not self.n_given:
            return self._inverse_root(S)
        p = self.n_protected
        root = self._inverse_root(S[p:, p:])
        # Residuals of the protected columns on the controls.
        residual = torch.cat([torch.eye(p, dtype=S.dtype, device=S.device), -S[:p, p:] @ root.T @ root], dim=1)
        whitening: Tensor = self._inverse_root(residual @ S @ residual.T) @ residual
        return whitening

    @staticmethod
    def _inverse_root(S: Tensor) -> Tensor:
        variance = S.diagonal()
        scale = torch.where(variance > 0.0, variance, 1.0).rsqrt()
        values, vectors = torch.linalg.eigh(S * torch.outer(scale, scale))
        root = torch.where(values > MIN_EIGENVALUE, values, torch.inf).rsqrt()
        whitening: Tensor = (vectors * root) @ vectors.T * scale
        return whitening

    def _penalty(self, c: Tensor) -> Tensor:
        squares = c.square().sum()
        if self.method == "mdmm":
            return (self.multipliers * squares).sum() + 0.5 * self.penalty * squares.square()
        return (self.multipliers * c).sum() + 0.5 * self.penalty * squares

    def _ascend(self, c: Tensor, rate: float) -> None:
        # Not in place: the backward pass still needs the old tensor.
        slope = c.square().sum() if self.method == "mdmm" else c
        self.multipliers = self.multipliers + rate * slope

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        saved = state_dict.get(prefix + "mean")
        if saved is not None:
            self._set_units(len(saved))  # the number of units of the saved constraint
        # Not that of DoubleModule, which takes any shape: multipliers of another method must be refused.
        super(DoubleModule, self)._load_from_state_dict(state_dict, prefix, *arguments)


def _products(Ac: Tensor, Xc: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums of products (p, d) and of squares (d,), in double precision."""
    return (Xc.to(Ac.dtype).T @ Ac).double(), Ac.square().sum(0).double()


def _sum_all(*parts: Tensor) -> Tensor:
    """Concatenate the parts and sum them over the processes of a distributed run in one message."""
    return sum_over_processes(torch.cat([part.double() for part in parts]))
