"""Remarks of the paper beside its theorems: closed form, fairness, inversion, identity, p = q, appendices A, C to E."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime, brentq, minimize
from scipy.special import expit, logit

from setsquare import Problem, families, solve
from setsquare.projection import project_out


def residual(design: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return fitted, float(np.sum((y - fitted) ** 2))


def explained(values: np.ndarray, x: np.ndarray) -> float:
    """Share of the variance that x explains linearly, the unfairness of section 3.1."""
    return float(np.corrcoef(values, x)[0, 1] ** 2)


def effect(y: np.ndarray, x: np.ndarray) -> float:
    """Effect of x in the logistic evaluation model with an intercept."""
    return float(solve(Problem(x[:, None], y, family=families.family("binomial"), quasi=True)).coef[0, 0])


def test_corrected_is_perfectly_fair_and_fair_is_corrected_unless_measured_before_the_activation() -> None:
    """With an intercept no explained variance and no effect are one condition; before h it is another one."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=2000)
    Z = np.column_stack([x + rng.normal(size=2000), x**2 + rng.normal(size=2000)])
    y = (rng.random(2000) < expit(Z.sum(1) - 1.0)).astype(float)
    binomial = families.family("binomial")
    free, fixed = solve(Problem(Z, y, family=binomial)), solve(Problem(Z, y, x[:, None], binomial))
    for found, is_fair in ((free, False), (fixed, True)):
        predictions = expit(found.intercept[0] + Z @ found.coef[0])
        assert (explained(predictions, x) < 1e-16) == is_fair == (abs(effect(predictions, x)) < 1e-7)
    # Fair before h (no covariance of the linear predictor with x, as for features P Z), but not behind it.
    eta = project_out(Z, x[:, None]) @ np.array([0.5, 2.0])
    skewed = eta * np.exp(0.5 * x)
    skewed = project_out(skewed[:, None], x[:, None])[:, 0]
    assert explained(skewed, x) < 1e-25 and abs(effect(expit(skewed), x)) > 0.02


def test_effects_of_corrected_features_are_those_beside_the_protected_columns() -> None:
    """Section 1.1: the link to double machine learning, which partials X out of features and outcome (linear here)."""
    rng = np.random.default_rng(13)
    X = rng.normal(size=(300, 2))
    Z = X @ rng.normal(size=(2, 3)) + rng.normal(size=(300, 3))
    y = Z @ [1.0, -1.0, 0.5] + X @ [2.0, 1.0] + rng.normal(size=300)
    both, alone = (np.column_stack(columns) for columns in ([np.ones(300), X, Z], [np.ones(300), Z]))
    beside = np.linalg.lstsq(both, y, rcond=None)[0][3:]
    features = project_out(Z, X) - Z.mean(0)
    for outcome in (y - y.mean(), project_out(y[:, None], X)[:, 0] - y.mean()):  # once, or on both sides
        np.testing.assert_allclose(np.linalg.lstsq(features, outcome, rcond=None)[0], beside, atol=1e-12)
    assert np.abs(np.linalg.lstsq(alone, y, rcond=None)[0][1:] - beside).max() > 0.1


def test_naive_inversion_is_not_defined_and_where_it_is_leaves_effects() -> None:
    """Section 3.2: as printed P y has values below 0; with the mean kept h^-1 can exist, but Z^+ is no inverse."""
    rng = np.random.default_rng(5)
    x = (rng.random(2000) < 0.5).astype(float)
    Z = np.column_stack([np.ones(2000), 0.6 * x + rng.normal(size=2000), rng.normal(size=2000)])
    predictions = expit(Z @ np.array([0.0, 1.0, 0.5]))
    printed = predictions - x * (x @ predictions) / (x @ x)
    assert (printed < 0.0).any()
    with np.errstate(invalid="ignore"):
        assert np.isnan(logit(printed)).any()
    kept = project_out(predictions[:, None], x[:, None])[:, 0]
    inside = (kept > 0.0) & (kept < 1.0)
    assert (~inside).any()  # probabilities near 0 and 1 leave the range
    gentle = expit(0.3 * (Z @ np.array([0.0, 1.0, 0.5])))
    kept = project_out(gentle[:, None], x[:, None])[:, 0]
    assert ((kept > 0.0) & (kept < 1.0)).all() and abs(effect(kept, x)) < 1e-8 < 0.1 < effect(gentle, x)
    again = expit(Z @ np.linalg.lstsq(Z, logit(kept), rcond=None)[0])
    assert abs(effect(again, x)) > 0.01  # fitted features do not give the corrected predictions back


