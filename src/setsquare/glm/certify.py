"""Measure the end of a solver's loop: its solution, with a certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import lapack

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families import contrasts
from setsquare.families.activations import SIGMOID
from setsquare.glm.certificate import MAX_CORRELATION, MAX_KKT, MIN_CURVATURE, TRAINING_ROWS, Certificate
from setsquare.glm.deferred import Deferred
from setsquare.glm.influence import Floor, Tally, tally_block
from setsquare.glm.new_rows_bound import NewRows
from setsquare.glm.newton import OPEN, Iterate, kkt_residual
from setsquare.glm.objective import Objective, linear_predictor
from setsquare.glm.preparation import Prepared
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Solution, Status
from setsquare.glm.sqp import lowest_curvature_of, reduced_hessian
from setsquare.glm.unconstrained_loss import defer_loss, unconstrained_loss
from setsquare.rows.blocks import Block
from setsquare.rows.parallel import Sums

if TYPE_CHECKING:  # an audit certifies fits that have no budget
    from setsquare.glm.budget import Spent

#: Curvature, relative to the intercept-only model, below which the data do not determine a direction.
FLAT = 1e-5
#: Mean slope of the activation, relative to that at the mean outcome, below which predictions have saturated at the
#: edge of their range.
AT_THE_EDGE = 1e-3
#: The same, for predictions measured as uncorrelated: below this they are so only because almost no variation is left.
NOTHING_LEFT = 1e-9
#: Coefficients from which the smallest curvature is found by inverse iterations, where it is clearly positive.
MANY = 128
#: Gradient of the constraint violation, relative to the violation, below which it cannot be reduced further.
STUCK = 1e-4


class Measured(NamedTuple):
    """Solver-specific measurements.

    Attributes
    ----------
    curvature : float
        Smallest curvature on the tangent space, relative to the intercept-only model.
    flat_directions : ndarray of shape (m, c)
        Directions of zero curvature.
    unconstrained : Deferred
        Loss without the constraint.
    curvature_low : float or None
        Lower bound on the smallest curvature, where ``curvature`` is an upper bound.
    rank_low : int or None
        Lower bound on the rank of the features, where it is not known.
    """

    curvature: float
    flat_directions: Array
    unconstrained: Deferred[float]
    curvature_low: float | None = None
    rank_low: int | None = None


def certify(
    prepared: Prepared,
    end: Iterate,
    solver: str,
    measured: Measured | None = None,
    left_out: Deferred[NewRows | None] | None = None,
    orthogonal_on: str = TRAINING_ROWS,
    spent: Spent | None = None,
    budget: float = 0.0,
) -> Solution:
    """Build the solution and its certificate from the final iterate."""
    measured = measured or measure(prepared, end)
    problem, objective, basis = prepared.problem, prepared.objective, prepared.basis
    intercept, coef = prepared.coefficients(end.theta)
    if problem.family.is_vector:
        C = contrasts(problem.n_predictors + 1)
        intercept, coef = C @ intercept, C @ coef
    curvature, flat = measured.curvature, _moved_features(prepared, measured.flat_directions)
    kkt = kkt_residual(objective, end.model, end.lam)
    status = _status(end, bool(flat), curvature, kkt)
    association = associate(prepared, end)
    met = orthogonal_on != TRAINING_ROWS or spent is not None or is_met(prepared, end, association)
    if not met and problem.has_offset and _is_stuck(prepared, end):
        status = Status.INFEASIBLE
    certificate = Certificate(
        constraint_residual=float(np.abs(end.model.c).max(initial=0.0)),
        max_correlation=association.max_correlation,
        kkt_residual=kkt,
        min_curvature=curvature,
        loss=end.model.loss,
        unconstrained=measured.unconstrained if spent is None else Deferred(spent.plain_loss),
        loss_null=objective.start.loss,
        rank_protected=0 if basis is None else basis.rank,
        rank_features=prepared.rank_features,
        min_curvature_low=measured.curvature_low,
        rank_features_low=measured.rank_low,
        n_protected=len(problem.protected_names),
        n_features=len(problem.feature_names),
        constant_protected=() if basis is None else basis.constant,
        collinear_protected=() if basis is None else basis.collinear,
        aliased_features=prepared.aliased,
        flat_features=flat,
        label_share=prepared.label_share,
        correlation_without=association.correlation_without if spent is None else None,
        n_left_out=association.n_left_out if spent is None else 0,
        reach=association.reach,
        n_rows=problem.n_rows,
        orthogonal_on=orthogonal_on,
        left_out=left_out or Deferred(None),
        given=tuple(problem.given_names) or (() if problem.given is None else ("the outcome",)),
        determined_protected=problem.determined,
        budget=budget if basis is not None else 0.0,
        correlation=None if spent is None else spent.correlation,
        covariance_share=None if spent is None else spent.share,
    )
    multipliers = end.lam.reshape(objective.n_predictors, -1).T
    return Solution(intercept, coef, multipliers, status, end.trace[-1].iteration, end.trace, certificate, solver)


def settle_status(prepared: Prepared, end: Iterate) -> Status:
    """Status of a fit without constraints, as a certificate has it."""
    curvature, flat = measure_curvature(prepared.objective, end)
    return _status(end, flat.shape[1] > 0, curvature, kkt_residual(prepared.objective, end.model, end.lam))


def _status(end: Iterate, is_flat: bool, curvature: float, kkt: float) -> Status:
    status = Status.FLAT if is_flat and end.status is Status.CONVERGED else end.status
    if status in (Status.CONVERGED, Status.FLAT) and (kkt > MAX_KKT or curvature < MIN_CURVATURE):
        return Status.STALLED  # the final steps onto the constraint moved away from the optimum
    return status


def class_coefficients(problem: Problem, intercept: Array, coef: Array) -> tuple[Array, Array]:
    """Convert user-facing coefficients to the contrasts used by the objective."""
    intercept, coef = np.atleast_1d(intercept), np.atleast_2d(coef)
    n_outputs = problem.n_predictors + 1 if problem.family.is_vector else 1
    if intercept.shape != (n_outputs,) or coef.shape != (n_outputs, len(problem.feature_names)):
        raise InputError(
            f"start must contain {n_outputs} intercept(s) and coefficients of shape "
            f"{(n_outputs, len(problem.feature_names))}, got shapes {intercept.shape} and {coef.shape}."
        )
    if not problem.family.is_vector:
        return intercept, coef
    C = contrasts(problem.n_predictors + 1)
    return C.T @ intercept, C.T @ coef


def measure(prepared: Prepared, end: Iterate) -> Measured:
    """Measure curvature and unconstrained loss from the full Hessian."""
    objective = prepared.objective
    loss = defer_loss(prepared.problem, objective, end, lambda: unconstrained_loss(objective, end))
    return Measured(*measure_curvature(objective, end), loss)


def measure_spent(spent: Spent) -> Measured:
    """The same for a fit with a budget."""
    return Measured(*measure_curvature(spent.objective, spent.within()), Deferred(spent.plain_loss))


def measure_curvature(objective: Objective, end: Iterate) -> tuple[float, Array]:
    """Smallest curvature on the tangent space, relative to the intercept-only model, and the flat directions."""
    lowest = lowest_curvature_of(end.model) / objective.start.curvature if len(end.theta) > MANY else np.nan
    if lowest > (OPEN if end.status is Status.FLAT else FLAT):
        return lowest, np.zeros((len(end.theta), 0))
    reduced, null = reduced_hessian(end.model)
    if not len(reduced):
        return np.inf, null
    limit = OPEN if end.status is Status.FLAT else FLAT  # the solver already stopped for lack of curvature
    limit *= objective.start.curvature
    values = lapack.dsyev(reduced, compute_v=0)[0]  # without vectors in a third of the time
    flat = null[:, :0]
    if (np.abs(values) <= limit).any():
        values, vectors = np.linalg.eigh(reduced)
        flat = null @ vectors[:, np.abs(values) <= limit]
    return float(values[0]) / objective.start.curvature, flat


def is_met(prepared: Prepared, end: Iterate, association: Association) -> bool:
    """Whether predictions are orthogonal other than by all of them saturating at the edge of their range.

    With an offset, saturation can be the only way to meet the constraint: the loss then exceeds that of the
    intercept-only model, without bound.
    """
    driven = prepared.problem.has_offset and end.model.loss > prepared.objective.start.loss
    return association.max_correlation <= MAX_CORRELATION and not (driven and level_of(prepared, end) < NOTHING_LEFT)


def _is_stuck(prepared: Prepared, end: Iterate) -> bool:
    """Whether the violation cannot be reduced: it is stationary, or predictions have saturated."""
    c, J = end.model.c, end.model.J
    stationary = np.linalg.norm(J.T @ c) <= STUCK * np.linalg.norm(c) * end.model.steepness
    return bool(stationary or level_of(prepared, end) < AT_THE_EDGE)


def _moved_features(prepared: Prepared, directions: Array) -> tuple[str, ...]:
    """Features that change the linear predictor along flat directions."""
    if not directions.shape[1]:
        return ()
    moved = np.max([np.abs(prepared.objective.raw(d)[1:]).max(axis=1) for d in directions.T], axis=0)
    names = np.asarray(prepared.problem.feature_names, dtype=object)
    return tuple(names[moved > 0.3 * moved.max()])


class Association(NamedTuple):
    """Association between predictions and protected columns; see :class:`Certificate`."""

    max_correlation: float
    correlation_without: float
    n_left_out: int
    reach: float


def associate(prepared: Prepared, end: Iterate) -> Association:
    """Measure correlations with the protected columns themselves, not their basis, in one pass over the rows."""
    if prepared.basis is None:
        return Association(0.0, 0.0, 0, 0.0)
    level = level_of(prepared, end)
    with np.errstate(divide="ignore", invalid="ignore"):  # predictions beyond float64 have no correlation
        found = _tally(prepared, end, level < AT_THE_EDGE)
        # Below this spread a correlation is rounding error. At the edge one class has all the probability, and the
        # others few digits.
        floor = Floor(1e-8 * level * prepared.problem.outcomes.spread, 0.0 if level < AT_THE_EDGE else 1e-6)
        left = found.correlations(prepared.basis.mean, floor)
    without = found.without_few(left, prepared.problem.n_rows)
    return Association(float(left[0]), *without, found.prediction / found.outcome if found.outcome > 0.0 else 0.0)


def level_of(prepared: Prepared, end: Iterate) -> float:
    """Mean slope of the activation, relative to that at the mean outcome, capped at 1.

    It separates constant predictions from predictions that an offset has driven to the edge of their range.
    """
    return min(1.0, end.model.steepness / prepared.objective.start.steepness)


def _tally(prepared: Prepared, end: Iterate, at_the_edge: bool) -> Tally:
    problem, objective, raw = prepared.problem, prepared.objective, prepared.objective.raw(end.theta)
    assert prepared.basis is not None
    mean_x, mean_y, vector = prepared.basis.mean, objective.start.mean, problem.family.is_vector
    C = contrasts(problem.n_predictors + 1)
    means: Callable[[Array], Array] = problem.family.activation
    # Near the constant prediction the difference from it is more accurate; near the edge, the value itself.
    reference = mean_y @ C.T + 1.0 / len(C) if vector else mean_y
    if at_the_edge:
        reference = np.zeros_like(reference)
        means = _both_tails if means == SIGMOID else means

    def kernel(block: Block) -> Sums:
        eta = linear_predictor(block, raw)
        gap = means(eta @ C.T if vector else eta) - reference
        return (tally_block(block, gap, mean_x, mean_y),)

    found: Tally = objective.rows.reduce(kernel)[0][0]
    return found


def _both_tails(eta: Array) -> Array:
    """Probabilities of both classes: the smaller one keeps its relative precision."""
    return np.hstack([SIGMOID(eta), SIGMOID(-eta)])
