"""``setsquare monitor``: predictions that arrive over time, in one file after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from setsquare.cli.files import read_rows
from setsquare.cli.options import Options, Reading, about_command, read_references, render_results
from setsquare.cli.terminal import Screen, working
from setsquare.storage import write_files


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
    reading: Reading


def watch(file: str, request: Request, *, json: Path | None, fail_on_leak: bool, quiet: bool) -> int:
    """Add the rows of a file to a monitor."""
    options = Options(
        decimal=request.reading.decimal,
        encoding=request.reading.encoding,
        sheet=request.reading.sheet,
        categorical=request.categorical,
        missing="level",
        json=json,
        quiet=quiet,
    )
    with working(f"Reading {file}", quiet=quiet) as say:
        rows = read_rows(file, {"predictions": request.predictions, "protected": request.protected}, options)
        say("Monitoring")
        from setsquare.auditing.monitoring.monitor import monitor_column

        ((name, predictions),) = rows.predictions.items()
        found = monitor_column(
            name,
            predictions,
            rows.table.select(rows.roles["protected"]),
            state=request.state,
            reference=read_references(request.reference),
            confidence=request.confidence,
            bounds=request.bounds,
        )
        found = replace(found, notes=(*rows.notes, *found.notes))
        document = found.document()
        write_files(render_results(options, document, lambda: about_command(rows.origin) | found.to_dict()))
    screen, shown = Screen(), document.brief()
    for each in shown.verdicts:
        screen.verdict(each)
    if not quiet:
        screen.show(shown)
        screen.written([request.state, *options.outputs])
    return int(fail_on_leak and found.is_alarm)
