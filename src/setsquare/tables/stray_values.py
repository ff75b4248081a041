"""Texts that would be numbers but for a few values, such as an age with a '.' for what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from setsquare.errors import InputError
from setsquare.notes import Note, Option

#: So many values, or this share of all, may keep a column from being numeric; where they are more, or a third of the
#: values, it is taken for text.
FEW, SHARE = 10, 0.05
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")


def stray_values(values: Sequence[object]) -> list[str]:
    """Values that alone keep a column of texts from being numeric; none where all are numbers, or many are not.

    Parameters
    ----------
    values : sequence
        The distinct values of the column.

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


def refuse_strays(column: str, counts: Mapping[object, int], *, groups: bool = True) -> None:
    """Refuse a column of texts that is numeric but for a few values, and name these.

    Parameters
    ----------
    column : str
        What the sentence calls it, such as ``Column 'age'``.
    counts : mapping of value to number of rows
    groups : bool
        Whether the sentence offers to take the values for groups.
    """
    strays = stray_values(list(counts))
    if not strays:
        return
    rows = sum(counts[value] for value in counts if str(value) in set(strays))
    listed = ", ".join(repr(value) for value in strays[:5]) + (", …" if len(strays) > 5 else "")
    text = (
        "{column} holds numbers but for {strays} ({rows}), and would be read as text with {count} groups: correct "
        "these values (leave them empty where they mean missing)"
    )
    text += ", or {groups} if it holds groups." if groups else "."
    lines = f"{rows} row{'' if rows == 1 else 's'}"
    raise InputError(
        Note("stray-values", text, column=column, strays=listed, rows=lines, count=len(counts), groups=AS_GROUPS)
    )


#: What declares a column to hold groups; the command line has an option for it.
AS_GROUPS = Option("categorical", words="convert the column to a category")
