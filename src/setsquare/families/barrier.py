"""Logarithmic barrier that keeps linear predictors inside the domain of a link."""

from __future__ import annotations

import numpy as np

from setsquare._typing import Array
from setsquare.families.softmax import RowTerms


def add_barrier(terms: RowTerms, eta: Array, edge: float, strength: float) -> RowTerms:
    """Add ``-strength log(edge - eta)`` to the loss of each row, and its derivatives; ``eta`` is (n, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare.families import family
    >>> y, eta = np.ones((1, 1)), np.array([[-0.5]])
    >>> plain = family("binomial", "log").terms(y, eta, np.zeros((1, 1)))
    >>> push = add_barrier(plain, eta, 0.0, 0.1).slope - plain.slope
    >>> round(float(push[0, 0]), 12)  # 0.1 / 0.5
    0.2
    """
    push = strength / (edge - eta)
    return terms._replace(
        loss=terms.loss + barrier_loss(eta, edge, strength),
        slope=terms.slope + push,
        curvature=terms.curvature + (push * push / strength)[:, :, None],
    )


def barrier_loss(eta: Array, edge: float, strength: float) -> Array:
    """``-strength log(edge - eta)`` for each row, (n,); infinite outside the domain."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(eta[:, 0] < edge, -strength * np.log(edge - eta[:, 0]), np.inf)
