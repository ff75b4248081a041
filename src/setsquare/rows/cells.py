"""Rows of a basis that repeat: protected columns that are dummies have few different rows, however many rows there are.

The basis of sex and race has 18 different rows, one per combination. Products with it are then sums by combination: one
sum per category of the features, where the basis itself would take one for each of its columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array
from setsquare.tables.mixed_matrix import Index, MixedMatrix

#: Columns from which cells are faster than the columns themselves, and combinations up to which they are.
FEWEST_COLUMNS, MOST_CELLS = 3, 512


@dataclass(frozen=True, slots=True)
class Cells:
    """A matrix (n, r) of which row i is ``values[code[i]]``, beside features that are numbers and categories.

    Attributes
    ----------
    code : ndarray of shape (n,)
    values : ndarray of shape (c, r)
    flat : tuple of ndarray of shape (n,)
        Combination of a level and a cell in each row, for each category of the features.
    """

    code: Index
    values: Array
    flat: tuple[Index, ...]

    @classmethod
    def of(cls, Z: MixedMatrix, X: Array, Q: Array) -> Cells | None:
        """Cells of a basis ``Q`` (n, r) of columns ``X`` (n, p); None unless these have two values each.

        Examples
        --------
        >>> import numpy as np
        >>> from setsquare.tables.mixed_matrix import join
        >>> Z = join(np.zeros((4, 0)), [np.array([0, 1, 0, 1])], [2], [True])
        >>> X = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
        >>> Cells.of(Z, X, X).code
        array([2, 0, 0, 1])
        """
        code = combinations_of(X) if Q.shape[1] >= FEWEST_COLUMNS else None
        if code is None:
            return None
        seen, first = np.unique(code, return_index=True)
        place = np.zeros(seen[-1] + 1, dtype=np.intp)
        place[seen] = np.arange(len(seen))
        code = place[code]
        flat = tuple((Z.codes[:, j] - start) * len(seen) + code for j, start in enumerate(Z.bounds[:-1]))
        return cls(code, Q[first], flat)

    def times(self, thin: Array) -> Array:
        """Product (n, k) with ``thin`` (r, k)."""
        return np.asarray((self.values @ thin)[self.code])

    def product(self, Z: MixedMatrix, weight: Array) -> Array:
        """``Z' diag(weight) Q``, (q, r)."""
        c = len(self.values)
        by_level = np.empty((Z.n_levels, c))
        for part, flat in zip(Z.parts, self.flat, strict=True):
            by_level[part.levels] = np.bincount(flat, weights=weight, minlength=part.size * c).reshape(part.size, c)
        by_column = Z.onto @ by_level
        for place, numbers in zip(Z.places, Z.dense.T, strict=True):
            by_column[place] = np.bincount(self.code, weights=weight * numbers, minlength=c)
        return np.asarray(by_column @ self.values)


def combinations_of(X: Array) -> Index | None:
    """Number of the combination of values in each row; None if a column has more than two, or there are too many."""
    code = np.zeros(len(X), dtype=np.intp)
    n_cells = 1
    for column in X.T:
        low, high = column.min(), column.max()
        if low == high:
            continue
        upper = column == high
        if not (upper | (column == low)).all():
            return None
        code += n_cells * upper
        n_cells *= 2
        if n_cells > MOST_CELLS:
            return None
    return code
