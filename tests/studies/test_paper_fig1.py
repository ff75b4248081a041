"""The paper's first figure: only the generalised correction ends without correlation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve
from setsquare.projection import project_out
from studies.paper import catalogue, fig1
from studies.paper.record import Record

TRAIN = fig1.mirrored(fig1.draw_rows(fig1.N_TRAIN // 2, np.random.default_rng(fig1.SEED)))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("matplotlib")
    record, paths = catalogue.run("fig1", tmp_path_factory.mktemp("paper"), quick=True)
    assert {path.suffix for path in paths} == {".json", ".csv", ".png"}
    assert all(path.stat().st_size > 0 for path in paths)
    assert Record.read(paths[0]) == record
    return dict(record.data)


def test_only_the_generalised_correction_removes_the_correlation(found: dict[str, Any]) -> None:
    assert found["none"]["correlation"] > 0.3
    assert abs(found["linear"]["correlation"]) > 0.05
    assert abs(found["generalized"]["correlation"]) < 1e-10


def test_new_rows_say_the_same(found: dict[str, Any]) -> None:
    assert max(found[method]["new_p"] for method in ("none", "linear")) < 1e-10
    assert found["generalized"]["new_p"] > 0.05
    assert abs(found["generalized"]["new_correlation"]) < 0.3 * abs(found["linear"]["new_correlation"])


def test_two_weights_are_the_whole_problem(found: dict[str, Any]) -> None:
    drawn = fig1.draw_rows(fig1.N_TRAIN // 2, np.random.default_rng(fig1.SEED))
    assert abs(solve(Problem(drawn.Z, drawn.y, family="binomial")).intercept[0]) > 1e-3  # not so before mirroring
    assert max(abs(found[method]["intercept"]) for method in fig1.METHODS) < 1e-10


def test_optimum_is_that_of_another_solver(found: dict[str, Any]) -> None:
    def loss(gamma: np.ndarray) -> float:
        return float(fig1.losses(TRAIN.Z, TRAIN.y, gamma[None])[0])

    def gap(gamma: np.ndarray) -> float:
        return float(TRAIN.X[:, 0] @ (1.0 / (1.0 + np.exp(-TRAIN.Z @ gamma)))) / len(TRAIN.y)

    constraint = {"type": "eq", "fun": gap}
    peer = minimize(loss, [0.5, 1.0], method="SLSQP", constraints=constraint, options={"ftol": 1e-14})
    assert found["generalized"]["loss"] == pytest.approx(peer.fun, abs=1e-8)
    assert found["generalized"]["optimum"] == pytest.approx(peer.x, abs=1e-4)


@pytest.mark.parametrize("method", ["none", "linear"])
def test_plain_paths_end_at_the_optimum(method: str) -> None:
    Z = project_out(TRAIN.Z, TRAIN.X) if method == "linear" else TRAIN.Z
    problem = Problem(Z, TRAIN.y, family="binomial")
    path = fig1.descend(problem, 1000)
    assert path[0] == pytest.approx(fig1.START)
    assert path[-1] == pytest.approx(solve(problem).coef[0], abs=1e-6)
    assert fig1.losses(Z, TRAIN.y, path).max() == pytest.approx(fig1.losses(Z, TRAIN.y, path[:1])[0])


def test_the_papers_optimiser_comes_near_and_not_there(found: dict[str, Any]) -> None:
    along = np.abs(found["generalized"]["path_correlation"])
    assert along[0] > 0.5
    assert 1e-6 < along[-1] < 0.02


def test_correlations_are_those_of_numpy() -> None:
    gamma = np.array([[0.0, 0.0], [1.0, -2.0], [0.3, 0.4]])
    found = fig1.correlations(TRAIN.Z, TRAIN.X, gamma)
    mean = 1.0 / (1.0 + np.exp(-TRAIN.Z @ gamma.T))
    assert found[0] == 0.0  # a constant prediction
    assert found[1:] == pytest.approx([np.corrcoef(mean[:, k], TRAIN.X[:, 0])[0, 1] for k in (1, 2)], abs=1e-14)
