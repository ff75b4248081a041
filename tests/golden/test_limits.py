"""Golden limits: every constant of a module, such as a tolerance, the size of a block or the most iterations.

Most were chosen by measurements (docs/benchmarks.md), so that a change of one should be meant. What the code
makes of them is tested elsewhere.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

import pytest

PACKAGES = ("auditing", "estimators", "families", "glm", "nn", "projection", "rows", "storage", "tables")


def modules(package: str) -> list[ModuleType]:
    root = importlib.import_module(f"setsquare.{package}")
    names = [found.name for found in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")]
    return [root, *(importlib.import_module(name) for name in names)]


def numbers(value: Any) -> list[Any]:
    """Numbers in a value, and None for each part that is neither a number nor a word."""
    if isinstance(value, dict):
        return [number for pair in value.items() for part in pair for number in numbers(part)]
    if isinstance(value, tuple | list | set | frozenset):
        return [number for part in value for number in numbers(part)]
    if isinstance(value, str | bool):
        return []
    return [value if isinstance(value, int | float) else None]


def is_limit(value: Any) -> bool:
    """Whether a value consists of numbers, and perhaps words beside them."""
    found = numbers(value)
    return bool(found) and None not in found


def shown(value: Any) -> str:
    """A value as text, in a fixed order and with all digits."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(shown, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{shown(key)}: {shown(one)}' for key, one in value.items())}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(shown, value))})"
    return repr(value)


@pytest.mark.parametrize("package", PACKAGES)
def test_limits(golden, package):
    if package == "nn":
        pytest.importorskip("torch")
    found = {}
    for module in modules(package):
        own = {name: value for name, value in vars(module).items() if name.strip("_").isupper() and is_limit(value)}
        found[module.__name__.removeprefix("setsquare.")] = {name: f" {shown(value)}" for name, value in own.items()}
    golden({name: values for name, values in found.items() if values})
