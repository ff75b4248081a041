"""Text columns of numbers, percentages or dates, which would otherwise become one group per value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from setsquare.errors import InputError
from setsquare.notes import Note, Option

#: At most this number, or this share, of the values is stray; a column with more, or with a third of its values, is
#: text.
FEW_STRAYS, STRAY_SHARE = 10, 0.05
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
    most = max(FEW_STRAYS, int(STRAY_SHARE * len(values)))
    strays: list[str] = []
    for value in values:
        if not (isinstance(value, str) and _NUMBER.fullmatch(value)):
            strays.append(str(value))
            if len(strays) > most:
                return []
    return strays if 3 * len(strays) < len(values) else []


#: Fewest different values from which decimal numbers, percentages and dates that are written as text are refused.
MANY_WRITTEN = 20
_WRITTEN = {
    "percentages": re.compile(r"\s*[+-]?\d+([.,]\d+)?\s*%\s*"),
    "dates": re.compile(
        r"\s*(\d{4}([./-])\d{1,2}\2\d{1,2}|\d{1,2}([./-])\d{1,2}\3(\d{4}|\d{2}))"
        r"([ T]+\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?Z?)?\s*"
    ),
    "numbers": re.compile(r"\s*[+-]?(?!0\d)(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?\s*"),
}
_ADVICE = {
    "percentages": "convert it to numbers (0.5 for '50%')",
    "dates": "leave it out, or convert it to numbers (years, or days since a first day)",
    "numbers": "convert it to numbers",
}


def written_as_text(values: Sequence[object]) -> str:
    """What many different texts all are: "percentages", "dates" or decimal "numbers"; empty if they are groups.

    Whole numbers, and numbers with leading zeros, may be codes of groups.

    Examples
    --------
    >>> written_as_text([f"{j}.5" for j in range(30)]), written_as_text([f"{j:05d}" for j in range(30)])
    ('numbers', '')
    """
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < max(len(values), MANY_WRITTEN):
        return ""
    kinds = (kind for kind, pattern in _WRITTEN.items() if all(map(pattern.fullmatch, texts)))
    kind = next(kinds, "")
    return "" if kind == "numbers" and not any("." in text or "," in text for text in texts) else kind


def _refuse_written(column: str, values: Sequence[object]) -> None:
    if kind := written_as_text(values):
        text = (
            "{column} holds {kind} as text ({such}, …), and would be read as {count} groups: {advice}, or {groups} if "
            "it holds groups."
        )
        such = ", ".join(map(repr, values[:2]))
        fields: dict[str, Any] = {"kind": kind, "such": such, "count": len(values)}
        fields |= {"advice": _ADVICE[kind], "groups": AS_GROUPS}
        raise InputError(Note("written-as-text", text, column=column, **fields))


def refuse_strays(column: str, counts: Mapping[object, int]) -> None:
    """Refuse a text column (``Column 'age'``) of numbers or dates, or of numbers but for a few values.

    The mapping has the rows of each value.
    """
    strays = stray_values(list(counts))
    if not strays:
        _refuse_written(column, list(counts))
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
