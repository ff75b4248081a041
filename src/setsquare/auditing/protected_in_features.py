"""Whether features determine protected columns: by value, whatever their names.

A model can be fitted to a protected column that the audit receives as a separate table: the column may still be among
the features, renamed, recoded, or as a linear combination of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from sklearn.utils import _safe_indexing

from setsquare._typing import Array, IntArray

#: Number of rows compared; more of them for many features.
COMPARED = 2000
#: With more features than this, only single columns are compared, and only up to scale.
WIDE = 1000
#: Share of a column's variance that is attributed to rounding.
ROUNDING = 1e-8


def determines(Z: Any, X: Array, rng: np.random.Generator) -> bool:
    """Whether a protected column is a function of one feature, or a linear combination of several.

    Parameters
    ----------
    Z : dataframe, array, sparse matrix or list of n rows
        Features.
    X : ndarray of shape (n, p)
        Coded protected columns.
    rng : Generator
        Chooses the rows that are compared.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.normal(size=(100, 3))
    >>> x = (rng.random(100) < 0.4).astype(float)
    >>> determines(Z, x[:, None], rng), determines(np.column_stack([Z, Z[:, 0] - 2.0 * x]), x[:, None], rng)
    (False, True)
    """
    n = len(X)
    m = min(n, max(COMPARED, 3 * _width(Z)) if _width(Z) <= WIDE else COMPARED)
    rows = np.sort(rng.choice(n, m, replace=False)) if m < n else np.arange(n)
    X = X[rows] - X[rows].mean(axis=0)
    size = np.linalg.norm(X, axis=0)
    X = X[:, size > 0.0] / size[size > 0.0]
    if not X.shape[1]:
        return False
    part = _safe_indexing(Z, rows)
    if _width(Z) > WIDE or hasattr(part, "tocsr"):
        return _resembles(part if hasattr(part, "tocsr") else _matrix(part), X)
    numbers: list[Array] = []
    for codes, values in _columns(part, m):
        if codes is not None and _is_function(codes, X):
            return True
        numbers += [] if values is None else [values]
    return bool(numbers) and _combines(np.column_stack(numbers), X)


def _width(Z: Any) -> int:
    shape = np.shape(Z) if not hasattr(Z, "shape") else Z.shape
    return int(np.prod(shape[1:])) if len(shape) > 1 else 1


def _matrix(part: Any) -> Array:
    """Wide features as numbers; columns that are not numeric are skipped."""
    try:
        values = np.asarray(part, dtype=np.float64).reshape(len(part), -1)
    except (TypeError, ValueError):
        return np.zeros((len(part), 0))
    return np.asarray(values[:, np.isfinite(values).all(axis=0)])


def _resembles(F: Any, X: Array) -> bool:
    """Whether some column of the features, dense or sparse, is one of ``X`` in other units."""
    squares = F.multiply(F) if hasattr(F, "tocsr") else F * F
    mean, square = (np.asarray(part.mean(axis=0)).ravel() for part in (F, squares))
    spread = np.maximum(square - mean**2, 0.0)
    varies = spread > 1e-12 * square
    if not varies.any():
        return False
    size = np.sqrt(len(X) * np.where(varies, spread, np.inf))
    correlation = np.asarray(F.T @ X) / size[:, None]
    return bool((1.0 - correlation**2).min() < ROUNDING)


def _columns(part: Any, m: int) -> Iterator[tuple[IntArray | None, Array | None]]:
    """Level codes of each feature with few levels, and the values of each numeric feature."""
    frame = nw.from_native(part, eager_only=True, allow_series=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        columns = [frame[:, j].to_numpy() for j in range(frame.shape[1])]
    else:
        columns = list(np.asarray(part).reshape(m, -1).T)
    for column in columns:
        values: Array | None
        try:
            values = np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError):
            values = None
        levels, codes = np.unique(column.astype(str) if values is None else values, return_inverse=True)
        few = 1 < len(levels) <= max(2, m // 10)
        yield (codes if few else None), (values if values is not None and np.isfinite(values).all() else None)


def _is_function(codes: IntArray, X: Array) -> bool:
    """Whether rows with the same level always have the same value of some protected column."""
    first = np.unique(codes, return_index=True)[1]
    return bool((np.abs(X - X[first[codes]]).max(axis=0) == 0.0).any())


def _combines(F: Array, X: Array) -> bool:
    """Whether a linear combination of the features is a column of ``X``."""
    F = F - F.mean(axis=0)
    size = np.linalg.norm(F, axis=0)
    F = F[:, size > 0.0] / size[size > 0.0]
    if not F.shape[1]:
        return False
    if 2 * F.shape[1] > len(X):  # this many features can fit any column
        return bool((1.0 - (F.T @ X) ** 2).min() < ROUNDING)
    left = X - F @ np.linalg.lstsq(F, X, rcond=1e-12)[0]
    return bool((left**2).sum(axis=0).min() < ROUNDING)
