"""The constrained problem, and its loss, constraint and derivatives as sums over row blocks.

    min over gamma   sum_i w_i loss(y_i, eta_i) + l2/2 |gamma|^2      subject to   c = sum_i w_i q_i h(eta_i) = 0,
    eta_i = offset_i + intercept + z_i'gamma,

with ``q`` an orthonormal, centred basis of the protected columns: the vector constraint of Corollary 4, not its square.

Solvers never access the rows. They work in *whitened* coordinates ``theta``, in which the features have mean zero and
unit covariance, so they do not depend on the scale and collinearity of the features:
``[intercept; gamma] = to_raw @ theta``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np

from setsquare._typing import Array, Matrix
from setsquare.families import Family, RowTerms
from setsquare.families.barrier import add_barrier, barrier_loss
from setsquare.glm.dense_pass import DensePass, is_dense
from setsquare.glm.hessian import Whitening
from setsquare.glm.overall import Overall, RowsAt, unwrapped, wrapped
from setsquare.rows.blocks import Block, Summable
from setsquare.rows.cells import Cells
from setsquare.rows.parallel import Sums
from setsquare.rows.products import gram_and_product, thin_product, weighted_gram
from setsquare.rows.wide import pick_rows

#: Relative rounding error.
EPS = float(np.finfo(float).eps)
#: Number of rows from which on passes gather what leave-one-out systems share; for fewer, a pass of their own keeps
#: what they need of each row.
MANY_ROWS = 2**16
#: Stands for a Hessian that was not computed.
UNKNOWN = np.full((1, 1), np.nan)


class Values(NamedTuple):
    """Loss and constraint at a point, and the standard deviation of the predictions (``spread``)."""

    loss: float
    c: Array
    spread: float


class Model(NamedTuple):
    """Loss, constraint and derivatives at a point ``theta`` of length m, for r constraints (times classes minus one).

    Attributes
    ----------
    loss : float
    c : ndarray of shape (r,)
        Constraint minus its target.
    spread : float
    steepness : float
        Mean slope of the activation: the scale of the Jacobian for features strongly correlated with the protected
        columns.
    g : ndarray of shape (m,)
        Gradient of the loss.
    J : ndarray of shape (r, m)
        Jacobian of the constraint.
    H : Hessian of shape (m, m), or an operator of that shape (see ``glm.wide``)
        Hessian of the Lagrangian ``loss + lam'c``; it can be indefinite. Not computed (NaN) without multipliers.
    overall : Overall, RowsAt or None
        What leave-one-out systems share, or the rows, if the pass gathered it; a step of up to ``newton.LINEAR`` ago.
    apart : float
        Distance of the point that ``H`` is the Hessian of: 0 unless it was reused.
    """

    loss: float
    c: Array
    spread: float
    steepness: float
    g: Array
    J: Array
    H: Matrix
    overall: Overall | RowsAt | None = None
    apart: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """Intercept-only model at its maximum-likelihood value; feasible if there is no offset.

    Attributes
    ----------
    theta : ndarray of shape (m,)
    loss : float
    mean : ndarray of shape (k,)
        Mean prediction.
    slope, curvature : float
        Mean norm of the rows' slopes, and their mean curvature: the reference for gradients and eigenvalues.
    steepness : float
        Slope of the activation at the mean outcome: if the mean slope over the rows is far smaller, predictions have
        saturated at the edge of their range.
    sums : tuple of ndarray or None
        The sums of :meth:`Objective.model` at the start, if second moments give them: with a canonical link and
        without an offset every row has the same curvature.
    noise : float
        Rounding error of the loss by linear predictors far from zero: outcomes of 1e9 have seven digits left.
    """

    theta: Array
    loss: float
    mean: Array
    slope: float
    curvature: float
    steepness: float
    sums: Sums | None
    noise: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", float(EPS * np.abs(self.theta).max(initial=0.0) * self.slope))


@dataclass(frozen=True, slots=True)
class Objective:
    """Loss and constraint as functions of whitened coordinates: the input of a solver.

    Attributes
    ----------
    rows : Summable
    family : Family
    to_raw : ndarray of shape (1 + q, m), or an operator of that shape
        Maps whitened coordinates to intercept and coefficients of the features in ``rows``.
    penalty : ndarray of shape (m, m)
        Ridge in whitened coordinates.
    n_predictors : int
        Linear predictors per row: 1, or classes minus one.
    n_basis : int
        Rank of the protected columns.
    start : Start
    barrier : float
        Strength of a logarithmic barrier at the edge of the link's domain (``glm.domain_edge``); none by default.
    target : ndarray of shape (r,) or None
        ``kappa``: the constraint is ``c = kappa``, by default zero; ``glm.new_rows`` chooses it.
    whitening : Whitening or None
        The triangular part of ``to_raw``; None if that is an operator.
    """

    rows: Summable
    family: Family
    to_raw: Matrix
    penalty: Array
    n_predictors: int
    n_basis: int
    start: Start
    barrier: float = field(default=0.0, kw_only=True)
    target: Array | None = field(default=None, kw_only=True)
    whitening: Whitening | None = field(default=None, kw_only=True)

    def penalised(self, penalty: Array) -> Objective:
        """The same objective with another penalty (m, m), in value, slope and curvature."""
        assert self.whitening is not None
        half = self.whitening.undo(penalty, gradients=True).T
        return replace(
            self, penalty=penalty, whitening=replace(self.whitening, ridge=self.whitening.undo(half, gradients=True))
        )

    @property
    def n_parameters(self) -> int:
        """Length of ``theta``."""
        return int(self.to_raw.shape[1]) * self.n_predictors

    @property
    def n_constraints(self) -> int:
        """Length of ``c``."""
        return self.n_basis * self.n_predictors

    @property
    def is_penalised(self) -> bool:
        """Whether there is a ridge."""
        if self.whitening is not None:
            return self.whitening.ridge is not None
        return bool(self.penalty.diagonal().any())  # it is positive semidefinite

    def unconstrained(self) -> Objective:
        """Return the same problem without its constraint."""
        return replace(self, n_basis=0, start=replace(self.start, sums=None), target=None)

    def aimed(self, target: Array | None) -> Self:
        """Return the same problem with the constraint ``c = target``."""
        return replace(self, target=target)

    @property
    def edge(self) -> float:
        """Upper end of the link's domain."""
        return self.family.activation.domain[1]

    def fenced(self, barrier: float) -> Self:
        """Return the same problem with a barrier of this strength at the edge of the link's domain."""
        return replace(self, barrier=barrier, start=replace(self.start, sums=None))

    def raw(self, theta: Array) -> Array:
        """Intercept and coefficients, (1 + q, k), of the features in ``rows``."""
        return np.asarray(self.to_raw @ theta.reshape(self.n_predictors, -1).T)

    def values(self, theta: Array) -> Values:
        """Loss and constraint at ``theta``, in one pass over the rows."""
        raw = self.raw(theta)

        def kernel(block: Block) -> Sums:
            eta = linear_predictor(block, raw)
            loss, mean = self.family.value_terms(block.y, eta)
            if self.barrier:
                loss = loss + barrier_loss(eta, self.edge, self.barrier)
            return np.asarray(np.dot(block.weight, loss)), *self._constraint_sums(block, mean)

        loss, c, total, square = self.rows.reduce(kernel)
        return Values(float(loss) + self.ridge(theta), self._residual(c), spread_of(total, square))

    def model(self, theta: Array, lam: Array | None) -> Model:
        """Loss, constraint, gradient, Jacobian and (given multipliers) Hessian of the Lagrangian, in one pass."""
        raw = self.raw(theta)
        second = lam is not None
        multipliers = (lam if lam is not None else np.zeros(self.n_constraints)).reshape(self.n_predictors, -1).T
        plain, overall = None, False
        if self.n_predictors == 1 and not self.barrier and not self.family.is_vector:
            many, mean = self.rows.n_rows > MANY_ROWS, float(self.start.mean[0])
            gathered = {"overall": self.n_basis > 0 and many, "keep": self.n_basis > 0 and not many}
            plain = DensePass(self.family, mean, raw[:, 0], multipliers[:, 0], second=second, **gathered)
            overall = plain.overall or plain.keep

        def kernel(block: Block) -> Sums:
            if plain is not None and is_dense(block.Z):
                return plain(block)
            terms = self.terms(block, raw, multipliers)
            head = np.asarray(block.weight @ terms.loss), *self._constraint_sums(block, terms.mean)
            slopes = terms.mean_slope
            trace = slopes[:, 0, 0] if slopes.shape[1] == 1 else np.trace(slopes, axis1=1, axis2=2)
            steepness = np.asarray(block.weight @ trace)
            sums = *head, steepness, *(self._second_sums if second else self._derivative_sums)(block, terms)
            return (*sums, wrapped(None)) if overall else sums

        sums = self.rows.reduce(kernel)
        return self._assemble(theta, sums[:-1], unwrapped(sums[-1])) if overall else self._assemble(theta, sums)

    def damped(self, theta: Array, lam: Array, model: Model, steps: Array, longest: float) -> Model | None:
        """Model with raised curvature of rows that a step throws back further than the step before moved them.

        The quadratic model does not hold that far: a rare level could go on from one end of the predictions to the
        other. Rows whose linear predictor changes by more than ``longest`` get at least the curvature of the
        intercept-only model. ``steps`` (m, 2) are the step before and this one. None if no row needs it.
        """
        raw, changes, low = self.raw(theta), self.to_raw @ steps, self.start.curvature
        multipliers = lam.reshape(1, -1).T

        def kernel(block: Block) -> tuple[Array | None]:
            now = (block.Z @ changes[:, 1:])[:, 0]
            far = np.flatnonzero(np.abs(now) > longest)
            before = (pick_rows(block, far).Z @ changes[:, :1])[:, 0] if len(far) else now[far]
            far = far[(np.abs(now[far]) > np.abs(before)) & (now[far] * before < 0.0)]
            if not len(far):
                return (None,)
            few = pick_rows(block, far)
            extra = few.weight * np.maximum(low - self.terms(few, raw, multipliers).curvature[:, 0, 0], 0.0)
            return (weighted_gram(few.Z, extra) if extra.any() else None,)

        (extra,) = self.rows.reduce(kernel, _add_some)  # type: ignore[call-arg]
        if extra is None:
            return None
        assert self.whitening is not None
        return model._replace(H=self.whitening.raised(model.H, extra))

    def start_model(self) -> Model:
        """Model at the start, without multipliers."""
        start = self.start
        if start.sums is None:
            return self.model(start.theta, np.zeros(self.n_constraints))
        return self._assemble(start.theta, start.sums)

    def _assemble(self, theta: Array, sums: Sums, overall: Overall | RowsAt | None = None) -> Model:
        """Transform sums over the rows to whitened coordinates."""
        loss, c, total, square, steepness, g, J, *second = sums
        k, m, T = self.n_predictors, self.to_raw.shape[1], self.to_raw
        assert self.whitening is not None
        value, gradient = float(loss), (T.T @ g).T
        if self.is_penalised:
            value, gradient = value + self.ridge(theta), gradient + theta.reshape(k, -1) @ self.penalty
        jacobian = J[0, 0] @ T if k == 1 else (J @ T).transpose(0, 2, 1, 3).reshape(k * self.n_basis, k * m)
        H, spread = self.whitening.hessian(second[0]) if second else UNKNOWN, spread_of(total, square)
        return Model(value, self._residual(c), spread, float(steepness), gradient.ravel(), jacobian, H, overall)

    def terms(self, block: Block, raw: Array, multipliers: Array) -> RowTerms:
        """Contribution of each row of a block, with multipliers (r, k)."""
        return self.terms_at(block, linear_predictor(block, raw), multipliers)

    def terms_at(self, block: Block, eta: Array, multipliers: Array) -> RowTerms:
        """The same at known linear predictors."""
        cells = self._cells(block)
        steer = self.basis(block) @ multipliers if cells is None else cells.times(multipliers)
        terms = self.family.terms(block.y, eta, steer)
        return add_barrier(terms, eta, self.edge, self.barrier) if self.barrier else terms

    def basis(self, block: Block) -> Array:
        """Basis of the protected columns of a block, as far as they are constrained."""
        return block.Q[:, : self.n_basis]

    def _cells(self, block: Block) -> Cells | None:
        """The same as cells, if it has few different rows."""
        return block.cells if self.n_basis else None

    def controls(self, block: Block) -> Array:
        """Orthonormal basis (b, 1 + s) of the intercept and the controls of a block."""
        return np.hstack([np.ones((len(block.weight), 1)), block.Q[:, self.n_basis :]])

    def _constraint_sums(self, block: Block, mean: Array) -> Sums:
        gap = mean - self.start.mean  # the basis has mean zero, so this only reduces rounding error
        weighted = block.weight[:, None] * gap
        if mean.shape[1] == 1:  # plain vectors
            total, square = np.asarray([weighted.sum()]), np.asarray([np.dot(weighted[:, 0], gap[:, 0])])
        else:
            total, square = weighted.sum(axis=0), np.einsum("nk,nk->k", weighted, gap)
        return np.dot(self.basis(block).T, weighted), total, square

    def _residual(self, c: Array) -> Array:
        """Distance of the constraint from its target, (r,), from sums (r / k, k) over the rows."""
        left: Array = c.T.ravel()
        return left if self.target is None else left - self.target

    def ridge(self, theta: Array) -> float:
        """Value of the ridge."""
        if not self.is_penalised:
            return 0.0
        t = theta.reshape(self.n_predictors, -1)
        return 0.5 * float(np.sum((t @ self.penalty) * t))

    def _derivative_sums(self, block: Block, terms: RowTerms) -> Sums:
        """Gradient (1+q, k) and Jacobian (k, k, r, 1+q) of a block."""
        return self._unpack(self._with_cells(block, terms, thin_product(block.Z, self._thin(block, terms))))

    def _second_sums(self, block: Block, terms: RowTerms) -> Sums:
        """Gradient, Jacobian and Hessian (k, k, 1+q, 1+q) of a block."""
        k, q1 = self.n_predictors, block.Z.shape[1]
        H = np.empty((k, k, q1, q1))
        H[0, 0], product = gram_and_product(block.Z, block.weight * terms.curvature[:, 0, 0], self._thin(block, terms))
        for a, b in _pairs(k)[1:]:
            H[a, b] = H[b, a] = weighted_gram(block.Z, block.weight * terms.curvature[:, a, b])
        return *self._unpack(self._with_cells(block, terms, product)), H

    def _with_cells(self, block: Block, terms: RowTerms, product: Array) -> Array:
        """Add the columns of the Jacobian to those of the gradient, where the basis is summed by cells."""
        cells = self._cells(block)
        if cells is None:
            return product
        return np.hstack([product, cells.product(block.Z, block.weight * terms.mean_slope[:, 0, 0])])

    def _thin(self, block: Block, terms: RowTerms) -> Array:
        """Columns to be multiplied by the features: slopes for the gradient, r columns per Jacobian."""
        k, r, w = self.n_predictors, self.n_basis, block.weight[:, None]
        if self._cells(block) is not None:
            return w * terms.slope
        thin = np.empty((len(w), k + r * k * (k + 1) // 2), order="F")
        np.multiply(w, terms.slope, out=thin[:, :k])
        for i, (a, b) in enumerate(_pairs(k)):
            columns = thin[:, k + r * i : k + r * (i + 1)]
            np.multiply(self.basis(block), w * terms.mean_slope[:, a, b, None], out=columns)
        return thin

    def _unpack(self, product: Array) -> Sums:
        k, r = self.n_predictors, self.n_basis
        J = np.empty((k, k, r, len(product)))
        for i, (a, b) in enumerate(_pairs(k)):
            J[a, b] = J[b, a] = product[:, k + r * i : k + r * (i + 1)].T
        return product[:, :k], J


def _add_some(a: tuple[Array | None], b: tuple[Array | None]) -> tuple[Array | None]:
    """Add two sums that may be missing."""
    return (b[0] if a[0] is None else a[0] if b[0] is None else a[0] + b[0],)


def _pairs(k: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(k) for b in range(a + 1)]


def linear_predictor(block: Block, raw: Array) -> Array:
    """Linear predictors (b, k) of a block for intercept and coefficients ``raw`` (1 + q, k)."""
    eta = np.asarray(block.Z @ raw)
    return eta if block.offset is None else eta + block.offset


def spread_of(total: Array, square: Array) -> float:
    """Standard deviation from means and mean squares, as the root of the variances summed over the columns."""
    if len(square) == 1:
        variance = float(square[0]) - float(total[0]) ** 2 if math.isfinite(square[0]) else math.inf
    else:
        variance = float((square - total**2).sum()) if np.isfinite(square).all() else math.inf
    return math.sqrt(max(variance, 0.0))
