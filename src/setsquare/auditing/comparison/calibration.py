"""Calibration of predictions: mean outcome minus mean prediction, slope, and bins; metrics with influence functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, ArrayLike
from setsquare.auditing.comparison.metric import (
    SCALES,
    Interval,
    Metric,
    Scale,
    interval,
    link_scale,
    mean_metric,
    midranks,
    read_pair,
)
from setsquare.families import Family
from setsquare.families import family as look_up
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Status, solve
from setsquare.rows.products import weighted_gram
from setsquare.tables.validation import read_cluster


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
    """Calibration in the large, calibration slope and reliability bins; arguments as for `performance`.

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
    scale = link_scale(glm)
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
