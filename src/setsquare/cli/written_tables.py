"""Tables that are written to files, in the format that the name of the file says."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from setsquare.errors import InputError

#: Texts that spreadsheets evaluate, and those of them that are only numbers.
RISKY, NUMBER = r"^\s*[=+\-@\t\r]", r"^[+\-]?[0-9]*[.,]?[0-9]+([eE][+\-]?[0-9]+)?$"


#: Delimiters of text formats.
_TEXT = {".csv": ",", ".tsv": "\t"}
FORMATS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".feather", ".arrow")


def check_format(path: Path) -> str:
    """Format that the name of a file says, such as ".csv" or ".csv.gz"; others are refused.

    Examples
    --------
    >>> check_format(Path("a.CSV.gz"))
    '.csv.gz'
    >>> check_format(Path("a.xlsx"))
    Traceback (most recent call last):
    ...
    setsquare.errors.InputError: Cannot write a.xlsx: use a name that ends in .csv, .csv.gz, .tsv, ... or .arrow.
    """
    if path.exists() and not path.is_file():  # a device or a pipe
        return ".csv"
    for ending in FORMATS:
        if path.name.lower().endswith(ending):
            return ending
    raise InputError(f"Cannot write {path}: use a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")


def render_table(table: pa.Table, path: Path, *, raw_text: bool = False) -> bytes:
    """Bytes of a table in the format of its file name.

    In CSV, texts that a spreadsheet would evaluate are neutralised unless ``raw_text``.
    """
    ending, stream = check_format(path), io.BytesIO()
    if ending == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, stream)
        return stream.getvalue()
    if ending in (".feather", ".arrow"):
        from pyarrow import feather

        feather.write_feather(table, stream)
        return stream.getvalue()
    options = csv.WriteOptions(delimiter=_TEXT[ending.removesuffix(".gz")])
    csv.write_csv(table if raw_text else neutralise(table), stream, options)
    return gzip.compress(stream.getvalue(), mtime=0) if ending.endswith(".gz") else stream.getvalue()


def neutralise(table: pa.Table) -> pa.Table:
    """Put an apostrophe before texts that a spreadsheet would take for a formula, in cells and in names of columns.

    Examples
    --------
    >>> neutralise(pa.table({"name": ["=1+1", "Ann", None, "-3"], "age": [1, 2, 3, -4]})).to_pydict()
    {'name': ["'=1+1", 'Ann', None, '-3'], 'age': [1, 2, 3, -4]}
    """
    columns = []
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_number = pc.match_substring_regex(column, NUMBER)
            risky = pc.and_(pc.match_substring_regex(column, RISKY), pc.invert(is_number))
            column = pc.if_else(risky, pc.binary_join_element_wise("'", column, ""), column)
        columns.append(column)
    names = [f"'{name}" if re.search(RISKY, name) else name for name in table.column_names]
    return pa.table(columns, names=names)
