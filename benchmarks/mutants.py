"""Mutation testing: whether the tests notice small changes of the code.

    python -m benchmarks.mutants --record                  # what each test executes; kept in .mutants/
    python -m benchmarks.mutants --number 300 --seed 1     # kept too, goes on where it was
    python -m benchmarks.mutants --seed 1 --wider          # its survivors against every other test that executes them
    python -m benchmarks.mutants --seed 1 --show           # counts and survivors

Mutants are drawn with equal chances from eight packages, and run in a copy of the tree, never in the tree itself. Each
meets the tests that execute its statement (``benchmarks.mutant_tests``), nearest and fastest first, until one fails. A
test that does not execute the changed statement cannot notice it, so the wider run stands for the whole suite. What
survives, and why, is in ``benchmarks/mutants.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.mutant_tests import KEPT, ROOT, SOURCE, Test, environment, known_tests, nearest, record
from benchmarks.mutators import Mutant, mutants
from benchmarks.swapped import Forks, holder, run_forked

PACKAGES = ("families", "projection", "glm", "auditing", "tables", "estimators", "storage", "nn")
COPIED = ("src", "tests", "benchmarks", "studies", "docs", "examples", "pyproject.toml", "README.md", "Makefile")
COPIED += ("conftest.py", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "constraints.txt")
#: Seconds until tests that wait for something are given up.
STUCK = 1800.0
#: Largest address space of a run in bytes.
MEMORY = 10 << 30


def copy_tree(target: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "_build")
            shutil.copytree(ROOT / name, target / name, dirs_exist_ok=True, ignore=ignored)
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, target / name)


@functools.cache
def _all_mutants(package: str) -> tuple[Mutant, ...]:
    return tuple(mutant for path in sorted((SOURCE / package).rglob("*.py")) for mutant in mutants(path, SOURCE))


def sample(number: int, seed: int, packages: tuple[str, ...] = PACKAGES) -> list[Mutant]:
    """Mutants drawn with equal chances from the packages, each once."""
    rng, drawn = random.Random(seed), list[Mutant]()
    pools = {name: list(_all_mutants(name)) for name in packages}
    for k in range(number):
        pool = pools[packages[k % len(packages)]]
        drawn.append(pool.pop(rng.randrange(len(pool))))
    return drawn


def run_tests(tree: Path, tests: list[str], seconds: float) -> tuple[str, str]:
    """Run tests in a process of their own; "survived", "killed" or "time", and the test that noticed."""
    limit = int(3 * seconds + 60)
    words = ["-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler"]
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words, *tests],
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: _limit(limit),
    )
    try:
        said, _ = child.communicate(timeout=STUCK)
    except subprocess.TimeoutExpired:
        said = ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    if code < 0:
        return ("time" if -code in (signal.SIGXCPU, signal.SIGKILL) else "killed"), "signal"
    lines = [line.partition(" ")[2] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = [line.partition(" - ")[0] for line in lines]
    return ("survived", "") if code in (0, 5) else ("killed", failed[0] if failed else f"pytest ended with {code}")


def _limit(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def meet(mutant: Mutant, tree: Path, tests: list[Test], wider: bool) -> dict[str, Any]:
    """Put a mutant into the copy and run the tests that reach it."""
    target = tree / "src/setsquare" / mutant.path
    chosen, every = nearest(mutant, tests, wider)
    cost = {test["test"]: test["seconds"] for test in tests}
    found = asdict(mutant) | {"name": mutant.name, "tests": len(chosen), "all": every, "outcome": "survived", "by": ""}
    text = target.read_text()
    while chosen:
        seconds = sum(cost[name] for name in chosen)
        try:
            _replace(target, mutant.source(text))
            outcome, by = run_tests(tree, chosen, seconds)
        finally:
            _replace(target, text)
        if outcome != "killed" or by not in chosen or run_tests(tree, [by], seconds)[0] == "survived":
            return found | {"outcome": outcome, "by": by}
        chosen = chosen[chosen.index(by) + 1 :]  # it fails without the change too
    return found


def _replace(path: Path, text: str) -> None:
    """Write a source file, and remove what was compiled of it: a change may keep its size and second."""
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def show(results: list[Test]) -> None:
    """Print counts by package, and the survivors."""
    for package in PACKAGES:
        part = Counter(row["outcome"] for row in results if row["path"].split("/")[0] == package)
        print(f"{package:12s} " + ", ".join(f"{n} {word}" for word, n in sorted(part.items())))
    survivors = [row for row in results if row["outcome"] == "survived"]
    n = len(results)
    print(f"{n} mutants, {n - len(survivors)} noticed ({(n - len(survivors)) / max(n, 1):.1%}), {len(survivors)} not:")
    for row in survivors:
        of_all = "all" if row.get("all") else "first"
        print(f"  {row['name']}  [{row['function']}; {of_all} {row['tests']} tests]")


def main() -> int:
    """Draw mutants, run them, and say which were not noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", type=lambda text: tuple(text.split(",")), default=PACKAGES)
    parser.add_argument("--seconds", type=float, default=1e9, help="Stop after this time; the next run goes on.")
    parser.add_argument("--wider", action="store_true", help="Survivors against every other test that enters them.")
    parser.add_argument("--again", action="store_true", help="Survivors against the nearest tests again.")
    parser.add_argument("--record", action="store_true", help="Note what the tests execute, and run no mutant.")
    parser.add_argument("--known", action="store_true", help="Record nothing: use what was recorded before.")
    parser.add_argument("--show", action="store_true")
    asked = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    kept = KEPT / f"seed-{asked.seed}.jsonl"
    results = {row["name"]: row for row in map(json.loads, kept.read_text().splitlines())} if kept.exists() else {}
    if not asked.show:
        _run(asked, kept, results)
    show(list(results.values()))
    return 0


