"""Solution of a fit: coefficients, status and trace, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from setsquare._typing import Array, BoolArray
from setsquare.glm.certificate import Certificate
from setsquare.glm.deferred import Deferred
from setsquare.glm.problem import Problem


class Status(StrEnum):
    """How a solver ended."""

    CONVERGED = "converged"
    FLAT = "converged on the loss; some coefficients are hardly determined by the data"
    MAX_ITER = "stopped at the largest number of iterations"
    STALLED = "no further progress was possible"
    NO_INFORMATION = "too few rows for the features: most rows determine their own predictions"
    NOT_REACHED = "the leave-one-out correlation could not be brought to zero"
    INFEASIBLE = "no coefficients were found that meet the constraint with this offset"


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration.

    Attributes
    ----------
    iteration : int
    loss : float
    constraint : float
        Largest covariance with the basis of the protected columns.
    kkt : float
        Relative size of the gradient of the Lagrangian.
    length : float
        Share of the step that was taken.
    corrected : bool
        Whether the Hessian's inertia had to be corrected on the tangent space.
    """

    iteration: int
    loss: float
    constraint: float
    kkt: float
    length: float
    corrected: bool


class StandardErrors(NamedTuple):
    """Standard errors of intercepts and coefficients.

    Attributes
    ----------
    std_error : ndarray of shape (k, 1 + q)
        NaN for aliased features.
    few_rows : ndarray of bool of shape (k, 1 + q)
        Whether a coefficient rests on so few rows, or clusters, that it is not nearly linear in their weights.
    """

    std_error: Array
    few_rows: BoolArray


class Refits(NamedTuple):
    """Results of refits to resampled rows.

    Attributes
    ----------
    std_error : ndarray of shape (k, 1 + q)
        Standard deviations of intercepts and coefficients; NaN for coefficients that fewer than two refits determine.
    precision : ndarray of shape (k, 1 + q)
        Relative standard errors of these standard deviations, which are larger where refits have heavy tails, and
        smaller where coefficients are nearly linear in the counts of the rows.
    drawn_error : ndarray of shape (k, 1 + q)
        Standard deviations of the drawn coefficients as they are.
    n_refits : int
        Refits that ended with a solution.
    n_failed : int
        Resamples without one, for example because a level or a class does not occur in them.
    """

    std_error: Array
    precision: Array
    drawn_error: Array
    n_refits: int
    n_failed: int


class HeldProblem:
    """Problem of a fit for refits, as long as its solution is in memory, and what refits found.

    A saved or pickled one has no rows, and keeps what was found.
    """

    __slots__ = ("found", "problem")

    def __init__(self, problem: Problem | None = None, found: Refits | None = None) -> None:
        self.problem, self.found = problem, found

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldProblem, (None, self.found)

    def __copy__(self) -> HeldProblem:
        return self

    def __deepcopy__(self, memo: Any) -> HeldProblem:
        return self


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients, status and certificate of a fit.

    Attributes
    ----------
    intercept : ndarray of shape (k,)
    coef : ndarray of shape (k, q)
        Coefficients on the scale of the original features; k is 1, or the number of classes (sums to zero over
        classes).
    multipliers : ndarray of shape (r, k)
        Lagrange multipliers of the constraint in the basis of the protected columns (for classes, in contrasts).
    status : Status
    n_iter : int
    trace : tuple of Step
    certificate : Certificate
    solver : str
    errors : Deferred
        Standard errors of intercepts and coefficients, or None; read them as ``std_error`` and ``few_rows``.
    by_cluster : bool
        Whether they are cluster-robust.
    n_clusters : int or None
        Number of clusters, if so; None also for models saved by an earlier version.
    refits : HeldProblem
        For the standard errors of coefficients that rest on few rows.
    """

    intercept: Array
    coef: Array
    multipliers: Array
    status: Status
    n_iter: int
    trace: tuple[Step, ...]
    certificate: Certificate
    solver: str
    errors: Deferred[StandardErrors | None] = field(
        default_factory=lambda: Deferred[StandardErrors | None](None), repr=False, compare=False
    )
    by_cluster: bool = False
    n_clusters: int | None = None
    refits: HeldProblem = field(default_factory=HeldProblem, repr=False, compare=False)

    @property
    def std_error(self) -> Array | None:
        """Sandwich standard errors (k, 1 + q) of intercepts and coefficients, computed when first read.

        None if they were not measured: other solvers than sqp, rows that were not in memory, or arrays that were
        overwritten after the fit.
        """
        found = self.errors.value
        return None if found is None else found.std_error

    @property
    def few_rows(self) -> BoolArray | None:
        """Coefficients (k, 1 + q) that rest on so few rows that ``std_error`` can be far off; None as there."""
        found = self.errors.value
        return None if found is None else found.few_rows

    def __str__(self) -> str:
        return f"{self.solver}, {self.n_iter} iteration(s): {self.status}\n{self.certificate}"
