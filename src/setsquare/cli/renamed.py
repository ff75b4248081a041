"""Options that have another name now: refused with a sentence that names it."""

from __future__ import annotations

from collections.abc import Sequence

from setsquare.errors import InputError

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
