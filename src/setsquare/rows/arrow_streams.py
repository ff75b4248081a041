"""Rows in batches from what speaks Arrow's stream interface: database queries, readers, lazy frames."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw

from setsquare.errors import InputError
from setsquare.rows.parquet import ArrowFiles
from setsquare.rows.passes import Piece, Source
from setsquare.tables.arrow import open_reader

#: Rows of a batch by which a query that can be run once is written to a temporary file.
SPILLED_ROWS = 2**16


@dataclass(frozen=True, slots=True)
class Query(Source):
    """A lazy frame of narwhals, such as a DuckDB relation: it runs again in each pass, for the columns in use."""

    frame: Any
    columns: tuple[str, ...]

    def _read(self, columns: Sequence[str], n_rows: int) -> Iterator[Piece]:
        import pyarrow as pa

        native = self.frame.select(*columns).to_native()
        if hasattr(native, "collect_batches"):  # polars
            batches: Iterator[Any] = (batch.to_arrow() for batch in native.collect_batches())
        elif hasattr(native, "to_arrow_reader"):  # DuckDB, whose own batches have up to a million rows
            batches = _drain(native.to_arrow_reader(n_rows))
        else:
            batches = _drain(open_reader(native))
        for batch in batches:
            table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            for start in range(0, table.num_rows, n_rows):
                part = table.slice(start, n_rows)
                yield Piece(part, part.num_rows, "")


def open_query(data: Any, folder: Path | None) -> Source:
    """Open a query, or a reader that can be read once, which is written to a temporary file in ``folder``."""
    native = nw.from_native(data, pass_through=True)
    if isinstance(native, nw.LazyFrame):
        return Query(native, tuple(native.collect_schema().names()))
    return _spill(data, folder)


def _drain(reader: Any) -> Iterator[Any]:
    """Batches of a reader, which is closed at the end of the pass: a connection has one open result at a time."""
    with closing(reader):
        yield from reader


def _spill(data: Any, folder: Path | None) -> Source:
    """Write rows that can be read once to a temporary file, which is deleted with its source."""
    import pyarrow as pa
    import pyarrow.dataset as pads
    import pyarrow.parquet as pq

    descriptor, name = tempfile.mkstemp(suffix=".parquet", prefix="setsquare-", dir=folder)
    os.close(descriptor)
    try:
        with closing(open_reader(data)) as reader, pq.ParquetWriter(name, reader.schema) as writer:
            for batch in reader:
                for start in range(0, batch.num_rows, SPILLED_ROWS):
                    writer.write_batch(batch.slice(start, SPILLED_ROWS))
        source = ArrowFiles(pads.dataset(name, format="parquet"))
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, pa.ArrowException | OSError):
            reason = str(error).splitlines()[0]
            raise InputError(
                f"The rows of a {type(data).__name__} could not be kept for several passes ({reason}): write them to "
                "a Parquet file, and pass its path."
            ) from error
        raise
    weakref.finalize(source.dataset, Path(name).unlink, missing_ok=True)
    return source
