"""Doubly robust values for protected columns that are partly missing.

With ``r`` whether a row has the column, ``pi(v)`` the probability of that given what is known about every row, and
``m(v)`` a prediction of the column, ``x~ = m(v) + r / pi(v) (x - m(v))`` stands in for ``x``. If values are missing at
random given ``v``, and ``v`` contains all features, the mean of ``x~ f(v)`` is that of ``x f(v)`` for every ``f`` as
soon as ``pi`` or ``m`` is right. Both are fitted on other folds than the rows that they are used for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.families import Family, binomial
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve
from setsquare.tables.coders import Numeric
from setsquare.tables.design import Design
from setsquare.tables.expansion import learn_hinges
from setsquare.tables.frame import dense

#: Number of folds, and ridge penalties for standardised columns: down from the first, then up where that is the best.
FOLDS, DOWN, UP = 5, (1e-3, 1e-4, 1e-5), (1e-2, 1e-1)
#: Most knots of a number that is known about every row.
MOST_KNOTS = 5
#: Smallest probability of being observed: no row counts more often than this allows.
LEAST_PROBABILITY = 0.01
#: Distance from 0 and 1 of a share of observed rows that stands for the probability of each.
LEAST_SHARE = 1e-9
#: Smallest eigenvalue of the protected columns' covariance, relative to that of the values in their place.
LEAST_RATIO = 1e-4


@dataclass(frozen=True, slots=True)
class Completed:
    """Protected columns without gaps.

    Attributes
    ----------
    X : ndarray of shape (n, p)
        The columns, doubly robust values in the place of those that are partly missing.
    inflation : float
        Largest ratio of standard deviations, over combinations of columns, of these values to the columns themselves.
    inflations : ndarray of shape (p,)
        The same of each column.
    n_floored : int
        Rows whose probability of being observed was raised to 0.01.
    missing : mapping of str to float
        Share of the rows in which a column is missing, by name.
    known : tuple of str
        What is known about every row.
    """

    X: Array
    inflation: float
    inflations: Array
    n_floored: int
    missing: Mapping[str, float] = field(default_factory=dict)
    known: tuple[str, ...] = ()


def doubly_robust(X: Array, predicted: Array, probability: Array) -> Array:
    """Values (n, p) in the place of columns with gaps (NaN), from predictions (n, p) and probabilities (n,).

    Examples
    --------
    >>> X, predicted = np.array([[1.0], [np.nan]]), np.array([[0.5], [0.25]])
    >>> doubly_robust(X, predicted, np.array([0.5, 0.5]))
    array([[1.5 ],
           [0.25]])
    """
    gap = np.where(np.isnan(X), 0.0, X - predicted)
    return np.asarray(predicted + gap / probability[:, None])


def complete_protected(
    X: Array,
    parts: Sequence[slice],
    known: Array,
    weight: Array | None = None,
    cluster: IntArray | None = None,
) -> Completed:
    """Put doubly robust values in the place of columns that are partly missing.

    Parameters
    ----------
    X : ndarray of shape (n, p)
        Coded protected columns; NaN where missing.
    parts : sequence of slice
        Columns of X that are missing in the same rows.
    known : ndarray of shape (n, v)
        What is known about every row: the features, the outcome and whatever else. Protected columns without gaps are
        added to it.
    weight : ndarray of shape (n,), optional
    cluster : ndarray of shape (n,), optional
        Clusters are not split by folds.
    """
    w = np.ones(len(X)) if weight is None else weight
    observed: list[BoolArray] = [np.asarray(~np.isnan(X[:, part]).any(axis=1)) for part in parts]
    full = [X[:, part] for part, mask in zip(parts, observed, strict=True) if mask.all()]
    V = standardised(np.hstack([known, *full]), w)
    made, floored = X.copy(), np.zeros(len(X), dtype=bool)
    shares = [np.ones(len(X)) for _ in parts]
    for j, (part, mask) in enumerate(zip(parts, observed, strict=True)):
        if mask.all():
            continue
        fold = draw_folds(mask, cluster)
        found = cross_fit_probability(V, mask, w, fold)
        floored |= found < LEAST_PROBABILITY
        shares[j] = np.maximum(found, LEAST_PROBABILITY)
        predicted = cross_fit_columns(V, X[:, part], mask, w, fold)
        made[:, part] = doubly_robust(X[:, part], predicted, shares[j])
    S = _covariance(X, made, parts, observed, shares, w)
    inflation, inflations = _inflation(S, np.cov(made, rowvar=False, aweights=w).reshape(S.shape))
    return Completed(made, inflation, inflations, int(floored.sum()))


def known_numbers(values: Array) -> Array:
    """A column of numbers (n,) as hinges (n, k), so that models may bend along it; of two values, as it is."""
    numbers = np.asarray(values, dtype=np.float64)
    hinges = learn_hinges(Numeric("x0"), numbers, MOST_KNOTS)
    return dense(Design((hinges,)).apply(numbers[:, None]).values)


def known_outcome(outcome: Array, family: Family) -> Array:
    """Coded outcome (n,) or (n, K) as columns: dummies of classes, hinges of numbers."""
    if family.is_vector and outcome.ndim == 1:
        return np.asarray(outcome[:, None] == np.arange(1.0, outcome.max() + 1.0), dtype=np.float64)
    return np.hstack([known_numbers(column) for column in outcome.reshape(len(outcome), -1).T])


def standardised(V: Array, weight: Array) -> Array:
    """Columns with mean 0 and standard deviation 1, without those that do not vary."""
    w = weight / weight.sum()
    centred = V - w @ V
    size = np.sqrt(w @ centred**2)
    varies = size > 1e-10 * np.abs(V).max(axis=0, initial=1e-300)
    return np.asarray(centred[:, varies] / size[varies])


def draw_folds(observed: BoolArray, cluster: IntArray | None) -> IntArray:
    """Fold (n,) of each row; observed rows, or clusters that have some, are spread evenly. The seed is fixed."""
    rng = np.random.default_rng(0)
    if cluster is None:
        units, has = np.arange(len(observed)), observed
    else:
        units = np.unique(cluster, return_inverse=True)[1]
        has = np.bincount(units, weights=observed) > 0.0
    order = rng.permutation(len(has))
    order = order[np.argsort(has[order], kind="stable")]
    fold = np.empty(len(has), dtype=np.int64)
    fold[order] = np.arange(len(has)) % FOLDS
    return fold[units]


def cross_fit_probability(V: Array, observed: BoolArray, weight: Array, fold: IntArray) -> Array:
    """Probability (n,) of being observed: ridge logistic regression, fitted to the other folds.

    Where these have, or lack, the column in every row that counts, it is the share of all rows.
    """
    r = observed.astype(np.float64)
    share = np.clip(np.average(r, weights=weight), LEAST_SHARE, 1.0 - LEAST_SHARE)

    def fit(l2: float) -> tuple[Array, float]:
        eta = np.empty(len(r))
        for held in _held(fold):
            rest = ~held & (weight > 0.0)
            if np.ptp(r[rest]) == 0.0:
                eta[held] = np.log(share / (1.0 - share))
                continue
            model = solve(Problem(V[rest], r[rest], family=binomial, weight=weight[rest], l2=l2), "sqp", tol=1e-5)
            eta[held] = V[held] @ model.coef[0] + model.intercept[0]
        return eta, float(weight @ (np.logaddexp(0.0, eta) - r * eta))

    p = binomial.activation(_best(fit)[:, None])[:, 0]
    return np.asarray(p)


def cross_fit_columns(V: Array, X: Array, observed: BoolArray, weight: Array, fold: IntArray) -> Array:
    """Predictions (n, m) of columns: ridge regression, fitted to the observed rows of the other folds."""

    def fit(l2: float) -> tuple[Array, float]:
        predicted = np.empty(X.shape)
        for held in _held(fold):
            rest = observed & ~held
            w = weight[rest] / weight[rest].sum()
            mean_v, mean_x = w @ V[rest], w @ X[rest]
            A = (V[rest] - mean_v) * np.sqrt(w)[:, None]
            b = (X[rest] - mean_x) * np.sqrt(w)[:, None]
            coef = np.linalg.solve(A.T @ A + l2 * np.eye(V.shape[1]), A.T @ b)
            predicted[held] = mean_x + (V[held] - mean_v) @ coef
        gap = (X - predicted)[observed]
        return predicted, float(weight[observed] @ (gap**2 / np.maximum(X[observed].var(axis=0), 1e-300)).sum(axis=1))

    return _best(fit)


def _held(fold: IntArray) -> list[BoolArray]:
    """Rows of each fold that has any, apart from folds that would leave nothing to fit to."""
    return [fold == k for k in range(FOLDS) if (fold == k).any()]


def _best(fit: Callable[[float], tuple[Array, float]]) -> Array:
    """Held-out predictions of the penalty with the smallest held-out loss."""
    best, least = fit(DOWN[0])
    for path in (DOWN[1:], UP):
        before = least
        for l2 in path:
            found, loss = fit(l2)
            if not loss < least:
                break
            best, least = found, loss
        if least < before:
            break
    return best


def _covariance(
    X: Array, made: Array, parts: Sequence[slice], observed: Sequence[BoolArray], shares: Sequence[Array], w: Array
) -> Array:
    """Covariance (p, p) of the columns themselves, from the rows that have them, weighted by inverse probabilities."""
    gap = np.where(np.isnan(X), 0.0, X - np.average(made, axis=0, weights=w))
    S = np.zeros((X.shape[1],) * 2)
    for a, part in enumerate(parts):
        for b, other in enumerate(parts[: a + 1]):
            together = np.array_equal(observed[a], observed[b])
            counted = w * observed[a] * observed[b] / (shares[a] * (1.0 if together else shares[b]))
            total = counted.sum()
            S[part, other] = (gap[:, part] * counted[:, None]).T @ gap[:, other] / (total if total > 0.0 else 1.0)
            S[other, part] = S[part, other].T
    return S


def _inflation(S: Array, made: Array) -> tuple[float, Array]:
    """Largest ratio of standard deviations over combinations of columns, and that of each column."""
    values, vectors = np.linalg.eigh(made)
    kept = values > 1e-12 * values[-1]
    root = vectors[:, kept] / np.sqrt(values[kept])
    least = float(np.linalg.eigvalsh(root.T @ S @ root)[0])
    each = np.sqrt(np.diag(made) / np.maximum(np.diag(S), LEAST_RATIO * np.diag(made)))
    return 1.0 / max(least, LEAST_RATIO) ** 0.5, np.asarray(each)
