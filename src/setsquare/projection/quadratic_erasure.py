"""Erasure of second moments: products of the features become uncorrelated with the protected columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array
from setsquare.projection.basis import Basis
from setsquare.projection.erasure import Eraser
from setsquare.projection.isotropic import Isotropic, find_isotropic
from setsquare.projection.linear import coordinates
from setsquare.projection.whitening import Whitened, whiten
from setsquare.rows.parallel import Sums, sum_over_rows

#: Weight of the features' variance, beside the preserved columns, in the order in which directions are wanted.
VARIANCE = 1e-3


@dataclass(frozen=True, slots=True)
class _Problem:
    """Whitened features: their covariance with the basis (r, b) and with preserved columns (r, s), and their forms."""

    own: Whitened
    cross: Array
    preserved: Array
    free: Array  # (r, d) orthonormal directions without correlation
    forms: Array  # (b, d, d)


def fit_quadratic(Z: Array, basis: Basis, X: Array, weight: Array | None = None, Y: Array | None = None) -> Eraser:
    """Fit to features ``Z`` (n, q), protected columns ``X`` (n, p) with their basis, preserved columns ``Y`` (n, s).

    Of the whitened features, the map keeps k directions ``W`` with ``W' Cov(w, x) = 0`` and ``W' Cov(w w', x) W = 0``
    for every protected column x (``find_isotropic``), and replaces each feature by its regression on these. So no
    feature, and no product or square of features, is correlated with a protected column on the training rows. Among
    such directions those are looked for that explain most of ``Y``, then most of the features' variance. With ``Y`` the
    covariance of ``Y`` with each feature is kept exactly, if the directions explain anything of ``Y``.
    """
    own = whiten(Z, weight, () if Y is None else (Y,))
    problem = _gather(Z, own, basis, X, Y)
    order = _wanted(problem)
    found = find_isotropic(problem.forms, order, min(problem.preserved.shape[1], order.shape[1]))
    F = problem.free @ found.W  # (r, k): what is kept of the whitened features
    decode, kept = _decode(problem, F)
    loadings = own.loadings - F @ decode
    before, left = _squares(Z, own, basis, X, problem, found)
    return Eraser(
        own.mean,
        own.transform,
        loadings,
        np.linalg.norm(problem.cross, axis=1),
        own.rank,
        n_rows=own.n_rows,
        kept=kept,
        squares=left,
        squares_before=before,
        n_kept=F.shape[1],
    )


def _gather(Z: Array, own: Whitened, basis: Basis, X: Array, Y: Array | None) -> _Problem:
    """Read the rows: once for the covariances, once for the forms of the directions without correlation."""
    b = basis.rank
    Y = np.zeros((len(Z), 0)) if Y is None else Y

    def covariances(rows: slice, memory: Array) -> Sums:
        w = own.apply(Z[rows])
        sides = np.column_stack([coordinates(basis, X[rows]), Y[rows] - own.sides])
        return (w.T @ (own.share[rows, None] * sides),)

    (cross,) = sum_over_rows(covariances, *Z.shape)
    values = np.linalg.svd(cross[:, :b])
    rank = int((values[1] > 1e-9).sum())
    free = values[0][:, rank:]
    to_free = own.transform @ free

    def forms(rows: slice, memory: Array) -> Sums:
        w = (Z[rows] - own.mean) @ to_free
        weights = own.share[rows, None] * coordinates(basis, X[rows])
        return (np.stack([w.T @ (weights[:, j : j + 1] * w) for j in range(b)]),)

    (M,) = sum_over_rows(forms, *Z.shape)
    return _Problem(own, cross[:, :b], cross[:, b:], free, 0.5 * (M + np.swapaxes(M, 1, 2)))


def _wanted(problem: _Problem) -> Array:
    """Orthonormal directions of the free space, those that explain preserved columns and variance first."""
    scale = np.sqrt((problem.own.loadings**2).sum(axis=0))
    standard = problem.free.T @ (problem.own.loadings / np.where(scale > 0.0, scale, np.inf))
    G = VARIANCE * standard @ standard.T / max(problem.own.rank, 1)
    U = problem.free.T @ problem.preserved
    if U.shape[1]:
        U = np.linalg.qr(U)[0]
        G = G + U @ U.T
    return np.asarray(np.linalg.eigh(G)[1][:, ::-1])


def _decode(problem: _Problem, F: Array) -> tuple[Array, float]:
    """Effects (k, q) of the kept directions on the features, and the smallest share of a preserved column's R² kept."""
    decode = F.T @ problem.own.loadings
    if not problem.preserved.shape[1]:
        return decode, float("nan")
    inside, whole = F.T @ problem.preserved, problem.preserved  # (k, s), (r, s)
    shares = (inside**2).sum(axis=0) / np.maximum((whole**2).sum(axis=0), np.finfo(float).tiny)
    lacking = (problem.own.loadings.T @ whole - decode.T @ inside) @ np.linalg.pinv(inside, rcond=1e-6)
    return decode + lacking.T, float(shares.min())


def _squares(
    Z: Array, own: Whitened, basis: Basis, X: Array, problem: _Problem, found: Isotropic
) -> tuple[float, float]:
    """Largest correlation of a squared direction with a protected coordinate: before, and among the kept directions."""
    ways = []
    for span in (np.eye(len(problem.free.T)), found.W):
        small = span.T @ problem.forms @ span
        values, vectors = np.linalg.eigh(small)
        places = np.abs(values).argmax(axis=1)
        ways.append(span @ np.stack([v[:, k] for v, k in zip(vectors, places, strict=True)], axis=1))
    directions = own.transform @ problem.free @ np.hstack(ways)  # (q, 2 b)

    def sums(rows: slice, memory: Array) -> Sums:
        squares = ((Z[rows] - own.mean) @ directions) ** 2
        share, x = own.share[rows, None], np.tile(coordinates(basis, X[rows]), 2)
        return (share * squares).sum(axis=0), (share * squares**2).sum(axis=0), (share * squares * x).sum(axis=0)

    mean, square, product = sum_over_rows(sums, *Z.shape)
    spread = np.sqrt(np.maximum(square - mean**2, np.finfo(float).tiny))
    before, left = np.split(np.abs(product) / spread, 2)
    return float(before.max()), float(left.max())
