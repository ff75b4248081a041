"""The method of ``sqp`` for many features: products with the Hessian take the place of the Hessian.

The null space of the Jacobian is handled exactly, for there are few protected columns: ``J`` in the coordinates of a
metric has a thin orthonormal basis ``Y``, and projected conjugate gradients work on ``1 - YY'``. They stop early far
from the optimum, and where the Lagrangian bends downwards. The metric is that of standardised features until a step
takes too many products; then it becomes a randomised low-rank approximation of the Hessian, for features such as
embeddings have a spectrum that falls fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from setsquare._typing import Array
from setsquare.glm.certificate import FLAT, ROUGHLY, Measured, lowest_loss
from setsquare.glm.domain_edge import follow
from setsquare.glm.krylov import Metric, conjugate_gradients, lowest_curvature
from setsquare.glm.newton import Direction, Frame, Iterate, Settings, solve_newton
from setsquare.glm.objective import Model, Objective
from setsquare.glm.solution import Status
from setsquare.glm.sqp import UNREACHABLE
from setsquare.glm.wide import WideObjective

#: Products after which a step waits for a better metric, which costs about as much.
PATIENCE = 20
#: Products for a step at most; and for the smallest curvature.
MOST_PRODUCTS, LANCZOS = 300, 30
#: First and largest rank of the metric.
RANK, MOST_RANK = 512, 1024
#: Rows a feature that the metric is learned from.
SAMPLE = 4


@dataclass(slots=True)
class Krylov:
    """Steps from products with the Hessian; it learns a metric on the way.

    Attributes
    ----------
    objective : WideObjective
    settings : Settings
    rng : numpy.random.Generator
    metric : Metric
    rough : bool
        Whether steps use products in single precision.
    rank : int
        That was asked for when the metric was learned.
    n_lanczos : int
        Products for the smallest curvature.
    seen : tuple of float, float and ndarray
        Loss where the smallest curvature was last looked for, what it was, and its direction.
    """

    objective: WideObjective
    settings: Settings
    rng: np.random.Generator
    metric: Metric = field(init=False)
    rank: int = 0
    rough: bool = field(init=False)
    n_lanczos: int = LANCZOS
    seen: tuple[float, float, Array] = (np.nan, np.nan, np.zeros(0))

    def __post_init__(self) -> None:
        self.metric = Metric.plain(self.objective.to_raw.shape[0] - 1)
        self.rough = self.objective.stands_rounding

    def frame(self, model: Model) -> Frame:
        """Right inverse of the Jacobian, shortest in the metric, and an orthonormal basis (m, r) of its rows there."""
        J = self.metric(np.ascontiguousarray(model.J.T))
        Y, R = np.linalg.qr(J)
        U, s, Vt = np.linalg.svd(R)
        rank = int(np.count_nonzero(s > UNREACHABLE * model.steepness))
        Y = Y @ U[:, :rank]
        return Frame(self.metric((Y / s[:rank]) @ Vt[:rank]), Y)

    def residual(self, model: Model, frame: Frame) -> float:
        """Gradient of the Lagrangian relative to the slopes of the intercept-only model: the larger in two metrics."""
        gradient = model.g - model.J.T @ (frame.pinv.T @ model.g)
        largest = max(float(np.abs(gradient).max()), float(np.abs(self.metric(gradient)).max()))
        return largest / self.objective.start.slope

    def direction(self, model: Model, frame: Frame) -> Direction:
        """A step by projected conjugate gradients, as exact as the distance from the optimum calls for."""
        normal = -frame.pinv @ model.c
        bent = model.H @ normal if normal.any() else normal
        target = -(model.g + bent)
        target = target - model.J.T @ (frame.pinv.T @ target)  # what the projection removes would leave its rounding
        size, slope = float(np.linalg.norm(self._tangent(frame, target))), self.objective.start.slope
        tolerance = max(min(0.1, np.sqrt(size / slope)) * size, 0.1 * self.settings.kkt * slope)
        final = self.rank >= min(len(self.metric.U), MOST_RANK)
        found = conjugate_gradients(
            model.H.rough if self.rough else model.H.__matmul__,
            lambda r: self.metric(self._tangent(frame, r)),
            target,
            tolerance,
            MOST_PRODUCTS if final else (1 + bool(self.rank)) * PATIENCE,
        )
        if found.negative and self.rough:  # it may be no more than rounding
            self.rough = False
            return self.direction(model, frame)
        if not (found.solved or found.negative or final):
            self._improve(model)
            return self.direction(model, self.frame(model))
        step, product, gain = normal + found.x, bent + found.Ax, float(target @ found.x)
        small = gain <= 1e-6 * abs(model.loss)  # only then is it asked for, and it costs a reading of the rows
        curvature = gain / max(model.H.variance(found.x), np.finfo(float).tiny) if small else np.inf
        lam = -frame.pinv.T @ (model.g + product)
        return Direction(step, lam, float(step @ product), 0.5 * gain, curvature, found.negative)

    def opened(self, model: Model, frame: Frame, step: Array) -> Array:
        """Nothing: products do not tell."""
        return np.zeros_like(step)

    def lowest(self, model: Model, frame: Frame) -> tuple[float, Array]:
        """Smallest curvature that a few Lanczos steps find, relative to the intercept-only model; its direction."""
        n_steps = min(self.n_lanczos, len(model.g) - frame.basis.shape[1])
        if not n_steps:
            return np.inf, model.g
        value, vector = lowest_curvature(
            lambda x: self.metric(model.H @ self.metric(x)), self.rng.normal(size=len(model.g)), frame.basis, n_steps
        )
        self.seen = model.loss, value / self.objective.start.curvature, self.metric(vector)
        return self.seen[1:]

    def _tangent(self, frame: Frame, gradient: Array) -> Array:
        """Gradient in the coordinates of the metric, on the tangent space of the constraint."""
        v = self.metric(gradient)
        return v - frame.basis @ (frame.basis.T @ v)

    def _improve(self, model: Model) -> None:
        """Learn the metric from the Hessian at a point, of twice the rank if it was learned before."""
        q = len(self.metric.U)
        every = max(1, self.objective.rows.n_rows // (SAMPLE * q))
        self.rank = min(q, MOST_RANK, 2 * self.rank or RANK)
        self.metric = Metric.nystrom(
            lambda probes: model.H.sketch(probes, every), q, self.rank, self.objective.start.curvature, self.rng
        )


def solve_large(algebra: Krylov, theta: Array | None) -> Iterate:
    """Run the method from ``theta``, by default from the model with nothing but an intercept."""
    return solve_newton(algebra.objective, algebra, theta, algebra.settings)


def measure_large(algebra: Krylov, end: Iterate) -> Measured:
    """Measure what a certificate needs beside the constraint, with products alone."""
    frame = algebra.frame(end.model)
    loss, curvature, vector = algebra.seen
    if not abs(loss - end.model.loss) <= 1e-9 * abs(loss):  # a run that converged has looked for it already
        curvature, vector = algebra.lowest(end.model, frame)
    if end.status is Status.FLAT:
        vector = algebra.direction(end.model, frame).step
    elif not _is_open(end, curvature, vector):
        vector = np.zeros((len(end.theta), 0))
    return Measured(curvature, vector.reshape(len(end.theta), -1), _unconstrained_loss(end, algebra))


def _is_open(end: Iterate, curvature: float, vector: Array) -> bool:
    """Whether predictions move along a direction without curvature; along collinear features they do not."""
    moved = end.model.H.variance(vector)
    return bool(moved > 1e-8 * (vector @ vector) and curvature <= FLAT * moved)


def _unconstrained_loss(end: Iterate, algebra: Krylov) -> float:
    """Loss of the fit without the constraint, from the solution on."""
    if not algebra.objective.n_constraints:
        return end.model.loss
    free = algebra.objective.unconstrained()
    assert isinstance(free, WideObjective)
    rest = Krylov(free, ROUGHLY, algebra.rng, algebra.rank, n_lanczos=0)
    rest.metric = algebra.metric

    def run(objective: Objective, theta: Array | None, settings: Settings) -> Iterate:
        assert isinstance(objective, WideObjective)
        rest.objective, rest.settings = objective, settings
        return solve_newton(objective, rest, theta, settings)

    if free.barrier:
        return min(follow(free, run, None, ROUGHLY).end.model.loss, end.model.loss)
    return lowest_loss(free, end, end.theta, lambda theta: run(free, theta, ROUGHLY))
