"""Small changes of a source file, each of which a test should notice.

A mutant is a stretch of text and what stands there instead, so that comments and line numbers stay. Annotations,
docstrings, decorators and the wording of errors and warnings are left alone, as are words that change nothing
that a test could see (``strict=`` of ``zip``, ``stacklevel=``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
NAMES |= {"argmin": "argmax", "argmax": "argmin", "zeros": "ones", "ones": "zeros", "floor": "ceil", "ceil": "floor"}
#: Keywords whose value no test can see, and calls that only make messages.
QUIET_WORDS = {"strict", "stacklevel", "slots", "frozen", "repr"}
QUIET_CALLS = {"warn", "excerpt", "cast", "TypeVar", "getLogger"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file: the text from `start` to `end` (in characters) becomes `new`."""

    path: str
    line: int
    function: str
    start: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """The place, and the change in one line."""
        old, new = (" ".join(text.split())[:90] for text in (self.old, self.new))
        return f"{self.path}:{self.line}: {old}  ->  {new}"

    def source(self, text: str) -> str:
        """The file with the change."""
        return text[: self.start] + self.new + text[self.end :]


def mutants(path: Path, root: Path) -> list[Mutant]:
    """Every mutant of a file, in the order of its text."""
    text = path.read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def place(row: int, column: int) -> int:
        """Position in characters; ast counts columns in bytes."""
        return starts[row - 1] + len(lines[row - 1].encode()[:column].decode())

    found = []
    for node, function, new in _walk(ast.parse(text), ""):
        start, end = place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0)
        found.append(Mutant(str(path.relative_to(root)), node.lineno, function, start, end, text[start:end], new))
    return found


def _walk(node: ast.AST, function: str) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Changed nodes below `node`, each with the function that holds it and its new text."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}" if function else node.name
    if isinstance(node, ast.expr | ast.stmt):
        for new in _changes(node):
            yield node, function, new
    for child in _children(node):
        yield from _walk(child, function)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that may change."""
    skipped: list[ast.AST | None] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        skipped = [node.returns, *node.decorator_list]
    elif isinstance(node, ast.ClassDef):
        skipped = [*node.decorator_list, *node.bases]
    elif isinstance(node, ast.AnnAssign):
        skipped = [node.annotation]
    elif _is_quiet(node):
        return
    for child in ast.iter_child_nodes(node):
        if child in skipped or (isinstance(child, ast.keyword) and child.arg in QUIET_WORDS):
            continue
        if isinstance(child, ast.arg):
            continue  # its annotation
        yield child


def _is_quiet(node: ast.AST) -> bool:
    """Whether nothing below a node can change what a test sees, but for its words."""
    if isinstance(node, ast.Call):
        return _called(node) in QUIET_CALLS
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _changes(node: ast.expr | ast.stmt) -> Iterator[str]:
    """Texts that may stand in the place of a node."""
    if isinstance(node, ast.expr):
        yield from (f"({ast.unparse(new)})" for new in _expressions(node))
    elif isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Call) and not _is_quiet(node.value):
            yield "pass"
    elif isinstance(node, ast.Raise | ast.AugAssign | ast.Continue | ast.Break):
        yield "pass"


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for op in COMPARE[type(node.ops[0])]:
            yield ast.Compare(node.left, [op()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in BINARY and not _is_text(node):
        yield ast.BinOp(node.left, BINARY[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant):
        yield from _constants(node.value)
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(getattr(side, "value", None), str) or isinstance(side, ast.JoinedStr) for side in sides)


def _constants(value: object) -> Iterator[ast.expr]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1 if isinstance(value, int) or value == 0.0 else value * 2.0)
        if value == 1:
            yield ast.Constant(type(value)(0))


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    name = _called(node)
    if name in NAMES:
        function = node.func
        other: ast.expr = ast.Name(NAMES[name], ast.Load())
        if isinstance(function, ast.Attribute):
            other = ast.Attribute(function.value, NAMES[name], ast.Load())
        yield ast.Call(other, node.args, node.keywords)
    for word in node.keywords:
        if word.arg and word.arg not in QUIET_WORDS and name not in QUIET_CALLS:
            yield ast.Call(node.func, node.args, [other for other in node.keywords if other is not word])
