"""Generalised covariance measure: dependence on protected columns given controls, without a linear model of these.

Shah and Peters, "The hardness of conditional independence testing and the generalised covariance measure", Annals of
Statistics 48 (2020). Predictions and protected columns are each regressed on the controls, on other folds of the rows:
a cubic spline in each control, their products, and a ridge chosen by leave-one-out errors. If the products of the two
residuals do not have mean zero, the predictions depend on the protected columns given the controls. The test is valid
where the product of the two regression errors vanishes faster than 1/sqrt(n). Splines were chosen over boosted trees,
whose errors at the ends of a control made the test reject far too often. Curves with many turns need many rows: with
one control and ``sin(3c)`` or ``sin(6c)`` in both, noise half of the curve's size, it rejects in 5 and 10 % of 100
samples of 300 rows.

Many levels, few clusters and unequal weights leave few independent rows per column: tests are Hotelling's, with the
effective number of rows or clusters, and are used as far as the equal-variance tests of the same residuals agree. They
still reject too often with many levels: in 7 to 10 % of 200 samples of 300 rows with 20 levels, at a nominal 5 %.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold, KFold
from sklearn.preprocessing import SplineTransformer

from setsquare._typing import Array
from setsquare.auditing.evaluations.records import Evaluation, Test, two_sided, wald, z_effect
from setsquare.auditing.evaluations.score import answer, larger, questions_of, sample_of
from setsquare.auditing.protected import Protected

FOLDS = 5
#: Ridge penalties that are tried. With one control, larger ones would flatten curves in both regressions alike, and
#: what is left of a curve in both residuals makes the test reject; the noise of small penalties is not shared.
PENALTIES, FEW_PENALTIES = (tuple(10.0**e for e in range(-6, top)) for top in (3, 0))
#: Largest number of knots of a spline; number of values up to which a control is categorical; number of controls up to
#: which their products are used.
MOST_KNOTS, FEW_LEVELS, MOST_PAIRED = 20, 10, 20
#: Rows per knot of a single control, and its largest number of knots: what a spline does not follow of a curve stays in
#: both residuals.
ROWS_PER_KNOT, MOST_ALONE = 8, 60


def cross_fitted_residuals(values: Array, C: Array, protected: Protected, seed: int) -> Array:
    """Residuals (n, m) of columns (n, m) from regressions on the controls (n, c), each on the other folds."""
    splitter = KFold(FOLDS, shuffle=True, random_state=seed)
    if protected.cluster is not None:
        splitter = GroupKFold(min(FOLDS, int(protected.cluster.max()) + 1))
    A, penalties = smooth_features(C, effective_units(protected)), FEW_PENALTIES if C.shape[1] == 1 else PENALTIES
    left = np.empty_like(values)
    for train, test in splitter.split(A, groups=protected.cluster):
        weight = None if protected.weight is None else protected.weight[train]
        model = RidgeCV(penalties, alpha_per_target=True).fit(A[train], values[train], sample_weight=weight)
        left[test] = values[test] - model.predict(A[test]).reshape(len(test), -1)
    return left


def effective_units(protected: Protected) -> float:
    """Effective number of rows, or clusters, given the weights: the number itself where weights are equal.

    Examples
    --------
    >>> import numpy as np
    >>> columns = Protected(np.arange(4.0)[:, None], ("x",), ("x",), cluster=np.array([0, 0, 1, 1]))
    >>> effective_units(columns)
    2.0
    """
    shares = protected.shares if protected.cluster is None else np.bincount(protected.cluster, protected.shares)
    return float(1.0 / np.sum(shares**2))


def smooth_features(C: Array, n_units: float | None = None) -> Array:
    """Splines of the controls with many values, indicators of the others' values, and products of pairs of controls.

    Knots are as many as ``n_units`` independent rows (by default all rows) allow. The noise of a regression on more of
    them would not be in the standard errors.

    Examples
    --------
    >>> import numpy as np
    >>> C = np.column_stack([np.linspace(0.0, 1.0, 300), np.arange(300.0) % 2])
    >>> smooth_features(C).shape
    (300, 12)
    """
    n, c = len(C) if n_units is None else round(n_units), C.shape[1]
    knots = int(np.clip(n ** (1.0 / 3.0) + 3.0, 4.0, MOST_KNOTS))
    knots = min(max(knots, n // ROWS_PER_KNOT), MOST_ALONE) if c == 1 else knots
    parts = []
    for column in C.T:
        levels = np.unique(column)
        if len(levels) <= FEW_LEVELS:
            parts.append((column[:, None] == levels[1:]).astype(np.float64))
            continue
        places = np.unique(np.quantile(column, np.linspace(0.0, 1.0, knots)))
        spline = SplineTransformer(knots=places[:, None], degree=3, extrapolation="linear", include_bias=False)
        parts.append(spline.fit_transform(column[:, None]))
    scaled = (C - C.mean(axis=0)) / np.where(np.ptp(C, axis=0) > 0.0, C.std(axis=0), 1.0)
    pairs = [scaled[:, [a]] * scaled[:, [b]] for a in range(c) for b in range(a)] if c <= MOST_PAIRED else []
    return np.hstack([*parts, *pairs])


def evaluate_gcm(y: Array, X: Array, C: Array, protected: Protected, *, confidence: float, seed: int) -> Evaluation:
    """Test that predictions ``y`` (n,) do not depend on columns ``X`` (n, p) given the controls ``C`` (n, c).

    The effects are partial correlations, with intervals; the joint test has the largest partial correlation not ruled
    out as its upper bound.
    """
    left = cross_fitted_residuals(np.column_stack([y, X]), C, protected, seed)
    w = protected.shares
    products = w[:, None] * left[:, :1] * left[:, 1:]
    spread = np.sqrt(w @ left**2)
    scale = np.maximum(spread[0] * spread[1:], np.finfo(float).tiny)
    b = products.sum(axis=0) / scale
    units = (products - w[:, None] * products.sum(axis=0)) / scale
    if protected.cluster is not None:
        sums = np.zeros((int(protected.cluster.max()) + 1, len(b)))
        np.add.at(sums, protected.cluster, units)
        units = sums
    V, n = units.T @ units, effective_units(protected)
    errors = np.sqrt(np.diag(V))
    effects = tuple(
        z_effect(term, source, float(value), float(error), max(n - 1.0, 1.0), confidence)
        for term, source, value, error in zip(protected.names, protected.sources, b, errors, strict=True)
    )
    questions = questions_of(protected.names, protected.sources, single=False)
    equal = answer(sample_of(left[:, 0], replace(protected, values=left[:, 1:])), questions, robust=False)
    joint, *by_source = (
        _test(b[question.chosen], V[np.ix_(question.chosen, question.chosen)], n, found.pooled)
        for question, found in zip(questions, equal, strict=True)
    )
    upper = float(max(max(abs(e.ci_low), abs(e.ci_high)) for e in effects))
    title = f"generalised covariance measure, spline regressions on the controls, {FOLDS} folds"
    tested = Test(joint.name, joint.statistic, joint.df, joint.p_value, joint.method, upper=min(1.0, upper))
    return Evaluation("gcm", title, effects, tested, tuple(by_source))


def _test(b: Array, V: Array, n: float, pooled: Test) -> Test:
    """Hotelling's test that all of ``b`` is zero, with ``n`` units, as far as the equal-variance test agrees."""
    free = n - len(b)
    if len(b) == 1:
        return larger(_single(pooled.name, float(b[0]), math.sqrt(float(V[0, 0])), max(free, 1.0)), pooled)
    if free < 1.0:  # V is singular: effects along its zeros are not certain
        return pooled
    return larger(wald(pooled.name, b, V * ((n - 1.0) / free), free), pooled)


def _single(name: str, value: float, error: float, df: float) -> Test:
    """Test of one column, whose statistic keeps its sign."""
    statistic = value / error if error > 0.0 else 0.0
    return Test(name, statistic, 1.0, two_sided(statistic, df), f"t({df:g})")
