"""The command line: arguments only."""

from __future__ import annotations

import sys

from cyclopts import App

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


def main() -> None:
    """Run the command line; bad input ends with exit code 2 and one sentence."""
    try:
        app()
    except SetsquareError as error:
        print(f"setsquare: {error}", file=sys.stderr)
        sys.exit(2)
