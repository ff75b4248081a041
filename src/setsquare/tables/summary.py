"""Mergeable summary of the columns of a table: kinds, levels, missing values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from setsquare._typing import IntArray, Table
from setsquare.errors import InputError, MissingValuesError
from setsquare.tables.coders import Categorical, Numeric, order_levels
from setsquare.tables.column import (
    Column,
    Level,
    Levels,
    Missing,
    Numbers,
    complete_rows,
    plain_columns,
    read,
)
from setsquare.tables.frame import open_table
from setsquare.tables.text_values import refuse_strays

#: A text column with more levels than this, and than half the rows, is taken for an identifier.
MANY_LEVELS = 50
#: A numeric column with no more values than this is taken for codes of groups when cells are asked for.
FEW_VALUES = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """Summary of one column over some rows."""

    n: int
    n_missing: int
    total: float = 0.0  # sum of the numbers
    counts: Mapping[Level, int] | None = None  # None for a numeric column
    declared: tuple[Level, ...] = ()  # the order that the column declares, if any
    values: frozenset[float] | None = None  # distinct numbers, where they were asked for and are few
    is_category: bool = False  # whether the type of the column, and not only the text in it, makes it categorical

    @property
    def is_blank(self) -> bool:
        """Whether every value is missing, so that the kind of the column is unknown."""
        return self.n_missing == self.n

    def merge(self, other: Seen, name: str) -> Seen:
        """Summary of the rows of both."""
        numeric = {seen.counts is None for seen in (self, other) if not seen.is_blank}
        if len(numeric) > 1:
            raise InputError(
                f"Column {name!r} is numeric in some batches and text or categories in others: convert it."
            )
        n, n_missing = self.n + other.n, self.n_missing + other.n_missing
        if numeric == {False} or (self.counts is not None and other.counts is not None):
            counts = Counter(self.counts or {}) + Counter(other.counts or {})
            declared = tuple(dict.fromkeys(self.declared + other.declared))
            is_category = self.is_category or other.is_category
            return Seen(n, n_missing, counts=counts, declared=declared, is_category=is_category)
        known = [seen.values for seen in (self, other) if not seen.is_blank]
        values = None if None in known else _few(frozenset().union(*(v for v in known if v is not None)))
        return Seen(n, n_missing, self.total + other.total, values=values)

    @property
    def levels(self) -> list[Level]:
        """Levels that occur, in declared or sorted order, None for missing last."""
        counts = self.counts or {}
        present: Any = [level for level, count in counts.items() if count]
        place = {level: i for i, level in enumerate(self.declared)}
        ordered = sorted(present, key=place.__getitem__ if self.declared else None)
        return [*ordered, None] if self.n_missing else ordered

    @property
    def largest(self) -> Level | None:
        """The most frequent level, of several the first; None for missing values."""
        counts: Mapping[Level | None, int] = {**(self.counts or {}), None: self.n_missing}
        return max(self.levels, key=lambda level: counts[level])


def see(column: Column, *, distinct: bool = False) -> Seen:
    """Summarise one column; `distinct` also lists the values of a numeric one."""
    if isinstance(column, Levels):
        counts = np.bincount(column.codes + 1, minlength=len(column.levels) + 1)
        present = {level: int(count) for level, count in zip(column.levels, counts[1:], strict=True) if count}
        return Seen(
            len(column.codes),
            int(counts[0]),
            counts=present,
            declared=column.declared,
            is_category=column.is_category,
        )
    there = column.values[~column.missing]
    values = _few(frozenset(np.unique(there).tolist())) if distinct else None
    return Seen(len(column.values), len(column.values) - len(there), float(there.sum()), values=values)


def code_column(
    name: str, seen: Seen, reference: Mapping[str, Level], missing: Missing, *, largest: bool = False
) -> Numeric | Categorical:
    """Return the coder of a column; without a named reference it is the first level, or the largest."""
    if seen.is_blank:
        raise MissingValuesError(f"Column {name!r} has missing values only; leave it out.")
    if seen.counts is not None:
        if not seen.is_category and name not in reference:  # naming a reference declares groups, too
            refuse_strays(f"Column {name!r}", {level: count for level, count in seen.counts.items() if count})
        chosen = reference.get(name)
        levels = order_levels(seen.levels, name, seen.largest if largest and chosen is None else chosen)
        if len(levels) > max(MANY_LEVELS, seen.n // 2):
            raise InputError(
                f"Column {name!r} has {len(levels)} levels in {seen.n} rows, as an identifier has; leave it out, "
                "or convert it if it holds numbers as text."
            )
        return Categorical(name, levels)
    if name in reference:
        raise InputError(f"Column {name!r} is numeric and has no reference level; convert it to text.")
    fill = seen.total / (seen.n - seen.n_missing) if missing == "level" else None
    return Numeric(name, fill, bool(seen.n_missing))


@dataclass(frozen=True, slots=True)
class TableSeen:
    """Summary of several columns over some rows.

    Attributes
    ----------
    n_rows, n_kept : int
        All rows, and those that are kept: the complete ones if others are dropped.
    columns : mapping of str to Seen
    cells : frozenset of tuples of levels
        Combinations of levels in the columns to be coded as cells; None stands for a missing value, and for any number.
    """

    n_rows: int
    n_kept: int
    columns: Mapping[str, Seen]
    cells: frozenset[tuple[Level, ...]] = frozenset()

    def merge(self, other: TableSeen) -> TableSeen:
        """Summary of the rows of both."""
        return TableSeen(
            self.n_rows + other.n_rows,
            self.n_kept + other.n_kept,
            {name: seen.merge(other.columns[name], name) for name, seen in self.columns.items()},
            self.cells | other.cells,
        )


def observe(table: Table, columns: Sequence[str], *, missing: Missing, cells: Sequence[str] = ()) -> TableSeen:
    """Look at the columns of a table or a batch, of which some will be coded by their cells."""
    frame, keep = open_table(table), None
    if missing == "drop" and (complete := complete_rows(frame, columns)).sum() < frame.n_rows:
        keep = complete

    def column(name: str) -> Column:
        found = read(frame, name)
        return found if keep is None else found.take(keep)

    kept = frame.n_rows if keep is None else int(keep.sum())
    seen = _sum_plain(table, [name for name in columns if name not in cells]) if keep is None else {}
    seen |= {name: see(column(name), distinct=name in cells) for name in columns if name not in seen}
    found = _cells([column(name) for name in cells]) if cells and kept else frozenset()
    return TableSeen(frame.n_rows, kept, seen, found)


def _sum_plain(table: Table, names: Sequence[str]) -> dict[str, Seen]:
    """Summarise numeric columns that can be read without a copy, up to the first that cannot."""
    with np.errstate(over="ignore", invalid="ignore"):
        plain = zip(names, plain_columns(table, names), strict=False)
        totals = {name: (len(x), float(x.sum(dtype=np.float64))) for name, x in plain}
    # One number that is not finite would spoil the sum.
    return {name: Seen(n, 0, total) for name, (n, total) in totals.items() if np.isfinite(total)}


def _cells(columns: Sequence[Column]) -> frozenset[tuple[Level, ...]]:
    codes = [np.zeros(len(c.values), dtype=np.int64) if isinstance(c, Numbers) else c.codes + 1 for c in columns]
    levels = [(None,) if isinstance(c, Numbers) else (None, *c.levels) for c in columns]
    return frozenset(tuple(of[i] for of, i in zip(levels, cell, strict=True)) for cell in observed(codes))


def observed(codes: Sequence[IntArray]) -> tuple[tuple[int, ...], ...]:
    """List the combinations of `codes` that occur, in lexicographic order."""
    ids = np.zeros(len(codes[0]), dtype=np.int64)
    first = ids[:1]
    for code in codes:
        # Renumbered at each column, so that the product of all level counts is never formed.
        _, first, ids = np.unique(ids * (code.max() + 1) + code, return_index=True, return_inverse=True)
    return tuple(tuple(int(code[row]) for code in codes) for row in first)


def looks_like_codes(seen: Seen) -> bool:
    """Whether numbers are whole and few, and each occurs often: groups rather than a quantity."""
    return seen.values is not None and 10 * len(seen.values) <= seen.n and all(v == np.floor(v) for v in seen.values)


def _few(values: frozenset[float]) -> frozenset[float] | None:
    return values if len(values) <= FEW_VALUES else None
