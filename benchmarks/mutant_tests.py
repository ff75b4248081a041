"""The tests that a mutant meets: those that execute its statement, nearest and fastest first.

What each test executes is recorded once over the whole suite (``benchmarks.reached``; some twenty minutes of CPU time)
and kept in ``.mutants/reached.jsonl.gz``. Test files that were changed since are recorded again. A source file that was
changed since counts as executed wholly by each test that executed a part of it.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.mutators import Mutant

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/setsquare"
KEPT = ROOT / ".mutants"
#: Folders with tests of the package. Those of pages, studies and the browser run it in other processes, or for minutes.
FOLDERS = ("tests/golden", "tests/unit", "tests/properties", "tests/theorems", "tests/reference")
#: Tests of whole programs that run the package in their own process.
PROGRAMS = ("dask", "databases", "embeddings", "out_of_core", "routing", "stream_audit")
#: Tests that read public defaults and the constants of modules, each with its package in brackets. They execute no
#: statement of the functions.
READERS = ("tests/golden/test_interface.py", "tests/golden/test_limits.py")
#: Test files that are recorded in one process.
TOGETHER = 6
#: CPU seconds of the tests that a mutant meets at first and in a wider run, and how many there are at most.
NEAR, WIDE = (8.0, 200), (90.0, 3000)
Test = dict[str, Any]


def environment(tree: Path) -> dict[str, str]:
    """Variables of a process that tests a copy of the tree."""
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "CI": "1", "OMP_NUM_THREADS": "1"}


def test_files() -> list[str]:
    """Files with tests or doctests, by their path; doctests first, for they are fast."""
    found = [path for path in sorted(SOURCE.rglob("*.py")) if ">>>" in path.read_text()]
    found += [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("test_*.py"), reverse=True)]
    found += [ROOT / f"tests/pipeline/test_{name}.py" for name in PROGRAMS]
    return [str(path.relative_to(ROOT)) for path in found]


def _stamp(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.exists() else ""


def _known() -> dict[str, dict[str, Any]]:
    """Recorded test files by their path."""
    kept = KEPT / "reached.jsonl.gz"
    if not kept.exists():
        return {}
    with gzip.open(kept, "rt") as stream:
        return {row["file"]: row for row in map(json.loads, stream) if (ROOT / row["file"]).exists()}


def record(tree: Path, seconds: float) -> None:
    """Record test files that are new or changed, until the time is over."""
    known, end = _known(), time.monotonic() + seconds
    stamps = {name: _stamp(ROOT / name) for name in test_files()}
    todo = [name for name, stamp in stamps.items() if known.get(name, {}).get("stamp") != stamp]
    sources = {str(path.relative_to(SOURCE)): _stamp(path) for path in sorted(SOURCE.rglob("*.py"))}
    for names in _pieces(todo):
        if time.monotonic() > end:
            break
        print(f"{time.strftime('%H:%M:%S')} recording {len(names)} of {len(todo)} files from {names[0]}", flush=True)
        for name, tests in _reach(tree, names).items():
            touched = {path: sources[path] for test in tests for path in test["lines"]}
            known[name] = {"file": name, "stamp": stamps[name], "sources": touched, "tests": tests}
        with gzip.open(KEPT / "reached.part", "wt", compresslevel=3) as stream:
            stream.writelines(json.dumps(row) + "\n" for row in known.values())
        (KEPT / "reached.part").replace(KEPT / "reached.jsonl.gz")


def _pieces(names: list[str]) -> list[list[str]]:
    """Files in groups: doctests together, and a few files of tests each."""
    doctests, others = ([n for n in names if n.startswith("src") is kind] for kind in (True, False))
    pieces = [others[k : k + TOGETHER] for k in range(0, len(others), TOGETHER)]
    return [doctests, *pieces] if doctests else pieces


def _reach(tree: Path, names: list[str]) -> dict[str, list[Test]]:
    """Run test files with the noting plugin; their tests by file."""
    output = KEPT / f"reached-{os.getpid()}.jsonl"
    words = ["-q", "-p", "benchmarks.reached", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", *names]
    variables = environment(tree) | {"REACHED": str(output)}
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tree, env=variables, capture_output=True, check=False)
    found: dict[str, list[Test]] = {name: [] for name in names}
    for line in output.read_text().splitlines() if output.exists() else ():
        test = json.loads(line)
        found[test["test"].split("::")[0]].append(test)
    output.unlink(missing_ok=True)
    return found


def known_tests() -> list[Test]:
    """Recorded tests, each with a number for each source file, whose bits are the lines that it executes."""
    tests, files = list[Test](), _known()
    now = {path: _stamp(SOURCE / path) for row in files.values() for path in row["sources"]}
    for row in files.values():
        changed = {path for path, stamp in row["sources"].items() if now[path] != stamp}
        for test in row["tests"]:
            test["lines"] = {path: -1 if path in changed else int(mask, 16) for path, mask in test["lines"].items()}
            tests.append(test)
    return tests


def statement_lines(text: str, start: int) -> list[int]:
    """Lines of the statements one of which a test executes if it executes a position; none outside of functions."""
    before = text[:start]
    place = before.count("\n") + 1, len(before.rpartition("\n")[2].encode())
    node: ast.AST = ast.parse(text)
    inside, lines = False, list[int]()
    while True:
        held = [child for child in ast.iter_child_nodes(node) if _holds(child, place)]
        if not held:
            return lines
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and held[0] in node.body:
            inside = True
        node = held[0]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside:
            lines = [one.lineno for part in node.body for one in ast.walk(part) if isinstance(one, ast.stmt)]
        elif isinstance(node, ast.stmt) and inside:
            lines = [node.lineno]


def _holds(node: ast.AST, place: tuple[int, int]) -> bool:
    """Whether a position is inside of a node; nodes without a position (arguments, cases) are looked into."""
    if not hasattr(node, "lineno"):
        return any(_holds(child, place) for child in ast.iter_child_nodes(node))
    begins, ends = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return bool(begins <= place < ends)


def _users(mutant: Mutant, text: str) -> set[str]:
    """Files that name what a statement outside of functions defines, and its own file."""
    names = set[str]()
    for one in ast.parse(text).body:
        if one.lineno <= mutant.line <= (one.end_lineno or 0):
            names = {n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            names |= {one.name} if isinstance(one, ast.ClassDef) else set()
    named = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\b") if names else None
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if named and named.search(path.read_text())}
    return found | {mutant.path}


def _executes(mutant: Mutant, tests: list[Test]) -> Callable[[Test], bool]:
    """Whether a test executes a mutant; its function, if no test was seen to execute its statement."""
    text = (SOURCE / mutant.path).read_text()
    lines = statement_lines(text, mutant.start)
    if not lines:
        users = _users(mutant, text)
        return lambda test: not users.isdisjoint(test["lines"]) or _reads(test, mutant)
    mask = sum(1 << line for line in set(lines))
    if not any(test["lines"].get(mutant.path, 0) & mask for test in tests):
        mask = sum(1 << line for line in _function_lines(text, mutant.line))
    is_default = mutant.line < min(lines)
    return lambda test: bool(test["lines"].get(mutant.path, 0) & mask) or (is_default and _reads(test, mutant))


def _reads(test: Test, mutant: Mutant) -> bool:
    """Whether a test reads the defaults or the constants of the package of a mutant."""
    return test["test"].startswith(READERS) and test["test"].endswith(f"[{mutant.path.split('/')[0]}]")


def _function_lines(text: str, line: int) -> range:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    held = [one for one in ast.walk(ast.parse(text)) if isinstance(one, kinds)]
    held = [one for one in held if one.lineno <= line <= (one.end_lineno or 0)]
    return range(held[-1].lineno, (held[-1].end_lineno or 0) + 1) if held else range(0)


def nearest(mutant: Mutant, tests: list[Test], wider: bool) -> tuple[list[str], bool]:
    """The tests that execute a mutant, nearest and fastest first, and whether these are all of them.

    A wider run has those that the first run leaves out.
    """
    stem, package = Path(mutant.path).stem, mutant.path.split("/")[0]

    def order(test: Test) -> float:
        path = test["test"].split("::")[0]
        own = path.endswith(f"/{mutant.path}") or stem in Path(path).stem or path in READERS
        near = own or f"/{package}/" in path or f"golden/test_{package}" in path or "theorems" in path
        return float((test["seconds"] + 0.02) * (0.2 if own else 1.0 if near else 2.0))

    reaching = sorted(filter(_executes(mutant, tests), tests), key=order)
    copies = Counter[str]()
    cost = dict[str, float]()
    for test in reaching:  # the second case of a parametrised test counts twice, and so on
        name = test["test"].partition("[")[0]
        copies[name] += 1
        cost[test["test"]] = order(test) * copies[name]
    reaching.sort(key=lambda test: cost[test["test"]])
    first, rest = _cut(reaching, NEAR)
    if wider:
        first, rest = _cut(rest, WIDE)
    return [test["test"] for test in first], not rest


def _cut(tests: list[Test], limits: tuple[float, int]) -> tuple[list[Test], list[Test]]:
    """The tests within the limits, and the others."""
    chosen, others, seconds = list[Test](), list[Test](), 0.0
    for test in tests:
        if seconds + test["seconds"] <= limits[0] and len(chosen) < limits[1]:
            chosen.append(test)
            seconds += test["seconds"]
        else:
            others.append(test)
    return chosen, others
