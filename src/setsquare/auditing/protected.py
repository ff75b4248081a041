"""The protected columns as an evaluation model sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.auditing.evaluations.covariance import ALONE
from setsquare.notes import Note
from setsquare.projection import Basis, protected_basis
from setsquare.rows.blocks import mean_weight, row_slices
from setsquare.tables import Categorical, Cells, Design
from setsquare.tables.column import label
from setsquare.tables.validation import refuse_constant_protected


@dataclass(frozen=True)  # without slots: what is worked out of the columns is kept
class Protected:
    """Coded protected columns.

    Attributes
    ----------
    values : ndarray of shape (n, p)
    names : tuple of str
        ``race[Black]``.
    sources : tuple of str
        ``race``.
    weight : ndarray of shape (n,) or None
        Weights of the rows.
    cluster : integer ndarray of shape (n,) or None
        Rows with the same code 0, 1, ... are not independent.
    rows : integer ndarray or None
        Which rows of the audit these are; None: all of them.
    notes : tuple of Note
    """

    values: Array
    names: tuple[str, ...]
    sources: tuple[str, ...]
    weight: Array | None = None
    cluster: IntArray | None = None
    rows: IntArray | None = None
    notes: tuple[Note, ...] = ()

    @cached_property
    def basis(self) -> Basis:
        """Orthonormal basis of the columns."""
        return protected_basis(self.values, mean_weight(len(self.values), self.weight), self.names)

    @cached_property
    def columns(self) -> Array:
        """The columns one after the other in memory, (p, n): what is asked of one column then runs along it."""
        return np.ascontiguousarray(self.values.T)

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """Smallest and largest value of each column."""
        return self.columns.min(axis=1), self.columns.max(axis=1)

    @property
    def varies(self) -> BoolArray:
        """Which columns have more than one value."""
        return np.asarray(self.ends[0] < self.ends[1])

    @cached_property
    def max_leverage(self) -> float:
        """Largest leverage of a row in a linear model with an intercept, or a bound on it below 0.05."""
        if not self.varies.any():
            return 0.0
        w = mean_weight(len(self.values), self.weight)
        bound = float(w.max()) * (1.0 + self.reach**2)
        return bound if bound < 0.05 else float(self.leverage.max())

    @cached_property
    def reach(self) -> float:
        """Length, in the basis, of the farthest corner of the columns' ranges: no row is farther out."""
        return self.basis.reach(*self.ends)

    @cached_property
    def leverage(self) -> Array:
        """Leverage of each row in a linear model with an intercept."""
        w = mean_weight(len(self.values), self.weight)
        leverage = np.empty(len(w))
        for rows in row_slices(*self.values.shape):
            Q = self.basis.apply(self.values[rows])
            leverage[rows] = w[rows] * (1.0 + np.einsum("nr,nr->n", Q, Q))
        return leverage

    @cached_property
    def group_sizes(self) -> tuple[int | None, ...]:
        """Rows in the group that a column indicates (0 and 1, or 1 and 2); None for a column that is no indicator."""
        low, high = self.ends
        columns = zip(self.columns, low, high, strict=True)
        return tuple(
            int(x.sum() - len(x) * a) if b - a == 1.0 and bool((x == np.floor(x)).all()) else None
            for x, a, b in columns
        )

    @property
    def is_group(self) -> tuple[bool, ...]:
        """Which columns are indicators of a group."""
        return tuple(size is not None for size in self.group_sizes)

    def part(self, values: Array) -> Array:
        """Return of the audit's values those that belong to these rows."""
        return values if self.rows is None else values[self.rows]

    def without_lone_rows(self) -> Protected:
        """Leave out rows that decide an effect alone, such as the only row of a level: they cannot be tested.

        Nothing may vary in what is left.
        """
        left, names = self, dict[str, None]()
        while left.varies.any() and left.max_leverage > ALONE:
            after = left._take(np.flatnonzero(left.leverage <= ALONE))
            names |= dict.fromkeys(np.asarray(self.names, dtype=object)[left.varies & ~after.varies])
            left = after
        if left is self:
            return self
        about = f" ({', '.join(names)})" if names else ""
        text = (
            "{count} row(s) are the only ones to decide an effect{about}, such as a level with a single row: they "
            "cannot be tested and were left out (with a reference level, the effects that are against it)."
        )
        note = Note("lone-rows", text, severity="caution", count=len(self.values) - len(left.values), about=about)
        return replace(left, notes=(*self.notes, note))

    def _take(self, rows: IntArray) -> Protected:
        return replace(
            self,
            values=self.values[rows],
            weight=None if self.weight is None else self.weight[rows],
            cluster=None if self.cluster is None else np.unique(self.cluster[rows], return_inverse=True)[1],
            rows=rows if self.rows is None else self.rows[rows],
        )


def note_left_out(count: int, n: int) -> tuple[Note, ...]:
    """Count the rows that are not audited."""
    text = "{count} of {n} rows are incomplete or have no weight, and were left out."
    return (Note("rows-left-out", text, count=count, n=n),) if count else ()


def reference_groups(learned: Design) -> tuple[tuple[str, str], ...]:
    """Source columns of groups, each with the group that the others are compared with."""
    found = []
    for coder in learned.coders:
        if isinstance(coder, Categorical) and len(coder.levels) > 1:
            found.append((coder.name, label(coder.levels[0])))
        elif isinstance(coder, Cells):
            first = (label(levels[j]) for levels, j in zip(coder.levels, coder.cells[0], strict=True))
            found.append((coder.source, ",".join(first)))
    return tuple(found)


def note_constant(learned: Design, varies: bool = True) -> tuple[Note, ...]:
    """Refuse protected columns of which none ``varies``, and note those that do not."""
    if not learned.names or not varies:
        refuse_constant_protected(learned.columns, "audit")
    listed = ", ".join(learned.constant)
    text = "Constant in these rows, so that it cannot be audited: {columns}."
    return (Note("constant-columns", text, severity="caution", columns=listed),) if listed else ()
