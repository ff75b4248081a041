"""Row blocks, and parallel sums over them.

Every computation that grows with the number of rows is a sum over row blocks: ``rows.reduce(kernel)`` calls the kernel
on each :class:`Block` and adds up the results. Solvers never access single rows. A block is small enough to stay in the
cache while a kernel reads it two or three times, and the blocks are distributed over the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from scipy import sparse

from setsquare._typing import Array, IntArray, Matrix
from setsquare.errors import InputError
from setsquare.rows.cells import Cells
from setsquare.rows.parallel import HELD_BYTES, SHARE_BYTES, add_sums, n_cores, share_out
from setsquare.tables.mixed_matrix import MixedMatrix

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Block:
    """Some consecutive rows.

    Attributes
    ----------
    Z : ndarray, CSR matrix or MixedMatrix of shape (b, 1 + q)
        A column of ones for the intercept, then the features.
    y : ndarray of shape (b, k)
        Outcome; contrasts for classes.
    Q : ndarray of shape (b, r)
        Orthonormal, centred basis of the protected columns.
    weight : ndarray of shape (b,)
        Weights that sum to one over *all* blocks.
    offset : ndarray of shape (b, k) or None
    X : ndarray of shape (b, p) or None
        The protected columns themselves, for certificates.
    group : ndarray of shape (b,) or None
        Numbers of the clusters; the rows of a cluster are consecutive and in one block.
    cells : Cells or None
        The basis once more, if few of its rows differ and the features are a MixedMatrix.
    """

    Z: Matrix
    y: Array
    Q: Array
    weight: Array
    offset: Array | None = None
    X: Array | None = None
    group: IntArray | None = None
    cells: Cells | None = None

    def __sizeof__(self) -> int:
        """Bytes of the arrays; dask uses this to place the block on a cluster."""
        parts = (self.Z.data if is_sparse(self.Z) else self.Z, self.y, self.Q, self.weight, self.offset, self.X)
        return sum(part.nbytes for part in parts if part is not None)


class Summable(Protocol):
    """Rows as an objective uses them."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        ...

    def reduce(self, kernel: Callable[[Block], Any]) -> Any:
        """Add up the results of ``kernel`` for each block."""
        ...


