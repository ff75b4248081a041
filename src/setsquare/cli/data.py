"""``setsquare data``: data sets that the library can load."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from setsquare.cli.terminal import Screen, working
from setsquare.cli.written_tables import check_format, render_table
from setsquare.datasets import available, describe, load, names
from setsquare.datasets.files import locate
from setsquare.storage import check_targets, write_files

#: Names of the packages that contain data, as they are installed.
CONTAINERS = {"": "scikit-learn", "sklego": "scikit-lego"}


def list_sets() -> int:
    """Print every data set with its columns, and whether it is on this machine."""
    rows = [["name", "rows", "outcome", "protected", "on this machine"]]
    for name in names():
        info = describe(name)
        here = "yes" if available(name) else "no"
        rows.append([info.name, str(info.n_rows), f"{info.outcome} ({info.family})", ", ".join(info.protected), here])
    Screen().grid(rows)
    return 0


def show_set(name: str) -> int:
    """Print the description of a data set without reading it."""
    screen = Screen()
    info = describe(name)
    screen.print(str(info), soft_wrap=True)
    screen.say(
        "is on this machine" if available(name) else f"is not here: setsquare data fetch {info.name}", first="  "
    )
    return 0


def fetch_set(name: str, output: Path | None, quiet: bool) -> int:
    """Find or download the files of a data set, check them, and write the table to a file."""
    info = describe(name)
    screen = Screen(quiet=quiet)
    if output is not None:
        check_format(output)
        check_targets([output])
    with working(f"Fetching {info.name}", quiet=quiet):
        places = [str(locate(file)) for file in info.files] or [f"inside {CONTAINERS[info.package]}"]
        if output is not None:
            table = pa.Table.from_pandas(load(info.name).table, preserve_index=False)
            write_files({output: render_table(table, output, raw_text=True)})
    screen.say(f"{info.name}: {info.title}.")
    for place in places:
        screen.print(f"  {place}", soft_wrap=True)
    screen.written([] if output is None else [output])
    return 0
