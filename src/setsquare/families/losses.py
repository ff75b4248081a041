"""Losses for log links that are not canonical, and unit deviances.

A loss returns the negative log-likelihood of each row, without constants, and its first two derivatives in ``eta``.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, xlogy

from setsquare._typing import Array
from setsquare.families.activations import Three, exp, softplus


def gaussian_loss(y: Array, eta: Array) -> Three:
    """Gaussian with identity link: half the squared error."""
    gap = eta - y
    return 0.5 * gap * gap, gap, np.ones_like(gap)


def gaussian_log_loss(y: Array, eta: Array) -> Three:
    """Gaussian with log link."""
    mu = exp(eta)
    with np.errstate(over="ignore"):
        return 0.5 * (y - mu) ** 2, (mu - y) * mu, mu * (2.0 * mu - y)


def binomial_log_loss(y: Array, eta: Array) -> Three:
    """Binomial with log link (risk ratios); ``eta`` must be negative."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        odds = np.where(eta < 0.0, 1.0 / np.expm1(-eta), np.nan)
        loss = np.where(eta < 0.0, -y * eta - (1.0 - y) * np.log(-np.expm1(np.minimum(eta, 0.0))), np.inf)
        return loss, (1.0 - y) * odds - y, (1.0 - y) * odds * (1.0 + odds)


def negative_binomial_log_loss(y: Array, eta: Array, theta: float) -> Three:
    """Negative binomial with log link."""
    shifted = eta - np.log(theta)
    share = expit(shifted)
    loss = (y + theta) * (softplus(shifted) + np.log(theta)) - y * eta
    return loss, (y + theta) * share - y, (y + theta) * share * expit(-shifted)


def tweedie_log_loss(y: Array, eta: Array, power: float) -> Three:
    """``y mu^(1-power)/(power-1) + mu^(2-power)/(2-power)`` with ``mu = exp(eta)``; gamma is ``power = 2``."""
    with np.errstate(invalid="ignore"):
        pull = np.where(y == 0.0, 0.0, y * exp((1.0 - power) * eta))  # 0 * inf must be 0
    if power == 2.0:
        return pull + eta, 1.0 - pull, pull
    if power < 2.0:
        push = exp((2.0 - power) * eta)
        return (
            pull / (power - 1.0) + push / (2.0 - power),
            push - pull,
            (power - 1.0) * pull + (2.0 - power) * push,
        )
    # Both terms overflow together for power > 2, so factor out what they share.
    factor, ratio = exp((2.0 - power) * eta), y * exp(-eta)
    with np.errstate(over="ignore"):
        return (
            factor * (ratio / (power - 1.0) - 1.0 / (power - 2.0)),
            factor * (1.0 - ratio),
            factor * ((power - 1.0) * ratio - (power - 2.0)),
        )


def gaussian_deviance(y: Array, mu: Array) -> Array:
    """Squared error."""
    squares: Array = (y - mu) ** 2
    return squares


def binomial_deviance(y: Array, mu: Array) -> Array:
    """Binomial deviance; ``y`` may be a proportion."""
    z, nu = 1.0 - y, 1.0 - mu
    units: Array = 2.0 * (xlogy(y, y) - xlogy(y, mu)) + 2.0 * (xlogy(z, z) - xlogy(z, nu))
    return units


def poisson_deviance(y: Array, mu: Array) -> Array:
    """Poisson deviance."""
    units: Array = 2.0 * (xlogy(y, y) - xlogy(y, mu) - y + mu)
    return units


def gamma_deviance(y: Array, mu: Array) -> Array:
    """Gamma deviance."""
    units: Array = 2.0 * (y / mu - 1.0 - np.log(y / mu))
    return units


def tweedie_deviance(y: Array, mu: Array, power: float) -> Array:
    """Tweedie deviance of the given power."""
    saturated = np.maximum(y, 0.0) ** (2.0 - power) / ((1.0 - power) * (2.0 - power))
    units: Array = 2.0 * (saturated - y * mu ** (1.0 - power) / (1.0 - power) + mu ** (2.0 - power) / (2.0 - power))
    return units


def negative_binomial_deviance(y: Array, mu: Array, theta: float) -> Array:
    """Negative binomial deviance."""
    units: Array = 2.0 * (xlogy(y, y) - xlogy(y, mu) - (y + theta) * (np.log(y + theta) - np.log(mu + theta)))
    return units


def multinomial_deviance(y: Array, mu: Array) -> Array:
    """Multinomial deviance of one-hot (or fractional) rows."""
    terms: Array = 2.0 * (xlogy(y, y) - xlogy(y, mu)).sum(axis=-1)
    return terms
