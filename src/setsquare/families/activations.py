"""Activations: monotone functions ``h`` with their derivatives and antiderivative.

Nothing is clipped. Where a value exceeds float64 it is an infinity of the right sign; an ``eta`` outside the domain has
the mean NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit

from setsquare.typing import Array

Three = tuple[Array, Array, Array]


@dataclass(frozen=True, slots=True)
class Activation:
    """A monotone function ``h`` and what the solvers need of it.

    Attributes
    ----------
    name : str
    derivatives : callable
        ``eta -> (h, h', h'')``, computed together because they share their exponentials.
    antiderivative : callable
        ``eta -> H`` with ``H' = h``.
    inverse : callable
        ``mu -> eta``; ``None`` where ``h`` is not invertible (ReLU).
    domain, range : tuple of float
        Open interval of ``eta`` and closure of the values of ``h``.
    """

    name: str
    derivatives: Callable[[Array], Three]
    antiderivative: Callable[[Array], Array]
    inverse: Callable[[Array], Array] | None
    domain: tuple[float, float] = (-np.inf, np.inf)
    range: tuple[float, float] = (-np.inf, np.inf)

    def __call__(self, eta: Array) -> Array:
        """Return ``h(eta)``.

        Examples
        --------
        >>> import numpy as np
        >>> SIGMOID(np.array([-800.0, 0.0, 800.0]))
        array([0. , 0.5, 1. ])
        """
        return self.derivatives(np.asarray(eta, dtype=np.float64))[0]

    def __reduce__(self) -> tuple[Any, ...]:
        name, _, parameter = self.name.partition(":")
        return (_restore_activation, (name, float(parameter) if parameter else None))


def _identity(eta: Array) -> Three:
    return eta, np.ones_like(eta), np.zeros_like(eta)


def _half_square(eta: Array) -> Array:
    return 0.5 * eta * eta


def _sigmoid(eta: Array) -> Three:
    # One exponential for all three, four times as fast as expit; neither mu nor 1 - mu loses a digit.
    e = np.exp(-np.abs(eta))
    large = 1.0 / (1.0 + e)
    small = e * large
    mu = np.where(eta >= 0.0, large, small)
    slope = large * small
    return mu, slope, slope * (1.0 - 2.0 * mu)


def softplus(eta: Array) -> Array:
    """``log(1 + exp(eta))``, exact for any size of ``eta``."""
    positive: Array = np.maximum(eta, 0.0)
    return positive + np.log1p(np.exp(-np.abs(eta)))


def _logit(mu: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(mu) - np.log1p(-mu)


def exp(eta: Array) -> Array:
    """``exp(eta)``, infinite beyond float64 without a warning."""
    with np.errstate(over="ignore"):
        return np.exp(eta)


def _exp_three(eta: Array) -> Three:
    mu = exp(eta)
    return mu, mu, mu


def _log(mu: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(mu)


def _relu(eta: Array) -> Three:
    active = (eta > 0.0).astype(np.float64)
    return np.maximum(eta, 0.0), active, np.zeros_like(eta)


def _relu_antiderivative(eta: Array) -> Array:
    return _half_square(np.maximum(eta, 0.0))


def _tanh(eta: Array) -> Three:
    t: Array = np.tanh(eta)
    slope = 4.0 * expit(2.0 * eta) * expit(-2.0 * eta)
    return t, slope, -2.0 * t * slope


def _log_cosh(eta: Array) -> Array:
    size: Array = np.abs(eta)
    return softplus(-2.0 * size) + size - math.log(2.0)


def softmax(scores: Array) -> Array:
    """Softmax of each row, stable for any size of the scores."""
    p: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return p


def _softmax_diagonals(eta: Array) -> Three:
    p = softmax(eta)
    slope = p * (1.0 - p)
    return p, slope, slope * (1.0 - 2.0 * p)


def log_sum_exp(scores: Array) -> Array:
    """Antiderivative of the softmax, one value a row."""
    top: Array = scores.max(axis=-1, keepdims=True)
    total: Array = np.log(np.exp(scores - top).sum(axis=-1)) + top[..., 0]
    return total


def _power(eta: Array, power: float) -> Three:
    """Canonical mean of a Tweedie family: ``mu = ((1-power) eta)^(1/(1-power))``; ``h' = V(mu) = mu^power``."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        mu = np.where(eta < 0.0, ((1.0 - power) * eta), np.nan) ** (1.0 / (1.0 - power))
        return mu, mu**power, power * mu ** (2.0 * power - 1.0)


def _power_antiderivative(eta: Array, power: float) -> Array:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        base: Array = np.where(eta < 0.0, (1.0 - power) * eta, np.nan)
        H: Array = -np.log(base) if power == 2.0 else base ** ((2.0 - power) / (1.0 - power)) / (2.0 - power)
    return H


def _power_link(mu: Array, power: float) -> Array:
    with np.errstate(divide="ignore"):
        eta: Array = mu ** (1.0 - power) / (1.0 - power)
    return eta


def _negative_binomial(eta: Array, theta: float) -> Three:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        mu = np.where(eta < 0.0, theta / np.expm1(-eta), np.nan)
        variance = mu + mu * mu / theta
        return mu, variance, (1.0 + 2.0 * mu / theta) * variance


def _negative_binomial_antiderivative(eta: Array, theta: float) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(eta < 0.0, -theta * np.log(-np.expm1(np.minimum(eta, 0.0))), np.nan)


def _negative_binomial_link(mu: Array, theta: float) -> Array:
    with np.errstate(divide="ignore"):
        return -np.log1p(theta / mu)


IDENTITY = Activation("identity", _identity, _half_square, inverse=np.positive)
SIGMOID = Activation("sigmoid", _sigmoid, softplus, inverse=_logit, range=(0.0, 1.0))
EXP = Activation("exp", _exp_three, exp, inverse=_log, range=(0.0, np.inf))
RELU = Activation("relu", _relu, _relu_antiderivative, inverse=None, range=(0.0, np.inf))
TANH = Activation("tanh", _tanh, _log_cosh, inverse=np.arctanh, range=(-1.0, 1.0))
#: Vector-valued along the last axis; ``derivatives`` are the diagonals, ``antiderivative`` one value a row.
SOFTMAX = Activation("softmax", _softmax_diagonals, log_sum_exp, inverse=_log, range=(0.0, 1.0))
#: The mean of the log-binomial family: ``exp``, but only for negative ``eta``.
EXP_BELOW_ONE = Activation("exp-below-one", _exp_three, exp, _log, domain=(-np.inf, 0.0), range=(0.0, 1.0))


def power_activation(power: float) -> Activation:
    """Canonical mean function of the Tweedie family of this power."""
    return Activation(
        f"power:{power!r}",
        partial(_power, power=power),
        partial(_power_antiderivative, power=power),
        partial(_power_link, power=power),
        domain=(-np.inf, 0.0),
        range=(0.0, np.inf),
    )


def negative_binomial_activation(theta: float) -> Activation:
    """Canonical mean function of the negative binomial family."""
    return Activation(
        f"negative-binomial:{theta!r}",
        partial(_negative_binomial, theta=theta),
        partial(_negative_binomial_antiderivative, theta=theta),
        partial(_negative_binomial_link, theta=theta),
        domain=(-np.inf, 0.0),
        range=(0.0, np.inf),
    )


ACTIVATIONS = {a.name: a for a in (IDENTITY, SIGMOID, EXP, RELU, TANH, SOFTMAX, EXP_BELOW_ONE)}
_PARAMETRIC = {"power": power_activation, "negative-binomial": negative_binomial_activation}


def _restore_activation(name: str, parameter: float | None) -> Activation:
    return ACTIVATIONS[name] if parameter is None else _PARAMETRIC[name](parameter)
