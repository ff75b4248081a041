"""Global optimum of the ReLU model over few cells, by branch and bound over activation patterns.

A cell costs ``w (max(u, 0) - y)^2``. Where ``y <= 0`` that is convex in ``u``. Where ``y > 0`` it is the smaller of two
convex functions, equal to the first for ``u >= 0`` and to the second for ``u <= 0``:

    active   w (u - y)^2,        inactive   w y^2 + w max(u, 0)^2,        and both are at least   w max(u - y, 0)^2.

A node fixes some cells as active or inactive and uses the third expression for the others: a convex problem without
constraints, whose optimum is a lower bound on every pattern below the node. The node with the smallest bound is
expanded first, so that bound holds for the whole problem if the search stops early. Accuracy is limited by rounding
where ``y < 0`` in some cells and others nearly coincide (closer than 1e-3 of their standard deviation): very steep
units may be missed.
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.auditing.evaluations.relu_descent import Cells, descend

#: More cells than this, or more nodes, are left to the descents. A node costs about G^2, and more where y < 0: all of
#: them take a few seconds.
MAX_CELLS, MAX_NODES, MAX_WORK = 256, 4000, 8_000_000
#: Tolerance of the gap, relative to the loss and, for rounding, to the mean square of the predictions.
GAP, ROUNDING = 1e-9, 1e-12
#: Stiffness of the kink of a cell with y < 0: smoothing it lowers the bound by at most w y^2 / STIFF.
STIFF = 1e10
#: Relative slope below which a column cannot improve a fit; if a rejected column exceeds the second, there is no bound.
FLAT, UNSURE = 1e-12, 1e-10
#: Relative coefficient of a column above which the slower method is used.
HUGE = 1e3


class Tree(NamedTuple):
    """Best coefficients (m,), lower bound on the loss between cells, whether the gap is closed, and nodes solved."""

    theta: Array
    bound: float
    exact: bool
    n_nodes: int


def branch_and_bound(cells: Cells, theta: Array, max_nodes: int = MAX_NODES) -> Tree:
    """Improve ``theta`` (m,) to the global optimum, or bound how far it is from it.

    Examples
    --------
    >>> import numpy as np
    >>> D = np.column_stack([np.ones(4), [-1.0, -1.0, 1.0, 1.0], [-1.0, 1.0, -1.0, 1.0]])
    >>> cells = Cells(D, np.array([0.0, 0.0, 0.0, 2.0]), np.full(4, 0.25), np.eye(2), True)
    >>> tree = branch_and_bound(cells, np.zeros(3))
    >>> round(cells.loss(tree.theta), 10), tree.exact
    (0.0, True)
    """
    y, w = cells.y, cells.w
    relaxation = _Relaxation.of(cells)
    best = cells.loss(theta)
    negative = float(w @ np.minimum(y, 0.0) ** 2)
    slack = GAP * best + ROUNDING * float(w @ y**2) + 2.0 / STIFF * negative
    heap: list[tuple[float, int, IntArray]] = [(negative, 0, np.where(y > 0.0, 0, -1))]
    n_nodes, lowest = 0, np.inf
    max_nodes = min(max_nodes, MAX_WORK // (len(y) + 4 * int((y < 0.0).sum())) ** 2)
    while heap and heap[0][0] < best - slack and n_nodes < max_nodes:
        bound, _, side = heapq.heappop(heap)
        n_nodes += 1
        value, point = relaxation.solve(side)
        bound = max(bound, value)
        u = cells.D @ point
        loss = w * (y - np.maximum(u, 0.0)) ** 2
        if loss.sum() < best:
            theta = descend(cells, point)
            best = cells.loss(theta)
        if bound >= best - slack:
            continue
        if side.all():  # a full pattern costs no less than its point: only rounding errors lead here
            lowest = min(lowest, bound)
            continue
        cell = int(np.argmax(np.where(side == 0, loss - w * np.maximum(u - y, 0.0) ** 2, -np.inf)))
        for sign in (1, -1):
            child = side.copy()
            child[cell] = sign
            heapq.heappush(heap, (bound, 2 * n_nodes + (sign < 0), child))
    bound = min([best, lowest, *(node[0] for node in heap[:1])])
    return Tree(theta, bound, bool(bound >= best - slack), n_nodes)


@dataclass(frozen=True, slots=True)
class _Relaxation:
    """The convex problems of the nodes as non-negative least squares.

    ``max(u - c, 0)^2`` is the minimum of ``(u - c + e)^2`` over ``e >= 0``, so every hinge is a residual with a slack.
    A cell with ``y < 0`` has its value ``t >= 0`` as an unknown too: ``w (t - y)^2 + STIFF w (u - t + e)^2``. The
    coefficients are free and leave through the complement of the design, the same for all nodes.

    Attributes
    ----------
    cells : Cells
    kink : ndarray of bool of shape (G,)
        Cells with y < 0.
    C : ndarray of shape (G - m, G)
        Residuals, each times the root of its stiffness, in an orthonormal basis of the complement of the design.
    back : ndarray of shape (m, G)
        Coefficients from fitted values times the roots of the weights.
    """

    cells: Cells
    kink: BoolArray
    C: Array
    back: Array

    @classmethod
    def of(cls, cells: Cells) -> _Relaxation:
        """Factor the design once."""
        kink = cells.y < 0.0
        root = np.where(kink, np.sqrt(STIFF), 1.0)[:, None]
        E = cells.D * np.sqrt(cells.w)[:, None]
        # Not computed from the stiff rows, whose rounding errors are STIFF times as large.
        N = np.linalg.qr(E, mode="complete")[0][:, E.shape[1] :]
        C = np.linalg.solve(np.linalg.qr(N / root)[1].T, N.T)
        return cls(cells, kink, C, np.asarray(np.linalg.pinv(E * root) * root.T, dtype=np.float64))

    def solve(self, side: IntArray) -> tuple[float, Array]:
        """Optimum of the node whose cells are active (1), inactive (-1) or neither (0): its value and point (m,)."""
        y, w, kink, C = self.cells.y, self.cells.w, self.kink, self.C
        hinged = side <= 0
        f = np.sqrt(w) * np.where(side >= 0, y, 0.0)
        A = np.hstack([C[:, hinged], -C[:, kink]])
        own = np.eye(kink.sum(), A.shape[1], k=int(hinged.sum()))
        x, value = _nonnegative(np.vstack([A, own]), np.append(C @ f, (np.sqrt(w) * y)[kink]))
        f[hinged] -= x[: hinged.sum()]
        f[kink] += x[hinged.sum() :]
        fixed = float(w @ np.where((side < 0) & ~kink, y, 0.0) ** 2)
        return value + fixed, self.back @ f


def _nonnegative(A: Array, b: Array) -> tuple[Array, float]:
    """Non-negative least squares: ``x``, and the square of its residual, or 0 if the optimum was not reached.

    The hinges of a node may all be slack together, so columns can be collinear. scipy's ``nnls`` may then stop early or
    return huge coefficients that fit rounding errors; so its solution is checked.
    """
    norm = np.linalg.norm(A, axis=0)
    norm[norm == 0.0] = 1.0
    unit, size = A / norm, float(np.linalg.norm(b))
    if A.size:
        with suppress(RuntimeError):
            x = nnls(unit, b)[0]
            r = b - unit @ x
            if (unit.T @ r).max() <= FLAT * size and x.max() <= HUGE * size:
                return x / norm, float(r @ r)
    x, value = _lawson_hanson(unit, b, size)
    return x / norm, value


def _lawson_hanson(unit: Array, b: Array, size: float) -> tuple[Array, float]:
    """Slower active-set solution: a column that is collinear up to rounding does not enter."""
    n = unit.shape[1]
    x, used, refused = np.zeros(n), np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    r = b
    for _ in range(10 * n + 1):
        slope = np.where(used, 0.0, unit.T @ r)
        if slope.max(initial=0.0, where=~refused) <= FLAT * size:
            return x, float(r @ r) if slope.max(initial=0.0) <= UNSURE * size else 0.0
        entering = int(np.argmax(np.where(refused, 0.0, slope)))
        used[entering] = True
        z = _least_squares(unit, b, used)
        if z[entering] <= 0.0:  # opposite to its slope, by rounding
            used[entering], refused[entering] = False, True
            continue
        while (z[used] <= 0.0).any():
            falling = used & (z <= 0.0)
            step = np.min(x[falling] / (x[falling] - z[falling]))
            x += step * (z - x)
            used &= ~(falling & (x <= FLAT * size))
            x[~used] = 0.0
            z = _least_squares(unit, b, used)
        x, r = z, b - unit @ z
        refused[:] = False
    return x, 0.0


def _least_squares(A: Array, b: Array, used: BoolArray) -> Array:
    z = np.zeros(len(used))
    z[used] = np.linalg.lstsq(A[:, used], b, rcond=None)[0]
    return z
