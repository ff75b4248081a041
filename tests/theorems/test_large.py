"""THEORY §2 (Corollary 4) by products alone: ``large`` meets the constraint and finds the optimum of ``sqp``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import sparse

from setsquare import datasets, tables
from setsquare.families import Family, family
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Solution, Status, solve


def linear_predictors(found: Solution, problem: Problem) -> np.ndarray:
    eta = np.asarray(problem.features @ found.coef.T) + found.intercept
    return eta if problem.offset is None else eta + problem.offset.reshape(len(eta), -1)


def largest_correlation(found: Solution, problem: Problem) -> float:
    """Largest |corr| of a prediction with a protected column, from coefficients and columns as they were given."""
    w = problem.mean_weight()
    yhat = problem.family.activation(linear_predictors(found, problem))
    yhat, X = yhat - w @ yhat, problem.protected - w @ problem.protected
    cov = X.T @ (w[:, None] * yhat)
    return float(np.abs(cov / np.sqrt(np.outer(w @ X**2, w @ yhat**2))).max())


def assert_same_optimum(problem: Problem, *, tol: float = 1e-8, coefficients: float = 1e-6) -> Solution:
    free = solve(Problem(problem.features, problem.outcome, None, problem.family, problem.weight, problem.offset))
    exact, found = solve(problem, "sqp", tol=tol), solve(problem, "large", tol=tol)
    assert largest_correlation(free, problem) > 0.02
    assert largest_correlation(found, problem) < 1e-8
    assert found.status is Status.CONVERGED and found.solver == "large"
    certificate = found.certificate
    assert certificate.is_orthogonal and certificate.is_optimal and certificate.kkt_residual <= tol
    assert certificate.loss == pytest.approx(exact.certificate.loss, rel=1e-8)
    assert certificate.loss_unconstrained == pytest.approx(exact.certificate.loss_unconstrained, rel=1e-6)
    np.testing.assert_allclose(linear_predictors(found, problem), linear_predictors(exact, problem), atol=coefficients)
    return found


def test_every_family_is_solved_as_by_sqp(glm: Family, draw) -> None:
    problem = Problem(*draw(glm), family=glm)
    found, exact = assert_same_optimum(problem), solve(problem)
    np.testing.assert_allclose(found.coef, exact.coef, atol=1e-6)
    np.testing.assert_allclose(found.multipliers, exact.multipliers, atol=1e-5)


@pytest.mark.parametrize("classes", [3, 5])
def test_several_classes_are_solved_as_by_sqp(classes: int, draw) -> None:
    glm = family("multinomial")
    assert_same_optimum(Problem(*draw(glm, classes=classes), family=glm))


@pytest.mark.parametrize("name", ["binomial", "poisson", "gamma", "multinomial"])
@pytest.mark.parametrize("extra", ["weight", "offset", "l2", "sparse", "scales", "half precision"])
def test_whatever_the_problem_has_beside(name: str, extra: str, draw) -> None:
    glm, rng = family(name), np.random.default_rng(1)
    Z, y, X = draw(glm, n=500, q=12)
    more: dict = {}
    if extra == "weight":
        more["weight"] = rng.uniform(0.0, 2.0, len(y)) * (rng.random(len(y)) < 0.9)
    elif extra == "offset":
        more["offset"] = 0.3 * rng.normal(size=(len(y), 3) if glm.is_vector else len(y))
    elif extra == "l2":
        more["l2"] = 0.05
    elif extra == "sparse":
        Z = sparse.csr_array(np.where(np.abs(Z) > 0.5, Z, 0.0))
    elif extra == "scales":
        Z = Z * 10.0 ** rng.uniform(-4.0, 4.0, 12) + 10.0 ** rng.uniform(-4.0, 4.0, 12)
    else:
        Z = Z.astype(np.float16)
    assert_same_optimum(Problem(Z, y, X, family=glm, **more))


@pytest.mark.parametrize("name", ["binomial", "poisson", "multinomial"])
def test_collinear_one_hot_columns_need_no_reference_level(name: str, draw) -> None:
    """Each categorical's columns sum to one: coefficients are not determined, predictions are."""
    Z, y, X = draw(family(name), n=800)
    levels = np.digitize(Z, [-1.0, -0.3, 0.3, 1.0])
    full = np.concatenate([levels == level for level in range(5)], axis=1).astype(float)
    found = assert_same_optimum(Problem(sparse.csr_array(full), y, X, family=name))
    assert found.certificate.rank_features is None and np.linalg.matrix_rank(full) < full.shape[1]
    assert abs(found.certificate.min_curvature) < 1e-12  # nothing moves along those directions


