"""Ridge penalty chosen by the leave-one-out loss, along a path of warm-started fits; no folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError, NotOrthogonalError
from setsquare.families import contrasts
from setsquare.glm.budget import check_spending
from setsquare.glm.certificate import TRAINING_ROWS
from setsquare.glm.new_rows import can_leave_out, check_new_rows, measure_new_rows, refuse_leaving_out
from setsquare.glm.newton import Settings
from setsquare.glm.preparation import Prepared, prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Status
from setsquare.glm.solver import Fitted, choose, fit_rows
from setsquare.glm.wide import prepare_wide
from setsquare.rows.parallel import single_threaded_blas

#: Penalties that are tried, in units of the outcome's curvature times the median variance of the features: a penalty of
#: one unit halves the coefficient of a feature that is independent of the others. Zero is tried as well.
PATH = tuple(10.0**e for e in (-5, -4, -3, -2, -1, 0, 1, 2))
#: The same for a wider feature space, where fits with little ridge are slow and rarely the best: down from the first,
#: and where that is the best, up.
DOWN, UP = tuple(10.0**e for e in (-2, -3, -4, -5, -6)), tuple(10.0**e for e in (-1, 0, 1, 2))
#: Factors around the best of them that are tried next.
NEAR = (10.0**-0.5, 10.0**0.5)
#: Rows of a wider feature space on which the penalty is chosen.
SAMPLE = 10_000
#: Number of penalties in a row with a larger loss after which the path ends.
PATIENCE = 3


def choose_l2(
    problem: Problem,
    solver: str = "auto",
    *,
    orthogonal_on: str = TRAINING_ROWS,
    tol: float = 1e-8,
) -> float:
    """Ridge penalty with the smallest leave-one-out loss among fits that are orthogonal on the rows asked for.

    Parameters
    ----------
    problem : Problem
        With protected columns; its own penalty is ignored.
    solver : {"auto", "sqp", "large"}
    orthogonal_on : {"training rows", "new rows"}
    tol : float

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 1))
    >>> Z = X + rng.normal(size=(100, 20))
    >>> y = Z[:, 0] + 3.0 * rng.normal(size=100)
    >>> choose_l2(Problem(Z, y, X)) > 0.0
    True
    """
    return choose_ridge(problem, solver, orthogonal_on=orthogonal_on, tol=tol).l2


class Ridge(NamedTuple):
    """A penalty, and the intercept and coefficients of its fit, from which to start."""

    l2: float
    start: tuple[Array, Array] | None


def choose_ridge(
    problem: Problem,
    solver: str = "auto",
    *,
    orthogonal_on: str = TRAINING_ROWS,
    tol: float = 1e-8,
    wide: bool = False,
    budget: float = 0.0,
) -> Ridge:
    """As :func:`choose_l2`, with the fit that was found; ``wide`` takes fewer steps, for many features.

    Of many rows, ``wide`` then also takes a sample: the best penalty of a mean loss falls with the number of rows.
    """
    name = choose(problem) if solver == "auto" else solver
    if name not in ("sqp", "large") or not len(problem.protected_names):
        option = "expand" if wide else "l2"
        raise InputError(
            f'{option}="auto" needs leave-one-out losses: use solver="auto" or "sqp", and protected columns.'
        )
    check_new_rows(problem, name, orthogonal_on, 0.95)
    check_spending(problem, name, budget, orthogonal_on)
    if not can_leave_out(problem, name):
        refuse_leaving_out("l2", "auto")
    sample = _sample(problem) if wide and orthogonal_on == TRAINING_ROWS else problem
    tried = _Path(sample, name, Settings(kkt=max(tol, 1e-4 if wide else 1e-7)), orthogonal_on, budget)
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        if wide:
            tried.descend()
        else:
            tried.climb()
    if not np.isfinite(tried.loss) and tried.missed:
        raise NotOrthogonalError(
            f'l2="auto" found no ridge penalty with which {problem.n_units} row(s) or cluster(s) make the predictions '
            "orthogonal on new rows: the features predict some protected columns in the training rows only. Use fewer "
            'protected columns, more rows, or orthogonal_on="training rows", which leaves part of the correlation on '
            "new rows."
        )
    if not np.isfinite(tried.loss):
        raise NotOrthogonalError(
            f'l2="auto" found no ridge penalty for which {problem.n_units} row(s) or cluster(s) determine the '
            f"predictions of {len(problem.feature_names)} features: use fewer features or more rows."
        )
    return Ridge(tried.best * sample.n_rows / problem.n_rows, tried.found)


def _sample(problem: Problem) -> Problem:
    """Some rows of a problem in memory that has many; with controls or clusters, all of them."""
    if problem.n_rows <= SAMPLE or problem.features is None or problem.given is not None or problem.cluster is not None:
        return problem
    counted = np.arange(len(problem.outcome)) if problem.weight is None else np.flatnonzero(problem.weight)
    picked = np.sort(np.random.default_rng(0).permutation(counted)[:SAMPLE])
    names = ("features", "outcome", "protected", "weight", "offset")
    parts: dict[str, Any] = {
        name: None if (values := getattr(problem, name)) is None else values[picked] for name in names
    }
    if problem.family.is_vector and len(np.unique(parts["outcome"])) < problem.n_predictors + 1:
        return problem  # a class is missing from the sample
    return replace(problem, **parts)


class _Path:
    """Fits along a path of penalties; the best so far, and the last as a start for the next.

    ``missed`` says whether some fit could not be made orthogonal on new rows.
    """

    def __init__(
        self, problem: Problem, solver: str, settings: Settings, orthogonal_on: str, budget: float = 0.0
    ) -> None:
        self.problem, self.solver, self.settings, self.orthogonal_on = problem, solver, settings, orthogonal_on
        self.budget = budget
        self.best, self.loss, self.missed = 0.0, np.inf, False
        self.start: tuple[Array, Array] | None = None
        self.found: tuple[Array, Array] | None = None

    def climb(self) -> None:
        """Try no penalty, then larger and larger ones, and two near the best."""
        self.walk(PATH, self.try_one(0.0), PATIENCE)
        if self.best > 0.0:
            centre = self.best
            for factor in NEAR:
                self.try_one(centre * factor)

    def descend(self) -> None:
        """Try smaller and smaller penalties and, if the first is the best, larger ones."""
        prepared = prepare_wide(self.problem) if self.solver == "large" else prepare(self.problem)
        unit = self.unit(prepared)
        self.walk(DOWN, unit, 1)
        if self.best in (0.0, DOWN[0] * unit):
            self.walk(UP, unit, 1)

    def walk(self, path: Sequence[float], unit: float, patience: int) -> None:
        """Try penalties until this many in a row have a larger loss than the best."""
        worse = 0
        for step in path:
            best = self.best
            self.try_one(step * unit)
            worse = 0 if self.best != best or not np.isfinite(self.loss) else worse + 1
            if worse >= patience:
                break

    def unit(self, prepared: Prepared) -> float:
        """Unit of penalties."""
        return float(prepared.objective.start.curvature * np.median(prepared.scale**2))

    def try_one(self, l2: float) -> float:
        """Fit with a penalty and note its loss; returns the unit of penalties."""
        problem = self.problem.with_l2(l2)
        asked: dict[str, Any] = {"orthogonal_on": self.orthogonal_on, "budget": self.budget}
        found = fit_rows(problem, self.solver, self.settings, self.start, **asked)
        loss = _loss(found)
        self.missed |= found.end.status is Status.NOT_REACHED
        if np.isfinite(loss):
            self.start = _coefficients(found)
        if loss < self.loss:
            self.best, self.loss, self.found = l2, loss, self.start
        return self.unit(found.prepared)


def _loss(found: Fitted) -> float:
    """Leave-one-out loss; infinite if the fit failed, or would be refused because its bound on new rows is 1."""
    usable = found.end.status in (Status.CONVERGED, Status.FLAT, Status.STALLED)
    new_rows = found.new_rows
    if new_rows is None and usable and found.orthogonal_on == TRAINING_ROWS:
        inverse = None if found.spent is None else found.spent.inverse()
        new_rows = measure_new_rows(found.prepared, found.end, 0.95, inverse)
    if new_rows is None or not usable or (found.orthogonal_on != TRAINING_ROWS and new_rows.upper >= 1.0):
        return np.inf
    return new_rows.loss if np.isfinite(new_rows.loss) else np.inf


def _coefficients(found: Fitted) -> tuple[Array, Array]:
    intercept, coef = found.prepared.coefficients(found.end.theta)
    if not found.prepared.problem.family.is_vector:
        return intercept, coef
    C = contrasts(len(intercept) + 1)
    return C @ intercept, C @ coef
