"""``setsquare audit`` and ``setsquare compare``: predictions that are columns of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from setsquare.cli.files import Source, decoded, open_source, read_roles, series, values
from setsquare.cli.options import Options, check_outputs, render_results
from setsquare.cli.terminal import Screen, working
from setsquare.storage import write_files

if TYPE_CHECKING:
    from setsquare.auditing import AuditResult, Comparison
    from setsquare.document import Document
    from setsquare.notes import Note


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


def audit(file: str, request: Request, options: Options) -> int:
    """Audit one set of predictions; several columns are probabilities of classes."""
    return _run(file, request, options, several=False)


def compare(file: str, request: Request, options: Options) -> int:
    """Compare several sets of predictions, one column each."""
    return _run(file, request, options, several=True)


def _run(file: str, request: Request, options: Options, *, several: bool) -> int:
    check_outputs(options, file)
    with working(f"Reading {file}", quiet=options.quiet) as say:
        source = open_source(file)
        predictions, protected, outcome, rows, notes = _read(source, request, options)
        say("Comparing" if several else "Auditing")
        names = predictions.column_names
        columns = {name: predictions.column(name) for name in names}
        given = columns if several or len(names) == 1 else {", ".join(names): predictions}
        asked = {"family": request.family, **rows, **options.audit}
        found: AuditResult | Comparison
        page: Callable[..., Document]
        if outcome is None:
            (values,) = given.values()
            found, page = _audit(values, protected, asked, rows, notes)
            audits = [found]
        else:
            found, page = _compare(given, outcome, protected, asked, notes)
            audits = [side.audit for side in found.sides]
            if not several:
                audits = [replace(audits[0], notes=(*found.notes, *audits[0].notes))]
        say("Writing")
        more = None if several else audits[0].to_dict()
        write_files(render_results(options, source, found, page, more))
    screen, document = Screen(), found.document().brief()
    for each in document.verdicts:
        screen.verdict(each)
    if not options.quiet:
        screen.show(document)
        screen.written(options.outputs)
    return int(options.fail_on_leak and any(one.is_leak for one in audits))


def _read(source: Source, request: Request, options: Options) -> tuple[Any, Any, Any, dict[str, Any], tuple[Note, ...]]:
    """Predictions, protected columns, outcome, arguments of an audit about the rows, and notes."""
    parts = {role: getattr(request, role) for role in ("predictions", "protected", "outcome", "cluster", "weight")}
    table, roles, notes = read_roles(source, parts, options)
    outcome = series(table, roles["outcome"][0]) if roles["outcome"] else None
    cluster, weight = (values(table.column(roles[r][0])) if roles[r] else None for r in ("cluster", "weight"))
    predictions = table.select(roles["predictions"])
    for j, column in enumerate(predictions.columns):
        predictions = predictions.set_column(j, roles["predictions"][j], decoded(column))
    rows = {"cluster": cluster, "sample_weight": weight, "positive": request.positive}
    return predictions, table.select(roles["protected"]), outcome, rows, notes


def _audit(
    predictions: Any, protected: Any, asked: dict[str, Any], rows: dict[str, Any], notes: tuple[Note, ...]
) -> tuple[AuditResult, Callable[..., Document]]:
    from setsquare.auditing import audit

    found = audit(predictions, protected, **asked)
    found = replace(found, notes=(*notes, *found.notes))

    def page(**more: Any) -> Document:
        from setsquare.report import build  # with groups, which only a page shows

        return build(found, predictions=predictions, protected=protected, **rows, **more)

    return found, page


def _compare(
    given: dict[str, Any], outcome: Any, protected: Any, asked: dict[str, Any], notes: tuple[Note, ...]
) -> tuple[Comparison, Callable[..., Document]]:
    from setsquare.auditing import compare

    found = compare(given, outcome, protected, **asked)
    found = replace(found, notes=(*notes, *found.notes))
    return found, found.document
