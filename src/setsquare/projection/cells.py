"""Cells of the protected columns: combinations of levels, and of bands where a column has many values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, IntArray

#: A column with more values than this is cut into bands.
MOST_LEVELS = 8
#: Most bands of a column, and rows per feature that a cell should have on average.
MOST_BANDS, ROWS = 10, 2


@dataclass(frozen=True, slots=True)
class Cells:
    """Which cell a row is in: each column is cut at its thresholds, and cells are the combinations that occurred.

    Attributes
    ----------
    thresholds : tuple of ndarray
        For each of the p columns, in increasing order: between its values, or between its bands.
    codes : ndarray of shape (K, p)
        Part of each column for each cell.

    Examples
    --------
    >>> import numpy as np
    >>> cells = find_cells(np.array([[0.0, 1.0], [0.0, 2.0], [1.0, 1.0]]), n_features=2)
    >>> cells.of(np.array([[0.0, 2.0], [1.0, 1.0], [1.0, 2.0]])).tolist()
    [1, 2, -1]
    """

    thresholds: tuple[Array, ...]
    codes: IntArray

    def of(self, X: Array) -> IntArray:
        """Cell of each row of ``X`` (n, p); -1 for a combination that did not occur."""
        parts, place = np.unique(self.split(X), axis=0, return_inverse=True)
        known = {tuple(code): k for k, code in enumerate(self.codes.tolist())}
        numbers = np.array([known.get(tuple(part), -1) for part in parts.tolist()], dtype=np.intp)
        return numbers[place.reshape(-1)]

    def split(self, X: Array) -> IntArray:
        """Part of each column (n, p) that the rows of ``X`` are in."""
        columns = [np.searchsorted(cuts, X[:, j], side="right") for j, cuts in enumerate(self.thresholds)]
        return np.column_stack(columns)


def find_cells(X: Array, n_features: int) -> Cells:
    """Find the cells of the columns ``X`` (n, p).

    A column with at most 8 values has a part for each. Others are cut at quantiles into as many bands, from 2 to 10,
    as leave about two rows per feature in a cell.
    """
    distinct = [np.unique(x) for x in X.T]
    many = [len(values) > MOST_LEVELS for values in distinct]
    middle = [(values[1:] + values[:-1]) / 2.0 for values in distinct]
    none = np.zeros((0, 0), dtype=np.intp)
    levels = Cells(tuple(np.zeros(0) if m else cuts for m, cuts in zip(many, middle, strict=True)), none)
    n_combinations = len(np.unique(levels.split(X), axis=0))
    room = len(X) / (n_combinations * max(ROWS * n_features, 30))
    n_bands = int(np.clip(room ** (1.0 / max(sum(many), 1)), 2, MOST_BANDS))
    steps = np.arange(1, n_bands) / n_bands
    thresholds = tuple(
        np.unique(np.quantile(x, steps)) if m else cuts for x, m, cuts in zip(X.T, many, middle, strict=True)
    )
    return Cells(thresholds, np.unique(Cells(thresholds, none).split(X), axis=0))
