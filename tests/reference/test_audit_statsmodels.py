"""Robust covariances against statsmodels, live.

statsmodels' GLM takes HC1, HC2 and HC3 and returns HC0 for each of them, without a word; its OLS has all four. So for
generalised linear models the leverage corrections are put together from statsmodels' own scores, Hessian and leverages.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
from statsmodels.genmod.families import links
from statsmodels.stats.multitest import multipletests

from setsquare.auditing import benjamini_hochberg, holm
from setsquare.auditing.evaluations.glm import fit_glm
from setsquare.auditing.protected import Protected
from setsquare.families import Family, family

FAMILIES = {
    "gaussian": (family("gaussian"), sm.families.Gaussian()),
    "gaussian, log": (family("gaussian", "log"), sm.families.Gaussian(links.Log())),
    "binomial": (family("binomial"), sm.families.Binomial()),
    "poisson": (family("poisson"), sm.families.Poisson()),
    "gamma": (family("gamma"), sm.families.Gamma(links.Log())),
    "tweedie": (family("tweedie", parameter=1.5), sm.families.Tweedie(links.Log(), var_power=1.5)),
    "negative binomial": (
        family("negative_binomial", parameter=2.0),
        sm.families.NegativeBinomial(links.Log(), alpha=0.5),
    ),
}
N = 150


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest) -> tuple[Family, sm.families.Family]:
    return FAMILIES[request.param]


def draw(glm: Family, seed: int = 3) -> tuple[np.ndarray, Protected]:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(40.0, 10.0, N), rng.random(N) < 0.2, 1e-3 * rng.normal(size=N)]).astype(float)
    eta = 0.02 * (X[:, 0] - 40.0) + 0.5 * X[:, 1] + 0.4 * rng.normal(size=N)
    y = {"gaussian": eta + 3.0, "binomial": 1.0 / (1.0 + np.exp(-eta))}.get(glm.name, np.exp(eta))
    return y, Protected(X, ("age", "group", "tiny"), ("age", "group", "tiny"))


def reference(y: np.ndarray, X: np.ndarray, peer: sm.families.Family) -> sm.GLM:
    return sm.GLM(y, sm.add_constant(X), family=peer).fit(tol=1e-15, maxiter=200)


def sandwich(result: sm.GLM, power: float) -> np.ndarray:
    """HC0 (power 0), HC2 (power 1) or HC3 (power 2) from statsmodels' own parts."""
    model, params = result.model, result.params
    scores = model.score_obs(params, scale=1.0)
    hessian = -model.hessian(params, scale=1.0, observed=True)
    leverage = result.get_hat_matrix_diag(observed=True)
    meat = (scores / (1.0 - leverage)[:, None] ** power).T @ scores
    bread = np.linalg.inv(hessian)
    return (bread @ meat @ bread)[1:, 1:]


@pytest.mark.parametrize(
    ("kind", "power", "factor"), [("HC0", 0, 1.0), ("HC1", 0, N / (N - 4)), ("HC2", 1, 1), ("HC3", 2, 1)]
)
def test_sandwiches(pair: tuple[Family, sm.families.Family], kind: str, power: float, factor: float) -> None:
    glm, peer = pair
    y, protected = draw(glm)
    result = reference(y, protected.values, peer)
    fit = fit_glm(y, protected, glm, kind)
    np.testing.assert_allclose(fit.coef[0], result.params[1:], rtol=1e-8)
    wanted = factor * sandwich(result, power)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.cov)), np.sqrt(np.diag(wanted)), rtol=1e-8)
    size = np.sqrt(np.diag(wanted))
    np.testing.assert_allclose(fit.cov / np.outer(size, size), wanted / np.outer(size, size), atol=1e-8)


def test_glm_of_statsmodels_has_hc0_only(pair: tuple[Family, sm.families.Family]) -> None:
    """What the module's docstring says; and HC0 is equal to its own."""
    glm, peer = pair
    y, protected = draw(glm)
    model = sm.GLM(y, sm.add_constant(protected.values), family=peer)
    errors = {kind: model.fit(tol=1e-15, maxiter=200, cov_type=kind).bse for kind in ("HC0", "HC3")}
    np.testing.assert_array_equal(errors["HC0"], errors["HC3"])
    np.testing.assert_allclose(np.sqrt(np.diag(fit_glm(y, protected, glm, "HC0").cov)), errors["HC0"][1:], rtol=1e-8)


