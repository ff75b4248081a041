"""Performance of predictions: accuracy, AUC, Brier score, deviance, RMSE and R2, as metrics with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array
from setsquare.auditing.comparison.metric import (
    Interval,
    Metric,
    difference,
    interval,
    mean_metric,
    midranks,
    read_pair,
)
from setsquare.auditing.comparison.predicted_rows import PredictedRows
from setsquare.families import Family
from setsquare.families import family as look_up


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
