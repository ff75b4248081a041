"""The trade-off between loss and correlation of a corrected model, for all budgets from orthogonal to plain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from setsquare._typing import Table
from setsquare.auditing.tradeoffs.points import SCORES, measure_points
from setsquare.auditing.tradeoffs.result import Tradeoff
from setsquare.errors import InputError
from setsquare.estimators.expansion import check_expand
from setsquare.estimators.glm import OrthogonalGLM
from setsquare.estimators.missing_protected import check_modelled
from setsquare.glm.budget import check_budget
from setsquare.glm.certificate import TRAINING_ROWS
from setsquare.glm.mdmm import MULTIPLIER_METHODS
from setsquare.glm.new_rows import can_leave_out
from setsquare.glm.solution import Status
from setsquare.glm.solver import choose, fit_path
from setsquare.rows import as_stream, is_dask_array
from setsquare.tables.frame import backend_of
from setsquare.tables.validation import check_choice, check_confidence

#: Largest number of budgets of one path.
MOST_BUDGETS = 1000
#: How a fit ends that has found its optimum.
SETTLED = (Status.CONVERGED, Status.FLAT)
#: Note of a path without numbers on new rows.
UNKNOWN = (
    "Numbers on new rows are not known here: leave-one-out predictions take the solver sqp and, given controls, two "
    "classes or a numeric outcome, no clusters and no modelled missing values."
)


def tradeoff(
    estimator: Any,
    X: Table,
    y: Any,
    protected: Table | None = None,
    *,
    budgets: int | Sequence[float] = 21,
    new_rows: bool = True,
    confidence: float = 0.95,
    sample_weight: Any = None,
    offset: Any = None,
    cluster: Any = None,
) -> Tradeoff:
    """Fit a corrected model for budgets from 0 (orthogonal) to 1 (no correction), and measure each fit.

    A budget is the share of the covariance with the protected columns that may stay. Each fit starts from those before,
    so that the whole path costs about as much as a few fits. Loss, score and correlation are those of the training
    rows and, by leave-one-out predictions, of new rows.

    Parameters
    ----------
    estimator : OrthogonalGLMClassifier or OrthogonalGLMRegressor
        Need not be fitted, and is not changed; its ``budget`` is ignored. A ridge that is to be chosen (``l2="auto"``
        or ``expand="auto"``) is chosen once, for the estimator's own budget.
    X, y, protected, sample_weight, offset, cluster
        As in the estimator's ``fit``; rows in memory.
    budgets : int or sequence of float
        Number of equally spaced budgets, or the budgets.
    new_rows : bool
        Whether to measure new rows as well, which takes longer than the path itself.
    confidence : float
        Confidence of the intervals and of the upper bound on the correlation on new rows.

    Returns
    -------
    Tradeoff

    Examples
    --------
    >>> import numpy as np
    >>> import setsquare as sq
    >>> rng = np.random.default_rng(0)
    >>> age = rng.normal(size=500)
    >>> Z = np.column_stack([age + rng.normal(size=500), rng.normal(size=500)])
    >>> y = Z @ [1.0, 1.0] + rng.normal(size=500) > 0
    >>> path = sq.tradeoff(sq.OrthogonalGLMClassifier(), Z, y, protected=age, budgets=5)
    >>> [point.budget for point in path.points]
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> path.points[0].correlation < 1e-8 < path.points[-1].correlation
    True
    >>> budget = path.pick(max_correlation=0.3).budget
    >>> model = sq.OrthogonalGLMClassifier(budget=budget).fit(Z, y, protected=age)
    """
    if not isinstance(estimator, OrthogonalGLM):
        raise InputError(
            f"A trade-off needs an OrthogonalGLMClassifier or OrthogonalGLMRegressor, not {type(estimator).__name__}: "
            "other corrections have no budget."
        )
    if estimator.orthogonal_on != TRAINING_ROWS:
        raise InputError(
            'A budget sets the covariance on the training rows: pass an estimator with orthogonal_on="training rows".'
        )
    if estimator.relax is not None:
        raise InputError("A budget and relax= are two ways to allow some correlation: leave out relax=.")
    if estimator.threshold is not None:
        raise InputError("A budget is about the probabilities, and threshold= about the decisions: use one of them.")
    if is_dask_array(X) or as_stream(X) is not None:
        raise InputError("A trade-off needs the rows in memory: pass a table or an array.")
    check_confidence(confidence)
    _check_options(estimator)
    shares = read_budgets(budgets)
    from sklearn.base import clone

    own = clone(estimator).set_params(max_correlation=None)
    read = own._read(X, y, protected, sample_weight, offset, cluster)
    problem, _, _ = own._penalised(read.problem, chosen=read.ridge)
    if not len(problem.protected_names):
        raise InputError("A trade-off needs protected columns: name them in the estimator, or pass protected=.")
    solver = choose(problem) if own.solver == "auto" else own.solver
    path = fit_path(problem, shares, solver)
    known = new_rows and solver == "sqp" and can_leave_out(problem, solver)
    known = known and (read.filled is None or own.given is None)
    points = measure_points(path, shares, confidence, new_rows=known, filled=read.filled)
    score = SCORES.get(problem.family.name, "rmse")
    notes = [] if known or not new_rows else [UNKNOWN]
    stalled = [f"{share:.3g}" for share, one in zip(shares, path.points, strict=True) if one.end.status not in SETTLED]
    if read.filled is not None:
        notes.append(
            f"Partly missing: {', '.join(read.filled.missing)}. Covariances and correlations on the training rows are "
            "with the values that stand for them; correlations on new rows are with the columns themselves."
        )
    if stalled:
        notes.append(
            f"The loss may not be the lowest possible for the budget(s) {', '.join(stalled)}: try a ridge (l2)."
        )
    return Tradeoff(
        points,
        score,
        confidence,
        problem.n_rows,
        tuple(problem.protected_names),
        backend_of(X, protected),
        tuple(notes),
    )


def _check_options(estimator: OrthogonalGLM) -> None:
    """Refuse options that the estimator's own ``fit`` refuses."""
    check_choice("solver", estimator.solver, ("auto", "sqp", "large", *MULTIPLIER_METHODS))
    check_expand(estimator.expand)
    check_modelled(estimator.missing, estimator.use_protected, estimator.orthogonal_on, estimator.given)


def read_budgets(budgets: int | Sequence[float]) -> tuple[float, ...]:
    """Budgets in increasing order."""
    if isinstance(budgets, int | np.integer) and not isinstance(budgets, bool):
        if not 2 <= budgets <= MOST_BUDGETS:
            raise InputError(f"budgets must be at least 2 and at most {MOST_BUDGETS}, not {budgets}.")
        return tuple(round(float(share), 12) for share in np.linspace(0.0, 1.0, int(budgets)))
    try:
        given = list(budgets)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"budgets must be a number of budgets or a list of them, not {budgets!r}.") from None
    if not given or len(given) > MOST_BUDGETS:
        raise InputError(f"budgets must hold between 1 and {MOST_BUDGETS} shares, not {len(given)}.")
    return tuple(sorted({check_budget(share) for share in given}))
