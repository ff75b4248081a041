"""A share of the covariance may stay: fits between the plain model and the orthogonal one, and the path of all of them.

    min over gamma   loss     subject to   |c| <= budget * |c_plain|,

with ``c`` the covariance of the predictions with an orthonormal basis of the protected columns, and ``c_plain`` that of
the fit without a constraint. The covariance may turn: of all with this length, the cheapest is taken, so the loss is
never above that of ``c = budget * c_plain``. With the multipliers ``lam`` of ``c = kappa``, the best target of a given
length is parallel to them, ``lam = price * kappa``. Each Newton step therefore solves for coefficients, multipliers and
target together; the targets of its quadratic model are a trust-region problem with as many unknowns as ``c`` has.

The fit starts at the orthogonal model and lets the radius grow. The feasible set grows with it, so the loss along the
path decreases. ``|lam|`` is the price: the loss saved per unit of covariance that is let through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.glm.certificate import NEW_ROWS
from setsquare.glm.domain_edge import Run
from setsquare.glm.hessian import Hessian
from setsquare.glm.leave_one_out import Inverse, invert
from setsquare.glm.new_rows import MOST_PARAMETERS
from setsquare.glm.newton import Iterate, Settings, kkt_residual
from setsquare.glm.objective import Model, Objective
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Status

#: Maximum number of Newton steps to a radius, and the factor by which each must reduce the residual.
MOST_STEPS, STEP_RATE = 8, 0.5
#: Distance, in standard deviations of the linear predictor, up to which a Hessian is reused for the last steps, and on
#: the way from one point of a path to the next.
SAME, NEAR = 3e-3, 0.2
#: Number of times that the way to a radius is halved where Newton steps fail.
HALVINGS = 6
#: Smallest and largest number of points from which the path is continued.
FEWEST, MOST = 3, 4
#: Maximum number of prices that are tried, and the relative precision of the length that they lead to.
MOST_PRICES, PRECISION = 100, 1e-13
#: Relative increase of the loss that is rounding error.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Spent:
    """A fit that uses its budget.

    Attributes
    ----------
    end : Iterate
    objective : Objective
        With the target of the constraint.
    price : float
        ``lam = price * target``; infinite for the orthogonal model, 0 for the plain one.
    covariance, plain : float
        Length of the covariance with the basis, and that of the fit without a constraint.
    plain_loss : float
        Loss without a constraint.
    """

    end: Iterate
    objective: Objective
    price: float
    covariance: float
    plain: float
    plain_loss: float

    @property
    def share(self) -> float:
        """Share of the covariance that is left."""
        return self.covariance / self.plain if self.plain > 0.0 else 0.0

    @property
    def correlation(self) -> float:
        """Multiple correlation of the predictions with all protected columns; over all classes."""
        spread = self.end.model.spread
        return self.covariance / spread if spread > 0.0 else 0.0

    @property
    def slope(self) -> float:
        """Loss that a further unit of covariance would save."""
        return float(np.linalg.norm(self.end.lam))

    def refreshed(self) -> Spent:
        """The same fit, with the Hessian of its own point: on a path it may be that of a point nearby."""
        model = self.objective.model(self.end.theta, self.end.lam)
        return replace(self, end=self.end._replace(model=model))

    def within(self) -> Iterate:
        """The same end, with one constraint on the length of the covariance in place of those on its parts.

        ``(c'c - r^2) / 2`` has the gradient ``J'c`` and the multiplier ``price``.
        """
        model, target = self.end.model, self.objective.target
        if target is None or not self.covariance or math.isinf(self.price):
            return self.end
        J, H = (target @ model.J)[None, :], model.H
        B = H.whitening.undo(model.J.T, gradients=True)
        H = Hessian(H.inner + self.price * (B @ B.T), H.whitening)
        return self.end._replace(model=model._replace(J=J if self.price > 0.0 else J[:0], H=H))

    def inverse(self) -> Inverse:
        """Blocks of the inverse KKT matrix at a fixed price, for leave-one-out fits.

        A row that is left out may change the covariance, at the price that the fit paid. So leave-one-out quantities go
        from those of the constraint ``c = 0`` to those of the plain fit.
        """
        return soften(invert(self.objective, self.end.model), self.price)


def check_budget(budget: object) -> float:
    """Raise unless a budget is a share."""
    if isinstance(budget, bool) or not isinstance(budget, int | float | np.number) or not 0.0 <= float(budget) <= 1.0:
        raise InputError(
            f"budget must be between 0 (orthogonal) and 1 (no correction), not {budget!r}: it is the share of the "
            "covariance with the protected columns that may stay."
        )
    return float(budget)


def check_spending(problem: Problem, solver: str, budget: float, orthogonal_on: str) -> None:
    """Raise if a budget cannot be spent with these options."""
    if not check_budget(budget) or not len(problem.protected_names):
        return
    if orthogonal_on == NEW_ROWS:
        raise InputError(
            'budget= sets the covariance on the training rows, and orthogonal_on="new rows" asks for none on new rows: '
            "use one of them."
        )
    if solver == "mdmm":
        raise InputError('solver="mdmm" is the method of the paper, which has no budget: use solver="sqp".')
    size = (1 + len(problem.feature_names)) * problem.n_predictors
    if solver == "large" and size > MOST_PARAMETERS:
        raise InputError(
            f"budget= needs a matrix of {size} x {size} for these features, which is too large: reduce the features "
            "(PrincipalComponents), or leave out budget."
        )


def spend(objective: Objective, exact: Iterate, budget: float, run: Run, settings: Settings) -> Spent:
    """Fit with a budget, from the orthogonal fit ``exact``."""
    return next(follow(objective, exact, [budget], run, settings)).refreshed()


def follow(
    objective: Objective, exact: Iterate, budgets: Sequence[float], run: Run, settings: Settings
) -> Iterator[Spent]:
    """Fits for increasing budgets, each from the one before; the first from the orthogonal fit ``exact``."""
    if objective.barrier:
        raise InputError(
            "budget= is not available for an optimum at the edge of the link's domain: use another link, or budget=0."
        )
    free = run(objective.unconstrained(), exact.theta, settings)
    none = np.zeros(objective.n_constraints)
    plain = _Point(free.theta, none, objective.model(free.theta, none), none, 0.0, free.status, free.theta)
    plain = plain._replace(target=plain.model.c)
    points = [_Point(exact.theta, exact.lam, exact.model, none, np.inf, exact.status, exact.theta)]
    for budget in budgets:
        radius = budget * plain.radius
        if budget >= 1.0:
            points.append(plain)
        elif radius > points[-1].radius:
            points.append(_grow(objective, points, radius, plain.target / plain.radius, run, settings))
        point = points[-1]
        end = Iterate(point.theta, point.lam, _relative(point.model, -point.target), point.status, exact.trace)
        length = float(np.linalg.norm(point.model.c))
        yield Spent(end, objective.aimed(point.target), point.price, length, plain.radius, plain.model.loss)


class _Point(NamedTuple):
    """A fit on the path; the covariance of its model is not relative to a target."""

    theta: Array
    lam: Array
    model: Model
    target: Array
    price: float
    status: Status
    centre: Array  # where the Hessian was computed

    @property
    def radius(self) -> float:
        """Length of the target."""
        return float(np.linalg.norm(self.target))


def _relative(model: Model, shift: Array) -> Model:
    return model._replace(c=model.c + shift)


def _grow(
    objective: Objective, points: Sequence[_Point], radius: float, direction: Array, run: Run, settings: Settings
) -> _Point:
    """Let the radius grow, in smaller steps where Newton's method fails, and else without a turn of the covariance."""
    begin = points[-1]
    found = _from_path(objective, points, radius, settings) if len(points) >= FEWEST else None
    found = found or _walk(objective, begin, radius, settings, HALVINGS)
    if found is not None:
        return found
    target = radius * direction
    end = run(objective.aimed(target), begin.theta, settings)
    fixed = _Point(end.theta, end.lam, _relative(end.model, target), target, 0.0, end.status, end.theta)
    found = _newton(objective, fixed, radius, settings)
    if found is not None and found.model.loss <= end.model.loss * (1.0 + ROUNDING):
        return found
    return fixed._replace(price=max(float(end.lam @ target) / radius**2, 0.0), status=Status.STALLED)


def _from_path(objective: Objective, points: Sequence[_Point], radius: float, settings: Settings) -> _Point | None:
    """Newton steps from the polynomial through the last points."""
    last = points[-MOST:]
    at = np.asarray([point.radius for point in last])
    others = [np.delete(at, i) for i in range(len(at))]
    weights = np.asarray([np.prod((radius - rest) / (own - rest)) for own, rest in zip(at, others, strict=True)])
    theta, lam = (weights @ np.asarray(values) for values in zip(*((p.theta, p.lam) for p in last), strict=True))
    begin = points[-1]
    if _distance(theta, begin.centre) <= NEAR:
        model, centre = objective.model(theta, None)._replace(H=begin.model.H), begin.centre
    else:
        model, centre = objective.model(theta, lam), theta
    if not model.loss <= begin.model.loss:
        return None
    begin = begin._replace(theta=theta, lam=lam, model=model, centre=centre)
    found = _newton(objective, begin, radius, settings, NEAR)
    return found if found is not None and _is_lower(objective, found, points[-1]) else None


def _walk(objective: Objective, begin: _Point, radius: float, settings: Settings, halvings: int) -> _Point | None:
    found = _newton(objective, begin, radius, settings)
    if found is not None and _is_lower(objective, found, begin):
        return found
    if not halvings:
        return None
    middle = _walk(objective, begin, 0.5 * (begin.radius + radius), settings, halvings - 1)
    return None if middle is None else _walk(objective, middle, radius, settings, halvings - 1)


def _is_lower(objective: Objective, found: _Point, before: _Point) -> bool:
    """Whether the loss decreased, up to rounding error: the feasible set has grown."""
    slack = ROUNDING * max(abs(before.model.loss), objective.start.curvature)
    return found.model.loss <= before.model.loss + slack


def _distance(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b))


