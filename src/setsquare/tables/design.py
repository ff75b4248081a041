"""Design: the coding learned from a training table; Encoded: a table coded by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeGuard

import narwhals.stable.v2 as nw
import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Matrix, Table
from setsquare.errors import InputError, MissingValuesError
from setsquare.tables.coders import Categorical, Cells, Coder, Numeric, SavedTerms, Unseen
from setsquare.tables.column import Missing, TableRows, open_rows, plain_columns
from setsquare.tables.expansion import Hinges, Products
from setsquare.tables.frame import Frame, is_sparse, open_table, require_filled
from setsquare.tables.learned_terms import LearnedTerms
from setsquare.tables.mixed_matrix import MixedMatrix, join
from setsquare.tables.smooth import Ball, Kernel, Spline
from setsquare.tables.validation import are_finite

#: Categories of up to this many levels are written out: a single dummy is a number.
FEW_LEVELS = 2
#: Up to this many dummies of larger categories, a matrix product of all dummies is faster than counting.
FEW_DUMMIES = 100
#: The same in values of these dummies, for tables in memory, whose categories are merged before they are counted.
FEW_VALUES = 1_000_000
_KINDS: dict[str, Callable[..., Coder]] = {
    "numeric": Numeric,
    "categorical": Categorical,
    "cells": Cells,
    "hinges": Hinges,
    "products": Products,
    "spline": Spline,
    "kernel": Kernel,
    "formula": SavedTerms,
    "terms": LearnedTerms,
}


@dataclass(frozen=True, slots=True)
class Encoded:
    """A table as a matrix.

    Attributes
    ----------
    values : (n_kept, k) float64 array, CSR matrix of sparse input, or MixedMatrix
        A view of the input if that is such an array already.
    names : tuple of k str
    sources : tuple of k str
        The input column(s) behind each output column: the dummies of ``race`` share the source ``race``.
    keep : (n,) bool array or None
        Rows of the input that are in `values`; None when all are.
    n_pooled : mapping of str to int
        Rows pooled into the reference (or filled with the mean), by source; sources without any are left out.
    """

    values: Matrix
    names: tuple[str, ...]
    sources: tuple[str, ...]
    keep: BoolArray | None
    n_pooled: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Design:
    """Coding learned from a training table: a coder for each column or group of columns.

    Attributes
    ----------
    coders : tuple of Coder
    missing : {"error", "drop", "level"}
    unseen : {"error", "pool"}

    Examples
    --------
    >>> import numpy as np
    >>> design = Design((Categorical("x0", ("a", "b")),), "error", "error")
    >>> design.apply(np.array(["a", "b"])).values
    array([[0.],
           [1.]])
    >>> Design.from_dict(design.to_dict()) == design
    True
    """

    coders: tuple[Coder, ...]
    missing: Missing = "error"
    unseen: Unseen = "error"
    _columns: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _is_plain: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Put together once: thousands of names are asked for several times in a fit.
        columns = tuple(dict.fromkeys(name for coder in self.coders for name in coder.columns))
        plain = all(map(_is_plain, self.coders))
        names = columns if plain else tuple(name for coder in self.coders for name in coder.names)
        for key, value in {"_columns": columns, "_names": names, "_is_plain": plain}.items():
            object.__setattr__(self, key, value)

    @property
    def columns(self) -> tuple[str, ...]:
        """Input columns."""
        return self._columns

    @property
    def names(self) -> tuple[str, ...]:
        """Output column names."""
        return self._names

    @property
    def sources(self) -> tuple[str, ...]:
        """The input column(s) behind each output column."""
        return self._columns if self._is_plain else tuple(source for coder in self.coders for source in coder.sources)

    @property
    def constant(self) -> tuple[str, ...]:
        """Sources without an output column, because they did not vary in training."""
        return () if self._is_plain else tuple(source for coder in self.coders for source in coder.constant)

    @property
    def ball(self) -> Ball | None:
        """What a kernel basis says about every smooth function; None without one."""
        return next((coder.ball for coder in self.coders if isinstance(coder, Kernel)), None)

    def apply(self, table: Table) -> Encoded:
        """Encode a table that has the columns of the training table, in any order and among others."""
        frame = open_table(table)
        require_filled(frame)
        names = self.names
        matrix = read_matrix(frame, self.columns) if self._is_plain else None
        if matrix is not None:
            values = matrix if is_sparse(matrix) else np.asarray(matrix, dtype=np.float64)
            return Encoded(values, names, self.sources, None, {})
        rows = open_rows(frame, self.columns, self.missing)
        values = np.zeros((rows.n, len(names)), order="F")  # column by column, as tables are and as kernels want it
        return Encoded(values, names, self.sources, rows.keep, self.fill(rows, values))

    def split(self, table: Table) -> Encoded:
        """As :meth:`apply`, but categories of more than ``FEW_LEVELS`` levels remain codes: a MixedMatrix.

        If these categories have few dummies in total, and few values, nothing remains a code.
        """
        frame = open_table(table)
        if not (self.has_codes or self._n_dummies * frame.n_rows > FEW_VALUES):
            return self.apply(table)
        require_filled(frame)
        rows = open_rows(frame, self.columns, self.missing)
        values, pooled = self._split(rows)
        return Encoded(values, self.names, self.sources, rows.keep, pooled)

    def split_batch(self, table: Table) -> MixedMatrix:
        """As :meth:`split`, for a batch of the training table whose incomplete rows were dropped before."""
        missing: Missing = "error" if self.missing == "drop" else self.missing
        return self._split(open_rows(open_table(table), self.columns, missing))[0]

    @property
    def has_codes(self) -> bool:
        """Whether :meth:`split` leaves a category as codes, whatever the number of rows."""
        return self._n_dummies > FEW_DUMMIES

    @property
    def _n_dummies(self) -> int:
        return sum(len(coder.names) for coder in self.coders if _remains_code(coder))

    @property
    def stored_width(self) -> int:
        """Numbers and codes per row of :meth:`split`."""
        return sum(1 if self.has_codes and _remains_code(coder) else len(coder.names) for coder in self.coders)

    def _split(self, rows: TableRows) -> tuple[MixedMatrix, dict[str, int]]:
        width = sum(len(coder.names) for coder in self.coders if not _remains_code(coder))
        numbers, start = np.zeros((rows.n, width), order="F"), 0
        codes, sizes, pooled, parts = list[IntArray](), list[int](), dict[str, int](), list[bool]()
        for coder in self.coders:
            if _remains_code(coder):
                found, count = coder.codes(rows, self.unseen)
                codes.append(found)
                sizes.append(len(coder.levels))
                pooled |= {coder.name: count} if count else {}
                parts.append(True)
            else:
                stop = start + len(coder.names)
                pooled |= coder.encode(rows, numbers[:, start:stop], self.unseen)
                start = stop
                parts += [False] * len(coder.names)
        return join(numbers, codes, sizes, parts), pooled

    def write(self, table: Table, out: Array) -> Mapping[str, int]:
        """Encode a batch of the training table into `out` (n, k), and return the number of pooled rows by source.

        Rows with missing values were dropped before, and whatever else the design does not expect was refused when it
        was learned from these very rows, so plain numbers are copied unchecked.
        """
        if self._is_plain and _copy_columns(table, self.columns, out):
            return {}
        out[:] = 0.0
        missing: Missing = "error" if self.missing == "drop" else self.missing
        return self.fill(open_rows(open_table(table), self.columns, missing), out)

    def fill(self, rows: TableRows, values: Array) -> dict[str, int]:
        """Encode rows into `values` (n, k), which come in as zeros, and return the number of pooled rows by source."""
        pooled: dict[str, int] = {}
        start = 0
        for coder in self.coders:
            stop = start + len(coder.names)
            pooled |= coder.encode(rows, values[:, start:stop], self.unseen)
            start = stop
        return pooled

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON; a design from a formula has none."""
        kinds = {kind: name for name, kind in _KINDS.items()}
        if not all(type(coder) in kinds for coder in self.coders):
            raise InputError("A design of a transformer or formula cannot be written as plain data; pickle it.")
        coders = [{"kind": kinds[type(coder)], **asdict(coder)} for coder in self.coders]  # type: ignore[call-overload]
        return {"missing": self.missing, "unseen": self.unseen, "coders": coders}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Design:
        """Undo :meth:`to_dict`, also after a round trip through JSON."""
        coders = []
        for entry in data["coders"]:
            fields = {key: _as_tuple(value) for key, value in entry.items() if key != "kind"}
            coders.append(_KINDS[entry["kind"]](**fields))
        return cls(tuple(coders), data["missing"], data["unseen"])


