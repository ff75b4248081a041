"""Leave-one-out predictions from one factorisation: what the model without a row, or a cluster, predicts for it.

Without the rows of a cluster g the fit solves the same problem with fewer rows, and protected columns that are centred
again. One Newton step of its optimality conditions, from the fit to all rows, is

    (K - K_g + U_g) (d theta; d lam) = right-hand side,     K = [[A, J'], [J, 0]],

with ``A`` the Hessian of the Lagrangian and ``J`` the Jacobian of the constraint. ``K_g`` is the part of the rows, and
``U_g`` the change of ``J`` by centring; both are combinations of the rows' features ``z_j``, their protected values
``q_j`` and one vector ``u = sum w h' z``, so the Woodbury formula leaves a system of ``2m + 1`` equations for a cluster
of m rows. With the gaussian family and the identity link the step is exact. The ridge keeps its weight relative to the
*summed* loss, and a target ``kappa`` of the constraint stays the same mean.

Everything is a sum over row blocks, which use only ``Z @ dense``. The blocks of the inverse are
``G = L L'``, ``F`` and ``E``: ``K^-1 = [[G, F], [F', E]]``.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from setsquare._typing import Array, IntArray
from setsquare.families import RowTerms
from setsquare.glm.newton import Iterate
from setsquare.glm.objective import Model, Objective, linear_predictor
from setsquare.glm.sqp import SINGULAR, frame_of
from setsquare.rows.blocks import Block, Sums

#: Determinant of the small system below which the other rows do not determine the prediction of a row.
UNDETERMINED = 1e-7
#: Largest size of a system that is solved by elimination over all rows at once; larger ones are solved one by one.
SMALL = 6


class Inverse(NamedTuple):
    """Blocks of the inverse of the KKT matrix in whitened coordinates, for k predictors of m coordinates each.

    Attributes
    ----------
    root : ndarray of shape (k, m, s)
        ``L``: the inverse of the reduced Hessian is ``L L'``.
    cross : ndarray of shape (k, m, k, r)
        ``F``.
    corner : ndarray of shape (k, r, k, r)
        ``E``.
    """

    root: Array
    cross: Array
    corner: Array


def invert(objective: Objective, model: Model) -> Inverse:
    """Invert the KKT matrix at a point with a full Hessian."""
    k, r = objective.n_predictors, objective.n_basis
    frame = frame_of(model)
    N, pinv = frame.basis, frame.pinv
    L = N @ _inverse_root(N.T @ model.H @ N)
    bent = model.H @ pinv
    inner = L.T @ bent
    cross, corner = pinv - L @ inner, inner.T @ inner - pinv.T @ bent
    return Inverse(L.reshape(k, -1, L.shape[1]), cross.reshape(k, -1, k, r), corner.reshape(k, r, k, r))


def _inverse_root(A: Array) -> Array:
    """``R`` with ``R R' = A^-1`` for a positive definite matrix; eigenvalues near zero or below are lifted."""
    if not len(A):
        return A
    upper, failed = lapack.dpotrf(A)
    pivots = upper.diagonal()
    if not failed and pivots.min() ** 2 > SINGULAR * pivots.max() ** 2:
        return np.asarray(lapack.dtrtri(np.triu(upper))[0])
    values, vectors = np.linalg.eigh(A)
    return np.asarray(vectors / np.sqrt(np.maximum(values, SINGULAR * np.abs(values).max() + np.finfo(float).tiny)))


class Shared(NamedTuple):
    """Quantities that the systems of all rows share.

    Attributes
    ----------
    raw, multipliers : ndarray of shape (1 + q, k) and (r, k)
    project : ndarray of shape (1 + q, k * (s + k r + k))
        Maps the features to ``L'z``, ``F'z`` and ``u'G z``.
    corner : ndarray of shape (k, r, k, r)
    from_q : ndarray of shape (r, k, k + 1)
        Maps protected values to ``u'F q`` and ``kappa'E q``.
    uu, ut : ndarray of shape (k, k) and (k,)
        ``u'G u`` and ``u'F kappa``.
    kappa : ndarray of shape (k, r)
    mean : ndarray of shape (k,)
        Mean of the predictions.
    """

    raw: Array
    multipliers: Array
    project: Array
    corner: Array
    from_q: Array
    uu: Array
    ut: Array
    kappa: Array
    mean: Array


