"""Sequential quadratic programming with the exact Hessian of the Lagrangian (the default).

The main loop is in ``newton``; here a step is computed from the full Hessian. If the Hessian is not positive definite
on the null space of the Jacobian, its eigenvalues there are replaced by their absolute values; row weights are never
modified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from setsquare._typing import Array
from setsquare.glm.hessian import SINGULAR, TangentInverse, tangent_factor, tangent_minimum
from setsquare.glm.krylov import lowest_curvature
from setsquare.glm.newton import OPEN, Iterate, Settings, kkt_residual, solve_newton
from setsquare.glm.objective import Model, Objective
from setsquare.glm.step_algebra import Direction, Frame

#: Singular values of the Jacobian below this multiple of the activation's mean slope are rounding error: in that
#: direction the features are uncorrelated with the protected columns, and cannot change the constraint.
UNREACHABLE = 1e-10
TINY = float(np.finfo(float).tiny)
#: Products with the inverse for the smallest curvature, and the relative residual at which that has converged: the
#: error of the value is of the order of its square.
PRODUCTS, RITZ = 40, 1e-5


def solve_sqp(objective: Objective, theta: Array | None, settings: Settings) -> Iterate:
    """Run the solver from ``theta``, by default from the intercept-only model."""
    return solve_newton(objective, _Dense(objective), theta, settings)


@dataclass(frozen=True, slots=True)
class _Dense:
    """Linear algebra of a step from the full Hessian; the basis of a frame spans the rows of the Jacobian, (m, r)."""

    objective: Objective

    def frame(self, model: Model) -> Frame:
        return frame_of(model)

    def residual(self, model: Model, frame: Frame) -> float:
        return kkt_residual(self.objective, model, -frame.pinv.T @ model.g)

    def direction(self, model: Model, frame: Frame) -> Direction:
        normal = -frame.pinv @ model.c
        pull = model.H @ normal if normal.any() else np.zeros_like(normal)
        slope = model.g + pull
        tangent, bent, corrected = _tangent_step(model, frame, slope)
        step, product = normal + tangent, pull + bent
        gain = -float(slope @ tangent)
        curvature = gain / max(float(tangent @ tangent), TINY)
        lam = -frame.pinv.T @ (model.g + product)
        return Direction(step, lam, float(step @ product), 0.5 * gain, curvature, corrected)

    def opened(self, model: Model, frame: Frame, step: Array) -> Array:
        """Open part of a step: ``x^2 (3 - 2x)`` along each eigenvector, with ``x = 1 / (1 + value / limit)``."""
        limit = 10.0 * OPEN * self.objective.start.curvature
        inverse = TangentInverse.of(model.H, frame.basis, limit)
        if inverse is None:
            return np.zeros_like(step)
        twice = limit * inverse(limit * inverse(step))
        return 3.0 * twice - 2.0 * limit * inverse(twice)

    def lowest(self, model: Model, frame: Frame) -> tuple[float, Array]:
        if frame.basis.shape[1] == len(model.g):
            return np.inf, model.g
        if tangent_factor(model.H, frame.basis) is not None:
            return 0.0, model.g
        null = null_space(frame)
        values, vectors = np.linalg.eigh(null.T @ model.H.dense() @ null)
        return float(values[0]) / self.objective.start.curvature, null @ vectors[:, 0]


def _tangent_step(model: Model, frame: Frame, slope: Array) -> tuple[Array, Array, bool]:
    """Step on the tangent space, the Hessian times it, and whether that had a negative eigenvalue there."""
    found = tangent_minimum(model.H, frame.basis, -slope)
    if found is not None:
        return *found, False
    null = null_space(frame)
    tangent, corrected = solve_reduced(null.T @ model.H.dense() @ null, -null.T @ slope)
    tangent = null @ tangent
    return tangent, model.H @ tangent, corrected


def reduced_hessian(model: Model) -> tuple[Array, Array]:
    """Hessian of the Lagrangian on the tangent space, and the orthonormal basis of that space, (m, m - r)."""
    null = null_space(frame_of(model))
    return null.T @ np.asarray(model.H) @ null, null


def lowest_curvature_of(model: Model) -> float:
    """Smallest eigenvalue of the Hessian on the tangent space, by Lanczos with its inverse; NaN where that is no way.

    The largest eigenvalues of the inverse converge within a few products; the residual shows whether they did.
    """
    frame = frame_of(model)
    inverse = TangentInverse.of(model.H, frame.basis)
    if inverse is None or frame.basis.shape[1] == len(model.g):
        return np.nan
    draw = np.random.default_rng(0).normal(size=len(model.g))  # fixed seed: reproducible digits
    value, vector = lowest_curvature(lambda v: -inverse(v), draw, frame.basis, PRODUCTS)
    left = float(np.linalg.norm(inverse(vector) + value * vector))
    return -1.0 / value if left <= RITZ * -value else np.nan


def frame_of(model: Model) -> Frame:
    """Right inverse of the Jacobian, and an orthonormal basis of its rows."""
    r, m = model.J.shape
    if r == 0:
        return Frame(np.zeros((m, 0)), np.zeros((m, 0)))
    R, tau, *_ = lapack.dgeqrf(model.J.T)  # input checks of numpy and scipy take longer than the work
    if r <= m and np.abs(R.diagonal()).min() > 1e-6 * model.steepness:
        Y = lapack.dorgqr(R, tau)[0]
        return Frame(lapack.dtrtrs(R[:r], Y.T)[0].T, Y)
    U, s, Vt = np.linalg.svd(model.J, full_matrices=False)  # singular values show which directions are unreachable
    rank = int(np.count_nonzero(s > UNREACHABLE * model.steepness))
    return Frame(Vt[:rank].T @ (U[:, :rank] / s[:rank]).T, Vt[:rank].T)


def null_space(frame: Frame) -> Array:
    """Orthonormal basis (m, m - r) of the tangent space, orthogonal to the rows of the Jacobian."""
    m, r = frame.basis.shape
    if r == 0:
        return np.eye(m)
    reflectors = np.zeros((m, m), order="F")
    reflectors[:, :r], tau, *_ = lapack.dgeqrf(frame.basis)
    return np.asarray(lapack.dorgqr(reflectors, tau)[0][:, r:])


def is_clearly_positive(factored: tuple[Array, int]) -> bool:
    """Whether a matrix is positive definite beyond rounding error, by its Cholesky factor and LAPACK's info."""
    factor, failed = factored
    if failed:
        return False
    pivots = factor.diagonal() ** 2
    return bool(pivots.min() > SINGULAR * pivots.max())


def solve_reduced(reduced: Array, target: Array) -> tuple[Array, bool]:
    """Minimise ``x'Ax/2 - target'x``, with absolute eigenvalues if A is not clearly positive definite.

    Also returns whether A had a negative eigenvalue.
    """
    if not len(target):
        return target, False
    factor, solution, failed = lapack.dposv(reduced, target)
    if is_clearly_positive((factor, failed)):
        return solution, False
    values, vectors = np.linalg.eigh(reduced)
    floor = SINGULAR * np.abs(values).max()
    size = np.maximum(np.abs(values), floor + np.finfo(float).tiny)
    return vectors @ ((vectors.T @ target) / size), bool(values[0] < -floor)


__all__ = [
    "SINGULAR",
    "UNREACHABLE",
    "Iterate",
    "Settings",
    "frame_of",
    "kkt_residual",
    "lowest_curvature_of",
    "null_space",
    "reduced_hessian",
    "solve_reduced",
    "solve_sqp",
]
