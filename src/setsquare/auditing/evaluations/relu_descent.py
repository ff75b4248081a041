"""Descents of the ReLU model's loss from many directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.auditing.evaluations.relu_line import line_search, one_column
from setsquare.rows.products import weighted_gram

MAX_STEPS = 200
#: Curvature below this share of the largest is treated as zero: no step is taken along it.
RANK = 1e-11
#: Values of a direction that are closer than this share of the largest are ties.
NEAR = 1e-12


@dataclass(frozen=True, slots=True)
class Cells:
    """Distinct rows of the protected columns, whitened, with the mean prediction in each.

    Attributes
    ----------
    D : ndarray of shape (G, m)
        Design, orthonormal under the weights; the first column is the intercept's where there is one.
    y : ndarray of shape (G,)
        Mean prediction in each cell.
    w : ndarray of shape (G,)
        Positive weights that sum to one.
    columns : ndarray of shape (p, r)
        Each protected column as a direction in the design without its intercept.
    intercept : bool
    """

    D: Array
    y: Array
    w: Array
    columns: Array
    intercept: bool

    def loss(self, theta: Array) -> float:
        """Weighted mean squared error between cells, of coefficients (m,)."""
        return float(self.w @ (self.y - np.maximum(self.D @ theta, 0.0)) ** 2)

    def solve(self, target: Array) -> Array:
        """Least-squares coefficients (m,) of a linear model."""
        return np.asarray(self.D.T @ (self.w * target))  # the design is orthonormal


def multi_start(cells: Cells, start: Array, rng: np.random.Generator, n_starts: int) -> tuple[Array, int]:
    """Best result of many descents, and the number of starts: the linear fit, each column alone, random directions.

    Along each direction the problem has one column; descents start at its global optima with either sign. So none
    starts at a slope of 0 unless that is optimal in its direction.
    """
    first = int(cells.intercept)
    linear = cells.solve(cells.y)[first:]
    directions = np.vstack([linear, cells.columns, rng.normal(size=(n_starts, len(linear)))])
    ends = [start]
    for d in directions:
        for ab in one_column(_snap(cells.D[:, first:] @ d), cells.y, cells.w, cells.intercept):
            ends.append(descend(cells, np.append(ab[:first], ab[-1] * d)))
    return min(ends, key=cells.loss), len(directions)


def _snap(x: Array) -> Array:
    """Merge values that differ by rounding; otherwise a steep hinge between them would fit rounding errors."""
    near = NEAR * np.abs(x).max()
    order = np.argsort(x)
    ranked = x[order]
    new = np.append(True, np.diff(ranked) > near)
    x = np.empty_like(x)
    x[order] = ranked[new][np.cumsum(new) - 1]
    x[np.abs(x) <= near] = 0.0
    return x


def descend(cells: Cells, theta: Array) -> Array:
    """Descend to a local optimum: least squares on the active rows, then the exact best length of that step.

    A row with y < 0 has a convex kink where its unit becomes active, and optima may lie there. Such rows are held at
    the kink while the others move, and released when their multiplier leaves the subdifferential [0, w|y|].
    """
    D, y, w = cells.D, cells.y, cells.w
    held: list[int] = []
    freed: tuple[int, bool] | None = None
    loss = cells.loss(theta)
    for _ in range(MAX_STEPS):
        u = D @ theta
        u[held] = 0.0
        active = u > 0.0
        if freed is not None:
            u[freed[0]], active[freed[0]] = 0.0, freed[1]
        gradient = D.T @ (w * active * (u - y))
        step = _newton_step(D, w * active, gradient, D[held])
        v = D @ step
        v[held] = 0.0
        t, row = _best_length(u, v, y, w, active)
        trial = theta + t * step
        trial_loss = cells.loss(trial)
        better = trial_loss < loss * (1.0 - 1e-15)
        if better:
            theta, loss, freed = trial, trial_loss, None
        if row >= 0 and y[row] < 0.0 and freed is None:
            held.append(row)
        elif not better:
            if freed is not None or not held:
                break
            freed = _release(D[held], gradient, (w * np.abs(y))[held], held)
            if freed is None:
                break
            held.remove(freed[0])
    return theta


def _newton_step(D: Array, weight: Array, gradient: Array, fixed: Array) -> Array:
    """Step to the least-squares optimum of the active rows along which the units of the ``fixed`` rows do not move."""
    H = weighted_gram(D, weight)
    if not len(fixed):
        return np.asarray(-np.linalg.pinv(H, rcond=RANK, hermitian=True) @ gradient)
    N = np.linalg.qr(fixed.T, mode="complete")[0][:, len(fixed) :]
    return np.asarray(-N @ (np.linalg.pinv(N.T @ H @ N, rcond=RANK, hermitian=True) @ (N.T @ gradient)))


def _best_length(u: Array, v: Array, y: Array, w: Array, active: BoolArray) -> tuple[float, int]:
    """Length of the step, 1 where no row turns on or off before that, and the row whose kink it ends on (or -1)."""
    if np.array_equal(u + v > 0.0, active):
        return 1.0, -1
    return line_search(u, v, y, w)


def _release(fixed: Array, gradient: Array, limit: Array, held: list[int]) -> tuple[int, bool] | None:
    """Row whose multiplier is furthest outside [0, limit], and whether it becomes active; None at an optimum."""
    multiplier = np.linalg.lstsq(fixed.T, -gradient, rcond=None)[0]
    outside = np.maximum(-multiplier, multiplier - limit)
    k = int(np.argmax(outside))
    return (held[k], bool(multiplier[k] > 0.0)) if outside[k] > 1e-14 * (1.0 + limit[k]) else None
