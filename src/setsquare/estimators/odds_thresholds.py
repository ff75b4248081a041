"""Equalised odds from scores: the same true- and false-positive rates in each group (Hardt, Price and Srebro, 2016).

Decisions by a threshold trace the ROC curve of a group; mixing two thresholds reaches its convex hull, and mixing with
a coin every point between the hull and the diagonal. What all groups can reach is below the lowest of their hulls. The
point of that boundary with the smallest cost is taken, and each group gets the mixture that reaches it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from setsquare._typing import Array, IntArray


class Mixture(NamedTuple):
    """Rule of one group: a probability of selection for each score.

    Scores of at least ``high`` are selected, those from ``low`` on with probability ``between``; but a share ``coin``
    of all rows is selected with probability ``coin_rate``, whatever the score.
    """

    group: str
    n: int
    low: float
    high: float
    between: float
    coin: float
    coin_rate: float

    def probability(self, s: Array) -> Array:
        """Probability of selection of each score."""
        ruled = np.where(s >= self.high, 1.0, np.where(s >= self.low, self.between, 0.0))
        return np.asarray((1.0 - self.coin) * ruled + self.coin * self.coin_rate)


class Hull(NamedTuple):
    """Upper convex hull of a ROC curve: false- and true-positive rates, from (0, 0) to (1, 1), and their thresholds."""

    fpr: Array
    tpr: Array
    threshold: Array


def hull_of(s: Array, y: Array, w: Array) -> Hull:
    """Convex hull of the ROC curve of scores for outcomes of 0 and 1, with weights.

    Examples
    --------
    >>> hull = hull_of(np.array([0.9, 0.8, 0.3, 0.1]), np.array([1.0, 0.0, 1.0, 0.0]), np.ones(4))
    >>> hull.fpr, hull.tpr
    (array([0. , 0. , 0.5, 1. ]), array([0. , 0.5, 1. , 1. ]))
    """
    values, place = np.unique(-s, return_inverse=True)
    positive, negative = (np.bincount(place, w * part) for part in (y, 1.0 - y))
    tpr = np.concatenate([[0.0], np.cumsum(positive) / positive.sum()])
    fpr = np.concatenate([[0.0], np.cumsum(negative) / negative.sum()])
    threshold = np.concatenate([[np.inf], -values])
    kept = _upper(fpr, tpr)
    return Hull(fpr[kept], tpr[kept], threshold[kept])


def _upper(x: Array, y: Array) -> IntArray:
    """Positions of the points of the upper convex hull of a curve that rises from left to right."""
    kept: list[int] = []
    for j in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (x[b] - x[a]) * (y[j] - y[a]) < (y[b] - y[a]) * (x[j] - x[a]):
                break
            kept.pop()
        kept.append(j)
    return np.array(kept, dtype=np.intp)


def meet(hulls: list[Hull], positive: float, threshold: float) -> tuple[float, float]:
    """False- and true-positive rate that all groups can reach, with the smallest cost.

    A false positive costs ``threshold`` and a false negative ``1 - threshold``, so that 0.5 maximises accuracy;
    ``positive`` is the share of positive outcomes.
    """
    corners = np.unique(np.concatenate([hull.fpr for hull in hulls]))
    x = np.unique(np.concatenate([corners, *_crossings(hulls)]))
    y = np.min([_tpr(hull, x) for hull in hulls], axis=0)
    cost = threshold * (1.0 - positive) * x + (1.0 - threshold) * positive * (1.0 - y)
    best = int(np.argmin(cost))
    return float(x[best]), float(y[best])


def _tpr(hull: Hull, x: Array) -> Array:
    """Largest true-positive rate of a hull at false-positive rates; the hull may rise at 0 at once."""
    first = int(np.searchsorted(hull.fpr, 0.0, "right")) - 1
    return np.interp(x, hull.fpr[first:], hull.tpr[first:])


def _crossings(hulls: list[Hull]) -> list[Array]:
    """False-positive rates at which two hulls cross: corners of the boundary of what all can reach."""
    found = []
    for i, one in enumerate(hulls):
        for other in hulls[:i]:
            x = np.unique(np.concatenate([one.fpr, other.fpr]))
            gap = _tpr(one, x) - _tpr(other, x)
            k = np.flatnonzero(gap[:-1] * gap[1:] < 0.0)
            found.append(x[k] + (x[k + 1] - x[k]) * gap[k] / (gap[k] - gap[k + 1]))
    return found


def mix(group: str, n: int, hull: Hull, fpr: float, tpr: float) -> Mixture:
    """Rule that reaches a point below the hull."""
    top = float(_tpr(hull, np.array([fpr]))[0])
    coin = 0.0 if top <= fpr else float(np.clip((top - tpr) / (top - fpr), 0.0, 1.0))
    at = int(np.clip(np.searchsorted(hull.fpr, fpr, "right"), 1, len(hull.fpr) - 1))
    span = hull.fpr[at] - hull.fpr[at - 1]
    between = float((fpr - hull.fpr[at - 1]) / span) if span > 0.0 else 1.0
    low, high = float(hull.threshold[at]), float(hull.threshold[at - 1])
    return Mixture(group, n, low, high, between, coin, fpr)
