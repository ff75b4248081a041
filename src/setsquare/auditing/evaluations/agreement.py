"""One p-value where two tests disagree: the robust one, and the one with a single spread for all rows.

For skewed predictions and rare groups the robust test errs to one side and the other one to the other side; their
larger p-value is safe, but so careful that half a per cent of innocent audits are rejected instead of five. Shuffling
the predictions tells how often the robust statistic is as large as it is. That is exact if predictions and protected
columns are independent, whatever their distributions; and because the statistic is divided by errors that allow for
unequal spreads, it also holds in large samples where only the means are equal (Janssen 1997; Chung and Romano 2013).
In small ones it rejects too often where a small group has a much larger spread than the others: shuffling mixes the
two. There the robust test, corrected for the skewness of the rows' scores (Hall 1992), must agree.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from setsquare._typing import Array
from setsquare.auditing.evaluations.records import Test
from setsquare.auditing.protected import Protected
from setsquare.rows.blocks import mean_weight

N_PERMUTATIONS, BATCH = 999, 111
#: Shuffles with a statistic as large as the one seen, in both tails, that settle the matter.
ENOUGH = 45.0
#: P-values within this factor of each other agree.
AGREE = 1.25
#: Between these p-values a decision is open.
CLEAR, UNCLEAR = 1e-3, 0.15
#: Multiplications that shuffling may take.
MOST_WORK = 3e8


def settle_disagreement(y: Array, protected: Protected, robust: Test, pooled: Test, rng: np.random.Generator) -> Test:
    """Return the test that counts for predictions ``y`` (n,); see the module's text.

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
        if p * len(null) > ENOUGH:  # the p-value is about 0.2 or more: further shuffles would not change a decision
            break
    if r == 1 and larger is robust:
        p = max(p, _without_skewness(robust.p_value, y - w @ y, w, Q[:, 0]) / AGREE)
    return Test(robust.name, robust.statistic, float(r), float(p), f"permutation ({len(null)}) of the Wald test")


def _rank(observed: float, null: Array) -> float:
    """P-value of a statistic among those of shuffled predictions; with a sign, twice that of the nearer tail."""
    slack = 1e-9 * abs(observed)
    above = (1.0 + np.count_nonzero(null >= observed - slack)) / (1.0 + len(null))
    if not (null < 0.0).any():
        return float(above)
    below = (1.0 + np.count_nonzero(null <= observed + slack)) / (1.0 + len(null))
    return min(1.0, 2.0 * float(min(above, below)))


def _without_skewness(p_value: float, gap: Array, w: Array, q: Array) -> float:
    """P-value of a robust test of one column, as it would be if the rows' scores were not skewed."""
    effect = float(w @ (q * gap))
    scores = w * q * (gap - effect * q)
    skewness = float(np.sum(scores**3)) / max(float(scores @ scores) ** 1.5, 1e-300)
    z = math.copysign(float(special.ndtri(1.0 - 0.5 * p_value)), effect)
    # Hall's transformation is monotone; it tends to z itself where there is no skewness.
    z += skewness * (z * z / 3.0 + skewness * z**3 / 27.0 + 1.0 / 6.0)
    return 2.0 * float(special.ndtr(-abs(z)))


def _statistics(Q: Array, w: Array, Y: Array) -> Array:
    """Robust Wald statistic of a linear model for each row of ``Y`` (B, n); of one column with the sign of the effect.

    Its errors are those around the means of the groups, and not around the common mean: that finds more. For skewed
    predictions the two tails of a signed statistic differ, so each is judged by itself.
    """
    r = Q.shape[1]
    gap = Y - (Y @ w)[:, None]
    score = gap @ (w[:, None] * Q)
    pairs = np.triu_indices(r)
    V = np.empty((len(Y), r, r))
    residual = gap - score @ Q.T
    V[:, pairs[0], pairs[1]] = (residual * residual) @ ((w**2)[:, None] * Q[:, pairs[0]] * Q[:, pairs[1]])
    V[:, pairs[1], pairs[0]] = V[:, pairs[0], pairs[1]]
    size = np.trace(V, axis1=1, axis2=2)[:, None, None] / r
    V += 1e-12 * np.maximum(size, 1e-300) * np.eye(r)
    if r == 1:
        return np.asarray(score[:, 0] / np.sqrt(V[:, 0, 0]))
    return np.asarray(np.einsum("br,br->b", score, np.linalg.solve(V, score[:, :, None])[:, :, 0]))
