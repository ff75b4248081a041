"""A generalised linear evaluation model of each unit of a tensor, all units at once.

The protected columns are the same for every unit, so the Hessians of all units are one matrix product: products of
pairs of columns times the weights of rows and units. Newton's method then takes as many passes as for one unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.families import Family

#: Values (rows times units) that are worked on at once, and steps at most.
AT_ONCE, MAX_STEPS = 2_000_000, 60
#: Linear predictors that span more than this belong to an infinite effect, as in :mod:`.glm`.
FAR = 12.0


@dataclass(frozen=True, slots=True)
class UnitFits:
    """Evaluation models of m units, in coordinates of an orthonormal basis of the protected columns.

    Attributes
    ----------
    coef : ndarray of shape (r, m)
    cov : ndarray of shape (m, r, r)
        HC3 covariance.
    p_value : ndarray of shape (m,)
        Wald test of all coefficients, as F with n - r - 1 degrees of freedom.
    is_finite : boolean ndarray of shape (m,)
        Whether the fit has a finite optimum; the rest is NaN where it has none.
    """

    coef: Array
    cov: Array
    p_value: Array
    is_finite: BoolArray


def fit_units(Y: Array, Q: Array, w: Array, glm: Family) -> UnitFits:
    """Fit the model of ``glm`` to each column of ``Y`` (n, m), on the basis ``Q`` (n, r) with weights that sum to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare.families import binomial
    >>> x = np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
    >>> Y = np.array([[0.2, 0.3, 0.25, 0.5, 0.6, 0.4], [0.1, 0.2, 0.3, 0.1, 0.2, 0.3]]).T
    >>> fit_units(Y, x[:, None], np.full(6, 1 / 6), binomial).coef.round(4) + 0.0  # log(.5/.5) - log(.25/.75), halved
    array([[0.5493, 0.    ]])
    """
    size = max(1, AT_ONCE // len(Y))
    parts = [_fit(Y[:, k : k + size], Q, w, glm) for k in range(0, Y.shape[1], size)]
    return UnitFits(
        np.concatenate([part.coef for part in parts], axis=1),
        np.concatenate([part.cov for part in parts]),
        np.concatenate([part.p_value for part in parts]),
        np.concatenate([part.is_finite for part in parts]),
    )


def _fit(Y: Array, Q: Array, w: Array, glm: Family) -> UnitFits:
    n, r = Q.shape
    D = np.column_stack([np.ones(n), Q])
    first, second = np.tril_indices(r + 1)
    pairs = first.astype(np.int64), second.astype(np.int64)
    products = (D[:, pairs[0]] * D[:, pairs[1]]).T
    inverse = glm.activation.inverse
    assert inverse is not None  # every family has a link
    theta = np.zeros((r + 1, Y.shape[1]))
    with np.errstate(all="ignore"):  # a unit without an optimum is told apart below
        theta[0] = inverse(w @ Y)
        theta = _newton(theta, Y, D, w, glm, products, pairs)
        _, slope, curvature = glm.row_losses(Y, D @ theta)
        weighted = w[:, None] * curvature
        H = _matrices(products @ weighted, pairs)
        A = _inverses(H)
        twice = np.where(pairs[0] == pairs[1], 1.0, 2.0)
        leverage = weighted * (products.T @ (twice[:, None] * A[:, pairs[0], pairs[1]].T))
        rest = np.where(1.0 - leverage > 1e-9, 1.0 - leverage, np.inf)
        meat = _matrices(products @ (w[:, None] * slope / rest) ** 2, pairs)
        cov = (A @ meat @ A)[:, 1:, 1:]
        error = np.abs(D.T @ (w[:, None] * slope)).max(axis=0) / np.maximum(w @ np.abs(slope), 1e-300)
        reach = np.ptp(Q @ theta[1:], axis=0)
        finite = (error < 1e-7) & (reach < FAR) & np.isfinite(cov).all(axis=(1, 2)) & np.isfinite(theta).all(axis=0)
        coef, cov = np.where(finite, theta[1:], np.nan), np.where(finite[:, None, None], cov, np.nan)
        p_value = _wald(coef, cov, n - r - 1)
    return UnitFits(coef, cov, p_value, finite)


def _newton(
    theta: Array, Y: Array, D: Array, w: Array, glm: Family, products: Array, pairs: tuple[IntArray, IntArray]
) -> Array:
    """Newton's method for all units; a step that does not lower the loss of a unit is halved for that unit."""
    loss = w @ glm.row_losses(Y, D @ theta)[0]
    for _ in range(MAX_STEPS):
        _, slope, curvature = glm.row_losses(Y, D @ theta)
        g = D.T @ (w[:, None] * slope)
        H = _matrices(products @ (w[:, None] * curvature), pairs)
        step = -np.einsum("mab,bm->am", _inverses(H), g)
        going = np.abs(g).max(axis=0) > 1e-14 * (w @ np.abs(slope))
        length = np.where(going & np.isfinite(step).all(axis=0), 1.0, 0.0)
        for _ in range(30):
            tried = theta + length * np.where(length > 0.0, step, 0.0)
            new = w @ glm.row_losses(Y, D @ tried)[0]
            worse = (length > 0.0) & ~(new <= loss + 1e-14 * np.abs(loss))
            if not worse.any():
                break
            length = np.where(worse, 0.5 * length, length)
        else:
            length = np.where(worse, 0.0, length)
            tried = theta + length * np.where(length > 0.0, step, 0.0)
            new = np.where(worse, loss, new)
        moved = np.abs(tried - theta).max(initial=0.0)
        theta, loss = tried, new
        if moved < 1e-13:
            break
    return theta


def _matrices(rows: Array, pairs: tuple[IntArray, IntArray]) -> Array:
    """Symmetric matrices (m, k, k) from their entries (pairs, m)."""
    k = int(pairs[0].max()) + 1
    found = np.empty((rows.shape[1], k, k))
    found[:, pairs[0], pairs[1]] = found[:, pairs[1], pairs[0]] = rows.T
    return found


def _inverses(H: Array) -> Array:
    """Inverses of symmetric matrices (m, k, k); a direction without curvature counts as nothing."""
    ok = np.asarray(np.isfinite(H).all(axis=(1, 2), keepdims=True))
    values, vectors = np.linalg.eigh(np.where(ok, H, 0.0))
    small = np.abs(values) <= 1e-14 * np.abs(values).max(axis=1, keepdims=True)
    return np.asarray((vectors / np.where(small, np.inf, values)[:, None, :]) @ vectors.transpose(0, 2, 1))


def _wald(coef: Array, cov: Array, df: int) -> Array:
    """P-values that all coefficients of a unit are zero; NaN for a unit without variance."""
    r = len(coef)
    size = np.trace(cov, axis1=1, axis2=2)
    known = np.isfinite(size) & (size > 0.0)
    scaled = np.where(known[:, None, None], cov, np.eye(r)) / np.where(known, size, 1.0)[:, None, None]
    inside = np.linalg.solve(scaled + 1e-14 * np.eye(r), np.where(known, coef, 0.0).T[:, :, None])[:, :, 0]
    W = np.einsum("rm,mr->m", np.where(known, coef, 0.0), inside) / np.where(known, size, 1.0)
    return np.where(known, special.fdtrc(r, max(df, 1), W / r), np.nan)
