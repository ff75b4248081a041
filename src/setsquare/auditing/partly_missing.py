"""Audit of rows that have the protected columns, weighted by the inverse of the probability that they do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from setsquare import tables
from setsquare._typing import Array, Table
from setsquare.auditing.predictions import open_predictions
from setsquare.auditing.protected import cluster_numbers
from setsquare.errors import InputError
from setsquare.glm.missing_protected import (
    LEAST_PROBABILITY,
    cross_fit_probability,
    draw_folds,
    known_numbers,
    standardised,
)
from setsquare.notes import Note
from setsquare.rows import Stream
from setsquare.tables.column import complete_rows
from setsquare.tables.frame import dense, open_table
from setsquare.tables.partly_missing import check_known
from setsquare.tables.validation import check_same_rows, read_weight

#: The code of the note on missing values that are modelled.
MODELLED = "missing-modelled"
#: Labels with more values than this say too little about a row each.
MOST_LABELS = 50


def weigh_known(
    predictions: Any, protected: Table, sample_weight: Any, cluster: Any, outcome: Any, features: Any = None
) -> tuple[Any, tuple[Note, ...]]:
    """Weights (n,) with which the rows that have all protected columns stand for all rows, and a note that says so.

    The probability that a row has them is modelled given its prediction, its outcome, the complete protected columns
    and products of two of these; and its features, where they are given.
    """
    if isinstance(predictions, Stream) or isinstance(protected, Stream):
        raise InputError('missing="model" needs predictions and protected columns in memory, not a stream.')
    frame = open_table(protected)
    known = complete_rows(frame, frame.names)
    if known.all():
        return sample_weight, ()
    raw = open_predictions(predictions)
    check_same_rows("The predictions have", raw.n_rows, "the protected columns have", len(known))
    raw.check_complete()
    check_known(frame.names, known)
    full = [name for name in frame.names if complete_rows(frame, (name,)).all()]
    given, parts = ["the predictions"], [_columns(raw.array)]
    if outcome is not None:
        observed = open_predictions(outcome)
        check_same_rows("The outcome has", observed.n_rows, "the protected columns have", len(known))
        given, parts = [*given, "the outcome"], [*parts, _columns(observed.array)]
    if full:
        parts.append(dense(tables.learn(protected, full).apply(protected).values))
    parts += [_products(a, b) for a, b in itertools.combinations(parts, 2)]
    if features is not None:
        given, parts = [*given, "the features"], [*parts, _features(features, frame.names)]
    weight = read_weight(sample_weight, len(known))
    w = np.ones(len(known)) if weight is None else weight
    fold = draw_folds(known, cluster_numbers(cluster, len(known)))
    found = cross_fit_probability(standardised(np.hstack(parts), w), known, w, fold)
    text = (
        "{count} of {n} rows lack a protected column. The others were weighted by the inverse of the probability that "
        "they have it, which assumes that it is missing at random given {given}."
    )
    note = Note(
        MODELLED, text, severity="caution", count=int((~known).sum()), n=len(known), given=", ".join([*given, *full])
    )
    return np.where(known, w / np.maximum(found, LEAST_PROBABILITY), 0.0), (note,)


def _features(table: Table, protected: Sequence[str]) -> Array:
    """Features without the protected columns, coded; missing values are levels of their own."""
    rest = tables.drop(table, [name for name in tables.column_names(table) if name in protected])
    return dense(tables.learn(rest, missing="level").apply(rest).values)


def _columns(array: Array) -> Array:
    """Predictions or outcomes of any kind as columns: numbers as hinges, labels as dummies."""
    columns = array.reshape(len(array), -1).T
    return np.hstack([known_numbers(c) if array.dtype.kind in "fiub" else _dummies(c) for c in columns])


def _products(a: Array, b: Array) -> Array:
    return np.asarray((a[:, :, None] * b[:, None, :]).reshape(len(a), -1))


def _dummies(labels: Array) -> Array:
    levels, codes = np.unique(labels.astype(str), return_inverse=True)
    return np.asarray(codes[:, None] == np.arange(1, min(len(levels), MOST_LABELS)), dtype=np.float64)