def share(objective: Objective, end: Iterate, inverse: Inverse) -> Shared:
    """Compute what the systems of all rows share, in one pass over the rows."""
    k, r, T = objective.n_predictors, objective.n_basis, np.asarray(objective.to_raw)
    m, raw, multipliers = T.shape[1], objective.raw(end.theta), end.lam.reshape(k, -1).T

    def kernel(block: Block) -> Sums:
        terms, w = objective.terms(block, raw, multipliers), block.weight
        slopes = (w[:, None, None] * terms.mean_slope).reshape(len(w), -1)
        return w @ (terms.mean - objective.start.mean), block.Z.T @ slopes

    mean, slopes = objective.rows.reduce(kernel)
    U = (T.T @ slopes).reshape(m, k, k).transpose(1, 0, 2).reshape(k * m, k)
    L, F = inverse.root.reshape(k * m, -1), inverse.cross.reshape(k * m, k * r)
    kappa = np.zeros(k * r) if objective.target is None else objective.target
    parts = np.hstack([L, F, L @ (L.T @ U)]).reshape(k, m, -1)
    from_q = np.hstack([F.T @ U, (inverse.corner.reshape(k * r, k * r) @ kappa)[:, None]])
    return Shared(
        raw,
        multipliers,
        np.concatenate([T @ part for part in parts], axis=1),
        inverse.corner,
        from_q.reshape(k, r, k + 1).transpose(1, 0, 2),
        (L.T @ U).T @ (L.T @ U),
        U.T @ (F @ kappa),
        kappa.reshape(k, r),
        mean + objective.start.mean,
    )


class LeftOut(NamedTuple):
    """Leave-one-out results of some rows, in the order of their block.

    Attributes
    ----------
    eta : ndarray of shape (b, k)
        Linear predictors by the model without the row or its cluster.
    leverage : ndarray of shape (b,)
        Share of a row's own fit that rests on itself; the sum is the number of parameters in use.
    lost : ndarray of shape (b,) of bool
        Rows whose prediction the other rows do not determine; theirs is that of the intercept-only model.
    """

    eta: Array
    leverage: Array
    lost: Array


def leave_out(objective: Objective, shared: Shared, block: Block) -> tuple[RowTerms, LeftOut]:
    """Terms of a block's rows at the fit, and their leave-one-out predictors."""
    terms = objective.terms(block, shared.raw, shared.multipliers)
    eta, Q = linear_predictor(block, shared.raw), objective.basis(block)
    seen = _look(shared, block, Q, terms)
    out, leverage, lost = np.empty_like(eta), np.empty(len(eta)), np.zeros(len(eta), dtype=bool)
    for members in groups_of(block):
        change, own, gone = _solve_groups(shared, *(part[members] for part in seen))
        rows = members.ravel()
        out[rows], leverage[rows] = eta[rows] + change.reshape(-1, eta.shape[1]), own.ravel()
        lost[rows] = np.repeat(gone, members.shape[1])
    if lost.any():
        null = objective.start.theta.reshape(objective.n_predictors, -1)[:, 0]
        out[lost] = null if block.offset is None else null + block.offset[lost]
    return terms, LeftOut(out, leverage, lost)


def groups_of(block: Block) -> list[IntArray]:
    """Rows of the clusters of a block, (g, m) for each size m; without clusters each row is one."""
    if block.group is None:
        return [np.arange(len(block.weight))[:, None]]
    starts = np.flatnonzero(np.diff(block.group, prepend=block.group[0] - 1))
    sizes = np.diff(starts, append=len(block.group))
    return [starts[sizes == size][:, None] + np.arange(size) for size in np.unique(sizes)]


