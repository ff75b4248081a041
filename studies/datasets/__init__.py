"""Data sets that only the study uses: embeddings of faces and chest X-rays, movies, coloured digits, two groups.

Their files are looked up and checked like those of :mod:`setsquare.datasets`.
"""

from __future__ import annotations

from collections.abc import Callable

from setsquare.datasets import Dataset, find
from studies.datasets.chest_xrays import load_mimic_chest_xrays, load_nih_chest_xrays
from studies.datasets.colored_mnist import load_colored_mnist
from studies.datasets.faces import load_utkface
from studies.datasets.movies import load_movies
from studies.datasets.registry import REGISTRY

#: The loader of every data set of the study.
LOADERS: dict[str, Callable[..., Dataset]] = {
    "colored_mnist": load_colored_mnist,
    "mimic_chest_xrays": load_mimic_chest_xrays,
    "movies": load_movies,
    "nih_chest_xrays": load_nih_chest_xrays,
    "utkface": load_utkface,
}


def available(name: str) -> bool:
    """Return whether all files of a data set of the study are on this machine.

    Examples
    --------
    >>> available("utkface") in (True, False)
    True
    """
    return all(find(file) is not None for file in REGISTRY[name].files)


__all__ = [
    "LOADERS",
    "REGISTRY",
    "available",
    "load_colored_mnist",
    "load_mimic_chest_xrays",
    "load_movies",
    "load_nih_chest_xrays",
    "load_utkface",
]
