"""Predictions whose correlation with each of many protected columns is within chance, where none can be orthogonal.

With as many independent protected columns as features, or as rows, only constant predictions are orthogonal to all of
them. Of p columns that have nothing to do with the predictions, the largest sample correlation is about
``sqrt(2 log p / n)``: the relaxed problem bounds every correlation by that, times a factor,

    min loss + l2/2 |gamma|^2   subject to   |c_j| <= limit * sd(h(eta))   for each column j, scaled to sd 1.

For a fixed right-hand side ``limit * s`` this is solved by an augmented Lagrangian with Newton steps; ``s`` is then set
to the standard deviation of the predictions that were found, until it is no larger. If it falls to zero, no predictions
other than constant ones are within the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.errors import InputError, NotOrthogonalError
from setsquare.glm.certificate import Certificate
from setsquare.glm.deferred import Deferred
from setsquare.glm.newton import Settings
from setsquare.glm.objective import Model, Objective
from setsquare.glm.preparation import Prepared, prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Solution, Status, Step
from setsquare.glm.sqp import solve_sqp
from setsquare.projection.basis import CONSTANT
from setsquare.rows.blocks import ArrayRows, Rows
from setsquare.rows.parallel import single_threaded_blas
from setsquare.tables.validation import refuse_constant_protected

#: Updates of the right-hand side, of the multipliers, and Newton steps between two of them.
RIGHT_SIDES, UPDATES, NEWTON_STEPS = 60, 60, 50
#: Relative violation up to which a bound is met before the last, stricter right-hand side, and share of that.
CLOSE, STRICTER = 1e-4, 1e-3
#: Correlation, relative to the limit, from which a bound takes part.
NEARLY = 0.8
#: Standard deviation of the predictions, relative to those without bounds, below which they count as constant.
VANISHED = 1e-3
#: Penalty in units of curvature over squared slope, and its growth where the violation falls too slowly.
PENALTY, GROWTH = 10.0, 4.0


def box_limit(n_rows: float, n_columns: int, factor: float = 1.0) -> float:
    """Largest correlation allowed: that of the largest of p independent columns, times a factor.

    Examples
    --------
    >>> round(box_limit(500, 1000), 3)
    0.166
    """
    return factor * math.sqrt(2.0 * math.log(max(n_columns, 2)) / n_rows)


class _Point(NamedTuple):
    """Point of the augmented Lagrangian: coordinates, multipliers (p,), model, and relative gradient."""

    theta: Array
    lam: Array
    model: Model
    kkt: float


def solve_box(problem: Problem, X: Array, names: Sequence[str], *, factor: float = 1.0, tol: float = 1e-8) -> Solution:
    """Solve a problem without protected columns of its own under bounds on the correlations with ``X`` (n, p).

    Raises ``NotOrthogonalError`` where only constant predictions are within the bounds.
    """
    _check(problem, X, factor)
    mean, sd = _standards(X, problem)
    varies = sd > CONSTANT * np.abs(mean)
    if not varies.any():
        refuse_constant_protected(names)
    Q = (X[:, varies] - mean[varies]) / sd[varies]
    order = problem.order()
    assert isinstance(problem.rows, ArrayRows)
    rows = replace(problem.rows, Q=Q if order is None else Q[order])
    relaxed = Problem.of_rows(rows, problem.outcomes, problem.family, problem.feature_names, l2=problem.l2)
    limit = min(box_limit(_effective_rows(problem), int(varies.sum()), factor), 1.0)
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        prepared = prepare(relaxed)
        free = prepared.objective
        bounded = replace(free, n_basis=Q.shape[1], start=replace(free.start, sums=None))
        plain = solve_sqp(free, None, Settings(kkt=tol))
        point, trace = _within(bounded, plain.theta, plain.model.spread, limit, max(tol, 1e-8))
    return _certified(prepared, point, trace, plain.model.loss, names, varies, limit)


def _check(problem: Problem, X: Array, factor: float) -> None:
    if problem.n_predictors > 1:
        raise InputError('relax="box" is for two classes or numbers: merge classes.')
    if not 0.0 < factor < np.inf:
        raise InputError(f"The factor of the box must be a positive number, not {factor!r}.")
    if X.shape[0] != len(problem.outcome):
        raise InputError(f"protected has {len(X)} rows, and the features have {len(problem.outcome)}.")


def _standards(X: Array, problem: Problem) -> tuple[Array, Array]:
    w = problem.mean_weight()
    mean = w @ X
    return mean, np.sqrt(w @ (X - mean) ** 2)


def _effective_rows(problem: Problem) -> float:
    """Number of rows; of weighted ones, the number of equal weights with the same variance."""
    return 1.0 / float(np.sum(problem.mean_weight() ** 2))


def _within(
    objective: Objective, theta: Array, spread: float, limit: float, tol: float
) -> tuple[_Point, tuple[Step, ...]]:
    """Solve with the bounds of some columns, and add columns until none is beyond its bound."""
    lam, trace, values = np.zeros(objective.n_constraints), tuple[Step, ...](), objective.values(theta)
    working = np.zeros(len(lam), dtype=bool)
    while (beyond := np.abs(values.c) > limit * values.spread)[~working].any():
        working |= beyond | (np.abs(values.c) > NEARLY * limit * values.spread)
        point, steps = _shrink(_restricted(objective, working), theta, lam[working], spread, limit, tol)
        theta, trace = point.theta, (*trace, *steps)
        lam[working] = point.lam
        values = objective.values(theta)
    model = objective.model(theta, lam)
    return _Point(theta, lam, model, _kkt(objective, model, lam)), trace


def _kkt(objective: Objective, model: Model, lam: Array) -> float:
    return float(np.abs(model.g + model.J.T @ lam).max()) / objective.start.slope


def _restricted(objective: Objective, columns: BoolArray) -> Objective:
    """The same problem with some of the bounds."""
    every = cast(Rows, objective.rows)
    rows = every.map(lambda block: replace(block, Q=block.Q[:, columns])).keep()
    return replace(objective, rows=rows, n_basis=int(columns.sum()))


def _shrink(
    objective: Objective, theta: Array, lam: Array, spread: float, limit: float, tol: float
) -> tuple[_Point, tuple[Step, ...]]:
    """Lower the right-hand side until it is that of the predictions found."""
    first, side, trace = spread, spread, list[Step]()
    point = _Point(theta, lam, objective.model(theta, None), np.inf)
    for iteration in range(RIGHT_SIDES):
        point = _minimise(objective, point, limit * side, tol)
        found, largest = point.model.spread, float(np.abs(point.model.c).max(initial=0.0))
        trace.append(Step(iteration, point.model.loss, largest, point.kkt, 1.0, False))
        if largest <= limit * found:
            return point, tuple(trace)
        if not found > VANISHED * first:
            least = largest / found if found > 0.0 else 1.0
            raise NotOrthogonalError(
                f"No predictions other than constant ones keep the correlation with every protected column below "
                f"{limit:.3f}: the features leave about {min(least, 1.0):.2f}. Use more features, fewer protected "
                "columns, a wider box (relax={'box': 2.0}), or a PredictionOrthogonalizer, which needs the protected "
                "columns to predict."
            )
        side = found * (1.0 - STRICTER) if largest <= (1.0 + STRICTER) * limit * found else found
    raise NotOrthogonalError(
        f"The correlations could not be brought below {limit:.3f} in {RIGHT_SIDES} rounds (largest "
        f"{largest / found:.3f}): use a wider box (relax={{'box': 2.0}}) or a ridge (l2=0.01)."
    )


def _minimise(objective: Objective, point: _Point, bound: float, tol: float) -> _Point:
    """Augmented Lagrangian for ``|c_j| <= bound``, warm-started."""
    start = objective.start
    rho = PENALTY * start.curvature / start.steepness**2
    theta, lam, before = point.theta, point.lam, np.inf
    for _ in range(UPDATES):
        theta, c = _newton(objective, theta, lam, rho, bound, tol)
        shifted = c + lam / rho
        lam = rho * (shifted - np.clip(shifted, -bound, bound))
        violation = max(float(np.abs(c).max(initial=0.0)) - bound, 0.0)
        slack = float(np.max(np.abs(lam) * (bound - np.abs(c)), initial=0.0))
        if violation <= CLOSE * STRICTER * bound and slack <= tol * start.slope * bound:
            break
        if violation > 0.25 * before:
            rho *= GROWTH
        before = violation
    model = objective.model(theta, lam)
    return _Point(theta, lam, model, _kkt(objective, model, lam))


def _newton(
    objective: Objective, theta: Array, lam: Array, rho: float, bound: float, tol: float
) -> tuple[Array, Array]:
    """Minimise the augmented Lagrangian for fixed multipliers; returns the point and its constraint (p,)."""

    def merit(loss: float, c: Array) -> float:
        gap = np.abs(c + lam / rho) - bound
        return loss + 0.5 * rho * float(np.sum(np.maximum(gap, 0.0) ** 2))

    values = objective.values(theta)
    for _ in range(NEWTON_STEPS):
        shifted = values.c + lam / rho
        pull = rho * (shifted - np.clip(shifted, -bound, bound))
        model = objective.model(theta, pull)
        gradient = model.g + model.J.T @ pull
        if float(np.abs(gradient).max()) <= 0.1 * tol * objective.start.slope:
            break
        active = model.J[pull != 0.0]
        step = _descent(model.H.dense() + rho * active.T @ active, gradient)
        now, slope = merit(values.loss, values.c), float(gradient @ step)
        for halvings in range(30):
            trial = theta + 0.5**halvings * step
            tried = objective.values(trial)
            if np.isfinite(tried.loss) and merit(tried.loss, tried.c) <= now + 1e-4 * 0.5**halvings * slope:
                break
        else:
            break
        theta, values = trial, tried
    return theta, values.c


def _descent(H: Array, gradient: Array) -> Array:
    """Newton step; eigenvalues that are not positive are replaced by their absolute value, or a small one."""
    values, vectors = np.linalg.eigh(H)
    size = np.maximum(np.abs(values), 1e-10 * np.abs(values).max())
    return np.asarray(-vectors @ ((vectors.T @ gradient) / size))


def _certified(
    prepared: Prepared,
    point: _Point,
    trace: tuple[Step, ...],
    unconstrained: float,
    names: Sequence[str],
    varies: BoolArray,
    limit: float,
) -> Solution:
    problem, objective, model = prepared.problem, prepared.objective, point.model
    intercept, coef = prepared.coefficients(point.theta)
    correlations = np.abs(model.c) / model.spread if model.spread > 0.0 else np.zeros(len(model.c))
    certificate = Certificate(
        constraint_residual=float(np.abs(model.c).max()),
        max_correlation=float(correlations.max()),
        kkt_residual=point.kkt,
        min_curvature=_curvature(model, point.lam) / objective.start.curvature,
        loss=model.loss,
        unconstrained=Deferred(unconstrained),
        loss_null=objective.start.loss,
        rank_protected=int(varies.sum()),
        rank_features=prepared.rank_features,
        n_protected=len(names),
        n_features=len(problem.feature_names),
        constant_protected=tuple(name for name, some in zip(names, varies, strict=True) if not some),
        aliased_features=prepared.aliased,
        n_rows=problem.n_rows,
        box=limit,
        n_at_limit=int(np.count_nonzero(point.lam)),
    )
    status = Status.CONVERGED if certificate.is_optimal else Status.STALLED
    multipliers = np.zeros((len(names), 1))
    multipliers[varies, 0] = point.lam
    return Solution(intercept, coef, multipliers, status, len(trace), trace, certificate, "box")


def _curvature(model: Model, lam: Array) -> float:
    """Smallest eigenvalue of the Hessian on the tangent space of the bounds that are reached."""
    J = model.J[lam != 0.0]
    if not len(J):
        return float(np.linalg.eigvalsh(model.H.dense())[0])
    _, size, Vt = np.linalg.svd(J)
    null = Vt[np.count_nonzero(size > 1e-10 * size[0]) :]
    return float(np.linalg.eigvalsh(null @ model.H.dense() @ null.T)[0]) if len(null) else np.inf
