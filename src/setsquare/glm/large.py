"""Matrix-free variant of ``sqp`` for many features, based on Hessian-vector products.

The null space of the Jacobian is handled exactly, because protected columns are few: ``J`` in the coordinates of a
metric has a thin orthonormal basis ``Y``, and projected conjugate gradients work on ``1 - YY'``. They stop early far
from the optimum and in directions of negative curvature. The metric starts as the identity on standardised features.
For a step with categories it is the diagonal of the Hessian, which costs no more than a product: a rare level may have
almost no curvature, while dummies of one category are hardly correlated. If a step takes too many products, the metric
is replaced by a randomised low-rank approximation of the Hessian, which suits features with a fast-decaying spectrum,
such as embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from setsquare._typing import Array
from setsquare.glm.certify import FLAT, Measured
from setsquare.glm.domain_edge import follow
from setsquare.glm.krylov import Metric, Ritz, conjugate_gradients, lanczos
from setsquare.glm.newton import Iterate, Settings, solve_newton
from setsquare.glm.objective import Model, Objective
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Status
from setsquare.glm.sqp import UNREACHABLE
from setsquare.glm.step_algebra import Direction, Frame
from setsquare.glm.unconstrained_loss import ROUGHLY, defer_loss, lowest_loss
from setsquare.glm.wide import WideObjective

#: Products after which the metric is improved, at about the same cost.
PATIENCE = 20
#: Maximum number of products per step, and for the smallest curvature.
MOST_PRODUCTS, LANCZOS = 300, 30
#: Initial and maximum rank of the metric.
RANK, MOST_RANK = 512, 1024
#: Rows per feature from which the metric is learned.
SAMPLE = 4


@dataclass(slots=True)
class Krylov:
    """Linear algebra of a step from Hessian-vector products, with a metric that is learned along the way.

    Attributes
    ----------
    objective : WideObjective
    settings : Settings
    rng : numpy.random.Generator
    metric : Metric
    rough : bool
        Whether steps use products in single precision.
    rank : int
        Rank requested when the metric was learned.
    n_lanczos : int
        Products for the smallest curvature.
    seen : tuple of float, float and ndarray
        Loss at the last search for the smallest curvature, the curvature found, and its direction.
    ritz : Ritz or None
        All that this search found.
    """

    objective: WideObjective
    settings: Settings
    rng: np.random.Generator
    metric: Metric = field(init=False)
    rank: int = 0
    rough: bool = field(init=False)
    n_lanczos: int = LANCZOS
    seen: tuple[float, float, Array] = (np.nan, np.nan, np.zeros(0))
    ritz: Ritz | None = None

    def __post_init__(self) -> None:
        self.metric = Metric.plain(self.objective.to_raw.shape[0] - 1)
        self.rough = self.objective.stands_rounding

    def frame(self, model: Model) -> Frame:
        """Right inverse of the Jacobian, of minimum norm in the metric, and an orthonormal basis (m, r) of its rows."""
        return _frame(model, self.metric)

    def residual(self, model: Model, frame: Frame) -> float:
        """Gradient of the Lagrangian relative to the slopes of the intercept-only model: the larger of two metrics."""
        gradient = model.g - model.J.T @ (frame.pinv.T @ model.g)
        largest = max(float(np.abs(gradient).max()), float(np.abs(self.metric(gradient)).max()))
        return largest / self.objective.start.slope

    def direction(self, model: Model, frame: Frame) -> Direction:
        """Step by projected conjugate gradients, solved more accurately the closer the optimum."""
        normal = -frame.pinv @ model.c
        bent = model.H @ normal if normal.any() else normal

        def project(gradient: Array) -> Array:
            """Gradient without the multipliers of the constraint."""
            return np.asarray(gradient - model.J.T @ (frame.pinv.T @ gradient))

        target = project(-(model.g + bent))
        metric, basis = self._conditioned(model, frame)

        def tangent(gradient: Array) -> Array:
            """Gradient in the coordinates of the metric, on the tangent space of the constraint."""
            v = metric(gradient)
            return v - basis @ (basis.T @ v)

        size, slope = float(np.linalg.norm(tangent(target))), self.objective.start.slope
        tolerance = max(min(0.1, np.sqrt(size / slope)) * size, 0.1 * self.settings.kkt * slope)
        final = self.rank >= min(len(self.metric.U), MOST_RANK)
        found = conjugate_gradients(
            model.H.rough if self.rough else model.H.__matmul__,
            lambda r: metric(tangent(r)),
            target,
            tolerance,
            MOST_PRODUCTS if final else (1 + bool(self.rank)) * PATIENCE,
            project,
            model.H.__matmul__ if self.rough else None,
        )
        if not (found.solved or found.negative or final):
            self._improve(model)
            return self.direction(model, self.frame(model))
        step, product, gain = normal + found.x, bent + found.Ax, float(target @ found.x)
        small = gain <= 1e-6 * abs(model.loss)  # needed only then, and it costs a pass over the rows
        curvature = gain / max(model.H.variance(found.x), np.finfo(float).tiny) if small else np.inf
        lam = -frame.pinv.T @ (model.g + product)
        return Direction(step, lam, float(step @ product), 0.5 * gain, curvature, found.negative)

    def opened(self, model: Model, frame: Frame, step: Array) -> Array:
        """Zero: flat directions cannot be found from Hessian-vector products."""
        return np.zeros_like(step)

    def lowest(self, model: Model, frame: Frame) -> tuple[float, Array]:
        """Smallest curvature found by a few Lanczos steps, relative to the intercept-only model, and its direction."""
        n_steps = min(self.n_lanczos, len(model.g) - frame.basis.shape[1])
        if not n_steps:
            return np.inf, model.g
        found = lanczos(
            lambda x: self.metric(model.H @ self.metric(x)), self.rng.normal(size=len(model.g)), frame.basis, n_steps
        )
        self.ritz = found
        self.seen = model.loss, found.value / self.objective.start.curvature, self.metric(found.vector)
        return self.seen[1:]

    def bounds(self) -> tuple[float, int]:
        """Lower bounds on the smallest curvature, at 99 %, and on the rank of the features, by the last search."""
        if self.ritz is None:
            return -np.inf, 0
        low = self.ritz.lower_bound() / self.objective.start.curvature
        if self.objective.l2:  # a ridge has full rank
            return low, 0
        reached = -(-self.ritz.n_nonzero // self.objective.n_predictors) - 1  # without the intercept
        return low, max(0, reached, len(self.metric.shrink))

    def _conditioned(self, model: Model, frame: Frame) -> tuple[Metric, Array]:
        """Metric of conjugate gradients, and the basis of the Jacobian in it.

        That of categories is for a step only: the shortest way back to the constraint, measured by the curvature, would
        move the levels that the data hardly determine.
        """
        if self.rank or not self.objective.wide_rows.has_categories:
            return self.metric, frame.basis
        metric = Metric.diagonal(model.H.diagonal(), self.objective.start.curvature)
        return metric, _frame(model, metric).basis

    def _improve(self, model: Model) -> None:
        """Learn the metric from the Hessian at a point, with twice the rank if it was learned before."""
        q = len(self.metric.U)
        every = max(1, self.objective.rows.n_rows // (SAMPLE * q))
        self.rank = min(q, MOST_RANK, 2 * self.rank or RANK)
        self.metric = Metric.nystrom(
            lambda probes: model.H.sketch(probes, every), q, self.rank, self.objective.start.curvature, self.rng
        )


def _frame(model: Model, metric: Metric) -> Frame:
    Y, R = np.linalg.qr(metric(np.ascontiguousarray(model.J.T)))
    U, s, Vt = np.linalg.svd(R)
    rank = int(np.count_nonzero(s > UNREACHABLE * model.steepness))
    Y = Y @ U[:, :rank]
    return Frame(metric((Y / s[:rank]) @ Vt[:rank]), Y)


def solve_large(algebra: Krylov, theta: Array | None) -> Iterate:
    """Run the solver from ``theta``, by default from the intercept-only model."""
    return solve_newton(algebra.objective, algebra, theta, algebra.settings)


def measure_large(problem: Problem, algebra: Krylov, end: Iterate) -> Measured:
    """Measure curvature and unconstrained loss for the certificate from Hessian-vector products."""
    frame = algebra.frame(end.model)
    loss, curvature, vector = algebra.seen
    if not abs(loss - end.model.loss) <= 1e-9 * abs(loss):  # a converged run has already computed it
        curvature, vector = algebra.lowest(end.model, frame)
    if end.status is Status.FLAT:
        vector = algebra.direction(end.model, frame).step
    elif not _is_open(end, curvature, vector):
        vector = np.zeros((len(end.theta), 0))
    objective, rest = algebra.objective, partial(_unconstrained_loss, end, algebra)
    loss_of_plain = defer_loss(problem, objective, end, rest)
    return Measured(curvature, vector.reshape(len(end.theta), -1), loss_of_plain, *algebra.bounds())


def _is_open(end: Iterate, curvature: float, vector: Array) -> bool:
    """Whether predictions change along a direction of zero curvature; along collinear features they do not."""
    moved = end.model.H.variance(vector)
    return bool(moved > 1e-8 * (vector @ vector) and curvature <= FLAT * moved)


def _unconstrained_loss(end: Iterate, algebra: Krylov) -> float:
    """Loss of the fit without the constraint, started at the solution."""
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
