"""Descents of the ReLU model's loss from many directions.

Exact minima of the ReLU model's loss along one direction: in one column, and on a line through coefficient space.
Both are piecewise quadratic in one unknown, the position of the hinge or the length of the step. The pieces follow from
cumulative sums over rows in the order in which they become active, so the cost is that of sorting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.rows.products import weighted_gram

#: Steps have length 1 by construction. Far longer ones follow rounding errors and lose all digits.
LONGEST = 1e4


def one_column(x: Array, y: Array, w: Array, intercept: bool = True) -> list[Array]:
    """Global optima of the ReLU model in one column, (a, b) or (b,): the best with b >= 0 and the best with b <= 0.

    Parameters
    ----------
    x, y, w : ndarray of shape (n,)
        ``x`` may have ties; weights are positive.
    intercept : bool

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([0.0, 1.0, 2.0, 3.0])
    >>> rising, falling = one_column(x, np.array([0.0, 0.0, 1.0, 2.0]), np.ones(4))
    >>> rising.round(12)
    array([-1.,  1.])
    """
    if not intercept:
        return [np.array([sign * _slope(np.maximum(sign * x, 0.0), y, w)]) for sign in (1.0, -1.0)]
    order = np.argsort(x, kind="stable")
    falling = _hinge(-x[order], y[order], w[order])
    order = order[::-1]
    return [_hinge(x[order], y[order], w[order]), falling * np.array([1.0, -1.0])]


def _slope(r: Array, y: Array, w: Array) -> float:
    """Best b >= 0 for the model ``b r``."""
    size = float(w @ r**2)
    return max(float(w @ (r * y)), 0.0) / size if size > 0.0 else 0.0


def _hinge(x: Array, y: Array, w: Array) -> Array:
    """Best (a, b) with b >= 0, for x in falling order: the first k + 1 rows are active, for each k.

    With rows 0..k active the hinge lies between x[k+1] and x[k]: a cone of (a, b) with two edges. The optimum in it is
    the least-squares line where that lies inside, else it is on an edge: a hinge at a row. Sums of squares grow by
    positive terms (as in Welford's update), so that nothing cancels.
    """
    W, c = np.cumsum(w), w @ y / w.sum()
    mx, my = x[0] + np.cumsum(w * (x - x[0])) / W, c + np.cumsum(w * (y - c)) / W
    grow = w[1:] * W[:-1] / W[1:]
    dx, dy = x[1:] - mx[:-1], y[1:] - my[:-1]
    Sxx, Sxy, Syy = (np.append(0.0, np.cumsum(grow * term)) for term in (dx * dx, dx * dy, dy * dy))
    off = np.append(np.cumsum((w * y * y)[:0:-1])[::-1], 0.0)  # loss of the rows after k, where the unit is 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        b = Sxy / Sxx
        a = my - b * mx
        inside = (b > 0.0) & (a + b * x >= 0.0) & (np.append(a[:-1] + b[:-1] * x[1:], -1.0) <= 0.0)
        line = np.where(inside, Syy - b * Sxy + off, np.inf)
        reach = mx - x
        Srr, Sry = Sxx + W * reach**2, np.maximum(Sxy + W * my * reach, 0.0)
        edge = Syy + W * my**2 + off - np.where(Srr > 0.0, Sry**2 / Srr, 0.0)
    k, j = int(np.argmin(line)), int(np.argmin(edge))
    slope = _slope(np.maximum(x - x[j], 0.0), y, w)
    candidates = [np.array([max(c, 0.0), 0.0]), np.array([-slope * x[j], slope])]
    if np.isfinite(line[k]):
        candidates.append(np.array([a[k], b[k]]))
    return min(candidates, key=lambda ab: float(w @ (y - np.maximum(ab[0] + ab[1] * x, 0.0)) ** 2))


def line_search(u: Array, v: Array, y: Array, w: Array) -> tuple[float, int]:
    """Global minimiser t of ``sum w (y - max(u + t v, 0))^2`` in [0, LONGEST], and the row at whose hinge it is, or -1.

    Examples
    --------
    >>> import numpy as np
    >>> line_search(np.array([-1.0, 1.0]), np.array([1.0, 0.0]), np.array([3.0, 1.0]), np.ones(2))
    (4.0, -1)
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        t = -u / v
    crossing = np.flatnonzero((t >= 0.0) & (t < LONGEST))
    crossing = crossing[np.argsort(t[crossing])]
    on = (u > 0.0) | ((u == 0.0) & (v < 0.0))  # a row at its hinge crosses it immediately
    r = u - y
    terms = np.stack([w * v * v, w * v * r, w * (r * r - y * y)])
    at_start = terms[:, on].sum(axis=1, keepdims=True)
    alpha, beta, gamma = np.cumsum(
        np.hstack([at_start, terms[:, crossing] * np.where(on[crossing], -1.0, 1.0)]), axis=1
    )
    low, high = np.append(0.0, t[crossing]), np.append(t[crossing], LONGEST)
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(alpha > 0.0, np.clip(-beta / alpha, low, high), low)
    k = int(np.argmin(alpha * best**2 + 2.0 * beta * best + gamma))
    if k < len(crossing) and best[k] == high[k]:
        return float(best[k]), int(crossing[k])
    return float(best[k]), int(crossing[k - 1]) if k and best[k] == low[k] else -1


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
