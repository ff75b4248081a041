"""Fits with protected columns that are partly missing (``missing="model"``)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from setsquare._typing import Array, IntArray, Table
from setsquare.errors import InputError
from setsquare.estimators.expansion import widen
from setsquare.estimators.warn import warn_hardly_observed
from setsquare.families import Family
from setsquare.glm.certificate import NEW_ROWS
from setsquare.glm.deferred import Deferred
from setsquare.glm.missing_protected import Completed, complete_protected, known_numbers, known_outcome
from setsquare.glm.new_rows_bound import NewRows
from setsquare.glm.solver import Solution
from setsquare.notes import Note, Option
from setsquare.tables.column import TableRows
from setsquare.tables.design import Design
from setsquare.tables.frame import dense, is_sparse, open_table
from setsquare.tables.roles import Reader

#: The rule for missing values that models protected columns.
MODEL = "model"


def check_modelled(missing: str, use_protected: bool, orthogonal_on: str, given: Any) -> None:
    """Refuse options that need the protected columns of every row."""
    if missing != MODEL:
        return
    if use_protected:
        raise InputError(
            'missing="model" is for protected columns that are not among the features: leave out use_protected=True.'
        )
    if orthogonal_on == NEW_ROWS and given is not None:
        text = "{missing} with {given} is for the training rows: leave out {on}."
        on = Option("orthogonal_on", NEW_ROWS)
        raise InputError(Note("modelled-given", text, missing=Option("missing", MODEL), given=Option("given"), on=on))


def refuse_stream(missing: str) -> None:
    """Refuse rows that are read in batches."""
    if missing == MODEL:
        raise InputError('missing="model" needs the rows in memory: read them into a table.')


def model_missing(
    X: Array,
    reader: Reader,
    table: Table,
    outcome: Array,
    family: Family,
    weight: Array | None,
    offset: Array | None,
    cluster: Any,
) -> Completed | None:
    """Doubly robust values for coded protected columns (n, p) with gaps; None if nothing is missing.

    What is known about every row is its features (numbers as hinges), outcome, offset and weight.
    """
    if not np.isnan(X).any():
        return None
    if is_sparse(table):
        raise InputError('missing="model" needs the features as a table or array, not as a sparse matrix.')
    assert reader.features is not None
    frame = open_table(table)
    design = widen(reader.features, TableRows(frame, reader.features.columns, "error"))
    known = [dense(design.apply(frame).values), known_outcome(outcome, family)]
    beside = [values.reshape(len(X), -1).T for values in (offset, weight) if values is not None]
    known += [known_numbers(column) for columns in beside for column in columns]
    units = None if cluster is None else np.unique(np.asarray(cluster).astype(str), return_inverse=True)[1]
    if units is not None:
        _check_clusters(X, reader.protected, units if weight is None else np.where(weight > 0.0, units, -1))
    filled = complete_protected(X, _parts(reader.protected), np.hstack(known), weight, units)
    warn_hardly_observed(filled.n_floored, len(X))
    return _described(filled, X, reader.protected, offset is not None, weight is not None)


def _check_clusters(X: Array, design: Design, units: IntArray) -> None:
    """Refuse columns that one cluster alone has: its fold could not be predicted. Rows of unit -1 do not count."""
    for source, column in zip(design.sources, X.T, strict=True):
        if len(np.unique(units[~np.isnan(column) & (units >= 0)])) < 2:
            raise InputError(
                f"The protected column {source!r} is known in one cluster only, from which no other can be predicted: "
                "collect it in more clusters, or leave out cluster= if rows are independent."
            )


def _described(filled: Completed, X: Array, design: Design, offset: bool, weight: bool) -> Completed:
    """Add names: which columns are missing, how often, and what is known about every row."""
    shares: dict[str, float] = {}
    for source, column in zip(design.sources, np.isnan(X).mean(axis=0).tolist(), strict=True):
        shares[source] = max(shares.get(source, 0.0), column)
    beside = [name for name, has in (("the offset", offset), ("the weights", weight)) if has]
    full = [name for name, share in shares.items() if not share]
    known = ("the features", "the outcome", *beside, *full)
    return replace(filled, missing={name: share for name, share in shares.items() if share}, known=known)


def _parts(design: Design) -> list[slice]:
    """Columns of each coder, which are missing in the same rows."""
    ends = np.cumsum([0, *(len(coder.names) for coder in design.coders)])
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(ends) if b > a]


def state_missing(completed: Completed, solution: Solution) -> Solution:
    """Write into a certificate what was missing and assumed; correlations on new rows become those with the columns."""
    certificate = solution.certificate
    left_out: Deferred[NewRows | None] = Deferred(None)
    if not certificate.given:
        left_out = Deferred(partial(_inflated, completed, certificate.left_out))
    certificate = replace(
        certificate,
        missing_protected=tuple(completed.missing),
        missing_shares=tuple(completed.missing.values()),
        missing_given=completed.known,
        left_out=left_out,
    )
    return replace(solution, certificate=certificate)


def _inflated(completed: Completed, left_out: Deferred[NewRows | None]) -> NewRows | None:
    found = left_out.value
    return None if found is None else found.inflated(completed.inflation, completed.inflations.tolist())
