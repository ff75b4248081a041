"""Orthogonality on new rows: targets of the constraint for which the leave-one-out covariance is zero.

A constraint that is exact on the training rows is fitted to the same noise as the model, so part of the correlation
comes back on new rows, of the order of features / rows. Leave-one-out predictions show how much. The solver therefore
aims at ``c = kappa`` on the training rows, and ``kappa`` is moved until ``c_loo``, the covariance of leave-one-out
predictions with the protected columns, is zero. Its derivative by ``kappa`` comes from the same small systems. Where
the features predict the protected columns only in the training rows, ``c_loo`` does not follow ``kappa``; such
directions keep the target zero, and ``c_loo`` there must be within sampling error.

With a log link and a loss that hardly weighs large predictions (gamma), there may be no such ``kappa``: beyond some
target, one extreme prediction is the cheapest way to it. A ridge prevents this; without one the fit is refused.

Each new target starts at the linear prediction of the old KKT matrix, followed by one to three Newton steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, NoReturn

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families.activations import IDENTITY
from setsquare.glm.certificate import MAX_KKT, NEW_ROWS, TRAINING_ROWS
from setsquare.glm.domain_edge import Run
from setsquare.glm.held_rows import are_same, is_held
from setsquare.glm.kkt_inverse import Inverse, invert, invert_at, model_at, pseudo_inverse
from setsquare.glm.leave_one_out import RowsLeftOut, Tallied, tally, tally_rows, tally_shared
from setsquare.glm.left_out_shared import FEW_UNITS, share
from setsquare.glm.mdmm import MULTIPLIER_METHODS
from setsquare.glm.new_rows_bound import CLOSE, Losses, NewRows, bound_new_rows, new_rows_limit, sampling_error
from setsquare.glm.newton import Iterate, Settings, kkt_residual, model_beside
from setsquare.glm.objective import Objective
from setsquare.glm.preparation import Prepared
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Status
from setsquare.notes import Note, Option

#: Maximum number of targets, of which 2 or 3 are typical, and the smallest share of a step.
MOST_TARGETS, SHORTEST = 10, 0.2
#: Share of the usual limit at which the search ends for few units, whose limit is wide and whose fits are cheap: what
#: the first step leaves has mostly one sign. With 50 clusters it was half of a mean correlation of -0.028 on new rows.
NEARER = 0.03
#: Derivatives of the leave-one-out covariance by the target, below which a direction is not steered: the features
#: predict that part of the protected columns mainly in the training rows. Steering it anyway costs much loss for a
#: correlation within sampling error: on samples of 2000 rows of Adult, with 0.25 the median area under the curve was
#: 0.811, with 0.7 it was 0.822, at a correlation of 0.044 and 0.045 on new rows. Where the target is not reached, fewer
#: directions are tried and then more; where those that were not steered exceed their sampling error, more.
USUAL, FEWER, MORE = 0.7, 0.9, 0.25
#: Chance that a correlation of zero passes as sampling error in a direction that the features do not predict (less than
#: ``MORE``), and in one that they predict somewhat and that was not steered. The latter may have a bias: gamma
#: fits with 500 rows, 40 features and one such direction had 0.07 on new rows where 0.95 was allowed.
UNPREDICTED, PREDICTED = 0.95, 0.75
#: Maximum number of Newton steps to a new target, and the factor by which each must reduce the residual; otherwise the
#: solver runs.
MOST_STEPS, STEP_RATE = 6, 0.5
#: Relative gradient of the Lagrangian at which a solution for a target is accepted, half of what a local optimum may
#: have, and the distance to the target, which is itself known only up to sampling error.
SETTLED, AT_TARGET = 0.5 * MAX_KKT, 1e-6
#: Relative gradient and correlation at which the fit to the training rows ends where a target is searched from it.
ROUGH = 1e-5
#: Length of a step, in standard deviations of the linear predictor, up to which the Hessian stands for that of the new
#: point: leave-one-out predictions change by that share of their distance from the fit.
SAME = 5e-4
#: Mean leverage, and share of rows whose prediction rests on themselves alone, above which nothing is learned. One
#: Newton step is exact where the predictor is the mean; for other links its limit is lower: of logistic fits with 200
#: rows and 100 features a third were certified, with a correlation of 0.12 on new rows.
MOST_LEVERAGE, MOST_CURVED, MOST_LOST = 0.8, 0.45, 0.2
#: Mean slope of the activation, relative to that at the mean outcome, below which the outcome is separated: predictions
#: are at the edge of their range, and one Newton step says nothing about a fit to other rows.
SATURATED = 0.05
#: Largest number of parameters for which the matrix-free solver forms a matrix: 200 MB.
MOST_PARAMETERS = 5000


class Aimed(NamedTuple):
    """A solution for a target, and its leave-one-out covariance.

    Attributes
    ----------
    end : Iterate
    objective : Objective
        With the target.
    inverse : Inverse
    tallied : Tallied
    steering : ndarray of shape (k r, k r)
        Derivatives of the leave-one-out covariance by the target.
    steerable : ndarray of shape (k r, s)
        Directions of the constraint in which a target moves the leave-one-out covariance.
    status : Status
        That of the last solve, or why the search was given up.
    """

    end: Iterate
    objective: Objective
    inverse: Inverse
    tallied: Tallied
    steering: Array
    steerable: Array
    status: Status

    @property
    def c(self) -> Array:
        """Leave-one-out covariance in the steerable directions."""
        return self.steerable.T @ self.tallied.c.T.ravel()

    @property
    def correlation(self) -> float:
        """The same, relative to the spread of the predictions."""
        spread = self.tallied.spread
        return float(np.linalg.norm(self.c)) / spread if spread > 0.0 else 0.0

    @property
    def is_finite(self) -> bool:
        """Whether all leave-one-out predictions are finite."""
        return bool(np.isfinite(self.tallied.correlation) and np.isfinite(self.tallied.loss))


def aim(objective: Objective, end: Iterate, run: Run, settings: Settings, n_units: int) -> Aimed:
    """Move the target of the constraint, from the solution ``end``, until the leave-one-out covariance is zero."""
    first = _look(objective, end, invert_at(objective, end), None)
    if not first.is_finite or _is_lost(objective, end, first.tallied, n_units):
        return first._replace(status=Status.NO_INFORMATION)
    found = first
    for least in (USUAL, FEWER, MORE):
        if least == FEWER and found.status is not Status.NOT_REACHED:
            continue  # the usual directions were steered, and the rest is too large: steer more, from there
        begin = first if found.status is Status.NOT_REACHED else found
        begin = begin._replace(steerable=_steerable(first.steering, least))
        found = _descend(begin, run, settings, n_units)
        if found.status is not Status.NOT_REACHED and _rest_is_noise(found, first.steering, least, n_units):
            return found
    return found._replace(status=Status.NOT_REACHED)


def _steerable(steering: Array, least: float, most: float = np.inf) -> Array:
    """Directions in which the leave-one-out covariance follows the target by more than ``least``, up to ``most``."""
    values, vectors = np.linalg.eigh(0.5 * (steering + steering.T))
    return np.asarray(vectors[:, (values > least) & (values <= most)])


def _rest_is_noise(found: Aimed, steering: Array, least: float, n_units: int) -> bool:
    """Whether the covariance in the directions that were not steered is within sampling error."""
    free = found.objective.n_constraints - found.steerable.shape[1]
    left = max(CLOSE * new_rows_limit(n_units), sampling_error(free, n_units, UNPREDICTED))
    predicted = _steerable(steering, MORE, least)
    part = float(np.linalg.norm(predicted.T @ found.tallied.c.T.ravel()))
    some = sampling_error(predicted.shape[1], n_units, PREDICTED) * found.tallied.spread
    return found.tallied.correlation <= left and part <= some


def _descend(best: Aimed, run: Run, settings: Settings, n_units: int) -> Aimed:
    """Newton steps of the target, each shortened until the leave-one-out covariance decreases."""
    limit, near = new_rows_limit(n_units), NEARER if n_units <= FEW_UNITS else 1.0
    share, start = 1.0, np.zeros(best.objective.n_constraints)
    for _ in range(MOST_TARGETS):
        if best.correlation <= near * (1.0 if best.objective.target is None else CLOSE) * limit:
            return best
        step = _step(best, share)
        there = best.objective.aimed((start if best.objective.target is None else best.objective.target) + step)
        found = _look(there, *retarget(there, best.end, best.inverse, step, run, settings), best)
        steering = _secant(best.steering, step, found.tallied.c.T.ravel() - best.tallied.c.T.ravel())
        if found.is_finite and found.correlation < 0.9 * best.correlation:
            best, share = found._replace(steering=steering), min(1.0, 2.0 * share)
            continue
        best, share = best._replace(steering=steering), 0.5 * share
        if share < SHORTEST:
            break
    return best if best.correlation <= CLOSE * limit else best._replace(status=Status.NOT_REACHED)


def _step(best: Aimed, share: float) -> Array:
    """Newton step of the target in the steerable directions, in which its derivative is kept from vanishing."""
    pushed = best.steerable.T @ best.steering @ best.steerable
    U, s, Vt = np.linalg.svd(pushed)
    return np.asarray(-share * best.steerable @ (Vt.T @ ((U.T @ best.c) / np.maximum(s, 0.5 * MORE))))


def _secant(steering: Array, step: Array, change: Array) -> Array:
    """Broyden's update of the derivatives by a step and the change that it caused."""
    if not np.isfinite(change).all():
        return steering
    return np.asarray(steering + np.outer(change - steering @ step, step) / float(step @ step))


