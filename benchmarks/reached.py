"""Pytest plugin: which functions of the package each test enters, and the CPU time that it takes.

Used by ``benchmarks.mutants``; the variable ``REACHED`` names the file of JSON lines that is written.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

#: Functions entered since the last test began, by identity: code objects are slow to hash.
_entered: dict[int, CodeType] = {}
#: Functions entered while fixtures of each file were set up; they serve all tests of the file.
_shared: dict[str, set[str]] = {}
_found: dict[str, tuple[float, set[str]]] = {}
_failed: set[str] = set()


def _trace(frame: FrameType, event: str, argument: Any) -> None:
    code = frame.f_code
    if id(code) not in _entered:
        _entered[id(code)] = code


def _names() -> set[str]:
    """Functions of the package among those entered, as ``path:function``."""
    found = set()
    for code in list(_entered.values()):
        _, package, path = code.co_filename.rpartition("/src/setsquare/")
        if package:
            found.add(f"{path}:{code.co_qualname.replace('.<locals>', '')}")
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace a test with its fixtures."""
    _entered.clear()
    start = time.process_time()
    threading.settrace(_trace)
    sys.settrace(_trace)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        _found[item.nodeid] = (time.process_time() - start, _names())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Note what fixtures enter."""
    try:
        return (yield)
    finally:
        _shared.setdefault(item.nodeid.split("::")[0], set()).update(_names())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note tests that do not pass as they are: they say nothing about a mutant."""
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write one line per test."""
    with Path(os.environ["REACHED"]).open("a") as stream:
        for name, (seconds, names) in _found.items():
            if name not in _failed:
                all_names = sorted(names | _shared.get(name.split("::")[0], set()))
                stream.write(json.dumps({"test": name, "seconds": round(seconds, 3), "reached": all_names}) + "\n")
