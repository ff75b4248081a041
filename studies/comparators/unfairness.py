"""What a fair ridge bounds: three definitions of unfairness, each as a function of the whitened coefficients.

A definition is given the path and the coefficients without a penalty, and returns the measure: what is the same for all
penalties is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from setsquare import Problem, solve
from setsquare.glm import linear_predictor
from setsquare.rows import Block, Sums
from studies.arrays import Array

if TYPE_CHECKING:
    from studies.comparators.fair_ridge import RidgePath

Measure: TypeAlias = Callable[[Array], float]


def statistical_parity(path: RidgePath, free: Array) -> Measure:
    """Share of the explained deviance that is lost without the protected columns' effects."""
    objective, rank = path.objective, path.basis.rank
    glm = objective.family

    def explained_variance(theta: Array) -> float:
        total = float(theta[1:] @ theta[1:])  # whitened coordinates: lengths are standard deviations
        return float(theta[1 : 1 + rank] @ theta[1 : 1 + rank]) / total if total > 0.0 else 0.0

    def explained_deviance(theta: Array) -> float:
        raw, delta = objective.raw(theta), path.delta(theta)
        shift = float(path.basis.mean @ path.beta(theta))  # the intercept belongs to columns that are not centred

        def kernel(block: Block) -> Sums:
            y, eta = block.y[:, 0], linear_predictor(block, raw)[:, 0]
            without = eta - np.asarray(block.Z[:, 1 : 1 + rank]) @ delta - shift
            neither = np.full_like(eta, raw[0, 0] - shift)
            deviances = (block.weight @ glm.unit_deviance(y, glm.activation(e)) for e in (eta, without, neither))
            return tuple(np.asarray(deviance) for deviance in deviances)

        full, without, neither = map(float, objective.rows.reduce(kernel))
        return (full - without) / (full - neither) if full != neither else 0.0

    return explained_variance if glm.name == "gaussian" else explained_deviance


def equal_opportunity(path: RidgePath, free: Array) -> Measure:
    """Share of the protected columns in what they and the outcome, entered after them, explain of the predictions."""
    problem, glm = path.problem, path.problem.family
    S = np.asarray(problem.protected)
    Q = path.basis.apply(S)
    # Rows that agree in both are one row with their mean: a table of groups is as good as all the rows.
    cells, index = np.unique(np.column_stack([S, problem.outcome]), axis=0, return_inverse=True)
    index = index.ravel()
    count = np.bincount(index).astype(np.float64)

    def measure(theta: Array) -> float:
        intercept, coef = path.prepared.coefficients(theta)
        eta = intercept + Q @ coef[0, : path.basis.rank] + problem.features @ coef[0, path.basis.rank :]
        yhat = (eta > 0.0).astype(np.float64) if glm.name == "binomial" else glm.activation(eta)
        yhat = np.bincount(index, weights=yhat) / count
        if np.ptp(yhat) == 0.0:
            return 0.0
        first, both = (solve(Problem(A, yhat, None, glm, count)).certificate for A in (cells[:, :-1], cells))
        return (first.loss_null - first.loss) / (both.loss_null - both.loss)

    return measure


def individual(path: RidgePath, free: Array) -> Measure:
    """Mean over pairs of ``|y_i - y_j| (s_i - s_j)^2``, relative to the model without a penalty."""
    S = np.asarray(path.problem.protected)
    M = pair_form(path.problem.outcome, path.basis.apply(S))
    delta = path.delta(free)
    scale = float(delta @ M @ delta)

    def measure(theta: Array) -> float:
        delta = path.delta(theta)
        return float(delta @ M @ delta) / scale if scale > 0.0 else 0.0

    return measure


def pair_form(y: Array, Q: Array) -> Array:
    """Mean over all pairs of rows of ``|y_i - y_j| (q_i - q_j)(q_i - q_j)'``, (r, r), by sorting and running sums.

    Examples
    --------
    >>> import numpy as np
    >>> pair_form(np.array([0.0, 1.0, 1.0]), np.array([[0.0], [1.0], [3.0]]))  # 2 * (1 + 9) / 9
    array([[2.22222222]])
    """
    order = np.argsort(y, kind="stable")
    y, A = y[order] - y.mean(), np.column_stack([np.ones(len(y)), Q[order]])

    def from_below(columns: Array) -> Array:
        """Sum over rows up to this one less the sum over those after it."""
        sums = np.cumsum(columns, axis=0)
        return np.asarray(2.0 * sums - sums[-1])

    # sum_j |y_i - y_j| a_j = y_i (below - above) of a_j, less the same of y_j a_j; rows with the same y add nothing
    D = y[:, None] * from_below(A) - from_below(y[:, None] * A)
    q, n = A[:, 1:], len(y)
    cross = q.T @ D[:, 1:]
    return np.asarray((2.0 * (q * D[:, :1]).T @ q - cross - cross.T) / n**2)


#: Definitions by the names of the literature.
DEFINITIONS: dict[str, Callable[[RidgePath, Array], Measure]] = {
    "sp": statistical_parity,
    "eo": equal_opportunity,
    "if": individual,
}
