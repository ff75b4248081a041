"""Which expressions a formula may contain: formulaic evaluates them as Python, so that all others are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError, excerpt

#: Longest formula, and longest expression within one, in characters.
MAX_LENGTH = 20_000
#: Largest power, of terms or of a value.
MAX_POWER = 20
_NUMPY = frozenset({"clip", "where", "pi", "e"})
_CONTRASTS = frozenset({"SAS", "diff", "helmert", "poly", "sum", "treatment"})
_PLAIN = (
    ast.Expression,
    ast.Load,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.Name,
    ast.List,
    ast.Tuple,
)


class SavedFormula(str):
    """A formula that was read from a model file: it names what a model was fitted with, and is never evaluated."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> SavedFormula:
        """Stay what it is when an estimator is cloned."""
        return self


def check_text(text: str) -> None:
    """Refuse formulas that are not to be evaluated, or whose terms could not be written down."""
    if isinstance(text, SavedFormula):
        raise InputError(
            f"The formula {excerpt(text)!r} comes from a model file and is not evaluated: read it, then set it again "
            "with set_params()."
        )
    if len(text) > MAX_LENGTH:
        raise InputError(f"The formula has {len(text)} characters: write at most {MAX_LENGTH}.")
    for power in re.findall(r"(?:\*\*|\^)\s*\(*\s*(\d+)", text):
        if len(power) > 9 or int(power) > MAX_POWER:
            raise InputError(f"The formula {excerpt(text)!r} has a power above {MAX_POWER}: use a smaller one.")


def read_expression(expression: str) -> tuple[ast.Expression, dict[str, str]]:
    """The syntax tree of an expression, and its quoted names by what stands for them there."""
    quoted = {f"__quoted{i}": name for i, name in enumerate(re.findall("`([^`]+)`", expression))}
    for stand_in, name in quoted.items():
        expression = expression.replace(f"`{name}`", stand_in)
    return ast.parse(expression.strip(), mode="eval"), quoted


def check_expression(text: str, expression: str, columns: Collection[str], functions: Collection[str]) -> None:
    """Refuse what is not arithmetic, a known function of columns, or a literal argument of one.

    Parameters
    ----------
    text : str
        The formula, for the message.
    expression : str
        The part of it that would be evaluated.
    columns, functions : collection of str
        Columns of the table, and functions that formulaic provides.

    Examples
    --------
    >>> check_expression("~ log(age)", "log(age)", ["age"], ["log"])
    >>> check_expression("~ I(open('a'))", "I(open('a'))", ["age"], ["I"])
    Traceback (most recent call last):
    ...
    setsquare.errors.InputError: The formula "~ I(open('a'))" uses open, which formulas may not: only arithmetic and ...
    """
    tree, quoted = read_expression(expression)
    called = {name for name in functions if name not in columns}
    for node in ast.walk(tree):
        if not _is_allowed(node, called, set(columns) | set(quoted)):
            found = excerpt(ast.unparse(node.func if isinstance(node, ast.Call) else node), 40)
            raise InputError(
                f"The formula {excerpt(text)!r} uses {found}, which formulas may not: only arithmetic and functions of "
                "formulaic, such as bs, poly, log, C and np.sqrt, are evaluated."
            )


def check_values(text: str, matrix: Array, names: Sequence[str]) -> None:
    """Refuse columns (n, k) of a formula that are not finite."""
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=0))
    if len(bad):
        raise InputError(
            f"The formula {excerpt(text)!r} gives values that are not finite in the column {names[bad[0]]!r}."
        )


def _is_allowed(node: ast.AST, functions: set[str], columns: set[str]) -> bool:
    check = _CHECKS.get(type(node))
    if check is not None:
        return check(node, functions, columns)
    if isinstance(node, ast.Name):
        return node.id in columns or not node.id.startswith("_")  # other names are refused as unknown columns
    return isinstance(node, _PLAIN)


def _is_known_call(node: Any, functions: set[str], _: set[str]) -> bool:
    if any(word.arg is None or word.arg.startswith("_") for word in node.keywords):
        return False
    return isinstance(node.func, ast.Attribute) or (isinstance(node.func, ast.Name) and node.func.id in functions)


def _is_known_attribute(node: Any, functions: set[str], _: set[str]) -> bool:
    if not isinstance(node.value, ast.Name) or node.value.id not in functions:
        return False
    if node.value.id == "contr":
        return node.attr in _CONTRASTS
    return node.value.id == "np" and (node.attr in _NUMPY or isinstance(getattr(np, node.attr, None), np.ufunc))


def _is_plain_constant(node: Any, *_: set[str]) -> bool:
    if isinstance(node.value, str):  # formulaic writes the calls with these texts into code of its own
        return not set(node.value) & set("\"'\\") and node.value.isprintable() and len(node.value) <= 1000
    return isinstance(node.value, int | float) or node.value is None


def _is_small_power(node: Any, *_: set[str]) -> bool:
    """Whether this is no power, or that of a value with a small exponent; powers of constants can fill the memory."""
    if isinstance(node.op, ast.Pow):
        has_column = any(isinstance(part, ast.Name) for part in ast.walk(node.left))
        exponent = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
        return has_column and isinstance(exponent, ast.Constant) and isinstance(exponent.value, int | float)
    texts = (node.left, node.right)
    return not any(isinstance(side, ast.List | ast.Tuple) for side in texts) and not any(
        isinstance(side, ast.Constant) and isinstance(side.value, str) for side in texts
    )


_CHECKS: dict[type[ast.AST], Callable[..., bool]] = {
    ast.Call: _is_known_call,
    ast.Attribute: _is_known_attribute,
    ast.Constant: _is_plain_constant,
    ast.BinOp: _is_small_power,
    ast.keyword: lambda *_: True,
}
