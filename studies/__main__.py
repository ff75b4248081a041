"""Run the study from a clone: ``python -m studies``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from setsquare.errors import SetsquareError
from studies.paper import show

app = App(
    name="python -m studies",
    help="Reproduce tables and figures of the paper: what was printed, what its set-up gives, and what is true.",
    version_flags=(),
    default_parameter=Parameter(negative=(), show_default=lambda value: value or None),
)


@app.default
def run(
    *names: str,
    list_: Annotated[bool, Parameter(name="--list")] = False,
    output: Path = Path("paper-results"),
    page: bool = False,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Run tables and figures of the paper, and write them to a folder.

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
    if list_:
        show.catalogue()
    elif page:
        show.page(output)
    else:
        show.experiments(names, output, quick=quick, fresh=fresh)


def main() -> None:
    """Run the command line; bad input ends with exit code 2 and one sentence."""
    try:
        app(sys.argv[1:], result_action="return_value")
    except (SetsquareError, OSError) as error:
        print(f"studies: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
