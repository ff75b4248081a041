"""Generalised projection: orthogonal outputs that stay in the range of their activation.

For an increasing ``h`` with antiderivative ``H`` (convex), let

    (a, b) = argmin  sum_i w_i H(eta_i - a - q_i'b)  +  m a,      m = sum_i w_i h(eta_i).

The first-order condition *is* ``sum_i w_i q_i h(eta_i - a - q_i'b) = 0`` together with an unchanged mean. So
``h(eta - a - Qb)`` is exactly orthogonal to the protected columns, stays in the range of ``h`` and keeps its mean. The
problem is convex, has ``r + 1`` unknowns per unit and always has a solution. With the identity as ``h`` it is the
ordinary projection; with ReLU it is asymmetric least squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.errors import InputError
from setsquare.families import Activation, activation, contrasts
from setsquare.families.softmax import softmax_terms
from setsquare.projection.basis import Basis, protected_basis
from setsquare.rows.blocks import mean_weight
from setsquare.rows.parallel import row_slices, single_threaded_blas
from setsquare.rows.products import weighted_gram, weighted_product
from setsquare.tables.validation import check_same_rows, require_finite

Index: TypeAlias = "IntArray | slice"

#: Largest remaining correlation, and rounding error allowed relative to the size of the output.
TOLERANCE, ROUNDING = 1e-10, 1e-14


@dataclass(frozen=True, slots=True)
class GeneralizedProjector:
    """Fitted generalised projection: ``eta -> eta - [1, Q] @ coefficients`` for each unit.

    Correcting a row requires its protected columns.

    Attributes
    ----------
    basis : Basis
    activation : Activation
    coefficients : ndarray of shape (1 + r, d)
        Shift ``a`` of each unit in the first row, then ``b`` in the basis.
    residual : ndarray of shape (d,)
        Largest absolute correlation of the corrected output with the basis, for each unit.
    converged : ndarray of bool of shape (d,)
    n_iter : int

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0], [0.0], [1.0], [1.0]])
    >>> projector = GeneralizedProjector.fit(np.array([-1.0, 1.0, 0.0, 3.0]), X, "relu")
    >>> projector.predict(np.array([-1.0, 1.0, 0.0, 3.0]), X)
    array([0., 2., 0., 2.])
    """

    basis: Basis
    activation: Activation
    coefficients: Array
    residual: Array
    converged: BoolArray
    n_iter: int

    @classmethod
    @single_threaded_blas()  # products of thin matrices are slower on several cores
    def fit(
        cls,
        eta: Array,
        X: Array,
        h: str | Activation,
        weight: Array | None = None,
        *,
        target: Array | float | None = None,
        names: tuple[str, ...] | None = None,
        max_iter: int = 100,
    ) -> GeneralizedProjector:
        """Fit the correction of the pre-activations ``eta`` (n, ...) by ``X`` (n, p).

        Parameters
        ----------
        eta : ndarray of shape (n,) or (n, ...)
            Each column is a separate unit; for the softmax the columns are the classes.
        X : ndarray of shape (n, p)
        h : str or Activation
            "identity", "sigmoid", "exp", "relu", "leaky_relu", "softplus", "elu", "gelu" (above -0.7518, where it
            increases), "tanh", "softmax", the name of a family, or
            :func:`~setsquare.families.monotone_activation` of any increasing function.
        weight : ndarray of shape (n,), optional
        target : float or ndarray of shape (d,), optional
            Mean of the corrected output; by default the mean of ``h(eta)``.
        names : tuple of str, optional
            Names of the protected columns.
        max_iter : int
        """
        h = activation(h)
        check_same_rows("The protected columns have", len(X), "the predictions have", len(eta))
        units = np.asarray(eta, dtype=np.float64).reshape(len(eta), -1)
        require_finite("The pre-activations have", units)
        if weight is not None and not weight.all():  # drop them: 0 times an infinite output would be NaN
            units, X, weight = units[weight > 0.0], X[weight > 0.0], weight[weight > 0.0]
        basis = protected_basis(X, weight, names)
        w = mean_weight(len(X), weight)
        _check_reach(h, units)
        mean = np.asarray(w @ h(units) if target is None else np.broadcast_to(target, units.shape[1]))
        Q, d = basis.apply(X), units.shape[1]
        with np.errstate(invalid="ignore", over="ignore"):  # steps that overflow are rejected and damped
            if h.name == "softmax":  # one joint problem, in contrasts because only differences matter
                C = contrasts(d)
                B, residual, converged, n_iter = _minimise(
                    partial(_softmax_sums, units @ C, Q, w, mean @ C), (1 + basis.rank) * (d - 1), 1, max_iter
                )
                B = B.reshape(1 + basis.rank, d - 1) @ C.T
                return cls(basis, h, B, np.repeat(residual, d), np.repeat(converged, d), n_iter)
            return cls(basis, h, *_minimise(partial(_unit_sums, units, Q, w, h, mean), 1 + basis.rank, d, max_iter))

    @single_threaded_blas()
    def apply(self, eta: Array, X: Array) -> Array:
        """Corrected pre-activations, in the shape of ``eta`` (n, ...)."""
        a, b = self.coefficients[0], self.coefficients[1:]
        shift: Array = a + self.basis.apply(X) @ b
        return np.asarray(eta, dtype=np.float64) - shift.reshape(eta.shape)

    def predict(self, eta: Array, X: Array) -> Array:
        """Corrected output ``h(eta - a - Qb)``, in the shape of ``eta``."""
        return self.activation(self.apply(eta, X))


def _check_reach(h: Activation, units: Array) -> None:
    """Refuse pre-activations with an infinite output; the activation is monotone, so checking both ends is enough."""
    ends = np.array([units.min(initial=0.0), units.max(initial=0.0)]) if h.domain[1] == np.inf else units
    if h.name != "softmax" and not np.isfinite(h(ends)).all():
        raise InputError(
            f"The pre-activations range from {units.min():g} to {units.max():g}, where {h.name} has no finite "
            "value or decreases: subtract a constant from all of them, or check their scale."
        )


class _ProblemState(NamedTuple):
    """State of d convex problems in m unknowns: value (d,), gradient (m, d), Hessian (d, m, m), and four sizes (d,).

    ``magnitude`` is the sum of the absolute terms of the value, ``spread`` the standard deviation of the output,
    ``size`` its root mean square, ``reach`` that of the pre-activations.
    """

    value: Array
    gradient: Array
    hessian: Array
    magnitude: Array
    spread: Array
    size: Array
    reach: Array

    @property
    def gap(self) -> Array:
        """Largest covariance with the basis, and distance from the mean, (d,)."""
        largest: Array = np.abs(self.gradient).max(axis=0)
        return largest

    @property
    def left(self) -> Array:
        """The gap as a correlation, or relative to the size of the output if that is constant."""
        flat = self.spread <= 100.0 * ROUNDING * self.size
        left = self.gap / np.where(flat, np.maximum(self.size, np.finfo(float).tiny), self.spread)
        return np.where(np.isfinite(self.size) & np.isfinite(left), left, np.inf)  # an overflow is not convergence

    def take(self, chosen: BoolArray) -> _ProblemState:
        """Select some of the problems."""
        return _ProblemState(*(part[chosen] if part.ndim == 3 else part[..., chosen] for part in self))


def _unit_sums(eta: Array, Q: Array, w: Array, h: Activation, mean: Array, B: Array, units: Index) -> _ProblemState:
    """Compute the sums of all units over row blocks; the units share the products of basis columns."""
    m, d = B.shape
    mean = mean[units]
    scale = np.where(mean != 0.0, np.abs(mean), 1.0)  # squares of predictions beyond 1e154 or below 1e-154 are none
    i, j = np.triu_indices(m)
    total, spread, reach = np.zeros(d), np.zeros(d), np.zeros(d)
    gradient, upper = np.zeros((m, d)), np.zeros((len(i), d))
    gradient[0] = mean
    for rows in row_slices(len(eta), d + (m if d == 1 else len(i))):
        D = np.column_stack([np.ones(len(w[rows])), Q[rows]])
        u = eta[rows, units] - D @ B
        H, out, slope, _ = h.evaluate(u)
        total += w[rows] @ H
        gradient -= D.T @ (w[rows, None] * out)
        if d == 1:  # computed as a Gram matrix, without storing products of columns
            upper += weighted_gram(D, w[rows] * slope[:, 0])[i, j, None]
        else:
            upper += (D[:, i] * D[:, j]).T @ (w[rows, None] * slope)
        spread += w[rows] @ ((out - mean) / scale) ** 2
        reach += w[rows] @ u**2
    hessian = np.empty((d, m, m))
    hessian[:, i, j] = hessian[:, j, i] = upper.T
    pull = mean * B[0]
    sizes = scale * np.sqrt(spread), scale * np.sqrt(spread + (mean / scale) ** 2), np.sqrt(reach)
    return _ProblemState(total + pull, gradient, hessian, np.abs(total) + np.abs(pull), *sizes)


def _softmax_sums(scores: Array, Q: Array, w: Array, mean: Array, B: Array, _: Index) -> _ProblemState:
    """Compute the sums of the softmax problem; ``B`` holds its (1 + r) x (classes - 1) unknowns in one column."""
    k, m = scores.shape[1], 1 + Q.shape[1]
    total, spread, reach = np.zeros(1), np.zeros(1), np.zeros(1)
    gradient, hessian = np.zeros((m, k)), np.zeros((m, k, m, k))
    gradient[0] = mean
    nothing = np.zeros((1, k))
    for rows in row_slices(len(scores), k * k + m):
        D = np.column_stack([np.ones(len(w[rows])), Q[rows]])
        u = scores[rows] - D @ B.reshape(m, k)
        terms = softmax_terms(nothing, u, nothing)
        total += w[rows] @ terms.loss
        gradient -= weighted_product(D, w[rows], terms.mean)
        for a in range(k):
            for b in range(k):
                hessian[:, a, :, b] += weighted_product(D, w[rows] * terms.mean_slope[:, a, b], D)
        spread += (w[rows] @ (terms.mean - mean) ** 2).sum()
        reach += (w[rows] @ u**2).sum()
    pull = mean @ B.reshape(m, k)[:1].T
    sizes = np.sqrt(spread), np.ones(1), np.sqrt(reach)
    hessian = hessian.reshape(1, m * k, m * k)
    return _ProblemState(total + pull, gradient.reshape(-1, 1), hessian, np.abs(total) + np.abs(pull), *sizes)


def _minimise(
    sums: Callable[[Array, Index], _ProblemState], m: int, d: int, max_iter: int
) -> tuple[Array, Array, BoolArray, int]:
    """Minimise d convex functions by Newton steps, with Levenberg-Marquardt damping where a step fails.

    Each problem has its own damping; problems that have converged are skipped. Returns the solution (m, d), the
    remaining correlation (d,), whether each converged (d,), and the number of steps.
    """
    B, damping = np.zeros((m, d)), np.zeros(d)
    residual, converged = np.full(d, np.inf), np.zeros(d, dtype=bool)
    active: Index = slice(None)
    state = sums(B, active)
    for n_iter in range(max_iter + 1):
        reached = (state.left <= TOLERANCE) | (state.gap <= ROUNDING * state.size)
        # A step beyond the tolerance is nearly free and squares the error, so go on as long as it helps.
        idle = (damping[active] == 0.0) & (state.left >= 0.5 * residual[active])
        finished = reached & (idle | (state.gap <= ROUNDING * state.size))
        residual[active], converged[active] = state.left, reached
        if finished.all() or n_iter == max_iter:
            break
        left_over = np.arange(d)[active][~finished]
        state = state.take(~finished)
        active = slice(None) if len(left_over) == d else left_over  # a slice is a view, an index array would copy
        step, slope = _damped_step(state, damping[active])
        trial = sums(B[:, active] + step, active)
        better = _is_better(state, trial, slope)
        B[:, active] += np.where(better, step, 0.0)
        damping[active] = _next_damping(state, damping[active], step, better)
        by_unit = [better[:, None, None] if part.ndim == 3 else better for part in state]
        state = _ProblemState(*map(np.where, by_unit, trial, state))
    return B, residual, converged, n_iter


def _damped_step(state: _ProblemState, damping: Array) -> tuple[Array, Array]:
    m = len(state.gradient)
    # The ridge makes the Hessian invertible for a ReLU unit with fewer active rows than unknowns.
    ridge = 1e-14 * np.einsum("dii->d", state.hessian) + np.finfo(float).tiny + damping
    H = state.hessian + ridge[:, None, None] * np.eye(m)
    step = -np.linalg.solve(H, state.gradient.T[:, :, None])[:, :, 0].T
    return step, np.einsum("md,md->d", state.gradient, step)


def _is_better(state: _ProblemState, trial: _ProblemState, slope: Array) -> BoolArray:
    """Whether to accept a step: the value fell or, where rounding hides this, the gradient did."""
    fell = trial.value <= state.value + 1e-4 * slope  # False for NaN, outside the domain
    hidden = np.abs(trial.value - state.value) <= 1e-13 * state.magnitude
    return fell | (hidden & (trial.gap <= np.maximum(0.9 * state.gap, ROUNDING * state.size)))


def _next_damping(state: _ProblemState, damping: Array, step: Array, better: BoolArray) -> Array:
    """Raise the damping after a failed step, at first to keep steps within the pre-activations' size; else lower it."""
    length = np.minimum(np.linalg.norm(step, axis=0), state.reach + np.finfo(float).tiny)
    first = np.linalg.norm(state.gradient, axis=0) / length
    eased = np.where(damping > 1e-3 * first, damping / 8.0, 0.0)
    return np.where(better, eased, np.maximum(4.0 * damping, first))
