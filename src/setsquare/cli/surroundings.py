"""Checks before a command runs: outputs, arguments, names of options that have changed; and signals while it runs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from setsquare._extras import require
from setsquare.cli.options import Options
from setsquare.errors import InputError


def check_outputs(options: Options, *inputs: str | None, more: Sequence[Path | None] = ()) -> None:
    """Say before any work what cannot be written here."""
    from setsquare.storage import check_targets

    paths = [path for path in (*options.outputs, *more) if path is not None]
    check_targets(paths, [Path(name) for name in inputs if name not in (None, "-")])
    if options.html is not None:
        require("A report page needs", "jinja2")
    if options.docx is not None:
        require("A Word file needs", "docx")


def check_surroundings(arguments: Sequence[str]) -> None:
    """Refuse a closed output, whose place another file would take, and arguments that are not text."""
    if sys.stdout is None:
        raise InputError("Standard output is closed: redirect it to a file, or to /dev/null.")
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise InputError(f"The argument {argument} is not valid UTF-8: rename the file or the column.") from None


_OLD = {"--target": "--outcome", "--level": "--confidence"}
#: Old options by command, and what they are called now.
RENAMED = {
    "audit": _OLD,
    "compare": _OLD,
    "correct": {**_OLD, "--output": "--model", "--predictions": "--write-predictions"},
    "apply": {"--predictions": "--write-predictions"},
}


def refuse_renamed(arguments: Sequence[str]) -> None:
    """Refuse an old option, and a model that is given without its option.

    Examples
    --------
    >>> refuse_renamed(["audit", "table.csv", "--confidence", "0.9"])
    """
    command, *rest = arguments or [""]
    renamed = RENAMED.get(command, {})
    for argument in rest:
        old = argument.split("=", 1)[0]
        if old in renamed:
            raise InputError(f"setsquare {command} has no option {old}: use {renamed[old]}.")
    if command == "apply" and len(rest) > 1 and not any(argument.startswith("-") for argument in rest[:2]):
        raise InputError(f"setsquare apply takes one file of rows: name the model by an option, --model {rest[0]}.")


@contextmanager
def termination_as_interrupt() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM end the process as Ctrl-C does, so that no unfinished file is left; yields whether it came."""
    came = list[int]()

    def interrupt(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)
