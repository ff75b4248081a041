"""Columns of a file by their role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import numpy as np

from setsquare.cli.files import Source
from setsquare.cli.shared_options import Options
from setsquare.errors import InputError
from setsquare.notes import Note
from setsquare.tables.roles import check_roles
from setsquare.tables.summary import FEW_VALUES

if TYPE_CHECKING:
    import pyarrow as pa


def resolve(source: Source, asked: Mapping[str, Sequence[str] | str | None]) -> dict[str, list[str]]:
    """Names of the columns of each role; a name that is not a column is split at commas.

    Parameters
    ----------
    source : Source
    asked : mapping of role to names, a name, or None
        No column may have two roles.
    """
    roles: dict[str, list[str]] = {}
    for role, given in asked.items():
        tokens = [given] if isinstance(given, str) else list(given or ())
        names = [
            name
            for token in tokens
            for name in ([token] if token in source.columns else [part.strip() for part in token.split(",")])
        ]
        if tokens and not any(names):
            raise InputError(f"--{role} names no column: give one or more column names, comma-separated.")
        roles[role] = names
        source.check(names)
    check_roles(roles)
    return roles


def read_roles(
    source: Source, asked: Mapping[str, Sequence[str] | str | None], options: Options
) -> tuple[pa.Table, dict[str, list[str]], tuple[Note, ...]]:
    """Read the columns of all roles, with the rules for groups and missing values, and notes on what was done."""
    roles = resolve(source, asked)
    groups = resolve(source, {"categorical": options.categorical})["categorical"]
    table = source.read([name for names in roles.values() for name in names], groups)
    for name in (name for name in groups if name in table.column_names):
        j = table.schema.get_field_index(name)
        table = table.set_column(j, name, _as_category(table.column(j)))
    if table.num_rows == 1:
        raise InputError(f"{source.name} has a single row, which is too few for an audit: add rows.")
    table, notes = _prepare_groups(table, roles["protected"], options)
    if options.missing != "drop":
        return table, roles, notes
    kept = complete_rows(table)
    count = table.num_rows - kept.num_rows
    text = "{count} of {n} rows have a missing value and were left out."
    left_out = Note("rows-left-out", text, count=count, n=table.num_rows)
    return kept, roles, (*notes, left_out) if count else notes


def _as_category(column: Any) -> Any:
    """Texts as categories in alphabetical order, so that their type declares groups."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    levels = pa.array(sorted(level for level in pc.unique(text).to_pylist() if level is not None), pa.string())
    codes = pc.index_in(text, value_set=levels)
    return pa.DictionaryArray.from_arrays(codes, levels)


def _prepare_groups(table: pa.Table, protected: Sequence[str], options: Options) -> tuple[pa.Table, tuple[Note, ...]]:
    """Read columns of few whole numbers as groups if cells are asked for; otherwise note that they are numeric."""
    import pyarrow as pa

    coded = coded_groups(table, protected, 2 if options.group_cells else 3)
    if not options.group_cells:
        text = (
            "The protected column {name!r} has few whole numbers, which were read as a quantity: pass --categorical "
            "{name} if they are codes of groups."
        )
        return table, tuple(Note("numbers-or-groups", text, severity="caution", name=name) for name in coded)
    for name in coded:
        j = table.schema.get_field_index(name)
        table = table.set_column(j, name, table.column(j).cast(pa.string()))
    text = "The few whole numbers of {name!r} were read as groups."
    return table, tuple(Note("taken-for-groups", text, name=name) for name in coded)


def coded_groups(table: pa.Table, names: Sequence[str], fewest: int) -> list[str]:
    """Columns of a few whole numbers, which may be codes of groups."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = []
    for name in names:
        column = table.column(name)
        if pa.types.is_integer(column.type):
            n_values = pc.count_distinct(column).as_py()
            if fewest <= n_values <= FEW_VALUES and 10 * n_values <= len(column):
                found.append(name)
    return found


def complete_rows(table: pa.Table) -> pa.Table:
    """Rows without a missing value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keep = np.ones(table.num_rows, dtype=bool)
    for column in table.columns:
        keep &= ~pc.is_null(column, nan_is_null=True).to_numpy()
    if not keep.any():
        raise InputError("No row is complete: fill missing values, or name fewer columns.")
    return table if keep.all() else table.filter(pa.array(keep))


def series(table: pa.Table, name: str) -> Any:
    """A column with its name."""
    return nw.from_native(table.column(name), series_only=True).alias(name)


def is_category(column: Any) -> bool:
    """Whether the type of a column says that it holds groups."""
    import pyarrow as pa

    return bool(pa.types.is_dictionary(column.type))


def decoded(column: Any) -> Any:
    """A column with groups as their texts, and exact decimals as floating-point numbers."""
    import pyarrow as pa

    if is_category(column):
        return column.cast(column.type.value_type)
    return column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column


def values(column: Any) -> Any:
    """A column as a numpy array."""
    return decoded(column).to_numpy()
