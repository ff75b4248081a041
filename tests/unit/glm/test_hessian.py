"""Triangular systems of the Hessian against the matrix itself, on the tangent space and off it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from setsquare.families import family
from setsquare.glm.hessian import Hessian, TangentInverse
from setsquare.glm.objective import Model, Objective
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Status, solve
from setsquare.glm.sqp import _Dense, frame_of, lowest_curvature_of, null_space, solve_reduced

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"weighted": True},
    "offset": {"shifted": True},
    "ridge": {"l2": 0.1},
    "collinear": {"copies": 2},
    "collinear with ridge": {"copies": 2, "l2": 0.1},
    "nearly collinear": {"near": 1e-6},
}


def problem_of(name: str, seed: int = 0, n: int = 400, q: int = 8, **options: Any) -> Problem:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    Z = X @ rng.normal(size=(2, q)) + rng.normal(size=(n, q)) * np.exp(rng.normal(size=q))
    if copies := options.pop("copies", 0):
        Z = np.column_stack([Z, Z[:, :copies] @ rng.normal(size=(copies, copies))])
    if near := options.pop("near", 0.0):
        Z = np.column_stack([Z, Z[:, 0] + near * rng.normal(size=n)])
    eta = 0.4 * Z[:, 0] / Z[:, 0].std()
    y = {
        "gaussian": lambda: eta + rng.normal(size=n),
        "poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
        "binomial": lambda: (rng.logistic(size=n) < eta).astype(float),
        "multinomial": lambda: np.digitize(eta + rng.logistic(size=n), [-1.0, 1.0]).astype(float),
    }[name]()
    if options.pop("weighted", False):
        options["weight"] = rng.integers(0, 4, n).astype(float)
    if options.pop("shifted", False) and name != "multinomial":
        options["offset"] = 0.3 * rng.normal(size=n)
    return Problem(Z, y, X, family(name), **options)


def point_of(problem: Problem, size: float, lam: float) -> tuple[Objective, Model]:
    objective, rng = prepare(problem).objective, np.random.default_rng(1)
    theta = objective.start.theta + size * rng.normal(size=objective.n_parameters)
    return objective, objective.model(theta, lam * rng.normal(size=objective.n_constraints))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "multinomial"])
def test_steps_are_those_of_the_reduced_matrix(name: str, case: str) -> None:
    objective, model = point_of(problem_of(name, **CASES[case]), 0.05, 0.1)
    frame = frame_of(model)
    H, null = model.H.dense(), null_space(frame)
    np.testing.assert_allclose(frame.basis.T @ null, 0.0, atol=1e-12)
    np.testing.assert_allclose(model.H @ np.eye(len(H)), H, atol=1e-10 * np.abs(H).max())
    inverse = TangentInverse.of(model.H, frame.basis)
    assert inverse is not None
    found = _Dense(objective).direction(model, frame)
    normal = -frame.pinv @ model.c
    tangent, corrected = solve_reduced(null.T @ H @ null, -null.T @ (model.g + H @ normal))
    assert not corrected and not found.corrected
    expected = normal + null @ tangent
    np.testing.assert_allclose(found.step, expected, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(model.J @ found.step, -model.c, atol=1e-12)
    np.testing.assert_allclose(model.g + H @ found.step + model.J.T @ found.lam, 0.0, atol=1e-8)
    values = np.linalg.eigvalsh(null.T @ H @ null)
    assert lowest_curvature_of(model) == pytest.approx(values[0], rel=1e-6)


def hessian_of(values: list[float]) -> tuple[Hessian, np.ndarray]:
    """A Hessian with these eigenvalues, and its eigenvectors."""
    _, model = point_of(problem_of("gaussian", q=len(values) - 1), 0.0, 0.0)
    white = model.H.whitening
    vectors = np.linalg.qr(np.random.default_rng(3).normal(size=(len(values), len(values))))[0]
    back = np.linalg.inv(white.R)
    return Hessian(back.T @ (vectors * values) @ vectors.T @ back, white), vectors


def test_a_hessian_need_be_positive_on_the_tangent_space_only() -> None:
    H, vectors = hessian_of([1.0, 2.0, -3.0, 0.5, 4.0])
    assert H.factor() is None
    assert TangentInverse.of(H, vectors[:, :1]) is None
    inverse = TangentInverse.of(H, vectors[:, 2:3])
    assert inverse is not None
    v = np.random.default_rng(0).normal(size=5)
    exact = vectors[:, [0, 1, 3, 4]] @ ((vectors[:, [0, 1, 3, 4]].T @ v) / [1.0, 2.0, 0.5, 4.0])
    np.testing.assert_allclose(inverse(v), exact, atol=1e-10)


@pytest.mark.parametrize("smallest", [0.0, 1e-12, -1e-3])
def test_singular_and_indefinite_hessians_have_no_factor(smallest: float) -> None:
    H, _ = hessian_of([1.0, 2.0, smallest, 0.5])
    assert TangentInverse.of(H, np.zeros((4, 0))) is None
    assert H.factor(shift=0.1) is not None


def test_open_directions_keep_their_part_of_a_step() -> None:
    problem = problem_of("gaussian", q=3)
    objective, model = point_of(problem, 0.0, 0.0)
    unit = objective.start.curvature
    H, vectors = hessian_of([1e-6 * unit, 1e-2 * unit, unit, 2.0 * unit])
    free = model._replace(H=H, J=np.zeros((0, 4)), c=np.zeros(0))
    parts = vectors.T @ _Dense(objective).opened(free, frame_of(free), vectors @ np.ones(4))
    np.testing.assert_allclose(parts, [1.0, 0.5, 0.0, 0.0], atol=1e-3)


def test_rows_that_are_thrown_back_get_more_curvature() -> None:
    problem = problem_of("binomial", n=300, q=3)
    objective, model = point_of(problem, 0.5, 0.3)
    theta = objective.start.theta + 0.5 * np.random.default_rng(1).normal(size=objective.n_parameters)
    lam = 0.3 * np.random.default_rng(2).normal(size=objective.n_constraints)
    model, rng = objective.model(theta, lam), np.random.default_rng(5)
    steps = rng.normal(size=(objective.n_parameters, 2)) * [1.0, 4.0]
    block = next(iter(objective.rows.in_memory()))  # type: ignore[attr-defined]
    before, now = (block.Z @ (objective.to_raw @ steps)).T
    back = (np.abs(now) > 5.0) & (now * before < 0.0) & (np.abs(now) > np.abs(before))
    assert 0 < back.sum() < len(back)
    curvature = objective.terms(block, objective.raw(theta), lam[:, None]).curvature[:, 0, 0]
    lifted = np.where(back, np.maximum(curvature, objective.start.curvature), curvature)
    A = block.Z @ objective.to_raw
    damped = objective.damped(theta, lam, model, steps, 5.0)
    assert damped is not None
    np.testing.assert_allclose(model.H.dense(), A.T @ ((block.weight * curvature)[:, None] * A), atol=1e-12)
    np.testing.assert_allclose(damped.H.dense(), A.T @ ((block.weight * lifted)[:, None] * A), atol=1e-12)
    assert objective.damped(theta, lam, model, np.abs(steps[:, [1]]) * [1.0, 2.0], 5.0) is None  # forward: no row


@pytest.mark.parametrize("seed", range(3))
def test_rare_levels_of_rare_groups_end_at_the_optimum(seed: int) -> None:
    """The multipliers of a rare group bend the Lagrangian more than the loss does; restarts find nothing better."""
    rng, n = np.random.default_rng(seed), 20_000
    group = np.where(rng.random(n) < 0.002, 1.0, 0.0)
    level = np.where(rng.random(n) < 0.0005 + 0.05 * group, 1.0, 0.0)
    Z = np.column_stack([rng.normal(size=(n, 3)), level])
    Z[:, 0] += 0.3 * group
    y = (rng.logistic(size=n) < -0.5 + 0.5 * Z[:, 0] + 1.5 * group - level).astype(float)
    problem = Problem(Z, y, group[:, None], family("binomial"))
    found = solve(problem)
    assert found.status in (Status.CONVERGED, Status.FLAT)
    assert found.certificate.max_correlation < 1e-8 and found.certificate.is_optimal
    best = solve(problem, n_restarts=3, random_state=0)
    assert found.certificate.loss == pytest.approx(best.certificate.loss, rel=1e-8)