class _Seen(NamedTuple):
    """What the systems need of each row: products with the blocks of the inverse, and terms of the Lagrangian."""

    P: Array
    fz: Array
    zu: Array
    q: Array
    q_left: Array
    qu: Array
    w: Array
    curvature: Array
    mean_slope: Array
    slope: Array
    gap: Array
    price: Array


def _look(shared: Shared, block: Block, Q: Array, terms: RowTerms) -> _Seen:
    n, k, r = len(Q), shared.mean.shape[0], Q.shape[1]
    projected = np.asarray(block.Z @ shared.project).reshape(n, k, -1)
    s = projected.shape[2] - k * r - k
    price = Q @ shared.multipliers
    slope = terms.slope + np.einsum("nab,nb->na", terms.mean_slope, price)
    return _Seen(
        projected[:, :, :s],
        projected[:, :, s : s + k * r].reshape(n, k, k, r),
        projected[:, :, s + k * r :],
        Q,
        np.einsum("nj,ajcl->nacl", Q, shared.corner, optimize=True),
        np.einsum("nj,jac->nac", Q, shared.from_q, optimize=True),
        block.weight,
        terms.curvature,
        terms.mean_slope,
        slope,
        terms.mean - shared.mean,
        price,
    )


def _solve_groups(
    shared: Shared,
    P: Array,
    fz: Array,
    zu: Array,
    q: Array,
    q_left: Array,
    qu: Array,
    w: Array,
    curvature: Array,
    mean_slope: Array,
    slope: Array,
    gap: Array,
    price: Array,
) -> tuple[Array, Array, IntArray]:
    """Changes (g, m, k) of the linear predictors of g clusters of m rows, leverages (g, m), and which are undetermined.

    The unknowns of a cluster are the changes of ``z_j'theta`` and ``q_j'lam`` for each row and predictor, and of
    ``u'theta``; ``mean_slope`` is ``h'``, ``slope`` that of the Lagrangian, and ``gap`` the prediction minus its mean.
    """
    g, m, k = w.shape[0], w.shape[1], P.shape[2]
    d, size = m * k, 2 * m * k + k
    zz = np.einsum("gjas,glbs->gjalb", P, P, optimize=True) if m > 1 else np.einsum("gjas,gjbs->gjab", P, P)[:, :, :, None]
    zq = np.einsum("gjacr,glr->gjalc", fz, q, optimize=True)
    S = np.empty((g, size, size + 1))
    S[:, :d, :d], S[:, :d, d : 2 * d] = zz.reshape(g, d, d), zq.reshape(g, d, d)
    S[:, d : 2 * d, :d] = S[:, :d, d : 2 * d].transpose(0, 2, 1)
    S[:, d : 2 * d, d : 2 * d] = np.einsum("gjacr,glr->gjalc", q_left, q, optimize=True).reshape(g, d, d)
    S[:, :d, 2 * d : -1], S[:, d : 2 * d, 2 * d : -1] = zu.reshape(g, d, k), qu[..., :k].reshape(g, d, k)
    S[:, 2 * d :, : 2 * d] = S[:, : 2 * d, 2 * d : -1].transpose(0, 2, 1)
    S[:, 2 * d :, 2 * d : -1], S[:, 2 * d :, -1] = shared.uu, shared.ut
    S[:, :d, -1] = np.einsum("gjacr,cr->gja", fz, shared.kappa).reshape(g, d)
    S[:, d : 2 * d, -1] = qu[..., k].reshape(g, d)
    total = w.sum(axis=1)
    rest = w / (1.0 - total)[:, None]
    bent, steep = w[..., None, None] * curvature, w[..., None, None] * mean_slope
    C, same = np.zeros((g, size, size)), np.arange(m)
    blocks = C[:, :d, :d].reshape(g, m, k, m, k)
    blocks[:, same, :, same, :] = bent.transpose(1, 0, 2, 3)
    C[:, :d, :d] = blocks.reshape(g, d, d)
    mixed = steep[:, :, :, None, :] * rest[:, None, None, :, None]
    mixed[:, same, :, same, :] += steep.transpose(1, 0, 2, 3)
    C[:, :d, d : 2 * d] = mixed.reshape(g, d, d)
    C[:, d : 2 * d, :d] = C[:, :d, d : 2 * d].transpose(0, 2, 1)
    recentred = -(rest[:, :, None, None] * np.eye(k)).reshape(g, d, k)
    C[:, d : 2 * d, 2 * d :], C[:, 2 * d :, d : 2 * d] = recentred, recentred.transpose(0, 2, 1)
    toll = np.einsum("gl,gla->ga", rest, price)
    b = np.empty((g, size + 1))
    b[:, :d] = (w[..., None] * slope + np.einsum("gjab,gb->gja", steep, toll)).reshape(g, d)
    weighted = w[..., None] * gap
    b[:, d : 2 * d] = (weighted + rest[..., None] * weighted.sum(axis=1, keepdims=True)).reshape(g, d)
    b[:, 2 * d : -1], b[:, -1] = -toll, -total
    right = np.einsum("gij,gj->gi", S, b)
    x, lost = solve_small(np.eye(size) - S[:, :, :-1] @ C, right)
    own = np.einsum("gjab,gjba->gj", bent, zz[:, same, :, same, :].transpose(1, 0, 2, 3) if m > 1 else zz[:, :, :, 0])
    return x[:, :d].reshape(g, m, k), own, lost


