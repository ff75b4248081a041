"""Refits of a corrected GLM to resampled rows, for standard errors of its coefficients."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from sklearn.base import clone

from setsquare._typing import Array, BoolArray, Table
from setsquare.errors import InputError
from setsquare.glm.bootstrap import refit_resampled, seconds
from setsquare.glm.certificate import NEW_ROWS
from setsquare.glm.held_rows import CHANGED
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Refits
from setsquare.rows.parallel import single_threaded_blas
from setsquare.rows.progress import show_progress

#: Largest number of refits that a table makes by itself, and their time in seconds above which it makes none.
MOST, LONGEST = 2000, 60.0
#: Change of a coefficient, in standard errors, that shows that the rows were changed after the fit.
MOVED = 0.01


def check_refits(refits: Any) -> None:
    """Raise unless this is a number of refits, 0 or None."""
    if refits is not None and (not isinstance(refits, int | np.integer) or refits < 0 or refits == 1):
        raise InputError(f"refits must be 0, an integer of at least 2, or None, got {refits!r}.")


def refit_problem(
    model: Any, problem: Problem, n_samples: int, rng: np.random.Generator, until: BoolArray | None = None
) -> Refits:
    """Refit a fitted model to resamples of its problem, each from its solution; a terminal has a progress bar."""
    refit = partial(model._settle, start=(model.solution_.intercept, model.solution_.coef))
    # Leave-one-out quantities leave out one copy of a row, but a weighted row as a whole.
    copies = model.orthogonal_on == NEW_ROWS
    with show_progress("refits", n_samples, on_terminals=True) as advance:
        return refit_resampled(problem, refit, n_samples, rng, copies=copies, progress=advance, until=until)


class FewRows(NamedTuple):
    """Standard errors (k, 1 + q) from refits, NaN without them, and a sentence on what rests on few rows."""

    errors: Array
    sentence: str


def refit_few_rows(model: Any, refits: int | None) -> FewRows:
    """Standard errors of the coefficients that rest on few rows, from refits where that is possible and asked for."""
    solution = model.solution_
    few, held = solution.few_rows, solution.refits
    nothing = np.full(few.shape, np.nan)
    if not few.any():
        return FewRows(nothing, "")
    unit = "clusters" if solution.by_cluster else "rows"
    why = _why_not(model, refits)
    if not why and not _are_made(held.found, refits):
        asked = MOST if refits is None else int(refits)
        until = few if refits is None else None
        found = refit_problem(model, held.problem, asked, np.random.default_rng(0), until)
        if found.n_refits < 2:  # a model file needs NaN in the shape of the coefficients
            found = Refits(nothing, nothing, nothing, found.n_refits, found.n_failed)
        held.found = found
    found = held.found
    if not why and found.n_refits < max(2, (found.n_refits + found.n_failed) // 2):
        why = f"{without_fit(found)}."
    if why:
        return FewRows(
            nothing,
            f"Coefficients with a star rest on few {unit}: their standard errors, intervals and p-values can be far "
            f"off, for example half of the true standard error. {why}",
        )
    failed = f"; {found.n_failed} more had no solution" if found.n_failed else ""
    precision = np.nanmax(found.precision[few], initial=0.0)
    return FewRows(
        found.std_error,
        f"Standard errors of coefficients with a star are from {found.n_refits} refits to resampled {unit}, because "
        f"they rest on few {unit} (their own relative error is at most {100.0 * precision:.1f} %{failed}).",
    )


def _are_made(found: Refits | None, refits: int | None) -> bool:
    return found is not None and (refits is None or found.n_refits + found.n_failed == refits)


def _why_not(model: Any, refits: int | None) -> str:
    """Why coefficients that rest on few rows have no refits; empty if they can have them, or were refitted before."""
    held = model.solution_.refits
    by_hand = "Use bootstrap(X, y, ...) for them."
    if refits == 0:
        return by_hand
    if _are_made(held.found, refits):
        return ""
    problem = None if model.missing == "model" else held.problem
    if problem is not None and not _is_unchanged(model, problem):
        problem = held.problem = None
    if problem is None and refits is None:
        return by_hand
    if problem is None:
        raise InputError(
            "The model no longer has the rows of its fit for refits (it was loaded from a file, the arrays were "
            'changed or large, or missing="model"): use bootstrap(X, y, ..., n_samples=...), or summary().'
        )
    if refits is None and MOST * seconds(problem) > LONGEST:
        return f"Refits would take minutes: summary(refits={MOST}) makes them."
    return ""


@single_threaded_blas()
def _is_unchanged(model: Any, problem: Problem) -> bool:
    """Whether a problem still has the solution and loss of the fit: its arrays can belong to the user."""
    solution = model.solution_
    again = model._settle(problem, start=None)  # as the fit: one for new rows ends elsewhere from its own solution
    moved = np.column_stack([again.intercept - solution.intercept, again.coef - solution.coef])
    gap = abs(again.certificate.loss - solution.certificate.loss)
    same = gap <= CHANGED * max(abs(solution.certificate.loss), problem.outcomes.spread)
    return bool(same and not (np.abs(moved) > MOVED * solution.std_error).any())


def without_fit(found: Refits) -> str:
    """Say how many resamples have no fit."""
    return (
        f"{found.n_failed} of {found.n_refits + found.n_failed} resamples have no corrected fit, for example because a "
        "class or group does not occur in them"
    )


@single_threaded_blas()
def problem_again(model: Any, X: Table, y: Any, *others: Any) -> Problem:
    """The problem of the fit, read again from its rows."""
    if model.relax is not None or model.missing == "model":
        option = 'missing="model"' if model.relax is None else "relax="
        raise InputError(f"bootstrap() does not refit with {option}, whose limits or values rest on all rows.")
    read = clone(model)._read(X, y, *others)
    solution, problem = model.solution_, cast(Problem, read.problem.with_l2(model.l2_))
    same = tuple(problem.feature_names) == tuple(model.coefficient_names_)
    if not same or problem.n_rows != solution.certificate.n_rows:
        raise InputError(
            f"The {problem.n_rows} rows passed to bootstrap() are not those of the fit ({solution.certificate.n_rows} "
            "rows), or have other columns or levels: pass what fit() was given."
        )
    return problem
