"""From a file to a table: Parquet as saved from R, and the raw comma-separated file of UCI Adult."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from setsquare._extras import require
from setsquare.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

#: The columns of UCI's ``adult.data``, which has no header; True marks a number.
ADULT_COLUMNS: dict[str, bool] = {
    "age": True,
    "workclass": False,
    "fnlwgt": True,
    "education": False,
    "education_num": True,
    "marital_status": False,
    "occupation": False,
    "relationship": False,
    "race": False,
    "sex": False,
    "capital_gain": True,
    "capital_loss": True,
    "hours_per_week": True,
    "native_country": False,
    "income": False,
}


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file; levels keep their order, rows are numbered from 0."""
    require("Data sets need", "pandas", "pyarrow")
    import pandas as pd

    return pd.read_parquet(path, engine="pyarrow").reset_index(drop=True)


def read_adult_text(path: Path) -> pd.DataFrame:
    """Read UCI's raw ``adult.data``: levels sorted, as R's ``as.factor`` has them, and "?" kept as a level."""
    require("Data sets need", "pandas")
    import pandas as pd

    text = pd.read_csv(path, header=None, dtype="str", skipinitialspace=True, keep_default_na=False)
    if text.shape[1] != len(ADULT_COLUMNS):
        raise InputError(f"The file {path} has {text.shape[1]} columns; UCI's adult.data has {len(ADULT_COLUMNS)}.")
    text.columns = pd.Index(ADULT_COLUMNS)
    return text.astype(
        {
            name: "int64" if number else pd.CategoricalDtype(sorted(text[name].unique()))
            for name, number in ADULT_COLUMNS.items()
        }
    )
