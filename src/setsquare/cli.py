"""The command line: arguments only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from setsquare import __version__
from setsquare.errors import SetsquareError

app = App(
    name="setsquare",
    help="Models that provably ignore what they must not use: correct them, and show it.",
    version=__version__,
)


@app.command
def demo() -> None:
    """Show on embedded data what a correction does, before and after."""
    from setsquare import demo as demonstration

    demonstration.show()


@app.command
def paper(
    *names: str,
    list_: Annotated[bool, Parameter(name="--list", negative="")] = False,
    output: Path = Path("paper-results"),
    page: Annotated[bool, Parameter(negative="")] = False,
    quick: Annotated[bool, Parameter(negative="")] = False,
    fresh: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Reproduce tables and figures of the paper: what was printed, what its set-up gives, and what is true.

    Parameters
    ----------
    names
        Tables and figures to run; `--list` names them. Without any, all that can be run.
    list_
        Name every table and figure of the paper with its status.
    output
        Folder for tables (CSV, JSON) and figures. A run that was stopped goes on from what is there.
    page
        Run nothing; write what the folder holds as one Markdown page beside it.
    quick
        Smaller runs, to see that they work.
    fresh
        Compute everything anew.
    """
    from setsquare.paper import show

    if list_:
        show.catalogue()
    elif page:
        show.page(output)
    else:
        show.experiments(names, output, quick=quick, fresh=fresh)


def main() -> None:
    """Run the command line; bad input ends with exit code 2 and one sentence."""
    try:
        app()
    except (SetsquareError, OSError) as error:
        print(f"setsquare: {error}", file=sys.stderr)
        sys.exit(2)
