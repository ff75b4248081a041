"""From a registered file to a path on this machine: the user's folder, the cache, the download; always checked."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from setsquare._extras import require
from setsquare.datasets.registry import DataFile
from setsquare.errors import DataNotFoundError, InputError

#: The environment variable that names the user's folder of data.
VARIABLE = "SETSQUARE_DATA"


def locate(file: DataFile, *, verify: bool = True) -> Path:
    """Return the path of a file or of one of its alternatives, downloading it if need be.

    The order is: every candidate in ``$SETSQUARE_DATA``, every candidate in the user's cache, every address.

    Parameters
    ----------
    file : DataFile
        The file wanted; its alternatives will do as well.
    verify : bool, default True
        Whether a file found on this machine must have the registered checksum. Downloads always must.

    Returns
    -------
    pathlib.Path
        The suffix tells which of the candidates it is.

    Raises
    ------
    InputError
        A file is there, but with another checksum.
    DataNotFoundError
        No candidate is on this machine, and none could be downloaded.
    """
    found = find(file)
    if found is not None:
        candidate, path = found
        if verify:
            check(path, candidate.sha256)
        return path
    return _download(file)


def find(file: DataFile) -> tuple[DataFile, Path] | None:
    """Return the first candidate that is on this machine and its path, unchecked; None if there is none."""
    for folder in _folders():
        for candidate in file.candidates:
            path = folder / candidate.path
            if path.is_file():
                return candidate, path
    return None


def check(path: Path, sha256: str) -> None:
    """Raise an :class:`~setsquare.errors.InputError` unless the file at `path` has the checksum."""
    with path.open("rb") as stream:
        got = hashlib.file_digest(stream, "sha256").hexdigest()
    if got != sha256:
        raise InputError(
            f"The file {path} has the wrong checksum (expected sha256 {sha256}, got {got}): "
            f"replace it, or pass verify=False if you trust it."
        )


def _folders() -> list[Path]:
    """Return the folders to look into, the user's own first."""
    folders = []
    own = os.environ.get(VARIABLE)
    if own:
        folder = Path(own).expanduser()
        if not folder.is_dir():
            raise InputError(f"{VARIABLE} is set to {own}, which is not a folder.")
        folders.append(folder)
    return [*folders, _cache()]


def _cache() -> Path:
    """Return the user's cache folder, which need not exist."""
    require("Data sets need", "pooch")
    import pooch

    return Path(pooch.os_cache("setsquare"))


def _download(file: DataFile) -> Path:
    """Download the first candidate that has an address that works into the cache."""
    import pooch

    failures = []
    for candidate in file.candidates:
        target = _cache() / candidate.path
        for url in candidate.urls:
            try:
                # The checksum is compared before the file gets its name: a failed download leaves nothing behind.
                pooch.retrieve(url, known_hash=f"sha256:{candidate.sha256}", fname=target.name, path=target.parent)
            except (OSError, ValueError) as error:
                failures.append(f"{url} failed ({_reason(error)})")
            else:
                return target
    raise DataNotFoundError(_not_found(file, failures))


def _reason(error: Exception) -> str:
    """Say in a few words why a download failed."""
    if isinstance(error, OSError) and getattr(error, "response", None) is None:
        return type(error).__name__  # no answer at all: the message is a chain of nested exceptions
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _not_found(file: DataFile, failures: list[str]) -> str:
    """Say in one sentence where the file comes from and where to put it."""
    tried = " and ".join(failures) if failures else "no public address holds it"
    hint = "" if os.environ.get(VARIABLE) else f" (the environment variable {VARIABLE} is not set)"
    last = file.candidates[-1]
    return (
        f"The data file {last.path} is not on this machine and {tried}: {last.origin}; "
        f"put it at ${VARIABLE}/{last.path}{hint}."
    )
