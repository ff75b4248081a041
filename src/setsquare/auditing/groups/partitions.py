"""Partitions of the rows into groups: levels of a column, bands of a numeric column, intersections of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.document.formats import joined
from setsquare.errors import InputError
from setsquare.notes import Note, Option
from setsquare.tables.column import Column, Levels, label, read
from setsquare.tables.frame import open_table
from setsquare.tables.validation import check_reference

#: A numeric column with more distinct values is cut into bands; of more levels, figures pool the least frequent.
MOST_VALUES = 12
#: Cells with fewer rows are masked by default.
MIN_GROUP = 10


@dataclass(frozen=True, slots=True)
class Partition:
    """Groups of rows that do not overlap.

    Attributes
    ----------
    source : str
        ``race``, or ``race:sex`` for an intersection.
    labels : tuple of str
        ``Black``; ``25-34`` for a band; ``Black, Female`` for a cell.
    codes : integer ndarray of shape (n,)
        Group of each row; -1 for a row in no group (a missing value).
    shown : boolean ndarray of shape (G,)
        Groups with at least ``min_group`` rows; the others are masked.
    reference : int
        Position of the reference group.
    edges : tuple of float
        Lower ends of all bands but the first; empty for levels.
    parts : tuple of str
        Columns of an intersection; empty for a single column.
    """

    source: str
    labels: tuple[str, ...]
    codes: IntArray
    shown: BoolArray
    reference: int = 0
    edges: tuple[float, ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The source as readers see it: ``race and sex`` for an intersection."""
        return joined(self.parts, most=9) or self.source

    @property
    def counts(self) -> IntArray:
        """Number of rows in each group."""
        return np.bincount(self.codes + 1, minlength=len(self.labels) + 1)[1:]

    def without_rows(self) -> Partition:
        """The same groups without the codes of the rows."""
        return replace(self, codes=np.zeros(0, dtype=np.int64))


def partition_rows(
    table: Table,
    *,
    reference: Mapping[str, Any] | None = None,
    min_group: int = MIN_GROUP,
    n_bands: int = 4,
    intersections: bool = True,
    missing_group: bool = False,
) -> tuple[Partition, ...]:
    """Partition the rows by each column of a table, and by the cells of all categorical columns.

    Parameters
    ----------
    table : dataframe or array of n rows
    reference : mapping of column to level, optional
        Reference groups; by default the largest group of each partition.
    min_group : int
        Groups with fewer rows are masked.
    n_bands : int
        Number of bands, of about equal size, of a column with more than a dozen distinct numbers.
    intersections : bool
        Whether to add the cells of all columns that are not in bands, if there are two or more such columns.
    missing_group : bool
        Whether missing values are a group of their own, ``missing``; otherwise such rows are in no group.

    Examples
    --------
    >>> found = partition_rows([["b", 1.0], ["a", 2.0], ["b", 2.0]], min_group=1)
    >>> [(one.source, one.labels, one.codes.tolist()) for one in found]
    [('x0', ('a', 'b'), [1, 0, 1]), ('x1', ('1', '2'), [0, 1, 1]), ('x0:x1', ('a, 2', 'b, 1', 'b, 2'), [1, 0, 2])]
    """
    if min_group < 1:
        raise InputError(Note("min-group", "{option} must be 1 or more.", option=Option("min_group", min_group)))
    if n_bands < 2:
        raise InputError(f"n_bands={n_bands} must be 2 or more.")
    frame = open_table(table)
    parts = [partition_column(name, read(frame, name), n_bands, missing_group) for name in frame.names]
    levels = [part for part in parts if not part.edges and len(part.labels) > 1]
    if intersections and len(levels) > 1:
        parts.append(_intersect(levels))
    asked = dict(reference or {})
    check_reference(asked, [part.source for part in parts])
    return tuple(_settle(part, asked, min_group) for part in parts if len(part.labels) > 1)


def band_labels(low: float, high: float, edges: Sequence[float], whole: bool) -> tuple[str, ...]:
    """Names of bands; ``edges`` are the lower ends of all but the first.

    Examples
    --------
    >>> band_labels(17, 90, [28, 37], True), band_labels(0.1, 0.9, [0.5], False)
    (('17-27', '28-36', '37-90'), ('0.1 to 0.5', '0.5 to 0.9'))
    """
    ends = [low, *edges, high]
    if whole:
        tops = [*(edge - 1 for edge in edges), high]
        return tuple(f"{a:.0f}-{b:.0f}" if a < b else f"{a:.0f}" for a, b in zip([low, *edges], tops, strict=True))
    return tuple(f"{a:.4g} to {b:.4g}" for a, b in pairwise(ends))


