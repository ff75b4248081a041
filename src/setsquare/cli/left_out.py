"""Columns of a file that are not features: identifiers, dates, and columns without values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from setsquare.notes import Note

#: Names of identifiers: id, patient_id, customerId, UUID.
_NAME = re.compile(r"(?i:(?:^|[\s_.-])(?:id|uuid|guid))$|[a-z](?:Id|ID)$")
_DATE = r"^\s*\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ T]+\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?)?\s*$"
#: Fewest rows from which distinct values are taken for identifiers.
FEWEST_ROWS = 20
#: Share of distinct values from which texts, and columns that are named so, are identifiers.
TEXTS, NAMED = 0.95, 0.2


def find_left_out(table: pa.Table, names: Sequence[str]) -> dict[str, str]:
    """Columns that are no features, each with the reason.

    Examples
    --------
    >>> n = 30
    >>> table = pa.table({"id": list(range(n)), "age": [j % 7 for j in range(n)], "none": pa.nulls(n)})
    >>> find_left_out(table, table.column_names)
    {'id': 'identifier', 'none': 'no values'}
    """
    found = {name: _reason(name, table.column(name)) for name in names}
    return {name: reason for name, reason in found.items() if reason}


def note_left_out(found: dict[str, str]) -> tuple[Note, ...]:
    """Note on the columns that were left out, if there are any."""
    if not found:
        return ()
    listed = ", ".join(f"{name} ({reason})" for name, reason in found.items())
    text = "Left out of the features: {columns}. Name the columns to use with --features if this is wrong."
    return (Note("columns-left-out", text, columns=listed),)


def _reason(name: str, column: Any) -> str:
    if column.null_count == len(column):
        return "no values"
    if pa.types.is_temporal(column.type) or _has_dates(column):
        return "dates"
    if not _is_identifier(name, column):
        return ""
    return "different texts" if pa.types.is_string(column.type) and not _NAME.search(name) else "identifier"


def _has_dates(column: Any) -> bool:
    if not pa.types.is_string(column.type):
        return False
    matches = pc.match_substring_regex(column.slice(0, 1000), _DATE)
    return bool(pc.all(matches).as_py()) and bool(pc.any(matches).as_py())


def _is_identifier(name: str, column: Any) -> bool:
    is_text, n = pa.types.is_string(column.type), len(column)
    if not (is_text or pa.types.is_integer(column.type)) or n < FEWEST_ROWS:
        return False
    share = pc.count_distinct(column).as_py() / (n - column.null_count)
    if _NAME.search(name):
        return bool(share >= NAMED)
    if is_text:
        return bool(share >= TEXTS)
    ends = pc.min_max(column).as_py()  # row numbers
    return bool(share == 1.0 and column.null_count == 0 and ends["max"] - ends["min"] == n - 1)
