"""Audit of a stream: predictions and protected columns as columns of the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from setsquare import tables
from setsquare._typing import Array
from setsquare.auditing.predictions import Subject, guess_family, outside_note
from setsquare.auditing.protected import (
    Coded,
    Protected,
    check_count,
    check_size,
    note_constant,
    note_left_out,
    note_variants,
    reference_groups,
)
from setsquare.errors import InputError
from setsquare.estimators.stream import Encoder, Roles, read_once, require_numbers
from setsquare.estimators.stream_outcome import Numbers
from setsquare.families import Family
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.rows import RowsInParts, Stream
from setsquare.tables import Design
from setsquare.tables.column import Column
from setsquare.tables.roles import Reader


@dataclass(frozen=True, slots=True)
class _Seen:
    """Predictions of some rows: their summary, and how many are outside the range of the family."""

    outcomes: OutcomeSummary
    n_outside: int

    def merge(self, other: _Seen) -> _Seen:
        """Combine with the summary of other rows."""
        return _Seen(self.outcomes.merge(other.outcomes), self.n_outside + other.n_outside)


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
    basis: Any,
    reference: Mapping[str, Any] | None,
    missing: Any,
    largest: bool,
) -> tuple[Subject, Coded]:
    """Read a stream once for levels and ranges; the evaluation models read it again."""
    if predictions.data is not protected.data or len(predictions.names) != 1:
        raise InputError(
            "Predictions of a stream are one of its columns, and protected columns are others: pass stream['score'] "
            "and stream[['sex', 'race']]."
        )
    if weight is not None and not isinstance(weight, str):
        raise InputError("sample_weight must be the name of a column where the rows are a stream.")
    check_count(len(protected.names))
    roles = Roles(protected.names, (), predictions.names[0], weight)
    stream = replace(protected, columns=roles.columns).keep()
    cells = roles.features if basis == "cells" else ()
    table, seen = read_once(stream, roles, missing, cells, partial(_see, predictions.names[0], glm))
    assert seen is not None
    learned = tables.settle(table, roles.features, basis=basis, reference=reference, missing=missing, largest=largest)
    outcomes, total = seen.outcomes, table.n_rows
    check_size(learned, outcomes.n_rows)
    notes = (*note_left_out(total - outcomes.n_rows, total), *note_constant(learned), *note_variants(learned))
    family, guessed = guess_family(outcomes.low, outcomes.high, glm)
    outside = outside_note(seen.n_outside, outcomes.n_rows, family.name)
    encoder = Encoder(Reader(learned, Design(()), (), False), roles, Numbers(family), outcomes.weight)
    blocks = stream.hold(stream.parts(2 + len(learned.names)).map(encoder))
    elsewhere, nothing = RowsInParts(blocks, outcomes.n_rows), np.zeros((0, len(learned.names)))
    about, references = (learned.names, learned.sources), reference_groups(learned)
    columns = Protected(nothing, *about, references=references, elsewhere=elsewhere)
    subject = Subject(np.zeros(0), family, n_outside=seen.n_outside, notes=(*guessed, *outside), summary=outcomes)
    return subject, Coded(columns, np.ones(outcomes.n_rows, dtype=bool), notes)


def _see(name: str, glm: Family | None, column: Column, weight: Array | None, _: Array | None) -> _Seen:
    y = require_numbers(column, name, "prediction")
    if count := int(np.isnan(y).sum()):
        raise InputError(f"The predictions {name!r} have {count} missing (NaN) value(s): remove those rows.")
    low, high = (-np.inf, np.inf) if glm is None else glm.activation.range
    return _Seen(OutcomeSummary.of(y, weight), int(((y < low) | (y > high)).sum()))
