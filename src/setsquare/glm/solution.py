"""Solution of a fit: coefficients, status and trace, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from setsquare._typing import Array
from setsquare.glm.certificate import Certificate


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
    """

    intercept: Array
    coef: Array
    multipliers: Array
    status: Status
    n_iter: int
    trace: tuple[Step, ...]
    certificate: Certificate
    solver: str

    def __str__(self) -> str:
        return f"{self.solver}, {self.n_iter} iteration(s): {self.status}\n{self.certificate}"
