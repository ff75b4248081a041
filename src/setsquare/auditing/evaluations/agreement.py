"""One p-value where the heteroscedasticity-robust test and the equal-variance test disagree.

For skewed predictions and rare groups the two tests err in opposite directions; their larger p-value is safe, but so
conservative that only 0.5 % of audits without a leak are rejected instead of 5 %. A permutation test of the robust
statistic is therefore used. It is exact if predictions and protected columns are independent, whatever their
distributions; and because the statistic is studentised with robust standard errors, it also holds in large samples
where only the means are equal (Janssen 1997; Chung and Romano 2013). With several columns the variances of rare groups
are too uncertain to divide by: a group whose sample happens to lack large values would dominate the statistic, shuffled
or not. They are shrunk towards a common variance, as far as they are uncertain. With one column the test rejects too
often in small samples where a small group has a much larger variance than the others, because shuffling mixes the two.
There the robust test, corrected for the skewness of the rows' scores (Hall 1992), must agree.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from setsquare._typing import Array
from setsquare.auditing.evaluations.records import Test
from setsquare.auditing.protected import Predictions, Protected
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.rows.blocks import mean_weight

N_PERMUTATIONS, BATCH = 999, 111
#: Number of permuted statistics as large as the observed one, in both tails, at which sampling stops: the p-value is then
#: at least 0.02, and valid (Besag and Clifford 1991).
ENOUGH = 20.0
#: P-values within this factor of each other agree.
AGREE = 1.25
#: Between these p-values a decision is open.
CLEAR, UNCLEAR = 1e-3, 0.15
#: Largest share of the equal-variance estimate in the covariance of several columns.
MOST_SHRUNK = 1.0 / 3.0
#: Largest number of multiplications for the permutations.
MOST_WORK = 3e8


def settle_disagreement(
    y: Predictions, protected: Protected, robust: Test, pooled: Test, rng: np.random.Generator
) -> Test:
    """Return the test to use for predictions ``y``; see the module docstring. Rows read in blocks are not permuted.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = np.arange(200.0) < 10
    >>> y = np.exp(rng.normal(size=200) + 0.6 * x)
    >>> tests = [Test("x", 4.0, 1.0, p, "") for p in (0.01, 0.06)]
    >>> settle_disagreement(y, Protected(x[:, None].astype(float), ("x",), ("x",)), *tests, rng).method
    'permutation (999) of the Wald test'
    """
    low, high = sorted((robust.p_value, pooled.p_value))
    larger = robust if robust.p_value >= pooled.p_value else pooled
    if isinstance(y, OutcomeSummary):
        return larger
    n, r = len(y), protected.basis.rank
    work = N_PERMUTATIONS * n * (2 * r + r * (r + 1) / 2)
    agree = high <= AGREE * low or high <= CLEAR or low > UNCLEAR or math.isnan(high)
    if agree or y.ndim > 1 or protected.cluster is not None or work > MOST_WORK:
        return larger
    Q, w = protected.basis.apply(protected.values), mean_weight(n, protected.weight)
    observed, null = _statistics(Q, w, y[None])[0], np.empty(0)
    while len(null) < N_PERMUTATIONS:
        shuffled = rng.permuted(np.broadcast_to(y, (BATCH, n)), axis=1)
        null = np.concatenate([null, _statistics(Q, w, shuffled)])
        p = _rank(observed, null)
        if p * len(null) > ENOUGH:
            break
    if r == 1 and larger is robust:
        p = max(p, _without_skewness(robust.p_value, y - w @ y, w, Q[:, 0]) / AGREE)
    return Test(robust.name, robust.statistic, float(r), float(p), f"permutation ({len(null)}) of the Wald test")


def _rank(observed: float, null: Array) -> float:
    """Permutation p-value of a statistic; for a signed one, twice that of the nearer tail."""
    slack = 1e-9 * abs(observed)
    above = (1.0 + np.count_nonzero(null >= observed - slack)) / (1.0 + len(null))
    if not (null < 0.0).any():
        return float(above)
    below = (1.0 + np.count_nonzero(null <= observed + slack)) / (1.0 + len(null))
    return min(1.0, 2.0 * float(min(above, below)))


def _without_skewness(p_value: float, gap: Array, w: Array, q: Array) -> float:
    """P-value of a robust test of one column, corrected for the skewness of the rows' scores."""
    effect = float(w @ (q * gap))
    scores = w * q * (gap - effect * q)
    skewness = float(np.sum(scores**3)) / max(float(scores @ scores) ** 1.5, 1e-300)
    z = math.copysign(float(special.ndtri(1.0 - 0.5 * p_value)), effect)
    # Hall's transformation is monotone; it tends to z itself where there is no skewness.
    z += skewness * (z * z / 3.0 + skewness * z**3 / 27.0 + 1.0 / 6.0)
    return 2.0 * float(special.ndtr(-abs(z)))


def _statistics(Q: Array, w: Array, Y: Array) -> Array:
    """Robust Wald statistic of a linear model for each row of ``Y`` (B, n); signed if there is one column.

    Residuals are taken from the group means, not from the common mean, which gives more power. For skewed predictions
    the two tails of a signed statistic differ, so each is tested separately.
    """
    r, pairs = Q.shape[1], np.triu_indices(Q.shape[1])
    gap = Y - (Y @ w)[:, None]
    score = gap @ (w[:, None] * Q)
    squares = (gap - score @ Q.T) ** 2
    products = (w**2)[:, None] * Q[:, pairs[0]] * Q[:, pairs[1]]
    V, equal = _symmetric(squares @ products, r), _symmetric(products.sum(axis=0)[None], r)[0]
    if r == 1:
        return np.asarray(score[:, 0] / np.sqrt(np.maximum(V[:, 0, 0], 1e-300)))
    target = squares.mean(axis=1)[:, None, None] * equal
    noise = (squares * squares) @ (w * w * np.square(Q).sum(axis=1)) ** 2 - np.square(V).sum(axis=(1, 2)) / Y.shape[1]
    V = _shrink(V, target, np.maximum(noise, 0.0))
    return np.asarray(np.einsum("br,br->b", score, np.linalg.solve(V, score[:, :, None])[:, :, 0]))


def _symmetric(upper: Array, r: int) -> Array:
    """Symmetric matrices (B, r, r) from their upper triangles (B, r (r + 1) / 2)."""
    a, b = np.triu_indices(r)
    V = np.empty((len(upper), r, r))
    V[:, a, b] = V[:, b, a] = upper
    return V


def _shrink(V: Array, target: Array, noise: Array) -> Array:
    """Covariances (B, r, r) shrunk towards those of equal variances, the more so the less certain they are.

    The share of the target is ``noise / (noise + |V - target|^2)`` with ``noise`` the sampling variance of ``V``
    (Ledoit and Wolf 2004), at most a third. It tends to zero with many rows unless the variances are equal, so the
    statistic stays studentised.
    """
    share = noise / np.maximum(noise + np.square(V - target).sum(axis=(1, 2)), 1e-300)
    share = np.clip(share, 1e-9, MOST_SHRUNK)[:, None, None]
    return np.asarray((1.0 - share) * V + share * (target + 1e-300 * np.eye(V.shape[1])))
