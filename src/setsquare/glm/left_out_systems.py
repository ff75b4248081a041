"""Small systems of equations behind leave-one-out predictions: one per row or cluster, all solved at once.

The unknowns of a cluster of m rows are the changes of ``z_j'theta`` and ``q_j'lam`` for each row and predictor, and of
``u'theta``. With ``B`` the vectors of these products, ``S = B'K^-1 B`` and ``K_g - U_g = B C B'`` (see
``glm.leave_one_out``), they solve ``(1 - S C) x = S b``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.families import RowTerms
from setsquare.rows.blocks import Block

#: Determinant of a system below which the other rows do not determine the prediction of a row.
UNDETERMINED = 1e-7


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


def groups_of(block: Block) -> list[IntArray]:
    """Rows of the clusters of a block, (g, m) for each size m; without clusters each row is one."""
    if block.group is None:
        return [np.arange(len(block.weight))[:, None]]
    starts = np.flatnonzero(np.diff(block.group, prepend=block.group[0] - 1))
    sizes = np.diff(starts, append=len(block.group))
    return [starts[sizes == size][:, None] + np.arange(size) for size in np.unique(sizes)]


class Seen(NamedTuple):
    """What the systems need of each of n rows: products with the blocks of the inverse, and terms of the Lagrangian.

    Shapes: ``root`` (n, k, s): ``L'z``; ``cross`` (n, k, k, r): ``F'z``; ``zu`` (n, k, k); ``q`` (n, r); ``corner``
    (n, k, k, r): ``E q``; ``qu`` (n, k, k + 1); ``w`` (n,); ``curvature`` and ``steep`` (n, k, k), the latter ``h'``;
    ``slope`` (n, k), that of the Lagrangian; ``gap`` (n, k), predictions minus their mean; ``price`` (n, k): ``q'lam``.
    """

    root: Array
    cross: Array
    zu: Array
    q: Array
    corner: Array
    qu: Array
    w: Array
    curvature: Array
    steep: Array
    slope: Array
    gap: Array
    price: Array

    @classmethod
    def of(cls, shared: Shared, block: Block, Q: Array, terms: RowTerms) -> Seen:
        """Look at the rows of a block."""
        n, k, r = len(Q), shared.mean.shape[0], Q.shape[1]
        projected = np.asarray(block.Z @ shared.project).reshape(n, k, -1)
        s = projected.shape[2] - k * r - k
        price = Q @ shared.multipliers
        return cls(
            projected[:, :, :s],
            projected[:, :, s : s + k * r].reshape(n, k, k, r),
            projected[:, :, s + k * r :],
            Q,
            (Q @ shared.corner.transpose(1, 0, 2, 3).reshape(r, -1)).reshape(n, k, k, r),
            (Q @ shared.from_q.reshape(r, -1)).reshape(n, k, k + 1),
            block.weight,
            terms.curvature,
            terms.mean_slope,
            terms.slope + np.einsum("nab,nb->na", terms.mean_slope, price),
            terms.mean - shared.mean,
            price,
        )

    def at(self, members: IntArray) -> Seen:
        """Rows (g, m) of clusters."""
        return Seen(*(part[members] for part in self))


class Solved(NamedTuple):
    """Changes of the linear predictors, leverages, and whether the other rows determine the prediction."""

    change: Array
    leverage: Array
    lost: BoolArray


def solve_rows(shared: Shared, seen: Seen) -> Solved:
    """Leave out each of n rows with one linear predictor: systems of three equations, by Cramer's rule."""
    zz = np.einsum("nas,nas->n", seen.root, seen.root)
    zq, qq = (np.einsum("nr,nr->n", part[:, 0, 0], seen.q) for part in (seen.cross, seen.corner))
    zu, qu, qt, zt = seen.zu[:, 0, 0], seen.qu[:, 0, 0], seen.qu[:, 0, 1], seen.cross[:, 0, 0] @ shared.kappa[0]
    uu, ut, w, price = shared.uu[0, 0], shared.ut[0], seen.w, seen.price[:, 0]
    rest, bent = w / (1.0 - w), w * seen.curvature[:, 0, 0]
    tied = rest * seen.steep[:, 0, 0]
    b = w * (seen.slope[:, 0] + seen.steep[:, 0, 0] * rest * price), rest * seen.gap[:, 0], -rest * price
    (r0, a00, a01, a02), (r1, a10, a11, a12), (r2, a20, a21, a22) = (
        (
            left * b[0] + middle * b[1] + right * b[2] - t * w,
            diagonal[0] - left * bent - middle * tied,
            diagonal[1] - left * tied + right * rest,
            diagonal[2] + middle * rest,
        )
        for left, middle, right, t, diagonal in (
            (zz, zq, zu, zt, (1.0, 0.0, 0.0)),
            (zq, qq, qu, qt, (0.0, 1.0, 0.0)),
            (zu, qu, uu, ut, (0.0, 0.0, 1.0)),
        )
    )
    minor = a11 * a22 - a12 * a21
    determinant = a00 * minor - a01 * (a10 * a22 - a12 * a20) + a02 * (a10 * a21 - a11 * a20)
    lost = ~(np.abs(determinant) > UNDETERMINED)
    x = r0 * minor - a01 * (r1 * a22 - a12 * r2) + a02 * (r1 * a21 - a11 * r2)
    return Solved((x / np.where(lost, np.inf, determinant))[:, None], zz * bent, lost)


