"""Activations: monotone functions ``h`` with their derivatives and antiderivative.

Nothing is clipped. Values that exceed float64 become infinite with the right sign; the mean is NaN for an ``eta``
outside the domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtr, spence

from setsquare._typing import Array

#: Values between 1 and 2 whose product has a logarithm taken at once; it is far from overflow.
TOGETHER = 64
Three = tuple[Array, Array, Array]
Four = tuple[Array, Array, Array, Array]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Activation:
    """An increasing function ``h``, with the derivatives and the inverse that the solvers need.

    Attributes
    ----------
    name : str
    evaluate : callable
        ``eta -> (H, h, h', h'')`` with ``H' = h``, computed together because they share their exponentials.
    inverse : callable
        ``mu -> eta``; ``None`` where ``h`` is not invertible (ReLU).
    domain, range : tuple of float
        Open interval of valid ``eta``, and closed interval of the values of ``h``.
    value : callable or None
        ``eta -> h`` alone, with the same digits, where that takes less time.
    """

    name: str
    evaluate: Callable[[Array], Four]
    inverse: Callable[[Array], Array] | None
    domain: tuple[float, float] = (-np.inf, np.inf)
    range: tuple[float, float] = (-np.inf, np.inf)
    value: Callable[[Array], Array] | None = None

    def __call__(self, eta: Array) -> Array:
        """Return ``h(eta)``.

        Examples
        --------
        >>> import numpy as np
        >>> SIGMOID(np.array([-800.0, 0.0, 800.0]))
        array([0. , 0.5, 1. ])
        """
        eta = np.asarray(eta, dtype=np.float64)
        return self.evaluate(eta)[1] if self.value is None else self.value(eta)

    def __repr__(self) -> str:
        return f"<activation {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Activation) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        name, _, parameter = self.name.partition(":")
        if name not in ACTIVATIONS and name not in _PARAMETRIC:  # given by the user
            return (Activation, (self.name, self.evaluate, self.inverse, self.domain, self.range))
        return (_restore_activation, (name, float(parameter) if parameter else None))


def _identity(eta: Array) -> Four:
    return 0.5 * eta * eta, eta, np.ones_like(eta), np.zeros_like(eta)


def _sigmoid(eta: Array) -> Four:
    # A single exponential for all four; neither mu nor 1 - mu loses digits.
    if not eta.ndim:
        H, mu, slope, bend = _sigmoid(eta[None])
        return H[0], mu[0], slope[0], bend[0]
    e, above, large, small, mu = _halves(eta)
    # np.log1p(e) would take as long as all the rest: use the logarithm of the rounded sum plus the rounding error.
    H = np.log(above)
    above -= 1.0
    e -= above
    e *= large
    H += e
    H += np.maximum(eta, 0.0, out=above)
    return H, mu, *_slopes(mu, large, small)


def sigmoid_sum(eta: Array) -> tuple[float, Array, Array, Array]:
    """The sum of ``H`` over the rows, (n,), and ``h``, ``h'`` and ``h''``: logarithms of products are far fewer.

    Examples
    --------
    >>> import numpy as np
    >>> eta = np.linspace(-40.0, 40.0, 1001)
    >>> bool(abs(sigmoid_sum(eta)[0] / SIGMOID.evaluate(eta)[0].sum() - 1.0) < 1e-15)
    True
    """
    e, above, large, small, mu = _halves(eta)
    whole = len(above) - len(above) % TOGETHER
    logs = np.log(np.multiply.reduce(above[:whole].reshape(TOGETHER, -1), axis=0)).sum()
    logs += np.log(above[whole:]).sum()
    above -= 1.0
    e -= above
    total = logs + np.dot(e, large) + np.maximum(eta, 0.0, out=above).sum()
    return float(total), mu, *_slopes(mu, large, small)


def _halves(eta: Array) -> tuple[Array, Array, Array, Array, Array]:
    """``e = exp(-|eta|)``, ``1 + e``, the probabilities above and below one half, and ``h``."""
    # Intermediate results are overwritten, which keeps them in the cache.
    e = np.abs(eta)
    np.negative(e, out=e)
    np.exp(e, out=e)
    above = 1.0 + e
    large = 1.0 / above
    small = e * large
    return e, above, large, small, _sided(eta, e, large)


def _sided(eta: Array, e: Array, large: Array) -> Array:
    """``h``: the probability above one half for ``eta >= 0``, that below it for others."""
    # Numerator 1 or e: choosing by np.where takes several times as long where signs are mixed.
    return np.asarray(np.maximum(eta >= 0.0, e) * large)


def _slopes(mu: Array, large: Array, small: Array) -> tuple[Array, Array]:
    """``h'`` and ``h''``, in the memory of the probabilities above and below one half."""
    large *= small
    np.multiply(mu, -2.0, out=small)
    small += 1.0
    small *= large
    return large, small


def _sigmoid_value(eta: Array) -> Array:
    """``h`` of :func:`_sigmoid`, with the same digits."""
    e = np.exp(-np.abs(eta))
    large = 1.0 / (1.0 + e)
    return _sided(eta, e, large)


def softplus(eta: Array) -> Array:
    """``log(1 + exp(eta))``, accurate for any ``eta``."""
    positive: Array = np.maximum(eta, 0.0)
    return positive + np.log1p(np.exp(-np.abs(eta)))


def exp(eta: Array) -> Array:
    """``exp(eta)``, without a warning where it overflows to infinity."""
    with np.errstate(over="ignore"):
        return np.exp(eta)


def _exp(eta: Array) -> Four:
    mu = exp(eta)
    return mu, mu, mu, mu


def _exp_below_one(eta: Array) -> Four:
    return _exp(np.where(eta < 0.0, eta, np.nan))


def _log(mu: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(mu)


def _relu(eta: Array) -> Four:
    positive: Array = np.maximum(eta, 0.0)
    return 0.5 * positive * positive, positive, (eta > 0.0).astype(np.float64), np.zeros_like(eta)


def _tanh(eta: Array) -> Four:
    t: Array = np.tanh(eta)
    size: Array = np.abs(eta)
    slope = 4.0 * expit(2.0 * eta) * expit(-2.0 * eta)
    return softplus(-2.0 * size) + size - math.log(2.0), t, slope, -2.0 * t * slope


#: Slope of the leaky ReLU below zero, as torch has it by default.
LEAK = 0.01
#: GELU increases above this point only.
GELU_LOWEST = -0.7517915246935645


def _leaky_relu(eta: Array) -> Four:
    slope: Array = np.where(eta > 0.0, 1.0, LEAK)
    h = slope * eta
    return 0.5 * h * eta, h, slope, np.zeros_like(eta)


def _softplus(eta: Array) -> Four:
    # The antiderivative is -Li2(-e^eta), by reflection for positive eta.
    tail = spence(1.0 + np.exp(-np.abs(eta)))  # Li2(-e^-|eta|)
    H: Array = np.where(eta > 0.0, 0.5 * eta * eta + math.pi**2 / 6.0 + tail, -tail)
    slope = expit(eta)
    return H, softplus(eta), slope, slope * expit(-eta)


def _elu(eta: Array) -> Four:
    below = np.minimum(eta, 0.0)
    h: Array = np.where(eta > 0.0, eta, np.expm1(below))
    H: Array = np.where(eta > 0.0, 0.5 * eta * eta, np.expm1(below) - below)
    slope: Array = np.exp(below)
    return H, h, slope, np.where(eta > 0.0, 0.0, slope)


def _gelu(eta: Array) -> Four:
    eta = np.where(eta > GELU_LOWEST, eta, np.nan)
    share = ndtr(eta)
    density = np.exp(-0.5 * eta * eta) / math.sqrt(2.0 * math.pi)
    H = 0.5 * ((eta * eta - 1.0) * share + eta * density)
    return H, eta * share, share + eta * density, (2.0 - eta * eta) * density


def softmax(scores: Array) -> Array:
    """Softmax of each row, stable for any scores."""
    p: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return p


def log_sum_exp(scores: Array) -> Array:
    """Antiderivative of the softmax, one value per row."""
    top: Array = scores.max(axis=-1, keepdims=True)
    total: Array = np.log(np.exp(scores - top).sum(axis=-1)) + top[..., 0]
    return total


def _softmax(eta: Array) -> Four:
    p = softmax(eta)
    slope = p * (1.0 - p)
    return log_sum_exp(eta), p, slope, slope * (1.0 - 2.0 * p)


def _power(power: float, eta: Array) -> Four:
    """Canonical mean of a Tweedie family: ``mu = ((1-power) eta)^(1/(1-power))``; ``h' = V(mu) = mu^power``."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        base: Array = np.where(eta < 0.0, (1.0 - power) * eta, np.nan)
        mu: Array = base ** (1.0 / (1.0 - power))
        H: Array = -np.log(base) if power == 2.0 else base ** ((2.0 - power) / (1.0 - power)) / (2.0 - power)
        return H, mu, mu**power, power * mu ** (2.0 * power - 1.0)


def _power_link(power: float, mu: Array) -> Array:
    with np.errstate(divide="ignore"):
        eta: Array = mu ** (1.0 - power) / (1.0 - power)
    return eta


def _negative_binomial(theta: float, eta: Array) -> Four:
    with np.errstate(invalid="ignore", over="ignore"):
        below: Array = np.where(eta < 0.0, eta, np.nan)
        mu = theta / np.expm1(-below)
        variance = mu + mu * mu / theta
        return -theta * np.log(-np.expm1(below)), mu, variance, (1.0 + 2.0 * mu / theta) * variance


def _negative_binomial_link(theta: float, mu: Array) -> Array:
    with np.errstate(divide="ignore"):
        return -np.log1p(theta / mu)


IDENTITY = Activation("identity", _identity, inverse=np.positive)
SIGMOID = Activation("sigmoid", _sigmoid, inverse=logit, range=(0.0, 1.0), value=_sigmoid_value)
EXP = Activation("exp", _exp, inverse=_log, range=(0.0, np.inf))
RELU = Activation("relu", _relu, inverse=None, range=(0.0, np.inf))
TANH = Activation("tanh", _tanh, inverse=np.arctanh, range=(-1.0, 1.0))
LEAKY_RELU = Activation("leaky_relu", _leaky_relu, inverse=lambda mu: np.where(mu > 0.0, mu, mu / LEAK))
SOFTPLUS = Activation("softplus", _softplus, inverse=lambda mu: mu + np.log(-np.expm1(-mu)), range=(0.0, np.inf))
ELU = Activation("elu", _elu, inverse=lambda mu: np.where(mu > 0.0, mu, np.log1p(mu)), range=(-1.0, np.inf))
#: Increasing only above :data:`GELU_LOWEST`: pre-activations below it cannot be corrected.
GELU = Activation("gelu", _gelu, inverse=None, domain=(GELU_LOWEST, np.inf), range=(-0.17, np.inf))
#: Vector-valued along the last axis; the derivatives are the diagonals, ``H`` has one value per row.
SOFTMAX = Activation("softmax", _softmax, inverse=_log, range=(0.0, 1.0))
#: The mean of the log-binomial family: ``exp``, but only for negative ``eta``.
EXP_BELOW_ONE = Activation("exp-below-one", _exp_below_one, _log, domain=(-np.inf, 0.0), range=(0.0, 1.0))


ACTIVATIONS = {
    a.name: a for a in (IDENTITY, SIGMOID, EXP, RELU, LEAKY_RELU, SOFTPLUS, ELU, GELU, TANH, SOFTMAX, EXP_BELOW_ONE)
}
_PARAMETRIC = {"power": (_power, _power_link), "negative-binomial": (_negative_binomial, _negative_binomial_link)}


def parametric_activation(name: str, parameter: float) -> Activation:
    """Canonical mean function of the Tweedie ("power") or negative binomial ("negative-binomial", theta) family."""
    mean, link = _PARAMETRIC[name]
    return Activation(
        f"{name}:{parameter!r}", partial(mean, parameter), partial(link, parameter), (-np.inf, 0.0), (0.0, np.inf)
    )


def _restore_activation(name: str, parameter: float | None) -> Activation:
    return ACTIVATIONS[name] if parameter is None else parametric_activation(name, parameter)


def boundary_distances(means: Array, h: Activation) -> tuple[float, float]:
    """Half the smallest distance of an inner mean from either end of the range: the shift of those on the end."""
    low, high = h.range
    above, below = means - low, high - means
    inner = (above > 0.0) & (below > 0.0)
    halves = [0.5 * float(gap[inner].min()) if inner.any() else 0.5 / len(means) for gap in (above, below)]
    # Next to 1 the numbers are no denser than this, and a step too small would change nothing.
    smallest = np.finfo(float).epsneg * abs(high)
    return halves[0] if np.isfinite(low) else 0.0, max(halves[1], smallest) if np.isfinite(high) else 0.0


def scores_of(means: Array, h: Activation, distances: tuple[float, float]) -> tuple[Array, int]:
    """Pre-activations of means (n, k), and the number of rows that were moved off the boundary for them.

    Examples
    --------
    >>> scores_of(np.array([[0.5], [1.0]]), SIGMOID, (0.25, 0.25))[1]
    1
    """
    low, high = h.range
    outside = (means <= low) | (means >= high)
    assert h.inverse is not None
    inside = np.clip(means, low + distances[0], high - distances[1])
    return h.inverse(inside), int(np.count_nonzero(outside.any(axis=1)))
