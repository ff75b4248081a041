"""Files with rows: CSV, Parquet, Feather and Excel files, recognised by their content."""

from __future__ import annotations

import hashlib
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as record_field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, ipc

from setsquare.cli.csv_text import (
    FALLBACK,
    Encoding,
    decimal_commas,
    find_delimiter,
    find_encoding,
    guessed_encoding,
    is_utf8,
    read_decimal_commas,
    refuse_encoding,
    refuse_format,
)
from setsquare.cli.options import Reading
from setsquare.cli.workbooks import is_workbook, read_sheet
from setsquare.errors import InputError
from setsquare.notes import Note
from setsquare.storage.files import check_memory, read_bounded
from setsquare.tables.frame import Frame
from setsquare.tables.frame import resolve as find_columns

#: First bytes of formats that are not text.
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "feather"}
_GZIP = b"\x1f\x8b"
_HEAD = 1 << 16
_LONGEST_HEADER = 1 << 22
#: Most columns of a CSV file, and most columns that are read from any file.
MAX_COLUMNS = 10_000
#: Longest content of a pipe, a device or a compressed file, in bytes.
MAX_PIPED = 1 << 31
#: Numbers above this have no squares in float64, nor sums of squares.
LARGEST = 1e150
PLAIN = Reading()


@dataclass(frozen=True)  # without slots: the columns are looked up once
class Source:
    """A file with rows, of which only the first bytes are read before :meth:`read`.

    Attributes
    ----------
    name : str
        As given on the command line.
    content : Path or bytes
        Bytes if it came through a pipe.
    packed : bool
        Whether it is compressed by gzip.
    reading : Reading
        Encoding, decimal sign and sheet, where the user names them.
    notes : list of Note
        What was guessed while reading.
    """

    name: str
    content: Path | bytes
    packed: bool
    reading: Reading = PLAIN
    notes: list[Note] = record_field(default_factory=list, repr=False, compare=False)

    @cached_property
    def head(self) -> bytes:
        """The first bytes, decompressed."""
        with _reading(self.name), self._stream() as stream:
            return bytes(stream.read(_HEAD))

    @cached_property
    def kind(self) -> str:
        """Format of the file: "csv", "parquet", "feather" or "excel"."""
        if not self.head:
            raise InputError(f"{self.name} is empty: pass a table with a header and rows.")
        for magic, kind in _MAGIC.items():
            if self.head.startswith(magic):
                return kind
        if is_workbook(self.head):
            return "excel"
        if self.reading.sheet is not None:
            raise InputError(f"--sheet is for Excel files, and {self.name} is not one: leave it out.")
        return "csv"

    @cached_property
    def encoding(self) -> Encoding:
        """Encoding of a CSV file."""
        return find_encoding(self.head, self.reading.encoding, self.name)

    @cached_property
    def delimiter(self) -> str:
        """The sign between the fields of a CSV file."""
        return find_delimiter(self.head.decode(self.encoding.name, errors="replace").split("\n", 1)[0])

    @cached_property
    def sheet(self) -> pa.Table:
        """The sheet of an Excel file."""
        if self.packed:
            raise InputError(f"{self.name} is a compressed workbook: unpack it first.")
        return read_sheet(self.content, self.name, self.reading.sheet)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        with _reading(self.name):
            if self.kind == "csv" and self._n_fields() > MAX_COLUMNS:
                raise InputError(
                    f"{self.name} has more than {MAX_COLUMNS} columns, which are slow to read from CSV: save the "
                    "columns that are needed, or the table as Parquet."
                )
            return tuple(self._schema())

    @cached_property
    def sha256(self) -> str:
        """Checksum of the file."""
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with self.content.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def check(self, names: Sequence[str]) -> None:
        """Refuse names that are not columns, and suggest the nearest ones."""
        if len(set(self.columns)) < len(self.columns):
            asked, counts = set(names), Counter(self.columns)
            for twice in (name for name, count in counts.items() if count > 1 and name in asked):
                raise InputError(f"{self.name} has more than one column {twice!r}; rename one of them.")
        find_columns(Frame(tuple(dict.fromkeys(self.columns)), 1, None), list(names))

    def read(self, columns: Sequence[str], text: Sequence[str] = ()) -> pa.Table:
        """Read some columns, those in `text` as text even if they look numeric."""
        if len(columns) > MAX_COLUMNS:
            raise InputError(
                f"{len(columns)} columns of {self.name} would be read, at most {MAX_COLUMNS} are: name fewer columns."
            )
        self.check(columns)
        with _reading(self.name):
            table = self._read(list(columns), text).select(list(columns))
            if self.kind in ("parquet", "feather"):  # texts and offsets of a damaged file can point anywhere
                table.validate(full=True)
            for name in text:
                j = table.schema.get_field_index(name)
                if j >= 0 and not pa.types.is_string(table.schema.types[j]):
                    table = table.set_column(j, name, table.column(j).cast(pa.string()))
        if not table.num_rows:
            raise InputError(f"{self.name} has no rows below the header: add at least one.")
        for field in table.schema:
            if pa.types.is_binary(field.type):
                if self.kind == "csv":
                    refuse_encoding(self.name, self.encoding.name)
                raise InputError(f"The column {field.name!r} of {self.name} holds bytes: convert it to text.")
        check_magnitude(table)
        return table

    def _stream(self) -> Any:
        source = str(self.content) if isinstance(self.content, Path) else pa.py_buffer(self.content)
        return pa.input_stream(source, compression="gzip" if self.packed else None)

    def _unpacked(self) -> Any:
        """The whole content as a stream; decompressed content is bounded."""
        if not self.packed:
            return self._stream()
        with self._stream() as stream:
            return pa.BufferReader(_read_all(stream, self.name, "when decompressed"))

    def _schema(self) -> list[str]:
        if self.kind == "parquet":
            from pyarrow import parquet

            with parquet.ParquetFile(self._seekable()) as file:
                return list(file.schema_arrow.names)
        if self.kind == "excel":
            return list(self.sheet.column_names)
        if self.kind == "feather":
            return list(ipc.open_file(self._seekable()).schema.names)
        options = csv.ReadOptions(encoding=self.encoding.name), self._parsing(quoted_lines=True)
        with self._stream() as stream, csv.open_csv(stream, *options) as reader:
            return list(reader.schema.names)

    def _read(self, columns: list[str], text: Sequence[str]) -> pa.Table:
        if self.kind == "parquet":
            from pyarrow import parquet

            with parquet.ParquetFile(self._seekable()) as file:
                check_memory(8 * file.metadata.num_rows * len(columns), self.name)
                return file.read(columns=columns)
        if self.kind == "excel":
            return self.sheet
        if self.kind == "feather":
            fields = ipc.IpcReadOptions(included_fields=[self.columns.index(name) for name in columns])
            return ipc.open_file(self._seekable(), options=fields).read_all()
        return self._read_csv(columns, text)

    def _read_csv(self, columns: list[str], text: Sequence[str]) -> pa.Table:
        table = self._parse_csv(columns, text, self.encoding.name)
        guessed = self.encoding.is_guess
        if self.reading.encoding is None and (table is None or any(map(pa.types.is_binary, table.schema.types))):
            table, guessed = self._parse_csv(columns, text, FALLBACK), True
        if table is None:
            refuse_encoding(self.name, self.encoding.name)
        if guessed:
            self.notes.append(guessed_encoding(self.name))
        if self.reading.decimal is None:
            kept = [name for name in table.column_names if name not in text]
            table, found = read_decimal_commas(table, kept)
            self.notes.extend([decimal_commas(found)] if found else [])
        return table

    def _parse_csv(self, columns: list[str], text: Sequence[str], encoding: str) -> pa.Table | None:
        """Columns of a CSV file, or None if it is not in this encoding."""
        convert = csv.ConvertOptions(
            include_columns=columns,
            column_types={name: pa.string() for name in text},
            strings_can_be_null=True,
            decimal_point=self.reading.decimal or ".",
        )
        # Quoted texts with line breaks are rare, and looking for them takes a reader of one thread.
        for quoted_lines in (False, True):
            try:
                with self._unpacked() as stream:
                    options = csv.ReadOptions(encoding=encoding), self._parsing(quoted_lines=quoted_lines)
                    return csv.read_csv(stream, *options, convert)
            except UnicodeDecodeError:
                return None
            except pa.ArrowInvalid:
                if quoted_lines and encoding == "utf-8" and not self._is_utf8():
                    return None
                if quoted_lines:
                    raise
        raise AssertionError

    def _is_utf8(self) -> bool:
        """Whether the whole content is UTF-8."""
        with self._unpacked() as stream:
            return is_utf8(iter(lambda: bytes(stream.read(_HEAD)), b""), whole=True)

    def _n_fields(self) -> int:
        """Number of fields of the header, counted without reading their types."""
        with self._stream() as stream:
            header = bytes(stream.read(_LONGEST_HEADER)).split(b"\n", 1)[0]
        return 1 + max(header.count(mark) for mark in (b",", b";", b"\t", b"|"))

    def _parsing(self, *, quoted_lines: bool) -> Any:
        return csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=quoted_lines)

    def _seekable(self) -> Any:
        return str(self.content) if isinstance(self.content, Path) else pa.BufferReader(self.content)


