"""Length of the first step from the intercept-only model, and the intercept that goes with it.

There every row has the same slope, and the step is a linear regression. Its direction is nearly right for any
activation, but not its length: away from the start slopes are smaller (binomial) or larger (Poisson). Along the step,
``eta = a + t x`` with one number ``x`` per row, the optimum meets two equations: the mean prediction is the mean
outcome, ``E h(eta) = E y``, and predictions have the covariance with ``x`` that outcomes have, which the gradient at
the start tells. They are solved for a normal ``x``, which takes no row at all and saves about one pass over the rows.
If the equations do not hold in some of the rows, beyond chance, they are solved for those instead: the predictor is
skewed then. Wrong or not, the line search decides.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.families.activations import Activation
from setsquare.glm.objective import Objective
from setsquare.rows.blocks import Block, BlockRows

#: Nodes and weights of the normal distribution: Gauss-Hermite quadrature.
NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(11)
SHARES = _WEIGHTS / _WEIGHTS.sum()
#: About so many rows are looked at, and normal values are kept where they meet the equations within so many errors.
SOME_ROWS, ERRORS = 1000, 3.0
#: Newton steps for the two equations, and the change at which they stop: only a start is needed.
MOST, CLOSE = 12, 0.1
#: Standard deviation of the linear predictor from which on a pass is saved, up to which it may pass as normal, and up
#: to which rows tell the length: farther away the direction is as wrong as the length.
NARROWEST, WIDEST, FARTHEST = 0.4, 1.4, 2.0
#: Smallest and largest multiple of the step.
SHORTEST, LONGEST = 0.25, 4.0


class Line(NamedTuple):
    """What is known of the predictor along a step.

    Attributes
    ----------
    activation : Activation
    mean : float
        Mean outcome.
    pull : float
        Covariance of the outcome with ``x``.
    ridge : float
        Ridge penalty of the step.
    x, shares : ndarray of shape (m,)
        Values along the step, and how often they occur.
    """

    activation: Activation
    mean: float
    pull: float
    ridge: float
    x: Array
    shares: Array

    def solve(self, a: float, t: float) -> tuple[float, float] | None:
        """Intercept and length that meet both equations, by Newton's method; None if that leads too far away.

        Examples
        --------
        >>> from setsquare.families.activations import EXP, SIGMOID
        >>> line = Line(EXP, 1.0, 1.0, 0.0, NODES, SHARES)
        >>> [round(value, 2) for value in line.solve(0.0, 1.0)]
        [-0.5, 1.0]
        >>> Line(SIGMOID, 0.5, 0.25, 0.0, NODES, SHARES).solve(0.0, 1.0)[1] > 1.3
        True
        """
        for _ in range(MOST):
            _, h, dh, _ = self.activation.evaluate(a + t * self.x)
            rows, gap = self.shares * dh, self.shares * (h - self.mean)
            turned = rows * self.x
            level, tilt = float(np.add.reduce(rows)), float(np.add.reduce(turned))
            across = float(np.dot(turned, self.x)) + 2.0 * self.ridge
            high = float(np.add.reduce(gap))
            strong = float(np.dot(gap, self.x)) + 2.0 * t * self.ridge - self.pull
            determinant = level * across - tilt * tilt
            if not determinant > 0.0:
                return None
            da, dt = (tilt * strong - across * high) / determinant, (tilt * high - level * strong) / determinant
            a, t = a + da, t + dt
            if not (SHORTEST < t < LONGEST and math.isfinite(a)):
                return None
            if abs(da) + abs(dt) <= CLOSE:
                break
        return a, t

    def is_met(self, a: float, t: float) -> bool:
        """Whether both equations hold up to the sampling error of these values."""
        _, h, *_ = self.activation.evaluate(a + t * self.x)
        gap = h - self.mean
        for part, goal in ((gap, 0.0), (gap * self.x, self.pull - 2.0 * t * self.ridge)):
            found = float(np.dot(self.shares, part))
            error = math.sqrt(float(np.dot(np.square(self.shares), np.square(part - found))))
            if not abs(found - goal) <= ERRORS * error:
                return False
        return True


def first_step(objective: Objective, gradient: Array, step: Array) -> Array:
    """The step from the start with another length and intercept, if all rows have the same slope there."""
    start, activation = objective.start, objective.family.activation
    spread = math.sqrt(float(np.dot(step, step)))
    is_line = start.sums is not None and objective.n_predictors == 1 and not math.isfinite(objective.edge)
    if not is_line or activation.name == "identity" or not NARROWEST <= spread <= FARTHEST:
        return step
    begin = float(start.theta[0])
    pull, ridge = -float(np.dot(gradient, step)), objective.ridge(step)
    line = Line(activation, float(start.mean[0]), pull, ridge, spread * NODES, SHARES)
    found = line.solve(begin, 1.0) if spread <= WIDEST else None
    some = _some_rows(objective, step)
    if some is not None:
        line = line._replace(x=some[0], shares=some[1])
        if found is None or not line.is_met(*found):
            found = line.solve(*(found or (begin, 1.0)))
    if found is None:
        return step
    a, t = found
    longer: Array = t * step
    longer[0] += a - begin
    return longer


def _some_rows(objective: Objective, step: Array) -> tuple[Array, Array] | None:
    """Linear predictors along a step, and shares, of about ``SOME_ROWS`` rows; None if they are not in memory."""
    rows = objective.rows
    if not isinstance(rows, BlockRows):
        return None
    raw, every = objective.raw(step), max(1, rows.n_rows // SOME_ROWS)
    x, weight = map(np.concatenate, zip(*(_along(block, every, raw) for block in rows.blocks), strict=True))
    total = float(np.add.reduce(weight))
    return (x, weight / total) if total > 0.0 else None


def _along(block: Block, every: int, raw: Array) -> tuple[Array, Array]:
    return np.asarray(block.Z[::every] @ raw)[:, 0], block.weight[::every]


__all__ = ["Line", "first_step"]
