"""Sandwich standard errors of the coefficients of a constrained fit.

The coefficients solve the optimality conditions ``g + J'lam = 0`` and ``c = target``. With the blocks G and F of the
inverse KKT matrix, row i moves them by ``-(G (s_i z_i - (q_i'lam) u_i) + F q_i (h_i - mean))``: ``s`` is the slope of
the Lagrangian, and the terms with ``u = sum w h' z`` and the mean say that the protected columns are centred (or
residuals on controls) in the same rows. The sum of squares of these influences over rows, or over clusters, estimates
the covariance whatever the distribution of the outcome is.

A row pulls the fit towards itself, so its slope and its residual of the constraint are too small. Those that it would
have without its own contribution to the KKT matrix follow from a system of two equations (per predictor): the HC3
estimator of a constrained fit, close to refits without each row. Clusters are taken as they are.
"""

from __future__ import annotations

import numpy as np

from setsquare._typing import Array
from setsquare.families import RowTerms, contrasts
from setsquare.glm.kkt_inverse import Inverse, invert
from setsquare.glm.newton import Iterate
from setsquare.glm.objective import Objective
from setsquare.glm.preparation import Prepared
from setsquare.rows.blocks import Block
from setsquare.rows.parallel import Sums

#: Smallest share of a row's slope and residual that its own pull may leave, below which they are taken as they are.
LEAST_LEFT = 0.05


def standard_errors(prepared: Prepared, end: Iterate) -> Array:
    """Standard errors (k, 1 + q) of intercepts and coefficients; NaN for aliased features.

    They are cluster-robust if the problem has clusters. A ridge shrinks coefficients and their standard errors alike.
    """
    objective, problem = prepared.objective, prepared.problem
    k, r = objective.n_predictors, objective.n_basis
    inverse = invert(objective, end.model)
    L = inverse.root.reshape(objective.n_parameters, -1)
    bread = np.hstack([L @ L.T, inverse.cross.reshape(objective.n_parameters, k * r)])
    n = problem.n_units
    clustered = problem.cluster is not None
    factor = n / max(n - 1, 1) if clustered else 1.0
    V = factor * bread @ _meat(objective, end, None if clustered else inverse) @ bread.T
    T = prepared.to_coef
    own = np.vstack([objective.to_raw[0] - prepared.mean @ T, T])
    C = contrasts(k + 1) if problem.family.is_vector else np.eye(1)
    to_all = np.kron(C, own)
    variance = np.einsum("ab,ab->a", to_all @ V, to_all).reshape(len(C), -1)
    errors = np.sqrt(np.maximum(variance, 0.0))
    aliased = np.isin(np.asarray(problem.feature_names, dtype=object), list(prepared.aliased))
    errors[:, 1:][:, aliased] = np.nan
    return np.asarray(errors)


def _meat(objective: Objective, end: Iterate, inverse: Inverse | None) -> Array:
    """Sum over rows or clusters of the squared contributions to the optimality conditions.

    With the inverse of the KKT matrix, each row's contribution is the one that it would have if it were left out.
    """
    k, T = objective.n_predictors, objective.to_raw
    m, raw, multipliers = T.shape[1], objective.raw(end.theta), end.lam.reshape(k, -1).T

    def first(block: Block) -> Sums:
        terms, D, w = objective.terms(block, raw, multipliers), objective.controls(block), block.weight
        slopes = ((w[:, None] * D)[:, None, :, None] * terms.mean_slope[:, :, None, :]).reshape(len(w), -1)
        return D.T @ (w[:, None] * terms.mean), block.Z.T @ slopes

    mean, slopes = objective.rows.reduce(first)
    U = (T.T @ slopes).reshape(m, k, -1, k)

    def second(block: Block) -> Sums:
        terms, D, Q = objective.terms(block, raw, multipliers), objective.controls(block), objective.basis(block)
        price = Q @ multipliers
        slope, gap = terms.slope + np.einsum("nab,nb->na", terms.mean_slope, price), terms.mean - D @ mean
        P = np.asarray(block.Z @ T)
        if inverse is not None:
            slope, gap = _without_own(P, Q, terms, block.weight, inverse, slope, gap)
        lagrangian = slope[:, :, None] * P[:, None, :]
        lagrangian -= np.einsum("ns,nb,masb->nam", D, price, U, optimize=True)
        constraint = gap[:, :, None] * Q[:, None, :]
        n = len(block.weight)
        units = block.weight[:, None] * np.hstack([lagrangian.reshape(n, -1), constraint.reshape(n, -1)])
        if block.group is not None:
            units = np.add.reduceat(units, np.flatnonzero(np.diff(block.group, prepend=block.group[0] - 1)))
        return (units.T @ units,)

    return np.asarray(objective.rows.reduce(second)[0])


def _without_own(
    P: Array, Q: Array, terms: RowTerms, weight: Array, inverse: Inverse, slope: Array, gap: Array
) -> tuple[Array, Array]:
    """Slopes and residuals (n, k) of rows that do not pull the fit towards themselves.

    With ``B`` the row's features and basis, the KKT matrix loses ``B A B'``, and ``(K - B A B')^-1 B`` is
    ``K^-1 B (1 - A B'K^-1 B)^-1``.
    """
    k, w = slope.shape[1], weight[:, None, None]
    own = np.einsum("nm,ams->nas", P, inverse.root, optimize=True)
    across = np.einsum("nm,ambr,nr->nab", P, inverse.cross, Q, optimize=True)
    inner = np.empty((len(P), 2 * k, 2 * k))
    inner[:, :k, :k] = own @ own.transpose(0, 2, 1)
    inner[:, :k, k:], inner[:, k:, :k] = across, across.transpose(0, 2, 1)
    inner[:, k:, k:] = np.einsum("nr,arbs,ns->nab", Q, inverse.corner, Q, optimize=True)
    pull = np.zeros_like(inner)
    pull[:, :k, :k], pull[:, :k, k:] = w * terms.curvature, w * terms.mean_slope
    pull[:, k:, :k] = pull[:, :k, k:].transpose(0, 2, 1)
    left = np.eye(2 * k) - pull @ inner
    left[np.linalg.svd(left, compute_uv=False)[:, -1] < LEAST_LEFT] = np.eye(2 * k)
    found = np.linalg.solve(left, np.hstack([slope, gap])[:, :, None])[:, :, 0]
    return found[:, :k], found[:, k:]
