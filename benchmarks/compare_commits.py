"""Is anything slower than it was? The working tree against an earlier commit, on small workloads.

    python -m benchmarks.compare_commits            # against HEAD if src has changed since, else the commit before
    python -m benchmarks.compare_commits v0.1.0 --rounds 10 --limit 0.05

The other commit's sources are unpacked into a temporary folder (`git archive`: there is no worktree that could be left
behind). Two processes, one with each tree, call the same workload in turn, so that a busy moment of the machine hits
both; they are started anew a few times, because where the system puts a process changes its speed by some per cent.
A workload counts as slower when three quarters of its ratios now / before exceed 1 + limit: then the exit code is 1.
It takes about two minutes. Counts of instructions would be steadier, but few virtual machines let a process count them.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.frame import HERE, steps
from benchmarks.measure import PAUSE
from benchmarks.workloads import WORKLOADS

ROOT = HERE.parent
LIMIT = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code: 1 where something is slower, 2 where there is nothing to compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="what to compare with")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"share by which it may be slower (default {LIMIT})")
    parser.add_argument("--rounds", type=int, default=7, help="calls of each workload by a pair of processes")
    parser.add_argument("--starts", type=int, default=3, help="pairs of processes")
    parser.add_argument("--only", default="", help="workloads whose name has this in it")
    given = parser.parse_args(arguments)
    names = [name for name in WORKLOADS if given.only in name]
    with tempfile.TemporaryDirectory() as folder:
        try:
            commit = unpack(given.commit or previous(), Path(folder))
        except subprocess.CalledProcessError as error:
            print(f"git cannot give the other commit: {error.stderr.decode().strip()}", file=sys.stderr)
            return 2
        sources = (ROOT / "src", Path(folder) / "src")
        ratios, failures = compare(names, sources, given.rounds, given.starts)
    return report(ratios, failures, commit, given.limit)


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout


def previous() -> str:
    """HEAD where the sources have changed since, else the commit before it."""
    return "HEAD" if git("status", "--porcelain", "--", "src").strip() else "HEAD~1"


def unpack(commit: str, folder: Path) -> str:
    """Put the sources of a commit into a folder, and return its short name."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "src"))) as archive:
        archive.extractall(folder, filter="data")
    return git("rev-parse", "--short", commit).decode().strip()


def compare(
    names: Sequence[str], sources: tuple[Path, Path], rounds: int, starts: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Ratios now / before of each workload, and why one has none."""
    ratios: dict[str, list[float]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    for _ in steps(range(starts), "now and before"):
        with ExitStack() as stack:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            pair = [stack.enter_context(process(source, scratch)) for source in sources]
            for turn in range(rounds):
                for name in names:
                    if name in failures:
                        continue
                    order = (0, 1) if turn % 2 else (1, 0)
                    answers = {side: ask(pair[side], name) for side in order}
                    try:
                        ratios[name].append(float(answers[0]) / float(answers[1]))
                    except ValueError:
                        failures[name] = next(text for text in answers.values() if ":" in text)
    return ratios, failures


@contextmanager
def process(source: Path, scratch: str) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the sources in a folder, keeps its files in another, and ends with the context."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]), "TMPDIR": scratch}
    command = [sys.executable, "-m", "benchmarks.workloads"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:  # on the way out its input is closed, and it ends
        assert child.stdout is not None
        home = child.stdout.readline().strip()
        if not Path(home).is_relative_to(source):
            raise RuntimeError(f"The process took setsquare from {home or 'nowhere'}, not from {source}.")
        yield child


def ask(child: subprocess.Popen[str], name: str) -> str:
    time.sleep(PAUSE)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{name}\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def report(ratios: dict[str, list[float]], failures: dict[str, str], commit: str, limit: float) -> int:
    """Print the table, and return 1 where something is slower."""
    table = Table("workload", f"now / {commit}", "quartiles", "", title=f"slower means by more than {limit:.0%}")
    slower = []
    for name, each in ratios.items():
        if name in failures:
            table.add_row(name, "", "", failures[name])
            continue
        low, median, high = np.percentile(each, [25, 50, 75])
        slower += [name] if low > 1.0 + limit else []
        table.add_row(name, f"{median:.2f}", f"{low:.2f} to {high:.2f}", "slower" if low > 1.0 + limit else "")
    Console(width=120).print(table)
    return int(bool(slower))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    sys.exit(main())
