"""Learning a design from a training table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, get_args

from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.tables.coders import Categorical, Cells, Coder, Numeric, Unseen
from setsquare.tables.column import Level, Missing, TableRows, open_rows, refuse_missing
from setsquare.tables.design import Design, read_matrix
from setsquare.tables.formula import learn_formula, parse
from setsquare.tables.frame import ColumnSelection, Frame, is_formula, is_sparse, open_table, require_filled, resolve
from setsquare.tables.smooth import learn_kernel, learn_spline, learn_transformed
from setsquare.tables.summary import TableSeen, code_column, looks_like_codes, observe, see
from setsquare.tables.validation import check_choice, check_reference, refuse_no_rows

#: Names of bases; a formula, a transformer or ``{"kernel": bound}`` may stand in their place.
BASES = ("linear", "cells", "spline", "kernel")


def learn(
    table: Table,
    columns: ColumnSelection = None,
    *,
    basis: Any = "linear",
    reference: Mapping[str, Level] | None = None,
    missing: Missing = "error",
    unseen: Unseen = "error",
    formula: str | None = None,
    largest: bool = False,
    room: float = math.inf,
    weight: Array | None = None,
) -> Design:
    """Learn from a training table how to turn its columns into a matrix.

    Parameters
    ----------
    table : dataframe (pandas, polars, pyarrow, ...), array or sparse matrix
        Columns of an array are named ``x0``, ``x1``, ….
    columns : str, int, sequence of either, or None
        Columns to use, by name or position; None uses all. A string that starts with ``~`` is a formula.
    basis : {"linear", "cells", "spline", "kernel"}, formula, transformer, or ``{"kernel": bound}``
        "linear": numeric columns as they are, categoricals (and booleans) as dummies. "cells": categoricals all
        together, with one column for every combination that occurs. "spline": cubic splines of numeric columns.
        "kernel": leading functions of a Gaussian kernel of all columns, as many as the bound on the covariance with any
        other of its functions needs (0.01 standard deviations of the predictions, unless given). A formula over the
        columns, or a scikit-learn transformer of the coded columns.
    reference : mapping of column to level, optional
        Levels without a column of their own; by default the first, in the order that the column declares (text:
        alphabetical).
    missing : {"error", "drop", "level"}
        Refuse missing values, leave out their rows, or give them a level ``missing`` (a numeric column: an indicator
        ``age[missing]``, with the training mean in place of the value).
    unseen : {"error", "pool"}
        Levels that only later tables have are refused, or counted as the reference level.
    formula : str, optional
        In place of `columns`; needs the package formulaic. Its intercept is left out.
    largest : bool
        Whether the reference is the most frequent level by default, as in audits.
    room : float
        Features that predict while they are orthogonal to these columns. Splines and kernels, which grow with the
        number of rows, use at most a third of them beyond their smallest size.
    weight : ndarray of shape (n,), optional
        Row weights, for the knots of splines and the functions of kernels.

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
    check_options(basis, missing, unseen)
    frame = open_table(table)
    require_filled(frame)
    if formula is not None and columns is not None:
        raise InputError("Give either columns or a formula, not both.")
    if is_formula(columns, frame.names):
        formula = columns
    if formula is not None:
        if not _is(basis, "linear"):
            raise InputError("A formula is a basis of its own: write sex * race in it, and leave out basis=.")
        return _design((_learn_formula(frame, formula, reference or {}, missing, largest),), missing, unseen)
    names = frame.names if columns is None else tuple(frame.names[j] for j in resolve(frame, columns))
    if not names:
        raise InputError("No column is named: name at least one.")
    if is_formula(basis, ()):
        return _learn_over(frame, names, basis, reference or {}, missing, unseen, largest)
    plain = _is(basis, "linear") and not reference and (missing != "level" or is_sparse(frame.source))
    if plain and read_matrix(frame, names) is not None:
        return _plain_design(names, missing, unseen)
    seen = observe(frame, names, missing=missing, cells=names if _is(basis, "cells") else ())
    known = basis if isinstance(basis, str) and basis in ("linear", "cells") else "linear"
    design = settle(seen, names, basis=known, reference=reference, missing=missing, unseen=unseen, largest=largest)
    return design if known == basis else _smooth(design, open_rows(frame, names, missing), basis, room, weight)


@lru_cache(maxsize=16)
def _plain_design(names: tuple[str, ...], missing: Missing, unseen: Unseen) -> Design:
    """Design of numbers only, kept because making a coder for each column takes as long as part of a small fit."""
    return _design(tuple(Numeric(name) for name in names), missing, unseen)


def _design(coders: tuple[Coder, ...], missing: Missing, unseen: Unseen) -> Design:
    design = Design(coders, missing, unseen)
    twice = [name for name, count in Counter(design.names).items() if count > 1]
    if twice:
        raise InputError(f"Two output columns would be called {twice[0]!r}; rename an input column.")
    return design


