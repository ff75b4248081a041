"""The objective: sums over rows against brute force, derivatives against finite differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from setsquare.families import Family, contrasts, family
from setsquare.glm.objective import Objective
from setsquare.glm.overall import Overall
from setsquare.glm.preparation import Prepared, prepare
from setsquare.glm.problem import Problem


def near_start(prepared: Prepared, seed: int = 0, size: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """A point inside the domain, and some multipliers."""
    rng = np.random.default_rng(seed)
    objective = prepared.objective
    restricted = objective.family.activation.domain[1] < np.inf
    step = rng.normal(size=objective.n_parameters) * (0.3 * size if restricted else size)
    return objective.start.theta + step, rng.normal(size=objective.n_constraints)


def numbers(prepared: Prepared, theta: np.ndarray, lam: np.ndarray) -> tuple[Any, ...]:
    """Loss, constraint and derivatives; so few rows have no sums for leave-one-out systems."""
    *found, overall, apart = prepared.objective.model(theta, lam)
    assert not isinstance(overall, Overall) and apart == 0.0
    return tuple(found)


def brute_force(problem: Problem, prepared: Prepared, theta: np.ndarray) -> tuple[float, np.ndarray]:
    """Loss and constraint row by row, from coefficients on the scale of the features."""
    intercept, coef = prepared.coefficients(theta)
    Z = problem.features.toarray() if sparse.issparse(problem.features) else problem.features
    eta = intercept + Z @ coef.T
    if problem.offset is not None:
        C = contrasts(eta.shape[1] + 1)
        eta = eta + (problem.offset @ C if problem.family.is_vector else problem.offset.reshape(-1, 1))
    w = problem.mean_weight()
    y = problem.coded_outcome()
    X = problem.protected
    Q = (X - w @ X) @ prepared.basis.transform
    loss, c = 0.5 * problem.l2 * float(np.sum(coef**2)), np.zeros((Q.shape[1], eta.shape[1]))
    for i in range(len(eta)):
        row_loss, mean = problem.family.value_terms(y[[i]], eta[[i]])
        loss += w[i] * float(row_loss[0])
        c += w[i] * np.outer(Q[i], mean[0])
    return loss, c.T.ravel()


def differences(objective: Objective, theta: np.ndarray, lam: np.ndarray, step: float = 1e-6):
    """Central differences of loss and constraint, and of the gradient of the Lagrangian."""
    gradient, jacobian, hessian = [], [], []
    for e in step * np.eye(len(theta)):
        up, down = objective.values(theta + e), objective.values(theta - e)
        gradient.append((up.loss - down.loss) / (2 * step))
        jacobian.append((up.c - down.c) / (2 * step))
        above, below = objective.model(theta + e, lam), objective.model(theta - e, lam)
        hessian.append((above.g + above.J.T @ lam - below.g - below.J.T @ lam) / (2 * step))
    return np.array(gradient), np.array(jacobian).T, np.array(hessian)


def check(problem: Problem, *, whiten: bool = True) -> None:
    prepared = prepare(problem, whiten=whiten)
    theta, lam = near_start(prepared)
    objective = prepared.objective
    values, model = objective.values(theta), objective.model(theta, lam)
    loss, c = brute_force(problem, prepared, theta)
    assert values.loss == pytest.approx(loss, rel=1e-12) and model.loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(values.c, c, atol=1e-13)
    np.testing.assert_allclose(model.c, c, atol=1e-13)
    assert model.spread == pytest.approx(values.spread, rel=1e-12)
    gradient, jacobian, hessian = differences(objective, theta, lam)
    np.testing.assert_allclose(model.g, gradient, atol=1e-7)
    np.testing.assert_allclose(model.J, jacobian, atol=1e-7)
    np.testing.assert_allclose(model.H, hessian, atol=1e-7)
    np.testing.assert_allclose(model.H, model.H.T, atol=1e-14)


def offset_for(glm: Family, n: int) -> np.ndarray:
    return -0.1 * np.random.default_rng(5).random(n)


@pytest.mark.parametrize("extra", ["plain", "weight", "offset", "l2"])
def test_values_and_derivatives_of_every_family(glm: Family, extra: str, draw) -> None:
    Z, y, X = draw(glm, n=60, q=4)
    given = {
        "plain": {},
        "weight": {"weight": np.random.default_rng(4).uniform(0.1, 3.0, 60)},
        "offset": {"offset": offset_for(glm, 60)},
        "l2": {"l2": 0.3},
    }[extra]
    check(Problem(Z, y, X, family=glm, **given))


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("extra", ["plain", "weight", "offset", "l2"])
def test_values_and_derivatives_of_several_classes(classes: int, extra: str, draw) -> None:
    Z, y, X = draw(family("multinomial"), n=60, q=4, classes=classes)
    rng = np.random.default_rng(4)
    given = {
        "plain": {},
        "weight": {"weight": rng.uniform(0.1, 3.0, 60)},
        "offset": {"offset": rng.normal(size=(60, classes))},
        "l2": {"l2": 0.3},
    }[extra]
    check(Problem(Z, y, X, family="multinomial", **given))


@pytest.mark.parametrize("name", ["binomial", "multinomial"])
def test_standardised_coordinates_have_right_derivatives_too(name: str, draw) -> None:
    Z, y, X = draw(family(name), n=60, q=4)
    check(Problem(Z, y, X, family=name, l2=0.1), whiten=False)


@pytest.mark.parametrize("name", ["binomial", "poisson", "multinomial"])
def test_sparse_features_are_dense_features(name: str, draw) -> None:
    Z, y, X = draw(family(name), n=200, q=4)
    Z = Z * (np.random.default_rng(6).random(Z.shape) < 0.3) + np.array([0.0, 0.0, 0.0, 2.0])
    dense, thin = (prepare(Problem(make(Z), y, X, family=name)) for make in (np.asarray, sparse.csr_array))
    theta, lam = near_start(dense)
    there = thin.theta(*dense.coefficients(theta))
    np.testing.assert_allclose(there, theta, atol=1e-11)
    for ours, theirs in zip(numbers(dense, theta, lam), numbers(thin, there, lam), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-11)
    check(Problem(sparse.csr_array(Z), y, X, family=name))


def test_weights_are_repetitions(glm: Family, draw) -> None:
    Z, y, X = draw(glm, n=80, q=4)
    times = np.random.default_rng(7).integers(1, 4, 80)
    weighted = prepare(Problem(Z, y, X, family=glm, weight=times.astype(float)))
    repeated = prepare(Problem(*(np.repeat(part, times, axis=0) for part in (Z, y, X)), family=glm))
    theta, lam = near_start(weighted)
    there = repeated.theta(*weighted.coefficients(theta))
    np.testing.assert_allclose(there, theta, atol=1e-10)
    for ours, theirs in zip(numbers(weighted, theta, lam), numbers(repeated, there, lam), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)


def test_the_scale_of_weights_does_not_matter(draw) -> None:
    Z, y, X = draw(family("poisson"), n=80, q=4)
    weight = np.random.default_rng(7).random(80)
    one, other = (prepare(Problem(Z, y, X, family="poisson", weight=s * weight)) for s in (1.0, 1e6))
    theta, lam = near_start(one)
    for a, b in zip(numbers(one, theta, lam), numbers(other, theta, lam), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_an_offset_is_a_feature_with_coefficient_one(draw) -> None:
    Z, y, X = draw(family("poisson"), n=80, q=4)
    exposure = np.log(np.random.default_rng(8).uniform(0.5, 2.0, 80))
    with_offset = prepare(Problem(Z, y, X, family="poisson", offset=exposure))
    as_feature = prepare(Problem(np.column_stack([Z, exposure]), y, X, family="poisson"))
    theta, _ = near_start(with_offset)
    intercept, coef = with_offset.coefficients(theta)
    there = as_feature.theta(intercept, np.column_stack([coef, [[1.0]]]))
    a, b = with_offset.objective.values(theta), as_feature.objective.values(there)
    assert a.loss == pytest.approx(b.loss, rel=1e-11)
    np.testing.assert_allclose(a.c, b.c, atol=1e-12)


def test_whitened_features_have_unit_covariance(draw) -> None:
    Z, y, X = draw(family("gaussian"), n=200, q=5)
    prepared = prepare(Problem(Z * 10.0 ** np.arange(-4, 6, 2) + 7.0, y, X))
    hessian = prepared.objective.model(prepared.objective.start.theta, np.zeros(3)).H
    np.testing.assert_allclose(hessian, np.eye(6), atol=1e-10)


def test_the_start_is_the_feasible_intercept_only_model(glm: Family, draw) -> None:
    Z, y, X = draw(glm, n=100, q=4)
    prepared = prepare(Problem(Z, y, X, family=glm))
    start = prepared.objective.start
    values = prepared.objective.values(start.theta)
    assert np.abs(values.c).max() < 1e-13 and values.spread < 1e-7
    assert values.loss == pytest.approx(start.loss, rel=1e-12)
    intercept, coef = prepared.coefficients(start.theta)
    assert glm.activation(intercept)[0] == pytest.approx(y.mean(), rel=1e-12)
    np.testing.assert_allclose(coef, 0.0, atol=1e-15)
    model = prepared.objective.model(start.theta, np.zeros(3))
    np.testing.assert_allclose(prepared.objective.start_model().H, model.H, rtol=1e-9, atol=1e-10)
    assert abs(model.g[0]) < 1e-12  # the intercept is optimal already


@pytest.mark.parametrize("l2", [0.0, 0.5])
@pytest.mark.parametrize("name", ["binomial", "multinomial"])
def test_coefficients_and_theta_are_inverse(name: str, l2: float, draw) -> None:
    Z, y, X = draw(family(name), n=100, q=4)
    prepared = prepare(Problem(Z * np.array([1.0, 1e3, 1e-3, 1.0]) + 5.0, y, X, family=name, l2=l2))
    theta, _ = near_start(prepared)
    np.testing.assert_allclose(prepared.theta(*prepared.coefficients(theta)), theta, atol=1e-9)


def test_without_the_constraint_the_loss_is_the_same(draw) -> None:
    Z, y, X = draw(family("binomial"), n=100, q=4)
    prepared = prepare(Problem(Z, y, X, family="binomial"))
    theta, _ = near_start(prepared)
    free = prepared.objective.unconstrained()
    assert free.n_constraints == 0 and prepared.objective.n_constraints == 3
    a, b = free.model(theta, np.zeros(0)), prepared.objective.model(theta, np.zeros(3))
    assert a.loss == b.loss and a.c.shape == (0,) and a.J.shape == (0, 5)
    np.testing.assert_allclose(a.g, b.g, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(a.H, b.H, rtol=1e-12, atol=1e-15)


def test_spread_is_the_standard_deviation_of_the_predictions(draw) -> None:
    Z, y, X = draw(family("poisson"), n=100, q=4)
    prepared = prepare(Problem(Z, y, X, family="poisson"))
    theta, _ = near_start(prepared)
    intercept, coef = prepared.coefficients(theta)
    assert prepared.objective.values(theta).spread == pytest.approx(np.exp(intercept + Z @ coef[0]).std(), rel=1e-10)


@pytest.mark.parametrize("n", [80, 60_000], ids=["one block", "several blocks"])
@pytest.mark.parametrize("call", ["values", "model"])
def test_far_outside_the_loss_is_infinite_and_nothing_warns(glm: Family, call: str, n: int, draw) -> None:
    """A line search steps back from such a point, so it must be told in silence."""
    Z, y, X = draw(glm, n=n, q=4)
    objective = prepare(Problem(Z, y, X, family=glm)).objective
    theta = objective.start.theta.copy()
    theta[0] += 2000.0
    theta[1] += 300.0
    point = objective.values(theta) if call == "values" else objective.model(theta, np.full(3, 0.1))
    bounded = glm.name in ("gaussian", "binomial", "negative_binomial", "gamma") and glm.activation.domain[1] == np.inf
    assert not np.isnan(point.loss)
    assert point.loss == np.inf or (bounded and point.loss > objective.start.loss)


def test_objectives_are_records(draw) -> None:
    Z, y, X = draw(family("gaussian"), n=50, q=4)
    objective = prepare(Problem(Z, y, X)).objective
    assert replace(objective, n_basis=1).n_constraints == 1
    with pytest.raises(AttributeError):
        objective.n_basis = 0
