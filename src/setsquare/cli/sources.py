"""Files with rows: CSV, Parquet, Feather and Excel files, recognised by their content, and their columns."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, ipc

from setsquare.cli.contents import GZIP, open_stream, read_all, reading, seekable
from setsquare.cli.csv_text import Encoding, find_delimiter, find_encoding
from setsquare.cli.options import Reading
from setsquare.cli.workbooks import is_workbook, read_sheet
from setsquare.errors import InputError

#: First bytes of formats that are not text.
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "feather"}
_HEAD = 1 << 16
_LONGEST_HEADER = 1 << 22
#: Most columns of a CSV file, and most columns that are read from any file.
MAX_COLUMNS = 10_000
PLAIN = Reading()
UTF8 = Encoding("utf-8")


@dataclass(frozen=True, slots=True)
class Source:
    """A file with rows, of which the header was read.

    Attributes
    ----------
    name : str
        As given on the command line.
    content : Path or bytes
        Bytes if it came through a pipe.
    packed : bool
        Whether it is compressed by gzip.
    kind : {"csv", "parquet", "feather", "excel"}
    columns : tuple of str
    reading : Reading
        Encoding, decimal sign and sheet, where the user names them.
    encoding : Encoding
        Encoding of a CSV file.
    delimiter : str
        The sign between the fields of a CSV file.
    sheet : pyarrow.Table or None
        The rows of an Excel file, which are read at once.
    """

    name: str
    content: Path | bytes
    packed: bool
    kind: str
    columns: tuple[str, ...]
    reading: Reading = PLAIN
    encoding: Encoding = UTF8
    delimiter: str = ","
    sheet: pa.Table | None = field(default=None, repr=False, compare=False)


def open_source(file: str, options: Reading = PLAIN) -> Source:
    """Open a file by name and read its header; ``-`` is standard input."""
    if file == "-":
        if sys.stdin is None:
            raise InputError("Standard input is closed: give a file, or pipe a table into the command.")
        content = read_all(sys.stdin.buffer, "standard input")
        return _look("standard input", content, content.startswith(GZIP), options)
    path = Path(file)
    if path.is_dir():
        raise InputError(f"{file} is a folder: give a file.")
    try:
        with path.open("rb") as stream:
            start = stream.read(len(GZIP))
            # A pipe such as <(zcat ...) can be read only once.
            rows = path if path.is_file() else start + read_all(stream, file)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror or error}).") from error
    return _look(file, rows, start == GZIP, options)


def _look(name: str, content: Path | bytes, packed: bool, options: Reading) -> Source:
    """Find out the format and the columns."""
    with reading(name), open_stream(content, packed=packed) as stream:
        head = bytes(stream.read(_HEAD))
    kind = _kind(head, name, options)
    if kind == "csv":
        encoding = find_encoding(head, options.encoding, name)
        delimiter = find_delimiter(head.decode(encoding.name, errors="replace").split("\n", 1)[0])
        columns = _csv_columns(name, content, packed, encoding.name, delimiter)
        return Source(name, content, packed, kind, columns, options, encoding, delimiter)
    if kind == "excel":
        if packed:
            raise InputError(f"{name} is a compressed workbook: unpack it first.")
        sheet = read_sheet(content, name, options.sheet)
        return Source(name, content, packed, kind, tuple(sheet.column_names), options, sheet=sheet)
    return Source(name, content, packed, kind, _schema(name, content, kind), options)


def _kind(head: bytes, name: str, options: Reading) -> str:
    if not head:
        raise InputError(f"{name} is empty: pass a table with a header and rows.")
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if is_workbook(head):
        return "excel"
    if options.sheet is not None:
        raise InputError(f"--sheet is for Excel files, and {name} is not one: leave it out.")
    return "csv"


def _csv_columns(name: str, content: Path | bytes, packed: bool, encoding: str, delimiter: str) -> tuple[str, ...]:
    """Names in the header, whose fields are counted first, without reading their types."""
    with reading(name):
        with open_stream(content, packed=packed) as stream:
            header = bytes(stream.read(_LONGEST_HEADER)).split(b"\n", 1)[0]
        if max(header.count(mark) for mark in (b",", b";", b"\t", b"|")) >= MAX_COLUMNS:
            raise InputError(
                f"{name} has more than {MAX_COLUMNS} columns, which are slow to read from CSV: save the columns that "
                "are needed, or the table as Parquet."
            )
        options = csv.ReadOptions(encoding=encoding), csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        with open_stream(content, packed=packed) as stream, csv.open_csv(stream, *options) as reader:
            return tuple(reader.schema.names)


def _schema(name: str, content: Path | bytes, kind: str) -> tuple[str, ...]:
    with reading(name):
        if kind == "feather":
            return tuple(ipc.open_file(seekable(content)).schema.names)
        from pyarrow import parquet

        with parquet.ParquetFile(seekable(content)) as file:
            return tuple(file.schema_arrow.names)
