"""How every command ends: its exit code, and one sentence where it had to give up."""

from __future__ import annotations

import os
import re
import sys
import traceback

from cyclopts import App, CycloptsError

from setsquare.cli.escape import clean, phrase
from setsquare.errors import SetsquareError
from setsquare.notes import message

#: Beside 0, and 1 for a leak that was to be told.
BAD_INPUT, DEFECT, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141


def run(app: App) -> int:
    """Run the command that was given and return the exit code; nothing but a leak ends with 1."""
    try:
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
        return _close_pipe() if end.code == 1 else int(end.code or 0)  # so rich ends when nobody reads on
    except Exception:
        traceback.print_exc()
        print("setsquare: this is a defect of setsquare; please report it with the lines above.", file=sys.stderr)
        return DEFECT


def _refuse(error: Exception) -> int:
    sentence = re.sub(r"\s+", " ", phrase(message(error))).strip()
    print(f"setsquare: {clean(sentence)}", file=sys.stderr)
    return BAD_INPUT


def _close_pipe() -> int:
    """Let what is left to print go nowhere, without a traceback at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
