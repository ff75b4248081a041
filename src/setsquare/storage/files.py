"""Atomic writing of files: write to a temporary name beside the target, then rename."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
    taken = {_resolve(path): "is read as well: choose another output file" for path in inputs}
    for path in paths:
        if not path.parent.is_dir():
            raise InputError(f"The folder {path.parent} does not exist: create it, or choose another one.")
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass the name of a file.")
        place = _resolve(path)
        if place in taken:
            raise InputError(f"The file {path} {taken[place]}.")
        taken[place] = "would be written twice: give each output its own name"
        if not os.access(place if _is_device(place) else place.parent, os.W_OK):
            raise InputError(f"The folder {place.parent} cannot be written to: choose another one.")


def check_memory(n_bytes: int, name: str) -> None:
    """Refuse what this machine cannot hold, before it is allocated."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system tells
        return
    if n_bytes > memory:
        raise InputError(
            f"{name} declares {n_bytes >> 30} GB of columns, but this machine has {memory >> 30} GB of memory: use "
            "fewer rows or columns."
        )


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
    """Write all files, or leave all of them unchanged; a file that is replaced keeps its permissions."""
    check_targets(contents)
    parts: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            place = _resolve(path)  # write through a link instead of replacing it
            if _is_device(place):
                place.write_bytes(content)
                continue
            _remove_abandoned(place)
            part = _beside(place)
            parts[part] = place
            _write_part(part, place, content)
        _replace_all(parts)
    except OSError as error:
        at = error.filename2 or path
        raise InputError(f"The file {at} could not be written ({error.strerror or error}).") from error
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _write_part(part: Path, place: Path, content: bytes) -> None:
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
    # With the owner's permissions only, until those of the file that is replaced are set.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(descriptor)
    if mode is not None:
        part.chmod(mode)


def _replace_all(parts: Mapping[Path, Path]) -> None:
    """Rename parts to their places; if one fails, or the process is interrupted, put back what was there before."""
    before: dict[Path, Path | None] = {}
    try:
        for part, place in parts.items():
            before[place] = _keep(place) if len(parts) > 1 else None
            part.replace(place)
    except BaseException:
        for (part, place), kept in zip(parts.items(), before.values(), strict=False):
            if kept is not None:
                os.replace(kept, place)
            elif len(parts) > 1 and not part.exists():
                place.unlink(missing_ok=True)
        raise
    finally:
        for kept in before.values():
            if kept is not None:
                kept.unlink(missing_ok=True)


def _keep(place: Path) -> Path | None:
    """A second name, or a copy, of a file that is about to be replaced."""
    if not place.exists():
        return None
    kept = _beside(place)
    try:
        os.link(place, kept)
    except OSError:  # not every file system has links
        shutil.copy2(place, kept)
    return kept


def _beside(place: Path) -> Path:
    """A new name beside a file, which tells the machine and the process."""
    return place.with_name(f".{place.name[:100]}.{_machine()}-{os.getpid()}-{secrets.token_hex(4)}.part")


def _remove_abandoned(place: Path) -> None:
    """Remove what processes of this machine that were killed left beside a file."""
    if os.name != "posix":  # elsewhere, asking for a process can end it
        return
    pattern = re.compile(rf"\.{re.escape(place.name[:100])}\.{_machine()}-(\d+)-[0-9a-f]{{8}}\.part")
    with suppress(OSError):  # a folder that may be written to but not listed
        for path in place.parent.iterdir():
            match = pattern.fullmatch(path.name)
            if match and not _is_running(int(match[1])):
                path.unlink(missing_ok=True)


def _machine() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (RuntimeError, OSError) as error:
        raise InputError(f"{path} is a link that leads back to itself: choose another file.") from error


def _is_device(path: Path) -> bool:
    """Whether this is a pipe or a device such as /dev/null, which must not be replaced."""
    return path.exists() and not path.is_file()
