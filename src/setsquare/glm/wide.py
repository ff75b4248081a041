"""Objective for many features, with the Hessian as an operator: no q x q matrix is formed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from setsquare._typing import Array
from setsquare.glm.aliasing import CONSTANT, CONSTANT_SPARSE, centre_filled
from setsquare.glm.freedom import check_freedom
from setsquare.glm.objective import Model, Objective, spread_of
from setsquare.glm.preparation import Prepared, check_squares, survey
from setsquare.glm.problem import Problem
from setsquare.projection import Basis
from setsquare.rows.blocks import ArrayRows, Block, is_sparse
from setsquare.rows.parallel import Sums
from setsquare.rows.wide import Standardised, WideParts, WideRows, as_slab


@dataclass(frozen=True, slots=True)
class WideObjective(Objective):
    """An :class:`Objective` in the coordinates of standardised features; ``model.H`` is a :class:`HessianProduct`."""

    l2: float

    def model(self, theta: Array, lam: Array | None) -> Model:
        """Loss, constraint, gradient, Jacobian and (given multipliers) the Hessian as an operator, in one pass."""
        raw, k = self.raw(theta), self.n_predictors
        multipliers = (np.zeros(self.n_constraints) if lam is None else lam).reshape(k, -1).T
        held = isinstance(self.rows, WideRows)
        # Where rows are read in parts, each product computes their curvature again.
        curvature = np.empty((self.rows.n_rows, k, k)) if held else partial(_curvature, self, raw, multipliers)

        def kernel(block: Block, second: Array | None = None) -> Sums:
            terms = self.terms(block, raw, multipliers)
            if second is not None:
                np.multiply(block.weight[:, None, None], terms.curvature, out=second)
            head = np.asarray(block.weight @ terms.loss), *self._constraint_sums(block, terms.mean)
            steepness = np.asarray(block.weight @ np.trace(terms.mean_slope, axis1=1, axis2=2))
            return *head, steepness, *self._derivative_sums(block, terms)

        beside = (curvature,) if held and lam is not None else ()
        loss, c, total, square, steepness, g, J = self.wide_rows.reduce(kernel, *beside)
        g[1:] += self.l2 * raw[1:]
        jacobian = self.to_raw.adjoint(J.reshape(-1, J.shape[-1]).T).T.reshape(J.shape)
        return Model(
            float(loss) + self.ridge(theta),
            self._residual(c),
            spread_of(total, square),
            float(steepness),
            self.to_raw.adjoint(g).T.ravel(),
            jacobian.transpose(0, 2, 1, 3).reshape(self.n_constraints, self.n_parameters),
            HessianProduct(self, curvature),
        )

    @property
    def stands_rounding(self) -> bool:
        """Whether single-precision products are faster, and centring does not amplify their rounding error."""
        if not isinstance(self.rows, WideRows):
            return False
        Z, to_raw = self.rows.Z, self.to_raw
        small = isinstance(Z, np.ndarray) and Z.dtype != np.float64
        return bool(small and (np.abs(to_raw.mean) <= 10.0 * to_raw.divisor).all())

    @property
    def wide_rows(self) -> Any:
        """The rows: :class:`WideRows` or :class:`WideParts`."""
        return self.rows

    def ridge(self, theta: Array) -> float:
        """Value of the ridge."""
        return 0.5 * self.l2 * float(np.sum(self.raw(theta)[1:] ** 2)) if self.l2 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class HessianProduct:
    """Hessian of the Lagrangian as an operator: one pass over the rows per product.

    Attributes
    ----------
    objective : WideObjective
    curvature : ndarray of shape (n, k, k), or a function that returns it for a block
        Weighted curvature of each row.
    """

    objective: WideObjective
    curvature: Any

    def __matmul__(self, v: Array) -> Array:
        raw = self.objective.raw(v)

        def kernel(block: Block, curvature: Array) -> Sums:
            return (block.Z.T @ np.einsum("nab,nb->na", curvature, block.Z @ raw),)

        return self._finish(raw, *self.objective.wide_rows.reduce(kernel, self.curvature))

    def _finish(self, raw: Array, product: Array) -> Array:
        product[1:] += self.objective.l2 * raw[1:]
        return np.asarray(self.objective.to_raw.adjoint(product).T.ravel())

    def dense(self) -> Array:
        """The Hessian as a matrix (k m, k m), for leave-one-out quantities of moderately many features."""
        k, m = self.objective.n_predictors, self.objective.to_raw.shape[1]
        T = self.objective.to_raw @ np.eye(m)

        def kernel(block: Block, curvature: Array) -> Sums:
            A = block.Z @ T
            return (np.stack([A.T @ (curvature[:, a, b, None] * A) for a in range(k) for b in range(k)]),)

        H = self.objective.wide_rows.reduce(kernel, self.curvature)[0].reshape(k, k, m, m)
        H[range(k), range(k)] += self.objective.l2 * (T[1:].T @ T[1:])
        return np.asarray(H.transpose(0, 2, 1, 3).reshape(k * m, k * m))

    def rough(self, v: Array) -> Array:
        """Product in single precision, which is enough for a step: half the memory traffic, and no conversion."""
        raw = self.objective.raw(v)
        short = raw.astype(np.float32)

        def kernel(block: Block, curvature: Array) -> Sums:
            bent = np.einsum("nab,nb->na", curvature, block.Z @ short)
            return (np.asarray(block.Z.T @ bent.astype(np.float32), dtype=np.float64),)

        return self._finish(raw, *self.objective.wide_rows.reduce(kernel, self.curvature, dtype=np.float32))

    def variance(self, v: Array) -> float:
        """Mean squared change of the linear predictors along ``v``."""
        raw = self.objective.raw(v)
        (total,) = self.objective.wide_rows.reduce(
            lambda block: (block.weight @ np.square(block.Z @ raw),),
        )
        return float(total.sum())

    def diagonal(self) -> Array:
        """Curvature (q,) of each number or dummy on the scale of its standard deviation, averaged over classes.

        Dummies are not centred here: centring adds a matrix of low rank, which products find soon, and which would hide
        that a level has almost no curvature. Rows with negative curvature are left out.
        """
        k = self.objective.n_predictors

        def kernel(block: Block, curvature: Array) -> Sums:
            return (block.Z.Z.squares(np.maximum(np.trace(curvature, axis1=1, axis2=2), 0.0) / k),)

        (squares,) = self.objective.wide_rows.reduce(kernel, self.curvature)
        return np.asarray((squares + self.objective.l2) / self.objective.to_raw.divisor**2)

    def sketch(self, probes: Array, every: int) -> Array:
        """Product of the Hessian's feature block with ``probes`` (q, s), from every k-th row only, k = ``every``.

        Only for a preconditioner: classes are averaged, and rows with negative curvature are left out.
        """
        to_raw, l2, k = self.objective.to_raw, self.objective.l2, self.objective.n_predictors
        raw = to_raw @ np.vstack([np.zeros(probes.shape[1]), probes])
        dtype = np.float32 if self.objective.stands_rounding else np.float64
        short = raw.astype(dtype)

        def kernel(block: Block, curvature: Array) -> Sums:
            weight = np.maximum(np.trace(curvature, axis1=1, axis2=2), 0.0) / k
            scaled = (weight[:, None] * (block.Z @ short)).astype(dtype)
            return (np.asarray(block.Z.T @ scaled, dtype=np.float64),)

        (product,) = self.objective.wide_rows.reduce(kernel, self.curvature, every=every, dtype=dtype)
        product *= every
        product[1:] += l2 * raw[1:]
        return np.asarray(to_raw.adjoint(product)[1:])


@dataclass(frozen=True, slots=True)
class WidePrepared(Prepared):
    """A problem ready for ``large``; the rank of the features is unknown, and only constant ones count as aliased."""

    def theta(self, intercept: Array, coef: Array) -> Array:
        """Inverse of :meth:`coefficients`, up to constant features."""
        coef = np.atleast_2d(coef)
        raw = np.vstack([np.atleast_1d(intercept) + coef @ self.mean, coef.T])
        return np.asarray(self.objective.to_raw.inverse(raw).T.ravel())


def prepare_wide(problem: Problem) -> WidePrepared:
    """Standardise the features implicitly, compute a basis of the protected columns, and build the objective."""
    surveyed, q = survey(problem), len(problem.feature_names)
    # Dense features are never copied: their mean is subtracted from the coefficients.
    thin = surveyed.found.filled is not None
    basis, shift = surveyed.basis, surveyed.mean if thin else np.zeros(q)
    rows = _wide_rows(problem, basis, shift, thin)
    mean, scale = _spread(rows, surveyed.found.mean - shift, shift, thin)
    check_squares(problem, scale**2)
    varies = scale > 0.0
    if basis is not None and basis.rank >= np.count_nonzero(varies):
        (zq,) = rows.reduce(lambda block: (block.Z.T @ (block.weight[:, None] * block.Q),))
        check_freedom(basis, zq[1:] / np.where(varies, scale, np.inf)[:, None], np.eye(q)[:, varies])
    start = surveyed.start(problem, 1 + q)
    # With a ridge, scale so that loss and ridge together have about the same curvature in every direction.
    divisor = np.where(varies, np.sqrt(scale**2 + problem.l2 / start.curvature), np.inf)
    nothing = np.zeros((0, 0))
    to_raw, k = Standardised(mean, divisor), problem.n_predictors
    rank = 0 if basis is None else basis.rank
    objective = WideObjective(rows, problem.family, to_raw, nothing, k, rank, start, problem.l2)
    constant = tuple(name for name, moves in zip(problem.feature_names, varies, strict=True) if not moves)
    scale = np.where(varies, scale, 1.0)
    return WidePrepared(
        problem, objective, basis, shift, scale, None, constant, surveyed.label_share, surveyed.loadings
    )


def _wide_rows(problem: Problem, basis: Basis | None, shift: Array, thin: bool) -> WideRows | WideParts:
    """Rows of a problem, with features as they are stored; ``thin`` ones are sparse or categories."""
    given = problem.rows
    if not isinstance(given, ArrayRows):

        def change(block: Block) -> Block:
            Q = np.zeros((len(block.weight), 0)) if basis is None else basis.apply(np.asarray(block.X))
            return as_slab(block, shift, Q)

        return WideParts(given.map(change).keep(), has_categories=thin)
    Q = np.zeros((given.n_rows, 0)) if basis is None else basis.apply(np.asarray(given.X))
    Z = centre_filled(given.Z, shift) if thin else given.Z
    return WideRows(Z, given.y, Q, given.weight, given.offset, given.X)


def _curvature(objective: WideObjective, raw: Array, multipliers: Array, block: Block) -> Array:
    """Weighted curvature (b, k, k) of the rows of a block."""
    return np.asarray(block.weight[:, None, None] * objective.terms(block, raw, multipliers).curvature)


def _spread(rows: WideRows | WideParts, mean: Array, shift: Array, thin: bool) -> tuple[Array, Array]:
    """Means of the features minus ``shift``, and their standard deviations, 0 for a constant."""

    def centred(block: Block) -> Sums:
        return (block.weight @ np.square(block.Z.Z - mean),)

    def squares(block: Block) -> Sums:
        Z = block.Z.Z
        return (np.asarray(Z.multiply(Z).T @ block.weight if is_sparse(Z) else Z.squares(block.weight)),)

    (second,) = rows.reduce(squares if thin else centred)
    spread = np.sqrt(np.maximum(second - mean**2 if thin else second, 0.0))
    # Rounding error is not variation; it is larger where the mean was not subtracted first.
    rounding = np.maximum((CONSTANT_SPARSE if thin else CONSTANT) * np.abs(mean), CONSTANT * np.abs(shift))
    return mean, np.where(spread > rounding, spread, 0.0)
