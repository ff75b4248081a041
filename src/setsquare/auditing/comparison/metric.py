"""A metric with its influence function, which gives standard errors, intervals and paired comparisons.

A :class:`Metric` is a value with its influence function, scaled so that to first order

    value - truth  =  sum_i influence_i,      rows (or clusters of rows) being independent.

So one formula gives every standard error, ``sqrt(G/(G-1) sum_g (sum_{i in g} influence_i)^2)`` for G rows or clusters,
and the difference of two influences gives that of a paired comparison. For the AUC it is DeLong's, up to a relative
difference of 1/n. Weights are sampling weights: their scale does not matter. Intervals are symmetric on an unbounded
scale, so they stay in range; a value on the boundary (accuracy 1, RMSE 0) or undefined (AUC of one class) has NaN for
its standard error and interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.special import expit, logit, stdtr, stdtrit

from setsquare._typing import Array, ArrayLike
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.rows.blocks import mean_weight
from setsquare.tables.validation import check_finite, read_cluster, read_weight

Scale: TypeAlias = Literal["identity", "log", "logit", "log rest"]
#: Transformation to the scale of the interval, its derivative, its inverse. Values within rounding of a bound equal it.
SCALES: dict[Scale, tuple[Callable[[Any], Any], ...]] = {
    "identity": (np.positive, np.ones_like, np.positive),
    "log": (np.log, np.reciprocal, np.exp),
    "logit": (logit, lambda v: 1.0 / np.round(v * (1.0 - v), 14), expit),
    "log rest": (lambda v: np.log(1.0 - v), lambda v: 1.0 / (v - 1.0), lambda t: 1.0 - np.exp(t)),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A value with the influence of each row.

    Attributes
    ----------
    name : str
    value : float
    influence : ndarray of shape (n,)
    higher_is_better : bool, or None for calibration
    scale : str
        Scale on which its interval is symmetric; "log rest" is ``log(1 - value)``.
    n_infinite : int
        Rows that make a deviance infinite, or that a calibration slope leaves out: their link is not finite.
    """

    name: str
    value: float
    influence: Array
    higher_is_better: bool | None = None
    scale: Scale = "identity"
    n_infinite: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its standard error (NaN if unknown); a paired difference also has a two-sided p-value."""

    estimate: float
    std_error: float = np.nan
    ci_low: float = np.nan
    ci_high: float = np.nan
    p_value: float = np.nan


def interval(metric: Metric, confidence: float = 0.95, cluster: ArrayLike | None = None) -> Interval:
    """Confidence interval from Student's t; the degrees of freedom are the number of rows or clusters minus one.

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare.auditing.comparison.performance import performance
    >>> accuracy = performance(np.array([0, 0, 1, 1, 1]), np.array([0.1, 0.7, 0.6, 0.8, 0.9]), "binomial")[0]
    >>> accuracy.value, round(interval(accuracy).ci_high, 3)
    (0.8, 0.992)
    """
    std_error, df = _error(metric.influence, cluster)
    there, slope, back = SCALES[metric.scale]
    with np.errstate(all="ignore"):  # a bound of the range is infinite on the scale
        value = np.float64(metric.value)
        centre, half = there(value), stdtrit(df, 0.5 + 0.5 * confidence) * std_error * slope(value)
        ends = back(centre + half * np.array([-1.0, 1.0]))
        if not np.isfinite(centre + half):
            return Interval(metric.value)
    return Interval(metric.value, std_error, float(ends.min()), float(ends.max()))


def difference(a: Metric, b: Metric, confidence: float = 0.95, cluster: ArrayLike | None = None) -> Interval:
    """Paired difference ``a - b`` of two models on the same rows; NaN where neither metric has an interval.

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare.auditing.comparison.performance import performance
    >>> y, good, poor = np.array([1.0, 2, 3, 4]), np.array([1.1, 2, 2.8, 4.1]), np.array([1.5, 1.5, 2, 5])
    >>> found = difference(*(performance(y, prediction, "gaussian")[0] for prediction in (good, poor)))
    >>> round(found.estimate, 2), round(found.p_value, 3)
    (-0.67, 0.01)
    """
    if (a.name, a.influence.shape) != (b.name, b.influence.shape):
        raise InputError(f"{a.name} and {b.name} are not paired: pass the same metric of two models on the same rows.")
    estimate = a.value - b.value
    std_error, df = _error(a.influence - b.influence, cluster)
    if not np.isfinite(estimate + std_error) or all(np.isnan(interval(one).std_error) for one in (a, b)):
        return Interval(estimate)
    half = float(stdtrit(df, 0.5 + 0.5 * confidence)) * std_error
    # With zero variance any difference is certain.
    p_value = 2.0 * float(stdtr(df, -abs(estimate) / std_error)) if std_error > 0.0 else float(estimate == 0.0)
    return Interval(estimate, std_error, estimate - half, estimate + half, p_value)


def _error(influence: Array, cluster: ArrayLike | None) -> tuple[float, int]:
    """Standard error and its degrees of freedom."""
    sums = influence if cluster is None else np.bincount(read_cluster(cluster, len(influence)), influence)
    df = len(sums) - 1
    return (float(np.linalg.norm(sums) * np.sqrt((df + 1) / df)) if df else np.nan), df


def mean_metric(
    name: str, units: Array, w: Array, higher_is_better: bool | None = None, scale: Scale = "identity"
) -> Metric:
    """Weighted mean of one value per row, as a metric."""
    value = float(w @ units)
    return Metric(name, value, w * (units - value), higher_is_better, scale)


def midranks(score: Array, *weights: Array) -> tuple[Array, ...]:
    """Weight of the rows with a smaller score, plus half the weight of ties, for each row."""
    place = np.unique(score, return_inverse=True)[1]
    sums = (np.bincount(place, weight) for weight in weights)
    return tuple((np.cumsum(each) - 0.5 * each)[place] for each in sums)


def read_pair(y: Array, mu: Array, glm: Family, weight: Array | None) -> tuple[Array, Array, Array]:
    """Outcome and prediction in one shape, (n,) or (n, K), and weights that sum to one."""
    y, mu = np.asarray(y, dtype=np.float64), np.asarray(mu, dtype=np.float64)
    if glm.is_vector and (y.ndim, mu.ndim) == (1, 2):
        y = (y[:, None] == np.arange(mu.shape[1])).astype(np.float64)
    if y.shape != mu.shape or y.ndim != 1 + glm.is_vector or not y.size:
        raise InputError(
            f"The outcome has the shape {y.shape} and the prediction {mu.shape}: give both for the same rows, "
            f"with {'a column for each class' if glm.is_vector else 'one column'} for the {glm.name} family."
        )
    for part, name in ((y, "the outcome"), (mu, "the prediction")):
        check_finite(part.reshape(-1, 1), (name,), "")
    glm.check_outcome(y)
    if glm.is_vector and np.abs(y.sum(axis=1) - 1.0).max() > 1e-6:
        raise InputError(f"Number the classes 0 to {mu.shape[1] - 1}, like the columns, or pass shares that sum to 1.")
    return y, mu, mean_weight(len(y), read_weight(weight, len(y)))


def link_scale(family: Family) -> Scale:
    """Scale of the canonical link, on which intervals of a mean outcome stay in range."""
    return "logit" if family.name == "binomial" else "identity" if family.name == "gaussian" else "log"
