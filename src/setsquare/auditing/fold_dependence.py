"""Correction for the dependence between rows of a cross-validated audit, which ordinary standard errors ignore.

Let ``f_k`` be the model of fold k and ``yhat_i`` its prediction of a held-out row i. To first order
``yhat_i = g(z_i) + sum_j H_ij r_j``: the signal in the features, and noise from the outcomes ``r_j = y_j - g(z_j)`` of
the rows that the model was fitted to. ``H_ij`` is zero within a fold. Where the features are independent of a protected
column x, the score is ``T = sum_i x_i g(z_i) + sum_ij x_i H_ij r_j``, with mean zero and

    var T = var(x) sum_i yhat_i^2 + cov(x, r)^2 sum_ij H_ij H_ji.

The first term is the variance that ordinary tests assume. The second term arises because each pair (i, j) counts twice:
i helps to predict j, and j to predict i; where y depends on x, the two are correlated. As ``sum_ij H_ij H_ji <= sum_ij
H_ij^2``, the variance is at most ``1 + s^2`` times the assumed one, where ``s^2`` is the share of the outcome's
variance that x explains and the predictions do not. With several columns (whitened, and k outcomes likewise) the errors
of ``T`` (p, k) gain the map ``M -> C M' C`` with ``C`` the cross-correlations; its singular values ``s`` give the
eigenvalues ``1 + s_i^2`` and ``1 +- s_i s_j``, all others stay 1.

With clusters, ``C`` is also computed from the sums over clusters, which are the independent units, and the larger one
is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special

from setsquare._typing import Array, IntArray
from setsquare.auditing.bounds import cluster_sums
from setsquare.auditing.certificate import Certificate, ColumnBound
from setsquare.auditing.evaluations.records import Effect, Evaluation, Test
from setsquare.auditing.fold_bounds import scale_error
from setsquare.auditing.protected import Protected
from setsquare.auditing.result import AuditResult
from setsquare.auditing.verdict import LINEAR
from setsquare.rows.blocks import mean_weight

#: Largest number of products of columns, and of rows used to tell an indicator from a number.
SEVERAL = 60


@dataclass(frozen=True, slots=True)
class Mutual:
    """Correlations ``s`` of protected columns with the part of the outcome that the predictions do not explain.

    Attributes
    ----------
    together : ndarray
        Singular values of all columns together, largest first.
    by_source : dict of str to ndarray
        Singular values of each source column, given the others.
    by_column, alone : dict of str to float
        Largest singular value of each column, given the others, and of each column on its own.
    beyond : ndarray
        Singular values of squares and products of the columns, given the columns: for tests of nonlinear effects.
    """

    together: Array
    by_source: dict[str, Array]
    by_column: dict[str, float]
    alone: dict[str, float]
    beyond: Array

    def concerning(self, evaluation: str, test: str) -> Array:
        """Singular values that apply to a test of an evaluation model."""
        if evaluation in LINEAR:
            return self.by_source.get(test, self.together)
        if evaluation == "shape":
            return self.beyond
        most = math.hypot(float(self.together[0]), float(self.beyond[0]))  # any dependence
        return np.array([min(most, 1.0)])


def mutual_scores(outcome: Array, predictions: Array, protected: Protected) -> Mutual:
    """Estimate how strongly the scores of rows that helped to predict each other are correlated.

    Parameters
    ----------
    outcome : ndarray of shape (n, k)
        Numbers, or indicators of the classes.
    predictions : ndarray of shape (n, m)
        Held-out predictions minus the means of their models; used if m = k.
    protected : Protected

    Examples
    --------
    >>> x = np.tile([0.0, 1.0], 50)
    >>> y = x + np.tile([0.0, 0.0, 1.0, 1.0], 25)
    >>> found = mutual_scores(y[:, None], np.zeros((100, 1)), Protected(x[:, None], ("x",), ("x",)))
    >>> round(float(found.together[0]) ** 2, 6)  # x explains half of the variance
    0.5
    """
    Y = outcome - outcome.mean(axis=0)
    R = _unexplained(Y, predictions) if predictions.shape == Y.shape else Y
    w = mean_weight(len(Y), protected.weight)
    p = protected.values.shape[1]
    X = _standardise(protected.values, w)
    X = np.column_stack([X, _standardise(_products(X, protected.sources), w)])
    units = [None] if protected.cluster is None else [None, protected.cluster]
    views = [_products_over_units(w[:, None] * X, R, Y, cluster) for cluster in units]
    gram, every, more = (X.T * w) @ X, np.arange(p), np.arange(p, X.shape[1])

    def values(chosen: IntArray, others: IntArray) -> Array:
        """Singular values of the cross-correlations of some columns given others, the larger over the units."""
        M = _given(gram, chosen, others)
        maps = [inverse_root(M.T @ own @ M) @ (M.T @ across) for own, across in views]
        return np.asarray(np.minimum(np.max([np.linalg.svd(C, compute_uv=False) for C in maps], axis=0), 1.0))

    sources = np.asarray(protected.sources, dtype=object)
    columns = {name: every[j : j + 1] for j, name in enumerate(protected.names)}
    return Mutual(
        values(every, every[:0]),
        {s: values(every[sources == s], every[sources != s]) for s in dict.fromkeys(protected.sources)},
        {name: float(values(j, np.delete(every, j))[0]) for name, j in columns.items()},
        {name: float(values(j, every[:0])[0]) for name, j in columns.items()},
        values(more, every) if len(more) else np.zeros(1),
    )


def _standardise(X: Array, w: Array) -> Array:
    X = X - w @ X
    size = np.sqrt(w @ X**2)
    return np.divide(X, size, out=np.zeros_like(X), where=size > 0.0)


def _products(X: Array, sources: tuple[str, ...]) -> Array:
    """Squares of columns that are not indicators, and products of different sources unless there are too many."""
    squares = [x * x for x in X.T if len(np.unique(x[:SEVERAL])) > 2]
    pairs = [(a, b) for b in range(X.shape[1]) for a in range(b) if sources[a] != sources[b]]
    products = [X[:, a] * X[:, b] for a, b in pairs] if len(pairs) <= SEVERAL else []
    return np.column_stack([np.zeros((len(X), 0)), *squares[:SEVERAL], *products])


def _unexplained(Y: Array, predictions: Array) -> Array:
    """Residuals of each outcome given its own predictions; a negative slope counts as zero."""
    P = predictions - predictions.mean(axis=0)
    spread = np.einsum("nk,nk->k", P, P)
    slope = np.einsum("nk,nk->k", P, Y) / np.where(spread > 0.0, spread, np.inf)
    return np.asarray(Y - np.maximum(slope, 0.0) * P)


def _given(gram: Array, chosen: IntArray, others: IntArray) -> Array:
    """Combinations of the columns, (p, c): the residuals of the chosen columns given the others."""
    M = np.zeros((len(gram), len(chosen)))
    M[chosen, np.arange(len(chosen))] = 1.0
    if len(others):
        among = gram[np.ix_(others, others)]
        M[others] = -np.linalg.lstsq(among, gram[np.ix_(others, chosen)], rcond=1e-10)[0]
    left = np.einsum("ac,ab,bc->c", M, gram, M)
    return np.asarray(M * (left > 1e-9))  # zero for a column that the others determine


def _products_over_units(A: Array, R: Array, Y: Array, cluster: IntArray | None) -> tuple[Array, Array]:
    """Products of columns with each other and with whitened outcomes, over independent units: rows, or clusters."""
    A, R, Y = (cluster_sums(part.T, cluster) for part in (A, R, Y))
    return A @ A.T, A @ R.T @ inverse_root(Y @ Y.T).T


def inverse_root(gram: Array) -> Array:
    """Matrix ``W`` with ``W gram W'`` the identity on the range of `gram`, and zero elsewhere."""
    scale = np.sqrt(np.maximum(np.diag(gram), 0.0))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0.0)
    values, vectors = np.linalg.eigh(gram * np.outer(inverse, inverse))
    kept = values > 1e-9 * max(float(values.max(initial=0.0)), 1e-300)
    root = np.divide(1.0, np.sqrt(np.abs(values)), out=np.zeros_like(values), where=kept)
    return np.asarray(root[:, None] * vectors.T * inverse)


