"""Packages of the study, required where they are used."""

from __future__ import annotations

from importlib.util import find_spec

from setsquare.errors import MissingDependencyError


def require(what: str, *packages: str) -> None:
    """Raise one clear error if any of the packages that `what` needs is not installed."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MissingDependencyError(f"{what} {', '.join(missing)}: pip install -e '.[studies]'")
