"""Performance metrics and calibration, with influence functions that give standard errors and paired comparisons.

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
from setsquare.auditing.comparison.predicted_rows import PredictedRows
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.families import family as look_up
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Status, solve
from setsquare.rows.blocks import mean_weight
from setsquare.rows.products import weighted_gram
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


def performance(y: Array, prediction: Array, family: str | Family, weight: Array | None = None) -> tuple[Metric, ...]:
    """Metrics of predicted means.

    binomial: accuracy (threshold 0.5), auc, brier, deviance; multinomial: accuracy, auc (mean of one against the rest),
    deviance; gaussian: rmse, r2; others: rmse, deviance. A deviance is a mean, infinite if a prediction is impossible.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Outcome (a share counts partly as each outcome); for several classes the numbers 0, 1, ... or shares (n, K).
    prediction : ndarray of shape (n,), or (n, K) for several classes
    family : str or Family
    weight : ndarray of shape (n,), optional

    Examples
    --------
    >>> import numpy as np
    >>> [(one.name, round(one.value, 2)) for one in performance(np.array([0, 3]), np.array([0.5, 2.0]), "poisson")]
    [('rmse', 0.79), ('deviance', 0.72)]
    """
    glm = look_up(family)
    y, mu, w = read_pair(y, prediction, glm, weight)
    if glm.name in ("binomial", "multinomial"):
        right = y[np.arange(len(y)), mu.argmax(axis=1)] if glm.is_vector else np.where(mu > 0.5, y, 1.0 - y)
        brier = () if glm.is_vector else (mean_metric("brier", (y - mu) ** 2, w, False, "log"),)
        return mean_metric("accuracy", right, w, True, "logit"), auc_metric(y, mu, w), *brier, _deviance(y, mu, w, glm)
    mse, total = mean_metric("mse", (y - mu) ** 2, w), mean_metric("variance", (y - w @ y) ** 2, w)
    with np.errstate(all="ignore"):  # without residuals or variation, an influence is 0/0
        root, rest = np.sqrt(mse.value), np.divide(mse.value, total.value)
        rmse = Metric("rmse", float(root), mse.influence / (2.0 * root), False, "log")
        if glm.name == "gaussian":
            influence = (rest * total.influence - mse.influence) / total.value
            return rmse, Metric("r2", 1.0 - float(rest), influence, True, "log rest")
    return rmse, _deviance(y, mu, w, glm)


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


def auc_metric(Y: Array, scores: Array, w: Array) -> Metric:
    """Probability that a positive outcome scores higher than a negative one, ties counting half; mean over columns."""
    value, influence, k = 0.0, np.zeros(len(w)), Y.size // len(w)
    for y, score in zip(*(part.reshape(-1, k).T for part in (Y, scores)), strict=True):
        with np.errstate(invalid="ignore"):  # one class only: 0/0
            up, down = w * y / (w @ y), w * (1.0 - y) / (w @ (1.0 - y))
        below, under = midranks(score, down, up)
        area = float(up @ below)
        value, influence = value + area, influence + up * (below - area) + down * (1.0 - under - area)
    return Metric("auc", value / k, influence / k, True, "logit")


def midranks(score: Array, *weights: Array) -> tuple[Array, ...]:
    """Weight of the rows with a smaller score, plus half the weight of ties, for each row."""
    place = np.unique(score, return_inverse=True)[1]
    sums = (np.bincount(place, weight) for weight in weights)
    return tuple((np.cumsum(each) - 0.5 * each)[place] for each in sums)


def _deviance(y: Array, mu: Array, w: Array, glm: Family) -> Metric:
    low, high = glm.outcome_range
    outside = ((mu < low) | (mu > high)).reshape(len(y), -1).any(axis=1)
    with np.errstate(all="ignore"):
        units = glm.unit_deviance(y, mu)
    exact = (y == mu).reshape(len(y), -1).all(axis=1)  # on a bound of the range the formula is 0 * inf
    units = np.where(exact | (w == 0.0), 0.0, np.where(outside | np.isnan(units), np.inf, units))
    if n_infinite := int(np.isinf(units).sum()):
        return Metric("deviance", np.inf, np.full(len(y), np.nan), False, "log", n_infinite)
    return mean_metric("deviance", units, w, False, "log")


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows with similar predictions: mean prediction, mean outcome, and number of rows."""

    prediction: float
    outcome: Interval
    count: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibration of predicted means.

    ``in_the_large``, the mean outcome minus the mean prediction, should be 0; ``slope``, of the outcome on the link of
    the prediction, should be 1: predictions are too extreme if it is smaller; it is NaN if it cannot be estimated (the
    predictions are constant, or separate the outcomes). ``bins`` have about equal weight, by increasing prediction;
    ties share a bin.
    """

    in_the_large: Metric
    slope: Metric
    bins: tuple[Bin, ...]


def calibration(
    y: Array,
    prediction: Array,
    family: str | Family,
    weight: Array | None = None,
    *,
    n_bins: int = 10,
    confidence: float = 0.95,
    cluster: ArrayLike | None = None,
) -> Calibration:
    """Calibration in the large, calibration slope and reliability bins; arguments as for :func:`performance`.

    The slope is from a GLM of the outcome on ``[1, link(prediction)]``, with the identity for the gaussian family,
    the logit for the binomial, the log for others. With several classes, the predicted class is judged: its probability
    against whether it was right. ``confidence`` and ``cluster`` apply to the bins; for metrics see :func:`interval`.

    Examples
    --------
    >>> import numpy as np
    >>> y, too_sure = np.repeat([0, 1, 0, 1], [40, 60, 60, 40]), np.repeat([0.8, 0.2], 100)
    >>> round(calibration(y, too_sure, "binomial").slope.value, 2)
    0.29
    """
    glm = look_up(family)
    y, mu, w = read_pair(y, prediction, glm, weight)
    if glm.is_vector:
        top, glm = (np.arange(len(y)), mu.argmax(axis=1)), look_up("binomial")
        y, mu = y[top], mu[top]
    scale: Scale = "logit" if glm.name == "binomial" else "identity" if glm.name == "gaussian" else "log"
    labels = np.arange(len(y)) if cluster is None else read_cluster(cluster, len(y))
    place = np.where(w > 0.0, np.floor(n_bins * midranks(mu, w)[0]), -1.0)
    bins = []
    for rows in (place == k for k in np.unique(place) if k >= 0.0):
        share = w[rows] / w[rows].sum()
        found = interval(mean_metric("outcome", y[rows], share, None, scale), confidence, labels[rows])
        bins.append(Bin(float(share @ mu[rows]), found, int(rows.sum())))
    return Calibration(mean_metric("calibration in the large", y - mu, w), _slope(y, mu, w, glm, scale), tuple(bins))


def _slope(y: Array, mu: Array, w: Array, glm: Family, link: Scale) -> Metric:
    """Calibration slope; its influence function is ``-H^-1`` times the score of each row."""
    with np.errstate(all="ignore"):
        x = SCALES[link][0](mu)
    used = np.isfinite(x)
    value, influence = np.nan, np.where(used, np.nan, 0.0)
    y, x, w = y[used], x[used], w[used]
    if w.any() and min(np.ptp(x[w > 0.0]), np.ptp(y[w > 0.0])) > 0.0:
        glm = look_up(glm.name, None, glm.parameter)  # gamma and similar families with their log link
        fit = solve(Problem(x[:, None], y, family=glm, weight=w), tol=1e-12)
        if fit.status is Status.CONVERGED and not fit.certificate.aliased_features:
            D = np.column_stack([np.ones(len(x)), x])
            _, slope, curvature = glm.row_losses(y, D @ np.append(fit.intercept, fit.coef))
            influence[used] = -w * slope * (D @ np.linalg.inv(weighted_gram(D, w * curvature))[:, 1])
            value = float(fit.coef[0, 0])
    return Metric("calibration slope", value, influence, n_infinite=int((~used).sum()))


@dataclass(frozen=True, slots=True)
class Score:
    """Score of one set of predictions by one metric.

    Attributes
    ----------
    metric : str
    value : Interval
    difference : Interval
        Difference to the first set of predictions, on the same rows.
    higher_is_better : bool
    """

    metric: str
    value: Interval
    difference: Interval
    higher_is_better: bool


def score_models(rows: PredictedRows) -> dict[str, tuple[Score, ...]]:
    """Scores of each model by name, empty without an outcome; see :func:`performance`."""
    if rows.outcome is None:
        return {}
    weight, cluster, confidence = rows.sample.weight, rows.sample.cluster, rows.sample.confidence
    metrics = {name: performance(rows.outcome, values, rows.family, weight) for name, values in rows.values.items()}
    first = next(iter(metrics.values()), ())
    return {
        name: tuple(
            Score(one.name, interval(one, confidence, cluster), difference(one, base, confidence, cluster), better)
            for one, base in zip(own, first, strict=True)
            for better in [bool(one.higher_is_better)]
        )
        for name, own in metrics.items()
    }
