"""Entry point of the solvers: select one by cost, solve a problem, return a certified solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.glm.budget import Spent, check_spending, follow, spend
from setsquare.glm.certificate import NEW_ROWS, TRAINING_ROWS, Certificate, rests_on_few
from setsquare.glm.certify import (
    AT_THE_EDGE,
    Measured,
    associate,
    certify,
    class_coefficients,
    is_met,
    level_of,
    measure,
    measure_spent,
)
from setsquare.glm.deferred import Deferred
from setsquare.glm.domain_edge import Reached, Run, reach, run_once
from setsquare.glm.feasibility import feasible_points
from setsquare.glm.freedom import check_varies
from setsquare.glm.held_rows import defer, is_held, is_large, settle_large
from setsquare.glm.large import Krylov, measure_large, solve_large
from setsquare.glm.mdmm import MULTIPLIER_METHODS, Descent, solve_mdmm
from setsquare.glm.new_rows import can_leave_out, check_new_rows, measure_new_rows, reach_new_rows, rough
from setsquare.glm.new_rows_bound import NewRows
from setsquare.glm.newton import Iterate, Settings
from setsquare.glm.objective import Objective
from setsquare.glm.preparation import Prepared, prepare
from setsquare.glm.problem import Problem
from setsquare.glm.sandwich import standard_errors
from setsquare.glm.solution import HeldProblem, Solution, StandardErrors, Status, Step
from setsquare.glm.sqp import solve_sqp
from setsquare.glm.wide import WideObjective, prepare_wide
from setsquare.rows.blocks import is_sparse
from setsquare.rows.parallel import keep_freed_memory, single_threaded_blas
from setsquare.tables.mixed_matrix import MixedMatrix

_ITERATIONS = {"sqp": 100, "large": 100} | dict.fromkeys(MULTIPLIER_METHODS, 100_000)


def solve(
    problem: Problem,
    solver: str = "auto",
    *,
    max_iter: int | None = None,
    tol: float = 1e-8,
    start: tuple[Array, Array] | None = None,
    n_restarts: int = 0,
    random_state: int | np.random.Generator | None = None,
    orthogonal_on: str = TRAINING_ROWS,
    confidence: float = 0.95,
    budget: float = 0.0,
    descent: Descent | None = None,
) -> Solution:
    """Solve a :class:`Problem`.

    Parameters
    ----------
    problem : Problem
    solver : {"auto", "sqp", "large", "mdmm", "bdmm"}
        "sqp" uses the full Hessian; "large" uses Hessian-vector products, for thousands of features, sparse features,
        and features stored in single or half precision. Both reach the optimum; "auto" selects by cost. "large" does
        not search for nearly aliased features: it resolves variation that is independent of the other features down to
        about 1e-6 of a feature's standard deviation, "sqp" down to 1e-7. "mdmm" is the method of the paper, and
        "bdmm" the same without damping, kept for comparison.
    max_iter : int, optional
        By default 100 for sqp and large, 100000 for mdmm and bdmm.
    tol : float
        Relative gradient of the Lagrangian at which a solution counts as optimal.
    start : (intercept, coef), optional
        Warm start, on the scale of the features.
    n_restarts : int
        Additional runs from random starting points; the best solution is kept. The problem is not convex.
    random_state : int or numpy.random.Generator, optional
        Seed of the restarts.
    orthogonal_on : {"training rows", "new rows"}
        Rows on which the predictions are orthogonal: exactly on the training rows (the paper), or on new rows, by a
        target of the constraint for which the leave-one-out covariance is zero.
    confidence : float
        Confidence of the upper bound for new rows in the certificate.
    budget : float
        Share of the covariance with the protected columns that may stay on the training rows, from 0 (orthogonal) to 1
        (no correction); see ``glm.budget``.
    descent : Descent, optional
        Learning rate, schedule and damping of "mdmm" and "bdmm"; by default the rate is searched for.

    Returns
    -------
    Solution

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> Z = X @ rng.normal(size=(2, 4)) + rng.normal(size=(500, 4))
    >>> y = rng.poisson(np.exp(0.3 * Z[:, 0])).astype(float)
    >>> solution = solve(Problem(Z, y, X, family="poisson"))
    >>> solution.certificate.is_orthogonal, solution.certificate.is_optimal
    (True, True)
    """
    name = choose(problem) if solver == "auto" else solver
    if name not in _ITERATIONS:
        raise InputError(f"Unknown solver {solver!r}: choose one of auto, {', '.join(_ITERATIONS)}.")
    if problem.rows.in_memory() is None and name == "mdmm":
        raise InputError('solver="mdmm" needs the rows in memory: use solver="sqp" or "large" for streamed rows.')
    if max_iter is not None and (not isinstance(max_iter, int | np.integer) or max_iter < 0):
        raise InputError(f"max_iter must be a nonnegative integer, got {max_iter!r}.")
    if not tol >= 0.0:
        raise InputError(f"tol must be a nonnegative number, got {tol!r}.")
    check_new_rows(problem, name, orthogonal_on, confidence)
    check_spending(problem, name, budget, orthogonal_on)
    settings = Settings(kkt=tol, max_iter=_ITERATIONS[name] if max_iter is None else max_iter)
    keep_freed_memory()
    if is_large(problem):
        settle_large()
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):  # steps that overflow are rejected
        rng = np.random.default_rng(random_state) if n_restarts else None
        where: dict[str, Any] = {"orthogonal_on": orthogonal_on, "confidence": confidence, "budget": budget}
        found = fit_rows(problem, name, settings, start, n_restarts, rng, descent=descent, **where)
        prepared, end, spent = found.prepared, found.end, found.spent
        left_out: Deferred[NewRows | None] = Deferred(found.new_rows)
        measurable = name == "sqp" and prepared.basis is not None and can_leave_out(problem, name)
        if measurable and found.orthogonal_on == TRAINING_ROWS:
            left_out = defer(
                problem, prepared.objective, end, partial(_measure_new_rows, found, confidence), None, checked=True
            )
        measured = found.measured(prepared, end) if spent is None or name == "large" else measure_spent(spent)
        solution = certify(prepared, end, name, measured, left_out, found.orthogonal_on, spent, budget)
        if name != "sqp" or not is_held(problem) or spent is not None:
            return solution
        held = HeldProblem(None if is_large(problem) else problem)
        compute = partial(_measure_errors, held, prepared, end, solution.certificate.flat_features)
        errors: Deferred[StandardErrors | None] = defer(problem, prepared.objective, end, compute, None, slow=True)
        clusters = None if problem.cluster is None else problem.n_units
        return replace(solution, errors=errors, by_cluster=clusters is not None, n_clusters=clusters, refits=held)


class Fitted(NamedTuple):
    """A fit before its certificate.

    Attributes
    ----------
    prepared : Prepared
        With the objective that was minimised.
    end : Iterate
    new_rows : NewRows or None
    measured : callable
        Measures what the certificate needs of the final iterate.
    orthogonal_on : str
    spent : Spent or None
        With a budget above 0: the same fit, with its price and covariance.
    """

    prepared: Prepared
    end: Iterate
    new_rows: NewRows | None
    measured: Callable[[Prepared, Iterate], Measured]
    orthogonal_on: str
    spent: Spent | None = None


def _measure_new_rows(found: Fitted, confidence: float) -> NewRows | None:
    """Leave-one-out correlation of a fit on the training rows, or with a budget."""
    inverse = None if found.spent is None else found.spent.inverse()
    return measure_new_rows(found.prepared, found.end, confidence, inverse)


def _measure_errors(
    held: HeldProblem, prepared: Prepared, end: Iterate, undetermined: tuple[str, ...]
) -> StandardErrors:
    """Standard errors; only where some coefficients rest on few rows are the rows held for refits any longer."""
    found = standard_errors(prepared, end, undetermined)
    if not found.few_rows.any():
        held.problem = None
    return found


def fit_rows(
    problem: Problem,
    name: str,
    settings: Settings,
    start: tuple[Array, Array] | None = None,
    n_restarts: int = 0,
    rng: np.random.Generator | None = None,
    *,
    orthogonal_on: str = TRAINING_ROWS,
    confidence: float = 0.95,
    budget: float = 0.0,
    descent: Descent | None = None,
) -> Fitted:
    """Fit with a given solver, and make the fit orthogonal on the rows that are asked for, up to a budget."""
    descends = name in MULTIPLIER_METHODS
    prepared = prepare_wide(problem) if name == "large" else prepare(problem)
    objective = prepared.objective
    run, measured = _runner(objective, name, settings, descent)
    wanted = orthogonal_on if prepared.basis is not None and not descends else TRAINING_ROWS
    is_start = wanted == NEW_ROWS and name == "sqp" and not n_restarts and not problem.has_offset
    goal = rough(settings) if is_start else settings
    attempt = partial(run_once if descends else reach, objective, run, settings=goal)
    theta = None if start is None else prepared.theta(*class_coefficients(problem, *start))
    if theta is not None and not np.isfinite(objective.values(theta).loss):
        theta = None  # outside the domain of the link
    ends = attempt(theta)
    if theta is not None and ends[0].end.status not in (Status.CONVERGED, Status.FLAT):
        ends += attempt(None)  # the given start failed: use the default one
    for _ in range(n_restarts):
        ends += attempt(_draw(objective, rng or np.random.default_rng()))
    if problem.has_offset and not descends:  # only an offset can make the constraint infeasible
        ends += _search(prepared, ends, attempt, settings)
    best = ends[0] if len(ends) == 1 else min(ends, key=lambda found: _rank(prepared, found.end))
    n_free = len(prepared.mean) - len(prepared.aliased)
    check_varies(prepared.basis, n_free, best.end.model.spread, problem.outcomes.spread)
    prepared = prepared if best.objective is objective else replace(prepared, objective=best.objective)
    end = best.end
    found: NewRows | None = None
    if is_start and (end.status is not Status.CONVERGED or not _is_plain(prepared, end, goal)):
        end, goal = run(prepared.objective, end.theta, settings), settings
    if wanted == NEW_ROWS and (_is_plain(prepared, end, goal) or is_met(prepared, end, associate(prepared, end))):
        aimed, end, found = reach_new_rows(prepared, end, run, settings, confidence)
        prepared = replace(prepared, objective=aimed)
    if not budget or prepared.basis is None:
        return Fitted(prepared, end, found, measured, wanted)
    spent = spend(prepared.objective, end, budget, run, settings)
    return Fitted(replace(prepared, objective=spent.objective), spent.end, None, measured, wanted, spent)


class Path(NamedTuple):
    """Fits along a path of budgets.

    Attributes
    ----------
    prepared : Prepared
    points : tuple of Spent
    n_iter : int
        Iterations of the orthogonal fit that the path starts at.
    """

    prepared: Prepared
    points: tuple[Spent, ...]
    n_iter: int


def fit_path(problem: Problem, budgets: Sequence[float], solver: str = "auto", *, tol: float = 1e-7) -> Path:
    """Fit for increasing budgets, each from the ones before; ``tol`` is the relative gradient of the Lagrangian."""
    name = choose(problem) if solver == "auto" else solver
    check_spending(problem, name, max(budgets), TRAINING_ROWS)
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        found = fit_rows(problem, name, Settings(kkt=min(tol, 1e-8)))
        run, _ = _runner(found.prepared.objective, name, Settings(kkt=tol))
        points = follow(found.prepared.objective, found.end, budgets, run, Settings(kkt=tol))
        return Path(found.prepared, tuple(points), found.end.trace[-1].iteration)


def _runner(
    objective: Objective, name: str, settings: Settings, descent: Descent | None = None
) -> tuple[Run, Callable[[Prepared, Iterate], Measured]]:
    """Functions that run a solver from a point, and measure its final iterate."""
    if name in MULTIPLIER_METHODS:
        return partial(solve_mdmm, descent=descent, damping=MULTIPLIER_METHODS[name]), measure
    if not isinstance(objective, WideObjective):
        return solve_sqp, measure
    algebra = Krylov(objective, settings, np.random.default_rng(0))  # fixed seed: reproducible digits

    def run(objective: Objective, theta: Array | None, settings: Settings) -> Iterate:
        assert isinstance(objective, WideObjective)
        algebra.objective, algebra.settings = objective, settings
        return solve_large(algebra, theta)

    def measured(prepared: Prepared, end: Iterate) -> Measured:
        assert isinstance(prepared.objective, WideObjective)
        algebra.objective, algebra.settings = prepared.objective, settings
        return measure_large(prepared.problem, algebra, end)

    return run, measured


def _draw(objective: Objective, rng: np.random.Generator) -> Array:
    """Random point around the start, inside the domain of the link."""
    draw = rng.normal(size=objective.n_parameters) / objective.n_parameters**0.5
    while not np.isfinite(objective.values(objective.start.theta + draw).loss):
        draw *= 0.5
    return np.asarray(objective.start.theta + draw)


def _search(
    prepared: Prepared, ends: list[Reached], attempt: Callable[[Array], list[Reached]], settings: Settings
) -> list[Reached]:
    """If no run has met the constraint, run again from feasible points; return runs that meet it, if any."""
    tried = [found.end for found in ends]
    if any(_is_plain(prepared, end, settings) for end in tried) or not all(_rank(prepared, end)[0] for end in tried):
        return []
    for theta in feasible_points(prepared.objective, settings):
        found = attempt(theta)
        if not all(_rank(prepared, one.end)[0] for one in found):
            return found
    return []


def _is_plain(prepared: Prepared, end: Iterate, settings: Settings) -> bool:
    """Whether the constraint is clearly met, without a pass over the rows."""
    gap = float(np.abs(end.model.c).max(initial=0.0))
    return gap <= settings.correlation * end.model.spread and level_of(prepared, end) >= AT_THE_EDGE


def _rank(prepared: Prepared, end: Iterate) -> tuple[bool, bool, bool, float]:
    """Sort key of runs, lower is better: constraint not met, worse than no features, met by few rows only, loss."""
    left = associate(prepared, end)
    return (
        not is_met(prepared, end, left),
        not prepared.problem.has_offset and end.model.loss > prepared.objective.start.loss,
        rests_on_few(left.correlation_without, prepared.problem.n_rows),
        end.model.loss,
    )


__all__ = ["Certificate", "Problem", "Settings", "Solution", "Status", "Step", "solve"]


#: Cost in units of one multiply-add inside a dense Gram matrix, as measured on two cores (binomial, p = 4, n from 5000
#: to 100 000; dense with singular values k^-0.8, q from 100 to 1000; 5 to 25 one-hot columns, q from 50 to 1000). A fit
#: by ``sqp`` took about ten Gram matrices, and decompositions equivalent to 25 m^3, in total
#: 3.4e-10 s (n q^2 + 25 m^3); for sparse rows with s stored values each, 200 n s^2 replaces n q^2. A fit by ``large``
#: took 200 products, 2.7e-7 s n q, or fewer and slower ones for sparse rows. ``python -m benchmarks.bench_wide`` shows
#: both.
DECOMPOSITIONS, SPARSE_GRAM, PRODUCTS, SPARSE_PRODUCTS = 25.0, 200.0, 800.0, 2000.0
#: The same for s numbers and codes per row: sums by level and by pair of levels; decompositions since these are
#: triangular (ACSIncome, m = 803: 0.3 s).
SPLIT_GRAM, SPLIT_DECOMPOSITIONS = 25.0, 8.0
#: Factor by which a product takes longer where the rows are read from a file.
READING = 10.0
#: Factor by which ``large`` must be cheaper to be chosen, because only ``sqp`` reports the rank and aliased features.
ADVANTAGE = 2.0
#: Cost up to which ``sqp`` is always used: a third of a second.
SMALL = 1e9
#: Largest float64 copy of the features, in bytes, that ``sqp`` may make.
MOST_MEMORY = 2**32


def choose(problem: Problem) -> str:
    """Select a solver by the shape of the features.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.arange(1000.0)
    >>> choose(Problem(np.eye(1000, 20), y)), choose(Problem(np.eye(1000, 900), y))
    ('sqp', 'large')
    """
    k = problem.n_predictors
    if problem.cluster is not None:
        return "sqp"
    if problem.rows.in_memory() is None:  # each product reads all rows again, so a Hessian pays off up to more features
        m = k * (1.0 + len(problem.feature_names))
        products = READING * PRODUCTS * problem.n_rows * m
        return "large" if DECOMPOSITIONS * m**3 > max(products, SMALL) or 32.0 * m * m > MOST_MEMORY else "sqp"
    n, q = problem.features.shape
    if isinstance(problem.features, MixedMatrix):
        s = problem.features.stored
        products, memory = SPARSE_PRODUCTS * n * s, 8.0 * n * s
    elif is_sparse(problem.features):
        s = problem.features.nnz / n
        products, memory = SPARSE_PRODUCTS * n * s, 12.0 * n * s
    else:
        products, memory = PRODUCTS * n * q, 8.0 * n * q
    large = cost_of_sqp(problem) > max(ADVANTAGE * k * products, SMALL)
    return "large" if large or memory > MOST_MEMORY else "sqp"


def cost_of_sqp(problem: Problem) -> float:
    """Cost of a fit by ``sqp`` to rows in memory."""
    k, (n, q), cubes = problem.n_predictors, problem.features.shape, DECOMPOSITIONS
    if isinstance(problem.features, MixedMatrix):
        gram, cubes = SPLIT_GRAM * n * problem.features.stored**2, SPLIT_DECOMPOSITIONS
    elif is_sparse(problem.features):
        gram = SPARSE_GRAM * n * (problem.features.nnz / n) ** 2
    else:
        gram = float(n) * q * q
    return float(k * (k + 1) / 2 * gram + cubes * (k * (1.0 + q)) ** 3)
