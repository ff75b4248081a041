"""ReLU evaluation model: how much of the predictions a single ReLU unit of the protected columns explains.

    min over (a, b)  sum_i w_i (y_i - max(a + x_i'b, 0))^2,      with an intercept a or with a = 0.

The global optimum shows whether predictions leak; the loss is not convex, so a fit that stops at ``b = 0`` is no
evidence. Rows with equal ``x_i`` form a *cell*: only the mean of ``y`` in it matters, and no model explains the
variance within it. One column is solved exactly (``relu_line``), and so are few cells (``relu_cells``). Otherwise the
best of many descents (``relu_descent``) is reported, with a bound on the gain that they can have missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array
from setsquare.auditing.evaluations.relu_cells import MAX_CELLS, branch_and_bound
from setsquare.auditing.evaluations.relu_descent import Cells, multi_start, one_column
from setsquare.errors import InputError
from setsquare.projection import protected_basis
from setsquare.rows.blocks import mean_weight
from setsquare.rows.parallel import single_threaded_blas
from setsquare.tables.validation import read_weight, require_finite

#: Predictions that vary by less than this share of their size are constant up to rounding.
ROUNDING = 1e-14
#: A singular value of the protected columns below this share of the largest indicates collinearity.
COLLINEAR = 1e-9


@dataclass(frozen=True, slots=True)
class ReluFit:
    """A fitted ReLU evaluation model ``max(intercept + X @ coef, 0)``.

    Attributes
    ----------
    intercept : float
    coef : ndarray of shape (p,)
    loss : float
        Weighted mean squared error.
    loss_null : float
        The same at ``coef = 0``: loss of the best non-negative constant or, without an intercept, of zero.
    loss_bound : float
        No coefficients have a smaller loss than this; equal to ``loss`` where ``exact``. If branch and bound ran out of
        nodes, it is the bound reached. Beyond ``MAX_CELLS`` cells it is only the spread within cells and the squares of
        negative cell means: 0 for continuous columns and non-negative predictions.
    exact : bool
        Whether this is the global optimum.
    method : str
        "one column", "cells" or "multi-start".
    n_patterns : int
        Activation patterns that were solved or ruled out: sets of rows at which the unit is positive.
    n_starts : int
        Directions from which descents started.
    """

    intercept: float
    coef: Array
    loss: float
    loss_null: float
    loss_bound: float
    exact: bool
    method: str
    n_patterns: int
    n_starts: int

    @property
    def gain(self) -> float:
        """Share of the loss that the protected columns explain; 0 = no leak."""
        return 1.0 - self.loss / self.loss_null if self.loss_null > 0.0 else 0.0

    @property
    def gain_bound(self) -> float:
        """Upper bound on the gain of any ReLU unit of the protected columns."""
        return 1.0 - self.loss_bound / self.loss_null if self.loss_null > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class _Found:
    """Optimum over cells: ``theta`` (m,), a lower bound on the loss between cells, and how it was found."""

    theta: Array
    bound: float
    exact: bool
    method: str
    n_patterns: int = 0
    n_starts: int = 0


def fit_relu(
    y: Array,
    X: Array,
    *,
    intercept: bool = True,
    weight: Array | None = None,
    rng: np.random.Generator,
    n_starts: int = 20,
) -> ReluFit:
    """Fit the ReLU evaluation model of the predictions ``y`` on the protected columns ``X``.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Predictions; they may be negative.
    X : ndarray of shape (n, p)
    intercept : bool
        Without one no correction makes ``coef = 0`` optimal, unless ``y`` is 0 wherever ``X`` is not.
    weight : ndarray of shape (n,), optional
        On any scale; rows with weight 0 are ignored.
    rng : numpy.random.Generator
        Draws the directions of the descents; one column and saturated cells need none.
    n_starts : int
        Random directions, besides the linear fit and each column alone.

    Examples
    --------
    The counter-example to a correction before the ReLU: this output is orthogonal to ``X``, and leaks.

    >>> import numpy as np
    >>> X, y = np.array([[1.0], [-1.0]]), np.array([1.0, 1.0])
    >>> fit = fit_relu(y, X, intercept=False, rng=np.random.default_rng(0))
    >>> fit.coef.round(12), round(fit.loss_null, 12), round(fit.loss, 12), fit.exact
    (array([1.]), 1.0, 0.5, True)
    >>> fit_relu(y, X, rng=np.random.default_rng(0)).gain
    0.0
    """
    y, X, w = _checked(y, X, weight)
    points, cell_mean, cell_weight, within = _collapse(y, X, w)
    mean, T = _whitening(X, points, w, cell_weight, intercept)
    Q = (points - mean) @ T
    D = np.column_stack([np.ones(len(Q)), Q]) if intercept else Q
    columns = (points - mean).T @ (cell_weight[:, None] * Q)
    cells = Cells(D, cell_mean, cell_weight, columns, intercept)
    constant = max(float(cell_weight @ cell_mean), 0.0) if intercept else 0.0
    loss_null = within + float(cell_weight @ (cell_mean - constant) ** 2)
    with single_threaded_blas():  # thousands of tiny systems, for which threads are slower
        found = _search(cells, constant, loss_null, rng, n_starts)
    b = found.theta[int(intercept) :]
    coef = T @ b
    a = float(found.theta[0] - mean @ coef) if intercept else 0.0
    loss = within + float(cell_weight @ (cell_mean - np.maximum(a + points @ coef, 0.0)) ** 2)
    if loss >= loss_null:  # rounding error of the back-transformation, if nothing can be gained
        a, coef, loss = constant, np.zeros_like(coef), loss_null
    bound = loss if found.exact else min(loss, within + found.bound)
    return ReluFit(a, coef, loss, loss_null, bound, found.exact, found.method, found.n_patterns, found.n_starts)


def _search(cells: Cells, constant: float, loss_null: float, rng: np.random.Generator, n_starts: int) -> _Found:
    """Choose the method by the number of cells G and of directions."""
    G, m = cells.D.shape
    null = np.zeros(m)
    null[0] = constant if cells.intercept else 0.0
    if loss_null <= ROUNDING**2 * float(cells.w @ cells.y**2):
        return _Found(null, 0.0, True, "cells", 1)
    if m == 1 + cells.intercept:
        theta = min(one_column(cells.D[:, -1], cells.y, cells.w, cells.intercept), key=cells.loss)
        return _Found(theta, 0.0, True, "one column", 2 * G if cells.intercept else 2)
    if m == G:  # saturated: each cell has its own parameter
        return _Found(cells.solve(np.maximum(cells.y, 0.0)), 0.0, True, "cells", 1)
    theta, n_directions = multi_start(cells, null, rng, n_starts)
    bound = float(cells.w @ np.minimum(cells.y, 0.0) ** 2)
    if G > MAX_CELLS:
        return _Found(theta, bound, cells.loss(theta) <= bound, "multi-start", 0, n_directions)
    tree = branch_and_bound(cells, theta)
    return _Found(
        tree.theta, tree.bound, tree.exact, "cells" if tree.exact else "multi-start", tree.n_nodes, n_directions
    )


def _checked(y: Array, X: Array, weight: Array | None) -> tuple[Array, Array, Array]:
    """Arrays of the rows with positive weight, and their weights, which sum to one."""
    y, X = np.asarray(y, dtype=np.float64), np.asarray(X, dtype=np.float64)
    if y.ndim != 1 or X.ndim != 2 or len(X) != len(y):
        raise InputError(
            f"The ReLU model takes one column of predictions and a matrix of as many rows, not shapes {y.shape} and "
            f"{X.shape}: give both for the same rows."
        )
    require_finite("The predictions or the protected columns have", y, X)
    weight = read_weight(weight, len(y))
    if weight is None:
        return y, X, mean_weight(len(y), None)
    counts = weight > 0.0
    return y[counts], X[counts], mean_weight(len(y), weight)[counts]


def _collapse(y: Array, X: Array, w: Array) -> tuple[Array, Array, Array, float]:
    """Distinct rows of ``X``, the mean of ``y`` and the weight at each, and the variance within them."""
    order = np.lexsort(X.T[::-1])
    y, X, w = y[order], X[order], w[order]
    first = np.append(True, (X[1:] != X[:-1]).any(axis=1))
    starts = np.flatnonzero(first)
    cell = np.cumsum(first) - 1
    weight = np.add.reduceat(w, starts)
    mean = y[starts]
    for _ in range(2):  # from the first value of each cell, then again to remove rounding errors
        mean = mean + np.add.reduceat(w * (y - mean[cell]), starts) / weight
    return X[starts], mean, weight, float(w @ (y - mean[cell]) ** 2)


def _whitening(X: Array, points: Array, w: Array, cell_weight: Array, intercept: bool) -> tuple[Array, Array]:
    """Mean (p,) and T (p, r) so that the columns of ``(X - mean) T`` are orthonormal, under the weights."""
    if intercept:
        basis = protected_basis(X, w)
        return basis.mean, basis.transform
    A = points * np.sqrt(cell_weight)[:, None]
    size = np.linalg.norm(A, axis=0)
    if not size.any():
        raise InputError("Every protected column is zero, so there is nothing to audit: name a column that varies.")
    size[size == 0.0] = 1.0
    _, s, Vt = np.linalg.svd(A / size, full_matrices=False)
    kept = s > COLLINEAR * s[0]
    return np.zeros(X.shape[1]), (Vt[kept] / s[kept, None]).T / size[:, None]
