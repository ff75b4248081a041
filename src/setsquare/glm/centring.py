"""Blocks as the objective reads them: ones, centred features and the basis of the protected columns; their moments."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from setsquare._typing import Array, Matrix
from setsquare.glm.aliasing import as_double, centre_filled
from setsquare.projection import Basis
from setsquare.rows.blocks import Block, is_sparse
from setsquare.rows.cells import Cells
from setsquare.rows.parallel import Sums
from setsquare.rows.products import gram_and_product, whole_lanes
from setsquare.rows.wide import Slab
from setsquare.tables.mixed_matrix import MixedMatrix


@dataclass(frozen=True, slots=True)
class Centre:
    """Transform a block for the objective: ones, centred features, and the basis of the protected columns.

    With ``as_stored``, dense features are not copied: ``mean`` is subtracted whenever they are read.
    """

    mean: Array
    basis: Basis | None
    as_stored: bool = False

    def __call__(self, block: Block) -> Block:
        """Return the transformed block; features that already have a column of ones are temporary: changed in place."""
        Q = constraint_columns(self.basis, np.asarray(block.X), block.Q) if self.basis else block.Q
        cells = None
        if self.basis and isinstance(block.Z, MixedMatrix) and block.y.shape[1] == 1:
            cells = Cells.of(block.Z, np.asarray(block.X), Q[:, : self.basis.rank])
        if self._is_copied(block.Z):
            Z, Q = self._beside(block.Z, Q)
            return replace(block, Z=Z, Q=Q, cells=cells)
        return replace(block, Z=self._features(block.Z), Q=Q, cells=cells)

    def _is_copied(self, Z: Matrix) -> bool:
        """Whether the features become a new dense array."""
        return isinstance(Z, np.ndarray) and not self.as_stored and Z.shape[1] == len(self.mean)

    def _beside(self, Z: Array, Q: Array) -> tuple[Array, Array]:
        """Ones, centred features and the basis in one array, so that one product gives all their moments.

        Column-major, so that multiplying by weights runs along contiguous rows, not across a few features; with columns
        of zeros up to a width that BLAS processes at once.
        """
        q1, width = 1 + Z.shape[1], 1 + Z.shape[1] + Q.shape[1]
        both = np.empty((len(Z), whole_lanes(width)), order="F")
        both[:, 0] = 1.0
        np.subtract(Z, self.mean, out=both[:, 1:q1])
        both[:, q1:width], both[:, width:] = Q, 0.0
        return both[:, :q1], both[:, q1:width]

    def _features(self, Z: Matrix) -> Matrix:
        if is_sparse(Z):
            ones = sparse.csr_array(np.ones((Z.shape[0], 1)))
            return sparse.hstack([ones, centre_filled(sparse.csr_array(as_double(Z)), self.mean)], format="csr")
        if isinstance(Z, MixedMatrix):
            return Z.centred(self.mean, ones=True)
        if self.as_stored:
            return Slab.shifted(Z, self.mean)
        Z[:, 1:] -= self.mean
        return Z


def constraint_columns(basis: Basis, X: Array, controls: Array) -> Array:
    """Basis (n, r) of the protected columns, followed by that of the controls, which leave-one-out quantities need."""
    Q = basis.apply(X)
    return np.hstack([Q, controls]) if controls.shape[1] else Q


def feature_moments(rank: int, block: Block) -> Sums:
    """Moments of the features with each other, the outcome and the basis: (1 + q, 1 + q), (1 + q, k), (1 + q, r)."""
    k, Z, Q, w = block.y.shape[1], block.Z, block.Q, block.weight
    if isinstance(Z, np.ndarray) and len(w) and (w == w[0]).all():  # no row has to be scaled
        q1, base = Z.shape[1], Z.base
        beside = base is not None and base is Q.base and base.shape[1] == whole_lanes(q1 + Q.shape[1])
        both = base if base is not None and beside else np.hstack([Z, Q])
        product = np.dot(both.T, both)  # numpy detects the symmetry and does half the work
        product *= w[0]
        return product[:q1, :q1], np.dot(Z.T, block.y) * w[0], product[:q1, q1 : q1 + rank]
    gram, product = gram_and_product(Z, w, w[:, None] * np.hstack([block.y, Q[:, :rank]]))
    return gram, product[:, :k], product[:, k:]
