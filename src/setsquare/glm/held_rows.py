"""Measurements of a fit that hold its rows until they are first read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from setsquare.glm.deferred import Deferred
from setsquare.glm.newton import Iterate
from setsquare.glm.objective import Objective
from setsquare.glm.problem import Problem
from setsquare.rows.parallel import single_threaded_blas

T = TypeVar("T")
#: Largest size of the rows, in bytes, that a solution may hold until all its measurements are read.
MOST_KEPT = 2**27
#: Relative change of the loss at the solution that shows that the rows were changed after the fit.
CHANGED = 1e-9


def is_held(problem: Problem) -> bool:
    """Whether the rows are in memory and small enough to be held."""
    blocks = problem.rows.in_memory()
    return blocks is not None and sum(map(sys.getsizeof, blocks)) <= MOST_KEPT


def are_same(objective: Objective, end: Iterate, loss: float) -> bool:
    """Whether rows with this loss at the solution, without a barrier, are those of the fit."""
    return abs(loss - end.model.loss) <= CHANGED * max(abs(end.model.loss), objective.start.curvature)


def defer(
    problem: Problem, objective: Objective, end: Iterate, compute: Callable[[], T], lost: T, *, checked: bool = False
) -> Deferred[T]:
    """Value of ``compute``, which reads the rows: later for rows in memory that are not large, else now.

    Arrays of the user that were overwritten after the fit give ``lost``: the loss at the solution shows it. A function
    that has seen to this itself is ``checked``.
    """
    if not is_held(problem):
        return Deferred(compute())
    plain = objective.fenced(0.0) if objective.barrier else objective

    def later() -> T:
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            same = checked or are_same(plain, end, plain.values(end.theta).loss)
            return compute() if same else lost

    return Deferred(later)
