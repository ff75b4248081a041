"""``setsquare audit`` and ``setsquare compare``: predictions that are columns of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from setsquare.cli.files import decoded, open_source, read_roles, series, values
from setsquare.cli.options import AuditedColumns, Options, check_outputs, is_outcome, origin, render_results
from setsquare.cli.terminal import Screen, working
from setsquare.errors import InputError
from setsquare.storage import write_files

if TYPE_CHECKING:
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
                "decisions": columns.decisions,
                "given": () if is_outcome(columns.given) else columns.given,
            },
            options,
        )
        say("Comparing" if several else "Auditing")
        weight = values(table.column(roles["weight"][0])) if roles["weight"] else None
        if options.missing == "model" and outcome is None:
            table, weight, stated = _known_rows(table, roles, weight)
            notes = (*stated, *notes)
        protected = table.select(roles["protected"])
        given = _predictions(table, roles["predictions"], several=several)
        cluster = values(table.column(roles["cluster"][0])) if roles["cluster"] else None
        asked = {"cluster": cluster, "sample_weight": weight, **options.audit}
        asked |= {"family": columns.family, "positive": columns.positive, **columns.groups}
        asked["decisions"] = series(table, roles["decisions"][0]) if roles["decisions"] else None
        if is_outcome(columns.given):
            if outcome is None:
                raise InputError("--given outcome needs the outcomes: pass --outcome with their column.")
            asked["given"] = "outcome"
        elif roles["given"]:
            asked["given"] = table.select(roles["given"])
        about = origin(source)
        document, results = (
            _audit(next(iter(given.values())), protected, asked, notes, options, about)
            if outcome is None
            else _compare(given, series(table, roles["outcome"][0]), protected, asked, notes, several, about)
        )
        say("Writing")
        write_files(render_results(options, document, about | results))
    screen, shown = Screen(), document.brief()
    for each in shown.verdicts:
        screen.verdict(each)
    if not options.quiet:
        screen.show(shown)
        screen.written(options.outputs)
    return int(options.fail_on_leak and any(each.verdict == "leak" for each in shown.verdicts))


def _known_rows(table: Any, roles: dict[str, list[str]], weight: Any) -> tuple[Any, Any, tuple[Note, ...]]:
    """Rows that have the protected columns, with the weights with which they stand for all rows."""
    from setsquare.auditing.partly_missing import weigh_known

    predictions = next(iter(_predictions(table, roles["predictions"], several=False).values()))
    cluster = values(table.column(roles["cluster"][0])) if roles["cluster"] else None
    found, notes = weigh_known(predictions, table.select(roles["protected"]), weight, cluster, None)
    if not notes:
        return table, found, notes
    return table.filter(pa.array(found > 0.0)), found[found > 0.0], notes


def _predictions(table: Any, names: Sequence[str], *, several: bool) -> dict[str, Any]:
    """Sets of predictions by name: several, or one, of which several columns are probabilities of classes."""
    columns = {name: decoded(table.column(name)) for name in names}
    return columns if several or len(names) == 1 else {", ".join(names): pa.table(columns)}


def _audit(
    predictions: Any,
    protected: Any,
    asked: dict[str, Any],
    notes: tuple[Note, ...],
    options: Options,
    about: dict[str, Any],
) -> tuple[Document, dict[str, Any]]:
    """Document and plain values of an audit."""
    from setsquare.auditing import audit

    found = audit(predictions, protected, **asked)
    found = replace(found, notes=(*notes, *found.notes))
    if options.html is None:
        return found.document(), found.to_dict()
    from setsquare.report import build

    rows = {name: asked[name] for name in ("cluster", "sample_weight", "positive", "min_group")}
    return build(found, predictions=predictions, protected=protected, **rows, **about), found.to_dict()


def _compare(
    given: dict[str, Any],
    outcome: Any,
    protected: Any,
    asked: dict[str, Any],
    notes: tuple[Note, ...],
    several: bool,
    about: dict[str, Any],
) -> tuple[Document, dict[str, Any]]:
    """Document and plain values of a comparison; of a single set of predictions, those of its audit too."""
    from setsquare.auditing import compare

    found = compare(given, outcome, protected, **asked)
    found = replace(found, notes=(*notes, *found.notes))
    first = found.sides[0].audit
    more = {} if several else replace(first, notes=(*found.notes, *first.notes)).to_dict()
    return found.document(**about), found.to_dict() | more
