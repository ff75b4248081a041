"""Score tests: whether columns have an effect, judged by the residuals of the model without them.

They need no fit of the effect itself, so they exist where it is infinite (a group whose predictions are all 1) or has
no residual left. They stay on the safe side where few rows, or few clusters, decide: two rows add at most 2 to the
statistic. Without an effect the covariance of columns and residuals is zero; its error is robust and never
degenerate unless the predictions are constant.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from setsquare.auditing.association import cluster_sums
from setsquare.auditing.protected import Protected
from setsquare.auditing.records import ALL, Test, wald
from setsquare.projection import Basis, protected_basis
from setsquare.rows import mean_weight, row_slices, weighted_gram
from setsquare.typing import Array, BoolArray, IntArray

#: Rows that are looked at first.
SCREENED = 20_000


def score_tests(y: Array, protected: Protected) -> tuple[Test, tuple[Test, ...], tuple[Test, ...]]:
    """Tests of all columns, of each source and of each column given the others, of ``y`` (n,) or (n, k).

    The statistic of a single column and prediction is the root of chi-squared(1), with the sign of the effect.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    >>> joint, _, _ = score_tests(x, Protected(x[:, None], ("x",), ("x",)))  # no residual is left by x itself
    >>> joint.statistic.__round__(6), joint.p_value.__round__(4)
    (8.0, 0.0047)
    """
    Y = y.reshape(len(y), -1)
    w = mean_weight(len(Y), protected.weight)
    sources = np.asarray(protected.sources)
    everything = np.ones(len(sources), dtype=bool)

    def test(name: str, chosen: BoolArray) -> Test:
        return _score_test(name, Y, protected.values, w, chosen, protected.cluster)

    by_source = tuple(test(source, sources == source) for source in dict.fromkeys(protected.sources))
    single = tuple(test(name, np.arange(len(sources)) == j) for j, name in enumerate(protected.names))
    if Y.shape[1] == 1:
        slopes = protected.basis.transform @ (protected.basis.apply(protected.values).T @ (w * Y[:, 0]))
        single = tuple(_signed(test, slope) for test, slope in zip(single, slopes, strict=True))
    return test(ALL, everything), by_source, single


def largest_score(y: Array, protected: Protected) -> float:
    """Largest share that one row has in the error of a joint score test, or a bound on it below 0.2.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.tile([0.0, 1.0], 100)
    >>> y = np.arange(200.0)
    >>> y[7] = 1e6
    >>> largest_score(y, Protected(x[:, None], ("x",), ("x",))).__round__(3)
    0.995
    """
    Y = y.reshape(len(y), -1)
    w = mean_weight(len(Y), protected.weight)
    basis, gap = protected.basis, Y - w @ Y
    return max(_largest_share(basis, protected.values, w * column, protected.reach) for column in gap.T)


def _largest_share(basis: Basis, X: Array, size: Array, reach: float) -> float:
    """Largest ``s'V^-1 s`` of a score ``s = size * q``, with ``V`` the sum of their squares."""
    largest_size = float(np.abs(size).max() * reach) ** 2
    step = len(X) // SCREENED
    if step > 1:  # a part of many rows tells whether any can matter; half of what it says, to be safe
        common = np.abs(size[::step])
        common = np.minimum(common, 10.0 * np.median(common))  # an extreme row must not vouch for itself
        part = step * weighted_gram(basis.apply(X[::step]), common**2)
        bound = 2.0 * largest_size / max(float(np.linalg.eigvalsh(part)[0]), 1e-300)
        if bound < 0.2:
            return bound
    V = np.zeros((basis.rank, basis.rank))
    for rows in row_slices(*X.shape):
        V += weighted_gram(basis.apply(X[rows]), size[rows] ** 2)
    values, vectors = np.linalg.eigh(V)
    if values[0] <= 1e-12 * values[-1]:
        return 1.0
    if (bound := largest_size / float(values[0])) < 0.2:
        return bound
    root, largest = vectors / np.sqrt(values), 0.0
    for rows in row_slices(*X.shape):
        S = (basis.apply(X[rows]) @ root) * size[rows, None]
        largest = max(largest, float(np.einsum("nr,nr->n", S, S).max()))
    return largest


def _signed(test: Test, slope: float) -> Test:
    return replace(test, statistic=math.copysign(math.sqrt(test.statistic), slope), method="score, normal")


def _score_test(name: str, Y: Array, X: Array, w: Array, chosen: BoolArray, cluster: IntArray | None) -> Test:
    """Covariance of the chosen columns, given the others, with the residuals of the others."""
    others = _design(X[:, ~chosen], w)
    tested = X[:, chosen] - others @ (others.T @ (w[:, None] * X[:, chosen]))
    residual = Y - others @ (others.T @ (w[:, None] * Y))
    size = np.sqrt(w @ tested**2)
    varies = size > 1e-9 * np.sqrt(w @ X[:, chosen] ** 2)
    if not varies.any():
        return Test(name, math.nan, 0.0, math.nan, "nothing to test")
    scaled = tested[:, varies] / size[varies]
    scores = (w * scaled.T[:, None, :] * residual.T[None, :, :]).reshape(-1, len(Y))
    sums = cluster_sums(scores, cluster)
    found = wald(name, sums.sum(axis=1), sums @ sums.T, math.inf)
    return replace(found, method=f"score, chi-squared({found.df:g})")


def _design(X: Array, w: Array) -> Array:
    """Orthonormal basis of a constant and the columns of ``X``."""
    ones = np.ones((len(w), 1))
    if not X.shape[1] or not (np.ptp(X, axis=0) > 0.0).any():
        return ones
    return np.column_stack([ones, protected_basis(X, w).apply(X)])
