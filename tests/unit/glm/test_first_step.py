"""Length of the first step: two equations for a normal linear predictor, and fewer passes over the rows."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.families.activations import EXP, IDENTITY, SIGMOID, Activation
from setsquare.glm import newton
from setsquare.glm.first_step import NARROWEST, WIDEST, stretch
from setsquare.glm.newton import Settings
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.sqp import solve_sqp

DRAWS = np.random.default_rng(0).normal(size=200_000)


@pytest.mark.parametrize(("activation", "intercept"), [(SIGMOID, -1.0), (SIGMOID, 0.3), (EXP, 0.5)])
@pytest.mark.parametrize("spread", [0.5, 1.0, 1.3])
def test_both_equations_hold_for_a_normal_predictor(activation: Activation, intercept: float, spread: float) -> None:
    _, mean, slope, _ = (float(part[0]) for part in activation.evaluate(np.array([intercept])))

    def errors(step: np.ndarray) -> tuple[float, float]:
        _, h, dh, _ = activation.evaluate(intercept + step[0] + step[1] * DRAWS)
        return abs(h.mean() / mean - 1.0), abs(step[1] / spread * dh.mean() / slope - 1.0)

    plain = np.array([0.0, spread])
    found = stretch(activation, intercept, mean, slope, plain)
    assert max(errors(found)) < min(0.03, 0.5 * max(errors(plain)))


@pytest.mark.parametrize("spread", [0.5 * NARROWEST, 2.0 * WIDEST])
def test_a_step_is_kept_where_nothing_is_gained(spread: float) -> None:
    step = np.array([0.0, spread])
    assert stretch(SIGMOID, 0.0, 0.5, 0.25, step) is step


def test_the_first_step_of_a_linear_model_is_the_last() -> None:
    step = np.array([0.0, 1.0])
    assert stretch(IDENTITY, 0.0, 0.0, 1.0, step) is step


def test_saves_a_pass_and_reaches_the_same_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 2))
    Z = rng.normal(size=(4000, 6)) + 0.3 * X @ rng.normal(size=(2, 6))
    y = (rng.logistic(size=4000) < Z @ np.full(6, 0.6)).astype(float)
    objective = prepare(Problem(Z, y, X, family="binomial")).objective
    found = solve_sqp(objective, None, Settings())
    monkeypatch.setattr(newton, "first_step", lambda objective, step: step)
    before = solve_sqp(objective, None, Settings())
    assert len(found.trace) < len(before.trace)
    assert found.model.loss == pytest.approx(before.model.loss, abs=1e-10)
    np.testing.assert_allclose(found.theta, before.theta, atol=1e-7)
