"""Certificates against what is computed from the returned coefficients alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.special import expit

import setsquare as sq
from setsquare.glm.certify import _status
from setsquare.glm.influence import Tally
from setsquare.glm.solution import Status
from setsquare.glm.solver import Solution


def draw(n: int = 400, q: int = 4, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.3, rng.normal(size=n)]).astype(float)
    Z = X @ rng.normal(size=(2, q)) + rng.normal(size=(n, q))
    signal = Z @ rng.normal(size=q)
    return Z, X, (rng.random(n) < expit(signal)).astype(float), rng.poisson(np.exp(0.3 * signal)).astype(float)


MEANS: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]] = {
    "binomial": lambda eta: (
        expit(eta),
        expit(eta) * expit(-eta),
        expit(eta) * expit(-eta) * (1.0 - 2.0 * expit(eta)),
    ),
    "poisson": lambda eta: (np.exp(eta),) * 3,
}


def curvature(found: Solution, Z: np.ndarray, X: np.ndarray, y: np.ndarray, family: str) -> tuple[float, float]:
    """Smallest curvature of the Lagrangian along the constraint, and without its multipliers."""
    n = len(Z)
    U = np.linalg.svd(Z - Z.mean(0), full_matrices=False)[0] * np.sqrt(n)  # whitened features
    D = np.column_stack([np.ones(n), U])
    Xc = X - X.mean(0)
    eta = found.intercept + Z @ found.coef[0]
    mean, slope, bend = MEANS[family](eta)
    gradient, J = D.T @ (mean - y) / n, (Xc * slope[:, None]).T @ D / n
    lam = np.linalg.lstsq(J.T, -gradient, rcond=None)[0]
    assert np.abs(gradient + J.T @ lam).max() < 1e-6 and np.abs(Xc.T @ mean).max() / n < 1e-6
    null = null_space(J)
    unit = MEANS[family](np.log(y.mean() / (1 - y.mean())) if family == "binomial" else np.log(y.mean()))[1]
    both = []
    for weight in (slope + bend * (Xc @ lam), slope):
        both.append(np.linalg.eigvalsh(null.T @ (D * weight[:, None]).T @ D @ null / n)[0] / unit)
    return both[0], both[1]


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_the_smallest_curvature_is_that_of_the_lagrangian_at_the_final_multipliers(family: str) -> None:
    Z, X, label, count = draw()
    y = label if family == "binomial" else count
    found = sq.solve(sq.Problem(Z, y, X, family=family))
    expected, plain = curvature(found, Z, X, y, family)
    assert abs(plain - expected) > 0.01 * expected  # the multipliers matter here
    assert found.certificate.min_curvature == pytest.approx(expected, rel=1e-4)


def test_numbers_of_a_certificate_are_those_of_the_predictions() -> None:
    Z, X, y, _ = draw()
    names = tuple("abcd")
    extra = np.column_stack([Z, Z[:, 0] - 2.0 * Z[:, 1]])
    protected = np.column_stack([X, X[:, 1], np.ones(len(X))])
    found = sq.solve(sq.Problem(extra, y, protected, family="binomial", feature_names=(*names, "e")))
    p = expit(found.intercept + extra @ found.coef[0])
    c = found.certificate
    assert c.loss == pytest.approx(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)), rel=1e-12)
    share = y.mean()
    assert c.loss_null == pytest.approx(-share * np.log(share) - (1 - share) * np.log1p(-share), rel=1e-12)
    assert (c.n_rows, c.n_features, c.n_protected, c.rank_features, c.rank_protected) == (len(y), 5, 4, 4, 2)
    assert len(c.aliased_features) == 1 and len(c.collinear_protected) == 1 and len(c.constant_protected) == 1
    assert c.max_correlation < 1e-10 and c.is_optimal and c.is_orthogonal
    assert c.reach == pytest.approx(np.abs(p - share).max() / np.abs(y - share).max(), rel=1e-6)
    loose = sq.solve(sq.Problem(Z, y, X, family="binomial"), max_iter=1)
    assert not loose.certificate.is_optimal


def test_no_row_is_left_out_of_two() -> None:
    few = SimpleNamespace(influence=np.ones(2))
    assert Tally.without_few(few, np.array([0.1, 0.7, 0.9]), 2) == (0.0, 0)  # type: ignore[arg-type]
    assert Tally.without_few(few, np.array([0.1, 0.7, 0.9]), 3) == (0.7, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended", "is_flat", "curvature", "kkt", "status"),
    [
        ("CONVERGED", False, 1.0, 1e-7, "CONVERGED"),
        ("CONVERGED", False, 1.0, 1e-5, "STALLED"),
        ("CONVERGED", False, -1e-7, 1e-7, "STALLED"),
        ("CONVERGED", True, 1.0, 1e-7, "FLAT"),
        ("FLAT", True, -1e-9, 1e-7, "FLAT"),
        ("FLAT", False, 1.0, 1e-5, "STALLED"),
        ("MAX_ITER", True, -1.0, 1.0, "MAX_ITER"),
    ],
)
def test_a_gradient_or_a_curvature_alone_shows_that_a_fit_is_no_optimum(ended, is_flat, curvature, kkt, status):
    assert _status(SimpleNamespace(status=Status[ended]), is_flat, curvature, kkt) is Status[status]