def _look(objective: Objective, end: Iterate, inverse: Inverse, before: Aimed | None) -> Aimed:
    """Leave-one-out covariance at a solution; derivatives by the target are those of the first solution."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = tally(objective, end, inverse, steer=before is None)
    if before is not None:
        return Aimed(end, objective, inverse, found, before.steering, before.steerable, end.status)
    B = found.steering if np.isfinite(found.steering).all() else np.zeros_like(found.steering)
    return Aimed(end, objective, inverse, found, B, _steerable(B, USUAL), end.status)


def reach_new_rows(
    prepared: Prepared, end: Iterate, run: Run, settings: Settings, confidence: float
) -> tuple[Objective, Iterate, NewRows]:
    """Objective with its target, solution and leave-one-out correlation of a fit that is orthogonal on new rows."""
    assert prepared.basis is not None
    aimed = aim(prepared.objective, end, run, settings, prepared.problem.n_units)
    if aimed.objective.target is None and not is_settled(aimed.objective, aimed.end, settings):
        still = np.zeros(aimed.objective.n_constraints)
        settled, _ = retarget(aimed.objective, aimed.end, aimed.inverse, still, run, settings)
        aimed = aimed._replace(end=settled)
    tallied = aimed.tallied
    if aimed.objective.target is None:  # the first solution was kept
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            tallied = tally(aimed.objective, aimed.end, aimed.inverse)
    found = _bound(prepared, tallied, confidence)
    failed = aimed.status in (Status.NO_INFORMATION, Status.NOT_REACHED)
    found = replace(found, steered=None if failed else aimed.correlation, n_steered=aimed.steerable.shape[1])
    return aimed.objective, aimed.end._replace(status=aimed.status), found


def measure_new_rows(
    prepared: Prepared, end: Iterate, confidence: float, inverse: Inverse | None = None
) -> NewRows | None:
    """Leave-one-out correlation of a fit; None if the rows do not determine it, or are no longer those of the fit."""
    assert prepared.basis is not None
    changes = is_held(prepared.problem)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if inverse is None:
            model = model_at(prepared.objective, end)
            if changes and not are_same(prepared.objective, end, model.loss):
                return None
            inverse = invert(prepared.objective, model)
        shared = share(prepared.objective, end, inverse)
        if changes and shared.loss is not None and not are_same(prepared.objective, end, shared.loss):
            return None
        found = tally_shared(prepared.objective, shared)
        fitted = float(found.fitted) + prepared.objective.ridge(end.theta)
        if changes and shared.loss is None and not are_same(prepared.objective, end, fitted):
            return None
    return _bound_known(prepared, end, found, confidence)


def measure_each_row(
    prepared: Prepared, end: Iterate, confidence: float, inverse: Inverse
) -> tuple[NewRows | None, RowsLeftOut]:
    """As :func:`measure_new_rows` for rows in memory, with the leave-one-out results of each."""
    assert prepared.basis is not None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found, rows = tally_rows(prepared.objective, end, inverse)
    return _bound_known(prepared, end, found, confidence), rows


def _bound_known(prepared: Prepared, end: Iterate, found: Tallied, confidence: float) -> NewRows | None:
    """Bound of a fit whose rows determine leave-one-out predictions."""
    known = np.isfinite(found.correlation) and np.isfinite(found.loss)
    lost = not known or _is_lost(prepared.objective, end, found, prepared.problem.n_units)
    return None if lost else _bound(prepared, found, confidence)


def _bound(prepared: Prepared, found: Tallied, confidence: float) -> NewRows:
    problem = prepared.problem
    assert prepared.basis is not None
    null, loss = prepared.objective.start.loss, float(found.loss)
    slopes, curvature = found.constant
    left_out = null + float(np.vdot(pseudo_inverse(curvature), slopes))  # one Newton step, as for a fit
    spread = float(found.excess) - (loss - null) ** 2 / problem.n_units
    return bound_new_rows(
        found,
        prepared.loadings,
        prepared.basis.names,
        confidence,
        problem.n_units,
        Losses(loss, left_out, max(0.0, spread) ** 0.5),
        _parameters_in_use(prepared.objective, found),
        problem.cluster is not None,
    )


def can_leave_out(problem: Problem, solver: str) -> bool:
    """Whether leave-one-out quantities are known: given controls, for one predictor per row and without clusters."""
    controlled = problem.given is not None or len(problem.given_names) > 0
    return not controlled or (problem.n_predictors == 1 and problem.cluster is None and solver != "large")


def refuse_leaving_out(name: str, value: str) -> NoReturn:
    """Raise the error for leave-one-out quantities that are not known; the argument that needs them has a value."""
    text = (
        "{what} with {given} needs leave-one-out fits, which are available given controls for two classes or a numeric "
        'outcome, without {cluster}, with solver="sqp".'
    )
    what = Option(name, value, words=f'{name}="{value}"')
    raise InputError(Note("not-left-out", text, what=what, given=Option("given"), cluster=Option("cluster")))


def check_new_rows(problem: Problem, solver: str, orthogonal_on: str, confidence: float) -> None:
    """Raise if orthogonality on new rows is asked for and cannot be had."""
    if orthogonal_on not in (NEW_ROWS, TRAINING_ROWS):
        raise InputError(f"orthogonal_on must be {NEW_ROWS!r} or {TRAINING_ROWS!r}, got {orthogonal_on!r}.")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence must be between 0 and 1, got {confidence!r}.")
    if problem.cluster is not None and solver == "large":
        raise InputError('Clusters cannot be left out with solver="large": use solver="sqp".')
    if orthogonal_on == TRAINING_ROWS or not len(problem.protected_names):
        return
    if not can_leave_out(problem, solver):
        refuse_leaving_out("orthogonal_on", NEW_ROWS)
    if solver in MULTIPLIER_METHODS:
        raise InputError(
            f'solver="{solver}" is the method of the paper, which knows training rows only: pass '
            'orthogonal_on="training rows", or use solver="sqp".'
        )
    size = (1 + len(problem.feature_names)) * problem.n_predictors
    if solver == "large" and size > MOST_PARAMETERS:
        raise InputError(
            f"Orthogonality on new rows needs a matrix of {size} x {size} for these features, which is too large: "
            'reduce the features (PrincipalComponents), or pass orthogonal_on="training rows".'
        )


def _parameters_in_use(objective: Objective, found: Tallied) -> float:
    """Sum of the leverages: with a ridge, fewer than there are free parameters.

    Where a level is separated, the Hessian has curvature zero up to rounding error, and the sum can be anything.
    """
    free = objective.n_parameters - objective.n_constraints
    ridge = getattr(objective, "l2", 0.0) or objective.penalty.any()
    used = float(found.leverage)
    return used if ridge and 0.0 <= used <= free else float(free)


def _is_lost(objective: Objective, end: Iterate, found: Tallied, n_units: int) -> bool:
    """Whether most rows determine their own predictions, or the outcome is separated."""
    used = _parameters_in_use(objective, found)
    most = MOST_LEVERAGE if objective.family.activation is IDENTITY else MOST_CURVED
    saturated = end.model.steepness < SATURATED * objective.start.steepness
    return bool(not used <= most * n_units or found.lost > MOST_LOST * n_units or saturated)


def rough(settings: Settings) -> Settings:
    """Settings of a fit that is only the start of a search for a target."""
    return replace(settings, kkt=max(settings.kkt, ROUGH), correlation=max(settings.correlation, ROUGH))


def is_settled(objective: Objective, end: Iterate, settings: Settings) -> bool:
    """Whether a fit is more than a start."""
    gap = float(np.abs(end.model.c).max(initial=0.0))
    near = gap <= settings.correlation * end.model.spread
    return near and kkt_residual(objective, end.model, end.lam) <= max(settings.kkt, SETTLED)


def retarget(
    objective: Objective, end: Iterate, inverse: Inverse, change: Array, run: Run, settings: Settings
) -> tuple[Iterate, Inverse]:
    """Solve again for a target that moved by ``change``: Newton steps from the prediction of the old KKT matrix."""
    m = objective.n_parameters
    residual = np.zeros_like(end.theta)  # where the loss is flat it says nothing
    if end.status is Status.CONVERGED:
        residual = end.model.g + end.model.J.T @ end.lam
    theta, lam = _newton(inverse, end.theta, end.lam, residual, end.model.c - change)
    safe, model, before = end.theta, end.model, np.inf
    for _ in range(MOST_STEPS):
        is_near = bool(np.linalg.norm(theta - safe) <= SAME) and not np.isfinite(objective.edge)
        model = model_beside(objective, theta, theta - safe, model) if is_near else objective.model(theta, lam)
        if not np.isfinite(model.loss):
            break
        kkt, gap = kkt_residual(objective, model, lam), float(np.abs(model.c).max(initial=0.0))
        size = max(kkt, gap / max(model.spread, np.finfo(float).tiny))
        if not size <= STEP_RATE * before:
            break
        safe = theta
        inverse = inverse if is_near else invert(objective, model)
        residual = model.g + model.J.T @ lam
        tangent = inverse.root.reshape(m, -1).T @ residual
        still = 0.5 * float(tangent @ tangent) <= settings.loss * abs(model.loss)
        near = settings.kkt * (100.0 if end.status is Status.FLAT and still else 1.0)
        if kkt <= max(near, SETTLED) and gap <= AT_TARGET * model.spread:
            return Iterate(theta, lam, model, end.status, end.trace), inverse
        before = size
        theta, lam = _newton(inverse, theta, lam, residual, model.c)
    again = run(objective, safe, settings)
    return again, invert(objective, again.model)


def _newton(inverse: Inverse, theta: Array, lam: Array, residual: Array, c: Array) -> tuple[Array, Array]:
    """Point and multipliers after a Newton step for a gradient of the Lagrangian and a constraint."""
    m, r = len(theta), len(lam)
    L, F, E = inverse.root.reshape(m, -1), inverse.cross.reshape(m, r), inverse.corner.reshape(r, r)
    return theta - L @ (L.T @ residual) - F @ c, lam - F.T @ residual - E @ c
