"""Learning a design from a training table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from setsquare.errors import InputError, MissingValuesError
from setsquare.typing import Array, IntArray, Table

from .coders import Categorical, Cells, Coder, Numeric, Unseen, locate_levels, order_levels
from .column import Level, Levels, Missing, Rows, open_rows
from .encoding import Design, read_matrix
from .formula import learn_formula, parse
from .table import Columns, Frame, is_sparse, open_table, require_filled, resolve

Coding: TypeAlias = Literal["dummy", "cells"]
#: A text column with more levels than this, and than half the rows, is taken for an identifier.
MANY_LEVELS = 50
#: A numeric column with no more values than this is taken for codes of groups when cells are asked for.
FEW_VALUES = 20


def learn(
    table: Table,
    columns: Columns = None,
    *,
    coding: Coding = "dummy",
    reference: Mapping[str, Level] | None = None,
    missing: Missing = "error",
    unseen: Unseen = "error",
    formula: str | None = None,
) -> Design:
    """Learn from a training table how to turn its columns into a matrix.

    Parameters
    ----------
    table : dataframe (pandas, polars, pyarrow, ...), array or sparse matrix
        Columns of an array are named ``x0``, ``x1``, ….
    columns : str, int, sequence of either, or None
        Columns to use, by name or position; None uses all. A string that starts with ``~`` is a formula.
    coding : {"dummy", "cells"}
        Whether categoricals (and booleans) are coded each on its own, or all together with one column for every
        combination that occurs. Numeric columns stay as they are.
    reference : mapping of column to level, optional
        Levels without a column of their own; by default the first, in the order that the column declares (text:
        alphabetical).
    missing : {"error", "drop", "level"}
        Refuse missing values, leave out their rows, or give them a level ``missing`` (a numeric column: an indicator
        ``age[missing]``, with the training mean in place of the value).
    unseen : {"error", "pool"}
        What happens to levels that only later tables have: refuse, or count them as the reference level.
    formula : str, optional
        In place of `columns`; needs ``pip install setsquare[formula]``. Its intercept is left out.

    Returns
    -------
    Design

    Examples
    --------
    >>> import numpy as np
    >>> table = np.array([["White", 31], ["Black", 44], ["White", 27]], dtype=object)
    >>> design = learn(table, reference={"x0": "White"})
    >>> design.names, design.sources
    (('x0[Black]', 'x1'), ('x0', 'x1'))
    >>> design.apply(table).values
    array([[ 0., 31.],
           [ 1., 44.],
           [ 0., 27.]])
    """
    for option, value, kind in (("coding", coding, Coding), ("missing", missing, Missing), ("unseen", unseen, Unseen)):
        if value not in get_args(kind):
            raise InputError(f"{option}={value!r} is not one of {', '.join(map(repr, get_args(kind)))}.")
    frame = open_table(table)
    require_filled(frame)
    if formula is not None and columns is not None:
        raise InputError("Give either columns or a formula, not both.")
    if isinstance(columns, str) and columns.lstrip().startswith("~"):
        formula = columns
    if formula is not None:
        if coding == "cells":
            raise InputError("A formula codes its own cells: write sex * race instead of coding='cells'.")
        coders = _learn_formula(frame, formula, reference or {}, missing)
    else:
        names = tuple(frame.names[j] for j in resolve(frame, columns))
        coders = _learn_columns(frame, names, coding, reference or {}, missing)
    design = Design(coders, missing, unseen)
    _refuse_collisions(design.names)
    return design


def _learn_columns(
    frame: Frame, names: tuple[str, ...], coding: Coding, reference: Mapping[str, Level], missing: Missing
) -> tuple[Coder, ...]:
    if not names:
        raise InputError("No column was asked for; name at least one.")
    plain = coding == "dummy" and not reference and (missing != "level" or is_sparse(frame.source))
    if plain and read_matrix(frame, names) is not None:
        return tuple(Numeric(name) for name in names)
    rows = open_rows(frame, names, missing)
    coders = tuple(_learn_variables(rows, reference))
    return _join(coders, rows) if coding == "cells" else coders


def _learn_formula(frame: Frame, text: str, reference: Mapping[str, Level], missing: Missing) -> tuple[Coder, ...]:
    parsed, names = parse(text, frame)
    rows = open_rows(frame, names, missing)
    variables = tuple(_learn_variables(rows, reference))
    return (learn_formula(text, parsed, variables, rows),)


def _learn_variables(rows: Rows, reference: Mapping[str, Level]) -> Iterator[Numeric | Categorical]:
    for name in reference:
        if name not in rows.columns:
            raise InputError(f"The reference names the column {name!r}, which is not among {list(rows.columns)}.")
    for name in rows.columns:
        column = rows.column(name)
        blank = column.missing
        if blank.all():
            raise MissingValuesError(f"Column {name!r} has missing values only; leave it out.")
        if isinstance(column, Levels):
            levels = order_levels(column, name, reference.get(name))
            if len(levels) > max(MANY_LEVELS, rows.n // 2):
                raise InputError(
                    f"Column {name!r} has {len(levels)} levels in {rows.n} rows, as an identifier has; leave it out, "
                    "or convert it if it holds numbers as text."
                )
            yield Categorical(name, levels)
            continue
        if name in reference:
            raise InputError(f"Column {name!r} is numeric and has no reference level; convert it to text.")
        fill = float(column.values[~blank].mean()) if rows.missing == "level" else None
        yield Numeric(name, fill, bool(blank.any()))


def _join(coders: Sequence[Numeric | Categorical], rows: Rows) -> tuple[Coder, ...]:
    """Put one saturated coder in the place of the first categorical."""
    for coder in coders:
        if isinstance(coder, Numeric) and _looks_like_codes(rows.numbers(coder.name)):
            raise InputError(
                f"Column {coder.name!r} is numeric and would take no part in the cells, although it has few values; "
                "convert it to text or to a category."
            )
    parts = [coder for coder in coders if isinstance(coder, Categorical)]
    if len(parts) < 2:
        return tuple(coders)
    codes = [locate_levels(part.levels, rows.levels(part.name)) for part in parts]
    cells = Cells(tuple(p.name for p in parts), tuple(p.levels for p in parts), _observed(codes))
    rest = [coder for coder in coders if coder not in parts[1:]]
    return tuple(cells if coder is parts[0] else coder for coder in rest)


def _looks_like_codes(values: Array) -> bool:
    """Whether numbers are whole and few, and each occurs often: groups rather than a quantity."""
    distinct = np.unique(values[~np.isnan(values)])
    few = len(distinct) <= FEW_VALUES and 10 * len(distinct) <= len(values)
    return bool(few and (distinct == np.floor(distinct)).all())


def _observed(codes: Sequence[IntArray]) -> tuple[tuple[int, ...], ...]:
    """List the combinations of `codes` that occur, in lexicographic order."""
    ids = np.zeros(len(codes[0]), dtype=np.int64)
    first = ids[:1]
    for code in codes:
        # Renumbered at each column, so that the product of all level counts is never formed.
        _, first, ids = np.unique(ids * (code.max() + 1) + code, return_index=True, return_inverse=True)
    return tuple(tuple(int(code[row]) for code in codes) for row in first)


def _refuse_collisions(names: Sequence[Any]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"Two output columns would be called {twice[0]!r}; rename an input column.")
