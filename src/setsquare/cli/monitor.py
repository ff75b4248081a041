"""``setsquare monitor``: predictions that arrive over time, in one file after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from setsquare.cli.files import decoded, open_source, read_roles
from setsquare.cli.options import Options, check_outputs, origin, read_references, render_results
from setsquare.cli.terminal import Screen, working
from setsquare.storage import check_targets, write_files


@dataclass(frozen=True, slots=True)
class Request:
    """Columns by role, the file of the state, and the options of :func:`setsquare.monitor`."""

    predictions: str
    protected: Sequence[str]
    state: Path
    bounds: tuple[float, float] | None
    reference: Sequence[str]
    categorical: tuple[str, ...]
    confidence: float | None


def watch(file: str, request: Request, *, json: Path | None, fail_on_leak: bool, quiet: bool) -> int:
    """Add the rows of a file to a monitor."""
    options = Options(categorical=request.categorical, missing="level", json=json, quiet=quiet)
    check_outputs(options, file, str(request.state))
    check_targets([request.state], [] if file == "-" else [Path(file)])
    with working(f"Reading {file}", quiet=quiet) as say:
        source = open_source(file)
        asked = {"predictions": request.predictions, "protected": request.protected}
        table, roles, notes = read_roles(source, asked, options)
        say("Monitoring")
        from setsquare.auditing import monitor

        found = monitor(
            decoded(table.column(roles["predictions"][0])),
            table.select(roles["protected"]),
            state=request.state,
            reference=read_references(request.reference),
            confidence=request.confidence,
            bounds=request.bounds,
        )
        found = replace(found, notes=(*notes, *found.notes))
        document = found.document()
        write_files(render_results(options, document, origin(source) | found.to_dict()))
    screen, shown = Screen(), document.brief()
    for each in shown.verdicts:
        screen.verdict(each)
    if not quiet:
        screen.show(shown)
        screen.written([request.state, *options.outputs])
    return int(fail_on_leak and found.is_alarm)
