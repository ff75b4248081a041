"""Exact minima of the ReLU model's loss along one direction: in one column, and on a line through coefficient space.

Both are piecewise quadratic in one unknown, the position of the hinge or the length of the step. The pieces follow from
cumulative sums over rows in the order in which they become active, so the cost is that of sorting.
"""

from __future__ import annotations

import numpy as np

from setsquare._typing import Array

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
