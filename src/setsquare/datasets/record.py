"""Dataset: a table with the roles of its columns, as returned by the loaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from setsquare._typing import Array
from setsquare.datasets.registry import DatasetInfo, FamilyName
from setsquare.errors import InputError, MissingValuesError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dataset:
    """Table with the roles of its columns, its source and its licence.

    Attributes
    ----------
    name : str
        Name in the registry.
    table : pandas.DataFrame, n rows
        Outcome, features and protected columns. The first level of a categorical column is its reference; published
        levels without rows are kept.
    outcome : str
        Column to predict.
    protected : tuple of str
        Columns that predictions must not depend on.
    features : tuple of str
        Columns that the paper's models are fitted on; usually all but the outcome, including the protected columns.
    family : {"gaussian", "binomial", "poisson"}
        Family of the outcome.
    source, licence : str
        Origin and terms of use of the data.
    arrays : mapping of str to array of shape (n, ...)
        Images or embeddings with the same rows as the table; empty for plain tables. Any object with a length, a shape
        and ``take(rows, axis=0)`` is accepted, so that the rows of a large file can stay on disk.
    cluster : str or None
        Column of the clusters, such as the patient for several images each; standard errors and splits must use it.
    dropped : mapping of str to int
        Number of rows of the files that were left out, by reason.

    Examples
    --------
    >>> from setsquare.datasets import load_diabetes
    >>> data = load_diabetes()
    >>> data
    <Dataset diabetes: 442 rows, progression (gaussian) from 10 features, protected age, sex>
    >>> data.protected_table().shape, data.y[:3]
    ((442, 2), array([151.,  75., 141.]))
    """

    name: str
    table: pd.DataFrame
    outcome: str
    protected: tuple[str, ...]
    features: tuple[str, ...]
    family: FamilyName
    source: str
    licence: str
    arrays: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cluster = () if self.cluster is None else (self.cluster,)
        for column in dict.fromkeys((self.outcome, *self.protected, *self.features, *cluster)):
            if column not in self.table.columns:
                raise InputError(f"The table of the data set {self.name} has no column {column}.")
        for key, array in self.arrays.items():
            if len(array) != self.n_rows:
                raise InputError(
                    f"The array {key} of the data set {self.name} has {len(array)} rows, the table {self.n_rows}."
                )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.table)

    @property
    def y(self) -> Array:
        """Outcome as float64, shape (n,): 1 for the second of two levels, a count, or a measurement."""
        column = self.table[self.outcome]
        if column.isna().any():
            raise MissingValuesError(f"The outcome {self.outcome} has {int(column.isna().sum())} missing values.")
        if column.dtype.name != "category":
            return np.asarray(column, dtype=np.float64)
        if len(column.cat.categories) != 2:
            raise InputError(
                f"The outcome {self.outcome} has {len(column.cat.categories)} levels, but 0 and 1 need exactly two."
            )
        return np.asarray(column.cat.codes, dtype=np.float64)

    def features_table(self) -> pd.DataFrame:
        """Return the feature columns, n rows."""
        return self.table[list(self.features)]

    def protected_table(self) -> pd.DataFrame:
        """Return the protected columns, n rows, in the order of `protected`."""
        return self.table[list(self.protected)]

    def take(self, rows: Any, *, reason: str | None = None) -> Dataset:
        """Return some of the rows; with a reason, count the others in `dropped`.

        Parameters
        ----------
        rows : array of bool of shape (n,), or of row numbers
        reason : str, optional

        Examples
        --------
        >>> from setsquare.datasets import load_diabetes
        >>> data = load_diabetes()
        >>> grave = data.take(data.y > 200, reason="progression up to 200")
        >>> grave.n_rows, grave.dropped
        (121, {'progression up to 200': 321})
        """
        rows = np.asarray(rows)
        numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
        table = self.table.iloc[numbers].reset_index(drop=True)
        arrays = {key: array.take(numbers, axis=0) for key, array in self.arrays.items()}
        dropped = dict(self.dropped)
        if reason is not None and len(numbers) < self.n_rows:
            dropped[reason] = self.n_rows - len(numbers)
        return replace(self, table=table, arrays=arrays, dropped=dropped)

    def __repr__(self) -> str:
        return (
            f"<Dataset {self.name}: {self.n_rows} rows, {self.outcome} ({self.family}) "
            f"from {len(self.features)} features, protected {', '.join(self.protected)}>"
        )

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.n_rows} rows",
            f"  outcome    {self.outcome} ({self.family})",
            f"  protected  {', '.join(self.protected)}",
            f"  features   {', '.join(self.features)}",
        ]
        lines += [f"  array      {key}, shape {array.shape}" for key, array in self.arrays.items()]
        lines += [f"  cluster    {self.cluster}"] if self.cluster else []
        lines += [f"  dropped    {count} rows, {reason}" for reason, count in self.dropped.items()]
        return "\n".join([*lines, f"  source     {self.source}", f"  licence    {self.licence}"])


def assemble(
    info: DatasetInfo,
    table: pd.DataFrame,
    *,
    protected: tuple[str, ...] | None = None,
    features: tuple[str, ...] | None = None,
    arrays: Mapping[str, Any] | None = None,
    cluster: str | None = None,
) -> Dataset:
    """Create a data set from its registry entry and its table; by default, all columns but the outcome are features."""
    if features is None:
        features = tuple(str(column) for column in table.columns if column != info.outcome)
    roles = info.outcome, info.protected if protected is None else protected, features, info.family
    return Dataset(info.name, table, *roles, info.source, info.licence, dict(arrays or {}), cluster)
