"""Groups of rows by protected column: its levels, or slices of a continuous column."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.tables.column import Levels, label, read
from setsquare.tables.frame import open_table

#: Largest number of levels shown separately; the least frequent of more are pooled.
MOST_LEVELS = 12


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of rows.

    Attributes
    ----------
    column : str
    labels : tuple of str
        ``Black``, or ``17 to 28`` for a slice.
    rows : tuple of integer ndarray
        The rows of each group; none is empty.
    centres : tuple of float
        Mean of a continuous column in each slice; empty for levels.
    n_pooled : int
        Number of levels pooled into one group.
    """

    column: str
    labels: tuple[str, ...]
    rows: tuple[IntArray, ...]
    centres: tuple[float, ...] = ()
    n_pooled: int = 0

    def in_order(self, order: IntArray) -> list[IntArray]:
        """The rows of each group in the ``order`` (n,) of all rows, in linear time."""
        codes = np.empty(len(order), dtype=np.intp)
        for k, rows in enumerate(self.rows):
            codes[rows] = k
        return [order[places] for places in _split(codes[order], len(self.rows))]


def group_rows(table: Table, keep: BoolArray | None = None, *, n_slices: int = 10) -> tuple[Groups, ...]:
    """Group the rows by each column of a table; missing values are a group of their own.

    Parameters
    ----------
    table : dataframe or array of n rows
    keep : boolean ndarray of shape (n,), optional
        Rows to use; the groups index into these rows.
    n_slices : int
        Number of slices of about equal size, for a column with more than a dozen distinct numbers.

    Examples
    --------
    >>> groups = group_rows([["b", 1.0], ["a", 2.0], ["b", 2.0]])
    >>> [(g.column, g.labels, [rows.tolist() for rows in g.rows]) for g in groups]
    [('x0', ('a', 'b'), [[1], [0, 2]]), ('x1', ('1', '2'), [[0], [1, 2]])]
    """
    frame = open_table(table)
    found = []
    for name in frame.names:
        column = read(frame, name) if keep is None else read(frame, name).take(keep)
        if isinstance(column, Levels):
            found.append(_of_levels(name, column.codes, tuple(map(label, column.levels))))
        else:
            found.append(_of_numbers(name, column.values, n_slices))
    return tuple(found)


def _of_numbers(name: str, x: Array, n_slices: int) -> Groups:
    known = x[~np.isnan(x)]
    values = np.unique(known)
    if len(values) <= MOST_LEVELS:
        codes = np.where(np.isnan(x), -1, np.searchsorted(values, x))
        return _of_levels(name, codes, tuple(f"{value:g}" for value in values))
    cuts = np.unique(np.quantile(known, np.arange(1, n_slices) / n_slices, method="higher"))
    codes = np.where(np.isnan(x), len(cuts) + 1, np.searchsorted(cuts, x, side="right"))
    ends = [f"{known.min():.4g}", *(f"{cut:.4g}" for cut in cuts), f"{known.max():.4g}"]
    labels = [f"{low} to {high}" for low, high in pairwise(ends)]
    rows = _split(codes, len(cuts) + 2)
    there = [k for k, part in enumerate(rows) if len(part)]
    return Groups(
        name,
        tuple([*labels, "missing"][k] for k in there),
        tuple(rows[k] for k in there),
        tuple(float(x[rows[k]].mean()) for k in there),
    )


def _of_levels(name: str, codes: IntArray, labels: tuple[str, ...]) -> Groups:
    """Levels in their order, then the pooled infrequent levels, then missing values."""
    counts = np.bincount(codes + 1, minlength=len(labels) + 1)[1:]
    there = np.flatnonzero(counts)
    few = len(there) <= MOST_LEVELS
    shown = there if few else np.sort(there[np.argsort(-counts[there], kind="stable")[: MOST_LEVELS - 1]])
    place = np.full(len(labels) + 1, len(shown))  # the pooled group
    place[shown + 1], place[0] = np.arange(len(shown)), len(shown) + 1
    n_pooled = len(there) - len(shown)
    names = [*(labels[k] for k in shown), f"{n_pooled} other levels", "missing"]
    rows = _split(place[codes + 1], len(names))
    used = [k for k, part in enumerate(rows) if len(part)]
    return Groups(name, tuple(names[k] for k in used), tuple(rows[k] for k in used), (), n_pooled)


def _split(codes: IntArray, n_groups: int) -> list[IntArray]:
    """Rows of each group, in linear time: numpy uses a radix sort for such small integers."""
    order = np.argsort(codes.astype(np.int16), kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes, minlength=n_groups))[:-1])