def solve_small(A: Array, b: Array) -> tuple[Array, Array]:
    """Solve g small systems ``A x = b`` of shapes (g, d, d) and (g, d); also return which are nearly singular.

    The systems are close to the identity unless a row determines its own prediction, so elimination needs no pivots.
    """
    determinant = np.linalg.det(A)
    lost = ~(np.abs(determinant) > UNDETERMINED)
    A[lost] = np.eye(A.shape[1])
    return np.linalg.solve(A, b[..., None])[..., 0], lost


class Tallied(NamedTuple):
    """Sums of leave-one-out quantities over the rows; predictions are relative to the intercept-only model.

    Attributes
    ----------
    c : ndarray of shape (r, k)
        Covariance of the leave-one-out predictions with the basis.
    total, square : ndarray of shape (k,)
        Mean and mean square of the predictions.
    loss : float
        Mean leave-one-out loss.
    leverage, lost : float
        Sum of the leverages, and number of undetermined rows.
    """

    c: Array
    total: Array
    square: Array
    loss: Array
    leverage: Array
    lost: Array


def tally(objective: Objective, end: Iterate) -> Tallied:
    """Add up leave-one-out quantities at a solution, in two passes over the rows."""
    shared = share(objective, end, invert(objective, end.model))

    def kernel(block: Block) -> Sums:
        _, left = leave_out(objective, shared, block)
        loss, mean = objective.family.value_terms(block.y, left.eta)
        gap = mean - objective.start.mean
        weighted = block.weight[:, None] * gap
        return (
            objective.basis(block).T @ weighted,
            weighted.sum(axis=0),
            np.einsum("nk,nk->k", weighted, gap),
            np.asarray(block.weight @ loss),
            np.asarray(left.leverage.sum()),
            np.asarray(float(left.lost.sum())),
        )

    return Tallied(*objective.rows.reduce(kernel))


def predictors(objective: Objective, end: Iterate) -> Array:
    """Leave-one-out linear predictors (n, k), in the order of the objective's rows."""
    shared = share(objective, end, invert(objective, end.model))

    def kernel(block: Block) -> Array:
        return leave_out(objective, shared, block)[1].eta

    return objective.rows.reduce(kernel, lambda a, b: np.concatenate([a, b]))
