"""The interface: parameters and defaults of every public name, which a user's program relies on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

PACKAGES = ("auditing", "datasets", "estimators", "families", "glm", "nn", "projection", "report", "storage", "tables")


def _defaults(function: Callable[..., Any]) -> str:
    """Parameters with their defaults, without annotations."""
    signature = inspect.signature(function)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(inspect.Signature(plain))


def _entries(name: str, entry: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A function, or a class with its public methods (those that torch gives it left out)."""
    if not isinstance(entry, type):
        yield from [(name, entry)] if callable(entry) else []
        return
    if not issubclass(entry, Exception):
        yield name, entry
    for word in dir(entry):
        method = inspect.getattr_static(entry, word)
        method = getattr(method, "__func__", method)
        own = getattr(method, "__module__", None) or ""
        if not word.startswith("_") and inspect.isfunction(method) and own.startswith("setsquare"):
            yield f"{name}.{word}", method


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_and_defaults(package: str, golden):
    module = import_module(f"setsquare.{package}")
    found = {
        place: _defaults(function)
        for name in sorted(module.__all__)
        for place, function in _entries(name, getattr(module, name))
    }
    assert found
    golden(found)
