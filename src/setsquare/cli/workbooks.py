"""Sheets of Excel and OpenDocument workbooks as Arrow tables, by python-calamine (an optional package)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from setsquare._extras import require
from setsquare.errors import InputError

#: First bytes of workbooks: .xlsx, .xlsm and .ods are zip files, .xls is a compound file.
ZIP, COMPOUND = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"


def is_workbook(head: bytes) -> bool:
    """Whether a file starts as a workbook does."""
    return head.startswith((ZIP, COMPOUND))


def read_sheet(content: Path | bytes, name: str, sheet: str | None) -> pa.Table:
    """Read a sheet: the one that is asked for, or the only one with cells.

    The first row with cells is the header; rows without any value are left out.
    """
    require("Excel files need", "python_calamine")
    import python_calamine as calamine

    try:
        opened = calamine.load_workbook(io.BytesIO(content) if isinstance(content, bytes) else str(content))
        rows = opened.get_sheet_by_name(_choose(opened, name, sheet)).to_python(skip_empty_area=True)
    except calamine.PasswordError:
        raise InputError(f"{name} is protected by a password: save it without one.") from None
    except (calamine.CalamineError, calamine.ZipError, calamine.XmlError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise InputError(f"{name} cannot be read as a workbook ({reason}): save it again, or as CSV.") from None
    return _as_table([row for row in rows if any(value != "" for value in row)], name)


def _choose(opened: Any, name: str, sheet: str | None) -> str:
    names = list(opened.sheet_names)
    if sheet is not None:
        if sheet not in names:
            raise InputError(f"{name} has no sheet {sheet!r}: it has {', '.join(map(repr, names))}.")
        return sheet
    filled = [each for each in names if opened.get_sheet_by_name(each).height > 1]  # a header and rows
    if len(filled) > 1:
        raise InputError(
            f"{name} has {len(filled)} sheets with rows ({', '.join(map(repr, filled))}): name one with --sheet."
        )
    if not filled:
        raise InputError(f"{name} has no sheet with a header and rows: add them.")
    return str(filled[0])


def _as_table(rows: Sequence[Sequence[Any]], name: str) -> pa.Table:
    if not rows:
        raise InputError(f"The sheet of {name} is empty: choose another one with --sheet.")
    header, *body = rows
    titles = ["" if value == "" else _text(value) for value in header]
    columns = [_column([row[j] if j < len(row) else "" for row in body]) for j in range(len(titles))]
    used = [j for j, title in enumerate(titles) if title or columns[j].null_count < len(columns[j])]
    return pa.table([columns[j] for j in used], names=[titles[j] for j in used])


def _column(values: list[Any]) -> Any:
    """Values of one type as they are, whole numbers as integers, a mixture as texts."""
    present = [value for value in values if value != ""]
    kinds = {type(value) for value in present}
    cleaned = [None if value == "" else value for value in values]
    if kinds and kinds <= {int, float}:
        if all(float(value).is_integer() and abs(value) < 2**53 for value in present):
            return pa.array([None if value is None else int(value) for value in cleaned], pa.int64())
        return pa.array(cleaned, pa.float64())
    if len(kinds) <= 1:
        return pa.array(cleaned)
    return pa.array([None if value is None else _text(value) for value in cleaned], pa.string())


def _text(value: Any) -> str:
    """A cell as text; whole numbers without a decimal point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)
