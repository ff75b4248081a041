"""Locate registered files in the user's folder or cache, or download them; verify their checksums."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from setsquare._extras import require
from setsquare.datasets.registry import DataFile, describe
from setsquare.errors import DataNotFoundError, InputError

#: Environment variable with the user's data folder.
VARIABLE = "SETSQUARE_DATA"


def locate(file: DataFile, *, verify: bool = True) -> Path:
    """Return the path of a file or of one of its alternatives, downloading it if necessary.

    All candidates are searched for in ``$SETSQUARE_DATA``, then in the user's cache, then at their addresses. With
    `verify`, a file on this machine must have the registered checksum; downloads always must.

    Raises
    ------
    InputError
        A file exists, but its checksum differs.
    DataNotFoundError
        No candidate is on this machine, and none could be downloaded.
    """
    found = find(file)
    if found is None:
        return _download(file)
    candidate, path = found
    if verify:
        check(path, candidate.sha256)
    return path


def find(file: DataFile) -> tuple[DataFile, Path] | None:
    """Return the first candidate on this machine and its path, without checking it; None if there is none."""
    for folder in _folders():
        for candidate in file.candidates:
            path = folder / candidate.path
            if path.is_file():
                return candidate, path
    return None


def available(name: str) -> bool:
    """Return whether a data set is on this machine, in files or in a package, so that :func:`load` needs no network.

    Examples
    --------
    >>> available("diabetes")
    True
    """
    info = describe(name)
    installed = not info.package or find_spec(info.package) is not None
    return installed and all(find(file) is not None for file in info.files)


def check(path: Path, sha256: str) -> None:
    """Raise an :class:`~setsquare.errors.InputError` unless the file at `path` has the checksum."""
    with path.open("rb") as stream:
        got = hashlib.file_digest(stream, "sha256").hexdigest()
    if got != sha256:
        raise InputError(
            f"The file {path} has the wrong checksum (expected sha256 {sha256}, got {got}): "
            "replace it, or pass verify=False if you trust it."
        )


def _folders() -> list[Path]:
    """Return the folders to search, the user's own first."""
    own = os.environ.get(VARIABLE)
    if not own:
        return [_cache()]
    folder = Path(own).expanduser()
    if not folder.is_dir():
        raise InputError(f"{VARIABLE} is set to {own}, which is not a folder: create it, or set another one.")
    return [folder, _cache()]


def _cache() -> Path:
    """Return the user's cache folder, which may not exist."""
    require("Data sets need", "pooch")
    import pooch

    return Path(pooch.os_cache("setsquare"))


def _download(file: DataFile) -> Path:
    """Download the first candidate with a working address to the cache."""
    import pooch

    failures = []
    for candidate in file.candidates:
        target = _cache() / candidate.path
        for url in candidate.urls:
            try:
                # The checksum is compared before the file gets its name, so a failed download leaves no file.
                pooch.retrieve(url, known_hash=f"sha256:{candidate.sha256}", fname=target.name, path=target.parent)
            except (OSError, ValueError) as error:
                failures.append(f"{url} failed ({_reason(error)})")
            else:
                return target
    raise DataNotFoundError(_not_found(file, failures))


def _reason(error: Exception) -> str:
    """Return the reason of a failed download in a few words."""
    if isinstance(error, OSError) and getattr(error, "response", None) is None:
        return type(error).__name__  # without a response the message is a chain of nested exceptions
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _not_found(file: DataFile, failures: list[str]) -> str:
    """Return the message that says where to get the file and where to put it."""
    tried = " and ".join(failures) if failures else "no public address holds it"
    hint = "" if os.environ.get(VARIABLE) else f" (the environment variable {VARIABLE} is not set)"
    last = file.candidates[-1]
    return (
        f"The data file {last.path} is not on this machine and {tried}: {last.origin}; "
        f"put it at ${VARIABLE}/{last.path}{hint}."
    )
