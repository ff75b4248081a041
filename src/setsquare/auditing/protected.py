"""Coded protected columns, in memory or read in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from setsquare import tables
from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.evaluations.covariance import ALONE
from setsquare.errors import InputError
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.notes import Note
from setsquare.projection import Basis
from setsquare.projection.basis import basis_of_rows
from setsquare.projection.moments import Moments
from setsquare.rows.blocks import ArrayRows, Block, Rows, mean_weight
from setsquare.tables import Categorical, Cells, Design
from setsquare.tables.column import label
from setsquare.tables.frame import dense
from setsquare.tables.validation import read_cluster, refuse_constant_protected

#: Largest number of coded protected columns: an audit tests each of them, and its time grows with their square.
MOST_COLUMNS = 1000
#: Predictions (n,) or (n, k), or their summary if they are read together with the protected columns.
Predictions = Array | OutcomeSummary


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges, sums, weights and moments of columns over some rows; mergeable.

    Attributes
    ----------
    low, high, total : ndarray of shape (p,)
    is_whole : boolean ndarray of shape (p,)
        Which columns hold whole numbers only.
    heaviest, concentration : float
        Largest weight, and the sum of their squares.
    moments : Moments
    """

    low: Array
    high: Array
    total: Array
    is_whole: BoolArray
    heaviest: float
    concentration: float
    moments: Moments

    @classmethod
    def of(cls, block: Block) -> Ranges:
        """Summarise a block whose features are the columns."""
        columns, w = np.ascontiguousarray(np.asarray(block.Z).T), block.weight  # contiguous along the reductions
        return cls(
            columns.min(axis=1),
            columns.max(axis=1),
            columns.sum(axis=1),
            (np.floor(columns) == columns).all(axis=1),
            float(w.max()),
            float(w @ w),
            Moments.of(columns.T, w),
        )

    def merge(self, other: Ranges) -> Ranges:
        """Merge the summaries of two sets of rows."""
        return Ranges(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.total + other.total,
            self.is_whole & other.is_whole,
            max(self.heaviest, other.heaviest),
            self.concentration + other.concentration,
            self.moments.merge(other.moments),
        )


