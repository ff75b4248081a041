"""Coders: frozen maps from input columns to output columns, fitted once and applied to any rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.errors import InputError, MissingValuesError, UnseenLevelError, excerpt
from setsquare.notes import Note, Option
from setsquare.tables.column import Level, Levels, TableRows, label

Unseen: TypeAlias = Literal["error", "pool"]
#: Up to this many dummy columns are filled faster one after the other than row by row.
FEW_LEVELS = 32


class Coder(Protocol):
    """Part of a design: each coder fills its own columns of the output."""

    __slots__ = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Input columns."""

    @property
    def names(self) -> tuple[str, ...]:
        """Output column names."""

    @property
    def source(self) -> str:
        """The input columns, joined by a colon."""
        return ":".join(self.columns)

    @property
    def sources(self) -> tuple[str, ...]:
        """For each output column, the input column(s) behind it."""
        return (self.source,) * len(self.names)

    @property
    def constant(self) -> tuple[str, ...]:
        """Sources without an output column, because they do not vary."""
        return () if self.names else (self.source,)

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Fill `out` (n, k), which comes in as zeros, and return the number of pooled rows by source."""


class NumberCoder(Coder, Protocol):
    """Coder of one numeric column, whose missing values are filled; subclasses say what they make of its values."""

    __slots__ = ()

    name: str
    fill: float | None
    indicator: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Input columns."""
        return (self.name,)

    @property
    def names(self) -> tuple[str, ...]:
        """Output column names."""
        return (*self.made, f"{self.name}[missing]") if self.indicator else self.made

    @property
    def made(self) -> tuple[str, ...]:
        """Names of the columns that are made of the values."""

    def write(self, values: Array, out: Array) -> None:
        """Fill the first columns of `out` from values (n,) without missing ones."""

    def values(self, rows: TableRows, unseen: Unseen) -> tuple[Array, BoolArray, int]:
        """Return filled values (n,), a mask (n,) of those filled, and how many were pooled."""
        values = rows.numbers(self.name)
        missing = np.isnan(values)
        count = int(missing.sum())
        if not count:
            return values, missing, 0
        if self.fill is None or (unseen == "error" and not self.indicator):
            text = (
                "Column {column!r} has {count} missing values and had none in training; fill them, or {pool:pass} to "
                "put the training mean in their place."
            )
            pool = Option("unseen", "pool")
            raise MissingValuesError(Note("missing-values", text, column=self.name, count=count, pool=pool))
        return np.where(missing, self.fill, values), missing, 0 if self.indicator else count

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Fill `out` and return the number of pooled rows by source."""
        values, missing, pooled = self.values(rows, unseen)
        self.write(values, out)
        if self.indicator:
            out[:, -1] = missing
        return {self.name: pooled} if pooled else {}


@dataclass(frozen=True, slots=True)
class Numeric(NumberCoder):
    """A numeric column as it is.

    Attributes
    ----------
    name : str
    fill : float or None
        Training mean, put where a value is missing; None when missing values never get here.
    indicator : bool
        Whether a column ``name[missing]`` marks the filled rows.

    Examples
    --------
    >>> Numeric("age", fill=40.0, indicator=True).names
    ('age', 'age[missing]')
    """

    name: str
    fill: float | None = None
    indicator: bool = False

    @property
    def made(self) -> tuple[str, ...]:
        """The column itself."""
        return (self.name,)

    def write(self, values: Array, out: Array) -> None:
        """Write the values."""
        out[:, 0] = values


@dataclass(frozen=True, slots=True)
class Categorical(Coder):
    """Dummy columns of a categorical, one per level except the reference.

    Attributes
    ----------
    name : str
    levels : tuple of levels
        Those of the training data, the reference first; None is the level "missing".

    Examples
    --------
    >>> Categorical("race", ("White", "Asian", "Black")).names
    ('race[Asian]', 'race[Black]')
    """

    name: str
    levels: tuple[Level, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Input columns."""
        return (self.name,)

    @property
    def names(self) -> tuple[str, ...]:
        """Output column names."""
        return tuple(f"{self.name}[{label(level)}]" for level in self.levels[1:])

    def codes(self, rows: TableRows, unseen: Unseen) -> tuple[IntArray, int]:
        """Positions (n,) in `levels`, and how many rows were pooled into the reference."""
        column = rows.levels(self.name)
        codes = locate_levels(self.levels, column)
        return _pool(codes, unseen, self.name, [column], label(self.levels[0]))

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Fill `out` and return the number of pooled rows by source."""
        codes, pooled = self.codes(rows, unseen)
        _scatter(codes, out)
        return {self.name: pooled} if pooled else {}


@dataclass(frozen=True, slots=True)
class Cells(Coder):
    """Saturated coding of several categoricals: one column per observed combination except the first.

    Exact for every evaluation model of those columns.

    Attributes
    ----------
    columns : tuple of str
    levels : tuple of tuples of levels
        One tuple per column, its reference first.
    cells : tuple of tuples of int
        Observed combinations as positions in `levels`, in lexicographic order; the first is the reference.

    Examples
    --------
    >>> Cells(("sex", "race"), (("F", "M"), ("a", "b")), ((0, 0), (0, 1), (1, 1))).names
    ('sex:race[F,b]', 'sex:race[M,b]')
    """

    columns: tuple[str, ...] = field()  # not the property of the base
    levels: tuple[tuple[Level, ...], ...]
    cells: tuple[tuple[int, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Output column names."""
        return tuple(f"{self.source}[{self._label(cell)}]" for cell in self.cells[1:])

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Fill `out` and return the number of pooled rows by source."""
        columns = [rows.levels(name) for name in self.columns]
        codes = [locate_levels(levels, column) for levels, column in zip(self.levels, columns, strict=True)]
        found = locate_cells(self.cells, codes)
        found, pooled = _pool(found, unseen, self.source, columns, self._label(self.cells[0]))
        _scatter(found, out)
        return {self.source: pooled} if pooled else {}

    def _label(self, cell: tuple[int, ...]) -> str:
        return ",".join(label(levels[i]) for levels, i in zip(self.levels, cell, strict=True))


@dataclass(frozen=True, slots=True)
class SavedTerms(Coder):
    """Names of the columns of a formula, from a model file, which cannot be computed: no file is evaluated.

    Attributes
    ----------
    text : str
        The formula.
    columns, names, sources, constant : tuple of str
        As learned.
    """

    text: str
    columns: tuple[str, ...] = field()  # not the properties of the base
    names: tuple[str, ...] = field()
    sources: tuple[str, ...] = field()
    constant: tuple[str, ...] = field()

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Refuse."""
        raise InputError(
            f"The protected columns are those of the formula {excerpt(self.text)!r} in a model file, which is not "
            "evaluated: fit the model again."
        )