def variances(s: Array, df: int) -> Array:
    """Eigenvalues of the covariance of `df` scores, relative to the one that tests assume; largest first.

    Examples
    --------
    >>> variances(np.array([0.8]), 3)
    array([1.64, 1.  , 1.  ])
    >>> variances(np.array([0.8, 0.5]), 4)
    array([1.64, 1.4 , 1.25, 0.6 ])
    """
    pairs = np.outer(s, s)[np.triu_indices(len(s), 1)]
    found = np.concatenate([1.0 + s * s, 1.0 + pairs, 1.0 - pairs])
    found = np.concatenate([found, np.ones(max(df - len(found), 0))])
    return np.asarray(np.sort(found)[::-1][:df])


def corrected_p(p: float, df: float, s: Array) -> float:
    """P-value of a test whose scores have the :func:`variances` of `s`; a test without `df` counts as having 1.

    The statistic is a sum of squares with those variances. With one outcome a single variance differs from 1, and the
    tail is an integral. With several, it is found by a saddlepoint (Kuonen, 1999), relative to that of variances of 1,
    whose tail is known.

    Examples
    --------
    >>> round(corrected_p(0.05, 1.0, np.array([1.0])), 4)  # 2 * (1 - Phi(1.96 / sqrt(2)))
    0.1658
    """
    if math.isnan(p) or p <= 0.0 or p >= 1.0:
        return p
    d = 1 if math.isnan(df) or df < 1.0 else int(df)
    weights, statistic = variances(s, d), float(special.chdtri(d, p))
    if d == 1:
        return float(special.chdtrc(1, statistic / weights[0]))
    if weights[0] < 1.0 + 1e-12:
        return p
    if np.abs(weights[1:] - 1.0).max() < 1e-9:
        return min(1.0, max(p, _tail_of_one(statistic, float(weights[0]), d)))
    return min(1.0, max(p, p * math.exp(_log_tail(statistic, weights) - _log_tail(statistic, np.ones(d)))))


