"""Registry of the data sets: files with checksums, source, licence, outcome and protected columns.

A new data set needs an entry in :data:`REGISTRY` and a loader in ``loaders.py``. If it has several files, such as a
table and arrays with the same rows, list all of them in ``files``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from setsquare.errors import InputError

FamilyName: TypeAlias = Literal["gaussian", "binomial", "poisson"]


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a data set.

    Attributes
    ----------
    path : str
        Path of the file relative to ``$SETSQUARE_DATA`` and to the user's cache, with forward slashes.
    sha256 : str
        Checksum of the file; empty if it must not be published (data that need credentials).
    origin : str
        How to get the file, as the end of a sentence.
    urls : tuple of str
        Public addresses of exactly this file, tried in this order; empty if none is known.
    alternatives : tuple of DataFile
        Files with the same data in another format; any of them can be used instead.
    """

    path: str
    sha256: str
    origin: str
    urls: tuple[str, ...] = ()
    alternatives: tuple[DataFile, ...] = ()

    @property
    def candidates(self) -> tuple[DataFile, ...]:
        """The file and its alternatives."""
        return (self, *self.alternatives)


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Description of a data set; ``print`` shows it in a readable form.

    Attributes
    ----------
    name, title : str
        Name for :func:`setsquare.datasets.load`, and a one-line description.
    outcome : str
        Column to predict.
    protected : tuple of str
        Protected columns, in the order of the paper's tables.
    family : {"gaussian", "binomial", "poisson"}
        Family of the outcome.
    n_rows : int
        Number of rows that the loader returns by default.
    source, licence : str
        Origin and terms of use of the data.
    files : tuple of DataFile
        All files of the data set; empty if a package contains the data.
    package : str
        Optional package that contains the data.
    """

    name: str
    title: str
    outcome: str
    protected: tuple[str, ...]
    family: FamilyName
    n_rows: int
    source: str
    licence: str
    files: tuple[DataFile, ...] = ()
    package: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the checksums as a dict of strings, numbers and lists."""
        return asdict(self) | {"protected": list(self.protected), "files": [file.path for file in self.files]}

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.title}"]
        lines += [f"  outcome    {self.outcome} ({self.family}), {self.n_rows} rows"]
        lines += [f"  protected  {', '.join(self.protected)}"]
        lines += [f"  source     {self.source}", f"  licence    {self.licence}"]
        return "\n".join(lines)


def _fairml(table: str, sha256: str) -> DataFile:
    """Describe a table of the R package fairml, saved as Parquet."""
    return DataFile(
        path=f"fairml/{table}.parquet",
        sha256=sha256,
        origin=f'in R, data("{table}", package = "fairml"); '
        f'arrow::write_parquet({table}, "{table}.parquet") makes it from fairml 0.8 (load it with verify=False)',
    )


_ADULT_RAW = DataFile(
    path="adult_uci/adult.data",
    sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    origin="it is the training file adult.data of the UCI archive",
    urls=("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/adult.data",),
)
_ADULT_PARQUET = DataFile(
    path="adult_uci/adult_uci_train.parquet",
    sha256="0e2bb1ad187bf9035b1f224c4e11f28df92e05b0f10ac76ad16ff211caf327ab",
    origin="it is the training file adult.data of the UCI archive, saved as Parquet",
    alternatives=(_ADULT_RAW,),
)

