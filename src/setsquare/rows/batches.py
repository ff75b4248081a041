"""User-supplied batches: tables in memory, or functions that load them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from setsquare import tables
from setsquare._typing import Table
from setsquare.errors import InputError
from setsquare.rows.passes import Piece, Source
from setsquare.tables.frame import is_dataframe


@dataclass(frozen=True, slots=True)
class Batches(Source):
    """Tables in memory; ``make`` returns a new iterable of tables, or of functions that return one."""

    make: Callable[[], Iterable[Any]]
    columns: tuple[str, ...]
    is_named: bool

    def _read(self, columns: Sequence[str], n_rows: int) -> Iterator[Piece]:
        for i, table in enumerate(map(_load, self.make())):
            if not (count := tables.n_rows(table)):
                continue
            table = narrow(table, columns)
            for start in range(0, count, n_rows):
                part = table if n_rows >= count else tables.slice_rows(table, start, n_rows)
                yield Piece(part, min(n_rows, count - start), f"batch {i}")


def open_batches(data: Any) -> Batches:
    """Open a sequence of tables, or a function that returns an iterator of them."""
    make: Callable[[], Iterable[Any]] = data if callable(data) else lambda: data
    first = next(iter(make()), None)
    if first is None:
        raise InputError("The source has no batches: pass at least one.")
    if callable(data) and make() is make():
        raise InputError("The function returns the same iterator twice: return a new one in each call.")
    table = _load(first)
    return Batches(make, tables.column_names(table), is_dataframe(table))


def narrow(table: Table, names: Sequence[str]) -> Table:
    """Select columns of a dataframe by name; arrays have no column names and are returned whole."""
    if not is_dataframe(table) or tables.column_names(table) == tuple(names):
        return table
    return tables.select(table, list(names))


def _load(batch: Any) -> Table:
    return batch() if callable(batch) else batch
