"""The softmax, in orthonormal contrasts: classes minus one linear predictors a row, each of them identified."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.families.activations import log_sum_exp, softmax


class RowTerms(NamedTuple):
    """What one row adds to the objective, for ``k`` linear predictors a row (1, or classes minus one).

    Shapes: ``loss`` (n,); ``slope`` and ``mean`` (n, k); ``curvature`` and ``mean_slope`` (n, k, k). ``curvature``
    is that of the Lagrangian, so it holds the constraint's share as well.
    """

    loss: Array
    slope: Array
    curvature: Array
    mean: Array
    mean_slope: Array


def contrasts(n_classes: int) -> Array:
    """Orthonormal contrasts, (classes, classes - 1): softmax sees only differences between its inputs.

    Examples
    --------
    >>> C = contrasts(3)
    >>> bool(np.allclose(C.T @ C, np.eye(2)) and np.allclose(C.sum(0), 0))
    True
    """
    C = np.zeros((n_classes, n_classes - 1))
    for j in range(1, n_classes):  # Helmert: class j against the mean of those before it
        C[:j, j - 1] = -1.0 / np.sqrt(j * (j + 1.0))
        C[j, j - 1] = j / np.sqrt(j * (j + 1.0))
    return C


def softmax_values(y: Array, eta: Array) -> tuple[Array, Array]:
    """Loss (n,) and mean (n, k); ``y``, ``eta`` and the mean are all in contrasts."""
    C = contrasts(eta.shape[1] + 1)
    scores = eta @ C.T
    return log_sum_exp(scores) - np.einsum("nk,nk->n", y, eta), softmax(scores) @ C


def softmax_terms(y: Array, eta: Array, v: Array) -> RowTerms:
    """Everything a row adds to the objective, with the multiplier ``v`` in contrasts as well."""
    C = contrasts(eta.shape[1] + 1)
    scores, multipliers = eta @ C.T, v @ C.T
    p = softmax(scores)
    loss, mean = log_sum_exp(scores) - np.einsum("nk,nk->n", y, eta), p @ C
    # The constraint's share of the Lagrangian is s = v'p; with u = p*(v - s) its Hessian is diag(u) - up' - pu'.
    u = p * (multipliers - np.einsum("nk,nk->n", multipliers, p)[:, None])
    pairs = C[:, :, None] * C[:, None, :]
    cross = (u @ C)[:, :, None] * mean[:, None, :]
    mean_slope = np.tensordot(p, pairs, axes=1) - mean[:, :, None] * mean[:, None, :]
    curvature = mean_slope + np.tensordot(u, pairs, axes=1) - cross - cross.transpose(0, 2, 1)
    return RowTerms(loss, mean - y, curvature, mean, mean_slope)
