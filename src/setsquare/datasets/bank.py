"""Bank: who subscribes to a term deposit."""

from __future__ import annotations

from setsquare.datasets.files import locate
from setsquare.datasets.record import Dataset, assemble
from setsquare.datasets.registry import REGISTRY
from setsquare.datasets.tables import read_parquet


def load_bank(*, verify: bool = True) -> Dataset:
    """Load Bank Marketing as in the R package fairml.

    The levels "jan" and "feb" of ``month`` have no rows, and "jan" is the reference: dummies of the published levels
    are collinear with an intercept.

    Parameters
    ----------
    verify : bool, default True
        Whether a file found on this machine must have the registered checksum.

    Returns
    -------
    Dataset
        40195 rows, outcome ``subscribed`` (1 is "yes"), protected ``age``.

    Examples
    --------
    With the file in place::

        data = load_bank()
        data.y.mean()
    """
    info = REGISTRY["bank"]
    return assemble(info, read_parquet(locate(info.files[0], verify=verify)))
