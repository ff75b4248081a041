"""Orthogonality on new rows: targets of the constraint for which the leave-one-out covariance is zero.

A constraint that is exact on the training rows is fitted to the same noise as the model, so part of the correlation
comes back on new rows, of the order of features / rows. Leave-one-out predictions show how much. The solver therefore
aims at ``c = kappa`` on the training rows, and ``kappa`` is moved until ``c_loo``, the covariance of leave-one-out
predictions with the protected columns, is zero. ``c_loo`` changes about one for one with ``kappa``; secant steps
(Broyden) correct for the rest.

Each new target starts at the linear prediction of the old KKT matrix, followed by Newton steps with that same matrix,
which need gradients only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.glm.domain_edge import Run
from setsquare.glm.leave_one_out import Inverse, Tallied, invert, tally
from setsquare.glm.newton import Iterate, Settings, kkt_residual
from setsquare.glm.objective import Objective
from setsquare.glm.solution import NEW_ROWS_TOLERANCE, Status

#: Maximum number of targets; 2 to 4 are typical.
MOST_TARGETS = 15
#: Maximum number of steps with the same KKT matrix, and the factor by which each must reduce the residual.
MOST_CHORDS, CHORD_RATE = 12, 0.5
#: Share of the mean leverage, and of rows whose prediction rests on themselves alone, above which nothing is learned.
MOST_LEVERAGE, MOST_LOST = 0.8, 0.2


class Aimed(NamedTuple):
    """End of the search for a target.

    Attributes
    ----------
    end : Iterate
    objective : Objective
        With the target that was reached.
    tallied : Tallied
        Leave-one-out sums at the end.
    status : Status
        That of the last solve, or why the search was given up.
    """

    end: Iterate
    objective: Objective
    tallied: Tallied
    status: Status


def aim(objective: Objective, end: Iterate, run: Run, settings: Settings, mean_x: Array, n_units: int) -> Aimed:
    """Move the target of the constraint, from the solution ``end``, until the leave-one-out covariance is zero."""
    limit = NEW_ROWS_TOLERANCE / np.sqrt(n_units)
    kappa = np.zeros(objective.n_constraints) if objective.target is None else objective.target
    slope_inverse = np.eye(objective.n_constraints)
    best: Aimed | None = None
    step, share = np.zeros_like(kappa), 1.0
    for _ in range(MOST_TARGETS):
        inverse = invert(objective, end.model)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = tally(objective, end, inverse, mean_x)
        now = Aimed(end, objective, found, end.status)
        if best is None and _is_lost(found, n_units):
            return now._replace(status=Status.NO_INFORMATION)
        if np.isfinite(found.correlation) and np.isfinite(found.loss):
            if found.correlation <= limit:
                return now
            if best is None or found.correlation < 0.9 * best.tallied.correlation:
                c = found.c.T.ravel()
                if best is not None:
                    slope_inverse = _secant(slope_inverse, step, c - best.tallied.c.T.ravel())
                best, share = now, 1.0
            else:
                share *= 0.5
        elif best is None:
            return now._replace(status=Status.NO_INFORMATION)
        else:
            share *= 0.25
        assert best is not None
        if share < 0.01:
            break
        step = -share * (slope_inverse @ best.tallied.c.T.ravel())
        base = kappa if best.objective.target is None else best.objective.target
        objective = best.objective.aimed(base + step)
        if best is not now:
            inverse = invert(best.objective, best.end.model)
        end = retarget(objective, best.end, inverse, step, run, settings)
    assert best is not None
    return best._replace(status=Status.NOT_REACHED)


def _is_lost(found: Tallied, n_units: int) -> bool:
    """Whether most rows determine their own predictions."""
    return bool(not found.leverage <= MOST_LEVERAGE * n_units or found.lost > MOST_LOST * n_units)


def _secant(inverse: Array, step: Array, change: Array) -> Array:
    """Broyden's update of the inverse of a Jacobian by a step and the change that it caused."""
    left = inverse.T @ step
    scale = float(left @ change)
    if abs(scale) < 0.2 * float(step @ step):  # not to be trusted
        return inverse
    return np.asarray(inverse + np.outer(step - inverse @ change, left) / scale)


def retarget(
    objective: Objective, end: Iterate, inverse: Inverse, change: Array, run: Run, settings: Settings
) -> Iterate:
    """Solve again for a target that moved by ``change``, from the solution and KKT matrix of the old one."""
    m, r = objective.n_parameters, objective.n_constraints
    L, F, E = inverse.root.reshape(m, -1), inverse.cross.reshape(m, r), inverse.corner.reshape(r, r)
    theta, lam, before = end.theta + F @ change, end.lam + E @ change, np.inf
    for _ in range(MOST_CHORDS):
        model = objective.model(theta, None)
        if not np.isfinite(model.loss):
            break
        kkt, gap = kkt_residual(objective, model, lam), float(np.abs(model.c).max(initial=0.0))
        if kkt <= settings.kkt and gap <= max(settings.correlation, 0.1 * settings.kkt) * model.spread:
            full = objective.model(theta, lam)
            return Iterate(theta, lam, full, end.status, end.trace)
        residual = model.g + model.J.T @ lam
        size = max(kkt, gap / max(model.spread, np.finfo(float).tiny))
        if not size <= CHORD_RATE * before:
            break
        before = size
        theta = theta - L @ (L.T @ residual) - F @ model.c
        lam = lam - F.T @ residual - E @ model.c
    start = end.theta + F @ change
    safe = np.isfinite(objective.values(start).loss)
    return run(objective, start if safe else end.theta, settings)
