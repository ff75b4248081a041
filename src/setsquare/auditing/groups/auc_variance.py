"""Variance of an AUC with few positives or negatives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from setsquare._typing import Array
from setsquare.auditing.groups.intervals import Estimates

#: Degrees of freedom that the variance of Hanley and McNeil counts for beside the estimated one, and in Student's t.
WEIGHT, FREEDOM = 200.0, 10.0


def widen_auc(numbers: Estimates, positives: Array, negatives: Array, df: Array) -> Estimates:
    """AUCs with a variance that few positives or negatives cannot make too small.

    The estimated variance varies as much as the few rows that it comes from: it is 0 where all positives score
    higher than all negatives, and too small where the AUC is too large by chance. The variance of Hanley and McNeil
    (1982), for exponential scores, follows from the AUC and the numbers of rows alone. The mean of both, weighted by
    degrees of freedom, is used where it is larger than the estimated one.

    Parameters
    ----------
    numbers : Estimates
    positives, negatives : ndarray of shape (K,)
        Effective numbers of rows.
    df : ndarray of shape (K,)
        Degrees of freedom of the estimated variance.

    Examples
    --------
    >>> perfect = Estimates(np.ones(1), np.zeros((1, 1)), True, np.array([50.0]), np.array([49.0]))
    >>> found = widen_auc(perfect, np.array([5.0]), np.array([45.0]), np.zeros(1))
    >>> found.size.round(1).tolist()
    [9.8]
    """
    A, variance = numbers.value, np.diag(numbers.covariance)
    size = hanley_mcneil_size(A, positives, negatives)
    with np.errstate(all="ignore"):
        shared = (df * variance + WEIGHT * A * (1.0 - A) / size) / (df + WEIGHT)
        factor = np.sqrt(np.where((variance > 0.0) & (shared > variance), shared / variance, 1.0))
    C = numbers.covariance * factor * factor[:, None]
    return replace(numbers, covariance=C, size=size, df=df + FREEDOM)


def hanley_mcneil_size(area: Array, positives: Array, negatives: Array) -> Array:
    """Number of 0/1 values whose mean would have the variance of Hanley and McNeil; 0 without both outcomes.

    Which of the two outcomes has the heavier tail is unknown: the smaller size is taken.

    Examples
    --------
    >>> hanley_mcneil_size(np.array([0.75]), np.array([10.0]), np.array([40.0])).round(1).tolist()
    [20.5]
    """
    m, n = positives, negatives
    with np.errstate(all="ignore"):
        a, b = (1.0 - area) / (2.0 - area), area / (1.0 + area)
        spread = np.maximum(
            np.maximum(m - 1.0, 0.0) * a + np.maximum(n - 1.0, 0.0) * b,
            np.maximum(m - 1.0, 0.0) * b + np.maximum(n - 1.0, 0.0) * a,
        )
        return np.nan_to_num(m * n / (1.0 + spread))
