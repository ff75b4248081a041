"""Tables of other libraries that speak Arrow's stream interface (``__arrow_c_stream__``), and lazy frames.

A DuckDB relation, the result of an ADBC query, a record-batch reader or a lazy polars frame is read into memory here;
:mod:`setsquare.rows.arrow_streams` reads the same in batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import narwhals.stable.v2 as nw

from setsquare.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")


def is_unread(data: Any) -> bool:
    """Whether rows can be had from this by Arrow's stream interface or by collecting it, and are not in memory yet.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"age": [41, 29]})
    >>> is_unread(table.to_reader()), is_unread(table), is_unread([41, 29])
    (True, False, False)
    """
    home, kind = type(data).__module__.partition(".")[0], type(data).__name__
    if home == "polars":
        return kind == "LazyFrame"
    if home in ("numpy", "builtins", "pandas", "setsquare") or not hasattr(data, "__arrow_c_stream__"):
        return False
    if home == "pyarrow":
        return kind not in ("Table", "ChunkedArray")
    known = nw.from_native(data, allow_series=True, pass_through=True)
    return not isinstance(known, nw.DataFrame | nw.Series)


def read_unread(data: Any) -> Any:
    """Rows in memory of what :func:`is_unread`; anything else is returned as it is.

    Examples
    --------
    >>> import pyarrow as pa
    >>> read_unread(pa.table({"age": [41, 29]}).to_reader()).column_names
    ['age']
    """
    if not is_unread(data):
        return data
    if type(data).__module__.startswith("polars"):
        return data.collect()
    with open_reader(data) as reader:
        try:
            return reader.read_all()
        except Exception as error:  # a stream that was closed, or whose query failed
            raise _unreadable(data, error) from error


def open_reader(data: Any) -> Any:
    """A record-batch reader of what speaks Arrow's stream interface."""
    import pyarrow as pa

    try:
        return pa.RecordBatchReader.from_stream(data)
    except Exception as error:  # of the library that made the stream
        raise _unreadable(data, error) from error


def _unreadable(data: Any, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return InputError(f"The rows of a {type(data).__name__} cannot be read ({reason}): run the query again.")


def accept_unread(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function take, for any of its arguments, what speaks Arrow's stream interface; it is read once."""

    @wraps(function)
    def reading(*arguments: P.args, **options: P.kwargs) -> R:
        if not any(map(is_unread, (*arguments, *options.values()))):
            return function(*arguments, **options)
        read = {name: read_unread(value) for name, value in options.items()}
        return function(*map(read_unread, arguments), **read)

    return reading
