"""Some columns of a file as a table, checked; with notes on what was guessed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, ipc

from setsquare.cli.contents import open_unpacked, reading, seekable
from setsquare.cli.csv_text import (
    FALLBACK,
    decimal_commas,
    guessed_encoding,
    is_utf8,
    leading_zeros,
    read_decimal_commas,
    refuse_encoding,
)
from setsquare.cli.sources import MAX_COLUMNS, Source
from setsquare.errors import InputError
from setsquare.notes import Note
from setsquare.storage.files import check_memory

#: Numbers above this have no squares in float64, nor sums of squares.
LARGEST = 1e150
_PIECE = 1 << 16


def read_columns(source: Source, columns: Sequence[str], text: Sequence[str] = ()) -> tuple[pa.Table, tuple[Note, ...]]:
    """Read some columns, those in `text` as text even if they look numeric."""
    if len(columns) > MAX_COLUMNS:
        raise InputError(
            f"{len(columns)} columns of {source.name} would be read, at most {MAX_COLUMNS} are: name fewer columns."
        )
    with reading(source.name):
        table, notes = _read(source, list(columns), text)
        table = table.select(list(columns))
        if source.kind in ("parquet", "feather"):  # texts and offsets of a damaged file can point anywhere
            table.validate(full=True)
        for name in text:
            j = table.schema.get_field_index(name)
            if j >= 0 and not pa.types.is_string(table.schema.types[j]):
                table = table.set_column(j, name, table.column(j).cast(pa.string()))
    _check(table, source)
    return table, notes


def _check(table: pa.Table, source: Source) -> None:
    if not table.num_rows:
        raise InputError(f"{source.name} has no rows below the header: add at least one.")
    for field in table.schema:
        if pa.types.is_binary(field.type):
            if source.kind == "csv":
                refuse_encoding(source.name, source.encoding.name)
            raise InputError(f"The column {field.name!r} of {source.name} holds bytes: convert it to text.")
    check_magnitude(table)


def check_magnitude(table: pa.Table) -> None:
    """Refuse numbers whose squares exceed float64; infinite ones are refused where missing values are."""
    for field in table.schema:
        if pa.types.is_floating(field.type):
            ends = pc.min_max(table.column(field.name)).as_py()
            largest = max((abs(end) for end in ends.values() if end is not None), default=0.0)
            if LARGEST < largest < math.inf:
                raise InputError(
                    f"Column {field.name!r} has values as large as {largest:.3g}: rescale or correct them."
                )


def _read(source: Source, columns: list[str], text: Sequence[str]) -> tuple[pa.Table, tuple[Note, ...]]:
    if source.kind == "parquet":
        from pyarrow import parquet

        with parquet.ParquetFile(seekable(source.content)) as file:
            check_memory(8 * file.metadata.num_rows * len(columns), source.name)
            return file.read(columns=columns), ()
    if source.kind == "excel":
        return source.sheet, ()
    if source.kind == "feather":
        fields = ipc.IpcReadOptions(included_fields=[source.columns.index(name) for name in columns])
        return ipc.open_file(seekable(source.content), options=fields).read_all(), ()
    return _read_csv(source, columns, text)


def _read_csv(source: Source, columns: list[str], text: Sequence[str]) -> tuple[pa.Table, tuple[Note, ...]]:
    table, notes = _parse_csv(source, columns, text, source.encoding.name), []
    guessed = source.encoding.is_guess
    if source.reading.encoding is None and (table is None or any(map(pa.types.is_binary, table.schema.types))):
        table, guessed = _parse_csv(source, columns, text, FALLBACK), True
    if table is None:
        refuse_encoding(source.name, source.encoding.name)
    if guessed:
        notes.append(guessed_encoding(source.name))
    if source.reading.decimal is None:
        kept = [name for name in table.column_names if name not in text]
        table, found = read_decimal_commas(table, kept)
        notes.extend([decimal_commas(found)] if found else [])
    whole = [name for name in table.column_names if pa.types.is_integer(table.schema.field(name).type)]
    return table, (*notes, *(leading_zeros(_first_texts(source, whole, guessed)) if whole else ()))


def _first_texts(source: Source, columns: list[str], guessed: bool) -> pa.Table:
    """The first rows of some columns, as texts."""
    convert = csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.string()))
    options = csv.ReadOptions(encoding=FALLBACK if guessed else source.encoding.name, block_size=_PIECE)
    parsing = csv.ParseOptions(delimiter=source.delimiter)
    try:
        with open_unpacked(source.content, source.name, packed=source.packed) as stream:
            return pa.Table.from_batches([csv.open_csv(stream, options, parsing, convert).read_next_batch()])
    except (pa.ArrowInvalid, StopIteration):  # a row is longer than the piece, or a text has line breaks
        return pa.table({})


def _parse_csv(source: Source, columns: list[str], text: Sequence[str], encoding: str) -> pa.Table | None:
    """Columns of a CSV file, or None if it is not in this encoding."""
    convert = csv.ConvertOptions(
        include_columns=columns,
        column_types={name: pa.string() for name in text},
        strings_can_be_null=True,
        decimal_point=source.reading.decimal or ".",
    )
    # Quoted texts with line breaks are rare, and looking for them takes a reader of one thread.
    for quoted_lines in (False, True):
        parsing = csv.ParseOptions(delimiter=source.delimiter, newlines_in_values=quoted_lines)
        try:
            with open_unpacked(source.content, source.name, packed=source.packed) as stream:
                return csv.read_csv(stream, csv.ReadOptions(encoding=encoding), parsing, convert)
        except UnicodeDecodeError:
            return None
        except pa.ArrowInvalid:
            if quoted_lines and encoding == "utf-8" and not _is_utf8(source):
                return None
            if quoted_lines:
                raise
    raise AssertionError


def _is_utf8(source: Source) -> bool:
    """Whether the whole content is UTF-8."""
    with open_unpacked(source.content, source.name, packed=source.packed) as stream:
        return is_utf8(iter(lambda: bytes(stream.read(_PIECE)), b""), whole=True)
