"""Comparators against independent solvers, odd input, and the interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.optimize import minimize
from sklearn.exceptions import NotFittedError

from setsquare.errors import InputError, MissingDependencyError
from setsquare.families import family
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from studies.comparators import (
    COMPARATORS,
    BerkIndividual,
    Comparator,
    KomiyamaOpportunity,
    KomiyamaParity,
    LinearFeatures,
    Xu,
    Zafar,
    available,
    fit_fair_ridge,
    fit_zafar,
)
from studies.comparators.base import max_correlation
from studies.comparators.fair_ridge import RidgePath
from studies.comparators.unfairness import equal_opportunity
from studies.comparators.zafar import BoundedCovariance, bounded_step

Draw = Callable[..., Any]
LINKS = {"binomial": sm.families.Binomial, "poisson": sm.families.Poisson, "gaussian": sm.families.Gaussian}


@pytest.fixture(params=LINKS)
def problem(request: pytest.FixtureRequest, draw: Draw) -> Problem:
    Z, y, X = draw(family(request.param))
    return Problem(Z, y, X, request.param)


def residuals(Z: np.ndarray, X: np.ndarray) -> np.ndarray:
    D = np.column_stack([np.ones(len(X)), X])
    return Z - D @ np.linalg.lstsq(D, Z, rcond=None)[0]


@pytest.mark.parametrize("lam", [0.0, 0.3, 20.0])
def test_the_ridge_is_that_of_an_explicit_fit(problem: Problem, lam: float) -> None:
    """Residuals formed, columns as they are, penalty written out, and somebody else's optimiser."""
    Z, y, X, glm = problem.features, problem.outcome, problem.protected, problem.family
    U, s = residuals(Z, X), X.std(axis=0)
    D = np.column_stack([np.ones(len(y)), (X - X.mean(axis=0)) / s, U / U.std(axis=0)])
    p = X.shape[1]

    def loss(b: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope, _ = glm.row_losses(y, D @ b)
        gradient = D.T @ slope / len(y)
        gradient[1 : 1 + p] += lam * b[1 : 1 + p]
        return float(np.mean(value) + 0.5 * lam * np.sum(b[1 : 1 + p] ** 2)), gradient

    found = minimize(loss, np.zeros(D.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9})
    path = RidgePath.of(problem)
    theta = path.fit(lam).theta
    np.testing.assert_allclose(path.beta(theta), found.x[1 : 1 + p] / s, rtol=1e-5, atol=1e-7)
    intercept, coef = path.prepared.coefficients(theta)
    eta = intercept + np.hstack([path.basis.apply(X), Z]) @ coef[0]
    np.testing.assert_allclose(eta, D @ found.x, atol=1e-5)


def test_equality_of_opportunity_is_a_sequential_analysis_of_deviance(problem: Problem) -> None:
    path = RidgePath.of(problem)
    theta = path.fit(0.1).theta
    fit = fit_fair_ridge(problem, "eo", 1.0)
    assert equal_opportunity(path, theta)(path.fit(0.0).theta) == pytest.approx(fit.fairness, abs=1e-9)
    yhat = fit.predict(problem.features, problem.protected)
    yhat = (yhat > 0.5).astype(float) if problem.family.name == "binomial" else yhat

    def deviance(*columns: np.ndarray) -> float:
        design = np.column_stack([np.ones(len(yhat)), *columns])
        return float(sm.GLM(yhat, design, family=LINKS[problem.family.name]()).fit(tol=1e-12).deviance)

    null, first, both = deviance(), deviance(problem.protected), deviance(problem.protected, problem.outcome)
    assert fit.fairness == pytest.approx((null - first) / (null - both), rel=1e-6)


def test_zafar_is_the_optimum_of_an_independent_solver(problem: Problem) -> None:
    Z, y, X, glm = problem.features, problem.outcome, problem.protected, problem.family
    bounded = BoundedCovariance.of(problem, prepare(Problem(Z, y, None, glm)))
    c = 0.3 * np.abs(bounded.A @ bounded.solve(1e6).theta).max()
    end = bounded.solve(c)
    D = np.column_stack([np.ones(len(y)), (Z - Z.mean(axis=0)) / Z.std(axis=0)])
    A = (X - X.mean(axis=0)).T @ D / len(y)

    def loss(b: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope, _ = glm.row_losses(y, D @ b)
        return float(np.mean(value)), D.T @ slope / len(y)

    limits = {"type": "ineq", "fun": lambda b: np.concatenate([c - A @ b, c + A @ b]) / c}
    options = {"ftol": 1e-14, "maxiter": 500}
    other = minimize(loss, np.zeros(D.shape[1]), jac=True, method="SLSQP", constraints=limits, options=options)
    value = bounded.objective.values(end.theta).loss
    assert value == pytest.approx(loss(other.x)[0], abs=1e-8)
    assert np.abs(bounded.A @ end.theta).max() == pytest.approx(c, rel=1e-8)
    assert end.kkt < 1e-9
    free = bounded.objective.values(bounded.solve(1e6).theta).loss
    assert value > free + 1e-5


def test_a_step_minimises_its_quadratic_programme() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        B = rng.normal(size=(8, 8))
        H, g, A, at = B @ B.T + 0.1 * np.eye(8), rng.normal(size=8), rng.normal(size=(3, 8)), rng.uniform(-0.1, 0.1, 3)
        step, nu = bounded_step(H, g, A, at, 0.1)
        assert np.abs(at + A @ step).max() <= 0.1 + 1e-12
        np.testing.assert_allclose(H @ step + g + A.T @ nu, 0.0, atol=1e-10)
        np.testing.assert_allclose(nu * (at + A @ step), np.abs(nu) * 0.1, atol=1e-10)  # multipliers push outwards


@pytest.mark.parametrize("name", ["komiyama-sp", "komiyama-eo", "berk-if", "zafar", "linear"])
def test_collinear_and_constant_columns_change_nothing(name: str, problem: Problem) -> None:
    """Features that repeat each other, hold a protected column, or do not vary."""
    Z, y, X = problem.features, problem.outcome, problem.protected
    more = [Z, Z[:, :1] - 2.0 * Z[:, 1:2], np.ones((len(y), 1))]
    more += [] if name == "zafar" else [X[:, :1]]
    kind = COMPARATORS[name]
    plain, odd = (kind(family=problem.family).fit(A, y, X) for A in (Z, np.hstack(more)))
    np.testing.assert_allclose(plain.predict(Z, X), odd.predict(np.hstack(more), X), rtol=1e-5)
    constant = np.column_stack([X, np.full(len(y), 3.0)])
    np.testing.assert_allclose(
        kind(family=problem.family).fit(Z, y, constant).predict(Z, constant), plain.predict(Z, X), rtol=1e-6
    )


def test_a_repeated_protected_column_is_penalised_as_a_ridge_does(problem: Problem) -> None:
    """Two copies share an effect b as b/2 each: half the penalty."""
    Z, y, X = problem.features, problem.outcome, problem.protected[:, :1]
    one, two = (RidgePath.of(Problem(Z, y, columns, problem.family)) for columns in (X, np.hstack([X, X])))
    beta, shared = one.beta(one.fit(1.0).theta), two.beta(two.fit(2.0).theta)
    np.testing.assert_allclose(shared, np.repeat(beta / 2.0, 2), rtol=1e-6)
    assert np.abs(two.beta(two.fit(1.0).theta).sum() - beta[0]) > 1e-3 * np.abs(beta[0])


def test_every_comparator_reads_tables_and_predicts_new_rows(draw: Draw) -> None:
    Z, y, X = draw(family("binomial"))
    features = pd.DataFrame(Z, columns=list("abcdef"))
    protected = pd.DataFrame({"group": np.where(X[:, 0] > 0, "x", "y"), "age": X[:, 1]})
    for name in available("binomial"):
        model = COMPARATORS[name](family="binomial")
        assert isinstance(model, Comparator)
        model.fit(features[:500], y[:500], protected[:500])
        probability = model.predict(features[500:], protected[500:])
        assert probability.shape == (100,) and 0.0 < probability.min() < probability.max() < 1.0, name
        assert np.isfinite([model.fairness_, model.intercept_]).all() and model.coef_.shape == (6,), name
        if model.needs_protected:
            with pytest.raises(InputError, match="pass protected="):
                model.predict(features)
        else:
            np.testing.assert_array_equal(model.predict(features[500:]), probability)


def test_a_method_of_ones_own_joins_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mean:
        def __init__(self, *, family: str) -> None:
            self.family = family

        def fit(self, Z: Any, y: Any, protected: Any) -> Mean:
            self.mean = float(np.mean(y))
            return self

        def predict(self, Z: Any, protected: Any = None) -> np.ndarray:
            return np.full(len(Z), self.mean)

    monkeypatch.setitem(COMPARATORS, "mean", Mean)
    assert "mean" in available("poisson")
    assert isinstance(COMPARATORS["mean"](family="poisson"), Comparator)


def test_results_are_frozen(draw: Draw) -> None:
    Z, y, X = draw(family("gaussian"))
    model = LinearFeatures(family="gaussian").fit(Z, y, X)
    with pytest.raises(FrozenInstanceError):
        model.result_.fairness = 0.0  # type: ignore[misc]


def test_a_bound_that_is_kept_already_changes_nothing(draw: Draw) -> None:
    Z, y, X = draw(family("binomial"))
    for kind in (KomiyamaParity, KomiyamaOpportunity, BerkIndividual):
        assert kind(bound=1.0).fit(Z, y, X).lambda_ == 0.0
    assert Zafar(bound=1.0).fit(Z, y, X).lambda_ is None


def test_a_smaller_bound_costs_more(draw: Draw) -> None:
    Z, y, X = draw(family("binomial"))
    for name in ("sp", "if"):
        fits = [fit_fair_ridge(Problem(Z, y, X, "binomial"), name, bound) for bound in (0.2, 0.05, 0.01)]
        assert fits[0].tuning < fits[1].tuning < fits[2].tuning
    fits = [fit_zafar(Problem(Z, y, X, "binomial"), bound) for bound in (0.2, 0.05, 0.01)]
    losses = [family("binomial").deviance(y, fit.predict(Z)) for fit in fits]
    assert losses == sorted(losses)


def test_an_unreachable_bound_is_refused() -> None:
    """The classes follow the group through a feature, whatever becomes of the group's own effect."""
    rng = np.random.default_rng(0)
    X = (rng.random((800, 1)) < 0.5).astype(float)
    Z = 4.0 * X * rng.exponential(size=(800, 1)) + 0.1 * rng.normal(size=(800, 1))
    y = (rng.random(800) < 0.05 + 0.6 * (Z[:, 0] > 2.0)).astype(float)
    with pytest.raises(InputError, match=r"cannot be reached: without any effect of the protected columns it is"):
        KomiyamaOpportunity(bound=1e-4).fit(Z, y, X)


def test_what_a_user_may_get_wrong(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    Z, y, X = draw(family("poisson"))
    with pytest.raises(InputError, match="Xu is not defined for poisson: choose binomial"):
        Xu(family="poisson").fit(Z, y, X)
    for bound in (0.0, 1.5, -1.0):
        with pytest.raises(InputError, match="must be above 0 and at most 1"):
            KomiyamaParity(family="poisson", bound=bound).fit(Z, y, X)
        with pytest.raises(InputError, match="must be above 0 and at most 1"):
            Zafar(family="poisson", bound=bound).fit(Z, y, X)
    with pytest.raises(InputError, match="Unknown search"):
        Zafar(family="poisson", search="fast").fit(Z, y, X)  # type: ignore[arg-type]
    with pytest.raises(NotFittedError, match="call fit first"):
        Zafar().predict(Z)
    with pytest.raises(InputError, match="rows"):
        Zafar(family="poisson").fit(Z, y, X[:-1])
    monkeypatch.setattr("studies.requirements.find_spec", lambda name: None)
    for name, package in (("correlation-remover", "fairlearn"), ("leace", "concept_erasure")):
        with pytest.raises(MissingDependencyError, match=package):
            COMPARATORS[name](family="poisson").fit(Z, y, X)


def test_correlations_of_constants_are_none() -> None:
    x = np.arange(6.0)[:, None]
    assert max_correlation(np.column_stack([x, np.full(6, 7.0)]), -x[:, 0]) == pytest.approx(1.0)
    assert max_correlation(x, np.full(6, 2.0)) == 0.0


def test_tables_that_do_not_fit_are_refused_in_one_sentence() -> None:
    rng = np.random.default_rng(0)
    Z, S, y = rng.normal(size=(60, 2)), rng.normal(size=(60, 1)), (rng.random(60) < 0.5).astype(float)
    model = KomiyamaParity().fit(Z, y, S)
    broken = np.where(np.arange(60)[:, None] == 3, np.nan, Z)
    for message, call in {
        "60 rows of features and 5 of protected": lambda: model.predict(Z, S[:5]),
        "60 rows of features and 6 of protected": lambda: Zafar().fit(Z, y, S[:6]),
        "Every protected column is constant": lambda: Zafar().fit(Z, y, np.ones((60, 1))),
        "outcome must be numbers": lambda: Zafar().fit(Z, ["no"] * 60, S),
        r"fill them\.$": lambda: Zafar().fit(broken, y, S),
    }.items():
        with pytest.raises(InputError, match=message):
            call()
