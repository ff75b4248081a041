"""Mutants without a new process for each: the tests are collected once, and every mutant runs in a fork of them.

A change inside a function is made by giving the function the code that is compiled of the changed file, so nothing is
written and nothing is imported again: a mutant costs the time of the tests that it meets. Changes outside of functions
(constants of a module, defaults of a record) are left to ``benchmarks.mutants.meet``, which changes a copy of the file.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import mmap
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from benchmarks.mutators import Mutant

#: Functions of the package by file and qualified name.
Known = dict[tuple[str, str], list[FunctionType]]
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Half seconds without CPU time after which a fork is said to wait for ever.
IDLE = 10


def holder(text: str, start: int) -> tuple[str, Function] | None:
    """The outermost function around a position in characters, with its qualified name; None outside of functions."""
    before = text[:start]
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2].encode())

    def find(node: ast.AST, prefix: str) -> tuple[str, Function] | None:
        for child in ast.iter_child_nodes(node):
            first, last = getattr(child, "lineno", None), getattr(child, "end_lineno", None)
            if first is None or last is None:
                continue
            begins, ends = (first, child.col_offset), (last, child.end_col_offset)  # type: ignore[attr-defined]
            if not begins <= (line, column) < ends:
                continue
            if isinstance(child, Function):
                return f"{prefix}{child.name}", child
            return find(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)
        return None

    return find(ast.parse(text), "")


def codes(code: CodeType) -> Iterator[CodeType]:
    """Code of the functions and methods of a compiled module, without functions inside of functions."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            if "<locals>" not in part.co_qualname:
                yield from codes(part)


def swap(mutant: Mutant, path: Path, known: Known) -> None:
    """Give the function of a mutant its changed code and defaults, in this process."""
    text = path.read_text()
    held = holder(text, mutant.start)
    assert held is not None
    name, node = held
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    changed = mutant.source(text)
    (code,) = {
        part
        for part in codes(compile(changed, str(path), "exec"))
        if (part.co_qualname, part.co_firstlineno) == (name, first)
    }
    found = [one for one in known[str(path), name] if one.__code__.co_firstlineno == first]
    (new,) = [
        one
        for one in ast.walk(ast.parse(changed))
        if isinstance(one, Function) and (one.lineno, one.name) == (node.lineno, node.name)
    ]
    new.decorator_list, new.body = [], [ast.copy_location(ast.Pass(), new)]
    scope = dict(found[0].__globals__)
    exec(compile(ast.Module([new], []), str(path), "exec"), scope)  # for its defaults
    for function in found:
        function.__code__ = code
        function.__defaults__, function.__kwdefaults__ = scope[new.name].__defaults__, scope[new.name].__kwdefaults__


class Forks:
    """Pytest plugin that runs each mutant in a fork instead of the tests.

    Parameters
    ----------
    mutants : callable
        Gives mutants with the tests that each meets.
    report : callable
        Is given a mutant, "survived", "killed", "time" or "not swapped", and the test that noticed.
    source : Path
        Folder of the package.
    cost : dict
        CPU seconds of each test; one that takes far longer is given up, and has noticed the mutant.
    """

    def __init__(
        self,
        mutants: Callable[[], Iterator[tuple[Mutant, list[str]]]],
        report: Callable[[Mutant, str, str], None],
        source: Path,
        cost: dict[str, float],
    ) -> None:
        self.mutants, self.report, self.source, self.cost = mutants, report, source, cost
        self.failed: str | None = None
        self.sound: set[str] = set()
        self.unsound: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first test that fails, in a fork."""
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the mutants."""
        items = {item.nodeid: item for item in session.items}
        known: Known = {}
        for one in gc.get_objects():
            if type(one) is FunctionType:
                known.setdefault((one.__code__.co_filename, one.__code__.co_qualname), []).append(one)
        gc.freeze()  # forks share the memory of what is there
        for mutant, names in self.mutants():
            self.report(mutant, *self._fork(mutant, [items[name] for name in names if name in items], known))
        return True

    def _fork(self, mutant: Mutant, tests: list[pytest.Item], known: Known) -> tuple[str, str]:
        """Run tests in a fork; one that fails or waits for ever in any fork (polars) is left out from then on."""
        tests = [test for test in tests if test.nodeid not in self.unsound]
        outcome, by, place = self._try(mutant, tests, known)
        while outcome in ("stuck", "killed"):
            name = tests[place].nodeid
            if name in self.sound or self._try(None, tests[place : place + 1], known)[0] == "survived":
                self.sound.add(name)
                return "time" if outcome == "stuck" else outcome, by or name
            self.unsound.add(name)
            tests = tests[place + 1 :]
            outcome, by, place = self._try(mutant, tests, known)
        return outcome, by

    def _try(self, mutant: Mutant | None, tests: list[pytest.Item], known: Known) -> tuple[str, str, int]:
        """What comes of tests in a fork, the test that noticed, and the place of the last one that began."""
        source, target = os.pipe()
        place = mmap.mmap(-1, 4)
        child = os.fork()
        if not child:
            self._become_child(mutant, tests, known, target, place)
        os.close(target)
        waits = _wait(child, source)
        with os.fdopen(source) as stream:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            by = "" if waits else stream.read()
        _, status = os.waitpid(child, 0)
        at = int.from_bytes(place[:4], "little")
        if waits:
            return "stuck", "", at
        if os.WIFSIGNALED(status) and not by:
            return "time" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed", "signal", at
        code = by[:1]
        return {"0": "survived", "1": "killed"}.get(code, "not swapped"), by[1:], at

    def _become_child(
        self,
        mutant: Mutant | None,
        tests: list[pytest.Item],
        known: Known,
        target: int,
        place: mmap.mmap,
    ) -> None:
        said = "2"
        try:
            os.setpgid(0, 0)
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            if mutant is not None:
                swap(mutant, self.source / mutant.path, known)
            for at, (test, following) in enumerate(zip(tests, [*tests[1:], None], strict=True)):
                place[:4] = at.to_bytes(4, "little")
                limit = int(time.process_time() + 4.0 * self.cost.get(test.nodeid, 0.0) + 10.0)
                resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
                test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
                if self.failed is not None:
                    break
            said = "0" if self.failed is None else f"1{self.failed}"
        except BaseException as error:
            said = f"2{error!r}"
        finally:
            os.write(target, said.encode()[:4000])
            os._exit(0)


def _wait(child: int, source: int) -> bool:
    """Wait until a fork has said how it ended, or is gone; True if it and its processes sleep without end."""
    idle, before = 0, -1
    while not select.select([source], [], [], 0.5)[0]:
        states = [fields for fields in map(_state, Path("/proc").glob("[0-9]*/stat")) if fields[2:3] == [str(child)]]
        used = sum(int(fields[11]) + int(fields[12]) for fields in states)
        sleeps = all(fields[0] in "SZ" for fields in states)
        idle, before = idle + 1 if sleeps and used == before else 0, used  # counted: all may be frozen for a while
        if idle >= IDLE:
            return True
    return False


def _state(path: Path) -> list[str]:
    """What Linux says about a process, from its state on; nothing if it is gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def run_forked(files: list[str], forks: Forks) -> float:
    """Collect test files and run the mutants; returns the seconds that it took."""
    start = time.monotonic()
    quiet = ["-q", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", "not slow", "--no-header", "--no-summary"]
    without = [word for name in ("cacheprovider", "xdist", "faulthandler") for word in ("-p", f"no:{name}")]
    pytest.main([*quiet, *without, *files], plugins=[forks])
    return time.monotonic() - start
