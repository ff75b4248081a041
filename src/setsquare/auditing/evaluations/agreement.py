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
from setsquare.auditing.evaluations.shifts import Shifts, size_of
from setsquare.auditing.protected import Predictions, Protected
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.rows.blocks import mean_weight

N_PERMUTATIONS = 999
#: Number of permuted statistics as large as the observed one, in both tails, at which sampling stops: the p-value is
#: then at least 0.02, and valid (Besag and Clifford 1991).
ENOUGH = 20.0
#: P-values within this factor of each other agree.
AGREE = 1.25
#: Between these p-values a decision is open.
CLEAR, UNCLEAR = 1e-3, 0.15
#: Largest number of products held for the permutations, about 25 bytes each.
MOST_PRODUCTS = 4_000_000


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
    'permutation (399) of the Wald test'
    """
    low, high = sorted((robust.p_value, pooled.p_value))
    larger = robust if robust.p_value >= pooled.p_value else pooled
    if isinstance(y, OutcomeSummary):
        return larger
    n, r = len(y), protected.basis.rank
    agree = high <= AGREE * low or high <= CLEAR or low > UNCLEAR or math.isnan(high)
    if agree or y.ndim > 1 or protected.cluster is not None or size_of(n, r) > MOST_PRODUCTS:
        return larger
    Q, w = protected.basis.apply(protected.values), mean_weight(n, protected.weight)
    p, count = _permute(Q, w, y, rng)
    if r == 1 and larger is robust:
        p = max(p, _without_skewness(robust.p_value, y - w @ y, w, Q[:, 0]) / AGREE)
    return Test(robust.name, robust.statistic, float(r), float(p), f"permutation ({count}) of the Wald test")


def _permute(Q: Array, w: Array, y: Array, rng: np.random.Generator) -> tuple[float, int]:
    """P-value of the Wald test of the columns ``Q`` by permutations of ``y``, and their number."""
    n, order = len(y), rng.permutation(len(y))
    shifts, y = Shifts.of(Q[order], w[order]), y[order]
    moves = np.arange(n) if n <= N_PERMUTATIONS else rng.choice(n - 1, N_PERMUTATIONS, replace=False) + 1
    observed, *null = shifts.statistics(y, np.append(0, moves[moves > 0]))
    while (p := _rank(observed, np.asarray(null))) * len(null) <= ENOUGH and len(null) < N_PERMUTATIONS:
        null = [*null, *shifts.statistics(rng.permutation(y), moves)][:N_PERMUTATIONS]
    return p, len(null)


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
