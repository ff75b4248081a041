"""COMPAS: who is charged again within two years."""

from __future__ import annotations

from setsquare.datasets.files import locate
from setsquare.datasets.record import Dataset, assemble
from setsquare.datasets.registry import REGISTRY
from setsquare.datasets.tables import read_parquet


def load_compas(*, verify: bool = True) -> Dataset:
    """Load COMPAS as in the R package fairml.

    Parameters
    ----------
    verify : bool, default True
        Whether a file found on this machine must have the registered checksum.

    Returns
    -------
    Dataset
        5855 rows, outcome ``two_year_recid`` (1 is "Yes"), protected ``sex`` and ``race``.

    Examples
    --------
    With the file in place::

        data = load_compas()
        data.protected_table()
    """
    info = REGISTRY["compas"]
    return assemble(info, read_parquet(locate(info.files[0], verify=verify)))
