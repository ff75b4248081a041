"""A last, short step onto the constraint: the gradient changes linearly, loss and constraint are measured."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.glm import newton
from setsquare.glm.newton import Settings
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.sqp import solve_sqp


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_the_model_near_a_solution_is_that_of_a_pass(family: str) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 2))
    Z = X @ rng.normal(size=(2, 6)) + rng.normal(size=(600, 6))
    eta = 0.6 * Z[:, 0] - 0.4 * Z[:, 1]
    y = rng.logistic(size=600) < eta if family == "binomial" else rng.poisson(np.exp(eta))
    objective = prepare(Problem(Z, y.astype(float), X, family)).objective
    end = solve_sqp(objective, None, Settings())
    step = np.full_like(end.theta, 1e-9)
    near = newton._model_near(objective, end.theta + step, step, end.model)
    exact = objective.model(end.theta + step, end.lam)
    assert near.J is end.model.J and near.H is end.model.H
    assert near.loss == pytest.approx(exact.loss, rel=1e-14)
    np.testing.assert_allclose(near.c, exact.c, rtol=0, atol=1e-15)
    ours, theirs, before = (model.g + model.J.T @ end.lam for model in (near, exact, end.model))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-14)
    assert np.abs(before - theirs).max() > 1e-11
    long = newton._model_near(objective, end.theta + 100.0 * step, 100.0 * step, end.model)
    assert long.J is not end.model.J and long.H is end.model.H
