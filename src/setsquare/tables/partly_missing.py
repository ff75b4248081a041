"""Protected columns that are partly missing: learn their coding from the rows that have them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from setsquare._typing import Array, BoolArray, Table
from setsquare.errors import InputError
from setsquare.tables.coders import Coder, Unseen
from setsquare.tables.column import Missing, complete_rows
from setsquare.tables.design import Design
from setsquare.tables.frame import dense, filter_rows, is_formula, open_table, resolve
from setsquare.tables.learn import learn

#: The rule for missing values that models them.
MODEL = "model"
#: Fewest rows that have a protected column, from which the other rows are modelled.
FEWEST_KNOWN = 50


def learn_partly(
    table: Table,
    columns: Any,
    *,
    basis: Any = "linear",
    reference: Mapping[str, Any] | None = None,
    missing: Missing = "error",
    unseen: Unseen = "error",
    room: float = math.inf,
    weight: Array | None = None,
) -> Design:
    """Learn the design of protected columns from the rows that have them; the options are those of ``tables.learn``.

    A basis of each column on its own ("linear", "spline") is learned from all rows that have this column, any other
    basis from the rows that have all columns.
    """
    frame = open_table(table)
    if is_formula(columns, frame.names):
        needed = learn(table, columns, missing="drop").columns
        check_known(needed, complete_rows(frame, needed))
        return learn(
            filter_rows(table, complete_rows(frame, needed)),
            columns,
            reference=reference,
            missing=missing,
            unseen=unseen,
        )
    names = tuple(frame.names[j] for j in resolve(frame, columns))
    alone = isinstance(basis, str) and basis in ("linear", "spline")
    coders: list[Coder] = []
    parts = [(name,) for name in names] if alone else [names]
    for part in parts:
        known = complete_rows(frame, part)
        check_known(part, known if weight is None else known[weight > 0.0])
        own = {name: level for name, level in (reference or {}).items() if name in part}
        rows = table if known.all() else filter_rows(table, known)
        how: dict[str, Any] = {"room": room / len(parts), "weight": None if weight is None else weight[known]}
        design = learn(rows, part, basis=basis, reference=own, missing=missing, unseen=unseen, **how)
        if not known.all():
            _check_varies(design, int(known.sum()))
        coders += design.coders
    return Design(tuple(coders), missing, unseen)


def encode_partly(design: Design, table: Table) -> Array:
    """Coded protected columns (n, p); NaN in the columns of a coder whose input is missing in that row."""
    frame = open_table(table)
    X = np.full((frame.n_rows, len(design.names)), np.nan)
    start = 0
    for coder in design.coders:
        stop, known = start + len(coder.names), complete_rows(frame, coder.columns)
        rows = table if known.all() else filter_rows(table, known)
        X[known, start:stop] = dense(Design((coder,), "error", design.unseen).apply(rows).values)
        start = stop
    return X


def check_known(columns: Sequence[str], known: BoolArray) -> None:
    """Refuse columns that too few rows have, by a mask (n,) of those that do."""
    count, listed = int(known.sum()), ", ".join(map(repr, columns))
    if not count:
        raise InputError(f"The protected column(s) {listed} are missing in every row: there is nothing to learn from.")
    if not known.all() and count < FEWEST_KNOWN:
        raise InputError(
            f"The protected column(s) {listed} are known in {count} of {len(known)} rows, too few to model the others: "
            f"at least {FEWEST_KNOWN} are needed."
        )


def _check_varies(design: Design, count: int) -> None:
    if design.constant:
        raise InputError(
            f"The protected column {design.constant[0]!r} has the same value in all {count} rows that have it, so "
            "nothing is known about rows with other values: add rows with other values, or leave the column out."
        )
