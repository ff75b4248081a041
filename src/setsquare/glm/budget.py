"""A share of the covariance may stay: fits between the plain model and the orthogonal one, and the path of all of them.

    min over gamma   loss     subject to   |c| <= budget * |c_plain|,

with ``c`` the covariance of the predictions with an orthonormal basis of the protected columns, and ``c_plain`` that of
the fit without a constraint. The covariance may turn: of all with this length, the cheapest is taken, so the loss is
never above that of ``c = budget * c_plain``. With the multipliers ``lam`` of ``c = kappa``, the best target of a given
length is parallel to them, ``lam = price * kappa``. Each Newton step therefore solves for coefficients, multipliers and
target together; the targets of its quadratic model are a trust-region problem with as many unknowns as ``c`` has.

The fit starts at the orthogonal model and lets the radius grow, and at the plain model and lets it shrink; the smaller
loss is kept. The feasible set grows with the radius, so the loss along the path decreases. ``|lam|`` is the price: the
loss saved per unit of covariance that is let through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from setsquare.errors import InputError
from setsquare.glm.budget_steps import Point, continue_path, slack, walk
from setsquare.glm.certificate import NEW_ROWS
from setsquare.glm.domain_edge import Run
from setsquare.glm.hessian import Hessian
from setsquare.glm.kkt_inverse import Inverse, invert_at
from setsquare.glm.mdmm import MULTIPLIER_METHODS
from setsquare.glm.new_rows import MOST_PARAMETERS
from setsquare.glm.newton import Iterate, Settings
from setsquare.glm.objective import Objective
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Status
from setsquare.notes import Note, Option

#: Smallest number of points from which a path is continued.
FEWEST = 3


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
        return soften(invert_at(self.objective, self.end), self.price)


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
        text = "{budget} sets the covariance on the training rows, and {on} asks for none on new rows: use one of them."
        raise InputError(
            Note("budget-and-new-rows", text, budget=Option("budget"), on=Option("orthogonal_on", NEW_ROWS))
        )
    if solver in MULTIPLIER_METHODS:
        raise InputError(f'solver="{solver}" is the method of the paper, which has no budget: use solver="sqp".')
    size = (1 + len(problem.feature_names)) * problem.n_predictors
    if solver == "large" and size > MOST_PARAMETERS:
        raise InputError(
            f"budget= needs a matrix of {size} x {size} for these features, which is too large: reduce the features "
            "(PrincipalComponents), or leave out budget."
        )


def spend(objective: Objective, exact: Iterate, budget: float, run: Run, settings: Settings) -> Spent:
    """Fit with a budget, from the orthogonal fit ``exact``."""
    return follow(objective, exact, [budget], run, settings)[0].refreshed()


def follow(objective: Objective, exact: Iterate, budgets: Sequence[float], run: Run, settings: Settings) -> list[Spent]:
    """Fits for increasing budgets: up from the orthogonal fit ``exact`` and, where that is better, down from the plain.

    The problem is not convex, so the two ways can lead to different fits. The way down is taken as long as its fits
    have a smaller loss, or the way up has failed.
    """
    if objective.barrier:
        raise InputError(
            "budget= is not available for an optimum at the edge of the link's domain: use another link, or budget=0."
        )
    free = run(objective.unconstrained(), exact.theta, settings)
    none = np.zeros(objective.n_constraints)
    plain = Point(free.theta, none, objective.model(free.theta, none), none, 0.0, free.status, free.theta)
    plain = plain._replace(target=plain.model.c)
    first = Point(exact.theta, exact.lam, exact.model, none, np.inf, exact.status, exact.theta)
    radii = [budget * plain.radius for budget in budgets]
    up = _go_up(objective, first, plain, radii, settings)
    both = _go_down(objective, up, plain, radii, settings)
    found: list[Spent] = []
    last = first
    for radius, point in zip(radii, both, strict=True):
        own = point or _hold(objective, last, plain, radius, run, settings)
        if own.model.loss > last.model.loss + slack(objective, last):  # what was feasible before still is
            own = last._replace(status=Status.STALLED)
        last = own
        end = Iterate(own.theta, own.lam, own.model._replace(c=own.model.c - own.target), own.status, exact.trace)
        length = float(np.linalg.norm(own.model.c))
        found.append(Spent(end, objective.aimed(own.target), own.price, length, plain.radius, plain.model.loss))
    return found


def _go_up(
    objective: Objective, first: Point, plain: Point, radii: Sequence[float], settings: Settings
) -> list[Point | None]:
    """Fits for increasing radii, from the orthogonal one; None where Newton's method fails."""
    known, found = [first], list[Point | None]()
    for radius in radii:
        point: Point | None = known[-1]
        if radius >= plain.radius:
            point = plain
        elif radius > known[-1].radius:
            point = continue_path(objective, known, radius, settings) if len(known) >= FEWEST else None
            point = point or walk(objective, known[-1], radius, settings)
        found.append(point)
        known += [point] if point is not None and point.radius > known[-1].radius else []
    return found


def _go_down(
    objective: Objective, up: Sequence[Point | None], plain: Point, radii: Sequence[float], settings: Settings
) -> list[Point | None]:
    """Replace the fits of the way up by those of the way down where these have a smaller loss, or alone exist."""
    found, begin, joined = list(up), plain, False
    for i in reversed(range(len(radii))):
        own = up[i]
        if not 0.0 < radii[i] < plain.radius or (joined and own is not None):
            begin = own or begin
            continue
        down = walk(objective, begin, radii[i], settings)
        joined = own is not None and (down is None or own.model.loss <= down.model.loss + slack(objective, own))
        found[i] = own if joined else down
        begin = found[i] or begin
    return found


def _hold(objective: Objective, begin: Point, plain: Point, radius: float, run: Run, settings: Settings) -> Point:
    """Fit where no path leads to a radius: first with a covariance that does not turn, then from there."""
    target = plain.target * (radius / plain.radius)
    end = run(objective.aimed(target), begin.theta, settings)
    model = end.model._replace(c=end.model.c + target)
    price = float(end.lam @ target) / radius**2
    held = Point(end.theta, end.lam, model, target, max(price, 0.0), end.status, end.theta)
    found = walk(objective, held, radius, settings)
    if found is not None:
        return found
    return held if len(target) == 1 and price >= 0.0 else held._replace(status=Status.STALLED)


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
