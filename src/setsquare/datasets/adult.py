"""Adult: who earns more than 50k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from setsquare.datasets.files import locate
from setsquare.datasets.record import Dataset, assemble
from setsquare.datasets.registry import REGISTRY
from setsquare.datasets.tables import read_adult_text, read_parquet
from setsquare.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

#: The features and the protected columns of the paper's Table 2; here the protected ones are no features.
TABLE2_FEATURES = ("age", "workclass", "education", "marital_status", "relationship", "hours_per_week")
TABLE2_PROTECTED = ("sex", "race")


def load_adult(
    version: Literal["fairml", "uci"] = "fairml",
    *,
    united_states_only: bool = False,
    table2: bool = False,
    verify: bool = True,
) -> Dataset:
    """Load Adult, in the version of the R package fairml or as the raw UCI training file.

    Parameters
    ----------
    version : {"fairml", "uci"}, default "fairml"
        "fairml" has 30162 complete rows, collapsed education levels and the reference race "White" (the paper's
        comparison with other methods). "uci" has all 32561 rows, "?" as a level, and sorted levels (Table 2).
    united_states_only : bool, default False
        Keep the rows with ``native_country == "United-States"``: 29170 of the version "uci", the only one that
        takes this option. All published levels stay.
    table2 : bool, default False
        The set-up of the paper's Table 2, for the version "uci" only: rows as with `united_states_only`, six
        features that do not include the protected columns, and the protected columns sex and race.
    verify : bool, default True
        Whether a file found on this machine must have the registered checksum.

    Returns
    -------
    Dataset
        Outcome ``income`` (1 is ">50K"), protected ``race`` and ``sex``. With version "uci" the features include
        the census weight ``fnlwgt``, as published.

    Examples
    --------
    With the files in place, Table 2 starts from::

        data = load_adult("uci", table2=True)
        data.n_rows  # 29170
    """
    if version == "fairml":
        if united_states_only or table2:
            raise InputError('united_states_only and table2 need the raw file: pass version="uci".')
        info = REGISTRY["adult"]
        return assemble(info, read_parquet(locate(info.files[0], verify=verify)))
    if version != "uci":
        raise InputError(f'version must be "fairml" or "uci", not {version!r}.')
    table = _read_uci(verify=verify)
    if united_states_only or table2:
        table = table[table["native_country"] == "United-States"].reset_index(drop=True)
    info = REGISTRY["adult_uci"]
    if table2:
        return assemble(info, table, features=TABLE2_FEATURES, protected=TABLE2_PROTECTED)
    return assemble(info, table)


def _read_uci(*, verify: bool) -> pd.DataFrame:
    """Read the training file, from Parquet or from the raw text."""
    path = locate(REGISTRY["adult_uci"].files[0], verify=verify)
    return read_parquet(path) if path.suffix == ".parquet" else read_adult_text(path)
