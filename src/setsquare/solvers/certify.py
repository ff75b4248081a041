"""From where a solver ended to a solution with a certificate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from setsquare.errors import InputError
from setsquare.families import contrasts
from setsquare.objective import linear_predictor
from setsquare.preparation import Prepared
from setsquare.problem import Problem
from setsquare.projection.basis import CONSTANT
from setsquare.rows import Block, Sums
from setsquare.solvers.edge import follow
from setsquare.solvers.newton import OPEN, Iterate, Settings, kkt_residual
from setsquare.solvers.solution import MAX_KKT, MIN_CURVATURE, Certificate, Solution, Status
from setsquare.solvers.sqp import reduced_hessian, solve_reduced, solve_sqp
from setsquare.streamed_problem import StreamedProblem
from setsquare.typing import Array

#: Curvature, relative to that of the intercept-only model, at which the data do not determine a direction at all.
FLAT = 1e-5


class Measured(NamedTuple):
    """What costs more than a reading of the rows, and how it is found depends on the solver.

    Attributes
    ----------
    curvature : float
        Smallest curvature on the tangent space, relative to that of the intercept-only model.
    flat_directions : ndarray of shape (m, c)
        Directions along which there is none.
    loss_unconstrained : float
    """

    curvature: float
    flat_directions: Array
    loss_unconstrained: float


def certify(prepared: Prepared, end: Iterate, solver: str, measured: Measured | None = None) -> Solution:
    """Write down what a solver found."""
    measured = measured or measure(prepared, end)
    problem, objective, basis = prepared.problem, prepared.objective, prepared.basis
    intercept, coef = prepared.coefficients(end.theta)
    if problem.family.is_vector:
        C = contrasts(problem.n_predictors + 1)
        intercept, coef = C @ intercept, C @ coef
    curvature, flat = measured.curvature, _moved_features(prepared, measured.flat_directions)
    kkt = kkt_residual(objective, end.model, end.lam)
    status = Status.FLAT if flat and end.status is Status.CONVERGED else end.status
    if status in (Status.CONVERGED, Status.FLAT) and (kkt > MAX_KKT or curvature < MIN_CURVATURE):
        status = Status.STALLED  # the last steps onto the constraint led away from the optimum again
    certificate = Certificate(
        constraint_residual=float(np.abs(end.model.c).max(initial=0.0)),
        max_correlation=_max_correlation(prepared, end),
        kkt_residual=kkt,
        min_curvature=curvature,
        loss=end.model.loss,
        loss_unconstrained=measured.loss_unconstrained,
        loss_null=objective.start.loss,
        rank_protected=0 if basis is None else basis.rank,
        rank_features=prepared.rank_features,
        n_protected=len(problem.protected_names),
        n_features=len(problem.feature_names),
        constant_protected=() if basis is None else basis.constant,
        collinear_protected=() if basis is None else basis.collinear,
        aliased_features=prepared.aliased,
        flat_features=flat,
        label_share=prepared.label_share,
    )
    multipliers = end.lam.reshape(objective.n_predictors, -1).T
    return Solution(intercept, coef, multipliers, status, end.trace[-1].iteration, end.trace, certificate, solver)


def class_coefficients(problem: Problem | StreamedProblem, intercept: Array, coef: Array) -> tuple[Array, Array]:
    """Coefficients as a user has them, in the contrasts that the objective works in."""
    intercept, coef = np.atleast_1d(intercept), np.atleast_2d(coef)
    n_outputs = problem.n_predictors + 1 if problem.family.is_vector else 1
    if intercept.shape != (n_outputs,) or coef.shape != (n_outputs, len(problem.feature_names)):
        raise InputError(
            f"The start must have {n_outputs} intercept(s) and coefficients of the shape "
            f"{(n_outputs, len(problem.feature_names))}, not {intercept.shape} and {coef.shape}."
        )
    if not problem.family.is_vector:
        return intercept, coef
    C = contrasts(problem.n_predictors + 1)
    return C.T @ intercept, C.T @ coef


def measure(prepared: Prepared, end: Iterate) -> Measured:
    """Measure where the whole Hessian is at hand."""
    loss = end.model.loss if prepared.basis is None else _unconstrained_loss(prepared, end)
    reduced, null = reduced_hessian(end.model)
    if not len(reduced):
        return Measured(np.inf, null, loss)
    values, vectors = np.linalg.eigh(reduced)
    values /= prepared.objective.start.curvature
    limit = OPEN if end.status is Status.FLAT else FLAT  # a solver that stopped for want of curvature knows better
    return Measured(float(values[0]), null @ vectors[:, np.abs(values) <= limit], loss)


def _moved_features(prepared: Prepared, directions: Array) -> tuple[str, ...]:
    """Features that move the linear predictor of their own rows along open directions."""
    if not directions.shape[1]:
        return ()
    moved = np.max([np.abs(prepared.objective.raw(d)[1:]).max(axis=1) for d in directions.T], axis=0)
    names = np.asarray(prepared.problem.feature_names, dtype=object)
    return tuple(names[moved > 0.3 * moved.max()])


def _max_correlation(prepared: Prepared, end: Iterate) -> float:
    """Largest |corr| of a protected column with a prediction, from the columns themselves and not from their basis."""
    problem, objective, raw = prepared.problem, prepared.objective, prepared.objective.raw(end.theta)
    if prepared.basis is None:
        return 0.0
    mean_x, start = prepared.basis.mean, objective.start.theta.reshape(objective.n_predictors, -1)[:, :1].T
    reference = _class_means(problem, start)

    def kernel(block: Block) -> Sums:
        gap = _class_means(problem, linear_predictor(block, raw)) - reference
        weighted = block.weight[:, None] * gap
        centred = np.subtract(np.asarray(block.X), mean_x, order="F")
        variance = block.weight @ (centred * centred)
        return centred.T @ weighted, weighted.sum(axis=0), np.einsum("nk,nk->k", weighted, gap), variance

    cov, total, square, variance = objective.rows.reduce(kernel)
    spread, spread_x = np.sqrt(np.maximum(square - total**2, 0.0)), np.sqrt(variance)
    varies = spread_x > CONSTANT * np.abs(mean_x)
    # What varies by less than this, of the outcome or of the other classes, is constant and has no correlation.
    floor = max(1e-8 * problem.outcome_spread(), 1e-6 * float(np.linalg.norm(spread)))
    correlation = np.abs(cov[varies]) / spread_x[varies, None] / np.maximum(spread, floor)
    return float(np.max(correlation, initial=0.0))


def _class_means(problem: Problem | StreamedProblem, eta: Array) -> Array:
    if not problem.family.is_vector:
        return problem.family.activation(eta)
    return problem.family.activation(eta @ contrasts(problem.n_predictors + 1).T)


def _unconstrained_loss(prepared: Prepared, end: Iterate) -> float:
    """Loss of the fit without the constraint, by quasi-Newton steps from the solution.

    They begin with the Hessian at hand, that of the Lagrangian, with open directions closed: a gradient costs an eighth
    of another one.
    """
    free = prepared.objective.unconstrained()
    if free.barrier:
        return min(follow(free, solve_sqp, None, Settings(max_iter=50, kkt=1e-5)).end.model.loss, end.model.loss)
    theta, model, pairs = end.theta, end.model, list[tuple[Array, Array]]()
    H = model.H if end.status is Status.CONVERGED else model.H + OPEN * free.start.curvature * np.eye(len(theta))
    for _ in range(30):
        step = _quasi_newton(H, pairs, -model.g)
        reduction = -0.5 * float(model.g @ step)
        if 0.0 <= reduction <= 5e-7 * abs(model.loss):  # what the model foresees of the rest is that much better
            return min(model.loss - reduction, end.model.loss)
        trial = free.model(theta + step, None)
        if not trial.loss < model.loss:
            break
        pairs.append((step, trial.g - model.g))
        theta, model = theta + step, trial
    return solve_sqp(free, theta, Settings(max_iter=50, kkt=1e-5, loss=5e-7)).model.loss  # a line search is needed


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
