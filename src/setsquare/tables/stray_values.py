"""Text columns that are numeric except for a few values, such as an age with a '.' for missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from setsquare.errors import InputError
from setsquare.notes import Note, Option

#: At most this number, or this share, of the values is stray; a column with more, or with a third of its values, is
#: text.
FEW, SHARE = 10, 0.05
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")


def stray_values(values: Sequence[object]) -> list[str]:
    """Distinct values that keep a text column from being numeric; empty if all are numbers, or many are not.

    Examples
    --------
    >>> stray_values(["31", "44", ".", "27.5"]), stray_values(["1", "2"]), stray_values(["a", "b", "1"])
    (['.'], [], [])
    """
    if not any(isinstance(value, str) for value in values):
        return []
    most = max(FEW, int(SHARE * len(values)))
    strays: list[str] = []
    for value in values:
        if not (isinstance(value, str) and _NUMBER.fullmatch(value)):
            strays.append(str(value))
            if len(strays) > most:
                return []
    return strays if 3 * len(strays) < len(values) else []


def refuse_strays(column: str, counts: Mapping[object, int]) -> None:
    """Refuse a text column (``Column 'age'``) that is numeric except for a few values, given the rows of each value."""
    strays = stray_values(list(counts))
    if not strays:
        return
    rows = sum(counts[value] for value in counts if str(value) in set(strays))
    listed = ", ".join(repr(value) for value in strays[:5]) + (", …" if len(strays) > 5 else "")
    text = (
        "{column} holds numbers but for {strays} ({rows}), and would be read as text with {count} groups: correct "
        "these values (leave them empty where they mean missing), or {groups} if it holds groups."
    )
    lines = f"{rows} row{'' if rows == 1 else 's'}"
    raise InputError(
        Note("stray-values", text, column=column, strays=listed, rows=lines, count=len(counts), groups=AS_GROUPS)
    )


#: Advice to declare that a column holds groups; the command line has an option for it.
AS_GROUPS = Option("categorical", words="convert the column to a category")