def solve_clusters(shared: Shared, seen: Seen) -> Solved:
    """Leave out each of g clusters of m rows, with k linear predictors per row; ``seen`` has shapes (g, m, ...)."""
    g, m = seen.w.shape
    k = seen.gap.shape[2]
    d = m * k
    S, C, b = _products(shared, seen), _coupling(seen), _right(seen)
    A = np.eye(2 * d + k) - S[:, :, :-1] @ C
    lost = ~(np.abs(np.linalg.det(A)) > UNDETERMINED)
    A[lost] = np.eye(2 * d + k)
    x = np.linalg.solve(A, S @ b[:, :, None])[:, :d, 0].reshape(g, m, k)
    own = np.einsum("gdd->gd", S[:, :d, :d] @ C[:, :d, :d]).reshape(g, m, k).sum(axis=2)
    return Solved(x, own, lost)


def _products(shared: Shared, seen: Seen) -> Array:
    """``S`` (g, 2mk + k, 2mk + k + 1), with the products with the target in the last column."""
    g, m = seen.w.shape
    k = seen.gap.shape[2]
    d = m * k
    S = np.empty((g, 2 * d + k, 2 * d + k + 1))
    root = seen.root.reshape(g, d, -1)
    S[:, :d, :d] = root @ root.transpose(0, 2, 1)
    S[:, :d, d : 2 * d], S[:, d : 2 * d, d : 2 * d] = (
        np.einsum("gjacr,glr->gjalc", part, seen.q, optimize=True).reshape(g, d, d)
        for part in (seen.cross, seen.corner)
    )
    S[:, d : 2 * d, :d] = S[:, :d, d : 2 * d].transpose(0, 2, 1)
    S[:, :d, 2 * d : -1], S[:, d : 2 * d, 2 * d : -1] = seen.zu.reshape(g, d, k), seen.qu[..., :k].reshape(g, d, k)
    S[:, 2 * d :, : 2 * d] = S[:, : 2 * d, 2 * d : -1].transpose(0, 2, 1)
    S[:, 2 * d :, 2 * d : -1], S[:, 2 * d :, -1] = shared.uu, shared.ut
    S[:, :d, -1] = np.einsum("gjacr,cr->gja", seen.cross, shared.kappa).reshape(g, d)
    S[:, d : 2 * d, -1] = seen.qu[..., k].reshape(g, d)
    return S


def _coupling(seen: Seen) -> Array:
    """``C`` (g, 2mk + k, 2mk + k)."""
    g, m = seen.w.shape
    k = seen.gap.shape[2]
    d, same, w = m * k, np.arange(m), seen.w[:, :, None, None]
    rest = seen.w / (1.0 - seen.w.sum(axis=1, keepdims=True))
    own, mixed = np.zeros((2, g, m, k, m, k))
    own[:, same, :, same, :] = (w * seen.curvature).transpose(1, 0, 2, 3)
    mixed += (w * seen.steep)[:, :, :, None, :] * rest[:, None, None, :, None]
    mixed[:, same, :, same, :] += (w * seen.steep).transpose(1, 0, 2, 3)
    recentred = -(rest[:, :, None, None] * np.eye(k)).reshape(g, d, k)
    C = np.zeros((g, 2 * d + k, 2 * d + k))
    C[:, :d, :d], C[:, :d, d : 2 * d] = own.reshape(g, d, d), mixed.reshape(g, d, d)
    C[:, d : 2 * d, :d] = C[:, :d, d : 2 * d].transpose(0, 2, 1)
    C[:, d : 2 * d, 2 * d :], C[:, 2 * d :, d : 2 * d] = recentred, recentred.transpose(0, 2, 1)
    return C


def _right(seen: Seen) -> Array:
    """``b`` (g, 2mk + k + 1): slopes of the Lagrangian and the constraint without the cluster."""
    g, m = seen.w.shape
    d, total = m * seen.gap.shape[2], seen.w.sum(axis=1)
    rest, w = seen.w / (1.0 - total)[:, None], seen.w[:, :, None]
    toll = np.einsum("gl,gla->ga", rest, seen.price)
    slope = w * (seen.slope + np.einsum("gjab,gb->gja", seen.steep, toll))
    gap = w * seen.gap
    left = gap + rest[:, :, None] * gap.sum(axis=1, keepdims=True)
    return np.hstack([slope.reshape(g, d), left.reshape(g, d), -toll, -total[:, None]])
