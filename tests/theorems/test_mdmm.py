"""Differential multiplier methods with the gradient of the printed objective: update, accuracy, and limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit

from setsquare import Problem, solve
from setsquare.errors import InputError
from setsquare.glm import Descent, Status, prepare, searched_rates


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(800, 2))
    Z = X @ rng.normal(size=(2, 4)) + rng.normal(size=(800, 4))
    y = (rng.random(800) < expit(Z[:, 0] - 0.5 * Z[:, 1])).astype(float)
    return Z, y, X


@pytest.mark.parametrize(("solver", "damping"), [("mdmm", 1.0), ("bdmm", 0.0)])
def test_the_steps_follow_the_gradient_of_the_printed_objective(
    data: tuple[np.ndarray, ...], solver: str, damping: float
) -> None:
    """gamma - nu grad E_P and lambda + nu A, with E_P = loss + lambda A + zeta/2 A^2, by numerical gradients."""
    Z, y, X = data
    n, rate, steps = len(y), 0.02, 3
    whole = prepare(Problem(Z, y, X, "binomial")).objective
    Q = np.linalg.qr(X - X.mean(0))[0] * np.sqrt(n)  # orthonormal with unit variances, as the scaling is stated
    W = np.column_stack([np.ones(n), Z]) @ whole.to_raw
    W[:, 1:] -= W[:, 1:].mean(0)

    def objective(theta: np.ndarray, lam: float) -> float:
        eta = W @ theta
        A = float(np.sum((Q.T @ expit(eta)) ** 2)) / n
        return float(np.mean(np.logaddexp(0.0, eta) - y * eta)) + lam * A + 0.5 * damping * A * A

    theta, lam, eye = np.array([np.log(y.mean() / (1 - y.mean())), 0, 0, 0, 0]), 0.0, 1e-5 * np.eye(5)
    for _ in range(steps):
        slope = np.array([(objective(theta + e, lam) - objective(theta - e, lam)) / 2e-5 for e in eye])
        A = float(np.sum((Q.T @ expit(W @ theta)) ** 2)) / n
        theta, lam = theta - rate * slope, lam + rate * A
    found = solve(Problem(Z, y, X, "binomial"), solver, max_iter=steps, descent=Descent(rate=rate))
    np.testing.assert_allclose(found.intercept[0] + Z @ found.coef[0], W @ theta, atol=1e-8)


def test_the_penalty_adds_zeta_a_grad_a_and_not_the_printed_zeta_a(data: tuple[np.ndarray, ...]) -> None:
    """The text adds zeta A to the direction, a number to a vector; the gradient of E_P has zeta A grad A."""
    Z, y, X = data
    Q, zeta, lam = X - X.mean(0), 1.0, 0.3
    gamma, eye = np.array([0.5, -0.4, 0.3, 0.2]), 1e-6 * np.eye(4)

    def parts(gamma: np.ndarray) -> tuple[float, float]:
        eta = Z @ gamma
        return float(np.mean(np.logaddexp(0.0, eta) - y * eta)), float(np.sum((Q.T @ expit(eta) / len(y)) ** 2))

    def slope(value: Callable[[float, float], float]) -> np.ndarray:
        return np.array([(value(*parts(gamma + e)) - value(*parts(gamma - e))) / 2e-6 for e in eye])

    A = parts(gamma)[1]
    plain, penalty = slope(lambda loss, A: loss + lam * A), slope(lambda loss, A: A)
    whole = slope(lambda loss, A: loss + lam * A + 0.5 * zeta * A * A)
    np.testing.assert_allclose(whole, plain + zeta * A * penalty, atol=1e-9)
    assert np.abs(whole - (plain + zeta * A)).max() > 0.5 * zeta * A > 1e-3


def test_minimised_over_lambda_as_printed_the_lagrangian_has_no_lower_bound(data: tuple[np.ndarray, ...]) -> None:
    """E = loss + lambda A falls with -lambda wherever A > 0; the printed update ascends in lambda, which is right."""
    Z, y, X = data
    eta = Z @ np.array([0.5, -0.4, 0.3, 0.2])
    A = float(np.sum(((X - X.mean(0)).T @ expit(eta) / len(y)) ** 2))
    values = [float(np.mean(np.logaddexp(0.0, eta) - y * eta)) + lam * A for lam in (0.0, -1e3, -1e6)]
    assert A > 1e-3 and values[0] > 0.0 > values[1] + 1.0 > values[2] + 1e3


@pytest.mark.parametrize("solver", ["mdmm", "bdmm"])
def test_it_comes_near_and_never_arrives(data: tuple[np.ndarray, ...], solver: str) -> None:
    Z, y, X = data
    problem = Problem(Z, y, X, "binomial")
    exact, found, plain = solve(problem), solve(problem, solver, max_iter=3000), solve(Problem(Z, y, family="binomial"))
    assert abs(found.certificate.loss - exact.certificate.loss) < 5e-3
    assert 1e-4 < found.certificate.max_correlation < 2e-2
    assert found.certificate.max_correlation > 1e4 * exact.certificate.max_correlation
    assert not found.certificate.is_orthogonal and exact.certificate.is_orthogonal
    assert np.abs(np.corrcoef(X[:, 0], expit(Z @ plain.coef[0]))[0, 1]) > 0.1  # there was something to remove


def test_the_search_takes_the_first_stable_rate_and_larger_ones_diverge(data: tuple[np.ndarray, ...]) -> None:
    problem = Problem(*data, "binomial")
    objective = prepare(problem).objective
    first = objective.model(objective.start.theta, np.zeros(objective.n_constraints))
    rates = searched_rates(float(np.linalg.eigvalsh(first.H)[-1]))
    chosen = solve(problem, "mdmm", max_iter=300).trace[-1].length
    k = int(np.argmin(np.abs(np.asarray(rates) - chosen)))
    assert k > 0 and chosen == pytest.approx(rates[k])
    larger = solve(problem, "mdmm", max_iter=300, descent=Descent(rate=rates[k - 1]))
    assert larger.status is Status.STALLED and larger.trace[-1].iteration < 300


def test_a_schedule_scales_the_rate(data: tuple[np.ndarray, ...]) -> None:
    problem = Problem(*data, "binomial")
    half = solve(problem, "mdmm", max_iter=7, descent=Descent(rate=0.02, schedule=lambda step: 0.5))
    same = solve(problem, "mdmm", max_iter=7, descent=Descent(rate=0.01))
    np.testing.assert_allclose(half.coef, same.coef, rtol=1e-12)


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rate": np.inf}, {"damping": -1.0}])
def test_rates_and_dampings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must be a"):
        Descent(**wrong)
