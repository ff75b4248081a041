"""The loop of sequential quadratic programming, whatever the linear algebra of a step is.

At each point the step is ``d = normal + tangent``: the normal part solves ``J d = -c``, the tangent part lowers the
quadratic model on the null space of ``J``. A line search on ``loss + nu |c|`` with a second-order correction makes it
converge from anywhere; Newton steps onto the constraint alone settle its last digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from setsquare._typing import Array
from setsquare.glm.objective import Model, Objective, Values
from setsquare.glm.solution import MIN_CURVATURE, Status, Step

#: Curvature, relative to that of the intercept-only model, under which the data hardly determine a direction.
OPEN = 1e-3
#: Predicted reduction of the loss, as a share of it, that rounding hides.
ROUNDING = 1e-15
#: Predicted reduction, as a share of the loss, at which open directions are about all that is left.
CLOSE = 1e-4
#: Length of a step, in standard deviations of the linear predictor, that leaves the Hessian as good as it was.
SAME = 1e-4
#: Correlation with the basis up to which a point counts as near the constraint.
NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    """When to stop.

    Attributes
    ----------
    max_iter : int
    kkt : float
        Relative gradient of the Lagrangian.
    correlation : float
        Largest correlation left between basis and predictions.
    loss : float
        Predicted reduction of the loss, as a share of the loss, under which an open direction is no longer followed.
    leaps : tuple of float
        How many steps are tried at once along an open direction.
    """

    max_iter: int = 100
    kkt: float = 1e-8
    correlation: float = 1e-10
    loss: float = 1e-8
    leaps: tuple[float, ...] = (8.0, 4.0)


class Iterate(NamedTuple):
    """Where a solver ended."""

    theta: Array
    lam: Array
    model: Model
    status: Status
    trace: tuple[Step, ...]


class Frame(NamedTuple):
    """Right inverse ``pinv`` (m, r) of the Jacobian, and what else of it the algebra of a step keeps in ``basis``."""

    pinv: Array
    basis: Array


class Direction(NamedTuple):
    """A step with the multipliers, and what the quadratic model foresees.

    Attributes
    ----------
    step : ndarray of shape (m,)
    lam : ndarray of shape (r,)
    bend : float
        ``step' H step``.
    reduction, curvature : float
        Of the loss, and of the Lagrangian along the tangent part.
    corrected : bool
        Whether the Hessian bent downwards.
    """

    step: Array
    lam: Array
    bend: float
    reduction: float
    curvature: float
    corrected: bool


class Algebra(Protocol):
    """Linear algebra of a step."""

    def frame(self, model: Model) -> Frame:
        """Work out the Jacobian's range."""
        ...

    def residual(self, model: Model, frame: Frame) -> float:
        """Gradient of the Lagrangian relative to the slopes of the intercept-only model."""
        ...

    def direction(self, model: Model, frame: Frame) -> Direction:
        """Find a step."""
        ...

    def opened(self, model: Model, frame: Frame, step: Array) -> Array:
        """Part of a step that leads where there is hardly any curvature; zero where that cannot be told."""
        ...

    def lowest(self, model: Model, frame: Frame) -> tuple[float, Array]:
        """Smallest curvature on the tangent space relative to the intercept-only model, and its direction."""
        ...