@dataclass(frozen=True)  # without slots, for cached properties
class Protected:
    """Coded protected columns.

    Attributes
    ----------
    array : ndarray of shape (n, p) or None
        None if the rows are read in blocks.
    names : tuple of str
        ``race[Black]``.
    sources : tuple of str
        ``race``.
    weight : ndarray of shape (n,) or None
        Weights of the rows.
    cluster : integer ndarray of shape (n,) or None
        Rows with the same code 0, 1, ... are not independent.
    taken : integer ndarray or None
        Indices of these rows among the audited rows; None for all rows.
    notes : tuple of Note
    references : tuple of (str, str)
        Categorical source columns, each with its reference group.
    elsewhere : Rows or None
        Rows that are read in blocks: a column of ones and the columns as features, the predictions as the outcome.
    """

    array: Array | None
    names: tuple[str, ...]
    sources: tuple[str, ...]
    weight: Array | None = None
    cluster: IntArray | None = None
    taken: IntArray | None = None
    notes: tuple[Note, ...] = ()
    references: tuple[tuple[str, str], ...] = ()
    elsewhere: Rows | None = None

    @property
    def values(self) -> Array:
        """The columns of all rows together, (n, p)."""
        if self.array is None:
            raise InputError("This needs all rows of the stream at once: read the columns into memory.")
        return self.array

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.values) if self.elsewhere is None else self.elsewhere.n_rows

    @cached_property
    def shares(self) -> Array:
        """Weights of the rows in memory that sum to one."""
        return mean_weight(len(self.values), self.weight)

    @cached_property
    def rows(self) -> Rows:
        """Rows whose features are the columns."""
        if self.elsewhere is not None:
            return self.elsewhere.map(partial(_without_ones, len(self.names)))
        nothing = np.zeros((self.n_rows, 0))
        return ArrayRows(self.values, nothing, nothing, self.shares)

    def beside(self, y: Predictions) -> Rows:
        """Rows with the predictions as the outcome."""
        if isinstance(y, OutcomeSummary):
            return self.rows
        return ArrayRows(self.values, y.reshape(len(y), -1), np.zeros((len(y), 0)), self.shares)

    def summary(self, y: Predictions) -> OutcomeSummary:
        """Summary of the predictions."""
        return y if isinstance(y, OutcomeSummary) else OutcomeSummary.of(y, self.shares)

    @cached_property
    def found(self) -> Ranges:
        """Ranges and moments of the columns, in one pass over the rows."""
        return self.rows.reduce(Ranges.of, Ranges.merge)

    @property
    def equal_weights(self) -> bool:
        """Whether all rows have the same weight."""
        if self.elsewhere is None:
            return self.weight is None
        return self.found.concentration * self.n_rows < 1.0 + 1e-12

    @cached_property
    def basis(self) -> Basis:
        """Orthonormal basis of the columns."""
        return basis_of_rows(self.found.moments, self.names, self.rows.map(_as_protected))

    @property
    def ends(self) -> tuple[Array, Array]:
        """Smallest and largest value of each column."""
        return self.found.low, self.found.high

    @property
    def varies(self) -> BoolArray:
        """Which columns have more than one value."""
        return np.asarray(self.found.low < self.found.high)

    @property
    def spreads(self) -> Array:
        """Standard deviation of each column."""
        moments = self.found.moments
        variance = np.maximum(np.diag(moments.scatter) / moments.weight, 0.0)
        return np.where(self.varies, np.sqrt(variance), 0.0)

    @cached_property
    def max_leverage(self) -> float:
        """Largest leverage of a row in a linear model with an intercept, or an upper bound if below 0.05."""
        if not self.varies.any():
            return 0.0
        bound = self.found.heaviest * (1.0 + self.reach**2)
        return bound if bound < 0.05 else self.rows.reduce(partial(_largest_leverage, self.basis), max)

    @cached_property
    def reach(self) -> float:
        """Length, in the basis, of the farthest corner of the columns' ranges: no row is farther out."""
        return self.basis.reach(*self.ends)

    @cached_property
    def group_sizes(self) -> tuple[int | None, ...]:
        """Rows in the group that a column indicates (0 and 1, or 1 and 2); None if it is not an indicator."""
        found = self.found
        sizes = zip(
            found.total - self.n_rows * found.low, found.is_whole & (found.high - found.low == 1.0), strict=True
        )
        return tuple(int(size) if indicator else None for size, indicator in sizes)

    @property
    def is_group(self) -> tuple[bool, ...]:
        """Which columns are indicators of a group."""
        return tuple(size is not None for size in self.group_sizes)

    def part(self, values: Array) -> Array:
        """Select the values of these rows from those of all audited rows."""
        return values if self.taken is None else values[self.taken]

    def without_lone_rows(self) -> Protected:
        """Drop rows that determine an effect alone, such as the only row of a level: they cannot be tested.

        The remaining columns may be constant.
        """
        left, names = self, dict[str, None]()
        while left.varies.any() and left.max_leverage > ALONE:
            after = left._take(np.flatnonzero(left._leverage() <= ALONE))
            names |= dict.fromkeys(np.asarray(self.names, dtype=object)[left.varies & ~after.varies])
            left = after
        if left is self:
            return self
        about = f" ({', '.join(names)})" if names else ""
        text = (
            "{count} row(s) determine an effect alone{about}, such as the single row of a level: they "
            "cannot be tested and were left out (for a reference level, together with the effects relative to it)."
        )
        note = Note("lone-rows", text, severity="caution", count=self.n_rows - left.n_rows, about=about)
        return replace(left, notes=(*self.notes, note))

    def _leverage(self) -> Array:
        """Leverage of each row in a linear model with an intercept."""
        blocks = self.rows.in_memory()
        if blocks is None:
            raise InputError(
                "A row determines an effect alone, such as the only one of a level: leave that level out, or audit the "
                "columns in memory."
            )
        return np.concatenate([_leverage(self.basis, block) for block in blocks])

    def _take(self, rows: IntArray) -> Protected:
        return replace(
            self,
            array=self.values[rows],
            weight=None if self.weight is None else self.weight[rows],
            cluster=None if self.cluster is None else np.unique(self.cluster[rows], return_inverse=True)[1],
            taken=rows if self.taken is None else self.taken[rows],
        )


