"""What all leave-one-out systems share: sums at a point, or the rows there, from the pass that ends at it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.families import RowTerms
from setsquare.rows.blocks import Block


class Ends(NamedTuple):
    """Smallest and largest linear predictors, and their weighted sums and squares; can be added. All are (k,)."""

    low: Array
    high: Array
    total: Array
    square: Array

    @classmethod
    def of(cls, eta: Array, w: Array | None) -> Ends:
        """Ends of linear predictors (n, k) or (n,); without weights, sums are plain."""
        if eta.ndim > 1:
            weight = np.ones(len(eta)) if w is None else w
            return cls(
                eta.min(axis=0, initial=np.inf), eta.max(axis=0, initial=-np.inf), weight @ eta, weight @ np.square(eta)
            )
        total, square = (eta.sum(), np.dot(eta, eta)) if w is None else (np.dot(w, eta), np.dot(w * eta, eta))
        low, high = eta.min(initial=np.inf), eta.max(initial=-np.inf)
        return cls(*(np.array([part]) for part in (low, high, total, square)))

    def scaled(self, share: float | None) -> Ends:
        """The same where every row has the weight ``share``; None for weights that were used."""
        return self if share is None else self._replace(total=share * self.total, square=share * self.square)

    def __add__(self, other: Ends) -> Ends:  # type: ignore[override]
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Ends(low, high, self.total + other.total, self.square + other.square)


class Overall(NamedTuple):
    """Sums over the rows at a point; can be added.

    Attributes
    ----------
    gap : ndarray of shape (1 + s, k)
        Mean of the predictions, relative to the intercept-only model, and their covariances with s controls.
    slopes : ndarray of shape (1 + q, k * k * (1 + s))
        Sums of the features, times the slope of the activation (and each control).
    ends : Ends
    """

    gap: Array
    slopes: Array
    ends: Ends

    def __add__(self, other: Overall) -> Overall:  # type: ignore[override]
        if not isinstance(other, Overall):
            return NotImplemented
        return Overall(self.gap + other.gap, self.slopes + other.slopes, self.ends + other.ends)


class RowsAt(NamedTuple):
    """Rows of a block at a point, for few rows with a canonical link: a second evaluation would take longer.

    Attributes
    ----------
    block : Block
    eta, slope, h, dh, d2h : ndarray of shape (n,)
        Linear predictor, ``h - y``, activation and its derivatives.
    """

    block: Block
    eta: Array
    slope: Array
    h: Array
    dh: Array
    d2h: Array

    def __add__(self, other: object) -> Unknown:  # type: ignore[override]
        return Unknown()  # the rows of several blocks are evaluated again

    def are_current(self) -> bool:
        """Whether the outcome, which may be an array of the user, is still the one that was evaluated."""
        return np.array_equal(self.h - self.block.y[:, 0], self.slope)

    def terms(self, steer: Array) -> RowTerms:
        """Terms of the Lagrangian with ``steer = Q lam`` (n,), except the loss of each row."""
        curvature = (self.dh + self.d2h * steer)[:, None, None]
        return RowTerms(np.zeros(0), self.slope[:, None], curvature, self.h[:, None], self.dh[:, None, None])


class Unknown:
    """Stands for what was not gathered; sums with it are unknown, too."""

    def __add__(self, other: object) -> Unknown:
        return self

    __radd__ = __add__


def wrapped(found: Overall | RowsAt | None) -> Array:
    """An array of one object, so that sums over blocks add it up."""
    one = np.empty(1, dtype=object)
    one[0] = Unknown() if found is None else found
    return one


def unwrapped(found: Array) -> Overall | RowsAt | None:
    """The sum, or None if it is unknown."""
    return found[0] if isinstance(found[0], (Overall, RowsAt)) else None
