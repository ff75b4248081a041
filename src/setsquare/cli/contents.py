"""Bytes of a file, a pipe or a compressed file, opened as streams; errors of reading as one sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from setsquare.cli.csv_text import refuse_encoding, refuse_format
from setsquare.errors import InputError
from setsquare.storage.files import read_bounded

GZIP = b"\x1f\x8b"
#: Longest content of a pipe, a device or a compressed file, in bytes.
MAX_PIPED = 1 << 31


def open_stream(content: Path | bytes, *, packed: bool) -> Any:
    """A stream over the content, decompressed if it is packed by gzip."""
    source = str(content) if isinstance(content, Path) else pa.py_buffer(content)
    return pa.input_stream(source, compression="gzip" if packed else None)


def open_unpacked(content: Path | bytes, name: str, *, packed: bool) -> Any:
    """A stream over the whole content; what is decompressed is bounded."""
    if not packed:
        return open_stream(content, packed=False)
    with open_stream(content, packed=True) as stream:
        return pa.BufferReader(read_all(stream, name, "when decompressed"))


def seekable(content: Path | bytes) -> Any:
    """The content as pyarrow's readers of binary formats take it."""
    return str(content) if isinstance(content, Path) else pa.BufferReader(content)


def checksum(content: Path | bytes) -> str:
    """SHA-256 of the content."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_all(stream: Any, name: str, when: str = "when it is no file") -> bytes:
    """Read a pipe, a device or a compressed file, which may be endless."""

    def refuse() -> NoReturn:
        raise InputError(f"{name} is longer than {MAX_PIPED >> 20} MB {when}: write the rows to a file first.")

    start = stream.read(len(GZIP))
    if start.startswith(b"\0"):  # no table starts like this, but /dev/zero does
        refuse_format(name)
    return bytes(start) + read_bounded(stream, MAX_PIPED, refuse)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn an error of pyarrow into one sentence."""
    try:
        yield
    except UnicodeDecodeError as error:
        refuse_encoding(name, error.encoding)
    except (pa.ArrowException, OSError) as error:
        about = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")[:200]
        raise InputError(f"{name} cannot be read as a table: {about}.") from error
