"""The paper's optimiser: the modified differential multiplier method (Platt and Barr 1987), for comparison.

    min over theta, max over lambda   loss + lambda A + zeta/2 A^2,       A = n |c|^2,  zeta = 1

by simultaneous gradient descent and ascent on standardised features. The constraint is squared so that one multiplier
suffices. Its gradient ``2 n J'c`` vanishes on the feasible set, so the multiplier is undefined there. As the iterates
approach that set, the growing penalty allows ever smaller steps, and the loss stalls above its optimum. Use ``sqp``.
"""

from __future__ import annotations

import numpy as np

from setsquare._typing import Array
from setsquare.glm.newton import Iterate, Settings, kkt_residual
from setsquare.glm.objective import Model, Objective
from setsquare.glm.solution import Status, Step

DAMPING = 1.0
#: Gradient steps per row of the trace.
TRACE_EVERY = 100


def solve_mdmm(objective: Objective, theta: Array | None, settings: Settings) -> Iterate:
    """Run gradient descent-ascent from ``theta``, by default from the intercept-only model."""
    theta = objective.start.theta if theta is None else theta
    model = objective.model(theta, np.zeros(objective.n_constraints))
    n, steepest, caution = objective.rows.n_rows, float(np.linalg.eigvalsh(model.H)[-1]), 1.0
    multiplier, rate, limit = 0.0, 0.0, model.loss + abs(model.loss)
    trace: list[Step] = []
    status = Status.MAX_ITER
    for iteration in range(settings.max_iter):
        A = n * float(model.c @ model.c)
        # Largest rate that the curvature of loss and penalty allows, permanently halved when a step diverges.
        penalty = 2.0 * n * (multiplier + 3.0 * DAMPING * A) * float(np.sum(model.J**2))
        rate = caution / (steepest + penalty)
        if iteration % TRACE_EVERY == 0:
            kkt, gap = _residuals(objective, model)
            trace.append(Step(iteration, model.loss, gap, kkt, rate, False))
            if kkt <= settings.kkt and gap <= settings.correlation * model.spread:
                status = Status.CONVERGED
                break
        gradient = model.g + (multiplier + DAMPING * A) * 2.0 * n * (model.J.T @ model.c)
        trial = objective.model(theta - rate * gradient, None)
        if not trial.loss <= limit:
            caution *= 0.5
            continue
        theta, model = theta - rate * gradient, trial
        multiplier += rate * n * float(model.c @ model.c)
    lam = _multipliers(model)
    kkt, gap = _residuals(objective, model)
    trace.append(Step(settings.max_iter, model.loss, gap, kkt, rate, False))
    return Iterate(theta, lam, objective.model(theta, lam), status, tuple(trace))


def _multipliers(model: Model) -> Array:
    return np.asarray(np.linalg.lstsq(model.J.T, -model.g, rcond=None)[0], dtype=np.float64)


def _residuals(objective: Objective, model: Model) -> tuple[float, float]:
    lam = _multipliers(model)
    return kkt_residual(objective, model, lam), float(np.abs(model.c).max(initial=0.0))
