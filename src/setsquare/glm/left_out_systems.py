"""Small systems of equations behind leave-one-out predictions of clusters and classes: one per unit, solved at once.

The unknowns of a cluster of m rows are the changes of ``z_j'theta`` and ``q_j'lam`` for each row and predictor, and of
``u'theta``. With controls, ``u`` of a row is the combination ``U d`` of several vectors by its controls ``d``.
With ``B`` the vectors of these products, ``S = B'K^-1 B`` and ``K_g - U_g = B C B'`` (see
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
#: Largest logarithm of a ratio of spreads: beyond it a first-order change says little.
MOST_NARROWER = 0.7


class Known(NamedTuple):
    """Linear predictors (b, k) of a block, and its terms of the Lagrangian."""

    block: Block
    eta: Array
    terms: RowTerms


class Point(NamedTuple):
    """A solution, and ``L`` (k m, s), ``F`` (k m, k r) and ``E`` (k r, k r) of its KKT matrix."""

    theta: Array
    lam: Array
    inverse: tuple[Array, Array, Array]


class Spread(NamedTuple):
    """Variance of the predictions on the rows; half its gradient v as ``L'v`` (s,), ``F'v`` (k r,) and ``U'G v``."""

    variance: float
    root: Array
    cross: Array
    centre: Array


class Shared(NamedTuple):
    """Quantities that the systems of all rows share.

    Attributes
    ----------
    raw, multipliers : ndarray of shape (1 + q, k) and (r, k)
    project : ndarray of shape (1 + q, k * (s + k r + k + 1))
        Maps the features to ``L'z``, ``F'z``, ``u'G z`` and ``z'theta``.
    corner : ndarray of shape (k, r, k, r)
    from_q : ndarray of shape (r, k, k)
        Maps protected values to ``u'F q``.
    uu, uf : ndarray of shape (k, k) and (k, k r)
        ``u'G u`` and ``u'F``. With s controls (then k = 1), U takes the place of u, and its axes have length 1 + s.
    targets : ndarray of shape (k r, d)
        ``kappa``, and the directions in which it may move (none, or all).
    mean : ndarray of shape (1 + s, k)
        Mean of the predictions, and their covariances with the basis of the controls.
    low, high : ndarray of shape (k,)
        Caps of the leave-one-out linear predictors.
    loss : float or None
        Loss of the fit, with its ridge; None if no pass over the rows measured it.
    known : dict of int to Known
        For few rows: results of the first pass, by the identity of the block.
    stiff, ff : float and ndarray of shape (k r, k r)
        Curvature of the intercept-only model, and ``F'F``: for the change of the fit without a unit.
    point : Point or None
        The solution, where units may get further steps (``glm.further_steps``).
    slope, centre : ndarray of shape (k, k) and (s, k)
        Mean slope of the activation, and ``L'z`` of the mean features, weighted by the slopes.
    single : bool
        Whether products with ``project``, except linear predictors, are in single precision.
    spread : Spread or None
        For few units: how the spread of the predictions changes with the fit.
    """

    raw: Array
    multipliers: Array
    project: Array
    corner: Array
    from_q: Array
    uu: Array
    uf: Array
    targets: Array
    mean: Array
    low: Array
    high: Array
    loss: float | None
    known: dict[int, Known]
    stiff: float
    ff: Array
    point: Point | None
    slope: Array
    centre: Array
    single: bool = False
    spread: Spread | None = None

    @property
    def steer(self) -> bool:
        """Whether derivatives by the target are wanted."""
        return bool(self.targets.shape[1] > 1)


def groups_of(block: Block) -> list[IntArray]:
    """Rows of the clusters of a block, (g, m) for each size m; without clusters each row is one."""
    if block.group is None:
        return [np.arange(len(block.weight))[:, None]]
    starts = np.flatnonzero(np.diff(block.group, prepend=block.group[0] - 1))
    sizes = np.diff(starts, append=len(block.group))
    return [starts[sizes == size][:, None] + np.arange(size) for size in np.unique(sizes)]


