"""Learned formulas as plain data: a file can hold them, and computing their columns evaluates no text.

A program is a tuple of terms, a term a tuple of factors, and a factor a nested tuple that starts with the name of an
operation. Formulas with other functions than these have no program.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.errors import InputError
from setsquare.tables.formula_check import read_expression

Node: TypeAlias = tuple[Any, ...]
Program: TypeAlias = tuple[tuple[Node, ...], ...]

#: Element-wise functions of one number that a program may apply.
FUNCTIONS: tuple[str, ...] = (
    "log",
    "log10",
    "log2",
    "log1p",
    "exp",
    "exp2",
    "expm1",
    "sqrt",
    "cbrt",
    "abs",
    "square",
    "sign",
)
FUNCTIONS += ("sin", "cos", "tan", "tanh", "floor", "ceil")
ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "**": np.power,
}
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
#: Deepest nesting, and most numbers of a spline or of a matrix of contrasts.
DEEPEST, MOST = 40, 1_000_000


class _NoProgramError(Exception):
    """A part of a formula that programs do not have."""


def compile_spec(spec: Any, numbers: Sequence[str], levels: Mapping[str, int]) -> Program | None:
    """The program of a formula that formulaic has fitted; None where it has other functions.

    `numbers` are names of numeric variables, `levels` the numbers of levels of the others.
    """
    try:
        terms = []
        for part in spec.structure[1:]:  # without the intercept
            for scoped in part.scoped_terms:
                if scoped.scale != 1:
                    return None
                terms.append(tuple(_factor(f, spec, numbers, levels) for f in scoped.factors))
        program = tuple(terms)
        check_program(program, numbers, levels)
    except (_NoProgramError, InputError, LookupError, TypeError, AttributeError, ValueError, SyntaxError):
        return None
    return program


def _factor(scoped: Any, spec: Any, numbers: Sequence[str], levels: Mapping[str, int]) -> Node:
    expression = scoped.factor.factor.expr
    kind, state = spec.encoder_state[expression]
    if kind.value == "categorical":
        name = expression if expression in levels else _name_in_call(expression)
        coding = state["contrasts"].get_coding_matrix(reduced_rank=scoped.reduced, sparse=False)
        rows = tuple(tuple(map(float, row)) for row in np.asarray(coding))
        if len(rows) != levels[name]:
            raise _NoProgramError
        return ("levels", name, rows)
    if scoped.factor.factor.eval_method.value != "python":
        return ("column", expression) if expression in numbers else _refuse()
    tree, quoted = read_expression(expression)
    if quoted:
        raise _NoProgramError
    return _node(tree.body, spec.transform_state, numbers)


def _name_in_call(expression: str) -> str:
    call = read_expression(expression)[0].body
    if isinstance(call, ast.Call) and isinstance(call.args[0], ast.Name):
        return call.args[0].id
    raise _NoProgramError


def _node(node: ast.expr, states: Mapping[str, Any], numbers: Sequence[str]) -> Node:
    if isinstance(node, ast.Name) and node.id in numbers:
        return ("column", node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return ("number", float(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return ("-", ("number", 0.0), _node(node.operand, states, numbers))
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        sides = (_node(side, states, numbers) for side in (node.left, node.right))
        return (_SIGNS[type(node.op)], *sides)
    if isinstance(node, ast.Call) and node.args:
        return _call(node, states, _node(node.args[0], states, numbers))
    raise _NoProgramError


def _call(node: ast.Call, states: Mapping[str, Any], inner: Node) -> Node:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    state = states.get(ast.unparse(node), {})
    if name == "I" and len(node.args) == 1:
        return inner
    if name in FUNCTIONS and len(node.args) == 1 and not node.keywords:
        return (name, inner)
    if name in ("center", "scale"):
        centre, scale = (state[key] if state[key] is not None else default for key, default in _SCALED)
        return ("scaled", inner, float(centre), float(scale))
    if name == "poly":
        alpha, norms = ([float(state[key][i]) for i in range(len(state[key]))] for key in ("alpha", "norms2"))
        return ("poly", inner, tuple(alpha), tuple(norms)) if len(node.args) == 2 and not node.keywords else _refuse()
    if name == "bs" and {word.arg for word in node.keywords} <= {"df", "degree"}:
        degree = next((word.value for word in node.keywords if word.arg == "degree"), ast.Constant(3))
        return ("spline", inner, tuple(map(float, state["knots"])), int(ast.literal_eval(degree)))
    raise _NoProgramError


_SCALED = (("center", 0.0), ("scale", 1.0))


def _refuse() -> Node:
    raise _NoProgramError


def width_of(node: Node) -> int:
    """Number of columns of a factor."""
    if node[0] == "levels":
        return len(node[2][0])
    if node[0] == "poly":
        return len(node[2])
    return len(node[2]) - node[3] - 2 if node[0] == "spline" else 1


def check_program(program: Any, numbers: Sequence[str], levels: Mapping[str, int]) -> int:
    """Refuse a program that is damaged; the number of its columns otherwise."""
    _require(isinstance(program, tuple) and all(isinstance(term, tuple) and term for term in program))
    for term in program:
        for node in term:
            _check(node, numbers, levels, DEEPEST)
    return sum(math.prod(map(width_of, term)) for term in program)


def _check(node: Any, numbers: Sequence[str], levels: Mapping[str, int], depth: int) -> None:
    _require(depth > 0 and isinstance(node, tuple) and len(node) > 1 and isinstance(node[0], str))
    name, *parts = node
    if name == "column":
        _require(len(parts) == 1 and parts[0] in numbers)
    elif name == "number":
        _require(_are_numbers(parts, 1))
    elif name == "levels":
        _require(len(parts) == 2 and isinstance(parts[1], tuple) and levels.get(parts[0]) == len(parts[1]) > 0)
        width = len(parts[1][0])
        _require(0 < width * len(parts[1]) <= MOST and all(_are_numbers(row, width) for row in parts[1]))
    elif name in ARITHMETIC:
        _require(len(parts) == 2)
        for part in parts:
            _check(part, numbers, levels, depth - 1)
            _require(width_of(part) == 1 and part[0] != "levels")
    else:
        _require(name in FUNCTIONS or name in ("scaled", "poly", "spline"))
        _check(parts[0], numbers, levels, depth - 1)
        _require(width_of(parts[0]) == 1 and parts[0][0] != "levels")
        _check_state(name, parts[1:])


def _check_state(name: str, state: list[Any]) -> None:
    if name in FUNCTIONS:
        _require(not state)
    elif name == "scaled":
        _require(_are_numbers(state, 2) and state[1] != 0.0)
    elif name == "poly":
        _require(len(state) == 2 and isinstance(state[0], tuple) and 0 < len(state[0]) <= 100)
        _require(_are_numbers(state[0], len(state[0])) and _are_numbers(state[1], len(state[0]) + 1))
        _require(min(state[1]) > 0.0)
    else:
        _require(len(state) == 2 and type(state[1]) is int and 0 <= state[1] <= 10 and isinstance(state[0], tuple))
        _require(state[1] + 2 < len(state[0]) <= 10_000 and _are_numbers(state[0], len(state[0])))
        _require(list(state[0]) == sorted(state[0]) and state[0][state[1]] < state[0][-state[1] - 1])


def _are_numbers(values: Any, count: int) -> bool:
    is_list = isinstance(values, tuple | list) and len(values) == count
    return is_list and all(type(value) in (int, float) and math.isfinite(value) for value in values)


def _require(holds: bool) -> None:
    if not holds:
        raise InputError("has a formula that does not fit together: save the model again")


def run_program(program: Program, numbers: Mapping[str, Array], codes: Mapping[str, IntArray], out: Array) -> None:
    """Fill `out` (n, k) with the columns of a program, from values and codes (n,) of its variables."""
    start = 0
    with np.errstate(all="ignore"):
        for term in program:
            columns = np.ones((len(out), 1))
            for node in term:  # the first factor varies fastest, as formulaic has it
                made = _columns(node, numbers, codes)
                columns = (columns[:, None, :] * made[:, :, None]).reshape(len(out), -1)
            out[:, start : start + columns.shape[1]] = columns
            start += columns.shape[1]


def _columns(node: Node, numbers: Mapping[str, Array], codes: Mapping[str, IntArray]) -> Array:
    """Columns (n, k) of a factor."""
    if node[0] == "levels":
        return np.asarray(node[2], dtype=np.float64)[codes[node[1]]]
    if node[0] == "poly":
        return _poly(_values(node[1], numbers), *node[2:])
    if node[0] == "spline":
        return _spline(_values(node[1], numbers), *node[2:])
    return _values(node, numbers)[:, None]


def _values(node: Node, numbers: Mapping[str, Array]) -> Array:
    """Values (n,) of a factor with one column."""
    name = node[0]
    if name == "column":
        return numbers[node[1]]
    if name == "number":
        return np.full(len(next(iter(numbers.values()))), node[1])
    if name in ARITHMETIC:
        return ARITHMETIC[name](_values(node[1], numbers), _values(node[2], numbers))
    if name == "scaled":
        return np.asarray((_values(node[1], numbers) - node[2]) / node[3])
    if name in ("poly", "spline"):
        return np.asarray(_columns(node, numbers, {})[:, 0])
    return np.asarray(getattr(np, name)(_values(node[1], numbers)))


def _poly(x: Array, alpha: tuple[float, ...], norms: tuple[float, ...]) -> Array:
    """Orthogonal polynomials by their three-term recurrence."""
    columns = [np.ones_like(x), x - alpha[0]]
    for i in range(1, len(alpha)):
        columns.append((x - alpha[i]) * columns[i] - norms[i] / norms[i - 1] * columns[i - 1])
    return np.column_stack([column / math.sqrt(norm) for column, norm in zip(columns[1:], norms[1:], strict=True)])


def _spline(x: Array, knots: tuple[float, ...], degree: int) -> Array:
    """B-splines without the first, which the intercept stands for."""
    from scipy.interpolate import BSpline

    t = np.asarray(knots)
    low, high = t[degree], t[-degree - 1]
    if ((x < low) | (x > high)).any():
        raise InputError(f"Values outside the range of the spline, {low:g} to {high:g}: leave out those rows.")
    return np.asarray(BSpline(t, np.eye(len(t) - degree - 1), degree)(x))[:, 1:]
