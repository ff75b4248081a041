"""Simultaneous confidence intervals of numbers, differences and ratios: their covariance, critical values and ends.

A rate has Jeffreys' interval (Brown, Cai and DasGupta 2001), with an effective number of rows that reproduces its
estimated variance: weights and clusters enter there. At the extreme tails that many groups need, it covers rare events
better than Wilson's. Differences and ratios combine the intervals of their two parts ("square and add": Newcombe 1998,
Zou and Donner 2008), so they keep what is good about them near 0 and 1.

Critical values come from the distribution of the largest of many studentised numbers. A multiplier bootstrap weights
the influence of row (or cluster) i by a random ``xi_i`` and takes the largest absolute studentised sum. With normal
multipliers, the sums are, given the data, exactly normal with the covariance of the influences: so their largest is
drawn from that covariance, and no draw has to read the rows (Chernozhukov, Chetverikov and Kato 2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.special import betainccinv, betaincinv, ndtr, ndtri, stdtrit

from setsquare._typing import Array, BoolArray, IntArray

#: Draws of the largest number; the coverage then has a Monte Carlo standard error of 0.3 percentage points.
N_DRAWS = 5000
#: With more contrasts, Bonferroni's critical value is used: it is hardly larger then, and costs nothing.
MANY = 4000
#: Effective number of rows above which an interval of a rate is the normal one.
EXACT_SIZE = 1e8


@dataclass(frozen=True, slots=True)
class Estimates:
    """Estimates of one number in K groups.

    Attributes
    ----------
    value : ndarray of shape (K,)
        NaN where it is undefined.
    covariance : ndarray of shape (K, K)
    is_rate : bool
        Whether the number is a mean of values between 0 and 1 (or an AUC).
    size : ndarray of shape (K,)
        Effective number of rows for values of 0 and 1; used where the variance follows from the rate, or is 0.
    df : ndarray of shape (K,)
        Degrees of freedom of the variance; infinite where it follows from the rate.
    """

    value: Array
    covariance: Array
    is_rate: bool
    size: Array
    df: Array

    @property
    def error(self) -> Array:
        """Standard errors."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def is_known(self) -> BoolArray:
        """Numbers that have an interval."""
        known = np.isfinite(self.value) & (self.size > 0.0)
        return known if self.is_rate else known & (self.error > 0.0) & (self.df > 0.0)


def single(numbers: Estimates, critical: float) -> tuple[Array, Array]:
    """Ends of the intervals of the numbers themselves; NaN where there is none.

    Parameters
    ----------
    numbers : Estimates
    critical : float
        Critical value on the normal scale; Student's t takes its place where the variance is estimated.

    Examples
    --------
    >>> rate = Estimates(np.array([0.0]), np.zeros((1, 1)), True, np.array([20.0]), np.array([np.inf]))
    >>> [float(end.round(3)[0]) for end in single(rate, 1.96)]
    [0.0, 0.168]
    """
    with np.errstate(all="ignore"):
        t = np.where(np.isinf(numbers.df), critical, -stdtrit(np.maximum(numbers.df, 1.0), ndtr(-critical)))
        if not numbers.is_rate:
            half = t * numbers.error
            low, high = numbers.value - half, numbers.value + half
        else:
            size = effective_size(numbers)
            low, high = _jeffreys(numbers.value, np.minimum(size, EXACT_SIZE), ndtr(-t))
            # Equal values have a variance of rounding only, at which inverses of the beta distribution are NaN or hang.
            many, half = size > EXACT_SIZE, t * numbers.error
            low, high = np.where(many, numbers.value - half, low), np.where(many, numbers.value + half, high)
        return np.where(numbers.is_known, low, np.nan), np.where(numbers.is_known, high, np.nan)


def effective_size(numbers: Estimates) -> Array:
    """Number of rows at which a rate of 0/1 values would have the estimated variance."""
    p, variance = numbers.value, np.diag(numbers.covariance)
    with np.errstate(all="ignore"):
        size = p * (1.0 - p) / variance
    return np.where((variance > 0.0) & (size > 0.0) & np.isfinite(numbers.df), size, numbers.size)


def difference(numbers: Estimates, critical: float, i: IntArray, j: IntArray) -> tuple[Array, Array, Array]:
    """Estimates and interval ends of ``value[i] - value[j]``.

    Examples
    --------
    >>> rates = Estimates(np.array([0.8, 0.6]), np.diag([0.0016, 0.0024]), True, np.full(2, 100.0), np.full(2, np.inf))
    >>> [round(float(x[0]), 3) for x in difference(rates, 1.96, np.array([0]), np.array([1]))]
    [0.2, 0.074, 0.32]
    """
    low, high = single(numbers, critical)
    p, rho = numbers.value, _correlation(numbers, i, j)
    gap = p[i] - p[j]
    down, up = root(p[i] - low[i], high[j] - p[j], rho), root(high[i] - p[i], p[j] - low[j], rho)
    return gap, gap - down, gap + up


