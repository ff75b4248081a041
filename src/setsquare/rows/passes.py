"""Passes over the parts of a table: map a function over the parts, and merge the results in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from setsquare._typing import Table
from setsquare.errors import InputError
from setsquare.rows.blocks import Block, quietly
from setsquare.rows.parallel import add_sums, n_cores, workers

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")
#: Returns a context manager whose value is called with the number of rows just read.
Progress: TypeAlias = Callable[[], AbstractContextManager[Callable[[int], None]]]


class Parts(ABC, Generic[T]):
    """Pieces of a table, or results computed from them: each is small, together they may exceed memory.

    Subclasses are records with a field ``functions``, which a pass applies to each piece, in order.
    """

    functions: tuple[Callable[[Any], Any], ...]

    def map(self, function: Callable[[T], U]) -> Parts[U]:
        """Apply ``function`` to each part, lazily: nothing is computed before a pass."""
        return replace(self, functions=(*self.functions, function))  # type: ignore[type-var, return-value]

    def reduce(self, kernel: Callable[[T], R], merge: Callable[[R, R], R]) -> R:
        """Merge the results of ``kernel`` for each part, in a fixed order, in one pass."""
        results = iter(self.map(kernel))
        for first in results:
            return reduce(merge, results, first)
        raise InputError("The source has no rows: pass files or batches with at least one row.")

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """Iterate over the parts, with a few at a time in memory."""

    def keep(self) -> Parts[T]:
        """Hold the parts in memory where possible: on the workers of a cluster."""
        return self


class Piece(NamedTuple):
    """A table, its number of rows, and its origin (for messages)."""

    table: Any
    n_rows: int
    origin: str


@dataclass(frozen=True, slots=True)
class LocalParts(Parts[T]):
    """Parts that this process reads again in each pass; its threads work on a few at a time.

    Examples
    --------
    >>> parts = LocalParts(lambda: (Piece(range(k), k, "") for k in (2, 3)))
    >>> parts.map(sum).reduce(float, lambda a, b: a + b)
    4.0
    >>> list(parts.map(len))
    [2, 3]
    """

    read: Callable[[], Iterator[Piece]]  # returns a new iterator
    functions: tuple[Callable[[Any], Any], ...] = ()
    progress: Progress | None = None

    def __iter__(self) -> Iterator[T]:
        # The calling thread reads, because the reader (such as a cursor) may belong to it; other threads compute.
        pending: deque[Any] = deque()
        with self.progress() if self.progress else nullcontext(lambda _: None) as tick:
            for piece in self.read():
                pending.append(workers().submit(apply, self.functions, piece))
                tick(piece.n_rows)
                if len(pending) > n_cores():
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()


class Source:
    """Tables with the same columns: files, batches, or partitions of a cluster."""

    columns: tuple[str, ...]
    n_rows: int | None = None  # if known without a pass
    is_named: bool = True  # whether columns have names; those of arrays do not

    def keep(self, columns: Sequence[str]) -> Source:
        """Hold these columns in memory where possible: on the workers of a cluster; others are read in each pass."""
        return self

    def parts(self, columns: Sequence[str], n_rows: int, progress: Progress | None) -> Parts[Table]:
        """Open tables of at most ``n_rows`` rows with these columns."""
        return LocalParts(partial(self._read, columns, n_rows), progress=progress)

    def _read(self, columns: Sequence[str], n_rows: int) -> Iterator[Piece]:
        raise NotImplementedError


def apply(functions: tuple[Callable[[Any], Any], ...], piece: Piece) -> Any:
    """Apply all functions to a piece; errors name the file or batch."""
    value = piece.table
    try:
        for function in functions:
            value = function(value)
    except InputError as error:
        if not piece.origin:
            raise
        raise type(error)(f"{str(error).rstrip('.')} (in {piece.origin}).") from None
    return value


@dataclass(frozen=True, slots=True)
class RowsInParts:
    """Rows that are read, or held by a cluster, in parts."""

    parts: Parts[Block]  # created again in each pass, because functions may change a block in place
    n_rows: int
    kept: Parts[Block] | None = None  # the same blocks, persisted for repeated passes

    def reduce(self, kernel: Callable[[Block], R], merge: Callable[[Any, Any], Any] = add_sums) -> R:
        """Merge the results of ``kernel`` for each nonempty block, in one pass."""

        def of_block(block: Block) -> R | None:
            return quietly(kernel, block) if len(block.weight) else None  # all rows of a batch may be incomplete

        def merged(a: R | None, b: R | None) -> R | None:
            return merge(a, b) if a is not None and b is not None else b if a is None else a

        return (self.kept or self.parts).reduce(of_block, merged)  # type: ignore[return-value]

    def map(self, change: Callable[[Block], Block]) -> RowsInParts:
        """Return rows with ``change`` applied to each block in each pass."""
        return RowsInParts(self.parts.map(change), self.n_rows)

    def keep(self) -> RowsInParts:
        """Hold the blocks in memory where possible: on the workers of a cluster."""
        return replace(self, kept=self.parts.keep())

    def in_memory(self) -> None:
        """Return None: the rows are never all in memory."""
        return

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())  # None: a kernel sent to a worker refers to the rows but never uses them