def solve_newton(objective: Objective, algebra: Algebra, theta: Array | None, settings: Settings) -> Iterate:
    """Run the method from ``theta``, by default from the model with nothing but an intercept."""
    lam = np.zeros(objective.n_constraints)
    model = objective.start_model() if theta is None else objective.model(theta, lam)
    theta = objective.start.theta if theta is None else theta
    trace: list[Step] = []
    nu, length, corrected, confident, before = 0.0, 0.0, False, True, (np.inf, np.inf)
    status = Status.MAX_ITER
    for iteration in range(settings.max_iter + 1):
        frame = algebra.frame(model)
        kkt = algebra.residual(model, frame)
        gap = float(np.abs(model.c).max(initial=0.0))
        trace.append(Step(iteration, model.loss, gap, kkt, length, corrected))
        # What is left of the constraint by then is settled afterwards, and changes the gradient by no more than itself.
        feasible = gap <= max(settings.kkt, settings.correlation) * max(model.spread, _constant(objective, model))
        if feasible and kkt <= settings.kkt:
            model = _with_multipliers(objective, theta, lam, model, frame)
            escape = _escape(objective, algebra, theta, model, frame)
            if escape is None:
                status = Status.CONVERGED
                break
            theta, model = escape, objective.model(escape, lam)
            continue
        direction = algebra.direction(model, frame)
        still = direction.reduction <= settings.loss * abs(model.loss) and kkt <= 100.0 * settings.kkt
        if still and direction.curvature <= OPEN * objective.start.curvature:
            status = Status.FLAT
            break
        if direction.reduction <= ROUNDING * abs(model.loss) and gap >= 0.5 * before[0] and kkt >= 0.5 * before[1]:
            status = Status.STALLED  # the numbers have no more digits
            break
        before = gap, kkt
        if iteration == settings.max_iter:
            break
        nu = _penalty(nu, model, direction)
        flat = direction.curvature <= 50.0 * OPEN * objective.start.curvature
        near = flat and direction.reduction <= CLOSE * abs(model.loss)
        leaps = settings.leaps if near else ()
        taken = _leap(objective, algebra, theta, model, frame, direction, nu, leaps)
        taken = taken or _line_search(objective, theta, lam, model, frame, direction, nu, confident)
        if taken is None:
            status = Status.STALLED
            break
        length, corrected, confident = taken.length, direction.corrected, taken.length >= 0.5
        theta, lam, model = taken.theta, taken.lam, taken.model
    theta, model = _restore(objective, algebra, theta, lam, model, settings)
    if not _is_feasible(model, settings, slack=100.0):
        theta, model = _retreat(objective, algebra, theta, lam, model, settings)
    return Iterate(theta, -algebra.frame(model).pinv.T @ model.g, model, status, tuple(trace))


def kkt_residual(objective: Objective, model: Model, lam: Array) -> float:
    """Gradient of the Lagrangian relative to the slopes of the intercept-only model."""
    return float(np.abs(model.g + model.J.T @ lam).max()) / objective.start.slope


def _penalty(nu: float, model: Model, direction: Direction) -> float:
    """Raise the penalty until the step is a direction of descent of ``loss + nu |c|``."""
    violation = _norm(model.c)
    nu = max(nu, 1.5 * float(np.linalg.norm(direction.lam)))
    if violation > 0.0:
        needed = (float(model.g @ direction.step) + 0.5 * max(direction.bend, 0.0)) / (0.5 * violation)
        nu = max(nu, needed)
    return nu


class _Taken(NamedTuple):
    theta: Array
    lam: Array
    model: Model
    length: float


def _line_search(
    objective: Objective,
    theta: Array,
    lam: Array,
    model: Model,
    frame: Frame,
    direction: Direction,
    nu: float,
    confident: bool,
) -> _Taken | None:
    """Halve the step until ``loss + nu |c|`` falls enough, each time straight on and then bent back to the constraint.

    A constraint that curves strongly spoils a good step (Maratos); the bend is its second-order correction.
    A full step is nearly always taken, unless the last one was cut short, so it gets its derivatives at once
    (``confident``).
    """
    violation = _norm(model.c)
    slope = float(model.g @ direction.step) - nu * violation
    merit = model.loss + nu * violation + 1e-14 * abs(model.loss)
    near = len(model.c) > 0 and violation <= NEAR * model.spread  # far from the constraint there is nothing to bend to

    def accepts(point: Values | Model, length: float) -> bool:
        return bool(point.loss + nu * _norm(point.c) <= merit + 1e-4 * length * slope)

    for halvings in range(40):
        length = 0.5**halvings
        new_lam = lam + length * (direction.lam - lam)
        trial = theta + length * direction.step
        point: Values | Model
        if not (confident and length == 1.0):
            point = objective.values(trial)
        elif not _keeps_hessian(objective, direction.step):
            point = objective.model(trial, new_lam)
        else:
            point = objective.model(trial, None)._replace(H=model.H)
        if not accepts(point, length):
            if not (near and np.isfinite(point.loss)):
                continue
            bend = frame.pinv @ (point.c - (1.0 - length) * model.c)
            if _norm(bend) > length * _norm(direction.step):  # no correction but another step, into the unknown
                continue
            trial = trial - bend
            point = objective.values(trial)
            if not accepts(point, length):
                continue
        found = point if isinstance(point, Model) else objective.model(trial, new_lam)
        return _Taken(trial, new_lam, found, length)
    return None


