"""Hessian of the Lagrangian: summed in the coordinates of the features, used in whitened coordinates.

Whitening is triangular, ``gamma = R theta`` with ``R'GR = 1`` for the second moments ``G`` of the features. So the
Cholesky factor of the whitened Hessian ``R'AR`` is ``UR``, where ``U`` is that of ``A``: it is never formed. Its pivots
are those of ``U`` times the diagonal of ``R``, and a system takes triangular solves only. A step costs a third of
``m^3`` operations, where ``R'AR`` and its restriction to the tangent space cost eight times ``m^3``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from setsquare._typing import Array

#: Eigenvalues of the Hessian, or squared pivots, below this share of the largest cannot be distinguished from zero.
SINGULAR = 1e-9
#: Curvature that is added across the tangent space, where a Hessian need not be positive, relative to its largest.
LIFT = 10.0


@dataclass(frozen=True, slots=True)
class Whitening:
    """Triangular map from whitened coordinates to the coefficients that are not fixed at zero.

    Attributes
    ----------
    rows : ndarray of shape (m,)
        Positions of these coefficients among intercept and features (1 + q).
    R : ndarray of shape (m, m)
        Upper triangular; Fortran order.
    gram : ndarray of shape (m, m)
        Second moments ``G`` of ones and the features, plus the ridge with which they were whitened.
    ridge : ndarray of shape (m, m) or None
        Ridge penalty of the coefficients.
    """

    rows: NDArray[np.intp]
    R: Array
    gram: Array
    ridge: Array | None

    def hessian(self, sums: Array) -> Hessian:
        """Hessian from sums (k, k, 1 + q, 1 + q) over the rows."""
        k, q1, m = len(sums), sums.shape[-1], len(self.rows)
        inner = sums if m == q1 else sums[:, :, self.rows[:, None], self.rows]
        if self.ridge is not None:
            inner = inner.copy() if inner is sums else inner
            inner[range(k), range(k)] += self.ridge
        return Hessian(inner[0, 0] if k == 1 else inner.transpose(0, 2, 1, 3).reshape(k * m, k * m), self)

    def raised(self, H: Hessian, extra: Array) -> Hessian:
        """Hessian of one predictor with a sum (1 + q, 1 + q) over some rows added."""
        inner = extra if len(extra) == len(self.rows) else extra[np.ix_(self.rows, self.rows)]
        return Hessian(H.inner + inner, self)

    def to_features(self, V: Array) -> Array:
        """``R V`` for each predictor, for coordinates (k m, c)."""
        if len(V) == len(self.R):
            return np.asarray(self.R @ V)
        return np.asarray((self.R @ V.reshape(-1, len(self.R), V.shape[-1])).reshape(V.shape))

    def from_gradients(self, V: Array) -> Array:
        """``R' V`` for each predictor."""
        if len(V) == len(self.R):
            return np.asarray(self.R.T @ V)
        return np.asarray((self.R.T @ V.reshape(-1, len(self.R), V.shape[-1])).reshape(V.shape))

    def undo(self, V: Array, *, gradients: bool = False) -> Array:
        """``R^-1 V`` for each predictor, or ``R'^-1 V`` for gradients."""
        m, c = len(self.R), V.shape[1]
        if len(V) == m:
            return np.asarray(lapack.dtrtrs(self.R, V, trans=int(gradients))[0])
        side = V.reshape(-1, m, c).transpose(1, 0, 2).reshape(m, -1)
        out = lapack.dtrtrs(self.R, side, trans=int(gradients))[0]
        return np.asarray(out.reshape(m, -1, c).transpose(1, 0, 2).reshape(V.shape))


def whitening_of(to_raw: Array, columns: NDArray[np.intp], second: Array, l2: float, unmix: Array | None) -> Whitening:
    """The rows of ``to_raw`` (1 + q, m) that are not zero, with second moments and ridge of these coefficients."""
    everything = len(columns) + 1 == len(second)
    moving = np.arange(len(second)) if everything else np.concatenate([[0], 1 + columns])
    gram, ridge = second if everything else second[np.ix_(moving, moving)], None
    if l2 > 0.0:
        ridge = np.zeros_like(gram)
        ridge[1:, 1:] = l2 * (np.eye(len(columns)) if unmix is None else unmix[:, columns].T @ unmix[:, columns])
        gram = gram + ridge
    return Whitening(moving, np.asfortranarray(to_raw[moving]), gram, ridge)