def _tail_of_one(q: float, weight: float, df: int) -> float:
    """Probability that ``weight * N^2`` plus `df` - 1 further squared normals exceeds `q`."""
    edge = math.sqrt(q / weight)
    nodes, parts = np.polynomial.legendre.leggauss(200)
    u = 0.5 * edge * (nodes + 1.0)
    inside = edge * parts * np.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi) * special.chdtrc(df - 1, q - weight * u * u)
    return float(inside.sum() + 2.0 * special.ndtr(-edge))


def _log_tail(q: float, weights: Array) -> float:
    """Log probability that a weighted sum of squared normals exceeds `q`, by Lugannani and Rice."""
    mean = float(weights.sum())
    if abs(q - mean) < 1e-3 * mean:  # the formula is 0/0 there, and smooth
        q = mean * (1.0 + math.copysign(1e-3, q - mean))

    def slope(t: float) -> float:
        return float(np.sum(weights / (1.0 - 2.0 * t * weights))) - q

    most = 0.5 / float(weights[0])
    t = optimize.brentq(slope, -0.5 * len(weights) / q, most * (1.0 - 1e-15) - 1e-300, xtol=1e-300, rtol=1e-14)
    cumulant = -0.5 * float(np.sum(np.log1p(-2.0 * t * weights)))
    curvature = 2.0 * float(np.sum((weights / (1.0 - 2.0 * t * weights)) ** 2))
    w = math.copysign(math.sqrt(max(2.0 * (t * q - cumulant), 1e-300)), t)
    return float(special.log_ndtr(-(w + math.log(t * math.sqrt(curvature) / w) / w)))


def allow_for_mutual_scores(result: AuditResult, mutual: Mutual) -> AuditResult:
    """Correct tests, standard errors and bounds of a cross-validated audit; the verdict is not updated here."""
    if not result.evaluations:
        return result
    return replace(
        result,
        evaluations=tuple(_correct(evaluation, mutual) for evaluation in result.evaluations),
        certificate=_widen(result.certificate, mutual),
    )


def _correct(evaluation: Evaluation, mutual: Mutual) -> Evaluation:
    def test(given: Test) -> Test:
        s = mutual.concerning(evaluation.name, given.name)
        upper = None if given.upper is None else min(1.0, given.upper * math.sqrt(1.0 + float(s[0]) ** 2))
        return replace(given, p_value=corrected_p(given.p_value, given.df, s), upper=upper)

    return replace(
        evaluation,
        joint=test(evaluation.joint),
        by_source=tuple(map(test, evaluation.by_source)),
        further=tuple(map(test, evaluation.further)),
        effects=tuple(_correct_effect(effect, _largest(mutual, effect.term)) for effect in evaluation.effects),
    )


def _largest(mutual: Mutual, term: str) -> float:
    """Singular value of a term, whose name may end in a class."""
    names = [name for name in mutual.by_column if term == name or term.startswith(f"{name} (")]
    return mutual.by_column[max(names, key=len)] if names else float(mutual.together[0])


def _correct_effect(effect: Effect, s: float) -> Effect:
    grown = math.sqrt(1.0 + s * s)
    return replace(
        effect,
        std_error=effect.std_error * grown,
        statistic=effect.statistic / grown,
        p_value=corrected_p(effect.p_value, 1.0, np.array([s])),
        ci_low=effect.estimate - grown * (effect.estimate - effect.ci_low),
        ci_high=effect.estimate + grown * (effect.ci_high - effect.estimate),
    )


def _widen(certificate: Certificate, mutual: Mutual) -> Certificate:
    """Certificate with the larger standard errors."""
    ratio = certificate.is_ratio

    def column(given: ColumnBound) -> ColumnBound:
        alone, own = (math.sqrt(1.0 + s.get(given.term, 1.0) ** 2) for s in (mutual.alone, mutual.by_column))
        upper = scale_error(given.correlation, given.correlation_upper, alone)
        return given.widened(upper, _grow(given, own, ratio=ratio), alone)

    grown = math.sqrt(1.0 + float(mutual.together[0]) ** 2)
    upper = scale_error(certificate.correlation, certificate.correlation_upper, grown)
    return replace(
        certificate,
        correlation_upper=upper,
        columns=tuple(map(column, certificate.columns)),
        references=tuple(map(column, certificate.references)),
    )


def _grow(column: ColumnBound, grown: float, *, ratio: bool) -> float:
    effect, upper = column.effect, column.effect_upper
    if not (math.isfinite(effect) and math.isfinite(upper)):
        return upper
    if not ratio:
        return effect + grown * (upper - effect)
    with np.errstate(over="ignore"):
        return float(np.exp(math.log(effect) + grown * (math.log(upper) - math.log(effect))))
