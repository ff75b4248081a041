"""Dask collections: functions are sent to the partitions, and only their results are transferred.

Each partition can be recomputed from the collection's graph, so the scheduler can recover from a lost worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from setsquare import tables
from setsquare._extras import require
from setsquare._typing import Table
from setsquare.errors import InputError
from setsquare.rows.batches import narrow
from setsquare.rows.passes import Parts, Piece, Progress, Source, apply
from setsquare.tables.validation import check_same_rows

T = TypeVar("T")
R = TypeVar("R")
#: Number of sums merged per task, in a tree: the caller receives one sum, whatever the number of partitions.
FAN_IN = 8


@dataclass(frozen=True, slots=True)
class DaskFrame(Source):
    """A dask dataframe or array; each of the partitions is a ``dask.delayed.Delayed``."""

    partitions: tuple[Any, ...]
    columns: tuple[str, ...]
    is_named: bool = False

    def keep(self, columns: Sequence[str]) -> DaskFrame:
        """Persist the tables on the workers of a cluster, so that they are read once and not in every pass."""
        tables = _persist([_delay(_read, part, tuple(columns)) for part in self.partitions])
        return self if tables is None else replace(self, partitions=tables, columns=tuple(columns))

    def parts(self, columns: Sequence[str], n_rows: int, progress: Progress | None) -> DaskParts[Table]:
        """Open tables of at most ``n_rows`` rows with these columns; dask has its own progress display."""
        pieces = [
            _delay(_cut, part, f"partition {i}", tuple(columns), n_rows) for i, part in enumerate(self.partitions)
        ]
        return DaskParts(tuple(pieces))


@dataclass(frozen=True, slots=True)
class DaskParts(Parts[T]):
    """Parts on the workers of a cluster, or wherever dask's scheduler places them; each a delayed list of pieces."""

    lists: tuple[Any, ...]
    functions: tuple[Callable[[Any], Any], ...] = ()

    def reduce(self, kernel: Callable[[T], R], merge: Callable[[R, R], R]) -> R:
        """Merge the results of ``kernel`` for each part, on the workers, in a fixed order."""
        plan = _ship((*self.functions, kernel), merge)
        level = [_delay(_fold, plan, pieces) for pieces in self.lists]
        while len(level) > 1:
            level = [_delay(_merge, plan, level[i : i + FAN_IN]) for i in range(0, len(level), FAN_IN)]
        (total,) = _dask().compute(*level)
        if total is None:
            raise InputError("The source has no rows: pass a collection with at least one row.")
        return total  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        plan = _ship(self.functions, None)
        start, count = 0, 1
        while start < len(self.lists):
            chosen = self.lists[start : start + count]
            for done in _dask().compute(*(_delay(_work, plan, pieces) for pieces in chosen)):
                yield from (piece.table for piece in done)
            start, count = start + count, FAN_IN

    def keep(self) -> DaskParts[T]:
        """Persist the parts on the workers of a cluster; local schedulers share our memory and recompute them."""
        plan = _ship(self.functions, None)
        lists = _persist([_delay(_work, plan, pieces) for pieces in self.lists])
        return self if lists is None else DaskParts(lists)


def open_dask(collection: Any) -> DaskFrame:
    """Open a dask dataframe or a two-dimensional dask array."""
    require("Dask collections need", "dask")
    if hasattr(collection, "columns"):
        return DaskFrame(tuple(collection.to_delayed()), tuple(map(str, collection.columns)), True)
    if getattr(collection, "ndim", 0) == 2:
        return DaskFrame(_row_blocks(collection, None), tuple(f"x{j}" for j in range(collection.shape[1])))
    raise InputError(
        f"A dask {type(collection).__name__} is not a table: pass a dask dataframe or a two-dimensional dask array."
    )


def join_arrays(arrays: Mapping[str, Any]) -> DaskFrame:
    """Join dask arrays with the same rows; columns are named ``x0``, … for "features", and by their key for others."""
    chunks = arrays["features"].chunks[0]
    columns: list[str] = []
    for key, array in arrays.items():
        check_same_rows(f"{key} has", array.shape[0], "the features have", arrays["features"].shape[0])
        if array.ndim == 1:
            columns.append(key)
        else:
            columns += [f"x{j}" if key == "features" else f"{key}_x{j}" for j in range(array.shape[1])]
    blocks = zip(*(_row_blocks(array, chunks) for array in arrays.values()), strict=True)
    return DaskFrame(tuple(_delay(_beside, tuple(columns), *parts) for parts in blocks), tuple(columns))


def _row_blocks(array: Any, chunks: Any) -> tuple[Any, ...]:
    sizes = {0: chunks or array.chunks[0]} | ({1: -1} if array.ndim == 2 else {})
    return tuple(np.ravel(array.rechunk(sizes).to_delayed()))


def _beside(columns: tuple[str, ...], *blocks: Any) -> Table:
    import pandas as pd

    return pd.DataFrame(np.column_stack(blocks), columns=list(columns), copy=False)


def _dask() -> Any:
    return import_module("dask")  # untyped


def _delay(function: Callable[..., Any], *arguments: Any) -> Any:
    return _dask().delayed(function, pure=False, traverse=False)(*arguments)


def _persist(tasks: list[Any]) -> tuple[Any, ...] | None:
    """Tasks whose results stay on the workers of a cluster; None for other schedulers."""
    scheduler = getattr(_dask().base.get_scheduler(), "__self__", None)
    return tuple(_dask().persist(*tasks)) if hasattr(scheduler, "cluster") else None


def _ship(functions: tuple[Callable[[Any], Any], ...], merge: Any) -> Any:
    """Functions as a separate task: sent once, not with every partition, and recomputed if its worker is lost."""
    import cloudpickle

    return _delay(cloudpickle.loads, cloudpickle.dumps((functions, merge)))


def _cut(table: Any, origin: str, columns: tuple[str, ...], n_rows: int) -> list[Piece]:
    count = tables.n_rows(table)
    table = _read(table, columns) if count else table
    starts = range(0, count, n_rows)
    return [Piece(tables.slice_rows(table, i, n_rows), min(n_rows, count - i), origin) for i in starts]


def _read(table: Any, columns: tuple[str, ...]) -> Table:
    """Columns of a partition; pandas is converted to a pyarrow table, which is ten times faster to read."""
    table = narrow(table, columns)
    if type(table).__module__.partition(".")[0] != "pandas":
        return table
    import pyarrow as pa

    try:
        return pa.Table.from_pandas(table, preserve_index=False, nthreads=1)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return table  # types unknown to Arrow are read or refused by the design


def _work(plan: Any, pieces: list[Piece]) -> list[Piece]:
    functions, _ = plan
    return [piece._replace(table=apply(functions, piece)) for piece in pieces]


def _fold(plan: Any, pieces: list[Piece]) -> Any:
    functions, merge = plan
    return reduce(merge, (apply(functions, piece) for piece in pieces)) if pieces else None


def _merge(plan: Any, sums: list[Any]) -> Any:
    present = [part for part in sums if part is not None]
    return reduce(plan[1], present) if present else None
