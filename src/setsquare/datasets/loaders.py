"""One loader for each data set in the registry, and the loader by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from setsquare._extras import require
from setsquare.datasets.files import locate
from setsquare.datasets.record import Dataset, assemble
from setsquare.datasets.registry import REGISTRY, describe
from setsquare.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

#: Features and protected columns of the paper's Table 2, where the features exclude the protected columns.
TABLE2_FEATURES = ("age", "workclass", "education", "marital_status", "relationship", "hours_per_week")
TABLE2_PROTECTED = ("sex", "race")
#: The columns of UCI's ``adult.data``, which has no header, and those among them that hold numbers.
ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship"),
    *("race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income"),
)
ADULT_NUMBERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
#: The last column of the published health and retirement table: it repeats race, and the paper drops it.
REPEATED = "race.ethnicity"

#: Columns of ACSIncome that hold numbers; all others hold codes of categories.
ACS_NUMBERS = ("AGEP", "WKHP")


def load_acs_income(*, verify: bool = True) -> Dataset:
    """Load ACSIncome, the benchmark that succeeds Adult; `verify` as in :func:`load_adult`.

    The levels of a category are its codes as text, in the order of the codes: occupation ``OCCP`` has 529, place of
    birth ``POBP`` 223. The Census Bureau's data dictionary of 2018 has their meaning; ``SEX`` is 1 for male, 2 for
    female. In this file ``RAC1P`` counts from 0, one less than in the dictionary.

    Returns
    -------
    Dataset
        332900 rows, outcome ``PINCP`` (1 is above 50 000 dollars a year), protected ``SEX`` and ``RAC1P``. The features
        exclude the protected columns.
    """
    require("Data sets need", "pandas", "pyarrow")
    import pandas as pd

    info = REGISTRY["acs_income"]
    table = read_parquet(locate(info.files[0], verify=verify))
    for name in table.columns.difference([*ACS_NUMBERS, info.outcome]):
        codes, values = pd.factorize(table[name].astype("int64"), sort=True)
        table[name] = pd.Categorical.from_codes(codes, [str(value) for value in values])
    kept = tuple(name for name in table.columns if name not in (info.outcome, *info.protected))
    return assemble(info, table.astype(dict.fromkeys(ACS_NUMBERS, "int64")), features=kept)


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
        Keep only rows with ``native_country == "United-States"``, 29170 of the version "uci", which is the only version
        with this option. All published levels are kept.
    table2 : bool, default False
        Use the set-up of the paper's Table 2, for the version "uci" only: rows as with `united_states_only`, protected
        columns sex and race, and six features that exclude them.
    verify : bool, default True
        Whether a file found on this machine must have the registered checksum.

    Returns
    -------
    Dataset
        Outcome ``income`` (1 is ">50K"), protected ``race`` and ``sex``. With version "uci" the features include
        the census weight ``fnlwgt``, as published.

    Examples
    --------
    Table 2 has 29170 rows: ``load_adult("uci", table2=True)``.
    """
    if version == "fairml":
        if united_states_only or table2:
            raise InputError('united_states_only and table2 need the raw file: pass version="uci".')
        return _load_parquet("adult", verify)
    if version != "uci":
        raise InputError(f'version must be "fairml" or "uci", not {version!r}.')
    info = REGISTRY["adult_uci"]
    path = locate(info.files[0], verify=verify)
    table = read_parquet(path) if path.suffix == ".parquet" else read_adult_text(path)
    if united_states_only or table2:
        table = table[table["native_country"] == "United-States"].reset_index(drop=True)
    if table2:
        return assemble(info, table, features=TABLE2_FEATURES, protected=TABLE2_PROTECTED)
    return assemble(info, table)


def load_bank(*, verify: bool = True) -> Dataset:
    """Load Bank Marketing as in the R package fairml; `verify` as in :func:`load_adult`.

    The levels "jan" and "feb" of ``month`` have no rows, and "jan" is the reference: dummies of the published levels
    are collinear with an intercept.

    Returns
    -------
    Dataset
        40195 rows, outcome ``subscribed`` (1 is "yes"), protected ``age``.
    """
    return _load_parquet("bank", verify)