def _newton(
    objective: Objective, begin: _Point, radius: float, settings: Settings, near: float = SAME
) -> _Point | None:
    """Newton steps for coefficients, multipliers and target; None if they do not converge.

    Up to the distance ``near`` from where it was computed, the Hessian is reused.
    """
    m, r = objective.n_parameters, objective.n_constraints
    theta, lam, model, centre, before, same = begin.theta, begin.lam, begin.model, begin.centre, np.inf, False
    for i in range(MOST_STEPS):
        if not same:
            inverse = invert(objective, model)
            L, F, E = inverse.root.reshape(m, -1), inverse.cross.reshape(m, r), inverse.corner.reshape(r, r)
        residual = model.g + model.J.T @ lam
        free = lam - F.T @ residual - E @ model.c  # multipliers of the target zero, by the quadratic model
        target, price = cheapest_target(free, E, radius)
        gap = model.c - target
        kkt = kkt_residual(objective, model, lam)
        left = float(np.abs(gap).max()) / max(model.spread, np.finfo(float).tiny)
        down = L.T @ residual
        still = begin.status is Status.FLAT and 0.5 * float(down @ down) <= settings.loss * abs(model.loss)
        if i and kkt <= (100.0 if still else 10.0) * settings.kkt and left <= settings.kkt:
            return _Point(theta, price * target, model, target, price, begin.status, centre)
        if i > 1 and not max(kkt, left) <= STEP_RATE * before:
            return None
        before = max(kkt, left)
        step = -(L @ down) - F @ gap
        theta, lam = theta + step, free + E @ target
        same = _distance(theta, centre) <= near
        model = objective.model(theta, None)._replace(H=model.H) if same else objective.model(theta, lam)
        centre = centre if same else theta
        if not np.isfinite(model.loss):
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


def soften(inverse: Inverse, price: float) -> Inverse:
    """Inverse of ``[[H, J'], [J, -1/price]]`` from that of ``[[H, J'], [J, 0]]``: the constraint yields at a price."""
    if math.isinf(price):
        return inverse
    (k, m, _), (_, r, _, _) = inverse.root.shape, inverse.corner.shape
    L, F = inverse.root.reshape(k * m, -1), inverse.cross.reshape(k * m, k * r)
    values, V = np.linalg.eigh(inverse.corner.reshape(k * r, k * r))
    stiff = np.maximum(-values, 0.0)  # negative eigenvalues of a nonconvex path have no inverse
    given = np.where(price + stiff > 0.0, 1.0 / np.maximum(price + stiff, np.finfo(float).tiny), 0.0)
    root = np.hstack([L, F @ (V * np.sqrt(given))])
    cross = F @ (V * (price * given)) @ V.T
    corner = (V * (-stiff * price * given)) @ V.T
    return Inverse(root.reshape(k, m, -1), cross.reshape(k, m, k, r), corner.reshape(k, r, k, r))
