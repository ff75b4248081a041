"""``setsquare audit`` and ``setsquare compare``: predictions that are columns of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from setsquare.cli.files import decoded, open_source, read_roles, series, values
from setsquare.cli.options import AuditedColumns, Options, check_outputs, render_results
from setsquare.cli.terminal import Screen, working
from setsquare.storage import write_files

if TYPE_CHECKING:
    from setsquare.auditing import AuditResult, Comparison
    from setsquare.document import Document
    from setsquare.notes import Note


def audit(
    file: str,
    predictions: Sequence[str],
    outcome: str | None,
    columns: AuditedColumns,
    options: Options,
    *,
    several: bool = False,
) -> int:
    """Audit one set of predictions, whose columns are probabilities of classes; or compare several, one column each."""
    check_outputs(options, file)
    with working(f"Reading {file}", quiet=options.quiet) as say:
        source = open_source(file)
        table, roles, notes = read_roles(
            source,
            {
                "predictions": predictions,
                "protected": columns.protected,
                "outcome": outcome,
                "cluster": columns.cluster,
                "weight": columns.weight,
            },
            options,
        )
        say("Comparing" if several else "Auditing")
        protected = table.select(roles["protected"])
        given = _predictions(table, roles["predictions"], several=several)
        cluster, weight = (values(table.column(roles[r][0])) if roles[r] else None for r in ("cluster", "weight"))
        rows = {"cluster": cluster, "sample_weight": weight, "positive": columns.positive}
        asked = {"family": columns.family, **rows, **options.audit}
        found: AuditResult | Comparison
        page: Callable[..., Document]
        if outcome is None:
            found, page = _audit(next(iter(given.values())), protected, asked, rows, notes)
            audits = [found]
        else:
            found, page = _compare(given, series(table, roles["outcome"][0]), protected, asked, notes)
            audits = [side.audit for side in found.sides]
        say("Writing")
        first = audits[0] if outcome is None else replace(audits[0], notes=(*found.notes, *audits[0].notes))
        more = None if several else first.to_dict()
        write_files(render_results(options, source, found, page, more))
    screen, document = Screen(), found.document().brief()
    for each in document.verdicts:
        screen.verdict(each)
    if not options.quiet:
        screen.show(document)
        screen.written(options.outputs)
    return int(options.fail_on_leak and any(one.is_leak for one in audits))


def _predictions(table: Any, names: Sequence[str], *, several: bool) -> dict[str, Any]:
    """Sets of predictions by name: several, or one, of which several columns are probabilities of classes."""
    columns = {name: decoded(table.column(name)) for name in names}
    return columns if several or len(names) == 1 else {", ".join(names): pa.table(columns)}


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