def load_arrests() -> Dataset:
    """Load arrests for possession of marijuana in Toronto, 1997 to 2002; the package scikit-lego contains them.

    Returns
    -------
    Dataset
        5226 rows, outcome ``released`` (1 is released with a summons), protected ``colour``. ``checks`` counts the
        police databases that list the person.

    Examples
    --------
    >>> data = load_arrests()
    >>> data.table.groupby("colour", observed=True)["released"].mean().round(3).to_dict()
    {'White': 0.858, 'Black': 0.741}
    """
    require("Data on arrests need", "pandas", "sklego")
    import pandas as pd

    package = find_spec("sklego")  # the package itself need not be imported
    assert package is not None and package.origin is not None
    table = pd.read_csv(Path(package.origin).parent / "data" / "arrests.zip")
    yes = ["Yes", "No"]
    levels = {"colour": ["White", "Black"], "sex": ["Male", "Female"], "employed": yes, "citizen": yes}
    coded = {name: pd.Categorical(table[name], categories=names) for name, names in levels.items()}
    year = pd.Categorical(table["year"].astype("str"))
    return assemble(REGISTRY["arrests"], table.assign(released=(table["released"] == "Yes") * 1.0, year=year, **coded))


def load_compas(*, verify: bool = True) -> Dataset:
    """Load COMPAS as in the R package fairml; `verify` as in :func:`load_adult`.

    Returns
    -------
    Dataset
        5855 rows, outcome ``two_year_recid`` (1 is "Yes"), protected ``sex`` and ``race``.
    """
    return _load_parquet("compas", verify)


def load_diabetes() -> Dataset:
    """Load the diabetes data of Efron et al. (2004) in their original units; no file is needed.

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


def load_health_retirement(*, complete: bool = True, verify: bool = True) -> Dataset:
    """Load the Health and Retirement Study as in the R package fairml, without its last column.

    Parameters
    ----------
    complete : bool, default True
        Drop rows with a missing value, after dropping the last column (``race.ethnicity``): 12766 of 38653 rows remain,
        those that the paper's models were fitted on.
    verify : bool, default True
        As in :func:`load_adult`.

    Returns
    -------
    Dataset
        Outcome ``score`` (a count), protected ``age``, ``gender``, ``marriage`` and ``race``.

    Notes
    -----
    The study has its own terms of use: the data must not be passed on.
    """
    info = REGISTRY["health_retirement"]
    table = read_parquet(locate(info.files[0], verify=verify)).drop(columns=REPEATED, errors="ignore")
    return assemble(info, table.dropna().reset_index(drop=True) if complete else table)


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file; levels keep their order, and rows are numbered from 0."""
    require("Data sets need", "pandas", "pyarrow")
    import pandas as pd

    return pd.read_parquet(path, engine="pyarrow").reset_index(drop=True)


def read_adult_text(path: Path) -> pd.DataFrame:
    """Read UCI's raw ``adult.data``, with levels sorted as in R's ``as.factor`` and "?" kept as a level."""
    require("Data sets need", "pandas")
    import pandas as pd

    text = pd.read_csv(path, header=None, dtype="str", skipinitialspace=True, keep_default_na=False)
    if text.shape[1] != len(ADULT_COLUMNS):
        raise InputError(f"The file {path} has {text.shape[1]} columns; UCI's adult.data has {len(ADULT_COLUMNS)}.")
    text.columns = pd.Index(ADULT_COLUMNS)
    levels = {
        name: pd.CategoricalDtype(sorted(text[name].unique())) for name in set(ADULT_COLUMNS) - set(ADULT_NUMBERS)
    }
    return text.astype(levels | dict.fromkeys(ADULT_NUMBERS, "int64"))


def _load_parquet(name: str, verify: bool) -> Dataset:
    info = REGISTRY[name]
    return assemble(info, read_parquet(locate(info.files[0], verify=verify)))


#: The loader of every data set in the registry.
LOADERS: dict[str, Callable[..., Dataset]] = {
    "acs_income": load_acs_income,
    "adult": load_adult,
    "adult_uci": partial(load_adult, "uci"),
    "arrests": load_arrests,
    "bank": load_bank,
    "compas": load_compas,
    "diabetes": load_diabetes,
    "health_retirement": load_health_retirement,
}


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
