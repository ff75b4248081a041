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
from setsquare.glm.newton import OPEN, Direction, Frame, Iterate, Settings, kkt_residual, solve_newton
from setsquare.glm.objective import Model, Objective

#: Singular values of the Jacobian below this multiple of the activation's mean slope are rounding error: in that
#: direction the features are uncorrelated with the protected columns, and cannot change the constraint.
UNREACHABLE = 1e-10
#: Eigenvalues of the reduced Hessian below this share of the largest cannot be distinguished from zero.
SINGULAR = 1e-9


def solve_sqp(objective: Objective, theta: Array | None, settings: Settings) -> Iterate:
    """Run the solver from ``theta``, by default from the intercept-only model."""
    return solve_newton(objective, _Dense(objective), theta, settings)


@dataclass(frozen=True, slots=True)
class _Dense:
    """Linear algebra of a step from the full Hessian; the basis of a frame spans the tangent space, (m, m - r)."""

    objective: Objective

    def frame(self, model: Model) -> Frame:
        return frame_of(model)

    def residual(self, model: Model, frame: Frame) -> float:
        return kkt_residual(self.objective, model, -frame.pinv.T @ model.g)

    def direction(self, model: Model, frame: Frame) -> Direction:
        normal, null = -frame.pinv @ model.c, frame.basis
        target = -null.T @ (model.g + model.H @ normal)
        tangent, corrected = solve_reduced(null.T @ model.H @ null, target)
        step = normal + null @ tangent
        product = model.H @ step
        gain = float(target @ tangent)
        curvature = gain / max(float(tangent @ tangent), np.finfo(float).tiny)
        lam = -frame.pinv.T @ (model.g + product)
        return Direction(step, lam, float(step @ product), 0.5 * gain, curvature, corrected)

    def opened(self, model: Model, frame: Frame, step: Array) -> Array:
        values, vectors = np.linalg.eigh(frame.basis.T @ model.H @ frame.basis)
        flat = frame.basis @ vectors[:, values <= 10.0 * OPEN * self.objective.start.curvature]
        return np.asarray(flat @ (flat.T @ step))

    def lowest(self, model: Model, frame: Frame) -> tuple[float, Array]:
        if not frame.basis.shape[1]:
            return np.inf, model.g
        reduced = frame.basis.T @ model.H @ frame.basis
        if is_clearly_positive(lapack.dpotrf(reduced)):
            return 0.0, model.g
        values, vectors = np.linalg.eigh(reduced)
        return float(values[0]) / self.objective.start.curvature, frame.basis @ vectors[:, 0]


def reduced_hessian(model: Model) -> tuple[Array, Array]:
    """Hessian of the Lagrangian on the tangent space, and the orthonormal basis of that space, (m, m - r)."""
    null = frame_of(model).basis
    return null.T @ model.H @ null, null


def frame_of(model: Model) -> Frame:
    """Right inverse of the Jacobian, and an orthonormal basis of its null space."""
    r, m = model.J.shape
    if r == 0:
        return Frame(np.zeros((m, 0)), np.eye(m))
    R, tau, *_ = lapack.dgeqrf(model.J.T)  # input checks of numpy and scipy take longer than the work
    if np.abs(R.diagonal()).min() > 1e-6 * model.steepness:
        reflectors = np.zeros((m, m), order="F")
        reflectors[:, :r] = R
        Y = lapack.dorgqr(reflectors, tau)[0]
        return Frame(lapack.dtrtrs(R[:r], Y[:, :r].T)[0].T, Y[:, r:])
    U, s, Vt = np.linalg.svd(model.J)  # singular values show which directions are unreachable
    rank = int(np.count_nonzero(s > UNREACHABLE * model.steepness))
    return Frame(Vt[:rank].T @ (U[:, :rank] / s[:rank]).T, Vt[rank:].T)


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
    "reduced_hessian",
    "solve_reduced",
    "solve_sqp",
]
