"""Which column plays which part, and what has to be guessed of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from setsquare import families
from setsquare.cli.files import Source
from setsquare.cli.options import Options
from setsquare.errors import InputError
from setsquare.notes import Note
from setsquare.tables.outcome import Guess, read_family
from setsquare.tables.summary import FEW_VALUES

if TYPE_CHECKING:
    import pyarrow as pa


def resolve(source: Source, asked: Mapping[str, Sequence[str] | str | None]) -> dict[str, list[str]]:
    """Names of the columns of each part; a name that is no column is split at commas.

    Parameters
    ----------
    source : Source
    asked : mapping of part to names, a name, or None
        No column may have two parts.
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
            raise InputError(f"--{role} names no column: give one or more names with commas between them.")
        roles[role] = names
        source.check(names)
    for role, names in roles.items():
        for other in (other for other in roles if other != role):
            if both := [name for name in names if name in roles[other]]:
                raise InputError(f"The column {both[0]!r} is given as --{role} and as --{other}: choose one.")
    return roles


def read_roles(
    source: Source, asked: Mapping[str, Sequence[str] | str | None], options: Options
) -> tuple[pa.Table, dict[str, list[str]], tuple[Note, ...]]:
    """Read the columns of all parts, with the rules for groups and missing values; notes say what was done."""
    roles = resolve(source, asked)
    groups = resolve(source, {"categorical": options.categorical})["categorical"]
    table = source.read([name for names in roles.values() for name in names], groups)
    for name in (name for name in groups if name in table.column_names):
        j = table.schema.get_field_index(name)
        table = table.set_column(j, name, _as_category(table.column(j)))
    if table.num_rows == 1:
        raise InputError(f"{source.name} has a single row, of which nothing can be said: give more rows.")
    table, notes = _prepare_groups(table, roles["protected"], options)
    if options.missing != "drop":
        return table, roles, notes
    kept = complete_rows(table)
    count = table.num_rows - kept.num_rows
    text = "{count} of {n} rows have a missing value and were left out."
    left_out = Note("rows-left-out", text, count=count, n=table.num_rows)
    return kept, roles, (*notes, left_out) if count else notes


def _as_category(column: Any) -> Any:
    """Texts as categories, in the order of the alphabet: their type then says that they are groups."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    levels = pa.array(sorted(level for level in pc.unique(text).to_pylist() if level is not None), pa.string())
    codes = pc.index_in(text, value_set=levels)
    return pa.DictionaryArray.from_arrays(codes, levels)


def _prepare_groups(table: pa.Table, protected: Sequence[str], options: Options) -> tuple[pa.Table, tuple[Note, ...]]:
    """Take few whole numbers for groups where combinations are asked for; else say that they count as numbers."""
    import pyarrow as pa

    coded = coded_groups(table, protected, 2 if options.group_cells else 3)
    if not options.group_cells:
        text = (
            "The protected column {name!r} has few whole numbers, which were taken for a quantity: pass --categorical "
            "{name} if they stand for groups."
        )
        return table, tuple(Note("numbers-or-groups", text, severity="caution", name=name) for name in coded)
    for name in coded:
        j = table.schema.get_field_index(name)
        table = table.set_column(j, name, table.column(j).cast(pa.string()))
    text = "The few whole numbers of {name!r} were taken for groups."
    return table, tuple(Note("taken-for-groups", text, name=name) for name in coded)


def coded_groups(table: pa.Table, names: Sequence[str], fewest: int) -> list[str]:
    """Columns of a few whole numbers, which may stand for groups; but for cells, two say the same either way."""
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


def decoded(column: Any) -> Any:
    """A column with groups as their texts, and exact decimals as numbers."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column


def values(column: Any) -> Any:
    """A column as a numpy array."""
    return decoded(column).to_numpy()


def guess_outcome(
    table: pa.Table, name: str, asked: str | None, n_columns: int = 1, predictions: Sequence[str] = ()
) -> Guess:
    """Tell the family of an outcome; two classes are binomial, whatever was asked for.

    Parameters
    ----------
    table : pyarrow.Table
    name : str
        Column of the outcome.
    asked : str, optional
        Name of a family.
    n_columns : int
        Columns of class probabilities.
    predictions : sequence of str
        Columns of predictions.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = (table.column(each) for each in predictions)
    numbers = (each for each in columns if pa.types.is_floating(each.type) or pa.types.is_integer(each.type))
    lowest = (pc.min(each).as_py() for each in numbers)
    guess = read_family(
        values(table.column(name)),
        None if asked is None else families.family(asked),
        name=name,
        n_columns=n_columns,
        lowest_prediction=min((low for low in lowest if low is not None), default=np.inf),
        is_category=pa.types.is_dictionary(table.schema.field(name).type),
    )
    if guess.family.is_vector and pc.count_distinct(decoded(table.column(name))).as_py() == 2 and n_columns <= 2:
        return Guess(families.family("binomial"), True, guess.reason)
    return guess