def _without_ones(p: int, block: Block) -> Block:
    return replace(block, Z=block.Z[:, -p:])


def _as_protected(block: Block) -> Block:
    return replace(block, X=block.Z)


def _leverage(basis: Basis, block: Block) -> Array:
    Q = basis.apply(block.Z)
    return np.asarray(block.weight * (1.0 + np.einsum("nr,nr->n", Q, Q)))


def _largest_leverage(basis: Basis, block: Block) -> float:
    return float(_leverage(basis, block).max())


def note_left_out(count: int, n: int) -> tuple[Note, ...]:
    """Note on the number of rows that are not audited."""
    text = "{count} of {n} rows are incomplete or have no weight, and were left out."
    return (Note("rows-left-out", text, count=count, n=n),) if count else ()


def check_count(p: int) -> None:
    """Refuse more input columns than an audit can test, before they are read one by one."""
    if p > MOST_COLUMNS:
        raise InputError(
            f"There are {p:,} protected columns, and an audit tests at most {MOST_COLUMNS:,}: leave some out, or "
            "reduce them to principal components first."
        )


def check_size(learned: Design, n: int) -> None:
    """Refuse more protected columns than an audit of ``n`` rows can test, before they are coded."""
    p = len(learned.names)
    if p > MOST_COLUMNS:
        source, count = Counter(learned.sources).most_common(1)[0]
        raise InputError(
            f"Column {source!r} has so many levels ({count + 1:,}) that the audit would test {p:,} protected columns, "
            f"more than {MOST_COLUMNS:,}: merge rare levels, for example those with fewer than 30 rows."
        )
    if n < p + 3:
        raise InputError(f"Too few rows ({n}) for {p} protected column(s): pass at least three more rows than columns.")


def reference_groups(learned: Design) -> tuple[tuple[str, str], ...]:
    """Categorical source columns, each with its reference group."""
    found = []
    for coder in learned.coders:
        if isinstance(coder, Categorical) and len(coder.levels) > 1:
            found.append((coder.name, label(coder.levels[0])))
        elif isinstance(coder, Cells):
            first = (label(levels[j]) for levels, j in zip(coder.levels, coder.cells[0], strict=True))
            found.append((coder.source, ",".join(first)))
    return tuple(found)


def note_constant(learned: Design, varies: bool = True) -> tuple[Note, ...]:
    """Refuse protected columns that are all constant, and note those that are."""
    if not learned.names or not varies:
        refuse_constant_protected(learned.columns, "audit")
    listed = ", ".join(learned.constant)
    text = "Constant in these rows, so not audited: {columns}."
    return (Note("constant-columns", text, severity="caution", columns=listed),) if listed else ()


def cluster_numbers(cluster: Any, n: int) -> IntArray | None:
    """Clusters as numbers from 0; missing labels and a wrong count are refused."""
    if cluster is None:
        return None
    codes = read_cluster(cluster, n)
    if not codes.any():
        raise InputError("Every row is in the same cluster: cluster-robust standard errors need at least two clusters.")
    return codes


def code_protected(
    protected: Table, weight: Array | None, cluster: IntArray | None, keep: BoolArray, reading: Mapping[str, Any]
) -> tuple[BoolArray, Protected, Design]:
    """Code the protected columns of the rows to `keep`, which must be complete if missing values are dropped."""
    check_count(len(tables.column_names(protected)))
    if reading.get("missing") == "drop":
        learned = tables.learn(protected, **reading)
        check_size(learned, int(keep.sum()))
        known = learned.apply(protected).keep
        keep = keep if known is None else keep & known
    if not keep.all():
        protected = tables.filter_rows(protected, keep)
        weight = None if weight is None else weight[keep]
        cluster = None if cluster is None else np.unique(cluster[keep], return_inverse=True)[1]
    learned = tables.learn(protected, **reading)
    check_size(learned, int(keep.sum()))
    encoded = learned.apply(protected)
    values, references = dense(encoded.values), reference_groups(learned)
    coded = Protected(values, encoded.names, encoded.sources, weight, cluster, references=references)
    return keep, coded, learned
