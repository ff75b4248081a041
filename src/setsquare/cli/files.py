"""CSV, Parquet and Feather files, recognised by their content, and their columns by role."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NoReturn

import narwhals.stable.v2 as nw
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, ipc

from setsquare.cli.options import Options
from setsquare.errors import InputError
from setsquare.notes import Note
from setsquare.storage.files import check_memory, read_bounded
from setsquare.tables.frame import Frame, to_numpy
from setsquare.tables.frame import resolve as find_columns
from setsquare.tables.summary import FEW_VALUES
from setsquare.tables.validation import check_roles

#: First bytes of formats that are not text.
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "feather"}
_GZIP = b"\x1f\x8b"
_HEAD = 1 << 16
_LONGEST_HEADER = 1 << 22
#: Most columns of a CSV file, and most columns that are read from any file.
MAX_COLUMNS = 10_000
#: Longest content of a pipe, a device or a compressed file, in bytes.
MAX_PIPED = 1 << 31
#: So many protected columns are counted first.
MANY_PROTECTED = 100
#: Numbers above this have no squares in float64, nor sums of squares.
LARGEST = 1e150


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
            _refuse_format(self.name)
        return "csv"

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
        if len(set(self.columns)) < len(self.columns):  # pyarrow would take any of them
            twice = next(name for name in self.columns if self.columns.count(name) > 1)
            raise InputError(f"{self.name} has more than one column {twice!r}; rename one of them.")
        find_columns(Frame(self.columns, 1, None), list(names))

    def read(self, columns: Sequence[str], text: Sequence[str] = ()) -> pa.Table:
        """Read some columns, those in `text` as text even if they look numeric."""
        if len(columns) > MAX_COLUMNS:
            raise InputError(
                f"{len(columns)} columns of {self.name} would be read, at most {MAX_COLUMNS} are: name fewer columns."
            )
        self.check(columns)
        with _reading(self.name):
            table = self._read(list(columns), text).select(list(columns))
            if self.kind != "csv":  # texts and offsets of a damaged file can point anywhere
                table.validate(full=True)
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
        if self.kind == "feather":
            return list(ipc.open_file(self._seekable()).schema.names)
        with self._stream() as stream, csv.open_csv(stream, parse_options=self._parsing(quoted_lines=True)) as reader:
            return list(reader.schema.names)

    def _read(self, columns: list[str], text: Sequence[str]) -> pa.Table:
        if self.kind == "parquet":
            from pyarrow import parquet

            with parquet.ParquetFile(self._seekable()) as file:
                check_memory(8 * file.metadata.num_rows * len(columns), self.name)
                return file.read(columns=columns)
        if self.kind == "feather":
            fields = ipc.IpcReadOptions(included_fields=[self.columns.index(name) for name in columns])
            return ipc.open_file(self._seekable(), options=fields).read_all()
        return self._read_csv(columns, text)

    def _read_csv(self, columns: list[str], text: Sequence[str]) -> pa.Table:
        convert = csv.ConvertOptions(
            include_columns=columns, column_types={name: pa.string() for name in text}, strings_can_be_null=True
        )
        # Quoted texts with line breaks are rare, and looking for them takes a reader of one thread.
        for quoted_lines in (False, True):
            try:
                with self._unpacked() as stream:
                    return csv.read_csv(stream, None, self._parsing(quoted_lines=quoted_lines), convert)
            except pa.ArrowInvalid:
                if quoted_lines:
                    raise
        raise AssertionError

    def _n_fields(self) -> int:
        """Number of fields of the header, counted without reading their types."""
        with self._stream() as stream:
            header = bytes(stream.read(_LONGEST_HEADER)).split(b"\n", 1)[0]
        return 1 + max(header.count(mark) for mark in (b",", b";", b"\t", b"|"))

    def _parsing(self, *, quoted_lines: bool) -> Any:
        header = self.head.split(b"\n", 1)[0].decode(errors="replace")
        return csv.ParseOptions(delimiter=max(",;\t|", key=header.count), newlines_in_values=quoted_lines)

    def _seekable(self) -> Any:
        return str(self.content) if isinstance(self.content, Path) else pa.BufferReader(self.content)


def open_source(file: str) -> Source:
    """Open a file by name; ``-`` is standard input."""
    if file == "-":
        if sys.stdin is None:
            raise InputError("Standard input is closed: give a file, or pipe a table into the command.")
        content = _read_all(sys.stdin.buffer, "standard input")
        return Source("standard input", content, content.startswith(_GZIP))
    path = Path(file)
    if path.is_dir():
        raise InputError(f"{file} is a folder: give a file.")
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_GZIP))
            # A pipe such as <(zcat ...) can be read only once.
            source = Source(file, path if path.is_file() else start + _read_all(stream, file), start == _GZIP)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror or error}).") from error
    return source


def _refuse_format(name: str) -> NoReturn:
    raise InputError(f"{name} is not a CSV, Parquet or Feather file: save the table in one of these formats.")


def _read_all(stream: Any, name: str, when: str = "when it is no file") -> bytes:
    """Read a pipe, a device or a compressed file, which may be endless."""

    def refuse() -> NoReturn:
        raise InputError(f"{name} is longer than {MAX_PIPED >> 20} MB {when}: write the rows to a file first.")

    start = stream.read(len(_GZIP))
    if start.startswith(b"\0"):  # no table starts like this, but /dev/zero does
        _refuse_format(name)
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
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        about = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")[:200]
        raise InputError(f"{name} cannot be read as a table: {about}.") from error


def resolve(source: Source, asked: Mapping[str, Sequence[str] | str | None]) -> dict[str, list[str]]:
    """Names of the columns of each role; a name that is not a column is split at commas.

    Parameters
    ----------
    source : Source
    asked : mapping of role to names, a name, or None
        No column may have two roles.
    """
    roles: dict[str, list[str]] = {}
    for role, given in asked.items():
        tokens = [given] if isinstance(given, str) else list(given or ())
        names = [
            name
            for token in tokens
            for name in ([token] if token in source.columns else [part.strip() for part in token.split(",")])
        ]
        if tokens and not any(names):
            raise InputError(f"--{role} names no column: give one or more column names, comma-separated.")
        roles[role] = names
        source.check(names)
    check_roles(roles)
    return roles


@dataclass(frozen=True, slots=True)
class FileRows:
    """Columns of a file by role, notes on what was done with them, and name and checksum of the file.

    ``predictions`` are columns by name, with groups as texts; ``arrays`` are the single columns of some roles.
    """

    origin: dict[str, str]
    table: pa.Table
    roles: dict[str, list[str]]
    predictions: dict[str, Any]
    arrays: dict[str, Any]
    notes: tuple[Note, ...]


def read_rows(
    file: str,
    asked: Mapping[str, Sequence[str] | str | None],
    options: Options,
    *,
    others: str | None = None,
    again: Mapping[str, Sequence[str]] | None = None,
    arrays: Sequence[str] = ("cluster", "weight"),
) -> FileRows:
    """Read the columns of all roles, with the rules for groups and missing values.

    No column may have two of the roles `asked` for; those in `again` are columns that also have another one, such as
    controls among the features. The role `others` has by default all columns without another. The single columns of
    the roles `arrays` are returned as arrays, too.
    """
    source = open_source(file)
    if others is not None and not asked[others]:
        taken = {name for names in resolve(source, {**asked, others: None}).values() for name in names}
        # Columns without a name, or with pandas' own, are row numbers.
        rest = [c for c in source.columns if c not in taken and c and not c.startswith("__index_level_")]
        asked = {**asked, others: rest}
    table, roles, notes = _read_roles(source, asked, options)
    roles |= resolve(source, again or {})
    columns = {role: decoded(table.column(roles[role][0])) for role in arrays if roles.get(role)}
    made = {role: to_numpy(nw.from_native(column, series_only=True)) for role, column in columns.items()}
    predictions = {name: decoded(table.column(name)) for name in roles.get("predictions", ())}
    origin = {"file": source.name, "sha256": source.sha256}
    return FileRows(origin, table, roles, predictions, made, notes)


def _read_roles(
    source: Source, asked: Mapping[str, Sequence[str] | str | None], options: Options
) -> tuple[pa.Table, dict[str, list[str]], tuple[Note, ...]]:
    """Read the columns of all roles, with the rules for groups and missing values, and notes on what was done."""
    roles = resolve(source, asked)
    groups = resolve(source, {"categorical": options.categorical})["categorical"]
    table = source.read([name for names in roles.values() for name in names], groups)
    for name in (name for name in groups if name in table.column_names):
        j = table.schema.get_field_index(name)
        table = table.set_column(j, name, _as_category(table.column(j)))
    if table.num_rows == 1:
        raise InputError(f"{source.name} has a single row, which is too few for an audit: add rows.")
    if len(roles["protected"]) > MANY_PROTECTED:  # before they are coded, which takes long
        from setsquare.projection.basis import check_rows

        check_rows(table.num_rows, len(roles["protected"]))
    table, notes = _prepare_groups(table, roles["protected"], options)
    if options.missing != "drop":
        return table, roles, notes
    kept = complete_rows(table)
    count = table.num_rows - kept.num_rows
    text = "{count} of {n} rows have a missing value and were left out."
    left_out = Note("rows-left-out", text, count=count, n=table.num_rows)
    return kept, roles, (*notes, left_out) if count else notes


def _as_category(column: Any) -> Any:
    """Texts as categories in alphabetical order, so that their type declares groups."""
    text = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    levels = pa.array(sorted(level for level in pc.unique(text).to_pylist() if level is not None), pa.string())
    codes = pc.index_in(text, value_set=levels)
    return pa.DictionaryArray.from_arrays(codes, levels)


def _prepare_groups(table: pa.Table, protected: Sequence[str], options: Options) -> tuple[pa.Table, tuple[Note, ...]]:
    """Read columns of few whole numbers as groups if cells are asked for; otherwise note that they are numeric."""
    coded = coded_groups(table, protected, 2 if options.takes_cells else 3)
    if not options.takes_cells:
        text = (
            "The protected column {name!r} has few whole numbers, which were read as a quantity: pass --categorical "
            "{name} if they are codes of groups."
        )
        return table, tuple(Note("numbers-or-groups", text, severity="caution", name=name) for name in coded)
    for name in coded:
        j = table.schema.get_field_index(name)
        table = table.set_column(j, name, table.column(j).cast(pa.string()))
    text = "The few whole numbers of {name!r} were read as groups."
    return table, tuple(Note("taken-for-groups", text, name=name) for name in coded)


def coded_groups(table: pa.Table, names: Sequence[str], fewest: int) -> list[str]:
    """Columns of a few whole numbers, which may be codes of groups."""
    found = []
    for name in names:
        column = table.column(name)
        if pa.types.is_integer(column.type):
            n_values = pc.count_distinct(column).as_py()
            if fewest <= n_values <= FEW_VALUES and 10 * n_values <= len(column):
                found.append(name)
    return found


def complete_rows(table: pa.Table) -> pa.Table:
    """Rows without a missing value."""
    gone = reduce(pc.or_, (pc.is_null(column, nan_is_null=True) for column in table.columns))
    if pc.all(gone).as_py():
        raise InputError("No row is complete: fill missing values, or name fewer columns.")
    return table.filter(pc.invert(gone))


def decoded(column: Any) -> Any:
    """A column with groups as their texts, and exact decimals as floating-point numbers."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column
