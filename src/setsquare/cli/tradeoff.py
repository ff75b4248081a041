"""``setsquare tradeoff``: what a correction costs, for budgets from orthogonal to no correction."""

from __future__ import annotations

from dataclasses import replace

from setsquare.auditing import tradeoff
from setsquare.cli.correct import make_models, read_training
from setsquare.cli.options import Fitting, Options, about_command, render_results
from setsquare.cli.terminal import Screen, collected_warnings, working
from setsquare.cli.tradeoff_options import refuse_unused
from setsquare.notes import message
from setsquare.storage import write_files


def show(file: str, fitting: Fitting, budgets: int, options: Options) -> int:
    """Fit the path, measure it, write and print."""
    refuse_unused(fitting, options)
    with working(f"Reading {file}", quiet=options.quiet) as say:
        rows = read_training(file, fitting, options)
        _, model = make_models(rows, replace(fitting, max_correlation=None), options)
        say("Fitting")
        with collected_warnings() as noted:
            table = rows.table.select(rows.features + rows.protected)
            found = tradeoff(
                model, table, rows.outcome, budgets=budgets, cluster=rows.cluster, confidence=options.confidence
            )
        found = replace(found, notes=(*rows.notes, *map(message, noted), *found.notes))
        picked = found.pick(max_correlation=fitting.max_correlation) if found.knows_new_rows else None
        document = found.document(max_correlation=fitting.max_correlation)
        about = about_command(rows.origin)
        more = {"picked": None if picked is None else picked.budget}
        contents = render_results(options, document, lambda: about | found.to_dict() | more)
        write_files(contents)
    screen = Screen()
    if picked is not None:
        limit = fitting.max_correlation
        rule = "one standard error from the smallest loss" if limit is None else f"correlation of at most {limit:g}"
        screen.say(f"Recommended ({rule} on new rows): --budget {picked.budget:.4g}")
    if not options.quiet:
        screen.show(document.brief())
        screen.written(list(contents))
    return 0
