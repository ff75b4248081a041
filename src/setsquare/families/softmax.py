"""Softmax in orthonormal contrasts: one linear predictor fewer than classes, all of them identified."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.linalg import helmert

from setsquare._typing import Array
from setsquare.families.activations import log_sum_exp, softmax


class RowTerms(NamedTuple):
    """Contribution of each row to the objective, for ``k`` linear predictors per row (1, or classes minus one).

    Shapes: ``loss`` (n,); ``slope`` and ``mean`` (n, k); ``curvature`` and ``mean_slope`` (n, k, k). ``curvature``
    is that of the Lagrangian, which includes the constraint.
    """

    loss: Array
    slope: Array
    curvature: Array
    mean: Array
    mean_slope: Array


@cache
def contrasts(n_classes: int) -> Array:
    """Orthonormal contrasts, (classes, classes - 1); the softmax depends only on differences of its inputs.

    Helmert's: each class against the mean of the earlier classes.

    Examples
    --------
    >>> C = contrasts(3)
    >>> bool(np.allclose(C.T @ C, np.eye(2)) and np.allclose(C.sum(0), 0))
    True
    """
    C = np.ascontiguousarray(-helmert(n_classes).T)
    C.flags.writeable = False  # every caller gets the same array
    return C


def softmax_values(y: Array, eta: Array) -> tuple[Array, Array]:
    """Loss (n,) and mean (n, k); ``y``, ``eta`` and the mean are all in contrasts."""
    C = contrasts(eta.shape[1] + 1)
    scores = eta @ C.T
    return log_sum_exp(scores) - np.einsum("nk,nk->n", y, eta), softmax(scores) @ C


def softmax_terms(y: Array, eta: Array, v: Array) -> RowTerms:
    """Contribution of each row to the objective, with the multipliers ``v`` also in contrasts."""
    C = contrasts(eta.shape[1] + 1)
    scores, multipliers = eta @ C.T, v @ C.T
    p = softmax(scores)
    loss, mean = log_sum_exp(scores) - np.einsum("nk,nk->n", y, eta), p @ C
    # The constraint adds s = v'p to the Lagrangian; with u = p*(v - s) its Hessian is diag(u) - up' - pu'.
    u = p * (multipliers - np.einsum("nk,nk->n", multipliers, p)[:, None])
    pairs = C[:, :, None] * C[:, None, :]
    cross = (u @ C)[:, :, None] * mean[:, None, :]
    mean_slope = np.tensordot(p, pairs, axes=1) - mean[:, :, None] * mean[:, None, :]
    curvature = mean_slope + np.tensordot(u, pairs, axes=1) - cross - cross.transpose(0, 2, 1)
    return RowTerms(loss, mean - y, curvature, mean, mean_slope)
