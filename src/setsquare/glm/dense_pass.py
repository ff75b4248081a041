"""One pass over dense rows with one linear predictor: all sums of the objective, piece by piece.

A piece of the rows stays in the cache from the linear predictor to the products. Products are by ``numpy.dot``: the
operator ``@`` holds the interpreter's lock while it computes a result of fewer than 500 values, such as a gradient, and
the other threads wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from setsquare._typing import Array, Matrix
from setsquare.families import Family, binomial
from setsquare.families.activations import sigmoid_sum
from setsquare.glm.overall import Ends, Overall, RowsAt, wrapped
from setsquare.rows.blocks import Block
from setsquare.rows.parallel import Sums
from setsquare.rows.products import (
    FEW_COLUMNS,
    LEAST_ROWS,
    NO_WEIGHT,
    is_row_major,
    scale_rows,
    scratch,
    turn_negative,
    whole_lanes,
)
from setsquare.rows.wide import Slab

#: Size of a piece of row-major features, and of the scaled rows that a product reads at once.
PIECE_BYTES = 2**21


def is_dense(Z: Matrix) -> bool:
    """Whether features are an array, or one as stored."""
    return isinstance(Z, np.ndarray) or (isinstance(Z, Slab) and isinstance(Z.Z, np.ndarray))


class DensePass:
    """Sums over the rows of a block at a point.

    Parameters
    ----------
    family : Family
    mean : float
        Prediction of the intercept-only model.
    raw : ndarray of shape (1 + q,)
        Intercept and coefficients.
    lam : ndarray of shape (r,)
        Multipliers.
    second : bool
        Whether to sum the Hessian.
    overall : bool
        Whether to gather what leave-one-out systems share, which saves them a pass.
    keep : bool
        Whether to keep the rows for them instead, which saves them most of a pass.
    """

    __slots__ = ("family", "is_steered", "keep", "lam", "mean", "overall", "raw", "second")

    def __init__(
        self,
        family: Family,
        mean: float,
        raw: Array,
        lam: Array,
        *,
        second: bool,
        overall: bool = False,
        keep: bool = False,
    ) -> None:
        self.family, self.mean, self.raw, self.lam, self.second = family, mean, raw, lam, second
        self.is_steered, self.overall = second and bool(lam.any()), overall
        self.keep = keep and family.own_loss is None

    def __call__(self, block: Block) -> Sums:
        """Loss, constraint (r, 1), total and square of the predictions, steepness, gradient, Jacobian and Hessian.

        Shapes as in :meth:`Objective.model`: (1 + q, 1), (1, 1, r, 1 + q) and (1, 1, 1 + q, 1 + q). The last is an
        ``Overall``, or the rows, if wanted.
        """
        q, r, more = block.Z.shape[1], len(self.lam), self.overall and block.Q.shape[1] == len(self.lam)
        step = max(LEAST_ROWS, PIECE_BYTES // (8 * whole_lanes(q + r + more)))
        ends: Ends | None = None
        products: Any = None
        loss = total = square = steepness = 0.0
        c, share = np.zeros(r), equal_weight(block.weight)
        for Z, y, Q, w, offset in _pieces(block, r, step, share):
            eta = np.dot(Z, self.raw) if isinstance(Z, np.ndarray) else Z @ self.raw
            if offset is not None:
                eta += offset
            lost, slope, curvature, h, dh, d2h = self._terms(y, eta, w)
            gap = h - self.mean  # the basis has mean zero, so this only reduces rounding error
            weighted = gap if w is None else w * gap
            c += np.dot(weighted, Q)
            loss += lost
            total += np.add.reduce(weighted)
            square += np.dot(weighted, gap)
            steepness += np.add.reduce(dh) if w is None else np.dot(w, dh)
            if more:
                here = Ends.of(eta, w)
                ends = here if ends is None else ends + here
            if self.is_steered:
                curvature = curvature + d2h * np.dot(Q, self.lam)
            sides = (slope, dh) if w is None else (w * slope, w * dh)
            if self.second:
                product = _square_product(Z, curvature if w is None else w * curvature, *sides, Q, more, step)
            else:
                product = _thin_product(Z, *sides, Q, more)
            products = product if products is None else products + product
        scale = 1.0 if share is None else share
        products *= scale
        sums: Sums = (
            np.asarray(scale * loss),
            scale * c[:, None],
            np.asarray([scale * total]),
            np.asarray([scale * square]),
            np.asarray(scale * steepness),
        )
        if self.second:
            sums += products[:, -1:], products.T[None, None, q : q + r], products[None, None, :, :q]
        else:
            sums += products[:1].T, products[None, None, 1 : 1 + r]
        if self.keep:
            whole = isinstance(block.Z, np.ndarray) and len(block.weight) > 0  # a copy, in one piece
            return *sums, wrapped(RowsAt(block, eta, slope, h, dh, d2h) if whole else None)
        if not self.overall:
            return sums
        if ends is None:
            return *sums, wrapped(None)
        slopes = products[:, q + r, None] if self.second else products[1 + r, :, None]
        return *sums, wrapped(Overall(sums[2][:, None], slopes, ends.scaled(share)))

    def _terms(self, y: Array, eta: Array, w: Array | None) -> tuple[float, Array, Array, Array, Array, Array]:
        """Sum of the loss; slope and curvature of the loss, and ``h``, ``h'`` and ``h''`` of each row."""
        if self.family is binomial and w is None:
            total, h, dh, d2h = sigmoid_sum(eta)
            return total - float(np.dot(y, eta)), h - y, dh, h, dh, d2h
        (loss, slope, curvature), (h, dh, d2h) = self.family.evaluate(y, eta)
        return float(np.add.reduce(loss) if w is None else np.dot(w, loss)), slope, curvature, h, dh, d2h


