"""What each comparator promises holds after it and did not before; and what none of them promises does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from setsquare.families import family
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Status, solve
from studies.comparators import (
    COMPARATORS,
    BerkIndividual,
    CorrelationRemover,
    KomiyamaOpportunity,
    KomiyamaParity,
    LinearFeatures,
    Xu,
    Zafar,
    published_xu,
)
from studies.comparators.base import max_correlation
from studies.comparators.unfairness import pair_form

BOUND = 0.05
FAMILIES = ("binomial", "poisson", "gaussian")


@pytest.fixture(params=FAMILIES)
def data(request: pytest.FixtureRequest, draw: Callable[..., Any]) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    Z, y, X = draw(family(request.param), n=1500)
    return request.param, Z, y, X


def mean(name: str, eta: np.ndarray) -> np.ndarray:
    return family(name).activation(eta)


def predictor(Z: np.ndarray, y: np.ndarray, name: str) -> np.ndarray:
    found = solve(Problem(Z, y, family=name))
    return np.asarray(found.intercept + Z @ found.coef[0])


def parts(model: Any, Z: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Effects of the protected columns in the model of [1, S, U], its part of the predictor, and what U adds."""
    fit = model.result_
    D = np.column_stack([np.ones(len(X)), X])
    fitted = D @ np.linalg.lstsq(D, Z, rcond=None)[0]
    beta = np.linalg.lstsq(D, fit.linear_predictor(Z, X), rcond=None)[0]
    return beta, X @ beta[1:], (Z - fitted) @ fit.coef


def parity(model: Any, name: str, Z: np.ndarray, y: np.ndarray, X: np.ndarray) -> float:
    beta, s, u = parts(model, Z, X)
    if name == "gaussian":
        return float(np.var(s) / np.var(s + u))

    def deviance(eta: np.ndarray) -> float:
        return family(name).deviance(y, mean(name, eta))

    full, constant = deviance(beta[0] + s + u), deviance(np.full(len(y), beta[0]))
    return (full - deviance(beta[0] + u)) / (full - constant)


def opportunity(model: Any, name: str, Z: np.ndarray, y: np.ndarray, X: np.ndarray) -> float:
    yhat = model.predict(Z, X)
    yhat = (yhat > 0.5).astype(float) if name == "binomial" else yhat

    def deviance(A: np.ndarray) -> float:
        return family(name).deviance(yhat, mean(name, predictor(A, yhat, name)))

    null = family(name).deviance(yhat, np.full(len(y), yhat.mean()))
    return (null - deviance(X)) / (null - deviance(np.column_stack([X, y])))


def pairs(model: Any, name: str, Z: np.ndarray, y: np.ndarray, X: np.ndarray) -> float:
    """Over every pair, one by one."""
    free = BerkIndividual(family=name, bound=1.0).fit(Z, y, X)
    both = []
    for fitted in (model, free):
        s = parts(fitted, Z, X)[1]
        both.append(np.mean(np.abs(y[:, None] - y) * (s[:, None] - s) ** 2))
    return float(both[0] / both[1])


RIDGES = ((KomiyamaParity, parity), (KomiyamaOpportunity, opportunity), (BerkIndividual, pairs))


@pytest.mark.parametrize(("kind", "measure"), RIDGES)
def test_fair_ridges_keep_their_bound(kind: Any, measure: Any, data: Any) -> None:
    before, after = (kind(family=data[0], bound=bound).fit(*data[1:]) for bound in (1.0, BOUND))
    assert before.lambda_ == 0.0
    assert measure(before, *data) > 1.5 * BOUND
    assert measure(before, *data) == pytest.approx(before.fairness_, rel=1e-6)
    assert after.lambda_ > 0.0
    assert after.status_ is Status.CONVERGED
    value = measure(after, *data)
    assert value <= BOUND + 1e-6
    if kind is not KomiyamaOpportunity or data[0] != "binomial":  # counted classes jump over the bound
        assert value == pytest.approx(BOUND, abs=1e-6)
    assert value == pytest.approx(after.fairness_, abs=1e-6)


@pytest.mark.parametrize("kind", [pair[0] for pair in RIDGES])
def test_fair_ridges_do_not_promise_orthogonal_predictions(kind: Any, data: Any) -> None:
    name, Z, y, X = data
    model = kind(family=name, bound=BOUND).fit(Z, y, X)
    assert max_correlation(X, model.predict(Z, X)) > 0.02


def test_parity_depends_on_where_a_protected_column_has_its_zero(data: Any) -> None:
    name, Z, y, X = data
    moved = X - np.array([0.0, 40.0, 0.0])
    here, there = (KomiyamaParity(family=name).fit(Z, y, columns) for columns in (X, moved))
    free = [KomiyamaParity(family=name, bound=1.0).fit(Z, y, columns) for columns in (X, moved)]
    np.testing.assert_allclose(free[0].predict(Z, X), free[1].predict(Z, moved), rtol=1e-6)
    if name == "gaussian":
        assert here.lambda_ == pytest.approx(there.lambda_, rel=1e-6)
    else:
        assert abs(np.log(here.lambda_ / there.lambda_)) > 0.1


def test_zafar_keeps_its_bound_on_the_linear_predictor(data: Any) -> None:
    name, Z, y, X = data
    model = Zafar(family=name).fit(Z, y, X)
    assert max_correlation(X, predictor(Z, y, name)) > 2.0 * BOUND
    assert max_correlation(X, model.result_.linear_predictor(Z)) == pytest.approx(BOUND, abs=1e-8)
    assert model.result_.kkt < 1e-8
    assert model.lambda_ > 0.0


