"""Names of a package that are imported when they are first used, so that a call loads only what it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def names_by_module(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package from the names that each of its modules defines.

    Examples
    --------
    >>> find = names_by_module("setsquare", {"storage": ("save", "load")})
    >>> find("save").__name__
    'save'
    >>> find("sav")
    Traceback (most recent call last):
    ...
    AttributeError: module 'setsquare' has no attribute 'sav'
    """
    homes = {name: f"{package}.{module}" for module, own in names.items() for name in own}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    return find
