"""Run a command: its exit code, and one sentence on standard error where it fails."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from setsquare.cli.terminal import clean, phrase
from setsquare.errors import InputError, SetsquareError
from setsquare.notes import message

#: Exit codes beside 0, and 1 for a leak with ``--fail-on-leak``.
BAD_INPUT, DEFECT, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141


def run(app: App) -> int:
    """Run a command and return its exit code; only a leak ends with 1."""
    try:
        refuse_renamed(sys.argv[1:])
        code = app(sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return int(code or 0)
    except BrokenPipeError:
        return _close_pipe()
    except (SetsquareError, CycloptsError, OSError) as error:
        return _refuse(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        return _close_pipe() if end.code == 1 else int(end.code or 0)  # rich exits with 1 when the pipe is closed
    except Exception:
        traceback.print_exc()
        print("setsquare: this is a defect of setsquare; please report it with the lines above.", file=sys.stderr)
        return DEFECT


def _refuse(error: Exception) -> int:
    sentence = re.sub(r"\s+", " ", phrase(message(error))).strip()
    print(f"setsquare: {clean(sentence)}", file=sys.stderr)
    return BAD_INPUT


def _close_pipe() -> int:
    """Discard what is left to print, so that Python prints no traceback at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


#: Old options by command, and what they are called now.
RENAMED = {
    "audit": {"--target": "--outcome", "--level": "--confidence"},
    "compare": {"--target": "--outcome", "--level": "--confidence"},
    "correct": {
        "--target": "--outcome",
        "--level": "--confidence",
        "--output": "--model",
        "--predictions": "--write-predictions",
    },
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
