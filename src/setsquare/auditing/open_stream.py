"""Audit of a stream: predictions and protected columns as columns of the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from setsquare import tables
from setsquare._typing import Table
from setsquare.auditing.predictions import Subject, guess_family, outside_note
from setsquare.auditing.protected import Protected, note_constant, note_left_out
from setsquare.errors import InputError
from setsquare.estimators.stream import Encoder, Roles, numbers
from setsquare.estimators.stream_outcome import Numbers
from setsquare.families import Family
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.notes import Note
from setsquare.rows import RowsInParts, Stream
from setsquare.tables import Design, TableSeen
from setsquare.tables.frame import open_table
from setsquare.tables.roles import Reader


class _Seen(NamedTuple):
    """Protected columns and predictions after one pass over the stream."""

    table: TableSeen
    outcomes: OutcomeSummary
    n_outside: int


def refuse_in_memory(
    predictions: Any, protected: Any, names: tuple[str, ...], cluster: Any, classes: Sequence[Any] | None
) -> None:
    """Refuse options that an audit of a stream does not support."""
    if not (isinstance(predictions, Stream) and isinstance(protected, Stream)):
        raise InputError("Pass predictions and protected columns as columns of one stream, or both in memory.")
    if not set(names) <= {"glm", "shape"} or "glm" not in names or cluster is not None or classes is not None:
        raise InputError(
            "A stream is audited by the generalised linear model (family='gaussian' for a linear one) and the tests of "
            "shape, without clusters or classes: read the columns into memory for the rest."
        )


def open_stream(
    predictions: Stream,
    protected: Stream,
    weight: Any,
    glm: Family | None,
    coding: Any,
    reference: Mapping[str, Any] | None,
    missing: Any,
) -> tuple[Subject, Protected, Design, tuple[Note, ...]]:
    """Read a stream once for levels and ranges; the evaluation models read it again."""
    if predictions.data is not protected.data or len(predictions.names) != 1:
        raise InputError(
            "Predictions of a stream are one of its columns, and protected columns are others: pass stream['score'] "
            "and stream[['sex', 'race']]."
        )
    if weight is not None and not isinstance(weight, str):
        raise InputError("sample_weight must be the name of a column where the rows are a stream.")
    roles = Roles(protected.names, (), predictions.names[0], weight)
    stream = replace(protected, columns=roles.columns).keep()
    cells = roles.features if coding == "cells" else ()
    seen = stream.parts().reduce(partial(_look, roles, missing, cells, glm), _merge)
    learned = tables.settle(seen.table, roles.features, coding=coding, reference=reference, missing=missing)
    outcomes, total = seen.outcomes, seen.table.n_rows
    notes = (*note_left_out(total - outcomes.n_rows, total), *note_constant(learned))
    family, guessed = guess_family(outcomes.low, outcomes.high, glm)
    outside = outside_note(seen.n_outside, outcomes.n_rows, family.name)
    encoder = Encoder(Reader(learned, Design(()), (), False), roles, Numbers(family), outcomes.weight)
    blocks = stream.hold(stream.parts(2 + len(learned.names)).map(encoder))
    columns = Protected(None, learned.names, learned.sources, elsewhere=RowsInParts(blocks, outcomes.n_rows))
    subject = Subject(np.zeros(0), family, n_outside=seen.n_outside, notes=(*guessed, *outside), summary=outcomes)
    return subject, columns, learned, notes


def _look(roles: Roles, missing: Any, cells: Any, glm: Family | None, table: Table) -> _Seen:
    seen = tables.observe(table, roles.coded, missing=missing, cells=cells)
    complete = tables.complete(open_table(table), roles.coded) if missing == "drop" else None
    y = numbers(table, roles.outcome, "prediction")
    weight = numbers(table, roles.weight, "weight")
    assert y is not None
    if complete is not None:
        y, weight = y[complete], None if weight is None else weight[complete]
    if count := int(np.isnan(y).sum()):
        raise InputError(f"The predictions {roles.outcome!r} have {count} missing (NaN) value(s): remove those rows.")
    low, high = (-np.inf, np.inf) if glm is None else glm.activation.range
    return _Seen(seen, OutcomeSummary.of(y, weight), int(((y < low) | (y > high)).sum()))


def _merge(a: _Seen, b: _Seen) -> _Seen:
    return _Seen(a.table.merge(b.table), a.outcomes.merge(b.outcomes), a.n_outside + b.n_outside)
