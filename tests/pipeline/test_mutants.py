"""The mutation tester: its changes are valid and small, and a mutant meets the tests that reach it."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path
from typing import Any

from benchmarks.mutants import ROOT, WIDE, nearest, sample
from benchmarks.mutators import mutants
from benchmarks.swapped import holder, swap

SOURCE = '''"""Doc 1."""
from a import b

LIMIT: int = 3


def f(x: int = 0, *, deep: bool = False) -> bool:
    """Doc 2."""
    if x < 1 and not deep:
        raise ValueError(f"{x + 1} is {2}")
    warn("é" + str(4), stacklevel=5)
    total = max(zip(x, x, strict=True), key=g) if x else -x
    total += x @ total
    return b(total, start=x == 7)
'''


def test_changes_are_small_and_leave_messages_and_annotations_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(SOURCE)
    found = mutants(path, tmp_path)
    for mutant in found:
        ast.parse(mutant.source(SOURCE))
        assert mutant.source(SOURCE) != SOURCE and mutant.path == "a.py"
    changes = {(mutant.line, mutant.old, mutant.new) for mutant in found}
    assert {
        (4, "3", "(4)"),
        (7, "0", "(1)"),
        (7, "False", "(True)"),
        (9, "x < 1", "(x <= 1)"),
        (9, "x < 1", "(x >= 1)"),
    } <= changes
    assert {(9, "not deep", "(deep)"), (12, "-x", "(x)"), (13, "total += x @ total", "pass")} <= changes
    assert (14, "b(total, start=x == 7)", "(b(total))") in changes and (14, "x == 7", "(x != 7)") in changes
    assert any(line == 10 and new == "pass" for line, _, new in changes)  # the guard, but not its words
    assert not {line for line, _, _ in changes} & {1, 2, 8, 11} and sum(line == 10 for line, _, _ in changes) == 1
    assert {mutant.function for mutant in found if mutant.line > 6} == {"f"}


def test_a_sample_can_be_repeated_and_holds_every_package() -> None:
    drawn = sample(16, 5)
    assert [mutant.name for mutant in sample(16, 5)] == [mutant.name for mutant in drawn]
    assert len({mutant.path.split("/")[0] for mutant in drawn}) == 8
    for mutant in drawn:
        ast.parse(mutant.source((ROOT / "src/setsquare" / mutant.path).read_text()))


def test_a_mutant_meets_the_tests_that_enter_its_function_nearest_first() -> None:
    (mutant,) = sample(1, 0)
    place, stem = f"{mutant.path}:{mutant.function}", Path(mutant.path).stem

    def test(name: str, seconds: float, reached: str) -> dict[str, Any]:
        return {"test": name, "seconds": seconds, "names": {reached}, "paths": {reached.split(":")[0]}}

    tests = [
        test("tests/unit/cli/test_far.py::test_a", 0.01, place),
        test(f"tests/unit/families/test_{stem}.py::test_b[1]", 0.2, place),
        test(f"tests/unit/families/test_{stem}.py::test_c", 100.0, place),
        test("tests/unit/families/test_other.py::test_d", 0.01, "rows/blocks.py:other"),
    ]
    near = nearest(mutant, tests, WIDE, wider=False)
    assert near == [f"tests/unit/families/test_{stem}.py::test_b[1]", "tests/unit/cli/test_far.py::test_a"]
    assert nearest(mutant, tests, (200.0, 9), wider=True) == [f"tests/unit/families/test_{stem}.py::test_c"]


def test_a_function_is_swapped_in_its_process_and_what_stands_outside_is_not(tmp_path: Path) -> None:
    text = "LIMIT = 3\n\n\nclass A:\n    size = 4\n\n    def f(self, x: int = 1) -> int:\n"
    text += "        return [x + LIMIT for _ in range(1)][0]\n"
    path = tmp_path / "a.py"
    path.write_text(text)
    scope: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), scope)
    known = {(str(path), "A.f"): [scope["A"].f]}
    results = set()
    for mutant in mutants(path, tmp_path):
        held = holder(text, mutant.start)
        assert (held is None) is (mutant.line < 7) and (held is None or held[0] == "A.f")
        if held is not None:
            swap(mutant, path, known)
            with contextlib.suppress(IndexError):
                results.add((mutant.new, scope["A"]().f()))
    assert {("(x - LIMIT)", -2), ("(2)", 5), ("(0)", 3)} <= results
