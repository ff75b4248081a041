"""Tables from CSV, Parquet and Feather files, recognised by their content."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setsquare import tables
from setsquare._extras import require
from setsquare.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

#: First bytes of formats that are not text.
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "feather"}
_GZIP = b"\x1f\x8b"
_HEAD = 1 << 16


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
    """

    name: str
    content: Path | bytes
    packed: bool

    @cached_property
    def head(self) -> bytes:
        """The first bytes, decompressed."""
        with _reading(self.name), self._stream() as stream:
            return bytes(stream.read(_HEAD))

    @cached_property
    def kind(self) -> str:
        """Format of the file: "csv", "parquet" or "feather"."""
        if not self.head:
            raise InputError(f"{self.name} is empty: pass a table with a header and rows.")
        for magic, kind in _MAGIC.items():
            if self.head.startswith(magic):
                return kind
        if b"\0" in self.head or self.head.startswith(b"PK\x03\x04"):
            raise InputError(
                f"{self.name} is not a CSV, Parquet or Feather file: save the table in one of these formats."
            )
        return "csv"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        with _reading(self.name):
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
        import pyarrow as pa

        if len(set(self.columns)) < len(self.columns):  # pyarrow would take any of them
            twice = next(name for name in self.columns if self.columns.count(name) > 1)
            raise InputError(f"{self.name} has more than one column {twice!r}; rename one of them.")
        tables.select(pa.table({name: [0] for name in self.columns}), list(names))

    def read(self, columns: Sequence[str], text: Sequence[str] = ()) -> pa.Table:
        """Read some columns, those in `text` as text even if they look numeric."""
        import pyarrow as pa

        self.check(columns)
        with _reading(self.name):
            table = self._read(list(columns), text).select(list(columns))
            for name in text:
                j = table.schema.get_field_index(name)
                if j >= 0 and not pa.types.is_string(table.schema.types[j]):
                    table = table.set_column(j, name, table.column(j).cast(pa.string()))
        if not table.num_rows:
            raise InputError(f"{self.name} has no rows below the header: add at least one.")
        for field in table.schema:
            if pa.types.is_binary(field.type):
                raise InputError(
                    f"The column {field.name!r} of {self.name} is not encoded in UTF-8: save the file as UTF-8."
                )
        return table

    def _stream(self) -> Any:
        import pyarrow as pa

        source = str(self.content) if isinstance(self.content, Path) else pa.py_buffer(self.content)
        return pa.input_stream(source, compression="gzip" if self.packed else None)

    def _schema(self) -> list[str]:
        if self.kind == "parquet":
            from pyarrow import parquet

            with parquet.ParquetFile(self._seekable()) as file:
                return list(file.schema_arrow.names)
        if self.kind == "feather":
            from pyarrow import ipc

            return list(ipc.open_file(self._seekable()).schema.names)
        from pyarrow import csv

        with self._stream() as stream, csv.open_csv(stream, parse_options=self._parsing(quoted_lines=True)) as reader:
            return list(reader.schema.names)

    def _read(self, columns: list[str], text: Sequence[str]) -> pa.Table:
        if self.kind == "parquet":
            from pyarrow import parquet

            with parquet.ParquetFile(self._seekable()) as file:
                return file.read(columns=columns)
        if self.kind == "feather":
            from pyarrow import ipc

            fields = ipc.IpcReadOptions(included_fields=[self.columns.index(name) for name in columns])
            return ipc.open_file(self._seekable(), options=fields).read_all()
        return self._read_csv(columns, text)

    def _read_csv(self, columns: list[str], text: Sequence[str]) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv

        convert = csv.ConvertOptions(
            include_columns=columns, column_types={name: pa.string() for name in text}, strings_can_be_null=True
        )
        # Quoted texts with line breaks are rare, and looking for them takes a reader of one thread.
        for quoted_lines in (False, True):
            try:
                with self._stream() as stream:
                    return csv.read_csv(stream, None, self._parsing(quoted_lines=quoted_lines), convert)
            except pa.ArrowInvalid:
                if quoted_lines:
                    raise
        raise AssertionError

    def _parsing(self, *, quoted_lines: bool) -> Any:
        from pyarrow import csv

        header = self.head.split(b"\n", 1)[0].decode(errors="replace")
        return csv.ParseOptions(delimiter=max(",;\t|", key=header.count), newlines_in_values=quoted_lines)

    def _seekable(self) -> Any:
        import pyarrow as pa

        return str(self.content) if isinstance(self.content, Path) else pa.BufferReader(self.content)


def open_source(file: str) -> Source:
    """Open a file by name; ``-`` is standard input."""
    require("Reading tables needs", "pyarrow")
    if file == "-":
        content = sys.stdin.buffer.read()
        return Source("standard input", content, content.startswith(_GZIP))
    path = Path(file)
    if path.is_dir():
        raise InputError(f"{file} is a folder: give a file.")
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_GZIP))
            # A pipe such as <(zcat ...) can be read only once.
            source = Source(file, path if path.is_file() else start + stream.read(), start == _GZIP)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror or error}).") from error
    return source


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn an error of pyarrow into one sentence."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        about = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")[:200]
        raise InputError(f"{name} cannot be read as a table: {about}.") from error
