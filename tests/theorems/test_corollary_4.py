"""THEORY §2 (Corollary 4): coefficients whose predictions are orthogonal, optimal among all such, for every family."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize, root
from scipy.special import expit, log_softmax, logit, softmax

from setsquare.families import Family, family
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Status, solve

#: name -> mean, its slope and variance as functions written down here once more, to compare with
MEANS = {
    "identity": (lambda eta: eta, lambda mu, eta: np.ones_like(mu)),
    "sigmoid": (lambda eta: 1.0 / (1.0 + np.exp(-eta)), lambda mu, eta: mu * (1.0 - mu)),
    "exp": (np.exp, lambda mu, eta: mu),
    "exp-below-one": (np.exp, lambda mu, eta: mu),
    "power:1.5": (lambda eta: 4.0 / eta**2, lambda mu, eta: -8.0 / eta**3),
    "power:2.0": (lambda eta: -1.0 / eta, lambda mu, eta: 1.0 / eta**2),
    "negative-binomial:2.0": (lambda eta: 2.0 / np.expm1(-eta), lambda mu, eta: mu + mu**2 / 2.0),
}
VARIANCES = {
    "gaussian": np.ones_like,
    "binomial": lambda mu: mu * (1.0 - mu),
    "poisson": lambda mu: mu,
    "gamma": np.square,
    "tweedie": lambda mu: mu**1.5,
    "negative_binomial": lambda mu: mu + mu**2 / 2.0,
}


def predictions(solution, glm: Family, Z: np.ndarray) -> np.ndarray:
    eta = solution.intercept + Z @ solution.coef.T
    return softmax(eta, axis=1) if glm.is_vector else MEANS[glm.activation.name][0](eta[:, 0])[:, None]


def mean_deviance(glm: Family, y: np.ndarray, yhat: np.ndarray) -> float:
    if glm.is_vector:
        return float(-2.0 * np.mean(np.log(yhat[np.arange(len(y)), y.astype(int)])))
    return glm.deviance(y, yhat[:, 0]) / len(y)


def correlations(yhat: np.ndarray, X: np.ndarray) -> np.ndarray:
    centred, rest = X - X.mean(0), yhat - yhat.mean(0)
    return centred.T @ rest / len(X) / X.std(0)[:, None] / rest.std(0)


def assert_corrected(glm: Family, data) -> None:
    free = solve(Problem(data.Z, data.y, family=glm))
    solution = solve(Problem(data.Z, data.y, data.X, family=glm))
    before, after = predictions(free, glm, data.Z), predictions(solution, glm, data.Z)
    assert np.abs(correlations(before, data.X)).max() > 0.05
    assert np.abs(correlations(after, data.X)).max() < 1e-8
    certificate = solution.certificate
    assert solution.status is Status.CONVERGED
    assert certificate.constraint_residual < 1e-10 and certificate.max_correlation < 1e-8
    assert certificate.kkt_residual < 1e-6 and certificate.min_curvature > -1e-8
    assert certificate.is_orthogonal and certificate.is_optimal
    null = np.bincount(data.y.astype(int)) / len(data.y) if glm.is_vector else np.mean(data.y, keepdims=True)
    deviance, deviance_null = mean_deviance(glm, data.y, after), mean_deviance(glm, data.y, after * 0 + null)
    assert mean_deviance(glm, data.y, before) < deviance < deviance_null
    assert deviance_null - deviance == pytest.approx(2.0 * (certificate.loss_null - certificate.loss), rel=1e-9)
    gap = mean_deviance(glm, data.y, before) - deviance
    assert gap == pytest.approx(2.0 * (certificate.loss_unconstrained - certificate.loss), rel=1e-3)


def test_every_family_meets_its_constraint_and_beats_the_intercept(glm: Family, draw) -> None:
    assert_corrected(glm, draw(glm))


def logistic_slopes(yhat: np.ndarray, X: np.ndarray, *, intercept: bool) -> np.ndarray:
    """Effects in the logistic evaluation model, by its score equations."""
    D = np.column_stack([X, np.ones(len(X))]) if intercept else X
    found = root(lambda b: D.T @ (yhat - expit(D @ b)) / len(D), np.zeros(D.shape[1]), tol=1e-13)
    assert np.abs(found.fun).max() < 1e-11
    return found.x[: X.shape[1]]


def test_without_an_intercept_in_the_evaluation_model_the_constraint_leaves_effects() -> None:
    """The text assumes an evaluation model without intercept; it then holds for centred X only. With one it holds."""
    X, constant = np.array([[1.0], [0.0]]), np.array([0.8, 0.8])
    assert ((X - X.mean(0)).T @ constant).item() == pytest.approx(0.0, abs=1e-15)
    assert logistic_slopes(constant, X, intercept=False) == pytest.approx([logit(0.8)])
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.random(400) < 0.3, rng.normal(1.0, 1.0, 400)]).astype(float)
    Z = X @ rng.normal(size=(2, 4)) + rng.normal(size=(400, 4))
    y = (rng.random(400) < expit(1.0 + Z.sum(1))).astype(float)
    glm = family("binomial")
    free, fitted = (predictions(solve(Problem(Z, y, held, family=glm)), glm, Z)[:, 0] for held in (None, X))
    assert np.abs(logistic_slopes(free, X, intercept=True)).max() > 0.1
    assert np.abs(logistic_slopes(fitted, X, intercept=False)).max() > 0.1  # as printed
    assert np.abs(logistic_slopes(fitted, X, intercept=True)).max() < 1e-8
    assert np.abs(logistic_slopes(fitted, X - X.mean(0), intercept=False)).max() < 1e-8


@pytest.mark.parametrize("classes", [3, 4])
def test_several_classes_meet_their_constraint_and_beat_the_intercept(classes: int, draw) -> None:
    assert_corrected(family("multinomial"), draw(family("multinomial"), classes=classes))


@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
@pytest.mark.parametrize("p", [1, 3])
def test_gaussian_is_least_squares_with_linear_constraints(p: int, weighted: bool, draw) -> None:
    Z, y, X = draw(family("gaussian"))
    X = X[:, :p]
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y)) if weighted else np.ones(len(y))
    design = np.column_stack([np.ones(len(Z)), Z])
    A = ((X - np.average(X, axis=0, weights=weight)) / X.std(0) * weight[:, None]).T @ design
    gram = (design * weight[:, None]).T @ design
    system = np.block([[gram, A.T], [A, np.zeros((p, p))]])
    exact = np.linalg.solve(system, np.concatenate([design.T @ (weight * y), np.zeros(p)]))[: design.shape[1]]
    solution = solve(Problem(Z, y, X, weight=weight if weighted else None))
    found = np.concatenate([solution.intercept, solution.coef[0]])
    np.testing.assert_allclose(found, exact, atol=1e-10)
    assert np.abs(A @ np.linalg.solve(gram, design.T @ (weight * y))).max() > 1.0  # did not hold before


def reference_solution(glm: Family, data) -> float:
    """Mean deviance that scipy's SLSQP reaches from the intercept-only model, with a violation below 1e-9."""
    mean, mean_slope = MEANS[glm.activation.name]
    variance = VARIANCES[glm.name]
    D = np.column_stack([np.ones(len(data.Z)), data.Z])
    Q = np.linalg.qr(data.X - data.X.mean(0))[0] * np.sqrt(len(D))
    n, (_, upper) = len(D), glm.activation.domain

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        eta = np.minimum(D @ theta, upper - 1e-9)
        mu = mean(eta)
        value = 0.5 * mean_deviance(glm, data.y, mu[:, None])
        return value, D.T @ ((mu - data.y) / variance(mu) * mean_slope(mu, eta)) / n

    def constraint(theta: np.ndarray) -> np.ndarray:
        return Q.T @ mean(np.minimum(D @ theta, upper - 1e-9)) / n

    def jacobian(theta: np.ndarray) -> np.ndarray:
        eta = np.minimum(D @ theta, upper - 1e-9)
        return (Q * mean_slope(mean(eta), eta)[:, None]).T @ D / n

    constraints = [{"type": "eq", "fun": constraint, "jac": jacobian}]
    if upper < np.inf:
        constraints.append({"type": "ineq", "fun": lambda t: -1e-6 - D @ t, "jac": lambda t: -D})
    start = np.zeros(D.shape[1])
    start[0] = glm.activation.inverse(np.mean(data.y))
    options = {"maxiter": 500, "ftol": 1e-15}
    found = minimize(loss, start, jac=True, constraints=constraints, method="SLSQP", options=options)
    assert np.abs(constraint(found.x)).max() < 1e-9
    return 2.0 * loss(found.x)[0]


