"""Audit given controls: predictions and protected columns become residuals from a regression on the controls.

By Frisch and Waugh the effects of the residuals are those of the protected columns in a linear regression of the
predictions on both. Given the outcome, each protected column has one effect per class of the outcome (or per knot of a
linear spline in a numeric outcome with many values).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from setsquare import tables
from setsquare._typing import Array, BoolArray, Table
from setsquare.auditing.predictions import Subject
from setsquare.auditing.protected import Protected
from setsquare.errors import InputError, MissingValuesError
from setsquare.families import family
from setsquare.glm.given import OUTCOME, Conditioned, OutcomeBasis, outcome_basis
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.notes import Note, Option, message
from setsquare.projection.basis import protected_basis
from setsquare.projection.controls import fit_controls
from setsquare.rows.blocks import ArrayRows, mean_weight
from setsquare.tables.frame import dense
from setsquare.tables.outcome import read_outcome
from setsquare.tables.validation import check_alignment, check_finite, check_same_rows

#: Evaluation models of an audit with controls: a linear regression, and the generalised covariance measure.
WITH_CONTROLS = ("linear", "gcm")
#: Code of the note on what is given.
GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Controlled:
    """Predictions and protected columns given controls.

    Attributes
    ----------
    subject : Subject
        Residuals of the predictions.
    protected : Protected
        Residuals of the protected columns, those of the outcome's classes side by side.
    names : tuple of str
        Controls.
    values : ndarray of shape (n, c)
        The controls.
    determined : tuple of str
        Protected columns that the controls determine, which are not audited.
    """

    subject: Subject
    protected: Protected
    names: tuple[str, ...]
    values: Array
    determined: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on what is given."""
        text = (
            "Given {given}: the effects are those of the protected columns in a linear regression of the predictions "
            "on both. Correlations and bounds are partial ones."
        )
        found = Note(GIVEN, text, given=", ".join(self.names))
        if not self.determined:
            return (found,)
        text = "Nothing of {columns} is left beside what is given: these columns were not audited."
        return found, Note("determined", text, columns=", ".join(self.determined), severity="caution")


def choose_evaluations(names: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
    """Evaluation models of an audit with controls, which are fewer than without."""
    if names == default:
        return ("linear",)
    names = tuple(dict.fromkeys("linear" if name == "glm" else name for name in names))
    for name in names:
        if name not in WITH_CONTROLS:
            raise InputError(
                f"given= has no evaluation model {name!r}: use 'linear', or 'gcm' for controls that act along curves."
            )
    return names


def control(
    subject: Subject, protected: Protected, given: Any, outcome: Any, keep: BoolArray, missing: str, source: Table
) -> Controlled:
    """Residuals of predictions and protected columns on the controls.

    Parameters
    ----------
    subject : Subject
        One prediction per row.
    protected : Protected
    given : table of n rows, or "outcome"
    outcome : array of n values or None
    keep : boolean ndarray of shape (n,)
        Which of the n rows are audited.
    missing : {"error", "drop", "level"}
    source : table of n rows
        The protected columns before coding, whose row labels the controls must share.
    """
    if subject.shape or subject.classes:
        raise InputError("given= takes one prediction per row, such as the probability of one class.")
    if isinstance(given, str) and given == OUTCOME:
        C, X, names, sources = _of_outcome(protected, outcome, keep)
        shown: tuple[str, ...] = ("the outcome",)
    else:
        C, shown = _of_table(given, keep, missing, source)
        X, names, sources = protected.values, protected.names, protected.sources
    w = protected.weight
    controls = fit_controls(X, C, w, names, shown)
    along = protected_basis(C, w).apply(C) if np.ptp(C, axis=0).any() else np.zeros((len(C), 0))
    y, share = subject.values, mean_weight(len(C), w)
    residual = y - share @ y - along @ (along.T @ (share * y))
    left = tuple(np.asarray(part, dtype=object)[controls.free] for part in (names, sources))
    columns = replace(protected, values=controls.residual(X, C), names=tuple(left[0]), sources=tuple(left[1]))
    if np.abs(residual).max() <= 1e-12 * max(np.abs(y).max(), 1e-300):
        residual = np.zeros_like(y)
    determined = tuple(name for name, free in zip(names, controls.free, strict=True) if not free)
    return Controlled(replace(subject, values=residual, family=family("gaussian")), columns, shown, C, determined)


def _of_table(given: Any, keep: BoolArray, missing: str, source: Table) -> tuple[Array, tuple[str, ...]]:
    if isinstance(given, str) or (np.ndim(given) == 0 and not hasattr(given, "columns")):
        raise InputError(f'given must be a table with one row per prediction, or "outcome", not {given!r}.')
    check_same_rows("given has", tables.n_rows(given), "the predictions have", len(keep))
    check_alignment(source, given, "given")
    rows = given if keep.all() else tables.filter_rows(given, keep)
    try:
        learned = tables.learn(rows, missing="level" if missing == "level" else "error")
    except MissingValuesError as error:
        columns = message(error).fields.get("columns")
        if missing == "level" or columns is None:
            raise
        text = (
            "Missing (NaN) values in {columns} among those given: {drop} leaves out rows without predictions or "
            "protected columns only. Fill them, leave out those rows, or give them a level of their own ({level})."
        )
        drop, level = Option("missing", "drop"), Option("missing", "level")
        raise MissingValuesError(Note("missing-given", text, columns=columns, drop=drop, level=level)) from None
    if not learned.names:
        raise InputError(f"Nothing is given: {', '.join(learned.columns)} are constant. Pass columns that vary.")
    C = dense(learned.apply(rows).values)
    check_finite(C, learned.names, "given column")
    return C, tuple(learned.columns)


def _of_outcome(
    protected: Protected, outcome: Any, keep: BoolArray
) -> tuple[Array, Array, tuple[str, ...], tuple[str, ...]]:
    """Functions of the outcome, and the protected columns multiplied by each."""
    if outcome is None:
        raise InputError('given="outcome" needs the outcomes: pass outcome=.')
    y = read_outcome(outcome, len(keep))[keep]
    basis, labels, codes = _basis(y, protected)
    change = Conditioned(len(protected.names), basis)
    C, X = change.parts(protected.values, codes)
    names = tuple(f"{name} at outcome {level}" for name in protected.names for level in labels)
    return C, X, names, tuple(source for source in protected.sources for _ in labels)


def _basis(y: Any, protected: Protected) -> tuple[OutcomeBasis, tuple[str, ...], Array]:
    """Functions of the outcome, their names, and the outcome as numbers (n, 1)."""
    if np.asarray(y).dtype.kind not in "biuf":
        levels, codes = np.unique(np.asarray(y).astype(str), return_inverse=True)
        return OutcomeBasis(np.arange(float(len(levels))), 0), tuple(levels), codes.astype(np.float64)[:, None]
    numbers = np.asarray(y, dtype=np.float64)[:, None]
    if np.ptp(numbers) == 0.0:
        raise InputError("Every outcome is the same, so nothing is given by it: leave given out.")
    rows = ArrayRows(protected.values, numbers, np.zeros((len(numbers), 0)), protected.shares)
    basis = outcome_basis(rows, OutcomeSummary.of(numbers[:, 0], protected.shares), family("gaussian"))
    return basis, basis.names, numbers