def locate_levels(levels: tuple[Level, ...], column: Levels) -> IntArray:
    """Position (n,) of each row's level in `levels`, -1 for one that is not there."""
    position = {level: i for i, level in enumerate(levels)}
    recode = [position.get(level, -1) for level in column.levels]
    if None not in position and recode == list(range(len(recode))):
        return column.codes
    # The code -1 of a missing value picks the last entry.
    return np.array([*recode, position.get(None, -1)], dtype=np.int64)[column.codes]


def locate_cells(cells: Sequence[tuple[int, ...]], codes: Sequence[IntArray]) -> IntArray:
    """Position (n,) of each row's combination of `codes` in the sorted `cells`, -1 for one that is not there.

    Column by column, prefixes are renumbered 0, 1, …, so that the product of all level counts is never formed.
    """
    known = np.array(cells, dtype=np.int64)
    prefix = np.zeros(len(known), dtype=np.int64)
    found = np.zeros(len(codes[0]), dtype=np.int64)
    for j, code in enumerate(codes):
        k = int(known[:, j].max()) + 1
        size = (int(prefix.max()) + 1) * k
        ids, prefix = np.unique(prefix * k + known[:, j], return_inverse=True)
        recode = np.full(size + 1, -1)
        recode[ids] = np.arange(len(ids))
        known_so_far = (found >= 0) & (code >= 0)
        found = recode[np.where(known_so_far, found * k + code, size)]
    return found


def _scatter(codes: IntArray, out: Array) -> None:
    if out.shape[1] <= FEW_LEVELS:
        for j in range(out.shape[1]):
            np.equal(codes, j + 1, out=out[:, j], casting="unsafe")
        return
    rows = np.flatnonzero(codes > 0)
    out[rows, codes[rows] - 1] = 1.0


def _pool(
    codes: IntArray, unseen: Unseen, source: str, columns: Sequence[Levels], reference: str
) -> tuple[IntArray, int]:
    new = codes < 0
    count = int(new.sum())
    if not count:
        return codes, 0
    if unseen == "error":
        text = (
            "Column {column!r} has {rows} with {kind} that the training data did not have: {levels}; recode them, or "
            "{pool:pass} to count them as the reference {reference!r}."
        )
        fields = {
            "column": source,
            "rows": f"{count} row{'' if count == 1 else 's'}",
            "kind": "levels" if len(columns) == 1 else "combinations",
            "levels": _listed(columns, new),
            "pool": Option("unseen", "pool"),
            "reference": reference,
        }
        raise UnseenLevelError(Note("unseen-level", text, severity="info", **fields))
    return np.where(new, 0, codes), count


def _listed(columns: Sequence[Levels], new: BoolArray) -> str:
    cells, counts = np.unique(np.stack([c.codes[new] for c in columns]), axis=1, return_counts=True)
    written = [
        f"'{','.join(_name(c, i) for c, i in zip(columns, cell, strict=True))}' ({count})"
        for cell, count in zip(cells.T[:5], counts, strict=False)
    ]
    return ", ".join(written) + (", …" if len(counts) > 5 else "")


def _name(column: Levels, code: Any) -> str:
    return label(column.levels[code] if code >= 0 else None)


def order_levels(levels: Sequence[Level], name: str, reference: Level | None) -> tuple[Level, ...]:
    """Move the `reference` to the front of the levels of a column."""
    labels = [label(level) for level in levels]
    if len(set(labels)) < len(labels):
        twice = next(text for text in labels if labels.count(text) > 1)
        raise InputError(f"Column {name!r} has two levels written {twice!r}; rename one of them.")
    if reference is None:
        return tuple(levels)
    if label(reference) not in labels:
        raise InputError(
            f"Column {name!r} has no level {reference!r} for a reference; it has {', '.join(map(repr, labels))}."
        )
    first = labels.index(label(reference))
    return (levels[first], *levels[:first], *levels[first + 1 :])