def test_an_independent_solver_finds_the_same_loss(glm: Family, draw) -> None:
    data = draw(glm, n=150, q=5, seed=3)
    solution = solve(Problem(data.Z, data.y, data.X, family=glm))
    ours = mean_deviance(glm, data.y, predictions(solution, glm, data.Z))
    assert ours == pytest.approx(reference_solution(glm, data), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("classes", [3, 4])
def test_an_independent_solver_finds_the_same_loss_for_several_classes(classes: int, draw) -> None:
    Z, y, X = draw(family("multinomial"), n=150, q=5, seed=3, classes=classes)
    D = np.column_stack([np.ones(len(Z)), Z])
    Q = np.linalg.qr(X - X.mean(0))[0] * np.sqrt(len(X))
    one_hot = np.eye(classes)[y.astype(int)]

    def scores(theta: np.ndarray) -> np.ndarray:
        return np.column_stack([np.zeros(len(D)), D @ theta.reshape(classes - 1, -1).T])

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        logs = log_softmax(scores(theta), axis=1)
        return -float(np.sum(one_hot * logs)) / len(D), ((np.exp(logs) - one_hot)[:, 1:].T @ D).ravel() / len(D)

    def constraint(theta: np.ndarray) -> np.ndarray:
        return (Q.T @ softmax(scores(theta), axis=1)[:, 1:]).T.ravel() / len(D)

    start = np.zeros((classes - 1) * D.shape[1])
    found = minimize(
        loss,
        start,
        jac=True,
        constraints=[{"type": "eq", "fun": constraint}],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-15},
    )
    assert np.abs(constraint(found.x)).max() < 1e-9
    solution = solve(Problem(Z, y, X, family="multinomial"))
    assert solution.certificate.loss == pytest.approx(found.fun, abs=1e-6)
    np.testing.assert_allclose(solution.coef.sum(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize("name", ["binomial", "poisson"])
def test_the_squared_constraint_has_no_gradient_where_it_holds(name: str, draw) -> None:
    """So its multiplier is undefined on the feasible set, while the vector constraint has a Jacobian of full rank."""
    Z, y, X = draw(family(name))
    problem = Problem(Z, y, X, family=name)
    solution, prepared = solve(problem), prepare(problem)
    start = prepared.theta(*(part for part in (solve(Problem(Z, y, family=name)).intercept, np.zeros((1, 6)))))
    theta = prepared.theta(solution.intercept, solution.coef)
    free = solve(Problem(Z, y, family=name))
    unconstrained = prepared.theta(free.intercept, free.coef)
    for point, feasible in ((theta, True), (unconstrained, False)):
        model = prepared.objective.model(point, np.zeros(3))
        singular = np.linalg.svd(model.J, compute_uv=False)
        squared = 2.0 * model.J.T @ model.c
        assert singular[-1] > 1e-2 * singular[0]  # full rank in both points
        assert (np.abs(squared).max() < 1e-11) == feasible
        assert np.abs(model.g).max() > 1e-3 or not feasible  # the loss still falls: some multiplier must hold it
    assert np.abs(prepared.objective.values(start).c).max() < 1e-14  # the intercept-only model is feasible


@pytest.mark.parametrize("name", ["binomial", "poisson"])
def test_mdmm_stalls_with_a_residual_orders_of_magnitude_larger(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    problem = Problem(Z, y, X, family=name)
    exact, paper = solve(problem), solve(problem, "mdmm", max_iter=3000)
    free = solve(Problem(Z, y, family=name))
    assert paper.status in (Status.MAX_ITER, Status.CONVERGED)
    assert exact.certificate.constraint_residual < 1e-10 < 1e-5 < paper.certificate.constraint_residual
    assert paper.certificate.max_correlation > 1e4 * exact.certificate.max_correlation
    assert not paper.certificate.is_orthogonal
    # it does work towards the constraint, only too slowly
    before = np.abs(correlations(predictions(free, problem.family, Z), X)).max()
    assert paper.certificate.max_correlation < before


def test_the_constraint_costs_something_only_where_protected_columns_matter() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(2000, 1))
    Z = rng.normal(size=(2000, 4))
    Z -= (X - X.mean()) @ np.linalg.lstsq(X - X.mean(), Z, rcond=None)[0]
    y = Z[:, 0] + rng.normal(size=2000)
    exact = solve(Problem(Z, y, X)).certificate
    assert exact.cost == pytest.approx(0.0, abs=1e-12)
    leaking = solve(Problem(Z + X, y + 2.0 * X[:, 0], X)).certificate
    assert 0.01 < leaking.cost < 1.0 and leaking.is_orthogonal
