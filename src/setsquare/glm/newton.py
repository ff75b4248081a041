"""Main loop of sequential quadratic programming, independent of the linear algebra of a step.

At each point the step is ``d = normal + tangent``: the normal part solves ``J d = -c``, the tangent part minimises the
quadratic model on the null space of ``J``. A line search on ``loss + nu |c|`` with a second-order correction makes the
method converge from any start; final Newton steps on the constraint alone reduce it to rounding error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.glm.certificate import MIN_CURVATURE
from setsquare.glm.first_step import first_step
from setsquare.glm.objective import Model, Objective, Values
from setsquare.glm.solution import Status, Step
from setsquare.glm.step_algebra import Algebra, Direction, Frame
from setsquare.glm.uncorrelated import ignore_uncorrelated

#: Curvature, relative to the intercept-only model, below which the data hardly determine a direction ("open").
OPEN = 1e-3
#: Predicted relative reductions of the loss: below rounding error, and where mostly open directions remain.
ROUNDING, CLOSE = 1e-15, 1e-4
#: Share of its gradient that an iteration leaves from which on it is slow: along an open direction it leaves 1/e.
SLOW = 0.33
#: Length of a step, in standard deviations of the linear predictor, up to which the Hessian is reused: the next step
#: then leaves about that share of its error. A slow iteration computes it again: a rare level can move much further.
SAME = 1e-3
#: The same, up to which the gradient changes linearly: the error, of the order of its square, is rounding error.
LINEAR = 1e-8
#: Length of a step, in standard deviations of the linear predictor and relative to its natural scale (slope over
#: curvature of the intercept-only model: the outcome's deviation for gaussian, about 2 for binomial), beyond which it
#: is shortened without a trial.
LONGEST = 30.0
#: Curvature along a step, relative to the intercept-only model, below which its length means nothing.
SINGULAR = 1e-4
#: Change of a row's linear predictor, on its natural scale, beyond which its curvature is raised.
FAR = 5.0
#: Factor of the tolerance of the constraint with several classes: the predictions of one may vary far less than all.
RARE_CLASS = 1e-3
#: Correlation with the basis up to which a point counts as near the constraint.
NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    """Stopping rules.

    Attributes
    ----------
    max_iter : int
    kkt : float
        Relative gradient of the Lagrangian.
    correlation : float
        Largest correlation left between basis and predictions.
    loss : float
        Predicted relative reduction of the loss below which an open direction is no longer followed.
    leaps : tuple of float
        Step multiples tried along open directions.
    """

    max_iter: int = 100
    kkt: float = 1e-8
    correlation: float = 1e-10
    loss: float = 1e-8
    leaps: tuple[float, ...] = (8.0, 4.0)


class Iterate(NamedTuple):
    """Final state of a solver."""

    theta: Array
    lam: Array
    model: Model
    status: Status
    trace: tuple[Step, ...]


def solve_newton(objective: Objective, algebra: Algebra, theta: Array | None, settings: Settings) -> Iterate:
    """Run the method from ``theta``, by default from the intercept-only model."""
    lam = np.zeros(objective.n_constraints)
    model = ignore_uncorrelated(objective.start_model()) if theta is None else objective.model(theta, lam)
    theta = objective.start.theta if theta is None else theta
    trace: list[Step] = []
    nu, length, corrected, confident, before, last = 0.0, 0.0, False, True, (np.inf, np.inf), theta
    status = Status.MAX_ITER
    for iteration in range(settings.max_iter + 1):
        frame = algebra.frame(model)
        kkt = algebra.residual(model, frame)
        gap = float(np.abs(model.c).max(initial=0.0))
        trace.append(Step(iteration, model.loss, gap, kkt, length, corrected))
        # The remaining violation is removed afterwards, and changes the gradient by no more than its own size.
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
        if not iteration and theta is objective.start.theta:
            direction = direction._replace(step=first_step(objective, model.g, direction.step))
        direction = _shorten(objective, algebra, theta, theta - last, lam, model, frame, direction)
        still = direction.reduction <= settings.loss * abs(model.loss) and kkt <= 50.0 * settings.kkt  # see _restore
        if still and direction.curvature <= OPEN * objective.start.curvature:
            status = Status.FLAT
            break
        lost = max(ROUNDING * abs(model.loss), objective.start.noise)
        if direction.reduction <= lost and gap >= 0.5 * before[0] and kkt >= 0.5 * before[1]:
            status = Status.STALLED  # at the limit of float64
            break
        slow, before = kkt >= SLOW * before[1], (gap, kkt)
        if iteration == settings.max_iter:
            break
        nu = _penalty(nu, model, direction)
        flat = direction.curvature <= 50.0 * OPEN * objective.start.curvature
        is_open = flat and slow and confident  # a leap has left little to gain along the same directions
        leaps = settings.leaps if is_open and direction.reduction <= CLOSE * abs(model.loss) else ()
        taken = _leap(objective, algebra, theta, model, frame, direction, nu, leaps) if leaps else None
        taken = taken or _line_search(objective, theta, lam, model, frame, direction, nu, confident, slow)
        if taken is None:
            status = Status.STALLED
            break
        length, corrected, confident = taken.length, direction.corrected, 0.5 <= taken.length <= 1.0
        last, theta, lam, model = theta, taken.theta, taken.lam, taken.model
    known = frame if status is Status.CONVERGED else None
    looped = model.J
    theta, model = _restore(objective, algebra, theta, lam, model, settings, known)
    if not _is_feasible(model, settings, slack=100.0):
        theta, model = _retreat(objective, algebra, theta, lam, model, settings)
    frame = known if known is not None and model.J is looped else algebra.frame(model)
    return Iterate(theta, -frame.pinv.T @ model.g, model, status, tuple(trace))


def kkt_residual(objective: Objective, model: Model, lam: Array) -> float:
    """Gradient of the Lagrangian relative to the slopes of the intercept-only model."""
    return float(np.abs(model.g + model.J.T @ lam).max()) / objective.start.slope


def _penalty(nu: float, model: Model, direction: Direction) -> float:
    """Raise the penalty until the step is a descent direction of ``loss + nu |c|``."""
    violation = _norm(model.c)
    nu = max(nu, 1.5 * _norm(direction.lam))
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
    slow: bool,
) -> _Taken | None:
    """Halve the step until ``loss + nu |c|`` decreases enough, each time without and with a second-order correction.

    A strongly curved constraint can make the search reject good steps (Maratos effect); the correction (``bend``)
    prevents this. A full step is nearly always accepted unless the last one was shortened or extended, so its
    derivatives are computed at once (``confident``). After a ``slow`` iteration the Hessian is not reused.
    """
    violation = _norm(model.c)
    slope = float(model.g @ direction.step) - nu * violation
    merit = model.loss + nu * violation + max(1e-14 * abs(model.loss), objective.start.noise)
    near = len(model.c) > 0 and violation <= NEAR * model.spread  # no correction far from the constraint

    def accepts(point: Values | Model, length: float) -> bool:
        return bool(point.loss + nu * _norm(point.c) <= merit + 1e-4 * length * slope)

    first = _first_halving(objective, direction)
    for halvings in range(first, 40):
        length = 0.5**halvings
        new_lam = lam + length * (direction.lam - lam)
        trial = theta + length * direction.step
        if not (confident and length == 1.0):
            point: Values | Model = objective.values(trial)
        elif slow or not _keeps_hessian(objective, direction.step):
            point = objective.model(trial, new_lam)
        else:
            point = model_beside(objective, trial, trial - theta, model)
        if not accepts(point, length):
            if not (near and np.isfinite(point.loss)):
                continue
            bend = frame.pinv @ (point.c - (1.0 - length) * model.c)
            if _norm(bend) > length * _norm(direction.step):  # too long for a correction
                continue
            trial = trial - bend
            point = objective.values(trial)
            if not accepts(point, length):
                continue
        found = point if isinstance(point, Model) else objective.model(trial, new_lam)
        return _Taken(trial, new_lam, found, length)
    return None


def _shorten(
    objective: Objective,
    algebra: Algebra,
    theta: Array,
    before: Array,
    lam: Array,
    model: Model,
    frame: Frame,
    direction: Direction,
) -> Direction:
    """Find another step, with the curvature of some rows raised, if this one throws them back from the step before."""
    longest = FAR * objective.start.slope / objective.start.curvature
    shortest = longest / math.sqrt(objective.rows.n_rows)  # shorter steps change no row of weight 1/n that much
    whole = objective.whitening is not None and objective.n_predictors == 1
    if not whole or _norm(direction.step) <= shortest or not before.any():
        return direction
    damped = objective.damped(theta, lam, model, np.column_stack([before, direction.step]), longest)
    if damped is None:
        return direction
    return algebra.direction(damped, frame)._replace(curvature=direction.curvature)


def _first_halving(objective: Objective, direction: Direction) -> int:
    """Number of halvings that make a step no longer than ``LONGEST``, if an almost singular Hessian made it longer."""
    start, length = objective.start, _norm(direction.step)
    size = length * start.curvature / (LONGEST * start.slope)
    singular = direction.curvature <= SINGULAR * start.curvature
    return int(np.ceil(np.log2(size))) if singular and 1.0 < size < np.inf else 0


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
    """Extend a step several times along open directions, if ``loss + nu |c|`` decreases enough.

    There the loss decreases like ``exp(-t)`` and each Newton step adds 1 to ``t``; all of them together gain twice what
    the quadratic model predicts for the first.
    """
    opened = algebra.opened(model, frame, direction.step)
    if _norm(opened) < 0.5 * _norm(direction.step):
        return None
    merit = model.loss + nu * _norm(model.c) - 1.5 * direction.reduction
    for length in leaps:
        trial = theta + direction.step + (length - 1.0) * opened
        for _ in range(2):  # without and with a step back to the constraint
            point = objective.values(trial)
            if point.loss + nu * _norm(point.c) <= merit:
                return _Taken(trial, direction.lam, objective.model(trial, direction.lam), length)
            trial = trial - frame.pinv @ point.c
    return None


def _model_near(objective: Objective, theta: Array, step: Array, model: Model) -> Model:
    """Model at ``theta``, a step away from a model whose Hessian it keeps."""
    if not _keeps_hessian(objective, step) or _norm(step) > LINEAR:
        return model_beside(objective, theta, step, model)
    point = objective.values(theta)  # a certificate has what was measured
    return model._replace(loss=point.loss, c=point.c, spread=point.spread, g=model.g + model.H @ step)


def model_beside(objective: Objective, theta: Array, step: Array, model: Model) -> Model:
    """Model at ``theta`` with the Hessian of another, a step away."""
    return objective.model(theta, None)._replace(H=model.H, apart=model.apart + _norm(step))


def _keeps_hessian(objective: Objective, step: Array) -> bool:
    """Whether a step is short enough to reuse the Hessian; never for links with a bounded domain."""
    return _norm(step) <= SAME and not np.isfinite(objective.edge)


def _norm(c: Array) -> float:
    """Euclidean norm without overflow of the squares; infinite for infinite entries."""
    square = float(c @ c)
    if 1e-290 < square < 1e290:
        return math.sqrt(square)
    largest = float(np.abs(c).max(initial=0.0))
    return largest * float(np.linalg.norm(c / largest)) if 0.0 < largest < np.inf else largest


def _with_multipliers(objective: Objective, theta: Array, lam: Array, model: Model, frame: Frame) -> Model:
    """Recompute the Hessian with the multipliers of this point, unless those in use are close to them."""
    right = -frame.pinv.T @ model.g
    if _norm(right - lam) <= 1e-4 * (1.0 + _norm(right)):
        return model
    return objective.model(theta, right)


def _escape(objective: Objective, algebra: Algebra, theta: Array, model: Model, frame: Frame) -> Array | None:
    """Leave a stationary point that is not a minimum along its most negative curvature; None if it is one."""
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
    """Spread below which predictions count as constant; smaller if an offset drove them to the edge of their range."""
    start = objective.start
    return 1e-6 * start.slope * min(1.0, model.steepness / start.steepness)


def _is_feasible(model: Model, settings: Settings, slack: float = 1.0) -> bool:
    return float(np.abs(model.c).max(initial=0.0)) <= slack * settings.correlation * model.spread


def _retreat(
    objective: Objective, algebra: Algebra, theta: Array, lam: Array, model: Model, settings: Settings
) -> tuple[Array, Model]:
    """Move back towards the feasible start until the constraint can be met, after getting stuck at an edge."""
    start = objective.start.theta
    for share in (0.9, 0.7, 0.5, 0.3, 0.1, 0.03):
        back = start + share * (theta - start)
        found = _restore(objective, algebra, back, lam, objective.model(back, lam), settings)
        if np.isfinite(found[1].loss) and _is_feasible(found[1], settings):
            return found
    return theta, model


def _restore(
    objective: Objective,
    algebra: Algebra,
    theta: Array,
    lam: Array,
    model: Model,
    settings: Settings,
    frame: Frame | None = None,
) -> tuple[Array, Model]:
    """Newton steps on the constraint alone, because open directions slow the convergence of ``c`` to zero.

    ``frame`` is that of the model, if it is known.
    """
    begin = theta
    slack = 1.0 if objective.n_predictors == 1 else RARE_CLASS
    for _ in range(50):
        if _is_feasible(model, settings, slack) or not np.isfinite(model.loss):
            break
        gap = float(np.abs(model.c).max())
        step = -(frame or algebra.frame(model)).pinv @ model.c
        for halvings in range(20):  # shorter near the edge of the link's domain
            trial = theta + 0.5**halvings * step
            point = _model_near(objective, trial, trial - theta, model)
            if np.isfinite(point.loss) and float(np.abs(point.c).max()) < gap:
                break
        else:
            break
        theta, model, frame = trial, point, None
    return theta, model if _keeps_hessian(objective, theta - begin) else objective.model(theta, lam)