def equal_weight(w: Array) -> float | None:
    """The weight of every row, if all have the same: sums are then multiplied by it, not rows."""
    return float(w[0]) if len(w) and (w == w[0]).all() else None


def _pieces(
    block: Block, r: int, step: int, share: float | None
) -> Iterator[tuple[Matrix, Array, Array, Array | None, Array | None]]:
    """Features, outcome, basis, weights (None where they are equal) and offset of some rows at a time."""
    y, Q, w = block.y[:, 0], block.Q[:, :r], block.weight if share is None else None
    offset = None if block.offset is None else block.offset[:, 0]
    if len(y) <= step or not is_row_major(block.Z):  # some rows of a column-major array would be copied by each product
        yield block.Z, y, Q, w, offset
        return
    for start in range(0, len(y), step):
        rows = slice(start, start + step)
        Z = Slab(block.Z.Z[rows], block.Z.far, block.Z.shift)
        yield Z, y[rows], Q[rows], None if w is None else w[rows], None if offset is None else offset[rows]


def _thin_product(Z: Matrix, slope: Array, steep: Array, Q: Array, more: bool) -> Array:
    """``[slope, Q steep]' Z``, (1 + r, q), and ``steep'Z`` if there is ``more``."""
    r, width = Q.shape[1], 1 + Q.shape[1] + more
    thin = np.empty((len(slope), width if width <= FEW_COLUMNS else whole_lanes(width)), order="F")
    thin[:, 0] = slope
    np.multiply(Q, steep[:, None], out=thin[:, 1 : 1 + r])
    thin[:, 1 + r : width] = steep[:, None]
    if width <= FEW_COLUMNS:  # a matrix product first copies Z into its own order
        return np.stack([_turned(column, Z) for column in thin.T])
    thin[:, width:] = 0.0
    return _turned(thin.T, Z)[:width]


def _turned(thin: Array, Z: Matrix) -> Array:
    """``thin Z``, of a vector or of rows."""
    return np.asarray(np.dot(thin, Z) if isinstance(Z, np.ndarray) else (Z.T @ thin.T).T)


def _square_product(Z: Matrix, weight: Array, slope: Array, steep: Array, Q: Array, more: bool, step: int) -> Array:
    """Products of the features with each other, with the basis and with the slopes, (q, q + r + 1), by ``step`` rows.

    If there is ``more``, also with ``steep``, the slopes of the activation, before the last column. All are part of one
    symmetric product, but for the slopes where they would be the first of its next few columns.
    """
    q, r, n = Z.shape[1], Q.shape[1], len(weight)
    width = q + r + more
    padded = whole_lanes(width)
    lowest = float(weight.min(initial=np.inf))
    root = np.sqrt(weight if lowest >= NO_WEIGHT else np.maximum(np.abs(weight), NO_WEIGHT))
    steep = steep / root
    total: Any = None
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        both = scratch((rows.stop - start, padded), is_row_major(Z))
        scale_rows(Z, rows, root[rows, None], both[:, :q])
        np.multiply(Q[rows], steep[rows, None], out=both[:, q : q + r])
        if more:
            both[:, q + r] = steep[rows]
        if width < padded:
            both[:, width:] = 0.0
            np.divide(slope[rows], root[rows], out=both[:, width])
        product = np.dot(both.T, both)  # numpy detects the symmetry and does half the work
        if lowest < 0.0:
            turn_negative(product[:q, :q], both[:, :q], weight[rows])
        total = product if total is None else total + product
    if total is None:
        return np.zeros((q, width + 1))
    if width < padded:
        return np.asarray(total[:q, : width + 1])
    return np.column_stack([total[:q], _turned(slope, Z)])
