"""Changes that no test can notice, because they never made a difference where they were executed.

    python -m benchmarks.infected --packages glm,nn tests/golden tests/unit/glm

Tests run once, on code that looks at the operands of each comparison, condition and extreme: ``a < b`` and ``a <= b``
differ only if the two were equal once, ``a and b`` and ``a or b`` only if one held without the other. What is printed
survives these tests for certain, for all mutants at once and the cost of one run: a list of what to test, or to
delete. Most comparisons of computed numbers are never equal, and equivalent in that sense.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import operator
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import reached
from benchmarks.mutant_tests import ROOT, SOURCE, environment, statement_lines
from benchmarks.mutators import COMPARE, NAMES, _walk

ORDER = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
EXTREMES = {name: other for name, other in NAMES.items() if name not in ("zeros", "ones")}
#: Places that were evaluated ("v"), and those where a change would have made a difference ("d").
seen: set[str] = set()


def _compared(key: str, name: str, a: Any, b: Any) -> Any:
    seen.add(f"{key} v")
    if name not in ("eq", "ne") and f"{key} d" not in seen:
        _note(key, lambda: bool(np.any(np.asarray(a == b))))
    return getattr(operator, name)(a, b)


def _joined(key: str, is_and: bool, *parts: Callable[[], Any]) -> Any:
    """The value of ``and`` or ``or``; what comes after the part that decides is evaluated for the note alone."""
    values: list[Any] = []
    for part in parts:
        values.append(part())
        if bool(values[-1]) != is_and:
            break
    if f"{key} d" not in seen:
        _note(key, lambda: _differs(values, is_and, parts))
    return values[-1]


def _differs(values: list[Any], is_and: bool, parts: tuple[Callable[[], Any], ...]) -> bool:
    for k, part in enumerate(parts):
        other = values[k] if k < len(values) else part()
        if bool(other) == is_and:
            break
    truths = isinstance(other, bool | np.bool_) and isinstance(values[-1], bool | np.bool_)
    return bool(other) != bool(values[-1]) or (other is not values[-1] and not truths)


def _called(key: str, owner: Any, name: str, /, *args: Any, **named: Any) -> Any:
    """A method or function such as ``any``, and a note if its counterpart gives another value."""
    if len(args) == 1 and hasattr(args[0], "__next__"):
        args = (list(args[0]),)
    kept = [np.array(one) for one in args[:2]] if "out" in named or len(args) > 2 else list(args)
    found = getattr(owner, name)(*args, **named)
    named.pop("out", None)
    if f"{key} d" not in seen:
        _note(key, lambda: not np.array_equal(found, getattr(owner, EXTREMES[name])(*kept, **named)))
    return found


def _note(key: str, differs: Callable[[], bool]) -> None:
    try:
        if not differs():
            return
    except Exception:  # the change would have failed
        pass
    seen.add(f"{key} d")


def _key(path: str, node: ast.expr) -> str:
    return f"{path}:{node.lineno}:{node.col_offset}:{node.end_lineno}:{node.end_col_offset}"


class Watch(ast.NodeTransformer):
    """Lets comparisons, conditions and extremes inside of functions pass through the functions above."""

    def __init__(self, path: str) -> None:
        self.path, self.depth = path, 0

    def _through(self, name: str, node: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> ast.expr:
        call = ast.Call(ast.Name(name, ast.Load()), [ast.Constant(_key(self.path, node)), *args], keywords)
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        node.body = [self.visit(part) for part in node.body]
        self.depth -= 1
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = None if node.value is None else self.visit(node.value)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.body = [self.visit(part) for part in node.body]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if not self.depth or len(node.ops) != 1 or type(node.ops[0]) not in ORDER:
            return node
        name = ast.Constant(ORDER[type(node.ops[0])])
        return self._through("__compared__", node, [name, node.left, node.comparators[0]], [])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        bound = any(isinstance(one, ast.NamedExpr) or getattr(one, "id", "") == "super" for one in ast.walk(node))
        self.generic_visit(node)
        if not self.depth or bound:
            return node
        none = ast.arguments([], [], None, [], [], None, [])
        parts: list[ast.expr] = [ast.Lambda(none, value) for value in node.values]
        return self._through("__joined__", node, [ast.Constant(isinstance(node.op, ast.And)), *parts], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if self.depth and isinstance(node.func, ast.Attribute) and node.func.attr in EXTREMES:
            words = [node.func.value, ast.Constant(node.func.attr)]
        elif self.depth and isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "any", "all"):
            words = [ast.Name("__builtins_module__", ast.Load()), ast.Constant(node.func.id)]
        else:
            return node
        return self._through("__called__", node, [*words, *node.args], node.keywords)


if "INFECTED" in os.environ:
    vars(builtins).update(__compared__=_compared, __joined__=_joined, __called__=_called, __builtins_module__=builtins)
    reached.WATCHES.append(Watch)


def pytest_sessionfinish() -> None:
    """Write what was seen."""
    Path(os.environ["INFECTED"]).write_text(json.dumps(sorted(seen)))


def uninfected(packages: list[str], noted: set[str], lines: dict[str, int]) -> Iterator[str]:
    """Changes that made no difference, each with its place and the reason; `lines` has a bit for each line executed."""
    for path in (path for name in packages for path in sorted((SOURCE / name).rglob("*.py"))):
        text, place = path.read_text(), str(path.relative_to(SOURCE))
        starts = np.cumsum([0, *map(len, text.splitlines(keepends=True))])
        for node, function, new in _walk(ast.parse(text), ""):
            own = statement_lines(text, int(starts[node.lineno - 1]) + node.col_offset) if function else []
            why = _why(node, new, _key(place, node), noted) if own else ""  # type: ignore[arg-type]
            if own and not any(lines.get(place, 0) >> line & 1 for line in own):
                why = "not executed"
            if why:
                old = " ".join((ast.get_source_segment(text, node) or "").split())
                yield f"{place}:{node.lineno} [{function}] {why}: {old[:90]}  ->  {' '.join(new.split())[:60]}"


def _why(node: ast.expr | ast.stmt, new: str, key: str, noted: set[str]) -> str:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in ORDER and len(node.ops) == 1:
        if f"{key} v" not in noted:
            return "never evaluated"
        changed = ast.parse(new, mode="eval").body
        equal = isinstance(changed, ast.Compare) and type(changed.ops[0]) is COMPARE[type(node.ops[0])][0]
        ordered = ORDER[type(node.ops[0])] not in ("eq", "ne")
        return "never equal" if equal and ordered and f"{key} d" not in noted else ""
    bound = any(isinstance(one, ast.NamedExpr) for one in ast.walk(node))
    if isinstance(node, ast.BoolOp) and not bound and f"{key} d" not in noted:
        return "never one without the other"
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        other = EXTREMES.get(called)
        if other and f"{other}(" in new.split(f"{called}(")[0] and f"{key} d" not in noted:
            return f"never other than {other}"
    return ""


def main() -> int:
    """Run tests once, and print what they cannot notice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=lambda text: text.split(","), required=True)
    parser.add_argument("tests", nargs="+")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = {"REACHED": f"{folder}/reached", "INFECTED": f"{folder}/infected"}
        words = ["-q", "-p", "benchmarks.reached", "-p", "benchmarks.infected", "-m", "not slow"]
        words += ["-p", "no:cacheprovider", "-p", "no:xdist", *asked.tests]
        subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment(ROOT) | files, check=False)
        noted = set(json.loads(Path(files["INFECTED"]).read_text()))
        lines: dict[str, int] = {}
        for test in map(json.loads, Path(files["REACHED"]).read_text().splitlines()):
            for path, mask in test["lines"].items():
                lines[path] = lines.get(path, 0) | int(mask, 16)
    for found in uninfected(asked.packages, noted, lines):
        print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
