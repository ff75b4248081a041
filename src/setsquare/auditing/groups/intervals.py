"""Ends of confidence intervals of numbers by group, their differences and ratios, for a given critical value.

A rate has Jeffreys' interval (Brown, Cai and DasGupta 2001), with an effective number of rows that reproduces its
estimated variance: weights and clusters enter there. At the extreme tails that many groups need, it covers rare events
better than Wilson's. A rate so small that even a group without an event would not rule it out can be missed on one side
only, which then has half of the other side's error too; the same holds near 1. (With all of it, 20 groups of 50 rows
were covered in 94.3 to 94.6 % of samples, with half in 95.4 to 95.9 %, with none in 97.1 to 97.3 %, by enumeration.)

A mean of other values has an interval with the skewness of the mean (Hall 1992), by the cube root of Wilson and
Hilferty (1931). A skewness is estimated too small from few rows, so the longer side takes more of it than was
estimated, and the shorter side less; of a large one, for which the correction is not made, hardly any.

Differences and ratios combine the intervals of their two parts ("square and add": Newcombe 1998, Zou and Donner 2008),
so they keep what is good about them near 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv, betaincinv, ndtr, stdtrit

from setsquare._typing import Array, BoolArray, IntArray

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
    skewness : ndarray of shape (2, K), optional
        Smallest and largest skewness that the values behind a mean may have: for the lower and the upper end of its
        interval. NaN where it is unknown. None for counts.
    is_doubtful : boolean ndarray of shape (K,), optional
        Means on which a few rows decide, so that intervals can be too short.
    """

    value: Array
    covariance: Array
    is_rate: bool
    size: Array
    df: Array
    skewness: Array | None = None
    is_doubtful: BoolArray | None = None

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
    low, high = ends(numbers, critical)
    counted = numbers.is_known & numbers.is_rate & np.isinf(numbers.df)
    with np.errstate(all="ignore"):
        tail, n = ndtr(-critical), np.minimum(numbers.size, EXACT_SIZE)
        below, above = _jeffreys(numbers.value, n, np.full(len(n), 1.5 * tail))
        low_of_all, high_of_none = tail ** (1.0 / n), 1.0 - tail ** (1.0 / n)
        below = np.maximum(low, np.minimum(below, high_of_none))
        above = np.minimum(high, np.maximum(above, low_of_all))
    return np.where(counted, below, low), np.where(counted, above, high)


def ends(numbers: Estimates, critical: float) -> tuple[Array, Array]:
    """The same with an equal error on both sides, for differences and ratios."""
    with np.errstate(all="ignore"):
        t = np.where(np.isinf(numbers.df), critical, -stdtrit(np.maximum(numbers.df, 1.0), ndtr(-critical)))
        half = t * numbers.error
        low, high = numbers.value - half, numbers.value + half
        if numbers.is_rate:
            # Equal values have a variance of rounding only, at which inverses of the beta distribution are NaN or hang.
            size = effective_size(numbers)
            below, above = _jeffreys(numbers.value, np.minimum(size, EXACT_SIZE), ndtr(-t))
            low, high = np.where(size > EXACT_SIZE, low, below), np.where(size > EXACT_SIZE, high, above)
        if numbers.skewness is not None:
            smallest, largest = numbers.skewness
            down, up = _distance(-smallest, numbers.size, t), _distance(largest, numbers.size, t)
            skewed = np.isfinite(largest) & (numbers.error > 0.0)
            low = np.where(skewed, numbers.value - down * numbers.error, low)
            high = np.where(skewed, numbers.value + up * numbers.error, high)
        if numbers.is_rate:
            low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
        return np.where(numbers.is_known, low, np.nan), np.where(numbers.is_known, high, np.nan)


def _distance(skewness: Array, n: Array, t: Array) -> Array:
    """Distance from a mean to the end of its interval towards which the values are skewed, in standard errors."""
    size = np.abs(skewness) / np.sqrt(n)
    # Factors chosen by simulation with uniform, normal, beta and exponential values, 5 to 250 rows and 6 or 20 groups,
    # and the last one with scores expit(a + b z) and lognormal values.
    longer = size * (1.0 + np.minimum(40.0 / n, 2.0) * skewness**2 / (1.0 + skewness**2))
    shorter = size * np.maximum(1.0 - 10.0 / n, 0.0)
    shorter = shorter / (1.0 + (shorter / 0.2) ** 2)
    far, near = np.maximum(_gamma_distance(longer, t), t), np.minimum(_gamma_distance(shorter, -t), t)
    return np.where(skewness > 0.0, far, near)


def _gamma_distance(skewness: Array, z: Array) -> Array:
    """Distance of an end of Jeffreys' interval of a Poisson mean, whose count has this skewness, in standard errors."""
    count = 1.0 / np.maximum(skewness, 1e-6) ** 2
    shape = count + 0.5
    end = shape * np.maximum(1.0 - 1.0 / (9.0 * shape) + z / (3.0 * np.sqrt(shape)), 0.0) ** 3
    return np.asarray(np.abs(end - count) / np.sqrt(count))


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
    low, high = ends(numbers, critical)
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
    low, high = (np.maximum(end, 0.0) for end in ends(numbers, critical))
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
