"""Spread and skewness of a group's values, with what the other groups say about them.

A mean of few skewed values is too small together with its standard error whenever the sample has missed the long tail,
and nothing in the sample says so. Other groups have the same kind of values: scores of one model. Their tail says how
long this group's may be. So each group counts some rows of the pooled shape beside its own: rows whose variance is
``phi m (1 - m)`` for values between 0 and 1 with mean m (it cannot exceed ``m (1 - m)``), and whose skewness, towards
the further end, is that of all groups together. The variance is never made smaller; each end of an interval takes the
skewness, own or shared, that makes it longer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.auditing.groups.intervals import Estimates

#: Rows of the pooled shape that count for the variance, and for the skewness.
ROWS_SPREAD, ROWS_SKEWNESS = 50.0, 200.0
#: Skewness over the root of the number of rows; at 1 a single row has all of the variance. Above these limits, in all
#: groups together or in one, a few rows decide. Without bounds of the values, a skewness above 6 cannot be learnt.
POOL_LIMIT, OWN_LIMIT, UNBOUNDED_LIMIT = 0.3, 0.6, 6.0


def share_shape(numbers: Estimates, skewness: Array) -> Estimates:
    """Means of values that are not 0 and 1, with shared variances and skewnesses.

    Parameters
    ----------
    numbers : Estimates
        Means with the variances of their own groups.
    skewness : ndarray of shape (K,)
        Skewness of each group's values; NaN where it is unknown.

    Examples
    --------
    A group of 50 rows that has no large score beside one that has some:

    >>> C, many = np.diag([2e-6, 4e-4]), np.full(2, 50.0)
    >>> alone = Estimates(np.array([0.02, 0.06]), C, True, many, many - 1.0)
    >>> found = share_shape(alone, np.array([0.1, 5.0]))
    >>> found.error.round(4).tolist(), found.skewness.round(1).tolist()
    ([0.0073, 0.02], [[0.1, 5.0], [7.6, 6.3]])
    """
    known = _known(numbers, skewness)
    if not known.any():
        return replace(numbers, skewness=np.array([skewness, skewness]))
    n, own = numbers.size[known], np.diag(numbers.covariance)[known] * numbers.size[known]
    unit = float(own.max())  # cubes of large values would overflow
    own, third = own / unit, _third(skewness[known], own / unit, n)
    direction, expected = np.ones(len(n)), own
    if numbers.is_rate:
        m = numbers.value[known]
        direction = np.where(m < 0.5, 1.0, -1.0)
        expected = m * (1.0 - m) * np.sum(n * own) / max(float(np.sum(n * m * (1.0 - m))), 1e-300)
    shared = direction * _pooled(direction, third, own, n)
    wider = np.maximum(own, (n * own + ROWS_SPREAD * expected) / (n + ROWS_SPREAD))
    cubes, squares = (
        (n * x + ROWS_SKEWNESS * y) / (n + ROWS_SKEWNESS) for x, y in ((third, shared * expected**1.5), (own, expected))
    )
    blend = cubes / squares**1.5
    both = np.array([skewness, skewness])
    both[:, known] = np.minimum(skewness[known], blend), np.maximum(skewness[known], blend)
    factor = np.ones(len(skewness))
    factor[known] = np.sqrt(wider / own)
    doubtful = np.zeros(len(skewness), dtype=bool)
    doubtful[known] = _doubtful(skewness[known], float(shared[0]), n, numbers.is_rate)
    return replace(
        numbers, covariance=numbers.covariance * factor * factor[:, None], skewness=both, is_doubtful=doubtful
    )


def _known(numbers: Estimates, skewness: Array) -> BoolArray:
    """Groups whose values vary, and have a skewness."""
    inside = (numbers.value > 0.0) & (numbers.value < 1.0) if numbers.is_rate else np.isfinite(numbers.value)
    return inside & (numbers.size > 2.0) & (np.diag(numbers.covariance) > 0.0) & np.isfinite(skewness)


def _third(skewness: Array, variance: Array, n: Array) -> Array:
    """Third central moment in the rows at hand, without the correction of the skewness for few rows."""
    return skewness * (n - 2.0) / np.sqrt(n * (n - 1.0)) * variance**1.5


def _pooled(direction: Array, third: Array, variance: Array, n: Array) -> float:
    """Skewness of the values of all groups around their means."""
    total = float(n.sum())
    return float(np.sum(n * direction * third) / total / (np.sum(n * variance) / total) ** 1.5)


def _doubtful(skewness: Array, shared: float, n: Array, bounded: bool) -> BoolArray:
    """Groups in which a few rows decide on mean and variance, and the other groups do not help."""
    own, pool = np.abs(skewness), abs(shared)
    alone = (own > 2.0 * pool) | (not bounded and pool > UNBOUNDED_LIMIT)
    return np.asarray((pool / np.sqrt(n.sum()) > POOL_LIMIT) | ((own / np.sqrt(n) > OWN_LIMIT) & alone))