@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
def test_linear_model_equals_ols(kind: str) -> None:
    glm = family("gaussian")
    y, protected = draw(glm)
    result = sm.OLS(y, sm.add_constant(protected.values)).fit(cov_type=kind)
    fit = fit_glm(y, protected, glm, kind)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.cov)), result.bse[1:], rtol=1e-8)
    wald = result.wald_test(np.eye(4)[1:], use_f=True, scalar=True)
    assert fit.all.statistic / 3.0 == pytest.approx(float(wald.statistic), rel=1e-8)
    assert math.log(fit.all.p_value) == pytest.approx(math.log(float(wald.pvalue)), rel=1e-6)


def test_model_based_errors(pair: tuple[Family, sm.families.Family]) -> None:
    glm, peer = pair
    y, protected = draw(glm)
    fit = fit_glm(y, protected, glm, "model")
    fixed = glm.name in ("binomial", "poisson", "negative_binomial")
    result = sm.GLM(y, sm.add_constant(protected.values), family=peer).fit(
        tol=1e-15, maxiter=200, scale=1.0 if fixed else "x2"
    )
    # R takes its weights a step before the end, where it is already close.
    np.testing.assert_allclose(np.sqrt(np.diag(fit.cov)), result.bse[1:], rtol=2e-3)


def test_clusters(pair: tuple[Family, sm.families.Family]) -> None:
    glm, peer = pair
    y, protected = draw(glm)
    cluster = np.random.default_rng(0).integers(20, size=N)
    columns = Protected(protected.values, protected.names, protected.sources, cluster=cluster)
    result = sm.GLM(y, sm.add_constant(protected.values), family=peer).fit(
        tol=1e-15, maxiter=200, cov_type="cluster", cov_kwds={"groups": cluster}
    )
    np.testing.assert_allclose(np.sqrt(np.diag(fit_glm(y, columns, glm, "cluster").cov)), result.bse[1:], rtol=1e-8)


def test_multinomial_against_mnlogit() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=400), rng.random(400) < 0.4]).astype(float)
    scores = X @ rng.normal(size=(2, 3)) + rng.gumbel(size=(400, 3))
    label = scores.argmax(axis=1)
    result = sm.MNLogit(label, sm.add_constant(X)).fit(disp=False, tol=1e-14, maxiter=200)
    protected = Protected(X, ("a", "b"), ("a", "b"))
    shares = np.eye(3)[label]
    fit = fit_glm(shares, protected, family("multinomial"), "model")
    np.testing.assert_allclose(fit.coef, result.params.T[:, 1:], rtol=1e-7)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.cov)).reshape(2, 2), result.bse.T[:, 1:], rtol=1e-7)
    robust = sm.MNLogit(label, sm.add_constant(X)).fit(disp=False, tol=1e-14, maxiter=200, cov_type="HC0")
    fit = fit_glm(shares, protected, family("multinomial"), "HC0")
    np.testing.assert_allclose(np.sqrt(np.diag(fit.cov)).reshape(2, 2), robust.bse.T[:, 1:], rtol=1e-7)
    assert (np.diag(fit_glm(shares, protected, family("multinomial"), "HC3").cov) > np.diag(fit.cov)).all()


def test_two_classes_are_the_binomial_model_under_every_covariance() -> None:
    y, protected = draw(family("binomial"))
    for kind in ("HC0", "HC1", "HC2", "HC3", "model"):
        one = fit_glm(y, protected, family("binomial"), kind)
        two = fit_glm(np.column_stack([1.0 - y, y]), protected, family("multinomial"), kind)
        np.testing.assert_allclose(two.coef, one.coef, rtol=1e-9)
        np.testing.assert_allclose(two.cov, one.cov, rtol=1e-3 if kind == "model" else 1e-8)


def test_weights_are_sampling_weights() -> None:
    """Weight 3 on a row is not three rows: R's sandwich of a weighted glm, which statsmodels has as var_weights."""
    glm = family("poisson")
    y, protected = draw(glm)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, N)
    columns = Protected(protected.values, protected.names, protected.sources, weight=weight)
    result = sm.GLM(y, sm.add_constant(protected.values), family=sm.families.Poisson(), var_weights=weight).fit(
        tol=1e-15, maxiter=200, cov_type="HC0"
    )
    fit = fit_glm(y, columns, glm, "HC0")
    np.testing.assert_allclose(np.sqrt(np.diag(fit.cov)), result.bse[1:], rtol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_adjusted_p_values(seed: int) -> None:
    p = np.random.default_rng(seed).random(12) ** 3
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1])
    np.testing.assert_allclose(benjamini_hochberg(p), multipletests(p, method="fdr_bh")[1])
