"""Optional packages, asked for where they are used."""

from __future__ import annotations

from importlib.util import find_spec

from setsquare.errors import MissingDependencyError

#: The extra of Setsquare that brings a package.
_EXTRAS = {
    "dask": "dask",
    "formulaic": "formula",
    "matplotlib": "report",
    "pandas": "data",
    "jinja2": "report",
    "pooch": "data",
    "sklego": "demo",
    "torch": "torch",
}


def require(what: str, *packages: str) -> None:
    """Raise one clear error if any of the packages that `what` needs is not installed.

    Examples
    --------
    >>> require("Data sets need", "pandas")
    >>> require("Poems need", "no_such_package")
    Traceback (most recent call last):
    ...
    setsquare.errors.MissingDependencyError: Poems need the package no_such_package: pip install no_such_package
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        noun = "package" if len(missing) == 1 else "packages"
        extras = sorted({f"setsquare[{_EXTRAS[name]}]" if name in _EXTRAS else name for name in missing})
        raise MissingDependencyError(f"{what} the {noun} {', '.join(missing)}: pip install {' '.join(extras)}")