class Seen(NamedTuple):
    """What the systems need of each of n rows: products with the blocks of the inverse, and terms of the Lagrangian.

    Shapes: ``root`` (n, k, s): ``L'z``; ``zu`` (n, k, k); ``cross`` and ``corner`` (n, k, k r): ``F'z`` and ``E q``;
    ``q`` (n, r); ``qu`` (n, k, k); ``w`` (n,); ``curvature`` and ``steep`` (n, k, k), the latter ``h'``;
    ``uu`` (n, k, k) and ``uf`` (n, k, k r); ``near`` (n,): ``d'd``, 1 without controls. The last have d columns, for
    the solution and its derivatives by the target: ``slope`` (n, k, d), that of the Lagrangian;
    ``gap`` (n, k, d), predictions minus their mean; ``price`` (n, k, d): ``q'lam``.
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
    uu: Array
    uf: Array
    near: Array
    slope: Array
    gap: Array
    price: Array

    @classmethod
    def of(cls, shared: Shared, projected: Array, Q: Array, D: Array, terms: RowTerms, weight: Array) -> Seen:
        """Look at rows with products ``projected`` (n, k, .) and controls ``D``."""
        n, k, r = len(Q), shared.mean.shape[1], Q.shape[1]
        s = projected.shape[2] - k * r - len(shared.uu)
        cross = projected[:, :, s : s + k * r]
        corner = (Q @ shared.corner.transpose(1, 0, 2, 3).reshape(r, -1)).reshape(n, k, k * r)
        price = Q @ shared.multipliers
        slope = terms.slope + np.einsum("nab,nb->na", terms.mean_slope, price)
        zu, qu = projected[:, :, s + k * r :], (Q @ shared.from_q.reshape(r, -1)).reshape(n, k, -1)
        uu, uf = np.broadcast_to(shared.uu, (n, *shared.uu.shape)), np.broadcast_to(shared.uf, (n, *shared.uf.shape))
        if D.shape[1] > 1:
            zu, qu = ((part[:, 0] * D).sum(axis=1)[:, None, None] for part in (zu, qu))
            uu, uf = ((D @ shared.uu) * D).sum(axis=1)[:, None, None], (D @ shared.uf)[:, None]
        parts = slope[:, :, None], (terms.mean - D @ shared.mean)[:, :, None], price[:, :, None]
        if shared.steer:  # the solution moves by F and E
            bent, steep = terms.curvature, terms.mean_slope
            shift = apply_rows(bent, cross) + apply_rows(steep, corner)
            moved = shift, apply_rows(steep, cross) - uf, corner
            parts = tuple(np.concatenate(pair, axis=2) for pair in zip(parts, moved, strict=True))  # type: ignore[assignment]
        return cls(
            projected[:, :, :s],
            cross,
            zu,
            Q,
            corner,
            qu,
            weight,
            terms.curvature,
            terms.mean_slope,
            uu,
            uf,
            np.einsum("ns,ns->n", D, D),
            *parts,
        )

    def at(self, members: IntArray) -> Seen:
        """Rows (g, m) of clusters."""
        return Seen(*(part[members] for part in self))


def apply_rows(A: Array, B: Array) -> Array:
    """``A_i B_i`` for each row; products of 1 x 1 matrices one by one would take most of the time."""
    return A * B if A.shape[1] == 1 else A @ B


class SteeredUnits(NamedTuple):
    """Derivatives (n, k, k r) of the leave-one-out linear predictors by the target."""

    change: Array

    def total(self, Qt: Array, slopes: Array) -> Array:
        """Sum over the rows of ``q slope d eta``, (k r, k r), for basis (r, n) and slopes (n, k, k)."""
        n, k, kr = self.change.shape
        sums = (Qt @ apply_rows(slopes, self.change).reshape(n, -1)).reshape(-1, k, kr)
        return np.asarray(sums.transpose(1, 0, 2).reshape(kr, kr))


class Solved(NamedTuple):
    """Results for g clusters of m rows.

    Attributes
    ----------
    change : ndarray of shape (g, m, k, d)
        Changes of the linear predictors.
    leverage : ndarray of shape (g, m)
    lost : ndarray of shape (g,)
        Clusters that the others do not determine.
    far : ndarray of shape (g,)
        Squared change of the fit, in standard deviations of the linear predictor.
    narrower : ndarray of shape (g,)
        Spread of the predictions of the fit, relative to that of the fit without the cluster on the other rows.
    """

    change: Array
    leverage: Array
    lost: BoolArray
    far: Array
    narrower: Array


def solve_clusters(shared: Shared, seen: Seen) -> Solved:
    """Leave out each of g clusters of m rows, with k linear predictors per row; ``seen`` has shapes (g, m, ...)."""
    g, m = seen.w.shape
    k = seen.gap.shape[2]
    d = m * k
    S, C, b = _products(shared, seen), _coupling(seen), _right(seen)
    A = np.eye(2 * d + k) - S @ C
    lost = ~(np.abs(np.linalg.det(A)) > UNDETERMINED)
    A[lost] = np.eye(2 * d + k)
    moved = [(part @ shared.targets).reshape(g, d, -1) for part in (seen.cross, seen.corner)]
    moved.append(np.broadcast_to(shared.uf @ shared.targets, (g, k, shared.targets.shape[1])))
    right = S @ b - seen.w.sum(axis=1)[:, None, None] * np.concatenate(moved, axis=1)
    x = np.linalg.solve(A, right)
    own = np.einsum("gde,ged->gd", S[:, :d, :d], C[:, :d, :d]).reshape(g, m, k).sum(axis=2)
    pull = (b[:, :, :1] + C @ x[:, :, :1])[:, :, 0]
    change = x[:, :d].reshape(g, m, k, -1)
    far, narrower = _far(shared, seen, pull[:, : 2 * d]), _narrower(shared, seen, pull, change[:, :, :, 0], lost)
    return Solved(change, own, lost, far, narrower)


def _far(shared: Shared, seen: Seen, pull: Array) -> Array:
    """Squared change of the fit by ``pull`` (g, 2 m k) along the features and the basis of the rows."""
    g, m = seen.w.shape
    along, across = pull.reshape(g, 2, m, -1).transpose(1, 0, 2, 3)
    tangent = np.einsum("gmks,gmk->gs", seen.root, along)
    normal = np.einsum("gmk,gmr->gkr", across, seen.q).reshape(g, -1)
    normal = normal - seen.w.sum(axis=1)[:, None] * shared.targets[:, 0]
    return np.asarray(np.square(tangent).sum(axis=1) / shared.stiff + ((normal @ shared.ff) * normal).sum(axis=1))


def _narrower(shared: Shared, seen: Seen, pull: Array, own: Array, lost: BoolArray) -> Array:
    """Spread of the predictions of the fit, relative to that of each fit without a cluster on the other rows, (g,).

    To first order in the change of the fit; ``own`` (g, m, k) is that of the cluster's linear predictors.
    """
    g, _ = seen.w.shape
    if shared.spread is None:
        return np.ones(g)
    variance, root, cross, centre = shared.spread
    along = seen.root.reshape(g, -1, len(root)) @ root
    across = (seen.q @ cross.reshape(-1, seen.q.shape[2]).T).reshape(g, -1)
    beside = np.broadcast_to(centre, (g, len(centre)))
    change = np.einsum("gd,gd->g", pull, np.concatenate([along, across, beside], axis=1))
    change -= seen.w.sum(axis=1) * float(cross @ shared.targets[:, 0])
    gap = seen.gap[:, :, :, 0]
    inside = 0.5 * (np.square(gap).sum(axis=2) - variance) + np.einsum("gma,gmab,gmb->gm", gap, seen.steep, own)
    change -= np.einsum("gm,gm->g", seen.w, inside)
    return np.asarray(np.exp(-np.clip(np.where(lost, 0.0, change) / variance, -MOST_NARROWER, MOST_NARROWER)))


def _products(shared: Shared, seen: Seen) -> Array:
    """``S`` (g, 2mk + k, 2mk + k)."""
    g, m = seen.w.shape
    k, r = seen.gap.shape[2], seen.q.shape[2]
    d = m * k
    S = np.empty((g, 2 * d + k, 2 * d + k))
    root = seen.root.reshape(g, d, -1)
    S[:, :d, :d] = root @ root.transpose(0, 2, 1)
    S[:, :d, d : 2 * d], S[:, d : 2 * d, d : 2 * d] = (
        np.einsum("gjacr,glr->gjalc", part.reshape(g, m, k, k, r), seen.q, optimize=True).reshape(g, d, d)
        for part in (seen.cross, seen.corner)
    )
    S[:, d : 2 * d, :d] = S[:, :d, d : 2 * d].transpose(0, 2, 1)
    S[:, :d, 2 * d :], S[:, d : 2 * d, 2 * d :] = seen.zu.reshape(g, d, k), seen.qu.reshape(g, d, k)
    S[:, 2 * d :, : 2 * d] = S[:, : 2 * d, 2 * d :].transpose(0, 2, 1)
    S[:, 2 * d :, 2 * d :] = shared.uu
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
    """``b`` (g, 2mk + k, d): slopes of the Lagrangian and the constraint without the cluster."""
    g, m = seen.w.shape
    d, columns = m * seen.gap.shape[2], seen.gap.shape[3]
    rest, w = seen.w / (1.0 - seen.w.sum(axis=1, keepdims=True)), seen.w[:, :, None, None]
    toll = np.einsum("gl,glad->gad", rest, seen.price)
    slope = w * (seen.slope + seen.steep @ toll[:, None])
    gap = w * seen.gap
    left = gap + rest[:, :, None, None] * gap.sum(axis=1, keepdims=True)
    return np.concatenate([slope.reshape(g, d, columns), left.reshape(g, d, columns), -toll], axis=1)
