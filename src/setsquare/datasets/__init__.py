"""Data sets with their source, checksum, licence and protected columns, and synthetic data.

Files are searched for in the folder ``$SETSQUARE_DATA``, then in the user's cache, then downloaded if a public address
is known; every file is checked against its sha256. Nothing is bundled: read the licence in :func:`describe` before you
pass data on. Importing this package imports neither pandas nor any code that downloads.
"""

from __future__ import annotations

from setsquare.datasets.files import available, find, locate
from setsquare.datasets.loaders import (
    load,
    load_acs_income,
    load_adult,
    load_arrests,
    load_bank,
    load_compas,
    load_diabetes,
    load_health_retirement,
    read_parquet,
)
from setsquare.datasets.record import Dataset, assemble
from setsquare.datasets.registry import DataFile, DatasetInfo, describe, names
from setsquare.datasets.synthetic import SyntheticData, SyntheticFamily, make_synthetic

__all__ = [
    "DataFile",
    "Dataset",
    "DatasetInfo",
    "SyntheticData",
    "SyntheticFamily",
    "assemble",
    "available",
    "describe",
    "find",
    "load",
    "load_acs_income",
    "load_adult",
    "load_arrests",
    "load_bank",
    "load_compas",
    "load_diabetes",
    "load_health_retirement",
    "locate",
    "make_synthetic",
    "names",
    "read_parquet",
]
