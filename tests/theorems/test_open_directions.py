"""A level that occurs with one outcome alone leaves a direction open: its coefficient has no finite optimum."""

import numpy as np
import pytest

import setsquare as sq
from setsquare.glm.preparation import prepare
from setsquare.glm.solver import Settings, Status
from setsquare.glm.sqp import solve_sqp


def separated(seed: int) -> sq.Problem:
    """Rows of which 1 % have a level without a single event."""
    rng = np.random.default_rng(seed)
    n = 2000
    X = rng.normal(size=(n, 2))
    Z = np.column_stack([X @ rng.normal(size=(2, 4)) + rng.normal(size=(n, 4)), np.arange(n) % 100 == 0])
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-Z[:, 0]))) & (Z[:, 4] == 0.0)
    return sq.Problem(Z, y.astype(float), X, family="binomial")


@pytest.mark.parametrize("seed", range(4))
def test_leaps_save_steps_and_end_within_the_tolerance_of_the_loss(seed: int) -> None:
    """Each plain step adds 1 to an exponent; the limit of the loss is that of the other rows alone.

    Both stop where a further step is worth no more than the tolerance, each at its own distance from the limit.
    """
    objective = prepare(separated(seed)).objective
    plain, leaping = (solve_sqp(objective, None, Settings(leaps=leaps)) for leaps in ((), Settings().leaps))
    assert plain.status is Status.FLAT
    assert leaping.status in (Status.FLAT, Status.CONVERGED)
    assert len(leaping.trace) <= len(plain.trace) - 3
    assert max(step.length for step in leaping.trace) > 1.0
    assert leaping.model.loss <= plain.model.loss * (1.0 + 2.0 * Settings().loss)
    assert np.abs(leaping.model.c).max() <= 1e-10 * leaping.model.spread


@pytest.mark.parametrize("seed", range(4))
def test_the_certificate_names_the_level(seed: int) -> None:
    solution = sq.solve(separated(seed))
    assert solution.status is Status.FLAT
    assert solution.certificate.flat_features == ("z4",)
    assert solution.certificate.max_correlation < 1e-10


def test_nothing_leaps_where_every_direction_is_closed() -> None:
    problem = separated(0)
    rest = sq.Problem(problem.features[:, :4], problem.outcome, problem.protected, family="binomial")
    found = solve_sqp(prepare(rest).objective, None, Settings())
    assert found.status is Status.CONVERGED
    assert max(step.length for step in found.trace) <= 1.0