def test_zafar_lets_a_few_rows_buy_covariance_for_all_others() -> None:
    """Two rows with a level of their own and one outcome: any linear predictor costs them nothing."""
    rng = np.random.default_rng(0)
    n = 2000
    X = (rng.random((n, 1)) < 0.5).astype(float)
    Z = np.column_stack([2.0 * X[:, 0] + rng.normal(size=n), np.zeros(n)])
    y = (rng.random(n) < mean("binomial", Z[:, 0] - 1.0)).astype(float)
    rare = np.flatnonzero(X[:, 0] == 1.0)[:2]
    Z[rare, 1], y[rare] = 1.0, 0.0
    with_rare, without = (Zafar().fit(features, y, X) for features in (Z, Z[:, :1]))
    assert with_rare.fairness_ == pytest.approx(BOUND, abs=1e-8)
    assert with_rare.result_.linear_predictor(Z)[rare].max() < -100.0
    others = np.setdiff1d(np.arange(n), rare)
    left = [max_correlation(X[others], model.predict(f)[others]) for model, f in ((with_rare, Z), (without, Z[:, :1]))]
    assert left[0] > 2.0 * BOUND


@pytest.mark.parametrize("kind", [LinearFeatures, CorrelationRemover])
def test_corrected_features_give_an_uncorrelated_linear_predictor_but_not_means(kind: Any, data: Any) -> None:
    if kind is CorrelationRemover:
        pytest.importorskip("fairlearn")
    name, Z, y, X = data
    model = kind(family=name).fit(Z, y, X)
    assert max_correlation(X, predictor(Z, y, name)) > 0.1
    assert max_correlation(X, model.result_.linear_predictor(Z, X)) < 1e-8
    assert model.fairness_ < 1e-8
    spread = np.column_stack([Z[:, 0] * (1.0 + 3.0 * X[:, 0]), Z[:, 1:]])  # a group whose features vary more
    left = max_correlation(X[:, :1], kind(family=name).fit(spread, y, X[:, :1]).predict(spread, X[:, :1]))
    assert left < 1e-8 if name == "gaussian" else left > 1e-3


def test_xu_predicts_from_the_features_where_they_are_independent_given_the_outcome() -> None:
    """Rows in exact proportion: z and x independent within each outcome, so that the fitted models are exact."""
    given = {0: ((0.7, 0.3), (0.8, 0.2)), 1: ((0.2, 0.8), (0.4, 0.6))}
    rows = [
        (z, x, y)
        for y, (pz, px) in given.items()
        for z in (0, 1)
        for x in (0, 1)
        for _ in range(round(1000 * (1 + y) * pz[z] * px[x]))
    ]
    Z, X, y = (np.asarray(rows, dtype=float)[:, [j]] for j in range(3))
    y = y[:, 0]
    model = Xu().fit(Z, y, X)
    everything = solve(Problem(np.hstack([Z, X]), y, family="binomial"))
    assert abs(everything.coef[0, 1]) > 1.0
    assert np.abs(model.result_.protected_coef).max() < 1e-6
    np.testing.assert_allclose(model.predict(Z, X), mean("binomial", predictor(Z, y, "binomial")), atol=1e-6)
    assert model.fairness_ > BOUND  # no effect of its own, and yet no orthogonality


def test_xu_promises_nothing_where_features_stand_for_the_protected_columns(draw: Callable[..., Any]) -> None:
    Z, y, X = draw(family("binomial"), n=1500)
    assert Xu().fit(Z, y, X).fairness_ > 0.02


def test_the_published_xu_is_the_label(draw: Callable[..., Any]) -> None:
    Z, y, X = draw(family("binomial"))
    p1, q1 = (mean("binomial", predictor(A, y, "binomial")) for A in (np.hstack([Z, X]), X))
    np.testing.assert_array_equal(published_xu(p1, q1, y), y)
    assert np.abs(p1 - y).max() > 0.5
    shares = np.full(len(y), y.mean())
    np.testing.assert_allclose(published_xu(p1, q1, shares), Xu().fit(Z, y, X).predict(Z, X), atol=1e-8)


def test_leace_gives_an_uncorrelated_linear_predictor_without_the_protected_columns(data: Any) -> None:
    pytest.importorskip("concept_erasure")
    name, Z, y, X = data
    X = X / X.std(axis=0)  # version 0.2.4 overlooks columns on a small scale
    model = COMPARATORS["leace"](family=name).fit(Z, y, X)
    assert max_correlation(X, predictor(Z, y, name)) > 0.1
    assert max_correlation(X, model.result_.linear_predictor(Z)) < 1e-6
    assert model.result_.protected_coef is None


@pytest.mark.parametrize("kind", ["binary", "counts", "continuous"])
def test_the_sum_over_pairs_is_a_quadratic_form_from_sorted_rows(kind: str) -> None:
    rng = np.random.default_rng(1)
    y = {"binary": rng.integers(0, 2, 300), "counts": rng.poisson(2.0, 300), "continuous": rng.normal(5, 9, 300)}[kind]
    y, Q = y.astype(float), rng.normal(size=(300, 3))
    gaps = Q[:, None, :] - Q[None, :, :]
    brute = np.einsum("ij,ija,ijb->ab", np.abs(y[:, None] - y), gaps, gaps) / 300**2
    np.testing.assert_allclose(pair_form(y, Q), brute, rtol=1e-11, atol=1e-12)