def test_orthogonal_vectors_behind_an_activation() -> None:
    """Appendix A: exp and sigmoid do not keep (1, 0) and (0, 1) orthogonal; ReLU does, so not every h breaks it."""
    x, y = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert x @ y == 0.0 and np.exp(x) @ np.exp(y) > 1.0 and expit(x) @ expit(y) > 0.5
    assert np.maximum(x, 0.0) @ np.maximum(y, 0.0) == 0.0


@pytest.mark.parametrize("among", [False, True], ids=["X not in span(Z)", "X in span(Z)"])
def test_with_the_identity_the_classical_correction_solves_corollary_4_if_the_features_span_x(among: bool) -> None:
    """Else, in general, P Z gamma reads X, is not of the form Z gamma, and has a lower loss than Corollary 4 allows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1))
    Z = np.column_stack(
        [X @ [[1.0, 0.5, 0.0]] + rng.normal(size=(400, 3)), X] if among else [X + rng.normal(size=(400, 3))]
    )
    y = Z @ np.arange(1.0, 1.0 + Z.shape[1]) + rng.normal(size=400)
    D = np.column_stack([np.ones(400), X])
    classical, loss = residual(np.column_stack([np.ones(400), Z - D @ np.linalg.lstsq(D, Z, rcond=None)[0]]), y)
    found = solve(Problem(Z, y, X))
    constrained = found.intercept[0] + Z @ found.coef[0]
    for fitted in (classical, constrained):  # both are orthogonal, and the outcome is not
        assert abs(np.corrcoef(fitted, X[:, 0])[0, 1]) < 1e-10 < 0.3 < np.corrcoef(y, X[:, 0])[0, 1]
    inside, _ = residual(np.column_stack([np.ones(400), Z]), classical)
    if among:
        np.testing.assert_allclose(classical, constrained, atol=1e-8)
    else:
        assert np.abs(classical - inside).max() > 0.5  # no coefficients of Z give these predictions
        assert loss < 0.9 * np.sum((y - constrained) ** 2)


@pytest.mark.parametrize(("rho", "expected"), [(0.0, 29), (1.0, 0)])  # the page quotes these
def test_with_p_equal_q_a_sigmoid_may_leave_more_than_a_constant(rho: float, expected: int) -> None:
    """p = q = 1, 50 draws: with the identity the slope must be zero; behind a sigmoid it need not be."""
    found = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=200)
        x = rho * z + rng.normal(size=200)
        x -= x.mean()
        assert abs(x @ z) > 1e-3  # so that intercept + slope z is orthogonal to x with slope zero only
        grid = np.linspace(-6.0, 6.0, 61)
        values = expit(grid[:, None] + 2.0 * z) @ x  # slope 2, some intercepts
        for k in np.flatnonzero(values[1:] * values[:-1] < 0.0)[:1]:
            a = brentq(lambda a, x=x, z=z: float(x @ expit(a + 2.0 * z)), grid[k], grid[k + 1], xtol=1e-15)
            predictions = expit(a + 2.0 * z)
            assert abs(np.corrcoef(x, predictions)[0, 1]) < 1e-10 and predictions.std() > 1e-3
            found += 1
    assert found == expected


@pytest.mark.parametrize("linked", [False, True])
def test_concept_1_coincides_if_the_other_features_are_orthogonal(
    linked: bool,
) -> None:
    """Concept 1 can coincide with the paper's notion, as it says; with linked features it does not."""
    rng = np.random.default_rng(2)
    X = (rng.random((500, 1)) < 0.5).astype(float)
    W = rng.normal(size=(500, 2))
    D = np.column_stack([np.ones(500), X])
    W = W + X if linked else W - D @ np.linalg.lstsq(D, W, rcond=None)[0]
    y = W.sum(1) + 2.0 * X[:, 0] + rng.normal(size=500)
    found = solve(Problem(np.column_stack([W, X]), y, X))
    fitted = found.intercept[0] + np.column_stack([W, X]) @ found.coef[0]
    assert abs(np.corrcoef(fitted, X[:, 0])[0, 1]) < 1e-10
    assert abs(found.coef[0, -1]) > 1.0 if linked else abs(found.coef[0, -1]) < 1e-10


