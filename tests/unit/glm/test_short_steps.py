"""Short steps: they reuse the Hessian, and the shortest the gradient, but results do not show it."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.glm import newton, preparation
from setsquare.glm.kkt_inverse import EXACT, invert, invert_at
from setsquare.glm.new_rows import measure_new_rows
from setsquare.glm.newton import Settings
from setsquare.glm.preparation import Prepared, prepare
from setsquare.glm.problem import Problem
from setsquare.glm.sandwich import standard_errors
from setsquare.glm.solver import fit_rows
from setsquare.glm.sqp import _Dense, solve_sqp

#: Fits whose last Hessian is of a point before the solution, further away than what is measured there allows.
REUSED = [("binomial", 38), ("binomial", 53), ("poisson", 9), ("poisson", 14)]


def draw(family: str, seed: int = 1) -> Prepared:
    return prepare(sample(family, seed))


def sample(family: str, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(600, 2))
    Z = X @ rng.normal(size=(2, 6)) + rng.normal(size=(600, 6))
    eta = 0.6 * Z[:, 0] - 0.4 * Z[:, 1]
    y = rng.logistic(size=600) < eta if family == "binomial" else rng.poisson(np.exp(eta))
    return Problem(Z, y.astype(float), X, family)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_the_model_near_a_solution_is_that_of_a_pass(family: str) -> None:
    objective = draw(family).objective
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


@pytest.mark.parametrize(("family", "seed"), REUSED)
def test_a_reused_hessian_does_not_show_in_what_is_measured_at_the_solution(family: str, seed: int) -> None:
    prepared = draw(family, seed)
    end = solve_sqp(prepared.objective, None, Settings())
    assert EXACT < end.model.apart <= 2.0 * newton.SAME
    fresh = end._replace(model=prepared.objective.model(end.theta, end.lam))
    exact, used = (invert_at(prepared.objective, one) for one in (fresh, end))
    stale = invert(prepared.objective, end.model)
    size = np.abs(exact.corner).max()
    assert np.abs(stale.corner - exact.corner).max() > 1e-6 * size
    np.testing.assert_allclose(used.corner, exact.corner, rtol=0, atol=1e-12 * size)
    errors, new_rows = standard_errors(prepared, end).std_error, measure_new_rows(prepared, end, 0.95)
    np.testing.assert_allclose(errors, standard_errors(prepared, fresh).std_error, rtol=1e-10)
    again = measure_new_rows(prepared, fresh, 0.95)
    assert new_rows is not None and again is not None
    assert new_rows.correlation == pytest.approx(again.correlation, rel=1e-8)


@pytest.mark.parametrize(("family", "seed"), REUSED[:3])
def test_rows_that_were_overwritten_are_noticed_before_their_hessian_is_used(
    monkeypatch: pytest.MonkeyPatch, family: str, seed: int
) -> None:
    monkeypatch.setattr(preparation, "LARGEST_COPY", 0)  # the features are read as they are stored
    problem = sample(family, seed)
    prepared = prepare(problem)
    end = solve_sqp(prepared.objective, None, Settings())
    assert end.model.apart > EXACT and measure_new_rows(prepared, end, 0.95) is not None
    problem.features[:] = np.nan
    assert measure_new_rows(prepared, end, 0.95) is None


def test_standard_errors_after_a_search_for_new_rows_are_those_of_its_end() -> None:
    found = fit_rows(sample("poisson", 21), "sqp", Settings(), orthogonal_on="new rows")
    prepared, end = found.prepared, found.end
    assert prepared.objective.target is not None and end.model.apart > EXACT
    fresh = end._replace(model=prepared.objective.model(end.theta, end.lam))
    errors = standard_errors(prepared, end).std_error
    np.testing.assert_allclose(errors, standard_errors(prepared, fresh).std_error, rtol=1e-10)
    stale = standard_errors(prepared, end._replace(model=end.model._replace(apart=0.0))).std_error
    assert np.abs(stale / errors - 1.0).max() > 1e-7


@pytest.mark.parametrize("slow", [False, True])
def test_the_hessian_is_reused_unless_the_iteration_before_was_slow(slow: bool) -> None:
    objective = draw("poisson").objective
    end = solve_sqp(objective, None, Settings())
    theta = end.theta + 2e-4
    model, algebra = objective.model(theta, end.lam), _Dense(objective)
    frame = algebra.frame(model)
    direction = algebra.direction(model, frame)
    found = newton._line_search(objective, theta, end.lam, model, frame, direction, 10.0, True, slow)
    length = float(np.linalg.norm(direction.step))
    assert found is not None and EXACT < length < newton.SAME
    assert found.model.apart == (0.0 if slow else pytest.approx(length, rel=1e-12))
    assert (found.model.H is model.H) is not slow
