"""Rows of a comparison: several predictions of one outcome, read as numbers in one order of the classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from setsquare import tables
from setsquare.auditing.comparison.predicted_rows import PredictedRows, Sample, align, class_names, code_outcome
from setsquare.auditing.predictions import Raw, open_predictions
from setsquare.auditing.protected import cluster_numbers
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.families import family as make_family
from setsquare.notes import Note
from setsquare.tables.outcome import read_family
from setsquare.tables.validation import (
    check_alignment,
    check_one_column,
    check_same_rows,
    naming,
    read_weight,
    refuse_missing_outcome,
)


def read_compared(
    predictions: Mapping[str, Any],
    y: Any,
    protected: Any,
    family: str | Family | None,
    *,
    cluster: Any,
    sample_weight: Any,
    confidence: float,
    positive: object,
    missing: str = "error",
) -> tuple[PredictedRows, dict[str, tuple[Note, ...]], tuple[Note, ...]]:
    """Read predictions and outcome as numbers; with notes on each set of predictions, and on the guess of a family."""
    if not isinstance(predictions, Mapping) or not predictions:
        raise InputError("Pass the predictions as a mapping of names to arrays, such as {'plain': p, 'corrected': q}.")
    given = {str(name): open_predictions(values) for name, values in predictions.items()}
    outcome = open_predictions(y)
    _check_rows(outcome, protected, predictions, given, y)
    check_alignment(protected, cluster, "cluster")
    weight = read_weight(sample_weight, outcome.n_rows)
    if missing == "drop":
        keep = ~np.logical_or.reduce([outcome.missing, *(raw.missing for raw in given.values())])
        known = tables.learn(protected, missing="drop").apply(protected).keep
        keep &= True if known is None else known
        outcome, given = outcome.take(keep), {name: raw.take(keep) for name, raw in given.items()}
        protected = tables.filter_rows(protected, keep)
        cluster, weight = (None if v is None else np.asarray(v)[keep] for v in (cluster, weight))
    refuse_missing_outcome(int(outcome.missing.sum()))
    glm, reason = _family(outcome, given, family)
    classes = class_names(outcome, given, glm, positive)
    values, notes = {}, {}
    for name, raw in given.items():
        with naming(name, among=len(given)):
            values[name], notes[name] = align(raw, glm, classes)
    codes = cluster_numbers(cluster, outcome.n_rows)
    sample = Sample(weight, codes, confidence)
    rows = PredictedRows(values, glm, classes, protected, code_outcome(outcome, classes), sample)
    return rows, notes, reason


def _check_rows(outcome: Raw, protected: Any, predictions: Mapping[str, Any], given: Mapping[str, Raw], y: Any) -> None:
    check_one_column(outcome.array)
    check_alignment(protected, y, "the outcome")
    for name, raw in given.items():
        check_same_rows(f"{name}: The predictions have", raw.n_rows, "the outcome has", outcome.n_rows)
        check_alignment(y, predictions[name], f"{name}, a set of predictions,")


def _family(outcome: Raw, given: Mapping[str, Raw], family: Any) -> tuple[Family, tuple[Note, ...]]:
    """The family requested, or a guess with a note that gives the reason."""
    columns = [raw.array for raw in given.values()]
    numbers = [array for array in columns if array.dtype.kind in "fiu" and array.ndim == 1]
    guess = read_family(
        outcome.array,
        None if family is None else make_family(family),
        name=outcome.names[0] if outcome.names else "",
        n_columns=max((array.shape[1] for array in columns if array.ndim == 2), default=1),
        lowest_prediction=min((float(np.nanmin(array)) for array in numbers), default=np.inf),
        is_category=outcome.is_category,
    )
    return guess.family, () if guess.reason is None else (guess.reason,)