def ratio(numbers: Estimates, critical: float, i: IntArray, j: IntArray) -> tuple[Array, Array, Array]:
    """Estimates and interval ends of ``value[i] / value[j]``, on the log scale; NaN if the denominator is 0.

    If one of the two is 0, the ends are those of the numerator over the opposite ends of the denominator. A negative
    number has no ratio.

    Examples
    --------
    >>> rates = Estimates(np.array([0.3, 0.6]), np.diag([0.0021, 0.0024]), True, np.full(2, 100.0), np.full(2, np.inf))
    >>> [round(float(x[0]), 3) for x in ratio(rates, 1.96, np.array([0]), np.array([1]))]
    [0.5, 0.351, 0.693]
    """
    low, high = (np.maximum(end, 0.0) for end in single(numbers, critical))
    p, rho = numbers.value, _correlation(numbers, i, j)
    with np.errstate(all="ignore"):
        value = np.where(p[j] > 0.0, p[i] / p[j], np.nan)
        centre, bottom, top = np.log(p), np.log(low), np.log(high)
        down = root(centre[i] - bottom[i], top[j] - centre[j], rho)
        up = root(top[i] - centre[i], centre[j] - bottom[j], rho)
        zero = (p[i] == 0.0) | (p[j] == 0.0)
        bottom = np.where(zero, low[i] / high[j], value * np.exp(-down))
        top = np.where(zero, high[i] / low[j], value * np.exp(up))
    bad = ~((p[i] >= 0.0) & (p[j] >= 0.0))
    return np.where(bad, np.nan, value), np.where(bad, np.nan, bottom), np.where(bad, np.nan, top)


def _jeffreys(p: Array, n: Array, tail: Array) -> tuple[Array, Array]:
    x, rest = n * p + 0.5, n * (1.0 - p) + 0.5
    low, high = betaincinv(x, rest, tail), betainccinv(x, rest, tail)
    # Without an event, or without anything else, the exact bound: Jeffreys' is too short there.
    low, high = np.where(p >= 1.0, tail ** (1.0 / n), low), np.where(p <= 0.0, 1.0 - tail ** (1.0 / n), high)
    return np.where(p <= 0.0, 0.0, np.minimum(low, p)), np.where(p >= 1.0, 1.0, np.maximum(high, p))


def root(a: Array, b: Array, rho: Array) -> Array:
    """Length of the sum of two distances with a correlation."""
    with np.errstate(all="ignore"):
        # An infinite distance (log 0) times a correlation of 0 would be NaN.
        cross = np.where(rho == 0.0, 0.0, 2.0 * rho * a * b)
        return np.sqrt(np.maximum(a**2 + b**2 - cross, 0.0))


def _correlation(numbers: Estimates, i: IntArray, j: IntArray) -> Array:
    error = numbers.error
    with np.errstate(all="ignore"):
        rho = numbers.covariance[i, j] / (error[i] * error[j])
    return np.clip(np.where(np.isfinite(rho), rho, 0.0), -1.0, 1.0)


def covariance(
    influences: Sequence[Array], codes: Sequence[IntArray], n_groups: Sequence[int], cluster: IntArray | None = None
) -> Array:
    """Covariance (K, K) of the numbers of all groups of several partitions.

    Parameters
    ----------
    influences : sequence of ndarray of shape (n,)
        For each partition, the influence of each row on the number of its own group.
    codes : sequence of integer ndarray of shape (n,)
        Groups of each partition; -1 for none.
    n_groups : sequence of int
        Number of groups of each partition; K is their sum.
    cluster : integer ndarray of shape (n,), optional
        Influences are summed within clusters.

    Examples
    --------
    >>> psi, codes = np.array([0.1, -0.1, 0.2, -0.2]), np.array([0, 0, 1, 1])
    >>> covariance([psi], [codes], [2]).round(3).tolist()
    [[0.04, 0.0], [0.0, 0.16]]
    """
    if cluster is None:
        C, units = _of_rows(influences, codes, n_groups)
    else:
        C, units = _of_clusters(influences, codes, n_groups, cluster)
    factor = np.sqrt(np.where(units > 1, units / np.maximum(units - 1.0, 1.0), 1.0))
    return np.asarray(C * factor * factor[:, None])


