"""Loss of the fit without the constraint, for the cost that a certificate reports.

It takes several passes over the rows and no warning needs it, so for small data it is computed when it is first read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from setsquare._typing import Array
from setsquare.glm.deferred import Deferred
from setsquare.glm.domain_edge import follow
from setsquare.glm.held_rows import defer
from setsquare.glm.newton import OPEN, Iterate, Settings
from setsquare.glm.objective import Objective
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Status
from setsquare.glm.sqp import solve_reduced, solve_sqp

#: Stopping rule of the unconstrained fit: only its loss is needed.
ROUGHLY = Settings(max_iter=50, kkt=1e-5, loss=5e-7)


def defer_loss(problem: Problem, objective: Objective, end: Iterate, compute: Callable[[], float]) -> Deferred[float]:
    """Unconstrained loss by ``compute``, when it is first read; NaN if the rows were overwritten after the fit."""
    return (
        defer(problem, objective, end, compute, float("nan")) if objective.n_constraints else Deferred(end.model.loss)
    )


def unconstrained_loss(objective: Objective, end: Iterate) -> float:
    """Loss of the fit without the constraint, by quasi-Newton steps from the solution, or by a separate fit."""
    free = objective.unconstrained()
    if free.barrier:
        return min(follow(free, solve_sqp, None, ROUGHLY).end.model.loss, end.model.loss)
    theta, loss = _descend(free, end) if _is_near(free, end) else (end.theta, None)
    if loss is not None:
        return min(loss, end.model.loss)
    return lowest_loss(free, end, theta, lambda start: solve_sqp(free, start, ROUGHLY))


def lowest_loss(free: Objective, end: Iterate, theta: Array, fit: Callable[[Array | None], Iterate]) -> float:
    """Lowest loss of unconstrained fits from ``theta`` and, where that may not be enough, from the default start."""
    losses = [end.model.loss, free.start.loss]
    settled = False
    if end.model.loss <= free.start.loss:  # otherwise the solution is a poor starting point
        found = fit(theta)
        losses.append(found.model.loss)
        settled = found.status in (Status.CONVERGED, Status.FLAT)
    if not settled or not free.family.is_convex:
        losses.append(fit(None).model.loss)
    return min(loss for loss in losses if np.isfinite(loss))


def _is_near(free: Objective, end: Iterate) -> bool:
    """Whether the unique unconstrained optimum may be within reach of a few quasi-Newton steps."""
    return end.model.loss <= free.start.loss and free.family.is_convex


def _descend(free: Objective, end: Iterate) -> tuple[Array, float | None]:
    """Take quasi-Newton steps from the solution; return the end point, and its loss if it is the optimum, else None.

    They start from the available Hessian of the Lagrangian, with flat directions regularised: a gradient costs an
    eighth of a new Hessian. Multipliers can make that Hessian far too large, and the predicted reduction far too small,
    so the gradient itself must be small as well.
    """
    theta, model, pairs = end.theta, end.model, list[tuple[Array, Array]]()
    H = model.H if end.status is Status.CONVERGED else model.H + OPEN * free.start.curvature * np.eye(len(theta))
    for _ in range(30):
        step = _quasi_newton(H, pairs, -model.g)
        reduction = -0.5 * float(model.g @ step)
        near = float(np.abs(model.g).max(initial=0.0)) <= 0.01 * free.start.slope
        if near and 0.0 <= reduction <= ROUGHLY.loss * abs(model.loss):  # skip the last step
            return theta, model.loss - reduction
        trial = free.model(theta + step, None)
        if not trial.loss < model.loss:
            break
        pairs.append((step, trial.g - model.g))
        theta, model = theta + step, trial
    return theta, None  # a line search is needed


def _quasi_newton(H: Array, pairs: list[tuple[Array, Array]], target: Array) -> Array:
    """Solve ``Bx = target``, where ``B`` is ``H`` after BFGS updates by pairs of steps and changes of the gradient."""
    bending = [(s, u, float(s @ u)) for s, u in pairs if s @ u > 0.0]
    shares = []
    for s, u, su in reversed(bending):
        shares.append(float(s @ target) / su)
        target = target - shares[-1] * u
    x = solve_reduced(H, target)[0]
    for (s, u, su), share in zip(bending, reversed(shares), strict=True):
        x = x + (share - float(u @ x) / su) * s
    return x
