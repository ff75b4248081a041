"""Optional packages, asked for where they are used."""

from __future__ import annotations

from importlib.util import find_spec

from setsquare.errors import MissingDependencyError


def require(*packages: str) -> None:
    """Raise one clear error if any of `packages` is not installed.

    Examples
    --------
    >>> require("numpy")
    >>> require("numpy", "no_such_package")
    Traceback (most recent call last):
    ...
    setsquare.errors.MissingDependencyError: Data sets need the package no_such_package: install setsquare[data].
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        noun = "package" if len(missing) == 1 else "packages"
        raise MissingDependencyError(f"Data sets need the {noun} {', '.join(missing)}: install setsquare[data].")
