"""Further steps to the fit without a unit, where one Newton step is not enough.

The step of ``glm.leave_one_out`` is the first of Newton's method on the problem without a row or a cluster. Its error
is of second order in the change of the fit, so it matters for few units of small samples. For these the residual of
that problem is computed, which takes a pass over all rows, and reduced by Broyden's method from the inverse of the KKT
matrix of all rows: no further matrix is formed. Every quantity has one entry per unit, and a pass serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.glm.left_out_systems import Point, Shared, apply_rows
from setsquare.glm.objective import Objective
from setsquare.rows.blocks import Block, cut, take_rows
from setsquare.rows.parallel import Sums, add_up
from setsquare.rows.wide import pick_rows

#: Largest number of rows for which further steps are taken, and of units at a time and in all.
FEW_ROWS, TOGETHER, MOST_UNITS = 4096, 64, 256
#: Squared change of the fit, in standard deviations of the linear predictor, above which a unit gets further steps. In
#: samples of 400 to 600 rows the relative error of a prediction was 0.1 to 1.5 times it, 8 times at most.
FAR = 3e-3
#: Number of steps for all of these units, then for clusters and classes that need more, and the change of linear
#: predictors that ends them. A single row that needs more often has a level of its own, and steps do not end.
FEW_STEPS, MOST_STEPS, SMALL_STEP = 5, 20, 1e-3
#: Numbers that a pass over some rows may hold.
PASS_SIZE = 2**18


def take_further_steps(
    objective: Objective, shared: Shared, block: Block, rows: IntArray, unit: IntArray
) -> tuple[Array, BoolArray]:
    """Linear predictors (b, k) of some rows by the fit without their unit, and which are known.

    ``unit`` numbers the units of the rows from zero, in order. Those whose steps do not end are not known.
    """
    assert shared.point is not None
    eta, known = np.empty((len(rows), objective.n_predictors)), np.zeros(len(rows), dtype=bool)
    alone = objective.n_predictors == 1 and len(rows) == unit[-1] + 1
    for steps in (FEW_STEPS,) if alone else (FEW_STEPS, MOST_STEPS):
        for units in np.split(np.unique(unit[~known]), range(TOGETHER, len(unit), TOGETHER)):
            part = np.isin(unit, units)
            if part.any():
                number = np.searchsorted(units, unit[part])
                left = _Without(objective, shared.point, pick_rows(block, rows[part]), number)
                eta[part], known[part] = left.solve(steps)
    return eta, known


class _Without:
    """The problems without each of g units; coordinates are (g, k m + k r): coefficients and multipliers."""

    def __init__(self, objective: Objective, point: Point, own: Block, unit: IntArray) -> None:
        k, m = objective.n_predictors, objective.to_raw.shape[1]
        self.objective, self.point, self.own, self.unit = objective, point, own, unit
        self.first = np.flatnonzero(np.diff(unit, prepend=-1))
        self.T = objective.to_raw if isinstance(objective.to_raw, np.ndarray) else objective.to_raw @ np.eye(m)
        self.features = np.asarray(own.Z @ self.T)
        Q, w = objective.basis(own), own.weight
        self.rest = 1.0 - np.add.reduceat(w, self.first)
        self.shift = -np.add.reduceat(w[:, None] * Q, self.first, axis=0) / self.rest[:, None]  # new mean of the basis
        self.Q, self.split = Q - self.shift[unit], k * m
        kappa = np.zeros(objective.n_constraints) if objective.target is None else objective.target
        self.target = self.rest[:, None] * kappa

    def solve(self, most_steps: int) -> tuple[Array, BoolArray]:
        """Broyden's method; a step is shortened where the one before made the residual larger."""
        g = len(self.first)
        x = np.repeat(np.concatenate([self.point.theta, self.point.lam])[None], g, axis=0)
        memory: list[tuple[Array, Array]] = []
        residual = self.residual(x)
        step = -self.apply(residual, memory)
        length, settled = np.ones((g, 1)), np.zeros(g, dtype=bool)
        for _ in range(most_steps):
            taken = length * step
            x = x + taken
            after = self.residual(x)
            seen = self.apply(after, memory)
            moved = self.apply(after - residual, memory)
            inner = np.einsum("gi,gi->g", taken, moved)[:, None]
            memory.append(((taken - moved) / np.where(inner == 0.0, np.inf, inner), taken))
            larger = ~(np.linalg.norm(seen, axis=1) <= np.linalg.norm(step, axis=1))[:, None]
            length = np.where(larger, 0.5 * length, np.minimum(1.0, 2.0 * length))
            residual, step = after, -self.apply(after, memory)
            change = np.abs(self.eta(step[:, : self.split])).max(axis=1)
            settled = np.maximum.reduceat(change, self.first) <= SMALL_STEP
            if settled.all():
                break
        eta = self.eta((x + step)[:, : self.split])
        eta = eta if self.own.offset is None else eta + self.own.offset
        return eta, settled[self.unit] & np.isfinite(eta).all(axis=1)

    def eta(self, theta: Array) -> Array:
        """Products (b, k) of the units' features with coefficients of each unit, (g, k m)."""
        each = theta.reshape(len(theta), -1, self.features.shape[1])[self.unit]
        return np.asarray((each @ self.features[:, :, None])[:, :, 0])

    def apply(self, vectors: Array, memory: list[tuple[Array, Array]]) -> Array:
        """Multiply by the inverse of the KKT matrix, with its updates."""
        (L, F, E), a, b = self.point.inverse, vectors[:, : self.split], vectors[:, self.split :]
        out = np.hstack([(a @ L) @ L.T + b @ F.T, a @ F + b @ E.T])
        for update, taken in memory:
            out = out + update * np.einsum("gi,gi->g", taken, out)[:, None]
        return out

    def residual(self, x: Array) -> Array:
        """Gradient of the Lagrangian and constraint without each unit."""
        objective, g = self.objective, len(x)
        k, r = objective.n_predictors, objective.n_basis
        theta, lam = x[:, : self.split].reshape(g, k, -1), x[:, self.split :].reshape(g, k, r)
        raw = np.asarray(self.T @ theta.reshape(g * k, -1).T)
        toll = np.einsum("gkr,gr->gk", lam, self.shift).ravel()
        multipliers = lam.reshape(g * k, r).T

        def kernel(block: Block) -> Sums:
            n, Q = len(block.weight), objective.basis(block)
            eta = np.asarray(block.Z @ raw).reshape(n * g, k)
            if block.offset is not None:
                eta = eta + np.repeat(block.offset, g, axis=0)
            price = (Q @ multipliers - toll).reshape(n * g, k)
            slope, gap = self.terms(np.repeat(block.y, g, axis=0), eta, price, np.repeat(block.weight, g))
            slope, gap = slope.reshape(n, g * k), gap.reshape(n, g * k)
            return np.asarray(block.Z.T @ slope), Q.T @ gap, gap.sum(axis=0)

        slopes, c, total = objective.rows.reduce(_in_pieces(kernel, g * k))
        own_eta = self.eta(x[:, : self.split])
        if self.own.offset is not None:
            own_eta = own_eta + self.own.offset
        price = np.einsum("br,bkr->bk", self.Q, lam[self.unit])
        slope, gap = self.terms(self.own.y, own_eta, price, self.own.weight)
        gradient = (self.T.T @ slopes).T.reshape(g, k, -1)
        gradient -= np.add.reduceat(slope[:, :, None] * self.features[:, None], self.first, axis=0)
        if objective.is_penalised:
            gradient += theta @ objective.penalty
        constraint = c.T.reshape(g, k, r) - total.reshape(g, k, 1) * self.shift[:, None]
        constraint -= np.add.reduceat(gap[:, :, None] * self.Q[:, None], self.first, axis=0)
        return np.hstack([gradient.reshape(g, -1), constraint.reshape(g, -1) - self.target])

    def terms(self, y: Array, eta: Array, price: Array, w: Array) -> tuple[Array, Array]:
        """Weighted slopes of the Lagrangian and distances of the predictions from their mean, both (n, k)."""
        terms = self.objective.family.terms(y, eta, price)
        slope = terms.slope + apply_rows(terms.mean_slope, price[:, :, None])[:, :, 0]
        return w[:, None] * slope, w[:, None] * (terms.mean - self.objective.start.mean)


def _in_pieces(kernel: Callable[[Block], Sums], width: int) -> Callable[[Block], Sums]:
    """Call a kernel with some rows at a time."""

    def pieces(block: Block) -> Sums:
        slices = cut(len(block.weight), max(1, PASS_SIZE // width), None)
        return add_up(kernel(take_rows(block, rows)) for rows in slices)

    return pieces


class Picked(NamedTuple):
    """Rows of some units, and the number of the unit of each."""

    rows: IntArray
    unit: IntArray


def far_units(far: Array, group: IntArray | None) -> Picked | None:
    """Rows of the units that moved the fit most; ``far`` has the squared change of the fit, for each row."""
    number = np.arange(len(far)) if group is None else np.cumsum(np.diff(group, prepend=group[0]) != 0)
    first = np.flatnonzero(np.diff(number, prepend=-1))
    units = np.flatnonzero(far[first] > FAR)
    if not len(units):
        return None
    if len(units) > MOST_UNITS:
        units = np.sort(units[np.argsort(-far[first][units], kind="stable")[:MOST_UNITS]])
    rows = np.flatnonzero(np.isin(number, units))
    return Picked(rows, np.searchsorted(units, number[rows]))
