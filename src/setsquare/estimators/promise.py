"""Promise of a largest correlation on new rows: a fit is returned only if its upper bound keeps it."""

from __future__ import annotations

from typing import Any

from setsquare.errors import BrokenPromiseError, InputError
from setsquare.glm.certificate import NEW_ROWS, Certificate
from setsquare.glm.new_rows_bound import NewRows
from setsquare.glm.solver import Solution
from setsquare.notes import Note, Option

#: Number of rows beyond which a promise is refused without further advice.
MOST_ROWS = 10**10


def check_promise(limit: float | None) -> None:
    """Refuse a promise that no number of rows could keep, or that says nothing."""
    if limit is not None and not 0.0 < limit < 1.0:
        text = "{promise} must be above 0 and below 1, not {limit}: an upper bound on a correlation is never 0."
        promise = Option("max_correlation", words="max_correlation")
        raise InputError(Note("promise-range", text, promise=promise, limit=limit))


def keep_promise(solution: Solution, limit: float | None, *, automatic: bool = False) -> None:
    """Raise if the upper bound on new rows exceeds ``limit``, with what would keep the promise."""
    if limit is None:
        return
    found = solution.certificate.new_rows
    if found is None:
        text = (
            "{promise} cannot be promised, because the correlation on new rows is not known ({solver}: {status}): use "
            'solver="sqp", fewer features than rows (or clusters) or a ridge ({l2}), and {given} only with two classes '
            "or a numeric outcome and without {cluster}."
        )
        fields: dict[str, Any] = {"given": Option("given"), "cluster": Option("cluster")}
        note = Note("promise-unknown", text, solver=solution.solver, status=solution.status, **_named(limit), **fields)
        raise BrokenPromiseError(note)
    if found.upper > limit:
        text = (
            f"The correlation with the protected columns on new rows is at most {found.upper:.3f} (with "
            f"{found.confidence:.0%} confidence; leave-one-out estimate {found.correlation:.3f}), more than "
            f"{{promise}}. {_advise(solution.certificate, found, limit, automatic)}"
        )
        raise BrokenPromiseError(Note("promise-broken", text, **_named(limit)))


def _named(limit: float) -> dict[str, Any]:
    """Arguments that the sentences speak of."""
    on = Option("orthogonal_on", NEW_ROWS)
    return {"promise": Option("max_correlation", limit), "on": on, "l2": Option("l2", "auto")}


def _advise(certificate: Certificate, found: NewRows, limit: float, automatic: bool) -> str:
    """What would keep the promise, with numbers; a template of a note."""
    units, needed = ("clusters" if found.by_cluster else "rows"), found.rows_for(limit)
    if certificate.budget:
        return f"Lower the budget (now {certificate.budget:g}): it is the share of the covariance that may stay."
    first = "" if certificate.orthogonal_on == NEW_ROWS else "Fit with {on}. "
    advice = f"The estimate itself is above the limit, so more {units} alone may not help"
    if needed is not None:
        advice = f"About {needed:,} {units} like these {found.n_units:,} would keep it"
        if needed > MOST_ROWS:
            return f"{first}No table has the {needed:.0e} {units} that would keep it: promise a larger correlation."
    may = "{l2} may" if needed is None else "so may {l2}"
    ridge = "" if automatic else f"; {may} ({found.n_parameters:.0f} parameters are in use)"
    fewer = f", or fewer protected columns (now {found.n_directions} directions)" if found.n_directions > 1 else ""
    other = "A PredictionOrthogonalizer, which needs the protected columns to predict, is another way."
    return f"{first}{advice}{ridge}{fewer}. {other}"
