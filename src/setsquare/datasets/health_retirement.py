"""Health and Retirement Study: on how many daily activities a person depends on help."""

from __future__ import annotations

from setsquare.datasets.files import locate
from setsquare.datasets.record import Dataset, assemble
from setsquare.datasets.registry import REGISTRY
from setsquare.datasets.tables import read_parquet

#: The last column of the published table: it repeats the protected column race, and the paper drops it.
REPEATED = "race.ethnicity"


def load_health_retirement(*, complete: bool = True, verify: bool = True) -> Dataset:
    """Load the Health and Retirement Study as in the R package fairml, without its last column.

    Parameters
    ----------
    complete : bool, default True
        Drop the rows with a missing value, after the last column (``race.ethnicity``): 12766 of 38653 remain, the
        rows that the paper's models were fitted on.
    verify : bool, default True
        Whether a file found on this machine must have the registered checksum.

    Returns
    -------
    Dataset
        Outcome ``score`` (a count), protected ``age``, ``gender``, ``marriage`` and ``race``.

    Notes
    -----
    The study has its own terms of use: the data must not be passed on.

    Examples
    --------
    With the file in place::

        data = load_health_retirement()
        data.n_rows  # 12766
    """
    info = REGISTRY["health_retirement"]
    table = read_parquet(locate(info.files[0], verify=verify))
    table = table.drop(columns=REPEATED, errors="ignore")
    if complete:
        table = table.dropna().reset_index(drop=True)
    return assemble(info, table)
