"""Public interface to tables that are read in batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from setsquare import tables
from setsquare._typing import Table
from setsquare.errors import InputError
from setsquare.rows.batches import open_batches
from setsquare.rows.blocks import Block
from setsquare.rows.parallel import n_cores
from setsquare.rows.parquet import ArrowFiles, open_files
from setsquare.rows.passes import LocalParts, Parts, Source
from setsquare.rows.progress import show_progress
from setsquare.tables.arrow import is_unread

#: Bytes of the float64 values of a batch: more than for rows in memory, because each batch has a fixed cost to open.
BLOCK_BYTES = 2**23
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True, slots=True)
class Stream:
    """A table that is read in batches, as often as needed, and never loaded as a whole.

    Parameters
    ----------
    data : path, pattern or list of them; Arrow dataset; query; batches; dask dataframe
        Parquet or Feather files (``"rows/*.parquet"``); a ``pyarrow.dataset.Dataset``; whatever has Arrow's stream
        interface, such as a DuckDB relation (its query runs again in each pass), a record-batch reader or the result
        of an ADBC query (these can be read once, and are kept in a temporary file), or a lazy frame of polars; a
        sequence of tables, or of functions that load one; a function that returns a new iterator of tables in each
        call; a dask dataframe.
    columns : sequence of str, optional
        Columns to use; the others are not read. By default, all columns.
    memory : str or int
        Memory limit for the batches that are processed at a time, such as "256MB". Data sets with a filter or with
        partition keys in their paths are read by Arrow's scanner, which holds one or two row groups in addition.
    progress : bool
        Whether to show a progress bar for each pass.
    scratch : bool, str or path
        Whether a fit writes the encoded rows to a temporary file, which makes later passes faster than reading the
        source again; or the folder for this file. It takes 4 to 8 bytes per value, leaves one gigabyte of the disk
        free, and is deleted after the fit. If there is not enough space, the source is read in each pass.

    Examples
    --------
    >>> import numpy as np
    >>> table = np.arange(12.0).reshape(6, 2)
    >>> stream = Stream([table[:4], table[4:]])
    >>> stream.columns
    ('x0', 'x1')
    >>> [len(batch) for batch in stream]
    [4, 2]
    >>> stream["x1"].columns
    ('x1',)
    """

    data: Any
    columns: str | Sequence[str] = ()
    memory: str | int = "512MB"
    progress: bool = False
    scratch: bool | str | Path = True

    def __post_init__(self) -> None:
        source = self.data if isinstance(self.data, Source) else _open(self.data, self.scratch)
        asked = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns or source.columns)
        for name in asked:
            tables.check_column(name, source.columns)
        object.__setattr__(self, "data", source)
        object.__setattr__(self, "columns", asked)
        _bytes(self.memory)
        if not isinstance(self.scratch, bool) and not Path(self.scratch).is_dir():
            raise InputError(f"There is no folder {self.scratch}: create it, or omit scratch.")

    @property
    def n_rows(self) -> int | None:
        """Number of rows, if known without a pass."""
        source: Source = self.data
        return source.n_rows

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns in use."""
        return tuple(self.columns)

    @property
    def is_named(self) -> bool:
        """Whether columns have names; those of arrays do not."""
        source: Source = self.data
        return source.is_named

    def select(self, columns: str | Sequence[str]) -> Stream:
        """Return a stream of some of the columns."""
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        for name in names:
            tables.check_column(name, self.columns)
        return replace(self, columns=names)

    def keep(self) -> Stream:
        """Hold the columns in use on the workers of a cluster, if there is one; files are read again."""
        source: Source = self.data
        return replace(self, data=source.keep(self.names))

    __getitem__ = select

    def __iter__(self) -> Iterator[Table]:
        for table in self.parts():
            yield table if self.is_named else tables.select(table, self.names)

    def parts(self, width: int | None = None, least: int = 0) -> Parts[Table]:
        """Open the stream as tables.

        Parameters
        ----------
        width : int, optional
            Number of float64 values per encoded row; batches are sized so that these stay in the cache.
        least : int
            Number of rows that a batch should have where memory allows.
        """
        row_bytes = 8 * max(width or 0, len(self.columns))
        # Batches read ahead, encoded, and intermediate results of a kernel, for each thread and one that waits.
        bound = _bytes(self.memory) // (4 * row_bytes * (n_cores() + 1))
        if bound < 1:
            raise InputError(
                f"memory={self.memory!r} is too small for a few rows of {len(self.columns)} columns: increase it."
            )
        n_rows = min(max(bound, 1), max(1000, least, BLOCK_BYTES // row_bytes))
        source: Source = self.data
        progress = partial(show_progress, "rows read", self.n_rows) if self.progress else None
        return source.parts(self.columns, n_rows, progress)

    def hold(self, blocks: Parts[Block]) -> Parts[Block]:
        """Return blocks of this stream prepared for repeated passes, with a temporary file if requested."""
        if not self.scratch or not isinstance(blocks, LocalParts):
            return blocks
        from setsquare.rows.scratch import ScratchParts, Store, scratch_folder

        return ScratchParts(blocks, Store(scratch_folder(self.scratch)))


def as_stream(data: Any) -> Stream | None:
    """Return ``data`` as a stream if possible; None for arrays and dataframes in memory."""
    if isinstance(data, Stream):
        return data
    if isinstance(data, str | Path) or is_lazy(data) or is_unread(data):
        return Stream(data)
    return None


def is_lazy(data: Any) -> bool:
    """Whether this is an Arrow dataset or a dask collection."""
    module = type(data).__module__.partition(".")[0]
    return (module == "pyarrow" and hasattr(data, "get_fragments")) or hasattr(data, "__dask_graph__")


def is_dask_array(data: Any) -> bool:
    """Whether this is a dask array."""
    return hasattr(data, "__dask_graph__") and hasattr(data, "chunks")


def _open(data: Any, scratch: bool | str | Path) -> Any:
    if isinstance(data, str | Path):
        return open_files(data)
    if is_lazy(data):
        if hasattr(data, "get_fragments"):
            return ArrowFiles(data)
        from setsquare.rows.dask import open_dask

        return open_dask(data)
    if isinstance(data, Sequence) and data and all(isinstance(item, str | Path) for item in data):
        return open_files(data)
    if is_unread(data):
        from setsquare.rows.arrow_streams import open_query

        return open_query(data, None if isinstance(scratch, bool) else Path(scratch))
    if callable(data) or isinstance(data, Sequence):
        return open_batches(data)
    if isinstance(data, Iterator):
        raise InputError(
            f"A {type(data).__name__} can be read only once, but a fit reads the rows several times: pass a function "
            "that returns a new one."
        )
    raise InputError(
        f"Cannot read batches from a {type(data).__name__}: pass paths, an Arrow dataset, a query, batches or "
        "a dask collection."
    )


def _bytes(memory: str | int) -> int:
    """Convert a size such as "256MB" to bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?)i?b?\s*", str(memory).lower())
    if match is None:
        raise InputError(f"memory={memory!r} is not a size: write it like '256MB' or '2GB'.")
    return int(float(match[1]) * _UNITS[match[2]])
