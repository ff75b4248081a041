"""Diabetes: how far the disease progressed in a year; ships inside scikit-learn, so no file is needed."""

from __future__ import annotations

from setsquare._extras import require
from setsquare.datasets.record import Dataset, assemble
from setsquare.datasets.registry import REGISTRY


def load_diabetes() -> Dataset:
    """Load the diabetes data of Efron et al. (2004) in their original units.

    Returns
    -------
    Dataset
        442 rows, outcome ``progression``, protected ``age`` and ``sex``. The documentation of the data does not
        say which sex has which code, so the levels are the codes themselves, "1" and "2".

    Examples
    --------
    >>> data = load_diabetes()
    >>> data.protected_table().head(2)
        age sex
    0  59.0   2
    1  48.0   1
    >>> print(data)
    diabetes: 442 rows
      outcome    progression (gaussian)
      protected  age, sex
      features   age, sex, bmi, bp, s1, s2, s3, s4, s5, s6
      source     Efron et al. (2004), Least Angle Regression; ships inside scikit-learn
      licence    scikit-learn is under BSD-3-Clause; the authors state no terms for the data
    """
    require("Data sets need", "pandas")
    import pandas as pd
    from sklearn import datasets

    info = REGISTRY["diabetes"]
    table = datasets.load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": info.outcome})
    codes = table["sex"].astype("int64").astype("str")
    return assemble(info, table.assign(sex=pd.Categorical(codes, categories=["1", "2"])))
