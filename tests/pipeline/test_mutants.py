"""The mutation tester: its changes are valid and small, and a mutant meets the tests that reach it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import infected
from benchmarks.mutant_tests import ROOT, SOURCE, nearest, statement_lines
from benchmarks.mutants import meet, sample
from benchmarks.mutators import Mutant, mutants
from benchmarks.swapped import holder, swap

TEXT = '''"""Doc 1."""
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
    path.write_text(TEXT)
    found = mutants(path, tmp_path)
    for mutant in found:
        ast.parse(mutant.source(TEXT))
        assert mutant.source(TEXT) != TEXT and mutant.path == "a.py"
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
        ast.parse(mutant.source((SOURCE / mutant.path).read_text()))


def test_a_mutant_meets_the_tests_that_execute_its_statement_nearest_first() -> None:
    (mutant,) = sample(1, 0)
    (line, *_) = statement_lines((SOURCE / mutant.path).read_text(), mutant.start)
    stem = Path(mutant.path).stem

    def test(name: str, seconds: float, path: str, line: int) -> dict[str, Any]:
        return {"test": name, "seconds": seconds, "lines": {path: 1 << line}}

    tests = [
        test("tests/unit/cli/test_far.py::test_a", 0.01, mutant.path, line),
        test(f"tests/unit/families/test_{stem}.py::test_b[1]", 0.1, mutant.path, line),
        test(f"tests/unit/families/test_{stem}.py::test_c", 50.0, mutant.path, line),
        test("tests/unit/families/test_other.py::test_d", 0.01, mutant.path, line + 1000),
        test("tests/unit/families/test_other.py::test_e", 0.01, "rows/blocks.py", line),
    ]
    near, rest = [f"tests/unit/families/test_{stem}.py::test_b[1]", "tests/unit/cli/test_far.py::test_a"], tests[2]
    assert nearest(mutant, tests, wider=False) == (near, False)
    assert nearest(mutant, tests, wider=True) == ([rest["test"]], True)
    assert nearest(mutant, tests[:2], wider=False) == (near, True)


def test_defaults_and_constants_meet_the_tests_that_read_them() -> None:
    reader = {"test": "tests/golden/test_interface.py::test_public[nn]", "seconds": 0.1, "lines": {}}
    other = {"test": "tests/golden/test_interface.py::test_public[glm]", "seconds": 0.1, "lines": {}}
    text = (SOURCE / "nn/audit.py").read_text()
    places = {words: text.index(words) for words in ("batch_dim: int = 0", "n_permutations: int = 4", "    return ")}
    for words, start in places.items():
        place = start + len(words) - 1
        mutant = Mutant("nn/audit.py", text[:place].count("\n") + 1, "", place, place + 1, "", "")
        assert nearest(mutant, [reader, other], wider=False)[0] == (
            [] if words.strip() == "return" else [reader["test"]]
        )


def test_what_stands_outside_of_functions_is_changed_in_a_copy(tmp_path: Path) -> None:
    source = tmp_path / "src/setsquare"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("LIMIT = 3\n\n\ndef f():\n    return LIMIT\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text(
        "import setsquare\nimport pytest\n\n"
        "def test_a():\n    assert setsquare.f() in (3, 4)\n\ndef test_b():\n    assert 0\n\n"
        "@pytest.mark.parametrize('word', ['a - b'])\ndef test_c(word):\n    assert setsquare.f() == 3\n"
    )
    (mutant,) = mutants(source / "__init__.py", source)
    rows = [{"test": f"test_a.py::test_{name}", "seconds": 0.1, "lines": {"__init__.py": 1}} for name in ("a", "b")]
    found = meet(mutant, tmp_path, rows, wider=False)
    assert (found["outcome"], found["tests"], found["all"]) == ("survived", 2, True)
    rows += [{"test": "test_a.py::test_c[a - b]", "seconds": 0.2, "lines": {"__init__.py": 1}}]
    assert meet(mutant, tmp_path, rows, wider=False)["outcome"] == "killed"
    assert "LIMIT = 3" in (source / "__init__.py").read_text()


def test_the_statement_of_a_position() -> None:
    text = "A = 1\n\n\nclass B:\n    size = 2\n\n    def f(self, x=3):\n        if x:\n            y = (\n"
    text += "                4)\n        else:\n            y = [5 for _ in x]\n        return y\n"
    lines = {digit: statement_lines(text, text.index(digit)) for digit in "12345"}
    assert lines["1"] == lines["2"] == [] and sorted(lines["3"]) == [8, 9, 12, 13]
    assert lines["4"] == [9] and lines["5"] == [12]


def test_statements_that_a_test_executes_are_noted(tmp_path: Path) -> None:
    (tmp_path / "setsquare").mkdir()
    (tmp_path / "setsquare/__init__.py").write_text(
        'def f(x):\n    """Doc."""\n    if x:\n        return 1\n    return 2\n'
    )
    (tmp_path / "test_a.py").write_text(
        "import pytest\nimport setsquare\n\n@pytest.fixture(scope='module')\ndef two():\n    return setsquare.f(0)\n\n"
        "def test_a():\n    assert setsquare.f(1) == 1 and setsquare.f.__doc__\n\n"
        "def test_b(two):\n    assert two == 2\n\ndef test_c(two):\n    assert two == 2\n\ndef test_d():\n    1/0\n"
    )
    output = tmp_path / "reached.jsonl"
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "REACHED": str(output)}
    words = ["-q", "-p", "benchmarks.reached", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull]
    subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        check=False,
    )
    found = {row["test"].split("::")[1]: row["lines"] for row in map(json.loads, output.read_text().splitlines())}
    one, two = ({"__init__.py": f"{(1 << 3) | 1 << line:x}"} for line in (4, 5))
    assert found == {"test_a": one, "test_b": two, "test_c": two}


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


WATCHED = "def f(a, b):\n    return max(a, b) if a < b and b > 0 else all(one > 1 for one in (a, b))\n"


def test_changes_that_never_made_a_difference_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"__compared__": infected._compared, "__joined__": infected._joined, "__called__": infected._called}
    scope, plain = names | {"__builtins_module__": builtins}, dict[str, Any]()
    exec(compile(infected.Watch("a.py").visit(ast.parse(WATCHED)), "a.py", "exec"), scope)
    exec(WATCHED, plain)
    line = WATCHED.splitlines()[1]

    def noted(a: int, b: int) -> set[str]:
        """What would have been other with a change, in a call that gives what the code itself gives."""
        monkeypatch.setattr(infected, "seen", set())
        assert scope["f"](a, b) == plain["f"](a, b)
        places = [one.partition(" ")[0].split(":") for one in infected.seen if one.endswith(" d")]
        return {line[int(place[2]) : int(place[4])] for place in places}

    assert noted(1, 2) == {"max(a, b)"}
    assert noted(2, 2) == {"a < b", "a < b and b > 0"}
    assert noted(2, 1) == {"a < b and b > 0", "all(one > 1 for one in (a, b))", "one > 1"}
    assert noted(-1, 0) == {"a < b and b > 0", "b > 0"}