def _left(asked: argparse.Namespace, results: dict[str, Any]) -> list[Mutant]:
    """Mutants of a sample that are still to be run."""
    left = []
    for mutant in sample(asked.number, asked.seed, asked.packages):
        before = results.get(mutant.name)
        open_again = before and before["outcome"] == "survived"
        open_again = open_again and ((asked.wider and not before.get("all")) or asked.again or not before["tests"])
        if (before and not open_again) or (asked.wider and not before):
            continue
        left.append(mutant)
    return left


def _swap(
    mutants: list[Mutant],
    tree: Path,
    tests: list[Test],
    wider: bool,
    keep: Callable[[dict[str, Any]], None],
    end: float,
) -> list[Mutant]:
    """Run mutants in forks of one process; the result are those that could not be run so."""
    cost, left = {test["test"]: test["seconds"] for test in tests}, list[Mutant]()
    chosen = dict[Mutant, tuple[list[str], bool]]()

    def give() -> Iterator[tuple[Mutant, list[str]]]:
        for mutant in mutants:
            if time.monotonic() > end:
                return
            chosen[mutant] = nearest(mutant, tests, wider)
            yield mutant, chosen[mutant][0]

    def report(mutant: Mutant, outcome: str, by: str) -> None:
        if outcome == "not swapped":
            left.append(mutant)
            return
        names, every = chosen[mutant]
        found = {"name": mutant.name, "tests": len(names), "all": every, "outcome": outcome, "by": by}
        keep(asdict(mutant) | found)

    os.chdir(tree)
    os.environ.update(environment(tree))
    sys.path[:0] = [str(tree / "src"), str(tree)]
    run_forked(sorted({name.split("::")[0] for name in cost}), Forks(give, report, tree / "src/setsquare", cost))
    os.chdir(ROOT)
    return left


def _run(asked: argparse.Namespace, kept: Path, results: dict[str, Any]) -> None:
    tree, end = KEPT / f"tree-{os.getpid()}", time.monotonic() + asked.seconds
    try:
        tree.mkdir()
        copy_tree(tree)
        if not asked.known:
            record(tree, asked.seconds)
        if asked.record:
            return
        tests = known_tests()
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree / "src")], check=False)
        todo = _left(asked, results)

        def keep(found: dict[str, Any]) -> None:
            results[found["name"]] = found
            print(f"{found['outcome']:9s} {found['name']}  {found['by']}", flush=True)
            kept.write_text("".join(json.dumps(row) + "\n" for row in results.values()))

        inside, outside = list[Mutant](), list[Mutant]()
        for mutant in todo:
            held = holder((tree / "src/setsquare" / mutant.path).read_text(), mutant.start)
            (outside if held is None else inside).append(mutant)
        if inside:
            outside += _swap(inside, tree, tests, asked.wider, keep, end)
        for mutant in outside:
            if time.monotonic() < end:
                keep(meet(mutant, tree, tests, asked.wider))
    finally:
        shutil.rmtree(tree, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
