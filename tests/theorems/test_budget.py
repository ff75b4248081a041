"""A budget: the smallest loss of all models whose covariance with the protected columns has at most a given length."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import NonlinearConstraint, minimize

import setsquare as sq
from setsquare._typing import Array
from setsquare.glm.budget import follow, soften
from setsquare.glm.budget_steps import cheapest_target
from setsquare.glm.kkt_inverse import Inverse
from setsquare.glm.leave_one_out import tally_rows
from setsquare.glm.newton import Settings
from setsquare.glm.solver import fit_rows, solve
from setsquare.glm.sqp import solve_sqp

FAMILIES = ("binomial", "poisson", "gaussian")


def _draw(family: str, n: int = 300, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=n), rng.integers(0, 2, n)])
    Z = np.column_stack([X[:, 0] + rng.normal(size=n), X[:, 1] + rng.normal(size=n), rng.normal(size=(n, 2))])
    eta = 0.5 * Z[:, 0] - 0.8 * Z[:, 1] + 0.4 * Z[:, 2]
    if family == "binomial":
        return Z, (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(float), X
    return Z, rng.poisson(np.exp(0.5 * eta)).astype(float) if family == "poisson" else eta + rng.normal(size=n), X


def _basis(X: Array) -> Array:
    return np.linalg.qr(X - X.mean(axis=0))[0] * np.sqrt(len(X))


def _mean(family: str, eta: Array) -> Array:
    return {"binomial": lambda e: 1.0 / (1.0 + np.exp(-e)), "poisson": np.exp, "gaussian": lambda e: e}[family](eta)


def _loss(family: str, y: Array, eta: Array) -> float:
    potential = {"binomial": lambda e: np.logaddexp(0.0, e), "poisson": np.exp, "gaussian": lambda e: 0.5 * e * e}
    return float(np.mean(potential[family](eta) - y * eta))


def _reference(family: str, Z: Array, y: Array, Q: Array, radius: float) -> float:
    """Smallest loss by a general optimiser that knows nothing of the library."""
    A = np.column_stack([np.ones(len(y)), Z])
    slopes = {"binomial": lambda m: m * (1.0 - m), "poisson": lambda m: m, "gaussian": np.ones_like}[family]

    def covariance(beta: Array) -> Array:
        return np.asarray(Q.T @ _mean(family, A @ beta) / len(y))

    def gradient(beta: Array) -> Array:
        mean = _mean(family, A @ beta)
        return np.asarray(2.0 * covariance(beta) @ ((Q * slopes(mean)[:, None]).T @ A) / len(y))

    bound = NonlinearConstraint(lambda b: covariance(b) @ covariance(b), -np.inf, radius**2, jac=gradient)
    start = np.zeros(A.shape[1])
    found = minimize(
        lambda b: _loss(family, y, A @ b),
        start,
        jac=lambda b: A.T @ (_mean(family, A @ b) - y) / len(y),
        constraints=[bound],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return float(found.fun)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", [0.1, 0.5, 0.9])
def test_loss_is_the_smallest_within_the_radius(family: str, budget: float) -> None:
    Z, y, X = _draw(family)
    Q, problem = _basis(X), sq.Problem(Z, y, X, family=family)
    plain = solve(sq.Problem(Z, y, None, family=family))
    radius = budget * np.linalg.norm(Q.T @ _mean(family, Z @ plain.coef[0] + plain.intercept[0]) / len(y))
    found = solve(problem, budget=budget)
    eta = Z @ found.coef[0] + found.intercept[0]
    assert np.linalg.norm(Q.T @ _mean(family, eta) / len(y)) == pytest.approx(radius, rel=1e-6)
    assert _loss(family, y, eta) == pytest.approx(_reference(family, Z, y, Q, radius), abs=1e-8)
    assert found.certificate.is_kept and found.certificate.is_optimal and not found.certificate.is_orthogonal


@pytest.mark.parametrize("family", FAMILIES)
def test_path_is_monotone_from_the_orthogonal_to_the_plain_model(family: str) -> None:
    Z, y, X = _draw(family)
    problem = sq.Problem(Z, y, X, family=family)
    exact, plain = solve(problem), solve(sq.Problem(Z, y, None, family=family))
    path = [solve(problem, budget=t) for t in np.linspace(0.0, 1.0, 12)]
    losses = [one.certificate.loss for one in path]
    assert exact.certificate.loss > plain.certificate.loss + 1e-3  # there is something to trade
    assert (np.diff(losses) < 0.0).all()
    assert np.abs(path[0].coef - exact.coef).max() < 1e-6
    assert np.abs(path[-1].coef - plain.coef).max() < 1e-6
    near = solve(problem, budget=1e-9), solve(problem, budget=1.0 - 1e-9)
    assert near[0].certificate.loss == pytest.approx(exact.certificate.loss, abs=1e-6)
    assert np.abs(near[1].coef - plain.coef).max() < 1e-6


def test_covariance_turns_where_that_is_cheaper() -> None:
    """The loss is below that of ``c = budget * c_plain``, whose covariance has the same length."""
    Z, y, X = _draw("binomial")
    problem = sq.Problem(Z, y, X, family="binomial")
    found = fit_rows(problem, "sqp", Settings())
    objective, plain = found.prepared.objective, solve_sqp(found.prepared.objective.unconstrained(), None, Settings())
    target = 0.3 * objective.values(plain.theta).c
    fixed = solve_sqp(objective.aimed(target), None, Settings())
    turned = solve(problem, budget=0.3).certificate.loss
    assert turned < fixed.model.loss - 1e-6


def test_price_is_the_loss_per_unit_of_covariance() -> None:
    Z, y, X = _draw("poisson")
    found = fit_rows(sq.Problem(Z, y, X, family="poisson"), "sqp", Settings())
    budgets = [0.0, 0.3999, 0.4, 0.4001, 1.0]
    path = follow(found.prepared.objective, found.end, budgets, solve_sqp, Settings())
    change = (path[3].end.model.loss - path[1].end.model.loss) / (path[3].covariance - path[1].covariance)
    assert path[2].slope == pytest.approx(-change, rel=1e-5)
    assert path[-1].slope == 0.0 and path[0].slope > path[2].slope > 0.0


def test_cheapest_target_solves_its_trust_region_problem() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        A = rng.normal(size=(3, 3))
        corner, free, radius = -(A @ A.T), rng.normal(size=3), 0.1 * rng.random()
        target, price = cheapest_target(free, corner, radius)
        assert np.linalg.norm(target) <= radius * (1.0 + 1e-12) and price >= 0.0
        assert np.abs(free + corner @ target - price * target).max() < 1e-9 * (1.0 + price)
        draws = rng.normal(size=(2000, 3))
        draws *= radius / np.linalg.norm(draws, axis=1)[:, None]
        losses = -draws @ free - 0.5 * np.sum((draws @ corner) * draws, axis=1)
        assert -target @ free - 0.5 * target @ corner @ target <= losses.min() + 1e-12


def test_softened_inverse_is_that_of_the_matrix() -> None:
    rng = np.random.default_rng(2)
    A, J = rng.normal(size=(5, 5)), rng.normal(size=(2, 5))
    H = A @ A.T
    whole = np.linalg.inv(np.block([[H, J.T], [J, np.zeros((2, 2))]]))
    values, vectors = np.linalg.eigh(whole[:5, :5])
    L = vectors * np.sqrt(np.maximum(values, 0.0))
    inverse = Inverse(L[None], whole[:5, 5:].reshape(1, 5, 1, 2), whole[5:, 5:].reshape(1, 2, 1, 2))
    for price in (0.01, 1.0, 50.0):
        soft = soften(inverse, price)
        expected = np.linalg.inv(np.block([[H, J.T], [J, -np.eye(2) / price]]))
        root = soft.root[0]
        assert np.abs(root @ root.T - expected[:5, :5]).max() < 1e-10
        assert np.abs(soft.cross.reshape(5, 2) - expected[:5, 5:]).max() < 1e-10
        assert np.abs(soft.corner.reshape(2, 2) - expected[5:, 5:]).max() < 1e-10


def test_leave_one_out_predictions_go_from_those_of_the_orthogonal_to_those_of_the_plain_fit() -> None:
    Z, y, X = _draw("gaussian", n=80)
    found = fit_rows(sq.Problem(Z, y, X, family="gaussian"), "sqp", Settings())
    ends = follow(found.prepared.objective, found.end, [0.0, 1.0], solve_sqp, Settings())
    first, last = (tally_rows(one.objective, one.end, one.inverse())[1].eta[:, 0] for one in ends)
    A = np.column_stack([np.ones(80), Z])
    for i in (0, 17, 63):
        rest = np.arange(80) != i
        plain = A[i] @ np.linalg.lstsq(A[rest], y[rest], rcond=None)[0]
        again = solve(sq.Problem(Z[rest], y[rest], X[rest], family="gaussian"))
        assert last[i] == pytest.approx(plain, abs=1e-8)
        assert first[i] == pytest.approx(float(Z[i] @ again.coef[0] + again.intercept[0]), abs=1e-8)


def test_leave_one_out_at_a_fixed_price_agrees_with_refits() -> None:
    """Without a row, the fit minimises ``loss + price/2 |c|^2`` of the others."""
    Z, y, X = _draw("gaussian", n=80)
    found = fit_rows(sq.Problem(Z, y, X, family="gaussian"), "sqp", Settings())
    spent = follow(found.prepared.objective, found.end, [0.4], solve_sqp, Settings())[0]
    eta = tally_rows(spent.objective, spent.end, spent.inverse())[1].eta[:, 0]
    whole = _basis(X)
    A, fitted = np.column_stack([np.ones(80), Z]), found.prepared.basis
    assert fitted is not None
    for i in (3, 40):
        rest = np.arange(80) != i
        Q = whole[rest] - whole[rest].mean(axis=0)
        J = Q.T @ A[rest] / 79
        H = A[rest].T @ A[rest] / 79 + spent.price * J.T @ J
        again = float(A[i] @ np.linalg.solve(H, A[rest].T @ y[rest] / 79))
        assert eta[i] == pytest.approx(again, abs=2e-4)
        assert abs(float(A[i] @ np.linalg.lstsq(A, y, rcond=None)[0]) - again) > 1e-2
