"""Optimal transport between cells of the protected columns: the same mean and covariance of the features in each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.errors import InputError
from setsquare.projection.cells import Cells, find_cells
from setsquare.projection.linear import Projector
from setsquare.projection.whitening import Whitened, whiten

#: Fixed-point steps for the common covariance, and the relative change at which they end: any common covariance gives
#: the guarantee, the barycentre changes the features least.
STEPS, CHANGE = 10, 1e-3
#: Most bytes of maps that are held.
MOST_BYTES = 2**31


@dataclass(frozen=True, slots=True)
class Transport:
    """Moves the features of each cell of the protected columns to a common mean and covariance.

    Linear effects are subtracted first. The features, each in standard deviations, are then turned to uncorrelated
    coordinates w, and a row of cell k becomes ``A_k (w - m_k)`` with ``A_k = S_k^-½ (S_k^½ B S_k^½)^½ S_k^-½``: the
    optimal transport between normal distributions, where ``m_k`` and ``S_k`` are the cell's mean and covariance, and B
    is the barycentre of all ``S_k``. At last linear effects that are left within bands are removed.

    Attributes
    ----------
    first, last : Projector
        Linear corrections before and after.
    cells : Cells
    mean, transform, loadings : ndarray of shape (q,), (q, r), (r, q)
        From features to w, and back.
    centres : ndarray of shape (K, r)
    maps : ndarray of shape (K, r, r)
    n_rows, shrinkage : ndarray of shape (K,)
        Rows of each cell, and the share of the pooled covariance in its own.
    """

    first: Projector
    last: Projector
    cells: Cells
    mean: Array
    transform: Array
    loadings: Array
    centres: Array
    maps: Array
    n_rows: IntArray
    shrinkage: Array

    @classmethod
    def fit(
        cls,
        Z: Array,
        X: Array,
        weight: Array | None = None,
        names: tuple[str, ...] | None = None,
        shrinkage: float | None = None,
    ) -> Transport:
        """Fit to features ``Z`` (n, q) and protected columns ``X`` (n, p).

        With ``shrinkage=None`` the covariance of each cell is mixed with as many rows of the pooled one as there are
        features, and its mean is shrunk as far as chance explains it (James and Stein 1961). A number from 0 to 1 is
        the share of the pooled covariance in every cell. With 0, means and covariances are equal after the correction
        in cells that are combinations of levels.
        """
        first = Projector.fit(Z, X, weight, names)
        clean = first.apply(np.asarray(Z, dtype=np.float64), X)
        own, cells = whiten(clean, weight, turn_only=True), find_cells(X, Z.shape[1])
        _check_size(len(cells.codes), own.rank)
        place, W = cells.of(X), own.apply(clean)
        summary = _summarise(W, place, own.share, len(cells.codes))
        _refuse_small(summary, own, shrinkage)
        centres, covariances, shares = _shrink(summary, shrinkage)
        maps = _maps(covariances, summary.share)
        parts = (own.mean, own.transform, own.loadings, centres, maps)
        moved = _move(clean, place, *parts)
        return cls(first, Projector.fit(moved, X, weight, names), cells, *parts, summary.n_rows, shares)

    def apply(self, Z: Array, X: Array) -> Array:
        """Correct features ``Z`` (n, q) by the protected columns ``X`` (n, p) of the same rows.

        A row of a cell without training rows gets the linear correction alone.
        """
        clean = self.first.apply(np.asarray(Z, dtype=np.float64), X)
        parts = (self.mean, self.transform, self.loadings, self.centres, self.maps)
        moved = _move(clean, self.cells.of(X), *parts)
        return self.last.apply(moved, X).astype(np.result_type(Z.dtype, np.float32), copy=False)

    def unknown(self, X: Array) -> BoolArray:
        """Which rows of ``X`` (n, p) are in cells without training rows."""
        return np.asarray(self.cells.of(X) < 0)


@dataclass(frozen=True, slots=True)
class _Summary:
    """Cells of the coordinates: rows, shares of the weight, means, their squared error, and covariances."""

    n_rows: IntArray
    share: Array
    means: Array
    noise: Array
    covariances: Array


def _summarise(W: Array, place: IntArray, share: Array, n_cells: int) -> _Summary:
    r = W.shape[1]
    n_rows = np.bincount(place[share > 0.0], minlength=n_cells).astype(np.intp)
    weight = np.asarray(np.bincount(place, share, n_cells), dtype=np.float64)
    means, noise, covariances = np.zeros((n_cells, r)), np.zeros(n_cells), np.zeros((n_cells, r, r))
    for k in np.flatnonzero(weight > 0.0):
        rows = place == k
        own = share[rows] / weight[k]
        means[k] = own @ W[rows]
        centred = W[rows] - means[k]
        covariances[k] = (centred * own[:, None]).T @ centred
        noise[k] = own**2 @ (centred**2).sum(axis=1)
    return _Summary(n_rows, weight, means, noise, covariances)


def _shrink(summary: _Summary, shrinkage: float | None) -> tuple[Array, Array, Array]:
    """Means (K, r) and covariances (K, r, r) of the cells, and the share of the pooled covariance (K,)."""
    pooled = np.tensordot(summary.share, summary.covariances, axes=1)
    means, shares = summary.means, np.full(len(summary.share), 0.0 if shrinkage is None else shrinkage)
    if shrinkage is None:
        shares = len(pooled) / (len(pooled) + summary.n_rows)
        length = np.maximum((means**2).sum(axis=1), np.finfo(float).tiny)
        means = means * np.maximum(1.0 - summary.noise / length, 0.0)[:, None]
        means[summary.n_rows < 2] = 0.0
    mixed = shares[:, None, None]
    return means, (1.0 - mixed) * summary.covariances + mixed * pooled, shares


def _maps(S: Array, share: Array) -> Array:
    """Symmetric maps ``A_k`` from each covariance to the barycentre of all."""
    B = np.tensordot(share, S, axes=1)
    for _ in range(STEPS):
        root, inverse = _root(B), _root(B, -0.5)
        middle = sum(w * _root(root @ one @ root) for w, one in zip(share, S, strict=True) if w > 0.0)
        new = inverse @ middle @ middle @ inverse
        change, B = np.linalg.norm(new - B) / np.linalg.norm(B), 0.5 * (new + new.T)
        if change <= CHANGE:
            break
    maps = np.empty_like(S)
    for k, one in enumerate(S):
        root, inverse = _root(one), _root(one, -0.5)
        maps[k] = inverse @ _root(root @ B @ root) @ inverse
    return maps


def _root(S: Array, power: float = 0.5) -> Array:
    values, vectors = np.linalg.eigh(S)
    return np.asarray((vectors * np.maximum(values, np.finfo(float).tiny) ** power) @ vectors.T)


def _move(
    Z: Array, place: IntArray, mean: Array, transform: Array, loadings: Array, centres: Array, maps: Array
) -> Array:
    """Features (n, q) moved by the map of their cell; those without a cell stay."""
    moved = Z.copy()
    for k in range(len(maps)):
        rows = place == k
        if rows.any():
            w = (Z[rows] - mean) @ transform
            moved[rows] += ((w - centres[k]) @ maps[k] - w) @ loadings
    return moved


def _check_size(n_cells: int, rank: int) -> None:
    if 8 * n_cells * rank**2 > MOST_BYTES:
        raise InputError(
            f"The protected columns have {n_cells} cells, whose maps of {rank} features take more than "
            f"{MOST_BYTES / 2**30:.0f} GB: use fewer protected columns, or reduce the features first "
            "(PrincipalComponents)."
        )


def _refuse_small(summary: _Summary, own: Whitened, shrinkage: float | None) -> None:
    if shrinkage == 0.0 and summary.n_rows.min() <= own.rank:
        few = int((summary.n_rows <= own.rank).sum())
        raise InputError(
            f"{few} of {len(summary.n_rows)} cells of the protected columns have no more rows than the features have "
            f"dimensions ({own.rank}), so their covariance cannot be inverted: use shrinkage='auto', or reduce the "
            "features first (PrincipalComponents)."
        )
