"""Lemma 3 of the paper as printed: corrected predictions without centring.

The main text prints ``P y + h(0) 1`` (P projects onto the complement of the protected columns, without a constant), the
appendix ``G^-1 U^-1/2 P_w y + h(0) 1`` with the weights ``U`` and slopes ``G`` of the evaluation model and ``P_w`` the
projector of ``U^1/2 X``.
"""

from __future__ import annotations

import numpy as np

from studies.arrays import Array


def printed(predictions: Array, X: Array, at_zero: float) -> Array:
    """The form of the main text, with ``at_zero`` = h(0).

    The evaluation model *without* an intercept finds nothing: ``X'(corrected - h(0)) = 0``. With an intercept it does,
    unless the columns of ``X`` have mean zero or the corrected predictions have the mean h(0).

    Examples
    --------
    >>> X = np.array([[1.0], [1.0], [0.0], [0.0]])
    >>> printed(np.array([0.9, 0.7, 0.4, 0.2]), X, 0.5).round(3)
    array([0.6, 0.4, 0.9, 0.7])
    """
    return np.asarray(predictions - X @ np.linalg.lstsq(X, predictions, rcond=None)[0] + at_zero)


def printed_weighted(predictions: Array, X: Array, weight: Array, link_slope: Array, at_zero: float) -> Array:
    """The form of the appendix, with the diagonals of ``U`` (n,) and ``G`` (n,).

    It solves ``X' U G (corrected - h(0)) = 0``. With a canonical link ``U G`` is constant, and these are the equations
    of the evaluation model without an intercept. With another link that is so only for the weights at zero effects.
    """
    root = np.sqrt(weight)
    W = root[:, None] * X
    rest = predictions - W @ np.linalg.lstsq(W, predictions, rcond=None)[0]
    return np.asarray(rest / (link_slope * root) + at_zero)
