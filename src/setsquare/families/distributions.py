"""Families: a distribution with its link, loss and deviance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError, OutcomeRangeError
from setsquare.families import losses
from setsquare.families.activations import (
    ACTIVATIONS,
    EXP,
    EXP_BELOW_ONE,
    IDENTITY,
    SIGMOID,
    SOFTMAX,
    Activation,
    Three,
    parametric_activation,
)
from setsquare.families.softmax import RowTerms, softmax_terms, softmax_values


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Family:
    """A distribution with its link.

    Attributes
    ----------
    name : str
    link : str
        "canonical" (identity for gaussian, logit for binomial, ...) or "log".
    activation : Activation
        The mean function ``h``.
    unit_deviance : callable
        ``(y, mu) ->`` deviance of each row.
    outcome_range : tuple of float
        Smallest and largest possible outcomes.
    open_below : bool
        Whether the smallest value is excluded (gamma: y > 0).
    own_loss : callable or None
        ``(y, eta) -> (loss, slope, curvature)`` where ``H(eta) - y*eta`` does not apply, because the link is not
        canonical, or loses digits to cancellation (gaussian).
    parameter : float or None
        Power of the Tweedie family, or theta of the negative binomial family.
    """

    name: str
    link: str
    activation: Activation
    unit_deviance: Callable[[Array, Array], Array]
    outcome_range: tuple[float, float] = (-np.inf, np.inf)
    open_below: bool = False
    own_loss: Callable[[Array, Array], Three] | None = None
    parameter: float | None = None

    @property
    def is_vector(self) -> bool:
        """Whether a row has several linear predictors (softmax)."""
        return self.name == "multinomial"

    @property
    def is_convex(self) -> bool:
        """Whether the loss is known to be convex in ``eta``; otherwise a fit can have several optima."""
        if self.link == "canonical" or self.name in ("binomial", "poisson", "gamma", "negative_binomial"):
            return True
        return self.name == "tweedie" and self.parameter is not None and self.parameter <= 2.0

    def row_losses(self, y: Array, eta: Array) -> Three:
        """Negative log-likelihood of each row without constants, and its first two derivatives in ``eta``."""
        return self.evaluate(y, eta)[0]

    def evaluate(self, y: Array, eta: Array) -> tuple[Three, Three]:
        """Loss, slope and curvature of each row; ``h``, ``h'`` and ``h''``."""
        H, h, dh, d2h = self.activation.evaluate(eta)
        if self.own_loss is not None:
            return self.own_loss(y, eta), (h, dh, d2h)
        loss = H - y * eta
        if self.activation.domain[1] < np.inf:
            loss = np.where(np.isnan(loss), np.inf, loss)
        return (loss, h - y, dh), (h, dh, d2h)

    def terms(self, y: Array, eta: Array, v: Array) -> RowTerms:
        """Contribution of each row to the objective; ``v = Q @ lam`` holds the multipliers per row; all are (n, k)."""
        if self.is_vector:
            return softmax_terms(y, eta, v)
        (loss, slope, curvature), (h, dh, d2h) = self.evaluate(y[:, 0], eta[:, 0])
        curvature = (curvature + d2h * v[:, 0])[:, None, None]
        return RowTerms(loss, slope[:, None], curvature, h[:, None], dh[:, None, None])

    def value_terms(self, y: Array, eta: Array) -> tuple[Array, Array]:
        """Loss (n,) and mean (n, k) only, for a line search."""
        if self.is_vector:
            return softmax_values(y, eta)
        (loss, _, _), (h, _, _) = self.evaluate(y[:, 0], eta[:, 0])
        return loss, h[:, None]

    def deviance(self, y: Array, mu: Array, weight: Array | None = None) -> float:
        """Sum of the deviances of all rows.

        Examples
        --------
        >>> import numpy as np
        >>> round(family("poisson").deviance(np.array([0.0, 2.0]), np.array([1.0, 1.0])), 4)
        2.7726
        """
        units = self.unit_deviance(np.asarray(y, dtype=np.float64), np.asarray(mu, dtype=np.float64))
        return float(np.sum(units if weight is None else units * weight))

    def check_outcome(self, y: Array, name: str = "the outcome") -> None:
        """Raise an :class:`~setsquare.errors.OutcomeRangeError` if the family cannot produce a value of ``y``."""
        low, high = self.outcome_range
        outside = (y <= low) if self.open_below else (y < low)
        outside |= y > high
        if count := int(np.count_nonzero(outside)):
            wanted = {
                (0.0, 1.0): "values between 0 and 1",
                (0.0, np.inf): "positive values" if self.open_below else "values of 0 or more",
            }[self.outcome_range]
            example = float(y[outside][0])
            raise OutcomeRangeError(
                f"{name[0].upper()}{name[1:]} has {count} value(s) that the {self.name} family cannot produce "
                f"(such as {example:g}): it takes {wanted}; recode the outcome or choose another family."
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Family) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return (family, self._key())

    def _key(self) -> tuple[str, str, float | None]:
        return self.name, self.link, self.parameter

    def __repr__(self) -> str:
        return f"<family {self}>"

    def __str__(self) -> str:
        parameter = "" if self.parameter is None else f"({self.parameter:g})"
        return f"{self.name}{parameter}" + ("" if self.link == "canonical" else f", {self.link} link")