def open_source(file: str, reading: Reading = PLAIN) -> Source:
    """Open a file by name; ``-`` is standard input."""
    if file == "-":
        if sys.stdin is None:
            raise InputError("Standard input is closed: give a file, or pipe a table into the command.")
        content = _read_all(sys.stdin.buffer, "standard input")
        return Source("standard input", content, content.startswith(_GZIP), reading)
    path = Path(file)
    if path.is_dir():
        raise InputError(f"{file} is a folder: give a file.")
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_GZIP))
            # A pipe such as <(zcat ...) can be read only once.
            rows = path if path.is_file() else start + _read_all(stream, file)
            source = Source(file, rows, start == _GZIP, reading)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror or error}).") from error
    return source


def _read_all(stream: Any, name: str, when: str = "when it is no file") -> bytes:
    """Read a pipe, a device or a compressed file, which may be endless."""

    def refuse() -> NoReturn:
        raise InputError(f"{name} is longer than {MAX_PIPED >> 20} MB {when}: write the rows to a file first.")

    start = stream.read(len(_GZIP))
    if start.startswith(b"\0"):  # no table starts like this, but /dev/zero does
        refuse_format(name)
    return bytes(start) + read_bounded(stream, MAX_PIPED, refuse)


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


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn an error of pyarrow into one sentence."""
    try:
        yield
    except UnicodeDecodeError as error:
        refuse_encoding(name, error.encoding)
    except (pa.ArrowException, OSError) as error:
        about = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")[:200]
        raise InputError(f"{name} cannot be read as a table: {about}.") from error
