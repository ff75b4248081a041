"""On any small problem the certificate holds, or one clear sentence says why there is none."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from setsquare.errors import InputError
from setsquare.families import family
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Status, solve

NAMES = st.sampled_from(["gaussian", "binomial", "poisson", "gamma", "negative_binomial", "multinomial"])


@st.composite
def problems(draw: st.DrawFn) -> dict:
    """Few rows, dummies and numbers, copies and constants, a ridge now and then."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, q, p = draw(st.integers(3, 80)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    X = np.where(rng.random(p) < 0.5, rng.random((n, p)) < 0.4, rng.normal(size=(n, p)))
    Z = rng.normal(size=(n, q)) + X @ rng.normal(size=(p, q))
    if draw(st.booleans()):
        Z[:, -1] = Z[:, 0]
    if draw(st.booleans()):
        Z[:, 0] = rng.random(n) < 0.2
    name = draw(NAMES)
    signal = np.clip(Z[:, -1] + 0.5 * X[:, 0], -3.0, 3.0)
    y = {
        "gaussian": signal + rng.normal(size=n),
        "binomial": (signal + rng.logistic(size=n) > 0.0).astype(float),
        "poisson": rng.poisson(np.exp(0.5 * signal)).astype(float),
        "gamma": rng.gamma(2.0, np.exp(0.5 * signal)) + 1e-3,
        "negative_binomial": rng.poisson(rng.gamma(1.0, np.exp(0.5 * signal))).astype(float),
        "multinomial": rng.integers(0, 3, n).astype(float),
    }[name]
    l2 = draw(st.sampled_from([0.0, 0.0, 1e-3, 1.0]))
    weight = rng.uniform(0.1, 3.0, n) if draw(st.booleans()) else None
    return {"features": Z, "outcome": y, "protected": X, "family": name, "l2": l2, "weight": weight}


def means(given: dict, solution) -> np.ndarray:
    eta = solution.intercept + given["features"] @ solution.coef.T
    return family(given["family"]).activation(eta)


@given(problems())
@settings(deadline=None, max_examples=150)
def test_the_certificate_holds_or_a_sentence_says_why_not(given: dict) -> None:
    refusal, solution = None, None
    try:
        solution = solve(Problem(**given))
    except InputError as error:
        refusal = str(error)
    if solution is None:
        assert refusal and "\n" not in refusal and refusal.endswith(".")
        return
    c = solution.certificate
    assert np.isfinite(solution.coef).all() and np.isfinite(c.loss)
    assert c.is_orthogonal
    assert c.loss_unconstrained <= c.loss + 1e-12
    if solution.status in (Status.CONVERGED, Status.FLAT):
        assert c.is_optimal
        assert c.loss <= c.loss_null + 1e-9 * abs(c.loss_null)
    # what the certificate says is what a user computes
    yhat, X = means(given, solution), given["protected"]
    w = np.full(len(X), 1.0 / len(X)) if given["weight"] is None else given["weight"] / given["weight"].sum()
    Xc, rest = X - w @ X, yhat - w @ yhat
    scale = np.sqrt(w @ Xc**2)[:, None] * np.sqrt(w @ yhat**2)
    assert np.abs((Xc.T @ (w[:, None] * rest))[scale > 1e-12] / scale[scale > 1e-12]).max(initial=0.0) <= 1e-8


@given(problems(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_no_feasible_neighbour_has_a_lower_loss(given: dict, seed: int) -> None:
    """Small feasible steps, found by Newton's method from random directions, do not improve the solution."""
    if given["family"] == "multinomial":
        given = given | {"family": "gaussian"}
    try:
        solution = solve(Problem(**given))
    except InputError:
        return
    if solution.status is not Status.CONVERGED:
        return
    glm, Z, y, X = family(given["family"]), given["features"], given["outcome"], given["protected"]
    w = np.full(len(X), 1.0 / len(X)) if given["weight"] is None else given["weight"] / given["weight"].sum()
    D = np.column_stack([np.ones(len(Z)), Z])
    A = (X - w @ X) * w[:, None]
    rng = np.random.default_rng(seed)
    best = np.concatenate([solution.intercept, solution.coef[0]])

    def loss(b: np.ndarray) -> float:
        return float(w @ glm.row_losses(y, D @ b)[0] + 0.5 * given["l2"] * b[1:] @ b[1:])

    for size in (1e-1, 1e-2):
        b = best + size * rng.normal(size=len(best)) / (1.0 + np.abs(D).max(0))
        for _ in range(20):
            _, h, slope, _ = glm.activation.evaluate(D @ b)
            b = b - np.linalg.pinv(A.T @ (slope[:, None] * D), rcond=1e-8) @ (A.T @ h)
        if np.abs(A.T @ glm.activation(D @ b)).max() < 1e-12 and np.abs(b - best).max() < 1.0:
            assert loss(b) >= loss(best) - 1e-9 * max(1.0, abs(loss(best)))
