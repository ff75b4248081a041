"""Families and activations.

An :class:`Activation` is an increasing function ``h`` with its first two derivatives and its antiderivative ``H``,
which is convex. A :class:`Family` pairs an activation (the inverse link) with a loss: the negative
log-likelihood of one row as a function of the linear predictor ``eta``, without constants.

With the canonical link the loss is ``H(eta) - y*eta`` with derivatives ``h - y`` and ``h'``. Families with a log link
that is not canonical define loss and derivatives themselves. The loss is infinite for an ``eta`` outside the domain of
the link, so that a line search steps back.
"""

from setsquare.families.activations import Activation
from setsquare.families.custom_activation import monotone_activation
from setsquare.families.distributions import (
    FAMILIES,
    Family,
    activation,
    binomial,
    family,
    gamma,
    gaussian,
    multinomial,
    negative_binomial,
    poisson,
    tweedie,
)
from setsquare.families.softmax import RowTerms, contrasts

__all__ = [
    "FAMILIES",
    "Activation",
    "Family",
    "RowTerms",
    "activation",
    "binomial",
    "contrasts",
    "family",
    "gamma",
    "gaussian",
    "monotone_activation",
    "multinomial",
    "negative_binomial",
    "poisson",
    "tweedie",
]
