"""Results as dataframes of the library that the input came from."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, cast

import narwhals.stable.v2 as nw

from setsquare._typing import Table
from setsquare.errors import MissingDependencyError


def backend_of(*tables: Any) -> str:
    """Name of the first dataframe library among the inputs; pandas when there is none.

    Examples
    --------
    >>> backend_of([1, 2], None)
    'pandas'
    """
    for table in tables:
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
