"""Atomic writing of files: write to a temporary name beside the target, then rename."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, NoReturn

from setsquare.errors import InputError


def check_targets(paths: Iterable[Path], inputs: Iterable[Path] = ()) -> None:
    """Refuse ``paths`` that cannot be written or would overwrite one of the ``inputs``, before any work is done.

    Examples
    --------
    >>> check_targets([Path("no_such_folder/page.html")])
    Traceback (most recent call last):
    ...
    setsquare.errors.InputError: The folder no_such_folder does not exist: create it, or choose another one.
    """
    taken = {path.resolve(): "is read as well: choose another output file" for path in inputs}
    for path in paths:
        if not path.parent.is_dir():
            raise InputError(f"The folder {path.parent} does not exist: create it, or choose another one.")
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass the name of a file.")
        place = path.resolve()
        if place in taken:
            raise InputError(f"The file {path} {taken[place]}.")
        taken[place] = "would be written twice: give each output its own name"
        if not os.access(place if _is_device(place) else place.parent, os.W_OK):
            raise InputError(f"The folder {place.parent} cannot be written to: choose another one.")


def read_bounded(stream: IO[bytes], limit: int, refuse: Callable[[], NoReturn]) -> bytes:
    """Read a pipe or device to its end, and refuse it beyond this many bytes.

    Examples
    --------
    >>> import io
    >>> def refuse():
    ...     raise InputError("too long")
    >>> read_bounded(io.BytesIO(b"abc"), 3, refuse)
    b'abc'
    """
    parts, length = list[bytes](), 0
    while part := stream.read(1 << 20):
        parts.append(part)
        length += len(part)
        if length > limit:
            refuse()
    return b"".join(parts)


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write all files, or leave all of them unchanged."""
    check_targets(contents)
    parts: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            place = path.resolve()  # write through a link instead of replacing it
            part = place.with_name(f".{place.name[:100]}.{secrets.token_hex(4)}.part")
            if not _is_device(place):
                parts[part] = place
            with (place if _is_device(place) else part).open("wb") as stream:
                stream.write(content)
        for part, place in parts.items():
            part.replace(place)
    except OSError as error:
        raise InputError(f"The file {path} could not be written ({error.strerror or error}).") from error
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    """Whether this is a pipe or a device such as /dev/null, which must not be replaced."""
    return path.exists() and not path.is_file()
