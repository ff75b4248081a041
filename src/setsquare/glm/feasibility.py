"""Search for points that meet the constraint, for offsets that make them hard to find or rule them out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from setsquare._typing import Array
from setsquare.glm.newton import Settings
from setsquare.glm.objective import Model, Objective, Values
from setsquare.glm.sqp import UNREACHABLE

#: Maximum number of steps per starting point, and number of starting points.
MOST_STEPS, STARTS = 40, 6


def feasible_points(objective: Objective, settings: Settings) -> Iterator[Array]:
    """Points at which predictions are orthogonal: from the intercept-only model, then from random points around it."""
    rng = np.random.default_rng(0)  # fixed seed: the same points in every fit
    moving = np.ones(objective.n_parameters)
    moving[:: objective.to_raw.shape[1]] = 0.0
    for i in range(STARTS):
        draw = moving * rng.normal(size=len(moving)) / len(moving) ** 0.5
        point = _approach(objective, objective.start.theta + (draw if i else 0.0), moving, settings)
        if point is not None:
            yield point


def _approach(objective: Objective, theta: Array, moving: Array, settings: Settings) -> Array | None:
    """Gauss-Newton steps onto the constraint, with fixed intercepts so that predictions do not saturate.

    The steps reduce the correlation, not the covariance, which also shrinks with the predictions themselves.
    """
    model = objective.model(theta, None)
    for _ in range(MOST_STEPS):
        if not np.isfinite(model.loss):
            return None
        if _violation(model) <= settings.correlation:
            return theta
        step = _step(model, moving)
        for halvings in range(12):
            trial = theta + 0.5**halvings * step
            point = objective.values(trial)
            if np.isfinite(point.loss) and _violation(point) < (1.0 - 1e-3 * 0.5**halvings) * _violation(model):
                break
        else:
            return None
        theta, model = trial, objective.model(trial, None)
    return None


def _step(model: Model, moving: Array) -> Array:
    """Shortest step that meets the linearised constraint, as far as the features allow."""
    U, s, Vt = np.linalg.svd(model.J * moving, full_matrices=False)
    reached = s > UNREACHABLE * model.steepness
    return np.asarray(-Vt[reached].T @ ((U[:, reached].T @ model.c) / s[reached]))


def _violation(point: Model | Values) -> float:
    """Largest correlation with the basis."""
    return float(np.abs(point.c).max(initial=0.0)) / max(point.spread, np.finfo(float).tiny)