class Rows(Protocol):
    """Interface of rows in memory, in files or on a cluster, for fits and audits."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        ...

    def reduce(self, kernel: Callable[[Block], R], merge: Callable[[R, R], R] = ...) -> R:
        """Merge the results of ``kernel`` for each block (by default, add them) in one pass, in a fixed order."""
        ...

    def map(self, change: Callable[[Block], Block]) -> Rows:
        """Return rows with ``change`` applied to each block, again in each pass."""
        ...

    def keep(self) -> Rows:
        """Hold the blocks in memory where possible: here for rows in memory, or on the workers of a cluster."""
        ...

    def in_memory(self) -> Iterable[Block] | None:
        """Return all blocks in order, for methods that need all rows at once; None if they are read in parts."""
        ...


class _Held:
    """Shared base of rows in memory."""

    blocks: Sequence[Block]

    def reduce(self, kernel: Callable[[Block], R], merge: Callable[[Any, Any], Any] = add_sums) -> R:
        """Merge the results of ``kernel`` for each block, in a fixed order, so that results are reproducible."""
        if len(self.blocks) == 1:
            return quietly(kernel, self.blocks[0])

        def work(blocks: Sequence[Block]) -> R:
            return reduce(merge, (quietly(kernel, block) for block in blocks))

        return share_out(work, self.blocks, merge)

    def map(self, change: Callable[[Block], Block]) -> MappedRows:
        """Return rows with ``change`` applied to each block."""
        return MappedRows(self, change)

    def in_memory(self) -> Iterable[Block]:
        """Return all blocks in order."""
        return self.blocks


@dataclass(frozen=True)  # without slots: the blocks are created on first access
class ArrayRows(_Held):
    """Rows stored as arrays in memory.

    Examples
    --------
    >>> import numpy as np
    >>> rows = ArrayRows(Z=np.ones((4, 1)), y=np.arange(4.0)[:, None], Q=np.zeros((4, 0)), weight=np.full(4, 0.25))
    >>> rows.reduce(lambda block: (block.weight @ block.y,))
    (array([1.5]),)
    """

    Z: Matrix
    y: Array
    Q: Array
    weight: Array
    offset: Array | None = None
    X: Array | None = None
    group: IntArray | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.y.shape[0])

    @cached_property
    def blocks(self) -> tuple[Block, ...]:  # type: ignore[override]
        """Blocks of equal size, at least one per core where that pays off; they are views of the arrays."""
        k = self.y.shape[1]
        r = self.Q.shape[1] or (0 if self.X is None else self.X.shape[1])
        # Several classes need a matrix per row.
        split = isinstance(self.Z, MixedMatrix)
        row = (2 * self.Z.stored + r if split else self.Z.shape[1]) + (4 * k * k + r * k * (k + 1) // 2 if k > 1 else 0)
        n_bytes = 8 * self.n_rows * row
        cores = max(1, min(n_cores(), n_bytes // SHARE_BYTES))
        count = cores * -(-n_bytes // (cores * HELD_BYTES))  # equally many for each core, to avoid idle cores
        step = max(100, -(-self.n_rows // max(count, 1)))
        if split:  # a block's cross-products (q, q) should cost less than its rows
            step = max(step, min(self.Z.shape[1] ** 2 // 2, -(-self.n_rows // n_cores())))
        return tuple(take_rows(self, rows) for rows in cut(self.n_rows, step, self.group))

    def keep(self) -> ArrayRows:
        """Return self: the rows are in memory."""
        return self


@dataclass(frozen=True, slots=True)
class BlockRows(_Held):
    """Rows in memory, stored as blocks."""

    blocks: Sequence[Block]
    n_rows: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_rows", sum(len(block.weight) for block in self.blocks))

    def keep(self) -> BlockRows:
        """Return self: the rows are in memory."""
        return self


@dataclass(frozen=True, slots=True)
class MappedRows:
    """Rows in memory with a function applied to each block in each pass."""

    rows: Any
    change: Callable[[Block], Block]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.rows.n_rows)

    def reduce(self, kernel: Callable[[Block], R], merge: Callable[[Any, Any], Any] = add_sums) -> R:
        """Merge the results of ``kernel`` for each changed block."""
        found: R = self.rows.reduce(lambda block: kernel(self.change(block)), merge)
        return found

    def map(self, change: Callable[[Block], Block]) -> MappedRows:
        """Return rows with ``change`` applied to each changed block."""
        return MappedRows(self, change)

    def keep(self) -> BlockRows:
        """Hold the changed blocks."""
        return BlockRows(self.reduce(lambda block: (block,), lambda a, b: a + b))

    def in_memory(self) -> Iterable[Block]:
        """Return all changed blocks in order."""
        return map(partial(quietly, self.change), self.rows.in_memory())


def cut(n_rows: int, step: int, group: IntArray | None) -> list[slice]:
    """Slices of about ``step`` rows; with sorted clusters ``group``, only where a cluster ends.

    Examples
    --------
    >>> import numpy as np
    >>> cut(4, 1, np.array([0, 0, 0, 1]))
    [slice(0, 3, None), slice(3, 4, None)]
    """
    edges = [*range(0, n_rows, step), n_rows]
    if group is not None:
        ends = np.flatnonzero(np.diff(group, append=group[-1] + 1)) + 1
        edges = [0, *np.unique(ends[np.searchsorted(ends, edges[1:])]).tolist()]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def take_rows(of: Block | ArrayRows, rows: slice) -> Block:
    """Some of the rows, as views."""
    offset, X = (None if part is None else part[rows] for part in (of.offset, of.X))
    group = None if of.group is None else of.group[rows]
    return Block(view_rows(of.Z, rows), of.y[rows], of.Q[rows], of.weight[rows], offset, X, group)


def all_rows(rows: Rows) -> Block:
    """Features, outcome and weights of all rows as one block, for methods that are not sums over blocks."""
    blocks = rows.in_memory()
    if blocks is None:
        raise InputError("This method needs all rows at once, but they are streamed: read the columns into memory.")
    first, *rest = blocks
    if not rest:
        return first
    parts = [(np.asarray(block.Z), block.y, block.Q, block.weight) for block in (first, *rest)]
    Z, y, Q, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Block(Z, y, Q, weight)


def view_rows(Z: Matrix, rows: slice) -> Matrix:
    """Rows of ``Z`` without a copy; slicing a CSR matrix would copy."""
    if not is_sparse(Z):  # slices of arrays and of MixedMatrix are views
        return Z[rows]
    first, last = Z.indptr[rows.start], Z.indptr[rows.stop]
    part = sparse.csr_array((rows.stop - rows.start, Z.shape[1]))
    part.data, part.indices = Z.data[first:last], Z.indices[first:last]
    part.indptr = Z.indptr[rows.start : rows.stop + 1] - first
    return part


def quietly(kernel: Callable[[Block], R], block: Block) -> R:
    """Call a kernel without warnings of overflow or division by zero, which show as infinite sums."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return kernel(block)


def is_sparse(A: Matrix) -> bool:
    """Whether ``A`` is a scipy sparse matrix or array."""
    return type(A) is not np.ndarray and bool(sparse.issparse(A))


def mean_weight(n_rows: int, weight: Array | None) -> Array:
    """Weights that sum to one."""
    if weight is None:
        return np.full(n_rows, 1.0 / n_rows)
    with np.errstate(over="ignore"):
        total = weight.sum()
    if not np.isfinite(total):  # weights near the largest float64
        return mean_weight(n_rows, weight / weight.max())
    return np.asarray(weight / total)