def test_the_slope_of_the_link_in_appendix_d_belongs_at_h_of_zero() -> None:
    """G = g'(h(0)) I, which is 4 for the sigmoid; the printed (h^-1)'(0) is the slope where the link is not defined."""
    slope = approx_fprime(np.array([expit(0.0)]), lambda mu: logit(mu[0]))[0]
    assert slope == pytest.approx(4.0, abs=1e-6)
    assert np.isneginf(logit(0.0)) and (logit(2e-9) - logit(1e-9)) / 1e-9 > 1e8
    variance = expit(0.0) * (1.0 - expit(0.0))  # V(h(0))^(1/2) as in E.1, not V(h(0)^(1/2))
    root = np.sqrt(expit(0.0))
    assert np.sqrt(variance) == pytest.approx(0.5) and root * (1.0 - root) == pytest.approx(0.2071, abs=1e-4)


def test_the_printed_iterates_end_at_the_optimum_only_if_it_is_zero() -> None:
    """Section 3.2 and appendix D: r = G(y - mu) lacks the linear predictor, which is zero at zero effects."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(500, 2))

    def iterate(y: np.ndarray, beta: np.ndarray, with_predictor: bool) -> np.ndarray:
        mu = expit(X @ beta)
        weights = mu * (1.0 - mu)
        response = (y - mu) / weights + with_predictor * (X @ beta)
        return np.linalg.solve(X.T @ (weights[:, None] * X), X.T @ (weights * response))

    y = expit(X @ [0.5, -1.0])  # the optimum is known, and not zero
    optimum = np.array([0.5, -1.0])
    np.testing.assert_allclose(iterate(y, optimum, with_predictor=True), optimum, atol=1e-12)
    np.testing.assert_allclose(iterate(y, optimum, with_predictor=False), 0.0, atol=1e-12)
    nothing = 0.5 + project_out(0.1 * rng.normal(size=(500, 1)), X)[:, 0]
    nothing -= X @ np.linalg.lstsq(X, nothing - 0.5, rcond=None)[0]  # without an intercept, as in the lemma
    for with_predictor in (True, False):
        np.testing.assert_allclose(iterate(nothing, np.zeros(2), with_predictor), 0.0, atol=1e-12)


def test_an_intercept_alone_is_the_link_of_the_mean() -> None:
    """Appendix E.1, which holds for any canonical link."""
    rng = np.random.default_rng(7)
    means = {"binomial": expit(rng.normal(size=300)), "poisson": np.exp(rng.normal(size=300))}
    for name, link in (("binomial", logit), ("poisson", np.log)):
        x = np.ones((300, 1)) * np.r_[np.ones(150), -np.ones(150)][:, None]
        y = np.r_[means[name][:150], means[name][:150]]  # the same in both halves, so that x has no effect
        found = solve(Problem(x, y, family=families.family(name), quasi=name == "binomial"))
        assert found.intercept[0] == pytest.approx(link(y.mean()), abs=1e-8) and abs(found.coef[0, 0]) < 1e-8


@pytest.mark.parametrize(("p", "left"), [(20, 0.0), (5, 1.0)])
def test_with_as_many_protected_columns_as_rows_nothing_is_left(p: int, left: float) -> None:
    """Limitations: n must be larger than p."""
    rng = np.random.default_rng(8)
    X, y = rng.normal(size=(20, p)), rng.normal(size=20)
    rest = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    assert (np.abs(rest).max() > 1e-10) == bool(left)


def test_the_evaluation_model_has_no_closed_form_in_general_but_for_two_groups() -> None:
    """Section 3.2: for x = 1, 2, 3 and means of 1/3, exp(beta) is a root of a quintic without a formula in radicals."""
    sympy = pytest.importorskip("sympy", reason="sympy is not installed: Galois groups cannot be computed")
    t = sympy.symbols("t")
    score = t / (1 + t) + 2 * t**2 / (1 + t**2) + 3 * t**3 / (1 + t**3) - 2  # sum of x (h(x beta) - 1/3)
    quintic = sympy.Poly(sympy.numer(sympy.cancel(sympy.together(score))), t)
    assert quintic.degree() == 5 and quintic.is_irreducible
    group, _ = sympy.polys.numberfields.galoisgroups.galois_group(quintic)
    assert group.order() == 120 and not group.is_solvable
    x, beta, steps = np.array([1.0, 2.0, 3.0]), 0.0, 0
    while abs(slope := float(x @ (expit(x * beta) - 1.0 / 3.0))) > 1e-14:
        means = expit(x * beta)
        beta -= slope / float(x**2 @ (means * (1.0 - means)))  # convex: the second derivative is positive everywhere
        steps += 1
    assert steps <= 4 and float(quintic.eval(np.exp(beta))) == pytest.approx(0.0, abs=1e-12)
    y = expit(np.random.default_rng(9).normal([[0.0], [1.0]], 1.0, (2, 100)))
    difference = float(logit(y[1].mean()) - logit(y[0].mean()))
    assert effect(y.ravel(), np.repeat([0.0, 1.0], 100)) == pytest.approx(difference, abs=1e-8)


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.5])
def test_a_constant_is_one_solution_of_the_lemma_and_a_factor_changes_nothing(factor: float) -> None:
    """Appendix E.1: y = mu, or P y beside it: one family, c P y + h(0), of which the constant has c = 0."""
    rng = np.random.default_rng(10)
    X = rng.normal(1.0, 1.0, size=(300, 2))
    y = expit(X.sum(1) + rng.normal(size=300))
    corrected = 0.5 + factor * (y - X @ np.linalg.lstsq(X, y, rcond=None)[0])
    assert np.abs(X.T @ (corrected - 0.5)).max() < 1e-12 < 10.0 < np.abs(X.T @ (y - 0.5)).max()
    assert (corrected.std() > 1e-3) == bool(factor)  # with the constant nothing is predicted
    found = minimize(  # the evaluation model without an intercept
        lambda beta: float(np.sum(np.logaddexp(0.0, X @ beta) - corrected * (X @ beta))),
        np.array([0.3, -0.2]),
        jac=lambda beta: X.T @ (expit(X @ beta) - corrected),
        tol=1e-10,
    )
    np.testing.assert_allclose(found.x, 0.0, atol=1e-8)


def test_what_follows_a_flipped_attribute_depends_on_causes_that_the_correction_does_not_ask_for() -> None:
    """Appendix C.2: x -> w and w -> x can have one distribution, so one fit, and other predictions if x is changed."""
    forwards, backwards = np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([[0.8, 0.6], [0.0, 1.0]])  # noise to (x, w)
    np.testing.assert_allclose(forwards @ forwards.T, backwards @ backwards.T, atol=1e-15)
    rng = np.random.default_rng(11)
    x, w = forwards @ rng.normal(size=(2, 2000))
    Z = np.column_stack([w, x, rng.normal(size=2000)])
    found = solve(Problem(Z, Z.sum(1) + rng.normal(size=2000), x[:, None]))
    fitted = Z @ found.coef[0]
    assert abs(np.corrcoef(fitted, x)[0, 1]) < 1e-10 and fitted.std() > 0.5
    after = {"x -> w": 0.6, "w -> x": 0.0}  # what w does when x is raised by 1
    changes = {name: float(found.coef[0] @ [change, 1.0, 0.0]) for name, change in after.items()}
    assert abs(changes["x -> w"]) < 0.1 < 0.4 < abs(changes["w -> x"])


@pytest.mark.parametrize("name", ["binomial", "poisson"])
def test_the_weights_of_appendix_d_are_the_observed_hessian(name: str) -> None:
    """X' Upsilon X with alpha, for the square root as a link, which is canonical for neither; and Fisher's form."""
    rng = np.random.default_rng(12)
    X, beta = rng.uniform(0.5, 1.0, size=(50, 2)), np.array([0.3, 0.4])
    eta = X @ beta
    mu = eta**2  # g = square root
    variance = mu * (1.0 - mu) if name == "binomial" else mu
    y = np.clip(mu + 0.1 * rng.normal(size=50), 0.01, 0.99)

    def loss(beta: np.ndarray) -> float:
        m = (X @ beta) ** 2
        return float(-np.sum(y * np.log(m) + ((1.0 - y) * np.log(1.0 - m) if name == "binomial" else -m)))

    first, second = 0.5 * mu**-0.5, -0.25 * mu**-1.5
    slope = (1.0 - 2.0 * mu) if name == "binomial" else 1.0
    alpha = 1.0 + (y - mu) * (slope / variance + second / first)
    weights = alpha / (first**2 * variance)
    e, h = np.eye(2), 1e-4
    numeric = [
        [
            (loss(beta + h * (a + b)) - loss(beta + h * (a - b)) - loss(beta - h * (a - b)) + loss(beta - h * (a + b)))
            / (4.0 * h * h)
            for b in e
        ]
        for a in e
    ]
    np.testing.assert_allclose(X.T @ (weights[:, None] * X), numeric, rtol=1e-4)
    expected = 1.0 / (first**2 * variance)  # Fisher weights: alpha = 1
    np.testing.assert_allclose(expected**-0.5 / first, np.sqrt(variance), rtol=1e-12)
