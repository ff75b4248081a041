"""Files written whole or not at all: beside their place first, then moved there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from setsquare.errors import InputError


def check_targets(paths: Iterable[Path], inputs: Iterable[Path] = ()) -> None:
    """Refuse, before any work is done, files that could not be written or that would overwrite an input.

    Parameters
    ----------
    paths : iterable of Path
        Files to be written.
    inputs : iterable of Path
        Files that are read.

    Examples
    --------
    >>> check_targets([Path("no_such_folder/page.html")])
    Traceback (most recent call last):
    ...
    setsquare.errors.InputError: The folder no_such_folder does not exist: make it, or write to another place.
    """
    taken = {path.resolve(): "is read as well: write to another place" for path in inputs}
    for path in paths:
        if not path.parent.is_dir():
            raise InputError(f"The folder {path.parent} does not exist: make it, or write to another place.")
        if path.is_dir():
            raise InputError(f"{path} is a folder: give the name of a file.")
        place = path.resolve()
        if place in taken:
            raise InputError(f"The file {path} {taken[place]}.")
        taken[place] = "is to be written twice: give each output a name of its own"
        if not os.access(place if _is_device(place) else place.parent, os.W_OK):
            raise InputError(f"The folder {place.parent} cannot be written to: write to another place.")


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write all of the files, or leave every one of them as it was.

    Parameters
    ----------
    contents : mapping of Path to bytes
    """
    check_targets(contents)
    parts: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            place = path.resolve()  # a link stays a link
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
    """Whether this is a pipe or a device such as /dev/null, which nothing may be moved onto."""
    return path.exists() and not path.is_file()
