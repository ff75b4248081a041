"""Optional packages, asked for where they are used."""

from __future__ import annotations

from importlib.util import find_spec

from setsquare.errors import MissingDependencyError

#: What pip installs, where this is not the name that is imported.
_REQUIREMENTS = {
    "dask": "'dask[array,dataframe,distributed]'",
    "docx": "python-docx",
    "python_calamine": "python-calamine",
    "sklego": "scikit-lego",
}


def require(what: str, *packages: str) -> None:
    """Raise one clear error if any of the packages that `what` needs is not installed.

    The error names these packages themselves, which pip finds however Setsquare was installed.

    Examples
    --------
    >>> require("Data sets need", "pandas")
    >>> require("Poems need", "no_such_package")
    Traceback (most recent call last):
    ...
    setsquare.errors.MissingDependencyError: Poems need the package no_such_package: pip install no_such_package
    """
    missing = [_REQUIREMENTS.get(name, name) for name in packages if find_spec(name) is None]
    if missing:
        names = ", ".join(name.strip("'").partition("[")[0] for name in missing)
        noun = "package" if len(missing) == 1 else "packages"
        raise MissingDependencyError(f"{what} the {noun} {names}: pip install {' '.join(missing)}")
