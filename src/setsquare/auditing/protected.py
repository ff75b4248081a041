"""Coded protected columns, in memory or read in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from setsquare import tables
from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.cells import Cells
from setsquare.auditing.evaluations.covariance import ALONE
from setsquare.errors import InputError
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.notes import Note
from setsquare.projection import Basis
from setsquare.projection.basis import basis_of_rows, largest_leverage, leverages
from setsquare.projection.moments import Ranges
from setsquare.rows.blocks import ArrayRows, Block, Rows, mean_weight
from setsquare.tables import Categorical, Design
from setsquare.tables import Cells as CellCoder
from setsquare.tables.column import label
from setsquare.tables.frame import dense
from setsquare.tables.validation import read_cluster, refuse_constant_protected

#: Largest number of coded protected columns: an audit tests each of them, and its time grows with their square.
MOST_COLUMNS = 1000
#: Most columns that a note lists by name.
MOST_NAMED = 10
#: Predictions (n,) or (n, k), or their summary if they are read together with the protected columns.
Predictions = Array | OutcomeSummary


@dataclass(frozen=True, slots=True)
class Protected:
    """Coded protected columns, and what a pass over their rows says about them.

    Parameters
    ----------
    values : ndarray of shape (n, p)
        The columns; without rows if these are read in blocks.
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

    Attributes
    ----------
    n_rows : int
    shares : ndarray of shape (n,)
        Weights of the rows in memory that sum to one.
    rows : Rows
        Rows whose features are the columns.
    found : Ranges
        Ranges and moments of the columns.
    equal_weights : bool
        Whether all rows have the same weight.
    varies : boolean ndarray of shape (p,)
        Which columns have more than one value.
    spreads : ndarray of shape (p,)
        Standard deviations.
    basis : Basis
        Orthonormal basis of the columns.
    reach : float
        Length, in the basis, of the farthest corner of the columns' ranges: no row is farther out.
    max_leverage : float
        Largest leverage of a row in a linear model with an intercept, or an upper bound if below 0.05.
    group_sizes : tuple of int or None
        Rows in the group that a column indicates (0 and 1, or 1 and 2); None if it is not an indicator.
    cells : Cells or None
        Rows with equal columns, if they have the same weight, no clusters, and far fewer different rows.
    tested : Protected or None
        The columns without rows that determine an effect alone, such as the only row of a level: they cannot be
        tested. The columns left may be constant. None if there are no such rows.
    """

    values: Array
    names: tuple[str, ...]
    sources: tuple[str, ...]
    weight: Array | None = None
    cluster: IntArray | None = None
    taken: IntArray | None = None
    notes: tuple[Note, ...] = ()
    references: tuple[tuple[str, str], ...] = ()
    elsewhere: Rows | None = None
    n_rows: int = field(init=False, repr=False)
    shares: Array = field(init=False, repr=False)
    rows: Rows = field(init=False, repr=False)
    found: Ranges = field(init=False, repr=False)
    equal_weights: bool = field(init=False, repr=False)
    varies: BoolArray = field(init=False, repr=False)
    spreads: Array = field(init=False, repr=False)
    basis: Basis = field(init=False, repr=False)
    reach: float = field(init=False, repr=False)
    max_leverage: float = field(init=False, repr=False)
    group_sizes: tuple[int | None, ...] = field(init=False, repr=False)
    cells: Cells | None = field(init=False, repr=False)
    tested: Protected | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        n, p = len(self.values), len(self.names)
        if self.elsewhere is None:
            shares, nothing = mean_weight(n, self.weight), np.zeros((n, 0))
            rows: Rows = ArrayRows(self.values, nothing, nothing, shares)
        else:
            n, shares = self.elsewhere.n_rows, np.zeros(0)
            rows = self.elsewhere.map(partial(_without_ones, p))
        found = rows.reduce(Ranges.of, Ranges.merge)
        equal = self.weight is None if self.elsewhere is None else found.concentration * n < 1.0 + 1e-12
        plain = self.elsewhere is None and self.weight is None and self.cluster is None
        self._set(n_rows=n, shares=shares, rows=rows, found=found, equal_weights=equal)
        self._set(cells=Cells.of(self.values, found) if plain else None)
        varies = np.asarray(found.low < found.high)
        variance = np.maximum(np.diag(found.moments.scatter) / found.moments.weight, 0.0)
        sizes = zip(found.total - n * found.low, found.is_whole & (found.high - found.low == 1.0), strict=True)
        groups = tuple(int(size) if indicator else None for size, indicator in sizes)
        self._set(varies=varies, spreads=np.where(varies, np.sqrt(variance), 0.0), group_sizes=groups)
        if not varies.any():
            empty = Basis(found.moments.mean, np.zeros((p, 0)), self.names, self.names)
            self._set(basis=empty, reach=0.0, max_leverage=0.0, tested=None)
            return
        basis = basis_of_rows(found.moments, self.names, rows.map(_as_protected))
        reach = basis.reach(found.low, found.high)
        bound = found.heaviest * (1.0 + reach**2)
        self._set(basis=basis, reach=reach, max_leverage=bound if bound < 0.05 else largest_leverage(basis, rows))
        self._set(tested=_without_lone_rows(self) if self.max_leverage > ALONE else None)

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _without_ones(p: int, block: Block) -> Block:
    return replace(block, Z=block.Z[:, -p:])


def _as_protected(block: Block) -> Block:
    return replace(block, X=block.Z)


def list_names(names: Sequence[str]) -> str:
    """Name at most ten columns, and count the others."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _without_lone_rows(columns: Protected) -> Protected:
    """Drop rows that determine an effect alone, again and again if others do then."""
    blocks = columns.rows.in_memory()
    if blocks is None:
        raise InputError(
            "A row determines an effect alone, such as the only one of a level: leave that level out, or audit the "
            "columns in memory."
        )
    rows = np.flatnonzero(np.concatenate([leverages(columns.basis, block) for block in blocks]) <= ALONE)
    weight, cluster, taken = columns.weight, columns.cluster, columns.taken
    left = replace(
        columns,
        values=columns.values[rows],
        weight=None if weight is None else weight[rows],
        cluster=None if cluster is None else np.unique(cluster[rows], return_inverse=True)[1],
        taken=rows if taken is None else taken[rows],
    )
    left = left.tested or left
    names = np.asarray(columns.names, dtype=object)[columns.varies & ~left.varies]
    about = f" ({list_names(names.tolist())})" if len(names) else ""
    text = (
        "{count} row(s) determine an effect alone{about}, such as the single row of a level: they "
        "cannot be tested and were left out (for a reference level, together with the effects relative to it)."
    )
    note = Note("lone-rows", text, severity="caution", count=columns.n_rows - left.n_rows, about=about)
    return replace(left, notes=(*columns.notes, note))


