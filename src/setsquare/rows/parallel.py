"""Sums over parts of the rows, in parallel and in a fixed order, so that results are reproducible."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache, reduce, wraps
from itertools import pairwise
from typing import Any, TypeVar, cast

import numpy as np
from threadpoolctl import LibController, ThreadpoolController

from setsquare._typing import Array

Sums = tuple[Array, ...]
T = TypeVar("T")
R = TypeVar("R")
Method = TypeVar("Method", bound=Callable[..., Any])
#: Size of a block: it is read from memory once and then from the cache; smaller blocks cost more calls than they save.
BLOCK_BYTES = 2**22
#: The same for rows that are held in memory, whose kernels make more calls.
HELD_BYTES = 2**23
#: Size of a block that, with its intermediate results, about fits the private cache of a core.
OWN_CACHE = 2**21
#: Half of the freed memory that a process keeps.
KEPT_BYTES = 2**23
#: Columns from which BLAS shares a product over the cores, not the blocks of rows: one sum of squares is held at once.
MANY_COLUMNS = 1000
#: Minimum bytes per core: with less, starting another thread costs more than it gains.
SHARE_BYTES = 2**22


def add_sums(a: Sums, b: Sums) -> Sums:
    """Add two tuples of arrays elementwise; infinite and NaN sums propagate without a warning."""
    with np.errstate(invalid="ignore", over="ignore"):
        return tuple(x + y for x, y in zip(a, b, strict=True))


def add_up(parts: Iterable[Sums]) -> Sums:
    """Add tuples of arrays elementwise."""
    return reduce(add_sums, parts)


def n_cores() -> int:
    """Number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def workers() -> ThreadPoolExecutor:
    """Thread pool for row blocks, with one thread per core."""
    return ThreadPoolExecutor(n_cores())


if hasattr(os, "register_at_fork"):  # a forked process inherits the pool, but not its threads
    os.register_at_fork(after_in_child=workers.cache_clear)


@cache
def _linear_algebra() -> tuple[LibController, ...]:
    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


_blas_limit = threading.Lock()


@cache
def keep_freed_memory() -> None:
    """Once per process, let the C library keep freed memory for the next arrays, instead of returning it to the system.

    glibc returns what is free at the end of its heap beyond twice the largest array that was ever freed. While all
    arrays of a fit are small, each pass over the rows would get its memory anew: a tenth to a third of its time. The
    array that is freed here is never written to. Other C libraries ignore it.
    """
    np.empty(KEPT_BYTES // 8)


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Limit BLAS to one thread, because the row blocks already use all cores.

    numpy and scipy each ship their own BLAS, whose idle threads spin and compete for the cores. The limit applies to
    the whole process: one caller at a time sets and resets it, and others, also those inside it, skip it.
    """
    libraries = _linear_algebra()
    if not _blas_limit.acquire(blocking=False):
        yield
        return
    before = [(library, library.num_threads) for library in libraries]
    try:
        for library, count in before:
            if count > 1:
                library.set_num_threads(1)
        yield
    finally:
        for library, count in before:
            if count > 1:
                library.set_num_threads(count)
        _blas_limit.release()


def by_blocks(method: Method) -> Method:
    """Let a method of an estimator call BLAS with one thread, unless the table has ``MANY_COLUMNS``.

    Between two passes over the blocks, a small factorisation would wake the threads of BLAS. They spin for a tenth of a
    second after it and compete with the threads of the blocks.
    """

    @wraps(method)
    def limited(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        wide = getattr(X, "shape", (0,))[-1] >= MANY_COLUMNS
        with nullcontext() if wide else single_threaded_blas():
            return method(self, X, *arguments, **options)

    return cast(Method, limited)


def share_out(work: Callable[[Sequence[T]], R], items: Sequence[T], merge: Callable[[Any, Any], Any] = add_sums) -> R:
    """Split the items into shares, call ``work`` on each in parallel, and merge the results.

    The results are merged in order, so they do not depend on thread timing. The calling thread processes shares as
    well, and does not wait for workers that have not started: it may be a worker itself.

    Examples
    --------
    >>> import numpy as np
    >>> share_out(lambda share: (np.array([sum(share)]),), range(100))
    (array([4950]),)
    """
    if len(items) == 1:  # a single small block: what follows would take longer than the work
        return work(items)
    count = min(len(items), 4 * n_cores())
    bounds = [len(items) * i // count for i in range(count + 1)]
    shares = iter(enumerate(pairwise(bounds)))
    sums: dict[int, R] = {}
    draw = threading.Lock()

    def run() -> None:
        while True:
            with draw:
                share = next(shares, None)
            if share is None:
                return
            position, (start, stop) = share
            sums[position] = work(items[start:stop])

    with single_threaded_blas():
        helpers = [workers().submit(run) for _ in range(min(n_cores(), len(items)) - 1)]
        run()
        for helper in helpers:
            if not helper.cancel():
                helper.result()
    return reduce(merge, (sums[position] for position in sorted(sums)))


def sum_over_rows(
    kernel: Callable[[slice, Array], Sums], n_rows: int, n_columns: int, block_bytes: int = OWN_CACHE
) -> Sums:
    """Add up the results of ``kernel`` for blocks of rows, in parallel.

    The kernel is called with a slice of rows and a float64 work array of ``n_columns`` values per row.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.ones((1000, 2))
    >>> sum_over_rows(lambda rows, memory: (A[rows].sum(axis=0),), 1000, 2)
    (array([1000., 1000.]),)
    """
    slices = list(row_slices(n_rows, n_columns, block_bytes)) or [slice(0, 0)]
    if len(slices) == 1:
        with np.errstate(invalid="ignore", over="ignore"):
            return kernel(slices[0], np.empty(n_rows * n_columns))

    def work(share: Sequence[slice]) -> Sums:
        memory = np.empty((share[0].stop - share[0].start) * n_columns)  # reused: allocating new pages is slow
        with np.errstate(invalid="ignore", over="ignore"):  # overflow shows as sums that are not finite
            total = tuple(map(np.array, kernel(share[0], memory)))
            for rows in share[1:]:
                for sum_, part in zip(total, kernel(rows, memory), strict=True):
                    np.add(sum_, part, out=sum_)  # in place: a new array for each block takes longer
            return total

    return share_out(work, slices)


def room(memory: Array, like: Array, n_columns: int) -> Array:
    """Part of ``memory`` as a matrix with as many rows as ``like``, in the same memory order."""
    n_rows = len(like)
    return memory[: n_rows * n_columns].reshape((n_rows, n_columns), order="F" if np.isfortran(like) else "C")


def row_slices(n_rows: int, n_columns: int, block_bytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Slices of rows whose float64 values fill ``block_bytes``, of at least a hundred rows.

    Examples
    --------
    >>> list(row_slices(5, 2**19))
    [slice(0, 5, None)]
    """
    step = max(100, block_bytes // (8 * max(n_columns, 1)))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))
