"""As many protected columns as features or rows: correlations within chance instead of zero."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import setsquare as sq
from setsquare._typing import Array
from setsquare.errors import InputError, NotOrthogonalError
from setsquare.glm.box import box_limit, solve_box
from setsquare.glm.problem import Problem


def _draw(n: int, q: int, p: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Features, of which three follow a protected column each, protected columns, and an outcome of six features."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    Z = rng.normal(size=(n, q))
    Z[:, :3] += X[:, :3]
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-0.7 * Z[:, :6].sum(axis=1)))).astype(float)
    return Z, X, y


def _largest(X: Array, p: Array) -> float:
    Xc, pc = X - X.mean(axis=0), p - p.mean()
    return float(np.max(np.abs(Xc.T @ pc) / (np.linalg.norm(Xc, axis=0) * np.linalg.norm(pc))))


@pytest.mark.parametrize(("n", "q", "p"), [(500, 10, 40), (300, 10, 400), (200, 8, 1000)])
def test_every_correlation_is_within_the_limit_and_the_certificate_says_that_it_is_not_zero(
    n: int, q: int, p: int
) -> None:
    Z, X, y = _draw(n, q, p)
    with pytest.raises(InputError):  # the exact constraint leaves constants only
        sq.OrthogonalGLMClassifier().fit(Z, y, protected=X)
    model = sq.OrthogonalGLMClassifier(relax="box").fit(Z, y, protected=X)
    predicted = model.predict_proba(Z)[:, 1]
    certificate = model.solution_.certificate
    limit = np.sqrt(2.0 * np.log(p) / n)
    assert certificate.box == pytest.approx(limit, rel=1e-12)
    assert _largest(X, predicted) <= limit * (1.0 + 1e-9)
    assert certificate.max_correlation == pytest.approx(_largest(X, predicted), rel=1e-6)
    assert not certificate.is_orthogonal and certificate.is_kept and certificate.is_optimal
    assert str(certificate).splitlines()[1].split()[-1] == "NO"
    plain = solve_box(Problem(Z, y, family="binomial"), X, [f"x{j}" for j in range(p)], factor=50.0)
    before = 1.0 / (1.0 + np.exp(-Z @ plain.coef[0] - plain.intercept[0]))
    assert _largest(X, before) > 1.1 * limit  # did not hold before
    assert certificate.loss < certificate.loss_null - 0.02  # and the predictions are not constant


@pytest.mark.parametrize("family", ["gaussian", "poisson", "binomial"])
def test_the_optimum_is_that_of_a_general_solver(family: str) -> None:
    Z, X, y = _draw(200, 6, 12)
    y = y + 0.5 * Z[:, 4] if family == "gaussian" else y
    found = solve_box(Problem(Z, y, family=family), X, [f"x{j}" for j in range(12)])
    gamma = np.concatenate([found.intercept, found.coef[0]])
    D = np.column_stack([np.ones(len(Z)), Z])
    h = {"gaussian": lambda e: e, "poisson": np.exp, "binomial": lambda e: 1.0 / (1.0 + np.exp(-e))}[family]
    H = {"gaussian": lambda e: e**2 / 2.0, "poisson": np.exp, "binomial": lambda e: np.logaddexp(0.0, e)}[family]
    Xs = (X - X.mean(axis=0)) / X.std(axis=0)
    side = box_limit(200, 12) * h(D @ gamma).std()

    def slack(g: Array) -> Array:
        c = Xs.T @ h(D @ g) / len(Z)
        return np.concatenate([side - c, side + c])

    reference = minimize(
        lambda g: np.mean(H(D @ g) - y * (D @ g)),
        np.zeros(7),
        jac=lambda g: D.T @ (h(D @ g) - y) / len(Z),
        constraints={"type": "ineq", "fun": slack},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    ours = np.mean(H(D @ gamma) - y * (D @ gamma))
    assert slack(gamma).min() >= -1e-9
    assert ours <= reference.fun + 2e-3 * abs(reference.fun)  # our side is stricter by up to 0.1 %
    np.testing.assert_allclose(gamma, reference.x, atol=0.02)


def test_multipliers_belong_to_bounds_that_are_reached() -> None:
    Z, X, y = _draw(400, 8, 100)
    found = solve_box(Problem(Z, y, family="binomial"), X, [f"x{j}" for j in range(100)])
    p = 1.0 / (1.0 + np.exp(-Z @ found.coef[0] - found.intercept[0]))
    r = np.array([np.corrcoef(x, p)[0, 1] for x in X.T])
    held = found.multipliers[:, 0] != 0.0
    assert 0 < held.sum() == found.certificate.n_at_limit < 8
    np.testing.assert_allclose(np.abs(r[held]), found.certificate.box, rtol=2e-3)
    assert (np.sign(found.multipliers[held, 0]) == np.sign(r[held])).all()  # the loss would fall beyond the bound
    assert (np.abs(r[~held]) <= found.certificate.box).all()


def test_features_that_follow_the_protected_columns_are_refused_with_the_size() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 5))
    Z = X[:, :2] + 0.5 * rng.normal(size=(1000, 2))
    y = (rng.random(1000) < 1.0 / (1.0 + np.exp(-Z.sum(axis=1)))).astype(float)
    with pytest.raises(NotOrthogonalError, match=r"below 0\.057: the features leave about 0\.\d\d") as error:
        sq.OrthogonalGLMClassifier(relax="box").fit(Z, y, protected=X)
    assert 0.5 < float(str(error.value).split("about ")[1][:4]) < 0.95
    wide = sq.OrthogonalGLMClassifier(relax={"box": 15.0}).fit(Z, y, protected=X)
    assert wide.solution_.certificate.is_kept
