"""The generalised linear audit of predictions that are a column of files: estimates, errors and bounds, in passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from setsquare import tables
from setsquare._typing import Array, Table
from setsquare.auditing.bounds import associate
from setsquare.auditing.certificate import (
    Certificate,
    ColumnBound,
    bound_effects,
    bound_references,
    find_references,
)
from setsquare.auditing.conclusion import Settings, conclude_audit, nothing_to_leak
from setsquare.auditing.evaluations.covariance import ALONE
from setsquare.auditing.evaluations.glm import Evidence, conclude, fit_prepared
from setsquare.auditing.evaluations.records import Evaluation
from setsquare.auditing.evaluations.shape import Mapped, evaluate_shape
from setsquare.auditing.predictions import check_mean, guess_family, outside_note
from setsquare.auditing.protected import note_constant, note_left_out, reference_groups
from setsquare.auditing.result import AuditResult
from setsquare.auditing.streamed_columns import StreamedProtected, without_ones
from setsquare.errors import InputError
from setsquare.estimators.stream import Encoder, Roles, numbers
from setsquare.estimators.stream_outcome import Numbers
from setsquare.families import Family
from setsquare.glm.streamed_preparation import StreamedRows, prepare_streamed
from setsquare.glm.streamed_problem import Outcomes, StreamedProblem
from setsquare.notes import Note
from setsquare.projection import basis_of_moments
from setsquare.projection.moments import Moments
from setsquare.rows import Stream
from setsquare.rows.blocks import Block, single_threaded_blas
from setsquare.tables import Design, TableSeen
from setsquare.tables.frame import open_table
from setsquare.tables.roles import Reader


class Looked(NamedTuple):
    """What one pass tells of protected columns and predictions."""

    table: TableSeen
    outcomes: Outcomes
    n_outside: int


def refuse_in_memory(
    predictions: Any, protected: Any, names: tuple[str, ...], cluster: Any, classes: Sequence[Any] | None
) -> None:
    """Refuse what an audit of a stream cannot do."""
    if not (isinstance(predictions, Stream) and isinstance(protected, Stream)):
        raise InputError("Give predictions and protected columns as columns of one stream, or both in memory.")
    if not set(names) <= {"glm", "shape"} or "glm" not in names or cluster is not None or classes is not None:
        raise InputError(
            "A stream is audited by the generalised linear model (family='gaussian' for a linear one) and the tests of "
            "shape, without clusters or classes: read the columns into memory for the rest."
        )


def audit_stream(
    predictions: Stream, protected: Stream, names: tuple[str, ...], settings: Settings, given: tuple[Any, ...]
) -> AuditResult:
    """Audit a column of a stream by the evaluation models ``names``; what is ``given`` goes to :func:`look`."""
    problem, columns, family, references, notes = look(predictions, protected, *given)
    blank = nothing_to_leak(columns.n_rows, len(columns.names), settings.confidence, family)
    blank = replace(blank, references=references)
    if problem is None:
        return replace(blank, notes=notes)
    found, bounds = evaluate_stream(problem, columns, settings.vcov, settings.confidence)
    chosen = tuple(evaluation for evaluation in found if evaluation.name in names)
    return conclude_audit(blank, chosen, bounds, settings, notes=notes)


def look(
    predictions: Stream,
    protected: Stream,
    weight: Any,
    glm: Family | None,
    coding: Any,
    reference: Mapping[str, Any] | None,
    missing: Any,
) -> tuple[StreamedProblem | None, StreamedProtected, Family, tuple[tuple[str, str], ...], tuple[Note, ...]]:
    """Read a stream twice: levels, then ranges and moments. The problem is None where all predictions are the same."""
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
    notes = note_constant(learned)
    notes += note_left_out(seen.table.n_rows - seen.table.n_kept, seen.table.n_rows)
    outcomes = seen.outcomes
    family, guessed = guess_family(outcomes.low, outcomes.high, glm)
    notes = (*notes, *guessed, *outside_note(seen.n_outside, outcomes.n_rows, family.name))
    reader = Reader(learned, Design(()), (), False)
    encoder = Encoder(reader, roles, Numbers(family), outcomes.weight)
    blocks = stream.hold(stream.parts(2 + len(learned.names)).map(encoder))
    mean = float(outcomes.first[0]) / outcomes.weight
    columns = StreamedProtected.of(blocks, learned.names, learned.sources, mean, outcomes.n_rows)
    problem = None
    if outcomes.high - outcomes.low > 1e-10 * max(abs(outcomes.low), abs(outcomes.high), 1e-300):
        check_mean(mean, family)
        problem = StreamedProblem(blocks, outcomes, family, learned.names, quasi=True)
    return problem, columns, family, reference_groups(learned), notes


def evaluate_stream(
    problem: StreamedProblem, columns: StreamedProtected, vcov: str, confidence: float
) -> tuple[tuple[Evaluation, ...], Certificate]:
    """Effects, errors, tests and bounds; the bounds rest on robust errors."""
    if columns.max_leverage > ALONE:
        raise InputError(
            "A row decides an effect alone, such as the only one of a level: leave that level out, or audit the "
            "columns in memory."
        )
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        prepared = prepare_streamed(problem)
        fit = fit_prepared(prepared, columns, vcov, problem.outcomes.weight)
        robust = fit_prepared(prepared, columns, "HC3", problem.outcomes.weight) if vcov == "model" else fit
        found = conclude(
            fit,
            columns,
            problem.family,
            vcov,
            confidence,
            (),
            Evidence(columns.largest_score, columns.sample),
        )
        shape = evaluate_shape(columns.sample(), columns.ends, columns.is_group, columns.sources, confidence)
    rows = StreamedRows(problem.blocks.map(without_ones), problem.n_rows)
    whole, single = associate(rows, float(columns.moments.mean[-1]), columns.basis, columns.concentration, confidence)
    spreads = np.sqrt(np.maximum(np.diag(columns.moments.scatter), 0.0))
    terms = [
        (name, source, size, float(spread))
        for name, source, size, spread in zip(
            columns.names, columns.sources, columns.group_sizes, spreads[:-1], strict=True
        )
    ]
    scale = float(spreads[-1]) if problem.family.activation.name == "identity" else 1.0
    bounds = bound_effects(whole, single, terms, problem.family, robust, confidence, scale, problem.n_rows)
    return (found, shape), replace(bounds, references=_references(rows, columns, confidence))


def _references(rows: StreamedRows, columns: StreamedProtected, confidence: float) -> tuple[ColumnBound, ...]:
    """Bounds for the groups that others are compared with."""
    mean, p = columns.moments.mean, len(columns.names)
    found = find_references(mean[:p], columns.sources, columns.is_group)
    if not found.sources:
        return ()
    scatter = found.members.T @ columns.moments.scatter[:p, :p] @ found.members
    basis = basis_of_moments(Moments(columns.moments.weight, found.share, scatter), found.sources)
    rest = Mapped(rows, partial(_rest, found.members))
    single = associate(rest, float(mean[-1]), basis, columns.concentration, confidence)[1]
    total = np.asarray([0 if size is None else size for size in columns.group_sizes])
    return bound_references(found, single, columns.n_rows - total @ found.members)


def _rest(members: Array, block: Block) -> Block:
    return replace(block, Z=1.0 - np.asarray(block.Z) @ members)


def _look(roles: Roles, missing: Any, cells: Any, glm: Family | None, table: Table) -> Looked:
    seen = tables.observe(table, roles.coded, missing=missing, cells=cells)
    complete = tables.complete(open_table(table), roles.coded) if missing == "drop" else None
    y = numbers(table, roles.outcome, "prediction")
    weight = numbers(table, roles.weight, "weight")
    assert y is not None
    if complete is not None:
        y, weight = y[complete], None if weight is None else weight[complete]
    if count := int(np.isnan(y).sum()):
        raise InputError(
            f"The predictions {roles.outcome!r} have {count} missing (NaN) value(s): leave out those rows."
        )
    low, high = (-np.inf, np.inf) if glm is None else glm.activation.range
    return Looked(seen, Outcomes.of(y, weight), int(((y < low) | (y > high)).sum()))


def _merge(a: Looked, b: Looked) -> Looked:
    return Looked(a.table.merge(b.table), a.outcomes.merge(b.outcomes), a.n_outside + b.n_outside)