def note_masked(partitions: Sequence[Partition], min_group: int) -> tuple[Note, ...]:
    """Note the groups whose numbers are masked."""
    masked = [
        f"{part.title}: {name} ({count})"
        for part in partitions
        for name, count, shown in zip(part.labels, part.counts, part.shown, strict=True)
        if not shown
    ]
    if not masked:
        return ()
    listed = "; ".join(masked[:8]) + (f" and {len(masked) - 8} more" if len(masked) > 8 else "")
    text = "Groups with fewer than {limit} rows have no numbers: {groups}."
    return (Note("small-groups", text, severity="caution", limit=min_group, groups=listed, count=len(masked)),)


def partition_column(
    name: str, column: Column, n_bands: int, missing_group: bool = False, *, rounded: bool = True
) -> Partition:
    """Groups of one column that have a row: its levels or few values, or bands; ``rounded`` gives bands short ends."""
    edges: tuple[float, ...] = ()
    if isinstance(column, Levels):
        codes, labels = column.codes, tuple(map(label, column.levels))
    else:
        codes, labels, edges = _of_numbers(column.values, n_bands, rounded)
    if missing_group and (codes < 0).any():
        codes, labels = np.where(codes < 0, len(labels), codes), (*labels, "missing")
    there = np.flatnonzero(np.bincount(codes + 1, minlength=len(labels) + 1)[1:])
    if len(there) < len(labels):
        place = np.full(len(labels) + 1, -1)
        place[there] = np.arange(len(there))
        codes, labels = place[codes], tuple(labels[k] for k in there)
    return Partition(name, labels, codes, np.ones(len(labels), dtype=bool), edges=edges)


def _of_numbers(x: Array, n_bands: int, rounded: bool) -> tuple[IntArray, tuple[str, ...], tuple[float, ...]]:
    """Codes, labels and lower ends: one group per value if there are few, else bands between quantiles."""
    missing = np.isnan(x)
    known = x[~missing] if missing.any() else x
    # Some rows tell that there are many values, without sorting all of them.
    values = np.unique(known[:1000])
    values = np.unique(known) if len(values) <= MOST_VALUES else values
    if len(values) <= MOST_VALUES:
        return np.where(missing, -1, np.searchsorted(values, x)), tuple(f"{value:g}" for value in values), ()
    low, high = float(known.min()), float(known.max())
    cuts = np.unique(np.quantile(known, np.arange(1, n_bands) / n_bands, method="higher"))
    whole = rounded and bool((known == np.floor(known)).all())
    short = np.array([float(f"{cut:.0f}" if whole and abs(cut) < 1e4 else f"{cut:.3g}") for cut in cuts])
    if rounded and (np.diff(short) > 0).all() and low < short[0] and short[-1] <= high:
        cuts = short
    cuts = cuts[cuts > low]
    codes = np.where(missing, -1, np.searchsorted(cuts, x, side="right"))
    return codes, band_labels(low, high, cuts.tolist(), whole), tuple(cuts.tolist())


def _intersect(parts: Sequence[Partition]) -> Partition:
    """Cells of several partitions that have a row; a row without a group in one of them has none."""
    known = np.logical_and.reduce([part.codes >= 0 for part in parts])
    if not known.any():
        raise InputError("No row has a known value in every protected column: fill them in, or leave a column out.")
    cells = np.zeros((1, 0), dtype=np.int64)
    codes = np.zeros(int(known.sum()), dtype=np.int64)
    for part in parts:  # renumbered column by column, so that the product of all counts is never formed
        size = len(part.labels)
        codes = codes * size + part.codes[known]
        ids = np.flatnonzero(np.bincount(codes, minlength=1))
        place = np.zeros(int(ids[-1]) + 1, dtype=np.int64)
        place[ids] = np.arange(len(ids))
        codes = place[codes]
        cells = np.column_stack([cells[ids // size], ids % size])
    placed = np.full(len(known), -1)
    placed[known] = codes
    labels = tuple(", ".join(part.labels[k] for part, k in zip(parts, cell, strict=True)) for cell in cells)
    columns = tuple(part.source for part in parts)
    return Partition(":".join(columns), labels, placed, np.ones(len(labels), dtype=bool), parts=columns)


def _settle(part: Partition, asked: Mapping[str, Any], min_group: int) -> Partition:
    """Mask small groups, and find the reference group."""
    name = asked.get(part.source)
    wanted = None if name is None else label(name.item() if isinstance(name, np.generic) else name)
    if wanted is None and part.parts and all(source in asked for source in part.parts):
        cell = ", ".join(label(asked[source]) for source in part.parts)
        wanted = cell if cell in part.labels else None
    if wanted is not None and wanted not in part.labels:
        number = f"{float(wanted):g}" if _is_number(wanted) else wanted
        wanted = number if number in part.labels else wanted
    if wanted is not None and wanted not in part.labels:
        known = ", ".join(map(repr, part.labels[:12])) + (", …" if len(part.labels) > 12 else "")
        raise InputError(f"Column {part.source!r} has no group {wanted!r} for a reference; it has {known}.")
    counts = part.counts
    first = int(counts.argmax()) if wanted is None else part.labels.index(wanted)
    return replace(part, shown=counts >= min_group, reference=first)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
