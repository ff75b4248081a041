"""Subspaces on which several quadratic forms vanish: directions whose products are uncorrelated with given columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array

#: Largest entry of a form, relative to the largest eigenvalue of all forms, that counts as zero.
EXACT = 1e-10
#: Levenberg-Marquardt steps, and conjugate gradient steps within each.
MAX_STEPS, MAX_INNER = 60, 200
#: Share of the largest dimension that counting equations allows. Near the limit a solution is far from the start.
SHARE = 0.5
#: How far the first, preserved directions move in comparison with the others.
RIGID = 0.1


@dataclass(frozen=True, slots=True)
class Isotropic:
    """A subspace on which all forms vanish, or as nearly as was found.

    Attributes
    ----------
    W : ndarray of shape (d, k)
        Orthonormal directions.
    residual : float
        Largest entry of ``W' M_j W`` over all forms j.
    exact : bool
        Whether that is rounding error.
    """

    W: Array
    residual: float
    exact: bool


def find_isotropic(M: Array, wanted: Array, n_rigid: int = 0) -> Isotropic:
    """Find a subspace with ``W' M_j W = 0`` for symmetric forms ``M`` (p, d, d), near the first wanted directions.

    The equations number ``p k (k + 1) / 2`` and a subspace of dimension k has ``k (d - k)`` parameters, so at best
    ``k = (2 d - p) / (p + 2)``. Half of this is tried first, then fewer. One form has a solution of dimension k if and
    only if it has k eigenvalues of each sign (zeros count as both); a definite one has none.

    Parameters
    ----------
    M : ndarray of shape (p, d, d)
    wanted : ndarray of shape (d, d)
        Orthonormal directions, the most wanted first: the search starts from them and moves them as little as it can.
    n_rigid : int
        How many of them should move least.

    Examples
    --------
    >>> import numpy as np
    >>> found = find_isotropic(np.diag([2.0, 1.0, -1.0, -3.0])[None], np.eye(4))
    >>> found.W.shape, found.exact
    ((4, 1), True)
    """
    p, d = M.shape[:2]
    size = max(float(np.abs(np.linalg.eigvalsh(M)).max(initial=0.0)), np.finfo(float).tiny)
    k = max(1, min(d, int(SHARE * (2 * d - p) / (p + 2)))) if d else 0
    best = Isotropic(wanted[:, :k], 0.0, True)
    while k:
        found = _settle(M / size, wanted[:, :k], n_rigid, size)
        if not found.exact:  # an eigenvector of a form is a stationary point
            found = min(found, _settle(M / size, _tilt(wanted[:, :k]), n_rigid, size), key=lambda one: one.residual)
        if found.exact or k == 1:
            best = found
            break
        k = int(0.8 * k)
    if best.exact:
        return best
    flattest = np.linalg.eigh((M @ M).sum(axis=0))[1][:, :1]  # no solution near the wanted directions
    return min(best, _settle(M / size, flattest, 0, size), key=lambda found: found.residual)


def _tilt(W: Array) -> Array:
    """Directions turned a little, each in another way."""
    i, j = np.indices(W.shape)
    return np.asarray(np.linalg.qr(W + 0.1 * np.cos(1.0 + i * (j + 1.0)))[0])


def _settle(M: Array, W: Array, n_rigid: int, size: float) -> Isotropic:
    """Levenberg-Marquardt on the Grassmann manifold, with steps of smallest length."""
    share = np.where(np.arange(W.shape[1]) < n_rigid, RIGID, 1.0) ** 2
    B, damping = W.T @ M @ W, 1e-3
    for _ in range(MAX_STEPS):
        if np.abs(B).max() <= EXACT:
            break
        H = M @ W - W @ B  # (p, d, k), orthogonal to W
        step = 2.0 * np.einsum("pdk,pkl->dl", H, _solve(H, share, -B, damping)) * share
        moved = np.linalg.qr(W + step)[0]
        new = moved.T @ M @ moved
        gain = (B**2).sum() - (new**2).sum()
        if gain > 0.0:
            W, B, damping = moved, new, max(0.1 * damping, 1e-14)
            if gain <= 1e-8 * (B**2).sum():
                break
        else:
            damping *= 10.0
            if damping > 1e6:
                break
    left = float(np.abs(B).max())
    return Isotropic(W, left * size, left <= EXACT)


def _solve(H: Array, share: Array, target: Array, damping: float) -> Array:
    """Solve ``(J J' + damping) lam = target`` by conjugate gradients; J maps a step to the change of the forms."""

    def apply(lam: Array) -> Array:
        step = 2.0 * np.einsum("pdk,pkl->dl", H, lam) * share
        half = np.swapaxes(H, 1, 2) @ step
        return np.asarray(half + np.swapaxes(half, 1, 2) + damping * lam)

    lam, rest = np.zeros_like(target), target.copy()
    way, norm = rest.copy(), float((rest**2).sum())
    stop = 1e-6 * min(1.0, norm) * norm  # tighter near the solution, where the steps should converge quadratically
    for _ in range(MAX_INNER):
        if norm <= stop:
            break
        image = apply(way)
        curvature = float((way * image).sum())
        if curvature <= 0.0:
            break
        length = norm / curvature
        lam, rest = lam + length * way, rest - length * image
        before, norm = norm, float((rest**2).sum())
        way = rest + norm / before * way
    return lam
