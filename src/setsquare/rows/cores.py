"""The cores of this machine, and work for those that are free."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

R = TypeVar("R")
_thread = threading.local()


def n_cores() -> int:
    """Number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_shared() -> bool:
    """Whether this thread works on a part of the rows while others work on theirs."""
    return getattr(_thread, "is_shared", False)


@contextmanager
def shared() -> Iterator[None]:
    """Work on a part of the rows while other threads work on theirs."""
    before = is_shared()
    mark_shared()
    try:
        yield
    finally:
        _thread.is_shared = before


def mark_shared() -> None:
    """The same for a thread that does nothing else."""
    _thread.is_shared = True


class Task(Generic[R]):
    """Work that another core does, unless the caller comes first: that core may be busy, or slow to wake.

    A thread pool of the standard library does more after each task, for which it takes the interpreter's lock from the
    caller: where a task takes a tenth of a millisecond, nothing was gained.
    """

    __slots__ = ("_begun", "_ended", "_error", "_found", "_work")

    def __init__(self, work: Callable[[], R]) -> None:
        self._work, self._begun, self._ended = work, threading.Lock(), threading.Lock()
        self._error: BaseException | None = None
        self._found: R | None = None
        self._ended.acquire()

    def run(self) -> None:
        """Do the work unless it has begun."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._found = self._work()
        except BaseException as error:
            self._error = error
        finally:
            del self._work
            self._ended.release()

    def drop(self) -> None:
        """Leave the work undone unless it has begun; otherwise wait for its end."""
        if not self._begun.acquire(blocking=False):
            self._wait()

    def result(self) -> R:
        """What the work returns; the caller does it unless it has begun."""
        self.run()
        self._wait()
        return self._found  # type: ignore[return-value]

    def _wait(self) -> None:
        with self._ended:
            if self._error is not None:
                raise self._error


@cache
def _tasks() -> SimpleQueue[Task[Any]]:
    """Tasks for the other cores, each of which has a thread that does them."""
    queue = SimpleQueue[Task[Any]]()

    def serve() -> None:
        mark_shared()
        while True:
            queue.get().run()

    for _ in range(max(1, n_cores() - 1)):  # one at least: the process may be given more cores later
        threading.Thread(target=serve, daemon=True).start()
    return queue


if hasattr(os, "register_at_fork"):  # a forked process inherits the queue, but not the threads
    os.register_at_fork(after_in_child=_tasks.cache_clear)


def hand_over(work: Callable[[], R]) -> Task[R]:
    """Let another core do some work, if one is free."""
    task = Task(work)
    _tasks().put(task)
    return task
