"""Length of the first step: two equations for a normal or a skewed linear predictor, and fewer passes over the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from setsquare.families.activations import EXP, SIGMOID, Activation
from setsquare.glm import first_step as module
from setsquare.glm import newton
from setsquare.glm.first_step import FARTHEST, NARROWEST, NODES, SHARES, Line, first_step
from setsquare.glm.newton import Settings
from setsquare.glm.objective import Objective
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.sqp import solve_sqp
from setsquare.rows.blocks import BlockRows

DRAWS = np.random.default_rng(0).normal(size=200_000)


def skewed(n: int = 4000, kind: type = np.ndarray) -> Objective:
    """Rare dummies with large effects: the predictor is far from normal."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 2))
    Z = np.hstack([(rng.random((n, 6)) < 0.06).astype(float), X @ rng.normal(size=(2, 2)) + rng.normal(size=(n, 2))])
    y = (rng.logistic(size=n) < Z[:, :6] @ np.full(6, 3.5) + 0.2 * Z[:, 6] - 2.5).astype(float)
    return prepare(Problem(Z if kind is np.ndarray else sparse.csr_array(Z), y, X, family="binomial")).objective


def plain_step(objective: Objective) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and first step of the constrained problem."""
    model = objective.start_model()
    rows = np.linalg.qr(model.J.T)[0]
    curvature = objective.start.curvature
    return model.g, -(model.g - rows @ (rows.T @ model.g)) / curvature


@pytest.mark.parametrize(("activation", "intercept"), [(SIGMOID, -1.0), (SIGMOID, 0.3), (EXP, 0.5)])
@pytest.mark.parametrize("spread", [0.5, 1.0, 1.3])
def test_both_equations_hold_for_a_normal_predictor(activation: Activation, intercept: float, spread: float) -> None:
    _, mean, slope, _ = (float(part[0]) for part in activation.evaluate(np.array([intercept])))
    pull = slope * spread**2

    def errors(a: float, t: float) -> tuple[float, float]:
        _, h, *_ = activation.evaluate(a + t * spread * DRAWS)
        return abs(h.mean() / mean - 1.0), abs(np.mean(spread * DRAWS * (h - mean)) / pull - 1.0)

    line = Line(activation, mean, pull, 0.0, spread * NODES, SHARES)
    found = line.solve(intercept, 1.0)
    assert found is not None
    assert max(errors(*found)) < min(0.03, 0.5 * max(errors(intercept, 1.0)))
    rows = line._replace(x=spread * DRAWS, shares=np.full(len(DRAWS), 1.0 / len(DRAWS)))
    assert not rows.is_met(intercept, 1.0)
    assert line._replace(x=spread * DRAWS[:300], shares=np.full(300, 1.0 / 300)).is_met(*found)


def test_a_ridge_makes_the_step_shorter() -> None:
    line = Line(SIGMOID, 0.5, 0.25, 0.0, NODES, SHARES)
    free, held = line.solve(0.0, 1.0), line._replace(ridge=0.1).solve(0.0, 1.0)
    assert free is not None and held is not None
    assert held[1] < 0.8 * free[1]
    rows = Line(SIGMOID, 0.5, 0.25, 0.1, DRAWS, np.full(len(DRAWS), 1.0 / len(DRAWS)))
    assert rows.is_met(*held) and not rows.is_met(*free)
    tighter = rows._replace(ridge=0.3).solve(0.0, 1.0)
    assert tighter is not None and rows._replace(ridge=0.3).is_met(*tighter)


def test_a_step_is_kept_where_nothing_is_gained() -> None:
    objective = skewed()
    gradient, step = plain_step(objective)
    assert first_step(objective, gradient, step) is not step
    for spread in (0.99 * NARROWEST, 1.01 * FARTHEST):
        other = step * (spread / np.linalg.norm(step))
        assert first_step(objective, gradient, other) is other
    with_offset = replace(objective, start=replace(objective.start, sums=None))
    assert first_step(with_offset, gradient, step) is step


def test_the_first_step_of_a_linear_model_is_the_last() -> None:
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(100, 3))
    objective = prepare(Problem(Z, Z @ [1.0, 0.5, 0.0] + rng.normal(size=100), Z[:, 2:], family="gaussian")).objective
    gradient, step = plain_step(objective)
    assert first_step(objective, gradient, step) is step


@pytest.mark.parametrize("kind", [np.ndarray, sparse.csr_array])
def test_rows_tell_the_length_of_a_skewed_predictor(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = skewed(kind=kind)
    gradient, step = plain_step(objective)
    with_rows = first_step(objective, gradient, step)
    monkeypatch.setattr(module, "_some_rows", lambda objective, step: None)
    without = first_step(objective, gradient, step)
    losses = [objective.values(objective.start.theta + part).loss for part in (step, without, with_rows)]
    assert losses[2] < losses[1] - 0.002 and losses[2] < losses[0] - 0.002


def test_every_row_counts_by_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = skewed(900)
    _, step = plain_step(objective)
    block = objective.rows.blocks[0]  # type: ignore[attr-defined]
    expected = (block.Z @ objective.raw(step))[:, 0]
    weighted = replace(block, weight=np.arange(900.0))
    x, shares = module._some_rows(replace(objective, rows=BlockRows([weighted])), step) or (None, None)
    np.testing.assert_allclose(x, expected, rtol=1e-12)
    np.testing.assert_allclose(shares, np.arange(900.0) / np.arange(900.0).sum(), rtol=1e-12)
    monkeypatch.setattr(module, "SOME_ROWS", 300)
    x, shares = module._some_rows(objective, step) or (None, None)
    np.testing.assert_allclose(x, expected[::3], rtol=1e-12)
    np.testing.assert_allclose(shares, np.full(300, 1.0 / 300), rtol=1e-12)
    not_held = objective.rows.map(lambda block: block)  # type: ignore[attr-defined]
    assert module._some_rows(replace(objective, rows=not_held), step) is None


@pytest.mark.parametrize("make", [skewed, None])
def test_saves_a_pass_and_reaches_the_same_optimum(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 2))
    Z = rng.normal(size=(4000, 6)) + 0.3 * X @ rng.normal(size=(2, 6))
    y = (rng.logistic(size=4000) < Z @ np.full(6, 0.6)).astype(float)
    objective = skewed() if make else prepare(Problem(Z, y, X, family="binomial")).objective
    found = solve_sqp(objective, None, Settings())
    monkeypatch.setattr(newton, "first_step", lambda objective, gradient, step: step)
    before = solve_sqp(objective, None, Settings())
    assert len(found.trace) < len(before.trace)
    assert found.model.loss == pytest.approx(before.model.loss, abs=1e-10)
    np.testing.assert_allclose(found.theta, before.theta, atol=1e-6)
