"""Confidence intervals of single numbers, differences and ratios, for any critical value; vectorised.

A rate has Jeffreys' interval (Brown, Cai and DasGupta 2001), with an effective number of rows that reproduces its
estimated variance: weights and clusters enter there. At the extreme tails that many groups need, it covers rare events
better than Wilson's. Differences and ratios combine the intervals of their two parts ("square and add": Newcombe 1998,
Zou and Donner 2008), so they keep what is good about them near 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv, betaincinv, ndtr, stdtrit

from setsquare._typing import Array, BoolArray, IntArray


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
            low, high = _jeffreys(numbers.value, effective_size(numbers), ndtr(-t))
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
