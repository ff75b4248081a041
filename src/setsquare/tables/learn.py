"""Learning a design from a training table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from setsquare._typing import Table
from setsquare.errors import InputError
from setsquare.tables.coders import Categorical, Cells, Coder, Numeric, Unseen, locate_levels
from setsquare.tables.column import Level, Missing, TableRows, open_rows, refuse_missing
from setsquare.tables.design import Design, read_matrix
from setsquare.tables.formula import learn_formula, parse
from setsquare.tables.frame import ColumnSelection, Frame, is_sparse, open_table, require_filled, resolve
from setsquare.tables.summary import Seen, TableSeen, code_column, looks_like_codes, observed, see
from setsquare.tables.validation import check_choice, refuse_no_rows

Coding: TypeAlias = Literal["dummy", "cells"]


def learn(
    table: Table,
    columns: ColumnSelection = None,
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
        Levels that only later tables have are refused, or counted as the reference level.
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
    check_options(coding, missing, unseen)
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


def check_options(coding: str, missing: str, unseen: str) -> None:
    """Refuse options that do not exist."""
    for option, value, kind in (("coding", coding, Coding), ("missing", missing, Missing), ("unseen", unseen, Unseen)):
        check_choice(option, value, get_args(kind))


def _learn_columns(
    frame: Frame, names: tuple[str, ...], coding: Coding, reference: Mapping[str, Level], missing: Missing
) -> tuple[Coder, ...]:
    if not names:
        raise InputError("No column is named: name at least one.")
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


def _learn_variables(rows: TableRows, reference: Mapping[str, Level]) -> Iterator[Numeric | Categorical]:
    _check_reference(reference, rows.columns)
    for name in rows.columns:
        yield code_column(name, see(rows.column(name)), reference, rows.missing)


def _check_reference(reference: Mapping[str, Level], columns: Sequence[str]) -> None:
    for name in reference:
        if name not in columns:
            raise InputError(f"The reference names the column {name!r}, which is not among {list(columns)}.")


def _join(coders: Sequence[Numeric | Categorical], rows: TableRows) -> tuple[Coder, ...]:
    """Replace the first categorical by one saturated coder, and drop the others."""
    for coder in coders:
        if isinstance(coder, Numeric):
            _refuse_codes(coder.name, see(rows.column(coder.name), distinct=True))
    parts = [coder for coder in coders if isinstance(coder, Categorical)]
    if len(parts) < 2:
        return tuple(coders)
    codes = [locate_levels(part.levels, rows.levels(part.name)) for part in parts]
    return _with_cells(coders, observed(codes))


def _refuse_codes(name: str, seen: Seen) -> None:
    if looks_like_codes(seen):
        raise InputError(
            f"Column {name!r} is numeric with few values, so it would not be part of the cells; "
            "convert it to text or to a category."
        )


def _with_cells(coders: Sequence[Numeric | Categorical], cells: tuple[tuple[int, ...], ...]) -> tuple[Coder, ...]:
    parts = [coder for coder in coders if isinstance(coder, Categorical)]
    joined = Cells(tuple(p.name for p in parts), tuple(p.levels for p in parts), cells)
    rest = [coder for coder in coders if coder not in parts[1:]]
    return tuple(joined if coder is parts[0] else coder for coder in rest)


def settle(
    seen: TableSeen,
    columns: Sequence[str],
    *,
    coding: Coding = "dummy",
    reference: Mapping[str, Level] | None = None,
    missing: Missing = "error",
    unseen: Unseen = "error",
) -> Design:
    """Learn a design from the merged summary of all batches of a table; the options are those of :func:`learn`.

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare.tables.summary import observe
    >>> batches = [np.array([["b", 1.0]], dtype=object), np.array([["a", 2.0]], dtype=object)]
    >>> seen = [observe(batch, ["x0", "x1"], missing="error") for batch in batches]
    >>> settle(seen[0].merge(seen[1]), ["x0", "x1"]).names
    ('x0[b]', 'x1')
    """
    check_options(coding, missing, unseen)
    if not seen.n_kept:
        refuse_no_rows(columns)
    reference = reference or {}
    _check_reference(reference, columns)
    if missing == "error" and any(seen.columns[name].n_missing for name in columns):
        refuse_missing({name: seen.columns[name].n_missing for name in columns})
    coders: tuple[Coder, ...] = tuple(code_column(name, seen.columns[name], reference, missing) for name in columns)
    if coding == "cells":
        coders = _settle_cells(seen, columns, coders)
    design = Design(coders, missing, unseen)
    _refuse_collisions(design.names)
    return design


def _settle_cells(seen: TableSeen, columns: Sequence[str], coders: Any) -> tuple[Coder, ...]:
    for name in columns:
        if seen.columns[name].counts is None:
            _refuse_codes(name, seen.columns[name])
    parts = [(j, coder) for j, coder in enumerate(coders) if isinstance(coder, Categorical)]
    if len(parts) < 2:
        return tuple(coders)
    place = [{level: i for i, level in enumerate(coder.levels)} for _, coder in parts]
    cells = {tuple(of[cell[j]] for (j, _), of in zip(parts, place, strict=True)) for cell in seen.cells}
    return _with_cells(coders, tuple(sorted(cells)))


def _refuse_collisions(names: Sequence[Any]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"Two output columns would be called {twice[0]!r}; rename an input column.")
