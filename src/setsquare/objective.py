"""The constrained problem, and its loss, constraint and derivatives as sums over row blocks.

    min over gamma   sum_i w_i loss(y_i, eta_i) + l2/2 |gamma|^2      subject to   c = sum_i w_i q_i h(eta_i) = 0,
    eta_i = offset_i + intercept + z_i'gamma,

with ``q`` an orthonormal, centred basis of the protected columns: the vector constraint of Corollary 1, not its square.

Solvers see none of the rows. They work in *whitened* coordinates ``theta``, in which the features have mean zero and
unit covariance, so that scale and collinearity of the features do not concern them:
``[intercept; gamma] = to_raw @ theta``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from setsquare.families import Family
from setsquare.rows import Block, Rows, Sums, weighted_product
from setsquare.typing import Array


class Values(NamedTuple):
    """Loss and constraint at a point; ``spread`` is the standard deviation of the predictions there."""

    loss: float
    c: Array
    spread: float


class Model(NamedTuple):
    """Everything up to second order at a point ``theta`` of length m, for r constraints (times classes minus one).

    Attributes
    ----------
    loss : float
    c : ndarray of shape (r,)
    spread : float
    g : ndarray of shape (m,)
        Gradient of the loss.
    J : ndarray of shape (r, m)
        Jacobian of the constraint.
    H : ndarray of shape (m, m)
        Hessian of the Lagrangian ``loss + lam'c``; it can be indefinite. Not computed (NaN) without multipliers.
    """

    loss: float
    c: Array
    spread: float
    g: Array
    J: Array
    H: Array


@dataclass(frozen=True, slots=True)
class Objective:
    """What a solver is given.

    Attributes
    ----------
    rows : Rows
    family : Family
    to_raw : ndarray of shape (1 + q, m)
        Takes whitened coordinates to intercept and coefficients of the features in ``rows``.
    penalty : ndarray of shape (m, m)
        Ridge in whitened coordinates.
    n_predictors : int
        Linear predictors a row: 1, or classes minus one.
    n_basis : int
        Rank of the protected columns.
    start : ndarray of shape (m * n_predictors,)
        The model with nothing but an intercept: without an offset it is always feasible.
    slope_scale : float
        Size of the rows' slopes at the start, to which gradients are compared.
    """

    rows: Rows
    family: Family
    to_raw: Array
    penalty: Array
    n_predictors: int
    n_basis: int
    start: Array
    slope_scale: float

    @property
    def n_parameters(self) -> int:
        """Length of ``theta``."""
        return int(self.to_raw.shape[1]) * self.n_predictors

    @property
    def n_constraints(self) -> int:
        """Length of ``c``."""
        return self.n_basis * self.n_predictors

    def unconstrained(self) -> Objective:
        """Return the same problem without its constraint."""
        return replace(self, n_basis=0)

    def raw(self, theta: Array) -> Array:
        """Intercept and coefficients, (1 + q, k), of the features in ``rows``."""
        return self.to_raw @ theta.reshape(self.n_predictors, -1).T

    def values(self, theta: Array) -> Values:
        """Loss and constraint at ``theta``: one reading of the rows."""
        raw = self.raw(theta)

        def kernel(block: Block) -> Sums:
            loss, mean = self.family.value_terms(block.y, linear_predictor(block, raw))
            return np.asarray(block.weight @ loss), *self._constraint_sums(block, mean)

        loss, c, total, square = self.rows.reduce(kernel)
        return Values(float(loss) + self._ridge(theta), c.T.ravel(), _spread(total, square))

    def model(self, theta: Array, lam: Array | None) -> Model:
        """Loss, constraint, gradient, Jacobian and (given multipliers) Hessian of the Lagrangian, in one reading."""
        first_order = lam is None
        lam = np.zeros(self.n_constraints) if lam is None else lam
        raw, multipliers = self.raw(theta), lam.reshape(self.n_predictors, -1).T

        def kernel(block: Block) -> Sums:
            terms = self.family.terms(block.y, linear_predictor(block, raw), self._basis(block) @ multipliers)
            head = np.asarray(block.weight @ terms.loss), *self._constraint_sums(block, terms.mean)
            if not np.isfinite(head[0]):
                return *head, *self._nothing()
            curvature = None if first_order else terms.curvature
            return *head, *self._derivative_sums(block, terms.slope, terms.mean_slope, curvature)

        with np.errstate(over="ignore", invalid="ignore"):
            loss, c, total, square, g, J, H = self.rows.reduce(kernel)
        k, m, T = self.n_predictors, self.to_raw.shape[1], self.to_raw
        gradient, jacobian = (T.T @ g).T, (J @ T).transpose(0, 2, 1, 3).reshape(k * self.n_basis, k * m)
        hessian = T.T @ H @ T
        if self.penalty.any():
            gradient = gradient + theta.reshape(k, -1) @ self.penalty
            hessian[range(k), range(k)] += self.penalty
        return Model(
            float(loss) + self._ridge(theta),
            c.T.ravel(),
            _spread(total, square),
            gradient.ravel(),
            jacobian,
            hessian.transpose(0, 2, 1, 3).reshape(k * m, k * m),
        )

    def _basis(self, block: Block) -> Array:
        return block.Q[:, : self.n_basis]

    def _constraint_sums(self, block: Block, mean: Array) -> Sums:
        weighted = block.weight[:, None] * mean
        return self._basis(block).T @ weighted, weighted.sum(axis=0), np.einsum("nk,nk->k", weighted, mean)

    def _ridge(self, theta: Array) -> float:
        if not self.penalty.any():
            return 0.0
        t = theta.reshape(self.n_predictors, -1)
        return 0.5 * float(np.sum((t @ self.penalty) * t))

    def _nothing(self) -> Sums:
        """Derivatives of a point outside the domain, which no solver uses."""
        k, q1 = self.n_predictors, self.to_raw.shape[0]
        return np.zeros((q1, k)), np.zeros((k, k, self.n_basis, q1)), np.zeros((k, k, q1, q1))

    def _derivative_sums(self, block: Block, slope: Array, mean_slope: Array, curvature: Array | None) -> Sums:
        """Gradient (1+q, k), Jacobian (k, k, r, 1+q), Hessian (k, k, 1+q, 1+q) of a block, with implicit intercept."""
        k, r, q1 = self.n_predictors, self.n_basis, self.to_raw.shape[0]
        w, Z = block.weight, block.Z
        J, H = np.empty((k, k, r, q1)), np.empty((k, k, q1, q1))
        g = np.empty((q1, k))
        g[0], g[1:] = w @ slope, weighted_product(Z, w, slope)
        for a in range(k):
            for b in range(a + 1):
                # Row-wise sums ride along in one product: r constraints and the intercept's column of the Hessian.
                weight = w * (np.nan if curvature is None else curvature[:, a, b])
                thin = np.column_stack([self._basis(block) * (w * mean_slope[:, a, b])[:, None], weight])
                edge = np.asarray(thin.T @ Z)
                J[a, b, :, 0], J[a, b, :, 1:] = thin[:, :r].sum(axis=0), edge[:r]
                H[a, b, 0, 0], H[a, b, 0, 1:], H[a, b, 1:, 0] = weight.sum(), edge[r], edge[r]
                H[a, b, 1:, 1:] = np.nan if curvature is None else weighted_product(Z, weight, Z)
                J[b, a], H[b, a] = J[a, b], H[a, b]
        return g, J, H


def linear_predictor(block: Block, raw: Array) -> Array:
    """Linear predictors (b, k) of a block for intercept and coefficients ``raw`` (1 + q, k)."""
    eta = np.asarray(block.Z @ raw[1:]) + raw[0]
    return eta if block.offset is None else eta + block.offset


def _spread(total: Array, square: Array) -> float:
    return float(np.sqrt(max(float(np.sum(square - total**2)), 0.0)))