def test_features_that_are_nearly_collinear_are_followed_to_the_end() -> None:
    """Hilbert's matrix as covariance: condition 1e9, far beyond what plain conjugate gradients get through."""
    rng = np.random.default_rng(0)
    i = np.arange(1.0, 121.0)
    covariance = 1.0 / (i[:, None] + i - 1.0) + 1e-9 * np.eye(120)
    Z = rng.normal(size=(2000, 120)) @ np.linalg.cholesky(covariance).T
    assert np.linalg.cond(covariance) > 1e9
    X = Z[:, :1] + rng.normal(size=(2000, 1))
    y = (rng.random(2000) < 1.0 / (1.0 + np.exp(-3.0 * Z[:, 0] - 20.0 * Z[:, 50]))).astype(float)
    assert_same_optimum(Problem(Z, y, X, family="binomial"))


def test_more_features_than_rows() -> None:
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(150, 400))
    X = Z[:, :1] + rng.normal(size=(150, 1))
    y = (rng.random(150) < 1.0 / (1.0 + np.exp(-Z[:, 0]))).astype(float)
    assert_same_optimum(Problem(Z, y, X, family="binomial", l2=0.01))


LOADERS: dict[str, tuple[str, Callable[[], datasets.Dataset]]] = {
    "adult": ("adult", datasets.load_adult),
    "bank": ("bank", datasets.load_bank),
    "compas": ("compas", datasets.load_compas),
    "health": ("health_retirement", datasets.load_health_retirement),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_benchmark_sets_have_the_same_optimum(name: str) -> None:
    file, load = LOADERS[name]
    if not datasets.available(file):
        pytest.skip(f"the data set {file} is not on this machine: set SETSQUARE_DATA")
    data = load()
    Z, X = (tables.learn(table).apply(table) for table in (data.features_table(), data.protected_table()))
    problem = Problem(sparse.csr_array(Z.values), data.y, X.values, family=data.family, feature_names=Z.names)
    exact, found = solve(problem, "sqp"), solve(problem, "large")
    assert largest_correlation(found, problem) < 1e-8
    assert found.certificate.is_orthogonal and found.certificate.is_optimal
    assert found.status is exact.status  # a coefficient of adult runs away: both say so, and name it
    assert found.certificate.flat_features == exact.certificate.flat_features
    flat = found.status is Status.FLAT
    assert found.certificate.loss == pytest.approx(exact.certificate.loss, rel=3e-8 if flat else 1e-10)
    if not flat:
        np.testing.assert_allclose(found.coef, exact.coef, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rank", [40, 150])
def test_curvature_and_rank_lie_between_the_bounds_of_the_certificate(rank: int, seed: int) -> None:
    """Lanczos gives an upper bound on the smallest curvature, and a lower one with a probability of 99 %."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1500, 1))
    Z = (rng.normal(size=(1500, rank)) + 0.5 * X) @ rng.normal(size=(rank, 150)) if rank < 150 else None
    Z = rng.normal(size=(1500, 150)) * rng.uniform(0.5, 2.0, 150) + 0.5 * X if Z is None else Z
    y = (Z[:, 0] / Z[:, 0].std() + rng.logistic(size=1500) > 0.0).astype(float)
    c = solve(Problem(Z, y, X, "binomial"), "large").certificate
    assert c.min_curvature_low is not None and c.rank_features_low is not None and c.rank_features is None
    assert 0 < c.rank_features_low <= rank
    # The same in the same coordinates, standardised features, from the dense Hessian.
    scaled = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    exact = solve(Problem(scaled, y, X, "binomial"), "sqp", max_iter=200)
    p = family("binomial").activation(linear_predictors(exact, Problem(scaled, y, X, "binomial")))[:, 0]
    Q = (X[:, 0] - X.mean()) / X.std()
    slope, bend = p * (1.0 - p), p * (1.0 - p) * (1.0 - 2.0 * p)
    A = np.column_stack([np.ones(1500), scaled])
    H = A.T @ ((slope + bend * Q * exact.multipliers[0, 0])[:, None] * A) / 1500
    J = (slope * Q) @ A / 1500
    null = np.linalg.svd(J[None])[2][1:]
    lowest = np.linalg.eigvalsh(null @ H @ null.T)[0] / (y.mean() * (1.0 - y.mean()))
    assert c.min_curvature_low <= lowest + 1e-9 and lowest <= c.min_curvature + 1e-9
    text = str(c)
    assert "at most" in text and "at least (99 %)" in text and f"{c.rank_features_low} at least, 150 at most" in text