def _of_rows(influences: Sequence[Array], codes: Sequence[IntArray], n_groups: Sequence[int]) -> tuple[Array, IntArray]:
    """Sums of products of influences, and the number of rows that count for each number."""
    starts = np.concatenate([[0], np.cumsum(n_groups)])
    C = np.zeros((int(starts[-1]), int(starts[-1])))
    units = []
    for s, (a, first) in enumerate(zip(influences, codes, strict=True)):
        here = slice(starts[s], starts[s + 1])
        units.append(np.bincount(first + 1, a != 0.0, n_groups[s] + 1)[1:])
        C[here, here] = np.diag(np.bincount(first + 1, a * a, n_groups[s] + 1)[1:])
        for t in range(s + 1, len(codes)):
            # Row -1 and column -1 (no group) are computed beside the others and left out.
            both = (first + 1) * (n_groups[t] + 1) + codes[t] + 1
            sums = np.bincount(both, a * influences[t], (n_groups[s] + 1) * (n_groups[t] + 1))
            block = sums.reshape(n_groups[s] + 1, n_groups[t] + 1)[1:, 1:]
            there = slice(starts[t], starts[t + 1])
            C[here, there], C[there, here] = block, block.T
    return C, np.concatenate(units)


def _of_clusters(
    influences: Sequence[Array], codes: Sequence[IntArray], n_groups: Sequence[int], cluster: IntArray
) -> tuple[Array, IntArray]:
    """The same with influences summed within clusters first; units are clusters."""
    starts = np.concatenate([[0], np.cumsum(n_groups)])
    used = [(code >= 0) & (a != 0.0) for a, code in zip(influences, codes, strict=True)]
    data = np.concatenate([a[keep] for a, keep in zip(influences, used, strict=True)])
    column = np.concatenate([code[keep] + start for code, keep, start in zip(codes, used, starts[:-1], strict=True)])
    row = np.concatenate([cluster[keep] for keep in used])
    sums = sparse.coo_array((data, (row, column)), shape=(int(cluster.max()) + 1, int(starts[-1]))).tocsr()
    return (sums.T @ sums).toarray(), np.bincount(sums.indices, minlength=int(starts[-1]))


def critical_value(
    C: Array, i: IntArray, j: IntArray | None, confidence: float, rng: np.random.Generator, n_draws: int = N_DRAWS
) -> float:
    """Critical value such that all intervals of ``x[i]``, or of ``x[i] - x[j]``, hold at once.

    Parameters
    ----------
    C : ndarray of shape (K, K)
        Covariance of x.
    i, j : integer ndarrays of shape (m,)
        The numbers, or the pairs of numbers, that have intervals.
    confidence : float
    rng : numpy.random.Generator
    n_draws : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> three = np.arange(3)
    >>> round(critical_value(np.eye(3), three, None, 0.95, rng), 1)  # 2.39 by Sidak's formula
    2.4
    """
    alone = float(-ndtri(0.5 * (1.0 - confidence)))
    if len(i) < 2:
        return alone
    bonferroni = float(-ndtri(0.5 * (1.0 - confidence) / len(i)))
    if len(i) > MANY:
        return bonferroni
    used, place = np.unique(np.concatenate([i, i if j is None else j]), return_inverse=True)
    D, first = C[np.ix_(used, used)], place[: len(i)]
    second = None if j is None else place[len(i) :]
    largest = _draw_largest(D, first, second, rng, n_draws)
    return float(min(max(np.quantile(largest, confidence), alone), bonferroni))


def _draw_largest(D: Array, i: IntArray, j: IntArray | None, rng: np.random.Generator, n_draws: int) -> Array:
    """Draws (n_draws,) of the largest absolute studentised number or difference under the covariance D."""
    d = np.diag(D)
    variance = d[i] if j is None else d[i] + d[j] - 2.0 * D[i, j]
    scale = np.sqrt(np.where(d > 0.0, d, 1.0))
    values, vectors = np.linalg.eigh(D / scale / scale[:, None])
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) * scale[:, None]
    error = np.sqrt(np.maximum(variance, 0.0))
    moves = error > 1e-12 * scale[i]
    largest = np.zeros(n_draws)
    if still := int((~moves).sum()):  # without an estimated variance: as if independent of the others
        largest = np.abs(rng.standard_normal((n_draws, min(still, 50)))).max(axis=1)
    if not moves.any():
        return largest
    contrast = root[i[moves]] if j is None else root[i[moves]] - root[j[moves]]
    contrast = (contrast / error[moves, None]).T
    step = max(1, 100_000 // len(i))  # draws that stay in the cache
    for start in range(0, n_draws, step):
        part = slice(start, min(start + step, n_draws))
        x = rng.standard_normal((part.stop - start, len(d))) @ contrast
        largest[part] = np.maximum(largest[part], np.maximum(x.max(axis=1), -x.min(axis=1)))
    return largest
