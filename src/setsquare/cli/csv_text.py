"""Text of a CSV file: its encoding, the sign between fields, and decimal commas."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from setsquare.errors import InputError
from setsquare.notes import Note

#: Encodings by the bytes that a text in them may start with.
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
#: What most files that are not UTF-8 are written in; it contains the letters of latin-1.
FALLBACK = "cp1252"
DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"')
#: Numbers with a decimal comma, and those of them that may be thousands instead.
_COMMA, _THOUSANDS = r"^\s*[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?\s*$", r"^\s*[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+\s*$"
_WHOLE = r"^\s*[+-]?[0-9]+\s*$"
_ZERO = r"^\s*0[0-9]+\s*$"


@dataclass(frozen=True, slots=True)
class Encoding:
    """Name of an encoding, and whether it was guessed because the text is not UTF-8."""

    name: str
    is_guess: bool = False


def find_encoding(head: bytes, asked: str | None, file: str) -> Encoding:
    r"""Encoding that was asked for, or that the first bytes of a file tell.

    Examples
    --------
    >>> find_encoding(b"name\ncaf\xe9\n", None, "a.csv")
    Encoding(name='cp1252', is_guess=True)
    >>> find_encoding("name\ncafé\n".encode(), None, "a.csv").name
    'utf-8'
    """
    if asked is not None:
        try:
            return Encoding(codecs.lookup(asked).name)
        except LookupError:
            raise InputError(f"--encoding {asked} is not known: use utf-8, cp1252, latin-1 or utf-16.") from None
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return Encoding(name)
    if is_utf8([head], whole=False):
        return Encoding("utf-8")
    if b"\0" in head:
        refuse_format(file)
    return Encoding(FALLBACK, is_guess=True)


def is_utf8(parts: Iterable[bytes], *, whole: bool) -> bool:
    """Whether bytes are text in UTF-8; if they are not the whole text, a letter may be cut at their end."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return all("\0" not in decoder.decode(part) for part in parts) and decoder.decode(b"", whole) == ""
    except UnicodeDecodeError:
        return False


def refuse_format(file: str) -> NoReturn:
    """Refuse a file that is not a table."""
    raise InputError(f"{file} is not a CSV, Parquet, Feather or Excel file: save the table in one of these formats.")


def refuse_encoding(file: str, encoding: str) -> NoReturn:
    """Refuse a file that is not in the encoding that the user names."""
    raise InputError(f"{file} is not encoded in {encoding}: pass another --encoding, such as cp1252.")


def guessed_encoding(file: str) -> Note:
    """Note that the encoding was guessed."""
    text = "{file} is not UTF-8 and was read as Windows-1252 (latin-1): if letters look wrong, pass --encoding."
    return Note("encoding-guessed", text, severity="caution", file=file)


def find_delimiter(header: str) -> str:
    """The sign between the fields of a header.

    Examples
    --------
    >>> find_delimiter('id;"income, yearly";"debt, all, now"'), find_delimiter("id")
    (';', ',')
    """
    outside = _QUOTED.sub("", header)
    return max(DELIMITERS, key=outside.count)


def read_decimal_commas(table: pa.Table, names: Collection[str]) -> tuple[pa.Table, list[str]]:
    """Read columns of texts that are all numbers with a decimal comma as numbers; returns the names of these.

    Whole numbers may be among them. Numbers such as 1,234 alone stay texts, because the comma may stand for thousands.
    """
    found = []
    for j, field in enumerate(table.schema):
        if field.name in names and pa.types.is_string(field.type) and _has_decimal_commas(table.column(j)):
            numbers = pc.replace_substring(pc.utf8_trim_whitespace(table.column(j)), ",", ".").cast(pa.float64())
            table = table.set_column(j, field.name, numbers)
            found.append(field.name)
    return table, found


def _has_decimal_commas(column: Any) -> bool:
    first = column.slice(0, 1000)
    return _are_decimal(first) and (len(column) <= len(first) or _are_decimal(column))


def _are_decimal(column: Any) -> bool:
    with_comma = pc.match_substring_regex(column, _COMMA)
    numbers = pc.or_(with_comma, pc.match_substring_regex(column, _WHOLE))
    clear = pc.and_(with_comma, pc.invert(pc.match_substring_regex(column, _THOUSANDS)))
    return bool(pc.all(numbers).as_py()) and bool(pc.any(clear).as_py())


def leading_zeros(table: pa.Table) -> tuple[Note, ...]:
    """Note columns of texts with whole numbers such as 01067, which are often codes of groups."""
    names = [name for name in table.column_names if pc.any(pc.match_substring_regex(table[name], _ZERO)).as_py()]
    text = "Numbers in {names} have leading zeros and were read as quantities: pass --categorical {codes} for codes."
    fields = {"names": ", ".join(names), "codes": ",".join(names)}
    return (Note("leading-zeros", text, severity="caution", **fields),) if names else ()


def decimal_commas(names: list[str]) -> Note:
    """Note that numbers were read with decimal commas."""
    text = "Numbers in {names} were read with a decimal comma: pass --decimal . if they are texts."
    return Note("decimal-commas", text, names=", ".join(names))
