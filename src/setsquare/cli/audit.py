"""``setsquare audit`` and ``setsquare compare``: predictions that are columns of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from setsquare import report
from setsquare.auditing import AuditResult, Comparison
from setsquare.auditing import audit as audit_predictions
from setsquare.auditing import compare as compare_predictions
from setsquare.cli.files import Source, open_source
from setsquare.cli.output import check_outputs, render_results
from setsquare.cli.roles import decoded, read_roles, series, values
from setsquare.cli.shared_options import Options
from setsquare.cli.terminal import Screen, working
from setsquare.document import Document
from setsquare.notes import Note
from setsquare.storage import write_files


@dataclass(frozen=True, slots=True)
class Request:
    """Names of the columns of a file by role, and what was asked for beside them."""

    predictions: Sequence[str]
    protected: Sequence[str]
    outcome: str | None = None
    cluster: str | None = None
    weight: str | None = None
    family: str | None = None
    positive: str | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a file by role, the family and the positive class that were asked for, and notes."""

    predictions: Any
    protected: Any
    outcome: Any
    cluster: Any
    weight: Any
    family: str | None
    notes: tuple[Note, ...]
    positive: str | None = None

    @property
    def rows(self) -> dict[str, Any]:
        """Arguments of an audit, and of its report, beside predictions and protected columns."""
        return {"cluster": self.cluster, "sample_weight": self.weight, "positive": self.positive}


def audit(file: str, request: Request, options: Options) -> int:
    """Audit one set of predictions; several columns are probabilities of classes."""
    check_outputs(options, file)
    with working(f"Reading {file}", quiet=options.quiet) as say:
        source = open_source(file)
        columns = _read(source, request, options)
        say("Auditing")
        names = columns.predictions.column_names
        given = columns.predictions if len(names) > 1 else columns.predictions.column(0)
        found: AuditResult | Comparison
        if columns.outcome is None:
            audited = audit_predictions(given, columns.protected, columns.family, **columns.rows, **options.audit)
            audited = found = replace(audited, notes=(*columns.notes, *audited.notes))
            rows = {"predictions": given, "protected": columns.protected, **columns.rows}
            page: Callable[..., Document] = partial(report.build, found, **rows)
        else:
            found = _compare({", ".join(names): given}, columns, options)
            audited = found.sides[0].audit
            audited = replace(audited, notes=(*found.notes, *audited.notes))
            page = found.document
        say("Writing")
        write_files(render_results(options, source, found, page, audited.to_dict()))
    _show(found, options)
    return int(options.fail_on_leak and audited.is_leak)


def compare(file: str, request: Request, options: Options) -> int:
    """Compare several sets of predictions, one column each."""
    check_outputs(options, file)
    with working(f"Reading {file}", quiet=options.quiet) as say:
        source = open_source(file)
        columns = _read(source, request, options)
        say("Comparing")
        given = {name: columns.predictions.column(name) for name in columns.predictions.column_names}
        found = _compare(given, columns, options)
        say("Writing")
        write_files(render_results(options, source, found, found.document))
    _show(found, options)
    return int(options.fail_on_leak and any(side.audit.is_leak for side in found.sides))


def _read(source: Source, request: Request, options: Options) -> Columns:
    """Read the columns."""
    parts = {role: getattr(request, role) for role in ("predictions", "protected", "outcome", "cluster", "weight")}
    table, roles, notes = read_roles(source, parts, options)
    outcome = series(table, roles["outcome"][0]) if roles["outcome"] else None
    single = {role: values(table.column(roles[role][0])) if roles[role] else None for role in ("cluster", "weight")}
    predictions = table.select(roles["predictions"])
    for j, column in enumerate(predictions.columns):
        predictions = predictions.set_column(j, roles["predictions"][j], decoded(column))
    return Columns(
        predictions,
        table.select(roles["protected"]),
        outcome,
        **single,
        family=request.family,
        notes=notes,
        positive=request.positive,
    )


def _compare(given: dict[str, Any], columns: Columns, options: Options) -> Comparison:
    found = compare_predictions(
        given, columns.outcome, columns.protected, columns.family, **columns.rows, **options.audit
    )
    return replace(found, notes=(*columns.notes, *found.notes))


def _show(found: AuditResult | Comparison, options: Options) -> None:
    screen, document = Screen(), found.document().brief()
    for each in document.verdicts:
        screen.verdict(each)
    if not options.quiet:
        screen.show(document)
        screen.written(options.outputs)
