"""The products that widen a constrained fit are those that lower its loss most, as refits show."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from setsquare.glm.problem import Problem
from setsquare.glm.products import RIDGE, choose_columns, fit_pilot
from setsquare.glm.ridge_step import PATH, _Path, choose_penalty
from setsquare.glm.solver import solve


def example(family: str, seed: int) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(800, 2))
    Z = 0.6 * X @ rng.normal(size=(2, 4)) + rng.normal(size=(800, 4))
    candidates = np.column_stack([Z[:, i] * Z[:, j] for i in range(4) for j in range(i)] + [X[:, :1] + Z[:, :1] ** 2])
    eta = 0.5 * Z[:, 0] - 0.4 * Z[:, 1] + 0.5 * candidates @ rng.normal(size=7) / 2.0
    y = rng.random(800) < 1.0 / (1.0 + np.exp(-eta)) if family == "binomial" else eta + rng.normal(size=800)
    return Z, y.astype(float), X, candidates


def refitted(Z: Any, y: Any, X: Any, family: str, l2: float) -> float:
    return float(solve(Problem(Z, y, X, family, l2=l2)).certificate.loss)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
@pytest.mark.parametrize("seed", range(5))
def test_the_first_choice_is_the_best_of_all_refits_under_the_constraint(family: str, seed: int) -> None:
    Z, y, X, candidates = example(family, seed)
    l2 = RIDGE * (1.0 if family == "gaussian" else float(y.mean() * (1.0 - y.mean())))
    losses = [refitted(np.column_stack([Z, c]), y, X, family, l2) for c in candidates.T]
    first = choose_columns(Z, candidates, fit_pilot(Problem(Z, y, X, family)), 1)[0]
    # One Newton step ranks the candidates: exact for squared loss, near the best of all refits for others.
    gained, best = losses[first] - max(losses), min(losses) - max(losses)
    assert gained <= (0.999 if family == "gaussian" else 0.8) * best < 0.0


def test_a_candidate_in_the_span_of_the_features_is_never_chosen() -> None:
    Z, y, X, candidates = example("gaussian", 0)
    inside = np.column_stack([Z[:, 0] - 2.0 * Z[:, 3], candidates[:, 0], candidates[:, 0] + Z[:, 1]])
    chosen = choose_columns(Z, inside, fit_pilot(Problem(Z, y, X)), 3)
    assert 0 not in chosen and len(chosen) == 1  # the third is the second once that is there


def test_what_only_the_constraint_would_take_up_is_not_chosen() -> None:
    Z, y, X, candidates = example("gaussian", 1)
    columns = np.column_stack([X[:, 0], candidates[:, 1]])
    chosen = choose_columns(Z, columns, fit_pilot(Problem(Z, y + 10.0 * X[:, 0], X)), 2)
    assert 0 not in chosen


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_one_decomposition_gives_the_leave_one_out_losses_of_refits(family: str) -> None:
    rng = np.random.default_rng(3)
    n, q = 120, 25
    X = rng.normal(size=(n, 1))
    Z = 0.5 * X + rng.normal(size=(n, q))
    eta = Z[:, 0] - Z[:, 1]
    y = eta + 2.0 * rng.normal(size=n) if family == "gaussian" else (eta + rng.logistic(size=n) > 0.0).astype(float)
    problem = Problem(Z, y, X, family)
    for l2 in (0.05, 0.5):
        pilot = fit_pilot(problem.with_l2(l2), 1e-9)
        path = _Path(Z, pilot)
        found = float(path.w @ path.losses(np.array([l2 / path.unit]))[:, 0])
        known = []
        for i in range(n):
            kept = np.arange(n) != i
            fit = solve(Problem(Z[kept], y[kept], X[kept], family, l2=l2 * n / (n - 1)))
            mean = fit.intercept + Z[i] @ fit.coef[0]
            known.append(pilot.family.value_terms(y[i : i + 1, None], mean[:, None])[0][0])
        without = solve(problem.with_l2(l2)).certificate.loss
        # The multipliers stay as they are, so it is near, not equal: the loss on the rows themselves is far off.
        assert abs(found - np.mean(known)) < 0.1 * (np.mean(known) - without)


def test_the_largest_penalty_is_taken_that_is_as_good_as_the_best() -> None:
    larger = 0
    for seed, family in itertools.product(range(8), ("gaussian", "binomial")):
        rng = np.random.default_rng(seed)
        n, q = 300, 20
        X = rng.normal(size=(n, 1))
        Z = 0.5 * X + rng.normal(size=(n, q))
        eta = Z[:, 0] - Z[:, 1]
        y = eta + 2.0 * rng.normal(size=n) if family == "gaussian" else (eta + rng.logistic(size=n) > 0.0).astype(float)
        pilot = fit_pilot(Problem(Z, y, X, family))
        path = _Path(Z, pilot)
        losses = n * (path.w @ path.losses(PATH))
        chosen = int(np.argmin(np.abs(np.log(PATH * path.unit / choose_penalty(Z, pilot).l2))))
        assert chosen >= np.argmin(losses) and losses[chosen] <= losses.min() + 3.0
        assert (losses[chosen + 1 :] > losses.min() + 1.0).all()
        larger += losses[chosen] > losses.min() + 1.0
    assert larger  # in some samples the standard error is above 1