def read_matrix(frame: Frame, columns: tuple[str, ...]) -> Matrix | None:
    """Take numeric columns of an array or sparse matrix at once, as stored; None if they must be read one by one.

    Array columns with values that are not finite are read one by one, where these are counted, filled or dropped.
    """
    source = frame.source
    numeric = "fiub" if is_sparse(source) else "fiu"
    if isinstance(source, nw.DataFrame) or source.dtype.kind not in numeric:
        return None
    source = _select(frame, columns)
    if is_sparse(frame.source):
        values = source.astype(np.float64, copy=False)
        _require_finite(values, columns)
        return values
    return source if are_finite(source) else None


def read_stored(design: Design, table: Table, *, learned: bool = False) -> Array | None:
    """Take the columns of a floating-point matrix as they lie in memory; None where the design changes anything.

    With ``learned`` the design was learned from this table, so values are not checked again.
    """
    is_matrix = isinstance(table, np.ndarray) or is_sparse(table)
    if not is_matrix or table.dtype.kind != "f" or not design._is_plain:
        return None
    frame = open_table(table)
    return _select(frame, design.columns) if learned else read_matrix(frame, design.columns)


def _select(frame: Frame, columns: tuple[str, ...]) -> Any:
    if columns == frame.names:
        return frame.source
    return frame.take([frame.position(name) for name in columns])


def _copy_columns(table: Table, columns: tuple[str, ...], out: Array) -> bool:
    """Copy numbers that need no coding; False if some columns are not plain numbers."""
    count = 0
    for count, values in enumerate(plain_columns(table, columns), start=1):
        out[:, count - 1] = values
    return count == len(columns)


def _require_finite(matrix: Any, columns: tuple[str, ...]) -> None:
    bad = ~np.isfinite(matrix.data)
    if bad.any():
        counts = np.bincount(matrix.indices[bad], minlength=len(columns))
        listed = ", ".join(f"{columns[j]!r} ({counts[j]})" for j in np.flatnonzero(counts))
        raise MissingValuesError(f"The sparse matrix is not finite in {listed}; replace those values.")


def _remains_code(coder: Coder) -> TypeGuard[Categorical]:
    return isinstance(coder, Categorical) and len(coder.levels) > FEW_LEVELS


def _is_plain(coder: Coder) -> bool:
    return isinstance(coder, Numeric) and not coder.indicator


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value
