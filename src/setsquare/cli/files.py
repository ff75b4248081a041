"""Columns of a file by role, with the rules for groups, missing values and columns that are no features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import narwhals.stable.v2 as nw
import pyarrow as pa
import pyarrow.compute as pc

from setsquare.cli.contents import checksum
from setsquare.cli.left_out import find_left_out, note_left_out
from setsquare.cli.options import Options
from setsquare.cli.read_columns import read_columns
from setsquare.cli.sources import Source, open_source
from setsquare.errors import InputError
from setsquare.notes import Note
from setsquare.tables.frame import Frame, is_formula, to_numpy
from setsquare.tables.frame import resolve as find_columns
from setsquare.tables.summary import FEW_VALUES
from setsquare.tables.validation import check_roles

#: So many protected columns are counted first.
MANY_PROTECTED = 100


def resolve(source: Source, asked: Mapping[str, Sequence[str] | str | None]) -> dict[str, list[str]]:
    """Names of the columns of each role; a name that is not a column is split at commas.

    Parameters
    ----------
    source : Source
    asked : mapping of role to names, a name, or None
        No column may have two roles.
    """
    roles: dict[str, list[str]] = {}
    columns = set(source.columns)  # each name is looked up, and both can be thousands
    for role, given in asked.items():
        tokens = [given] if isinstance(given, str) else list(given or ())
        names = [
            name
            for token in tokens
            for name in ([token] if token in columns else [part.strip() for part in token.split(",")])
        ]
        if tokens and not any(names):
            raise InputError(f"--{role} names no column: give one or more column names, comma-separated.")
        roles[role] = names
        check_names(source, names)
    check_roles(roles)
    return roles


def check_names(source: Source, names: Sequence[str]) -> None:
    """Refuse names that are not columns, and suggest the nearest ones."""
    if len(set(source.columns)) < len(source.columns):
        asked, counts = set(names), Counter(source.columns)
        for twice in (name for name, count in counts.items() if count > 1 and name in asked):
            raise InputError(f"{source.name} has more than one column {twice!r}; rename one of them.")
    find_columns(Frame(tuple(dict.fromkeys(source.columns)), 1, None), list(names))


@dataclass(frozen=True, slots=True)
class FileRows:
    """Columns of a file by role, notes on what was done with them, and name and checksum of the file.

    ``predictions`` are columns by name, with groups as texts; ``arrays`` are the single columns of some roles;
    ``formula`` is that of the protected columns, if there is one.
    """

    origin: dict[str, str]
    table: pa.Table
    roles: dict[str, list[str]]
    predictions: dict[str, Any]
    arrays: dict[str, Any]
    notes: tuple[Note, ...]
    formula: str | None = None


def read_rows(
    file: str,
    asked: Mapping[str, Sequence[str] | str | None],
    options: Options,
    *,
    others: str | None = None,
    exclude: Sequence[str] = (),
    again: Mapping[str, Sequence[str]] | None = None,
    arrays: Sequence[str] = ("cluster", "weight"),
) -> FileRows:
    """Read the columns of all roles, with the rules for groups and missing values.

    No column may have two of the roles `asked` for; those in `again` are columns that also have another one, such as
    controls among the features. The role `others` has by default all columns without another, except those to
    `exclude`, identifiers, dates and columns without values. The single columns of the roles `arrays` are returned as
    arrays, too.
    """
    source = open_source(file, options)
    asked, formula = _read_formula(source, asked)
    searched = None if others is None or asked[others] else others
    if searched is not None:
        roles = resolve(source, {**asked, searched: None})
        taken = {name for names in roles.values() for name in names}
        taken |= set(resolve(source, {"exclude": exclude})["exclude"])
        # Columns without a name, or with pandas' own, are row numbers.
        rest = [c for c in source.columns if c not in taken and c and not c.startswith("__index_level_")]
        asked = {**asked, searched: rest}
    elif exclude:
        raise InputError("--exclude is for when all other columns are features: leave it out, or leave out --features.")
    table, roles, notes = _read_roles(source, asked, options, searched)
    roles |= resolve(source, again or {})
    columns = {role: decoded(table.column(roles[role][0])) for role in arrays if roles.get(role)}
    made = {role: to_numpy(nw.from_native(column, series_only=True)) for role, column in columns.items()}
    predictions = {name: decoded(table.column(name)) for name in roles.get("predictions", ())}
    origin = {"file": source.name, "sha256": checksum(source.content)}
    return FileRows(origin, table, roles, predictions, made, notes, formula)


def _read_formula(
    source: Source, asked: Mapping[str, Sequence[str] | str | None]
) -> tuple[Mapping[str, Sequence[str] | str | None], str | None]:
    """Replace a formula of the protected columns by the columns that it needs."""
    protected = asked["protected"] or ()
    text = protected if isinstance(protected, str) else ",".join(protected)
    if not is_formula(text, source.columns):
        return asked, None
    from setsquare.tables.formula import parse

    return {**asked, "protected": list(parse(text, Frame(source.columns, 1, None))[1])}, text


def _read_roles(
    source: Source, asked: Mapping[str, Sequence[str] | str | None], options: Options, searched: str | None
) -> tuple[pa.Table, dict[str, list[str]], tuple[Note, ...]]:
    """Read the columns of all roles, with the rules for groups and missing values, and notes on what was done."""
    roles = resolve(source, asked)
    groups = resolve(source, {"categorical": options.categorical})["categorical"]
    table, read = read_columns(source, [name for names in roles.values() for name in names], groups)
    left_out = {} if searched is None else find_left_out(table, [n for n in roles[searched] if n not in groups])
    if left_out:
        table = table.drop_columns(list(left_out))
        roles[searched or ""] = [name for name in roles[searched or ""] if name not in left_out]
    for name in (name for name in groups if name in table.column_names):
        j = table.schema.get_field_index(name)
        table = table.set_column(j, name, _as_category(table.column(j)))
    if table.num_rows == 1:
        raise InputError(f"{source.name} has a single row, which is too few for an audit: add rows.")
    if len(roles["protected"]) > MANY_PROTECTED:  # before they are coded, which takes long
        from setsquare.projection.basis import check_rows

        check_rows(table.num_rows, len(roles["protected"]))
    table, notes = _prepare_groups(table, roles["protected"], options)
    notes = (*read, *note_left_out(left_out), *notes)
    if options.missing != "drop":
        return table, roles, notes
    kept = complete_rows(table)
    count = table.num_rows - kept.num_rows
    text = "{count} of {n} rows have a missing value and were left out."
    incomplete = Note("rows-left-out", text, count=count, n=table.num_rows)
    return kept, roles, (*notes, incomplete) if count else notes


def _as_category(column: Any) -> Any:
    """Texts as categories in alphabetical order, so that their type declares groups."""
    text = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    levels = pa.array(sorted(level for level in pc.unique(text).to_pylist() if level is not None), pa.string())
    codes = pc.index_in(text, value_set=levels)
    return pa.DictionaryArray.from_arrays(codes, levels)


def _prepare_groups(table: pa.Table, protected: Sequence[str], options: Options) -> tuple[pa.Table, tuple[Note, ...]]:
    """Read columns of few whole numbers as groups if cells are asked for; otherwise note that they are numeric."""
    coded = coded_groups(table, protected, 2 if options.takes_cells else 3)
    if not options.takes_cells:
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
    gone = reduce(pc.or_, (pc.is_null(column, nan_is_null=True) for column in table.columns))
    if pc.all(gone).as_py():
        raise InputError("No row is complete: fill missing values, or name fewer columns.")
    return table.filter(pc.invert(gone))


def decoded(column: Any) -> Any:
    """A column with groups as their texts, and exact decimals as floating-point numbers."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column
