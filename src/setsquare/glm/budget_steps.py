"""Newton steps to a fit with a covariance of a given length: for coefficients, multipliers and target together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.glm.kkt_inverse import invert
from setsquare.glm.newton import Settings, kkt_residual
from setsquare.glm.objective import Model, Objective
from setsquare.glm.solution import Status

#: Maximum number of Newton steps to a radius, and the factor by which each must reduce the residual.
MOST_STEPS, STEP_RATE = 8, 0.5
#: Distance, in standard deviations of the linear predictor, up to which a Hessian is reused for the last steps, and on
#: the way from one point of a path to the next.
SAME, NEAR = 3e-3, 0.2
#: Number of times that the way to a radius is halved where Newton steps fail.
HALVINGS = 6
#: Largest number of points from which a path is continued.
MOST = 4
#: Maximum number of prices that are tried, and the relative precision of the length that they lead to.
MOST_PRICES, PRECISION = 100, 1e-13
#: Relative change of the loss that is rounding error.
ROUNDING = 1e-9


class Point(NamedTuple):
    """A fit on the path.

    Attributes
    ----------
    theta, lam : ndarray
    model : Model
        With the covariance itself, not relative to a target.
    target : ndarray of shape (r,)
    price : float
        ``lam = price * target``.
    status : Status
    centre : ndarray of shape (m,)
        Where the Hessian was computed.
    """

    theta: Array
    lam: Array
    model: Model
    target: Array
    price: float
    status: Status
    centre: Array

    @property
    def radius(self) -> float:
        """Length of the target."""
        return float(np.linalg.norm(self.target))


def continue_path(objective: Objective, points: Sequence[Point], radius: float, settings: Settings) -> Point | None:
    """Newton steps from the polynomial through the last points."""
    begin, (theta, lam) = points[-1], _extrapolate(points[-MOST:], radius)
    if _distance(theta, begin.centre) <= NEAR:
        centre = begin.centre
        model = objective.model(theta, None)._replace(H=begin.model.H, apart=_distance(theta, centre))
    else:
        model, centre = objective.model(theta, lam), theta
    if not model.loss <= begin.model.loss:
        return None
    predicted = begin._replace(theta=theta, lam=lam, model=model, centre=centre)
    found = _newton(objective, predicted, radius, settings, NEAR)
    return found if found is not None and _fits(objective, found, begin) else None


def _extrapolate(last: Sequence[Point], radius: float) -> tuple[Array, Array]:
    """Coefficients and multipliers at a radius, by the polynomial through some points."""
    at = np.asarray([point.radius for point in last])
    others = [np.delete(at, i) for i in range(len(at))]
    weights = np.asarray([np.prod((radius - rest) / (own - rest)) for own, rest in zip(at, others, strict=True)])
    theta, lam = (weights @ np.asarray(values) for values in zip(*((p.theta, p.lam) for p in last), strict=True))
    return theta, lam


def walk(
    objective: Objective, begin: Point, radius: float, settings: Settings, halvings: int = HALVINGS
) -> Point | None:
    """Newton steps from a point to another radius, in smaller parts where they fail; None if these fail as well."""
    found = _newton(objective, begin, radius, settings)
    if found is not None and _fits(objective, found, begin):
        return found
    if not halvings:
        return None
    middle = walk(objective, begin, 0.5 * (begin.radius + radius), settings, halvings - 1)
    return None if middle is None else walk(objective, middle, radius, settings, halvings - 1)


def slack(objective: Objective, point: Point) -> float:
    """Change of the loss that is rounding error."""
    return ROUNDING * max(abs(point.model.loss), objective.start.curvature)


def _fits(objective: Objective, found: Point, begin: Point) -> bool:
    """Whether the loss is lower at a larger radius, where more is feasible, and higher at a smaller one."""
    change = found.model.loss - begin.model.loss
    return (change if found.radius >= begin.radius else -change) <= slack(objective, begin)


def _distance(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b))


def _is_finite(model: Model) -> bool:
    return bool(np.isfinite(model.loss) and np.isfinite(model.g).all() and np.isfinite(model.J).all())


def _newton(objective: Objective, begin: Point, radius: float, settings: Settings, near: float = SAME) -> Point | None:
    """Newton steps for coefficients, multipliers and target; None if they do not converge.

    Up to the distance ``near`` from where it was computed, the Hessian is reused.
    """
    m, r = objective.n_parameters, objective.n_constraints
    theta, lam, model, centre, before, same = begin.theta, begin.lam, begin.model, begin.centre, np.inf, False
    if not _is_finite(model):
        return None
    for i in range(MOST_STEPS):
        if not same:
            inverse = invert(objective, model)
            L, F, E = inverse.root.reshape(m, -1), inverse.cross.reshape(m, r), inverse.corner.reshape(r, r)
        residual = model.g + model.J.T @ lam
        free = lam - F.T @ residual - E @ model.c  # multipliers of the target zero, by the quadratic model
        if not (np.isfinite(E).all() and np.isfinite(free).all()):  # a singular system, along open directions
            return None
        target, price = cheapest_target(free, E, radius)
        gap = model.c - target
        kkt = kkt_residual(objective, model, lam)
        left = float(np.abs(gap).max()) / max(model.spread, np.finfo(float).tiny)
        down = L.T @ residual
        still = begin.status is Status.FLAT and 0.5 * float(down @ down) <= settings.loss * abs(model.loss)
        if i and kkt <= (100.0 if still else 10.0) * settings.kkt and left <= settings.kkt:
            return Point(theta, price * target, model, target, price, begin.status, centre)
        if i > 1 and not max(kkt, left) <= STEP_RATE * before:
            return None
        before = max(kkt, left)
        step = -(L @ down) - F @ gap
        theta, lam = theta + step, free + E @ target
        apart = _distance(theta, centre)
        if apart <= near:
            model = objective.model(theta, None)._replace(H=model.H, apart=apart)
        else:
            model, centre = objective.model(theta, lam), theta
        if not _is_finite(model):
            return None
    return None


def cheapest_target(free: Array, corner: Array, radius: float) -> tuple[Array, float]:
    """Target of at most this length with the smallest loss, and its price, if multipliers are ``free + corner target``.

    Examples
    --------
    >>> target, price = cheapest_target(np.array([3.0, 4.0]), -np.eye(2), 1.0)
    >>> target.round(6), round(price, 6)
    (array([0.6, 0.8]), 4.0)
    """
    values, vectors = np.linalg.eigh(0.5 * (corner + corner.T))
    pull = vectors.T @ free
    size = float(np.linalg.norm(pull))
    if not size > 0.0:
        return np.zeros_like(free), 0.0
    price = max(float(values.max()), 0.0)
    price += 1e-12 * (float(np.abs(values).max()) + size / radius)
    for _ in range(
        MOST_PRICES
    ):  # 1 / length is concave in the price and nearly linear: Newton's steps do not overshoot
        target = pull / (price - values)
        length = math.sqrt(float(target @ target))
        if length <= radius * (1.0 + PRECISION):
            break
        price += (length - radius) / radius * length**2 / float(target @ (target / (price - values)))
    return np.asarray(vectors @ target), price
