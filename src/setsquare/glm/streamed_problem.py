"""What is to be solved where the rows are read in parts and never held together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.glm.problem import refuse_constant
from setsquare.rows import Parts
from setsquare.rows.blocks import Block, Sums, add_up
from setsquare.tables.validation import check_l2, check_offset, check_weight_values, refuse_zero_weight


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What rows say of outcome, weights and offset; of all rows, once merged.

    Attributes
    ----------
    n_rows : int
    weight : float
        Sum of the weights, or the number of rows.
    first, second : ndarray of shape (1,) or (K,)
        Weighted sums of the outcome and of its square; for classes, the weight of each.
    low, high : float
        Range of the outcome where the weight is positive.
    offset, top : float or None
        Weighted sum and largest value of the offset.
    """

    n_rows: int
    weight: float
    first: Array
    second: Array
    low: float
    high: float
    offset: float | None = None
    top: float = -np.inf

    @classmethod
    def of(cls, y: Array, weight: Array | None = None, offset: Array | None = None) -> Outcomes:
        """Outcome (n,), or shares of classes (n, K), with weights (n,) and an offset (n,)."""
        w = np.ones(len(y)) if weight is None else weight
        check_weight_values(w)
        if offset is not None:
            check_offset(offset)
        counted = y[w > 0.0]
        with np.errstate(over="ignore"):
            total = float(w.sum())  # refused once all rows are read, should it be infinite
            first, second = np.atleast_1d(w @ y), np.atleast_1d(w @ y**2)
        return cls(
            len(y),
            total,
            first,
            second,
            float(counted.min(initial=np.inf)),
            float(counted.max(initial=-np.inf)),
            None if offset is None else float(w @ offset),
            -np.inf if offset is None else float(offset.max(initial=-np.inf)),
        )

    def merge(self, other: Outcomes) -> Outcomes:
        """What the rows of both say."""
        return Outcomes(
            self.n_rows + other.n_rows,
            self.weight + other.weight,
            self.first + other.first,
            self.second + other.second,
            min(self.low, other.low),
            max(self.high, other.high),
            None if self.offset is None or other.offset is None else self.offset + other.offset,
            max(self.top, other.top),
        )


@dataclass(frozen=True, slots=True)
class StreamedProblem:
    """A :class:`setsquare.glm.problem.Problem` whose rows are parts of a source.

    Parameters
    ----------
    blocks : Parts of Block
        Features behind a column of ones, outcome (b, k), protected columns, weights that sum to one over all parts,
        offset; without a basis. Each pass must make them anew, because they are changed in place.
    outcomes : Outcomes
        Of all rows.
    family : Family
    feature_names, protected_names : tuple of str
    l2 : float
    quasi : bool
        Take the outcome as it is, even where the family cannot produce it.
    """

    blocks: Parts[Block]
    outcomes: Outcomes
    family: Family
    feature_names: tuple[str, ...]
    protected_names: tuple[str, ...] = ()
    l2: float = 0.0
    quasi: bool = False

    def __post_init__(self) -> None:
        if not self.outcomes.weight > 0.0:
            refuse_zero_weight()
        if not np.isfinite(self.outcomes.weight):
            raise InputError("The sample weights add up to more than float64 holds: divide them by the largest.")
        check_l2(self.l2)
        if self.family.is_vector and not (self.outcomes.first > 0.0).all():
            raise InputError("Each class needs a row of positive weight: give it rows or leave it out.")
        if not self.family.is_vector and self.outcomes.low >= self.outcomes.high:
            refuse_constant(self.outcomes.low, self.family)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.outcomes.n_rows

    @property
    def n_predictors(self) -> int:
        """Linear predictors a row: 1, or classes minus one."""
        return len(self.outcomes.first) - 1 if self.family.is_vector else 1

    @property
    def has_offset(self) -> bool:
        """Whether the linear predictor has an offset."""
        return self.outcomes.offset is not None

    def mean_outcome(self) -> Array:
        """Weighted mean of the outcome, (1,), or share of each class, (K,)."""
        return self.outcomes.first / self.outcomes.weight

    def outcome_spread(self) -> float:
        """Standard deviation of the outcome, over all its columns."""
        mean = self.mean_outcome()
        return float(np.sqrt(max(float((self.outcomes.second / self.outcomes.weight - mean**2).sum()), 0.0)))


def add_sums(a: Sums, b: Sums) -> Sums:
    """Merge the sums of two parts."""
    return add_up(iter((a, b)))
