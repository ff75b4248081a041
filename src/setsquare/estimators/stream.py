"""Streams as estimator input: one pass learns levels, missing values and the outcome; later passes encode the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from setsquare import tables
from setsquare._typing import Array, Matrix, Table
from setsquare.errors import InputError
from setsquare.estimators.stream_outcome import Outcome, Seen
from setsquare.families import Family
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.glm.problem import Problem
from setsquare.rows import RowsInParts, Stream, is_dask_array
from setsquare.rows.blocks import Block
from setsquare.rows.dask import join_arrays
from setsquare.tables import Design, TableSeen
from setsquare.tables.column import Column, complete_rows, read_column
from setsquare.tables.column import Numbers as NumericColumn
from setsquare.tables.frame import is_formula, open_table
from setsquare.tables.mixed_matrix import MixedMatrix
from setsquare.tables.roles import Columns, Reader, check_controls
from setsquare.tables.validation import check_roles, refuse_constant_protected


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of the columns of a stream; the features include protected columns only if the model may use them."""

    features: tuple[str, ...]
    protected: tuple[str, ...]
    outcome: str | None = None
    weight: str | None = None
    offset: str | None = None
    given: tuple[str, ...] = ()

    @property
    def coded(self) -> tuple[str, ...]:
        """Features, protected columns and controls."""
        return tuple(dict.fromkeys((*self.features, *self.protected, *self.given)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read."""
        rest = (self.outcome, self.weight, self.offset)
        return tuple(dict.fromkeys((*self.coded, *(name for name in rest if name is not None))))


def assign(stream: Stream, y: Any, protected: Any, weight: Any, offset: Any, columns: Columns) -> Roles:
    """Assign a role to each column of a stream; columns without another role are features."""
    for what, value in (("y", y), ("sample_weight", weight), ("offset", offset)):
        if value is None:
            continue
        if not isinstance(value, str):
            raise InputError(
                f"{what} must be the name of a column if the rows are a stream, got {type(value).__name__}."
            )
        tables.check_column(value, stream.columns)
    inside = _protected_names(stream, protected, columns)
    taken = {y, weight, offset} | (set() if columns.use_protected else set(inside))
    features = tuple(name for name in stream.columns if name not in taken)
    if not features:
        raise InputError("No column of the stream is left as a feature: all are protected or have another role.")
    given = _given_names(stream, columns)
    roles = {"protected": inside, "given": given, "y": (y,), "sample_weight": (weight,), "offset": (offset,)}
    check_roles(roles)
    return Roles(features, inside, y, weight, offset, given)


def _given_names(stream: Stream, columns: Columns) -> tuple[str, ...]:
    if columns.given is None:
        return ()
    named = (columns.given,) if isinstance(columns.given, str | int) else columns.given
    names = tuple(stream.columns[name] if isinstance(name, int) else str(name) for name in named)
    for name in names:
        tables.check_column(name, stream.columns)
    return names


def _protected_names(stream: Stream, protected: Any, columns: Columns) -> tuple[str, ...]:
    if (columns.protected is None) == (protected is None):
        raise InputError(
            "Name the protected columns of a stream once: either in the constructor (protected=[...]) or in fit "
            "(protected=[...])."
        )
    asked = columns.protected if protected is None else protected
    if is_formula(asked, stream.columns):
        raise InputError("A formula needs the rows in memory: name the protected columns of a stream instead.")
    named = (asked,) if isinstance(asked, str | int) else asked
    if not isinstance(named, Sequence) or not len(named):
        raise InputError("Pass the protected columns of a stream by name, for example protected=['sex', 'race'].")
    names = tuple(stream.columns[name] if isinstance(name, int) else str(name) for name in named)
    for name in names:
        tables.check_column(name, stream.columns)
    if not stream.is_named and not all(name.startswith("protected") for name in names):
        raise InputError(
            "Protected columns are identified by name, but batches that are arrays have no column names: use "
            "dataframes, or pass features and protected columns as separate dask arrays."
        )
    return names


def join_roles(
    X: Any, y: Any, protected: Any, weight: Any, offset: Any
) -> tuple[Stream, str | None, list[str] | None, str | None, str | None]:
    """Join dask arrays with the same rows into one stream; return it with the names of the columns of each role."""
    given = {"outcome": y, "weight": weight, "offset": offset, "protected": protected}
    arrays = {"features": X} | {key: array for key, array in given.items() if array is not None}
    for key, array in arrays.items():
        if not is_dask_array(array):
            raise InputError(
                f"The features are a dask array, but {key} is a {type(array).__name__}: pass dask arrays for both."
            )
    stream = Stream(join_arrays(arrays))
    outcome, weight, offset = (key if given[key] is not None else None for key in ("outcome", "weight", "offset"))
    names = [name for name in stream.names if name.startswith("protected")]
    return stream, outcome, names or None, weight, offset


def note_columns(estimator: Any, stream: Stream, roles: Roles) -> None:
    """Set scikit-learn's attributes for the fitted columns: ``n_features_in_`` and ``feature_names_in_``."""
    names = [name for name in stream.names if name in roles.coded]
    estimator.n_features_in_ = len(names)
    estimator.__dict__.pop("feature_names_in_", None)
    if stream.is_named:
        estimator.feature_names_in_ = np.asarray(names, dtype=object)


class Learned(NamedTuple):
    """Result of the first pass over a stream."""

    reader: Reader
    table: TableSeen
    outcome: Seen | None


def learn_stream(stream: Stream, roles: Roles, columns: Columns, outcome: Outcome | None = None) -> Learned:
    """Learn levels, fill values and the outcome in one pass over a stream of the columns that have a role."""
    cells = roles.protected if columns.basis == "cells" else ()
    table, seen = read_once(stream, roles, columns.missing, cells, None if outcome is None else outcome.see)
    reference = columns.reference or {}
    for name in reference:
        tables.check_column(name, roles.coded)

    def design(names: Sequence[str], **coding: Any) -> Design:
        own = {name: level for name, level in reference.items() if name in names}
        return tables.settle(table, names, reference=own, **coding)

    options: dict[str, Any] = {"missing": columns.missing, "unseen": columns.unseen}
    protected, features = design(roles.protected, basis=columns.basis, **options), design(roles.features, **options)
    if not protected.names:
        refuse_constant_protected(protected.columns)
    given = design(roles.given, **options) if roles.given else None
    if given is not None:
        check_controls(given)
    return Learned(Reader(features, protected, roles.protected, columns.use_protected, given), table, seen)


class Mergeable(Protocol):
    """Summary of an outcome column over some rows."""

    def merge(self, other: Self) -> Self:
        """Combine with the summary of other rows."""
        ...


S = TypeVar("S", bound=Mergeable)


#: Summary of the outcome column of a batch, given its weights and offsets.
See: TypeAlias = Callable[[Column, Array | None, Array | None], S]


def read_once(
    stream: Stream, roles: Roles, missing: str, cells: Sequence[str], see: See[S] | None
) -> tuple[TableSeen, S | None]:
    """Summarise the coded columns and the outcome of a stream in one pass."""
    found: tuple[TableSeen, S | None] = stream.parts().reduce(partial(_look, roles, missing, cells, see), _merge)
    return found


def _look(
    roles: Roles, missing: Any, cells: Sequence[str], see: See[Any] | None, table: Table
) -> tuple[TableSeen, Any]:
    seen = tables.observe(table, roles.coded, missing=missing, cells=cells)
    if see is None:
        return seen, None
    assert roles.outcome is not None
    table = _complete(table, roles.coded, missing)
    y = read_column(table, roles.outcome)
    return seen, see(y, numbers(table, roles.weight, "weight"), numbers(table, roles.offset, "offset"))


def _merge(a: tuple[TableSeen, Any], b: tuple[TableSeen, Any]) -> tuple[TableSeen, Any]:
    return a[0].merge(b[0]), None if a[1] is None else a[1].merge(b[1])


def _complete(table: Table, columns: Sequence[str], missing: str) -> Table:
    return tables.filter_rows(table, complete_rows(open_table(table), columns)) if missing == "drop" else table


def numbers(table: Table, name: str | None, what: str) -> Array | None:
    """Numeric column of a batch, or None without a name; its missing values are checked where it is used."""
    return None if name is None else require_numbers(read_column(table, name), name, what)


def require_numbers(column: Column, name: str, what: str) -> Array:
    """Values of a numeric column."""
    if not isinstance(column, NumericColumn):
        raise InputError(f"The {what} column {name!r} must be numbers, but holds text or categories: convert it.")
    return column.values


def column_values(stream: Stream, name: str) -> Any:
    """One column of a stream as an array."""
    tables.check_column(name, stream.names)
    return np.concatenate(list(stream.select(name).parts().map(partial(_values, name))))


def _values(name: str, table: Table) -> Any:
    column = read_column(table, name)
    return column.values if isinstance(column, NumericColumn) else np.asarray(column.levels)[column.codes]


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encode a batch of a stream as a numeric block."""

    reader: Reader
    roles: Roles
    outcome: Outcome
    total_weight: float

    def __call__(self, table: Table) -> Block:
        """Return a block of new arrays, whose features follow a column of ones, or are a MixedMatrix without one."""
        features, roles = self.reader.features, self.roles
        assert features is not None
        table = _complete(table, roles.coded, features.missing)
        y = self.outcome.code(read_column(table, str(roles.outcome)))
        weight, offset = numbers(table, roles.weight, "weight"), numbers(table, roles.offset, "offset")
        n = len(y)
        w = np.full(n, 1.0 / self.total_weight) if weight is None else weight / self.total_weight
        Z, X = self._matrices(table, features, n)
        if weight is not None and not weight.all():  # values in such rows must not enter any sum
            rows = np.flatnonzero(weight)
            Z, X = Z[rows] if isinstance(Z, MixedMatrix) else np.asfortranarray(Z[rows]), np.asfortranarray(X[rows])
            y, w, n, offset = y[rows], w[rows], len(rows), None if offset is None else offset[rows]
        return Block(Z, y, np.zeros((n, 0)), w, None if offset is None else offset[:, None], X)

    def _matrices(self, table: Table, features: Design, n: int) -> tuple[Matrix, Array]:
        """Features and protected columns; dense features follow a column of ones."""
        p, q = len(self.reader.protected.names), 0 if features.has_codes else 1 + len(features.names)
        given = self.reader.given
        # Column-major, as tables are stored and as kernels read it.
        A = np.empty((n, q + p + (0 if given is None else len(given.names))), order="F")
        self.reader.protected.write(table, A[:, q : q + p])
        if given is not None:
            given.write(table, A[:, q + p :])
        if features.has_codes:
            return features.split_batch(table), A
        A[:, 0] = 1.0
        features.write(table, A[:, 1:q])
        return A[:, :q], A[:, q:]


def stream_problem(
    stream: Stream,
    roles: Roles,
    learned: Learned,
    outcome: Outcome,
    outcomes: OutcomeSummary,
    family: Family,
    l2: float,
    given: str | None = None,
) -> Problem:
    """Build the problem for a stream of the columns that have a role, after its first pass."""
    reader = learned.reader
    assert reader.features is not None
    encoder = Encoder(reader, roles, outcome, outcomes.weight)
    names, protected = reader.features.names, reader.protected.names
    width, q = 1 + reader.features.stored_width + len(protected), 1 + len(names)
    # The sums over a block have a matrix (q, q), which should cost less than its rows.
    least = q * q // 8 if reader.features.has_codes else 0
    blocks = stream.hold(stream.parts(width, least).map(encoder))
    controls = () if reader.given is None else reader.given.names
    rows = RowsInParts(blocks, outcomes.n_rows)
    return Problem.of_rows(rows, outcomes, family, names, protected, l2=l2, given=given, given_names=controls)