def _leap(
    objective: Objective,
    algebra: Algebra,
    theta: Array,
    model: Model,
    frame: Frame,
    direction: Direction,
    nu: float,
    leaps: tuple[float, ...],
) -> _Taken | None:
    """A step that is several times as long along open directions, if it lowers ``loss + nu |c|`` as it should.

    There the loss falls like ``exp(-t)`` and each Newton step adds 1 to ``t``; all of them together gain twice what the
    quadratic model foresees of the first.
    """
    opened = algebra.opened(model, frame, direction.step) if leaps else np.zeros(0)
    if _norm(opened) < 0.5 * _norm(direction.step):
        return None
    merit = model.loss + nu * _norm(model.c) - 1.5 * direction.reduction
    for length in leaps:
        trial = theta + direction.step + (length - 1.0) * opened
        for _ in range(2):  # straight on, and then bent back to the constraint
            point = objective.values(trial)
            if point.loss + nu * _norm(point.c) <= merit:
                return _Taken(trial, direction.lam, objective.model(trial, direction.lam), length)
            trial = trial - frame.pinv @ point.c
    return None


def _keeps_hessian(objective: Objective, step: Array) -> bool:
    """Whether a step is so short that the Hessian is as good as before; near the edge of a domain none is."""
    return _norm(step) <= SAME and not np.isfinite(objective.edge)


def _norm(c: Array) -> float:
    """Euclidean length, infinite instead of a warning where the squares overflow."""
    largest = float(np.abs(c).max(initial=0.0))
    return largest * float(np.linalg.norm(c / largest)) if 0.0 < largest < np.inf else largest


def _with_multipliers(objective: Objective, theta: Array, lam: Array, model: Model, frame: Frame) -> Model:
    """The model with the Hessian of the multipliers that belong to it, if its own are not close to them."""
    right = -frame.pinv.T @ model.g
    if _norm(right - lam) <= 1e-4 * (1.0 + _norm(right)):
        return model
    return objective.model(theta, right)


def _escape(objective: Objective, algebra: Algebra, theta: Array, model: Model, frame: Frame) -> Array | None:
    """From a stationary point that is no minimum, a point with a lower loss along its most negative curvature."""
    value, direction = algebra.lowest(model, frame)
    if value >= MIN_CURVATURE:
        return None
    for halvings in range(30):
        for sign in (1.0, -1.0):
            trial: Array = theta + sign * 0.5**halvings * direction
            trial = trial - frame.pinv @ objective.values(trial).c
            point = objective.values(trial)
            violation = _norm(point.c) * (1.0 + float(np.linalg.norm(frame.pinv.T @ model.g)))
            if point.loss + violation < model.loss:
                return trial
    return None


def _constant(objective: Objective, model: Model) -> float:
    """Spread under which predictions are constant, unless an offset drove all of them to the edge of their range."""
    start = objective.start
    return 1e-6 * start.slope * min(1.0, model.steepness / start.steepness)


def _is_feasible(model: Model, settings: Settings, slack: float = 1.0) -> bool:
    return float(np.abs(model.c).max(initial=0.0)) <= slack * settings.correlation * model.spread


def _retreat(
    objective: Objective, algebra: Algebra, theta: Array, lam: Array, model: Model, settings: Settings
) -> tuple[Array, Model]:
    """Go back towards the start, which is feasible, until the constraint can be met: a solver got stuck at an edge."""
    start = objective.start.theta
    for share in (0.9, 0.7, 0.5, 0.3, 0.1, 0.03):
        back = start + share * (theta - start)
        found = _restore(objective, algebra, back, lam, objective.model(back, lam), settings)
        if np.isfinite(found[1].loss) and _is_feasible(found[1], settings):
            return found
    return theta, model


def _restore(
    objective: Objective, algebra: Algebra, theta: Array, lam: Array, model: Model, settings: Settings
) -> tuple[Array, Model]:
    """Newton steps onto the constraint alone: open directions make the last digits of ``c`` come slowly otherwise."""
    begin = theta
    for _ in range(50):
        if _is_feasible(model, settings) or not np.isfinite(model.loss):
            break
        gap = float(np.abs(model.c).max())
        step = -algebra.frame(model).pinv @ model.c
        for halvings in range(20):  # a shorter one where the edge of a link's domain is near
            trial = theta + 0.5**halvings * step
            point = objective.model(trial, None)._replace(H=model.H)
            if np.isfinite(point.loss) and float(np.abs(point.c).max()) < gap:
                break
        else:
            break
        theta, model = trial, point
    return theta, model if _keeps_hessian(objective, theta - begin) else objective.model(theta, lam)