@dataclass(frozen=True, slots=True)
class Coded:
    """Protected columns of the rows that are audited.

    Attributes
    ----------
    columns : Protected
    keep : boolean ndarray
        Which of the rows given are audited.
    notes : tuple of Note
        Notes on rows and columns that were left out.
    """

    columns: Protected
    keep: BoolArray
    notes: tuple[Note, ...]


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
        raise InputError(
            f"Too few rows ({n}) for {p} protected column(s): pass at least three more rows than columns, or use "
            "setsquare.maximum_test, which tests the largest of their correlations."
        )


def reference_groups(learned: Design) -> tuple[tuple[str, str], ...]:
    """Categorical source columns, each with its reference group."""
    found = []
    for coder in learned.coders:
        if isinstance(coder, Categorical) and len(coder.levels) > 1:
            found.append((coder.name, label(coder.levels[0])))
        elif isinstance(coder, CellCoder):
            first = (label(levels[j]) for levels, j in zip(coder.levels, coder.cells[0], strict=True))
            found.append((coder.source, ",".join(first)))
    return tuple(found)


def note_constant(learned: Design) -> tuple[Note, ...]:
    """Refuse protected columns that are all constant, and note those that are."""
    if not learned.names:
        refuse_constant_protected(learned.columns, "audit")
    listed = ", ".join(learned.constant)
    text = "Constant in these rows, so not audited: {columns}."
    return (Note("constant-columns", text, severity="caution", columns=listed),) if listed else ()


def note_variants(learned: Design) -> tuple[Note, ...]:
    """Note groups that differ only in capitals or blanks, such as "F" and "f": they may be one group."""
    found = []
    for coder in learned.coders:
        if isinstance(coder, Categorical):
            alike: dict[str, list[str]] = {}
            for level in coder.levels:
                if isinstance(level, str):
                    alike.setdefault("".join(level.split()).casefold(), []).append(level)
            found += [f"{coder.name} {', '.join(map(repr, same))}" for same in alike.values() if len(same) > 1]
    text = (
        "{groups}: groups that differ only in capitals or blanks were counted apart; write them alike if they are one."
    )
    listed = "; ".join(found[:MOST_NAMED]) + ("; …" if len(found) > MOST_NAMED else "")
    return (Note("variants-of-groups", text, severity="caution", groups=listed),) if found else ()


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
) -> Coded:
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
    learned, n = tables.learn(protected, **reading, weight=weight), int(keep.sum())
    check_size(learned, n)
    notes = (*note_left_out(len(keep) - n, len(keep)), *note_constant(learned), *note_variants(learned))
    encoded = learned.apply(protected)
    values, references = dense(encoded.values), reference_groups(learned)
    columns = Protected(values, encoded.names, encoded.sources, weight, cluster, references=references)
    if not columns.varies.any():
        refuse_constant_protected(learned.columns, "audit")
    return Coded(columns, keep, notes)