class Hessian:
    """Symmetric matrix (k m, k m) ``R'AR``, as products and triangular systems; other uses form the matrix.

    Attributes
    ----------
    inner : ndarray of shape (k m, k m)
        ``A``, in the coordinates of the features.
    whitening : Whitening
    """

    __slots__ = ("_matrix", "inner", "whitening")

    def __init__(self, inner: Array, whitening: Whitening) -> None:
        self.inner, self.whitening = inner, whitening
        self._matrix: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of coordinates, twice."""
        return len(self.inner), len(self.inner)

    @property
    def scale(self) -> Array:
        """Diagonal of ``R`` for each predictor."""
        R = self.whitening.R
        k = len(self.inner) // len(R)
        return R.diagonal() if k == 1 else np.tile(R.diagonal(), k)

    def __matmul__(self, V: Array) -> Array:
        white, columns = self.whitening, V.reshape(len(V), -1)
        return white.from_gradients(self.inner @ white.to_features(columns)).reshape(V.shape)

    def dense(self) -> Array:
        """The matrix itself, formed when it is first needed."""
        if self._matrix is None:
            R, m = self.whitening.R, len(self.whitening.R)
            k = len(self.inner) // m
            blocks = R.T @ self.inner.reshape(k, m, k, m).transpose(0, 2, 1, 3) @ R
            self._matrix = blocks.transpose(0, 2, 1, 3).reshape(k * m, k * m)
        return self._matrix

    @property
    def T(self) -> Array:
        """Transpose of the matrix."""
        return self.dense().T

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        matrix = self.dense()
        return np.array(matrix, dtype=dtype) if copy or dtype not in (None, matrix.dtype) else matrix

    def factor(self, shift: float = 0.0, beside: Array | None = None) -> Factor | None:
        """Cholesky factor of the Hessian plus ``shift`` times the identity; None if not clearly positive definite.

        ``beside`` (k m, r) adds ``beside beside'``: the Hessian need be positive outside their span only.
        """
        white, A = self.whitening, self.inner
        m = len(white.R)
        k = len(A) // m
        if shift or beside is not None:
            A = A.copy()
        if shift:
            for j in range(k):
                A[j * m : (j + 1) * m, j * m : (j + 1) * m] += shift * white.gram
        if beside is not None:
            B = white.undo(beside, gradients=True)
            A += B @ B.T
        # The transpose of a row-major symmetric matrix is itself, in the order that LAPACK takes without a copy.
        upper, failed = lapack.dpotrf(A.T, clean=0)
        if failed or not np.isfinite(upper[-1, -1]):
            return None
        pivots = np.square(upper.diagonal() * self.scale)
        return Factor(upper, white) if pivots.min() > SINGULAR * pivots.max() else None


@dataclass(frozen=True, slots=True)
class Factor:
    """Solver of systems with a positive definite Hessian."""

    upper: Array
    whitening: Whitening

    def __call__(self, V: Array) -> Array:
        """Solutions (k m, c) for right-hand sides ``V``."""
        inner = lapack.dpotrs(self.upper, self.whitening.undo(V, gradients=True))[0]
        return self.whitening.undo(np.asarray(inner))


@dataclass(frozen=True, slots=True)
class TangentInverse:
    """Inverse of the Hessian on the tangent space of the constraint, zero across it.

    Attributes
    ----------
    solve : Factor
        Factor of the Hessian, or of the Hessian plus a multiple of ``Y Y'``, which is the same on the tangent space.
    Y : ndarray of shape (m, r)
        Orthonormal basis of the rows of the Jacobian.
    W : ndarray of shape (m, r)
        Solutions for the columns of ``Y``.
    S : ndarray of shape (r, r)
        Cholesky factor of ``Y'W``.
    """

    solve: Factor
    Y: Array
    W: Array
    S: Array

    @classmethod
    def of(cls, H: Hessian, Y: Array, shift: float = 0.0) -> TangentInverse | None:
        """Invert a Hessian plus ``shift`` times the identity; None if not clearly positive on the tangent space."""
        factor = tangent_factor(H, Y, shift)
        if factor is None:
            return None
        W = factor(Y) if Y.shape[1] else Y
        S, failed = lapack.dpotrf(Y.T @ W) if Y.shape[1] else (np.zeros((0, 0)), 0)
        return None if failed else cls(factor, Y, W, S)

    def __call__(self, v: Array, across: Array | None = None) -> Array:
        """``x`` with ``Y'x = across`` (by default zero) that minimises ``x'Hx/2 - v'x``."""
        x = self.solve(v[:, None])[:, 0]
        if self.Y.shape[1]:
            goal = np.zeros(self.Y.shape[1]) if across is None else across
            x = x - self.W @ lapack.dpotrs(self.S, self.Y.T @ x - goal)[0]
            x = x + self.Y @ (goal - self.Y.T @ x)  # what rounding left
        return np.asarray(x)


def tangent_minimum(H: Hessian, Y: Array, v: Array) -> tuple[Array, Array] | None:
    """``x`` with ``Y'x = 0`` that minimises ``x'Hx/2 - v'x``, and ``Hx``; None if H is not clearly positive there.

    One system for all right-hand sides, where :class:`TangentInverse` solves two; ``Hx = v - Yt`` needs no product.
    """
    factor = tangent_factor(H, Y)
    if factor is None:
        return None
    both = np.empty((len(v), Y.shape[1] + 1), order="F")
    both[:, :-1], both[:, -1] = Y, v
    solved = factor(both)
    x = solved[:, -1]
    if not Y.shape[1]:
        return x, v
    projected = Y.T @ solved
    t, failed = lapack.dposv(projected[:, :-1], projected[:, -1])[1:]
    if failed:
        return None
    x = x - solved[:, :-1] @ t
    return x - Y @ (Y.T @ x), v - Y @ t


def tangent_factor(H: Hessian, Y: Array, shift: float = 0.0) -> Factor | None:
    """Factor of a Hessian, or of one with the same restriction to the tangent space; None if not positive there."""
    factor = H.factor(shift)
    if factor is None and Y.shape[1]:
        size = float(np.abs(H.inner.diagonal() * H.scale**2).max())
        factor = H.factor(shift, np.sqrt(LIFT * size) * Y) if np.isfinite(size) else None
    return factor
