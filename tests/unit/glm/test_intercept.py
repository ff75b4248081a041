"""Starting values: the intercept-only model of each family, with and without an offset."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import GLMS, draw_data

from setsquare.errors import InputError
from setsquare.families import Family, family, tweedie
from setsquare.glm.intercept import first_intercept, link_of, steepness_at
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem

SEVERAL = (*GLMS, tweedie(1.2), tweedie(1.8, "canonical"), tweedie(2.5), tweedie(3.0, "canonical"))


@pytest.mark.parametrize("glm", SEVERAL, ids=str)
def test_the_start_is_the_intercept_only_model(glm: Family) -> None:
    Z, y, X = draw_data(glm, n=200)
    y = np.abs(y) + 0.1 if glm.outcome_range[1] > 1.0 else y
    start = prepare(Problem(Z, y, X, family=glm)).objective.start
    mean = glm.activation(start.theta[:1])[0]
    assert mean == pytest.approx(y.mean(), rel=1e-12)
    assert start.loss == pytest.approx(glm.row_losses(y, np.full(len(y), start.theta[0]))[0].mean(), rel=1e-12)
    assert link_of(glm, np.array([y.mean()]))[0] == pytest.approx(start.theta[0], rel=1e-12)
    eta = start.theta[0]
    slope = (glm.activation(np.array(eta + 1e-6)) - glm.activation(np.array(eta - 1e-6))) / 2e-6
    assert steepness_at(glm, np.array([y.mean()])) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("glm", SEVERAL, ids=str)
def test_with_an_offset_no_other_intercept_is_better(glm: Family) -> None:
    Z, y, X = draw_data(glm, n=200)
    y = np.abs(y) + 0.1 if glm.outcome_range[1] > 1.0 else y
    offset = 0.2 * np.random.default_rng(1).normal(size=200)
    start = prepare(Problem(Z, y, X, family=glm, offset=offset)).objective.start
    at = [glm.row_losses(y, start.theta[0] + d + offset)[0].mean() for d in (-1e-3, 0.0, 1e-3)]
    assert start.loss == pytest.approx(at[1], rel=1e-12) and at[1] <= min(at[0], at[2])


def test_a_first_intercept_stays_inside_the_domain() -> None:
    log_binomial = family("binomial", "log")
    found = first_intercept(log_binomial, np.array([0.5]), 0.0, 3.0)
    assert found[0] + 3.0 == pytest.approx(-1.0)
    assert first_intercept(log_binomial, np.array([0.5]), 0.25, 0.1)[0] == pytest.approx(np.log(0.5) - 0.25)
    with pytest.raises(InputError, match="mean of the outcome is 0, which is outside the range"):
        link_of(log_binomial, np.array([0.0]))
