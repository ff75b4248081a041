"""Mergeable summary of outcome, weights and offset."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from setsquare._typing import Array
from setsquare.tables.validation import check_offset, check_weight_values


@dataclass(frozen=True, slots=True)
class OutcomeSummary:
    """Summary of outcome, weights and offset over some rows; summaries of further rows can be merged.

    Attributes
    ----------
    n_rows : int
        Rows of positive weight.
    weight : float
        Sum of the weights; without weights, the number of rows.
    mean : ndarray of shape (1,) or (K,)
        Weighted mean of the outcome; for classes, the share of each.
    scatter : float
        Weighted sum of the squared distances from the mean.
    low, high : float
        Range of the outcome where the weight is positive.
    offset : ndarray of shape (k,) or None
        Weighted sum of the offset.
    top : float
        Largest value of the offset.

    Examples
    --------
    >>> import numpy as np
    >>> parts = OutcomeSummary.of(np.array([1.0, 2.0])).merge(OutcomeSummary.of(np.array([6.0])))
    >>> parts.mean, parts.spread.__round__(6)
    (array([3.]), 2.160247)
    """

    n_rows: int
    weight: float
    mean: Array
    scatter: float
    low: float
    high: float
    offset: Array | None = None
    top: float = -np.inf

    @classmethod
    def of(cls, y: Array, weight: Array | None = None, offset: Array | None = None) -> OutcomeSummary:
        """Summarise an outcome (n,), or class shares (n, K), with weights (n,) and an offset (n,) or (n, k)."""
        w = np.ones(len(y)) if weight is None else weight
        check_weight_values(w)
        if offset is not None:
            check_offset(offset)
        Y, counted = y.reshape(len(y), -1), y if weight is None or w.all() else y[w > 0.0]
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(w.sum())  # if infinite, an error is raised after all rows are read
            mean = w @ Y / total if total > 0.0 else np.zeros(Y.shape[1])
            scatter = float(np.sum(w @ (Y - mean) ** 2))
        return cls(
            len(counted),
            total,
            mean,
            scatter,
            float(counted.min(initial=np.inf)),
            float(counted.max(initial=-np.inf)),
            None if offset is None else w @ offset.reshape(len(y), -1),
            -np.inf if offset is None else float(offset.max(initial=-np.inf)),
        )

    def merge(self, other: OutcomeSummary) -> OutcomeSummary:
        """Combine with the summary of other rows."""
        total = self.weight + other.weight
        share = other.weight / total if total > 0.0 else 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            scatter = self.scatter + other.scatter + float(step @ step) * self.weight * share
        return OutcomeSummary(
            self.n_rows + other.n_rows,
            total,
            self.mean + share * step,
            scatter,
            min(self.low, other.low),
            max(self.high, other.high),
            None if self.offset is None or other.offset is None else self.offset + other.offset,
            max(self.top, other.top),
        )

    def of_classes(self, weights: Array) -> OutcomeSummary:
        """Summary of a categorical outcome with these class weights (K,); for two classes, that of the second, (1,)."""
        share = weights / self.weight
        return replace(self, mean=share, scatter=self.weight * float(share @ (1.0 - share)), low=0.0, high=1.0)

    @property
    def spread(self) -> float:
        """Standard deviation of the outcome, over all its columns."""
        return float(np.sqrt(self.scatter / self.weight))
