"""Families and activations as values.

An :class:`Activation` is a monotone function ``h`` with its first two derivatives and its antiderivative ``H`` (convex,
because ``h`` increases). A :class:`Family` pairs an activation (the inverse link) with a loss: the negative
log-likelihood of one row as a function of the linear predictor ``eta``, without constants.

With the canonical link the loss is ``H(eta) - y*eta`` and needs nothing of its own: its derivatives are ``h - y`` and
``h'``. Families with a log link that is not canonical bring the three functions themselves. An ``eta`` outside the
domain of a link has the loss infinity, so that a line search steps back from it.
"""

from setsquare.families.activations import Activation
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
    "multinomial",
    "negative_binomial",
    "poisson",
    "tweedie",
]