_ENTRIES = (
    DatasetInfo(
        name="acs_income",
        title="income above 50 000 dollars in the American Community Survey of 2018 (ACSIncome), a fifth of all rows",
        outcome="PINCP",
        protected=("SEX", "RAC1P"),
        family="binomial",
        n_rows=332900,
        source="US Census Bureau, ACS PUMS 2018, as defined by folktables (Ding et al. 2021) and stored by aequitas",
        licence="public data of the US Census Bureau",
        files=(
            DataFile(
                path="acs_income/acs_income.parquet",
                sha256="cbe16ab9be0996473f132d3a7fafe456e7db6cb3b63c4d1fcc74e3e92b0bcef2",
                origin="it is the validation part of ACSIncome in the repository dssg/aequitas",
            ),
        ),
    ),
    DatasetInfo(
        name="adult",
        title="income above 50k in the US census of 1994, education levels collapsed, complete rows",
        outcome="income",
        protected=("race", "sex"),
        family="binomial",
        n_rows=30162,
        source="R package fairml 0.8; UCI Adult",
        licence="fairml is under MIT; UCI Adult under CC BY 4.0",
        files=(_fairml("adult", "5bf78568c514fab605d986470aade3a05b5af094ad6b04e783531151fdd3f04e"),),
    ),
    DatasetInfo(
        name="adult_uci",
        title='income above 50k in the US census of 1994, the raw training file with "?" as a level',
        outcome="income",
        protected=("race", "sex"),
        family="binomial",
        n_rows=32561,
        source="UCI Machine Learning Repository, Adult, https://doi.org/10.24432/C5XW20",
        licence="CC BY 4.0",
        files=(_ADULT_PARQUET,),
    ),
    DatasetInfo(
        name="arrests",
        title="release with a summons after an arrest for simple possession of marijuana, Toronto 1997 to 2002",
        outcome="released",
        protected=("colour",),
        family="binomial",
        n_rows=5226,
        source="Michael Friendly, York University; R package carData; ships inside scikit-lego",
        licence="scikit-lego is under MIT; the R package carData, which published the data, under GPL-2 or later",
        package="sklego",
    ),
    DatasetInfo(
        name="bank",
        title="subscription to a term deposit after calls of a Portuguese bank",
        outcome="subscribed",
        protected=("age",),
        family="binomial",
        n_rows=40195,
        source="R package fairml 0.8; UCI Bank Marketing",
        licence="fairml is under MIT; the data under the terms of the UCI repository",
        files=(_fairml("bank", "f71ade7f8ae15e5f2b6c958b79b429009e3272466b303d8ee127894514141d6a"),),
    ),
    DatasetInfo(
        name="compas",
        title="recidivism within two years in Broward County, Florida",
        outcome="two_year_recid",
        protected=("sex", "race"),
        family="binomial",
        n_rows=5855,
        source="R package fairml 0.8; ProPublica",
        licence="fairml is under MIT; the data were published by ProPublica",
        files=(_fairml("compas", "ab7ce4cf2097043254f11cf41a95ec659e28471ca1e4d08899146a4058b7d6f9"),),
    ),
    DatasetInfo(
        name="diabetes",
        title="disease progression one year after baseline in 442 patients",
        outcome="progression",
        protected=("age", "sex"),
        family="gaussian",
        n_rows=442,
        source="Efron et al. (2004), Least Angle Regression; ships inside scikit-learn",
        licence="scikit-learn is under BSD-3-Clause; the authors state no terms for the data",
    ),
    DatasetInfo(
        name="health_retirement",
        title="number of dependencies in daily activities in the Health and Retirement Study, complete rows",
        outcome="score",
        protected=("age", "gender", "marriage", "race"),
        family="poisson",
        n_rows=12766,
        source="R package fairml 0.8; Health and Retirement Study, University of Michigan",
        licence="own terms of the Health and Retirement Study: never pass the data on",
        files=(_fairml("health.retirement", "3cc9b4a5129b3bb3864fa0cc4d4cfe3d2f50b4ef31beaa41a4c9505332a15451"),),
    ),
)

#: Every data set by name.
REGISTRY: dict[str, DatasetInfo] = {entry.name: entry for entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """Return the names of all data sets, sorted.

    Examples
    --------
    >>> names()
    ('acs_income', 'adult', 'adult_uci', 'arrests', 'bank', 'compas', 'diabetes', 'health_retirement')
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
