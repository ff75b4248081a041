"""Pytest plugin: which statements of the package each test executes, and the CPU time that it takes.

Modules of the package are compiled with a note in front of each statement of a function, which costs little: the tests
take about as long as without it, and threads are seen too. What other processes execute is not seen. Used by
``benchmarks.mutants``; the variable ``REACHED`` names the file of JSON lines that is written.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

#: Name of the function that notes a statement.
NOTE = "__reached__"
#: A statement is the number of its file, shifted by these bits, and its line.
SHIFT = 16
PACKAGE = "setsquare"
#: Changes of a file that are made before notes, each made from its path: see ``benchmarks.infected``.
WATCHES: list[Callable[[str], ast.NodeTransformer]] = []
_hits: set[int] = set()
_paths: list[str] = []
#: Statements executed by fixtures that serve several tests, by the folder or file that has them and their name.
_fixtures: dict[tuple[str, str], set[int]] = {}
#: Seconds, statements, fixtures and module of each test; those that did not pass as they are.
_found: dict[str, tuple[float, set[int], Sequence[str]]] = {}
_caching: dict[str, bool] = {}
_failed: set[str] = set()


class _Notes(ast.NodeTransformer):
    """Puts a note in front of each statement inside of functions."""

    def __init__(self, file: int) -> None:
        self.file, self.depth = file, 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        node = self.generic_visit(node)  # type: ignore[assignment]
        self.depth -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and self.depth and not isinstance(node, ast.ClassDef):
                first = int(name == "body" and _is_docstring(block[0]))
                noted = [part for one in block[first:] for part in (self._note(one), one)]
                setattr(node, name, block[:first] + noted)
        return node

    def _note(self, statement: ast.stmt) -> ast.stmt:
        number = ast.Constant((self.file << SHIFT) + statement.lineno)
        note = ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), [number], []))
        return ast.fix_missing_locations(ast.copy_location(note, statement))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        _paths.append(path.rpartition(f"/{PACKAGE}/")[2])
        tree = ast.parse(Path(path).read_text())
        for watch in WATCHES:
            tree = watch(_paths[-1]).visit(tree)
        tree = _Notes(len(_paths) - 1).visit(tree)
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = _Loader(spec.name, spec.origin)
        return spec


if "REACHED" in os.environ:
    setattr(builtins, NOTE, _hits.add)
    sys.meta_path.insert(0, _Finder())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what a test executes."""
    _hits.clear()
    start = time.process_time()
    try:
        return (yield)
    finally:
        seconds = time.process_time() - start
        _found[item.nodeid] = (seconds, set(_hits), tuple(getattr(item, "fixturenames", ())))
        file = item.nodeid.split("::")[0]
        if file not in _caching:
            names = vars(getattr(item, "module", None) or ModuleType("")).values()
            cached = [one.__wrapped__ for one in names if isinstance(one, functools._lru_cache_wrapper)]
            _caching[file] = any(f"/{PACKAGE}/" not in one.__code__.co_filename for one in cached)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Note what fixtures execute that serve several tests."""
    before = set(_hits)
    _hits.clear()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _fixtures.setdefault((fixturedef.baseid, fixturedef.argname), set()).update(_hits)
        _hits.update(before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note tests that do not pass as they are: they say nothing about a mutant."""
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write one line per test."""
    with Path(os.environ["REACHED"]).open("a") as stream:
        for name, (seconds, lines) in _tests().items():
            if name not in _failed:
                row = {"test": name, "seconds": round(seconds, 3), "lines": _masks(lines)}
                stream.write(json.dumps(row) + "\n")


def _tests() -> dict[str, tuple[float, set[int]]]:
    """Tests with all that they execute: of their fixtures, and, where results are cached, of their file."""
    files: dict[str, set[int]] = {}
    for name, (_, hits, words) in _found.items():
        for (base, word), more in _fixtures.items():
            if word in words and name.startswith(base):
                hits |= more
        files.setdefault(name.split("::")[0], set()).update(hits)
    caching = {file for file, caches in _caching.items() if caches}
    return {
        name: (seconds, files[name.split("::")[0]] if name.split("::")[0] in caching else hits)
        for name, (seconds, hits, _) in _found.items()
    }


def _masks(hits: set[int]) -> dict[str, str]:
    """Lines by file, each a bit of a hexadecimal number."""
    masks: dict[str, int] = {}
    for hit in hits:
        path = _paths[hit >> SHIFT]
        masks[path] = masks.get(path, 0) | 1 << (hit & (1 << SHIFT) - 1)
    return {path: f"{mask:x}" for path, mask in masks.items()}
