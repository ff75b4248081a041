"""Measurements of a fit that hold its rows until they are first read.

Dense features of the user that are large are held as they are, without a copy. So that several fits together do not
keep more memory than one would, a fit to large rows first makes the measurements of the large fit before it; those
that would take longer than the fit are given up.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from setsquare.glm.deferred import Deferred
from setsquare.glm.newton import Iterate
from setsquare.glm.objective import Objective
from setsquare.glm.problem import Problem
from setsquare.rows.parallel import single_threaded_blas

T = TypeVar("T")
#: Size of the rows, in bytes, up to which any number of solutions may hold theirs; above it one solution at a time.
MOST_KEPT = 2**27
#: Relative change of the loss at the solution that shows that the rows were changed after the fit.
CHANGED = 1e-9


_large: list[tuple[weakref.ref[Deferred[Any]], Callable[[Deferred[Any]], Any]]] = []
_guard = threading.Lock()


def is_held(problem: Problem) -> bool:
    """Whether the rows are in memory."""
    return problem.rows.in_memory() is not None


def is_large(problem: Problem) -> bool:
    """Whether the rows are in memory, and only one solution at a time may hold as many."""
    blocks = problem.rows.in_memory()
    return blocks is not None and sum(map(sys.getsizeof, blocks)) > MOST_KEPT


def settle_large() -> None:
    """Make the measurements that still hold large rows, or give them up, which releases the rows."""
    with _guard:
        waiting = [(held(), end) for held, end in _large]
        _large.clear()
    for deferred, end in waiting:
        if deferred is not None:
            end(deferred)


def _read(deferred: Deferred[Any]) -> Any:
    return deferred.value


def are_same(objective: Objective, end: Iterate, loss: float) -> bool:
    """Whether rows with this loss at the solution, without a barrier, are those of the fit."""
    return abs(loss - end.model.loss) <= CHANGED * max(abs(end.model.loss), objective.start.curvature)


def defer(
    problem: Problem,
    objective: Objective,
    end: Iterate,
    compute: Callable[[], T],
    lost: T,
    *,
    checked: bool = False,
    slow: bool = False,
) -> Deferred[T]:
    """Value of ``compute``, which reads the rows: later for rows in memory, else now.

    Arrays of the user that were overwritten after the fit give ``lost``: the loss at the solution shows it. A function
    that has seen to this itself is ``checked``. A ``slow`` one of large rows is ``lost`` when another large fit begins.
    """
    if not is_held(problem):
        return Deferred(compute())
    plain = objective.fenced(0.0) if objective.barrier else objective

    def later() -> T:
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            same = checked or are_same(plain, end, plain.values(end.theta).loss)
            return compute() if same else lost

    deferred: Deferred[T] = Deferred(later)
    if is_large(problem):
        with _guard:
            _large.append((weakref.ref(deferred), partial(Deferred.give_up, value=lost) if slow else _read))
    return deferred
