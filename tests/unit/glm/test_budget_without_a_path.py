"""Budgets where no path leads to a radius: the covariance is held there, then freed to turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from setsquare.glm import Problem, Status, budget
from setsquare.glm.solver import fit_path


def problem(p: int) -> Problem:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, p))
    Z = rng.normal(size=(200, 5)) + X @ rng.normal(size=(p, 5))
    return Problem(Z, (Z[:, 0] + Z[:, 1] + rng.logistic(size=200) > 0.0).astype(float), X, "binomial")


@pytest.fixture
def no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(objective: Any, first: Any, plain: Any, radii: Any, settings: Any) -> Any:
        return [None] * len(radii)

    monkeypatch.setattr(budget, "_go_up", nothing)
    monkeypatch.setattr(budget, "_go_down", nothing)


@pytest.mark.parametrize("p", [1, 3])
def test_the_fits_are_those_of_the_path(p: int, request: pytest.FixtureRequest) -> None:
    expected = fit_path(problem(p), [0.2, 0.6]).points
    request.getfixturevalue("no_path")
    found = fit_path(problem(p), [0.2, 0.6]).points
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.end.status is Status.CONVERGED
        assert ours.end.model.loss == pytest.approx(theirs.end.model.loss, rel=1e-7)
        np.testing.assert_allclose(ours.end.theta, theirs.end.theta, rtol=1e-4, atol=1e-6)
        assert ours.price == pytest.approx(theirs.price, rel=1e-3)


@pytest.mark.parametrize("p", [1, 3])
def test_a_single_covariance_needs_no_turn_and_several_that_cannot_turn_are_no_optimum(
    p: int, no_path: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(budget, "walk", lambda *_: None)
    (found,) = fit_path(problem(p), [0.4]).points
    assert found.end.status is (Status.CONVERGED if p == 1 else Status.STALLED)
    monkeypatch.undo()
    (expected,) = fit_path(problem(p), [0.4]).points
    if p == 1:
        assert found.end.model.loss == pytest.approx(expected.end.model.loss, rel=1e-7)
        assert found.price == pytest.approx(expected.price, rel=1e-3)
    else:
        assert found.end.model.loss > expected.end.model.loss
