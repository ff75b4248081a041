"""One view of every kind of table: dataframes through narwhals, arrays, sparse matrices.

Columns have names and positions; a table is returned as the kind it came in. Coding is done elsewhere.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeGuard, cast

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from scipy import sparse

from setsquare._typing import Array, BoolArray, Matrix, Table
from setsquare.errors import InputError, MissingDependencyError
from setsquare.tables.arrow import is_unread, read_unread
from setsquare.tables.validation import refuse_lazy, refuse_masked

#: Columns asked for: names, integer positions, one of either, or None for all.
ColumnSelection: TypeAlias = str | int | Sequence[str | int] | None


@dataclass(frozen=True, slots=True)
class Frame:
    """A table with named columns: a narwhals dataframe, a 2-D array, or a CSR matrix as `source`.

    `seen` keeps the columns that were read: a design is learned from a table and then applied to it. `places` has the
    position of each name after the first search, which would otherwise go through thousands of names for each of them.
    """

    names: tuple[str, ...]
    n_rows: int
    source: Any
    seen: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    places: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def position(self, name: str) -> int:
        """Position of a column, or an error that suggests the nearest names."""
        if not self.places:
            self.places.update((name, j) for j, name in enumerate(self.names))
        if name not in self.places:
            unnamed = not isinstance(self.source, nw.DataFrame) and self.names[:1] == ("x0",)
            if unnamed and not difflib.get_close_matches(name, self.names, n=1):
                raise InputError(
                    f"There is no column {name!r}; the table is an array without names (x0, x1, …): pass a dataframe, "
                    'or the column itself; in a pipeline, set_output(transform="pandas") keeps the names'
                )
            check_column(name, self.names)
        return self.places[name]

    def column(self, name: str) -> Any:
        """One column: a narwhals series, or values (n,) of an array."""
        j = self.position(name)
        if isinstance(self.source, nw.DataFrame):
            with suppress(KeyError):  # pandas labels that are not text
                return self.source.get_column(name)  # by position, narwhals lists all columns first
        return self.source[:, j]

    def take(self, positions: Sequence[int]) -> Any:
        """Columns at `positions`, as the kind of table that `source` is."""
        return self.source[:, list(positions)]

    def without(self, names: Sequence[str]) -> Frame:
        """The same rows without some columns."""
        if not names:
            return self
        kept = [j for j, name in enumerate(self.names) if name not in names]
        return Frame(tuple(self.names[j] for j in kept), self.n_rows, self.take(kept), self.seen)


def open_table(table: Table) -> Frame:
    """View any table as a :class:`Frame`, without a copy; a frame is returned as it is."""
    if isinstance(table, Frame):
        return table
    if type(table) is np.ndarray and table.ndim == 2:  # further checks add up, because tables are opened often
        return _from_matrix(table)
    if is_sparse(table):
        return _from_matrix(table.tocsr())
    native = None if isinstance(table, np.ndarray) else _as_narwhals(table)  # narwhals takes longer than a small fit
    if native is None:
        return _from_matrix(_as_array(table))
    names = tuple(str(name) for name in native.columns)
    _refuse_duplicates(names)
    return Frame(names, len(native), native)


def is_sparse(table: Any) -> bool:
    """Whether this is a scipy.sparse matrix or array."""
    return type(table) is not np.ndarray and bool(sparse.issparse(table))


def is_dataframe(table: Table) -> bool:
    """Whether a table has column names."""
    return hasattr(table, "columns") or hasattr(table, "column_names")


def dense(values: Matrix) -> Array:
    """A dense float64 array of a matrix that may be sparse."""
    return np.asarray(values.toarray() if is_sparse(values) else values, dtype=np.float64)


def require_filled(frame: Frame) -> None:
    """Refuse a table without rows or without columns."""
    if frame.n_rows == 0 or not frame.names:
        raise InputError(
            f"The table is empty ({frame.n_rows} rows, {len(frame.names)} columns); "
            "give at least one row and one column."
        )


def is_formula(columns: object, names: Collection[str]) -> TypeGuard[str]:
    """Whether a selection of columns is a formula; the name of a column never is.

    Examples
    --------
    >>> is_formula("~ sex * race", ["sex", "race"]), is_formula("~ sex", ["~ sex"]), is_formula("sex", ["sex"])
    (True, False, False)
    """
    return isinstance(columns, str) and columns.lstrip().startswith("~") and columns not in names


def resolve(frame: Frame, columns: ColumnSelection) -> tuple[int, ...]:
    """Positions of the columns asked for by name or by position."""
    if columns is None:
        return tuple(range(len(frame.names)))
    asked: Iterable[Any] = columns if isinstance(columns, Iterable) and not isinstance(columns, str) else [columns]
    positions = tuple(_position(frame, column) for column in asked)
    _refuse_duplicates([frame.names[j] for j in positions])
    return positions


def column_names(table: Table) -> tuple[str, ...]:
    """Names of the columns; those of an array are ``x0``, ``x1``, ….

    Examples
    --------
    >>> column_names([[1, 2], [3, 4]])
    ('x0', 'x1')
    """
    return open_table(table).names


def n_rows(table: Table) -> int:
    """Count the rows of a table.

    Examples
    --------
    >>> n_rows([1.0, 2.0, 3.0])
    3
    """
    if type(table) is np.ndarray and table.ndim in (1, 2):
        return len(table)
    # A view of a pyarrow table, as batches of files are, takes longer than much of the work on one.
    is_read = type(table).__module__ == "pyarrow.lib" and hasattr(table, "num_rows")
    return int(table.num_rows) if is_read else open_table(table).n_rows


def select(table: Table, columns: ColumnSelection) -> Table:
    """Take some columns, by name or position, as the same kind of table; None takes all.

    Examples
    --------
    >>> select([[1, 2], [3, 4]], "x1")
    array([[2],
           [4]])
    """
    frame = open_table(table)
    return _native(frame.take(resolve(frame, columns)))


def drop(table: Table, columns: ColumnSelection) -> Table:
    """Leave out some columns, by name or position, of the same kind of table; None leaves out nothing.

    Examples
    --------
    >>> drop([[1, 2], [3, 4]], "x1")
    array([[1],
           [3]])
    """
    frame = open_table(table)
    gone = set() if columns is None else set(resolve(frame, columns))
    return _native(frame.take([j for j in range(len(frame.names)) if j not in gone]))


def filter_rows(table: Table, keep: BoolArray | None) -> Table:
    """Keep the rows that an :class:`Encoded` kept, by a mask (n,), as the same kind of table; None keeps every row.

    Examples
    --------
    >>> import numpy as np
    >>> filter_rows(np.array([[1, 2], [3, 4]]), np.array([False, True]))
    array([[3, 4]])
    """
    if keep is None:
        return table
    source = open_table(table).source
    return _native(source.filter(keep.tolist()) if isinstance(source, nw.DataFrame) else source[keep])


def slice_rows(table: Table, start: int, count: int) -> Table:
    """Take at most `count` rows from `start` on, as the same kind of table.

    Examples
    --------
    >>> slice_rows([[1, 2], [3, 4], [5, 6]], 1, 9)
    array([[3, 4],
           [5, 6]])
    """
    return _native(open_table(table).source[start : start + count])


def check_column(name: str, names: Sequence[str]) -> None:
    """Refuse a name that is not among `names`, and suggest the nearest.

    Examples
    --------
    >>> check_column("age", ["age", "sex"])
    """
    if name not in names:
        if close := difflib.get_close_matches(name, names, n=3):
            hint = f"did you mean {' or '.join(map(repr, close))}?"
        else:
            hint = f"the table has {', '.join(map(repr, names[:8]))}{', …' if len(names) > 8 else ''}"
        raise InputError(f"There is no column {name!r}; {hint}")


def to_numpy(series: nw.Series[Any]) -> np.ndarray[Any, Any]:
    """Values of a series; numbers of a pyarrow column without its own conversion, which would import pandas.

    Examples
    --------
    >>> import pyarrow as pa
    >>> to_numpy(nw.from_native(pa.chunked_array([[1.0, 2.0], [3.0]]), series_only=True))
    array([1., 2., 3.])
    """
    is_number = isinstance(series.dtype, nw.Float64 | nw.Float32 | nw.Int64 | nw.Int32 | nw.UInt64 | nw.UInt32)
    if not (series.implementation.is_pyarrow() and is_number and len(series)) or series.null_count():
        return series.to_numpy()
    native = series.to_native()
    return np.from_dlpack(native.chunk(0) if native.num_chunks == 1 else native.combine_chunks())


def _as_narwhals(table: Table) -> nw.DataFrame[Any] | None:
    try:
        native = nw.from_native(table, eager_only=True, allow_series=True, pass_through=True)
    except DuplicateError:
        names = getattr(table, "column_names", None) or list(table.columns)
        _refuse_duplicates([str(name) for name in names])
        raise
    if isinstance(native, nw.Series):
        return native.to_frame() if native.name else native.alias("x0").to_frame()
    if isinstance(native, nw.DataFrame):
        return native
    if is_unread(table):
        return cast(nw.DataFrame[Any], nw.from_native(read_unread(table), eager_only=True))
    refuse_lazy(table)
    return None


def _as_array(table: Table) -> np.ndarray[Any, Any]:
    refuse_masked(table)
    try:
        array = np.asarray(table)
        if array.dtype.kind == "U" and not isinstance(table, np.ndarray):
            # A nested list with one text column: numpy would turn its numbers into text too.
            array = np.asarray(table, dtype=object)
    except ValueError as error:
        raise InputError(f"The rows of the table do not have equal lengths ({error}).") from error
    if array.ndim not in (1, 2):
        raise InputError(
            f"Pass a dataframe or an array of one or two dimensions, not {type(table).__name__} "
            f"with {array.ndim} dimensions."
        )
    return array.reshape(-1, 1) if array.ndim == 1 else array


def _from_matrix(matrix: Any) -> Frame:
    return Frame(_array_names(matrix.shape[1]), matrix.shape[0], matrix)


@lru_cache(maxsize=64)
def _array_names(count: int) -> tuple[str, ...]:
    return tuple(f"x{j}" for j in range(count))


def _native(source: Any) -> Table:
    return source.to_native() if isinstance(source, nw.DataFrame) else source


def _position(frame: Frame, column: Any) -> int:
    if isinstance(column, str):
        return frame.position(column)
    if isinstance(column, bool | np.bool_) or not isinstance(column, int | np.integer):
        raise InputError(f"Columns are selected by name or position, not by {column!r}.")
    k = len(frame.names)
    if str(column) in frame.names and (not 0 <= column < k or frame.names[column] != str(column)):
        raise InputError(
            f"{column} is a position and also the name of another column; write {str(column)!r} for that one."
        )
    if not -k <= column < k:
        raise InputError(f"There is no column at position {column}; the table has {k} columns.")
    return int(column) % k


def _refuse_duplicates(names: Sequence[str]) -> None:
    twice = [repr(name) for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"Column names must be unique, but {', '.join(twice)} occurs more than once; rename.")


def backend_of(*tables: Any) -> str:
    """Name of the first dataframe library among the inputs; pandas when there is none.

    Examples
    --------
    >>> backend_of([1, 2], None)
    'pandas'
    """
    for table in tables:
        if table is None or isinstance(table, np.ndarray):  # narwhals is slow to say that it does not know them
            continue
        native = nw.from_native(table, eager_only=True, allow_series=True, pass_through=True)
        if isinstance(native, nw.DataFrame | nw.Series):
            return str(native.implementation.value)
    return "pandas"


def to_frame(columns: dict[str, list[Any]], backend: str) -> Table:
    """Make a dataframe."""
    if find_spec(backend) is None:
        raise MissingDependencyError(
            f"A table needs {backend}: pip install {backend}, or use to_dict(), which needs nothing."
        )
    return nw.from_dict(columns, backend=cast(Any, backend)).to_native()
