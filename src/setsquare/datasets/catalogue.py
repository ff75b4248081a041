"""Look-up of data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from setsquare.datasets.files import find
from setsquare.datasets.loaders import load_adult, load_bank, load_compas, load_diabetes, load_health_retirement
from setsquare.datasets.record import Dataset
from setsquare.datasets.registry import REGISTRY, DatasetInfo
from setsquare.errors import InputError

#: The loader of every data set in the registry.
LOADERS: dict[str, Callable[..., Dataset]] = {
    "adult": load_adult,
    "adult_uci": partial(load_adult, "uci"),
    "bank": load_bank,
    "compas": load_compas,
    "diabetes": load_diabetes,
    "health_retirement": load_health_retirement,
}


def names() -> tuple[str, ...]:
    """Return the names of all data sets, sorted.

    Examples
    --------
    >>> names()
    ('adult', 'adult_uci', 'bank', 'compas', 'diabetes', 'health_retirement')
    """
    return tuple(sorted(REGISTRY))


def describe(name: str) -> DatasetInfo:
    """Return the description of a data set, without reading its files.

    Parameters
    ----------
    name : str
        One of :func:`names`; case is ignored, and "." and "-" are read as "_".

    Examples
    --------
    >>> print(describe("compas"))
    compas: recidivism within two years in Broward County, Florida
      outcome    two_year_recid (binomial), 5855 rows
      protected  sex, race
      source     R package fairml 0.8; ProPublica
      licence    fairml is under MIT; the data were published by ProPublica
    >>> describe("compass")
    Traceback (most recent call last):
    ...
    setsquare.errors.InputError: There is no data set 'compass'; did you mean compas?
    """
    key = name.strip().lower().replace(".", "_").replace("-", "_").replace(" ", "_")
    if key in REGISTRY:
        return REGISTRY[key]
    near = get_close_matches(key, names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(names())}."
    raise InputError(f"There is no data set {name!r}; {hint}")


def load(name: str, **options: Any) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    **options
        Options of its loader, such as ``verify=False``, or ``table2=True`` for "adult_uci".

    Examples
    --------
    >>> load("diabetes").n_rows
    442
    """
    return LOADERS[describe(name).name](**options)


def available(name: str) -> bool:
    """Return whether all files of a data set are on this machine, so that :func:`load` needs no network.

    Examples
    --------
    >>> available("diabetes")
    True
    """
    return all(find(file) is not None for file in describe(name).files)
