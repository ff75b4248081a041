"""What the benchmarks share: records of a ratio and of a bound, the file of a run, and the command line of a script.

A benchmark is a module ``benchmarks/bench_<name>.py`` with a title in the first line of its docstring and

* ``run(**sizes) -> dict``, which measures, prints nothing but progress, and returns plain data: whatever it likes, and
  under "ratios" a list of :class:`Ratio` and under "bounds" a list of :class:`Bound` for the page (:func:`plain`
  makes both JSON). Its keywords are the options of the script, so each has a default: a number, a text or a flag.
* ``show(result)``, which prints what was measured, from that data alone.
* ``QUICK``, the keywords that make it small.

and ends with ``if __name__ == "__main__": main(run, show, QUICK)``. It becomes part of ``python -m benchmarks`` by its
name in ``benchmarks/__main__.py``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import metadata
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.measure import Timed, pace

HERE = Path(__file__).parent
#: What a ratio is of where the peer's time is not of this run.
ON_PAPER = "time on paper"
#: Folder of finished parts of a benchmark, see :func:`part`.
_cells: Path | None = None
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """What we take over what a peer takes, in one run: median and quartiles of the rounds.

    Attributes
    ----------
    what : str
        The work, with its size.
    ours, peer : str
    version : str
        Package and version of the peer.
    median, low, high : float
        Of ours / peer, round by round: under 1 we are faster, or need less.
    limit : float or None
        What it must not exceed.
    of : str
        "time", "processor time", "memory" or ``ON_PAPER``.
    """

    what: str
    ours: str
    peer: str
    version: str
    median: float
    low: float
    high: float
    limit: float | None = None
    of: str = "time"

    @classmethod
    def over(
        cls,
        what: str,
        ours: tuple[str, Timed | Sequence[float]],
        peer: tuple[str, Timed | Sequence[float]],
        package: str = "",
        limit: float | None = None,
        of: str = "time",
    ) -> Ratio:
        """Ratio of names with their rounds; ``package`` is the peer's, by default its name."""
        above, below = (part.seconds if isinstance(part, Timed) else part for part in (ours[1], peer[1]))
        low, median, high = np.percentile(np.divide(above, below), [25, 50, 75])
        return cls(what, ours[0], peer[0], installed(package or peer[0]), median, low, high, limit, of)

    def __str__(self) -> str:
        return f"{digits(self.median)} ({digits(self.low)} to {digits(self.high)})"


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """A figure that is no ratio but has a limit, sometimes two."""

    what: str
    value: float
    limit: float
    unit: str = ""
    least: float | None = None


def digits(value: float) -> str:
    """Two digits behind the point, more of a small number and fewer of a large one.

    >>> digits(0.0314), digits(0.3), digits(1.0), digits(41.3)
    ('0.031', '0.30', '1.00', '41')
    """
    return f"{value:#.2g}" if value < 0.995 else f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def installed(package: str) -> str:
    """Name and version of an installed package; another text as it is."""
    try:
        return f"{package} {metadata.version(package)}"
    except (metadata.PackageNotFoundError, ValueError):
        return package


def plain(value: Any) -> Any:
    """Records, tuples and numpy's numbers as what JSON has; what is not a number is null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(part) for part in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def steps(things: Iterable[T], description: str) -> Iterable[T]:
    """Go through things, with a bar on the screen."""
    return track(list(things), description, console=Console(stderr=True), transient=True)


def part(name: str, compute: Callable[[], Any]) -> Any:
    """What ``compute`` returns, as plain data; read from the folder of ``--cells`` if a stopped run left it there."""
    if _cells is None:
        return plain(compute())
    path = _cells / f"{name}.json"
    if not path.exists():
        found = plain(compute())
        _cells.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(json.dumps(found), encoding="utf-8")
        path.with_suffix(".part").rename(path)
    return json.loads(path.read_text(encoding="utf-8"))


def main(run: FunctionType, show: Callable[[dict[str, Any]], None], quick: Mapping[str, Any]) -> None:
    """Command line of a benchmark: an option for each keyword of ``run``."""
    home = sys.modules[run.__module__]
    parser = argparse.ArgumentParser(description=home.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--output", type=Path, help="folder for the figures as JSON")
    parser.add_argument("--cells", type=Path, help="folder for finished parts, so that a run that was stopped goes on")
    for key, keyword in signature(run).parameters.items():
        flag = isinstance(keyword.default, bool)
        kind: dict[str, Any] = {"action": "store_true"} if flag else {"type": type(keyword.default)}
        help_ = None if flag else f"by default {keyword.default}"
        parser.add_argument(f"--{key.replace('_', '-')}", default=argparse.SUPPRESS, help=help_, **kind)
    given = vars(parser.parse_args())
    global _cells
    small, output, _cells = given.pop("quick"), given.pop("output"), given.pop("cells")
    load, slowed, start = os.getloadavg()[0], pace(), time.perf_counter()
    result = plain(run(**((quick if small else {}) | given)))
    show(result)
    if output:
        name = Path(run.__code__.co_filename).stem.removeprefix("bench_")
        title = str(home.__doc__).splitlines()[0]
        about = {"name": name, "title": title, "command": _command(name, given), "quick": small}
        about |= {"minutes": (time.perf_counter() - start) / 60.0, "load": [load, os.getloadavg()[0]]}
        about |= {"pace": [slowed, pace()]}
        write(output / f"{name}.json", about | where() | {"result": result})


def _command(name: str, given: Mapping[str, Any]) -> str:
    options = [f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}") for key, value in given.items()]
    return " ".join([f"python -m benchmarks.bench_{name}", *options]) if options else f"python -m benchmarks {name}"


def where() -> dict[str, Any]:
    """Date, machine, commit and versions."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "--", "src") else ""),
        "versions": [f"Python {platform.python_version()}", *map(installed, ("setsquare", "numpy", "scipy"))],
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    """What git prints; nothing outside a clone."""
    done = subprocess.run(["git", "-C", str(HERE.parent), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