_COUNT, _SHARE = (0.0, np.inf), (0.0, 1.0)
gaussian = Family("gaussian", "canonical", IDENTITY, losses.gaussian_deviance, own_loss=losses.gaussian_loss)
binomial = Family("binomial", "canonical", SIGMOID, losses.binomial_deviance, _SHARE)
poisson = Family("poisson", "canonical", EXP, losses.poisson_deviance, _COUNT)
multinomial = Family("multinomial", "canonical", SOFTMAX, losses.multinomial_deviance, _SHARE)
gaussian_log = Family("gaussian", "log", EXP, losses.gaussian_deviance, own_loss=losses.gaussian_log_loss)
binomial_log = Family(
    "binomial", "log", EXP_BELOW_ONE, losses.binomial_deviance, _SHARE, own_loss=losses.binomial_log_loss
)


def _check_link(link: str) -> None:
    if link not in ("canonical", "log"):
        raise InputError(f"Unknown link {link!r}: choose 'canonical' or 'log'.")


def tweedie(power: float = 1.5, link: str = "log") -> Family:
    """Tweedie family with variance ``mu^power``: compound Poisson for 1 < power < 2, gamma for 2, positive above 2.

    Examples
    --------
    >>> print(tweedie(1.5))
    tweedie(1.5), log link
    """
    if not power > 1.0 or not np.isfinite(power):
        raise InputError(f"The Tweedie power must be above 1, not {power}: use gaussian for 0 and poisson for 1.")
    _check_link(link)
    deviance = losses.gamma_deviance if power == 2.0 else partial(losses.tweedie_deviance, power=power)
    loss = partial(losses.tweedie_log_loss, power=power) if link == "log" else None
    h = EXP if link == "log" else parametric_activation("power", power)
    name, parameter = ("gamma", None) if power == 2.0 else ("tweedie", float(power))
    return Family(name, link, h, deviance, _COUNT, power >= 2.0, loss, parameter)


def gamma(link: str = "log") -> Family:
    """Gamma family, the Tweedie family of power 2.

    Examples
    --------
    >>> print(gamma("canonical"))
    gamma
    """
    return tweedie(2.0, link)


def negative_binomial(theta: float = 1.0, link: str = "log") -> Family:
    """Negative binomial family with variance ``mu + mu^2/theta`` for a fixed ``theta``.

    Examples
    --------
    >>> print(negative_binomial(2.0))
    negative_binomial(2), log link
    """
    if not theta > 0.0 or not np.isfinite(theta):
        raise InputError(f"theta of the negative binomial family must be a positive number, not {theta}.")
    _check_link(link)
    deviance = partial(losses.negative_binomial_deviance, theta=theta)
    loss = partial(losses.negative_binomial_log_loss, theta=theta) if link == "log" else None
    h = EXP if link == "log" else parametric_activation("negative-binomial", theta)
    return Family("negative_binomial", link, h, deviance, _COUNT, False, loss, float(theta))


#: Families without a parameter, by name and link (log is the canonical link of the Poisson family).
_FIXED = {
    "gaussian": {"canonical": gaussian, "log": gaussian_log},
    "binomial": {"canonical": binomial, "log": binomial_log},
    "multinomial": {"canonical": multinomial},
    "poisson": {"canonical": poisson, "log": poisson},
    "gamma": {"canonical": gamma("canonical"), "log": gamma("log")},
}
_MAKERS = {"tweedie": tweedie, "negative_binomial": negative_binomial}
_LOG_BY_DEFAULT = ("gamma", "tweedie", "negative_binomial")
FAMILIES = (*_FIXED, *_MAKERS)


def family(name: str | Family, link: str | None = None, parameter: float | None = None) -> Family:
    """Return the family with the given name; a :class:`Family` is returned as it is.

    Parameters
    ----------
    name : str or Family
        "gaussian", "binomial", "multinomial", "poisson", "gamma", "tweedie" or "negative_binomial".
    link : {"canonical", "log"}, optional
        By default canonical for the first four, log for the others.
    parameter : float, optional
        Power of the Tweedie family (1.5 by default) or theta of the negative binomial family (1.0).

    Examples
    --------
    >>> family("gamma").activation.name
    'exp'
    """
    if isinstance(name, Family):
        return name
    if name not in FAMILIES:
        raise InputError(f"Unknown family {name!r}: choose one of {', '.join(FAMILIES)}.")
    link = link or ("log" if name in _LOG_BY_DEFAULT else "canonical")
    _check_link(link)
    if name in _MAKERS:
        return _MAKERS[name](link=link) if parameter is None else _MAKERS[name](parameter, link)
    if parameter is not None:
        raise InputError(f"The {name} family has no parameter, but parameter={parameter} was passed: leave it out.")
    if link not in _FIXED[name]:
        raise InputError(f"The {name} family supports only its canonical link, not {link!r}.")
    return _FIXED[name][link]


def activation(name: str | Activation | Family) -> Activation:
    """Return an activation by name, such as "relu", "softplus" or "sigmoid", or the mean function of a family.

    Examples
    --------
    >>> activation("relu").range
    (0.0, inf)
    >>> activation("poisson").name
    'exp'
    """
    if isinstance(name, Activation):
        return name
    if isinstance(name, str) and name in ACTIVATIONS:
        return ACTIVATIONS[name]
    if isinstance(name, Family) or name in FAMILIES:
        return family(name).activation
    known = ", ".join(sorted({*ACTIVATIONS, *FAMILIES}))
    raise InputError(f"Unknown activation {name!r}: choose one of {known}.")
