"""``setsquare audit`` and ``setsquare compare``: predictions that are columns of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import pyarrow as pa

from setsquare.cli.files import FileRows, read_rows
from setsquare.cli.options import AuditedColumns, Options, about_command, is_outcome, render_results
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
    with working(f"Reading {file}", quiet=options.quiet) as say:
        rows = read_rows(
            file,
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
        if options.missing == "model" and outcome is None:
            rows = _known_rows(rows)
        table, roles, notes = rows.table, rows.roles, rows.notes
        protected = table.select(roles["protected"])
        given = _predictions(rows.predictions, several=several)
        asked = {"cluster": rows.arrays.get("cluster"), "sample_weight": rows.arrays.get("weight")}
        asked |= options.audit(rows.formula)
        asked |= {"family": columns.family, "positive": columns.positive, **columns.groups}
        asked["decisions"] = _series(table, roles["decisions"][0]) if roles["decisions"] else None
        if is_outcome(columns.given):
            if outcome is None:
                raise InputError("--given outcome needs the outcomes: pass --outcome with their column.")
            asked["given"] = "outcome"
        elif roles["given"]:
            asked["given"] = table.select(roles["given"])
        about = about_command(rows.origin)
        document, results = (
            _audit(next(iter(given.values())), protected, asked, notes, options, about)
            if outcome is None
            else _compare(given, _series(table, roles["outcome"][0]), protected, asked, notes, several, about)
        )
        shown = document.brief()
        say("Writing")
        write_files(render_results(options, document, lambda: about | results()))
    screen = Screen()
    for each in shown.verdicts:
        screen.verdict(each, quiet=options.quiet)
    if not options.quiet:
        screen.show(shown)
        screen.written(options.outputs)
    return int(options.fail_on_leak and any(each.verdict == "leak" for each in shown.verdicts))


def _known_rows(rows: FileRows) -> FileRows:
    """Rows that have the protected columns, with the weights with which they stand for all rows."""
    from setsquare.auditing.partly_missing import weigh_known

    predictions = next(iter(_predictions(rows.predictions, several=False).values()))
    protected, arrays = rows.table.select(rows.roles["protected"]), rows.arrays
    weight, notes = weigh_known(predictions, protected, arrays.get("weight"), arrays.get("cluster"), None)
    if not notes:
        return rows
    known = weight > 0.0
    kept = {name: column.filter(pa.array(known)) for name, column in rows.predictions.items()}
    arrays = {name: values[known] for name, values in (arrays | {"weight": weight}).items() if values is not None}
    table = rows.table.filter(pa.array(known))
    return replace(rows, table=table, predictions=kept, arrays=arrays, notes=(*notes, *rows.notes))


def _predictions(columns: dict[str, Any], *, several: bool) -> dict[str, Any]:
    """Sets of predictions by name: several, or one, of which several columns are probabilities of classes."""
    return columns if several or len(columns) == 1 else {", ".join(columns): pa.table(columns)}


def _series(table: Any, name: str) -> Any:
    """A column with its name."""
    return nw.from_native(table.column(name), series_only=True).alias(name)


def _audit(
    predictions: Any,
    protected: Any,
    asked: dict[str, Any],
    notes: tuple[Note, ...],
    options: Options,
    about: dict[str, Any],
) -> tuple[Document, Callable[[], dict[str, Any]]]:
    """Document of an audit, and its plain values."""
    from setsquare.auditing.audit_predictions import audit_rows
    from setsquare.auditing.options import read_options

    audited = audit_rows(predictions, protected, read_options(**asked))
    found = replace(audited.result, notes=(*notes, *audited.result.notes))
    if options.html is None:
        return found.document(), found.to_dict
    from setsquare.report import build_audited

    return build_audited(audited, protected, notes, asked["min_group"], **about), found.to_dict


def _compare(
    given: dict[str, Any],
    outcome: Any,
    protected: Any,
    asked: dict[str, Any],
    notes: tuple[Note, ...],
    several: bool,
    about: dict[str, Any],
) -> tuple[Document, Callable[[], dict[str, Any]]]:
    """Document of a comparison, and its plain values; of a single set of predictions, those of its audit too."""
    from setsquare.auditing import compare

    found = compare(given, outcome, protected, **asked)
    found = replace(found, notes=(*notes, *found.notes))
    first = replace(audited := found.sides[0].audit, notes=(*found.notes, *audited.notes))
    return found.document(**about), lambda: found.to_dict() | ({} if several else first.to_dict())