def check_options(basis: Any, missing: str, unseen: str) -> None:
    """Refuse options that do not exist."""
    for option, value, kind in (("missing", missing, Missing), ("unseen", unseen, Unseen)):
        check_choice(option, value, get_args(kind))
    if isinstance(basis, Mapping):
        bound = basis.get("kernel")
        if len(basis) != 1 or not isinstance(bound, float) or not 0.0 < bound < 1.0:
            raise InputError(f"basis={basis!r} must be {{'kernel': bound}} with a bound between 0 and 1.")
    elif isinstance(basis, str) and basis == "dummy":
        raise InputError("basis='dummy' does not exist: columns and dummies as they are, are basis='linear'.")
    elif not is_formula(basis, ()) and (isinstance(basis, type) or not hasattr(basis, "transform")):
        check_choice("basis", basis, BASES)


def _is(basis: Any, name: str) -> bool:
    return isinstance(basis, str) and basis == name


def _learn_over(
    frame: Frame,
    names: tuple[str, ...],
    text: str,
    reference: Mapping[str, Level],
    missing: Missing,
    unseen: Unseen,
    largest: bool,
) -> Design:
    """Learn a formula over some columns."""
    design = _design((_learn_formula(frame, text, reference, missing, largest),), missing, unseen)
    for name in design.columns:
        if name not in names:
            raise InputError(f"The formula in basis= uses {name!r}, which is not a protected column: protect it, too.")
    for name in names:
        if name not in design.columns:
            raise InputError(f"The formula in basis= leaves out the protected column {name!r}: add it to the formula.")
    return design


def _smooth(design: Design, rows: TableRows, basis: Any, room: float, weight: Array | None) -> Design:
    """Replace columns and dummies by splines, by functions of a kernel, or by what a transformer makes of them."""
    coders: Any = design.coders
    weight = weight if weight is None or rows.keep is None else weight[rows.keep]
    if _is(basis, "spline"):
        each = room / max(1, sum(isinstance(coder, Numeric) for coder in coders))
        made: tuple[Coder, ...] = tuple(
            learn_spline(coder, rows.numbers(coder.name), each, weight) if isinstance(coder, Numeric) else coder
            for coder in coders
        )
    elif isinstance(basis, Mapping):
        made = (learn_kernel(coders, rows, float(basis["kernel"]), room, weight),)
    elif _is(basis, "kernel"):
        made = (learn_kernel(coders, rows, room=room, weight=weight),)
    else:
        made = (learn_transformed(coders, rows, basis),)
    return _design(made, design.missing, design.unseen)


def _learn_formula(frame: Frame, text: str, reference: Mapping[str, Level], missing: Missing, largest: bool) -> Coder:
    parsed, names = parse(text, frame)
    rows = open_rows(frame, names, missing)
    check_reference(reference, rows.columns)
    variables = tuple(
        code_column(name, see(rows.column(name)), reference, missing, largest=largest) for name in rows.columns
    )
    return learn_formula(text, parsed, variables, rows)


def settle(
    seen: TableSeen,
    columns: Sequence[str],
    *,
    basis: Any = "linear",
    reference: Mapping[str, Level] | None = None,
    missing: Missing = "error",
    unseen: Unseen = "error",
    largest: bool = False,
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
    check_options(basis, missing, unseen)
    if not (isinstance(basis, str) and basis in ("linear", "cells")):
        raise InputError('Rows read in batches take basis="linear" or "cells": read them into memory for others.')
    if not seen.n_kept:
        refuse_no_rows(columns)
    reference = reference or {}
    check_reference(reference, columns)
    if missing == "error" and any(seen.columns[name].n_missing for name in columns):
        refuse_missing({name: seen.columns[name].n_missing for name in columns})
    coders: tuple[Coder, ...] = tuple(
        code_column(name, seen.columns[name], reference, missing, largest=largest) for name in columns
    )
    if basis == "cells":
        coders = _settle_cells(seen, columns, coders)
    return _design(coders, missing, unseen)


def _settle_cells(seen: TableSeen, columns: Sequence[str], coders: Sequence[Any]) -> tuple[Coder, ...]:
    """Put one saturated coder in the place of the first categorical."""
    for name in columns:
        if seen.columns[name].counts is None and looks_like_codes(seen.columns[name]):
            raise InputError(
                f"Column {name!r} is numeric and would take no part in the cells, although it has few values; "
                "convert it to text or to a category."
            )
    where = [j for j, coder in enumerate(coders) if isinstance(coder, Categorical)]
    if len(where) < 2:
        return tuple(coders)
    parts = [coders[j] for j in where]
    place = [{level: i for i, level in enumerate(part.levels)} for part in parts]
    cells = {tuple(of[cell[j]] for j, of in zip(where, place, strict=True)) for cell in seen.cells}
    joined = Cells(tuple(part.name for part in parts), tuple(part.levels for part in parts), tuple(sorted(cells)))
    return tuple(joined if j == where[0] else coder for j, coder in enumerate(coders) if j not in where[1:])
