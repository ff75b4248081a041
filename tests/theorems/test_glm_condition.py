"""THEORY §1: zero covariance with the protected columns is what every GLM evaluation model asks for."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import statsmodels.api as sm

from setsquare.families import Family

LINKS = sm.families.links


def reference_family(glm: Family):
    """The same family and link in statsmodels."""
    log = glm.link == "log"
    if glm.name == "gaussian":
        return sm.families.Gaussian(LINKS.Log() if log else LINKS.Identity())
    if glm.name == "binomial":
        return sm.families.Binomial(LINKS.Log() if log else LINKS.Logit())
    if glm.name == "poisson":
        return sm.families.Poisson()
    if glm.name == "gamma":
        return sm.families.Gamma(LINKS.Log() if log else LINKS.InversePower())
    if glm.name == "tweedie":
        power = glm.parameter
        return sm.families.Tweedie(LINKS.Log() if log else LINKS.Power(1.0 - power), var_power=power)
    alpha = 1.0 / glm.parameter
    return sm.families.NegativeBinomial(LINKS.Log() if log else LINKS.NegativeBinomial(alpha), alpha=alpha)


def evaluation_coefficients(glm: Family, yhat: np.ndarray, X: np.ndarray, weight=None) -> np.ndarray:
    """Slopes of the evaluation model of ``yhat`` on standardised ``X``."""
    scaled = (X - X.mean(0)) / X.std(0)
    with warnings.catch_warnings():
        # statsmodels remarks that some canonical links leave the domain, and on the sum of squares of Tweedie
        warnings.simplefilter("ignore")
        model = sm.GLM(yhat, sm.add_constant(scaled), family=reference_family(glm), var_weights=weight)
        fit = model.fit(maxiter=200, tol=1e-14, tol_criterion="params")
    return np.asarray(fit.params[1:])


def draw_protected(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([rng.random(n) < 0.2, rng.normal(40.0, 9.0, n), rng.exponential(1e-3, n)]).astype(float)


def leaky_predictions(glm: Family, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Predictions in the range of the family that depend on the protected columns."""
    unit = (X - X.mean(0)) / X.std(0)
    eta = -2.5 + 0.25 * unit.sum(1) + 0.2 * rng.normal(size=len(X))
    return np.exp(np.minimum(eta, -0.05))


def uncorrelated(yhat: np.ndarray, X: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Least squares by hand, then shrunk towards the mean until every value is positive and below one."""
    w = weight / weight.sum()
    root = np.sqrt(w)[:, None]
    design = np.column_stack([np.ones(len(X)), (X - w @ X) / X.std(0)])
    effect = np.linalg.lstsq(design * root, yhat[:, None] * root, rcond=None)[0][:, 0]
    rest = yhat - design @ effect
    mean = w @ yhat
    return mean + 0.9 * rest * min(mean / -rest.min(), (1.0 - mean) / rest.max(), 1.0)


@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_uncorrelated_predictions_make_the_evaluation_model_vanish(glm: Family, weighted: bool) -> None:
    rng = np.random.default_rng(7)
    X = draw_protected(400, rng)
    weight = rng.uniform(0.2, 3.0, 400) if weighted else np.ones(400)
    before = leaky_predictions(glm, X, rng)
    after = uncorrelated(before, X, weight)
    w = weight / weight.sum()
    assert np.abs((X - w @ X).T @ (w * after) / X.std(0)).max() < 1e-15
    assert after.min() > 0.0 and after.max() < 1.0 and after.std() > 0.01
    assert np.abs(evaluation_coefficients(glm, before, X, weight)).max() > 0.01
    assert np.abs(evaluation_coefficients(glm, after, X, weight)).max() < 1e-7


def test_weighted_models_need_weighted_means(glm: Family) -> None:
    """The unweighted correction does not satisfy the weighted evaluation model, nor the other way round."""
    rng = np.random.default_rng(8)
    X = draw_protected(400, rng)
    weight = 0.1 + 3.0 * X[:, 0] * rng.random(400) + rng.random(400) ** 4
    plain = uncorrelated(leaky_predictions(glm, X, rng), X, np.ones(400))
    weighted = uncorrelated(leaky_predictions(glm, X, rng), X, weight)
    assert np.abs(evaluation_coefficients(glm, plain, X)).max() < 1e-7
    assert np.abs(evaluation_coefficients(glm, plain, X, weight)).max() > 1e-4
    assert np.abs(evaluation_coefficients(glm, weighted, X)).max() > 1e-4


def multinomial_slopes(shares: np.ndarray, X: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Newton's method for a multinomial model of fractional outcomes (first class the reference)."""
    design = np.column_stack([np.ones(len(X)), (X - X.mean(0)) / X.std(0)])
    m, k = design.shape[1], shares.shape[1] - 1
    B = np.zeros((m, k))
    for _ in range(60):
        scores = np.column_stack([np.zeros(len(X)), design @ B])
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        gradient = design.T @ (w[:, None] * (p - shares)[:, 1:])
        hessian = np.zeros((m, k, m, k))
        for a in range(k):
            for b in range(k):
                row = w * p[:, a + 1] * ((a == b) - p[:, b + 1])
                hessian[:, a, :, b] = design.T @ (row[:, None] * design)
        B = B - np.linalg.solve(hessian.reshape(m * k, m * k), gradient.ravel()).reshape(m, k)
        if np.abs(gradient).max() < 1e-15:
            break
    return B[1:]


@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
@pytest.mark.parametrize("classes", [3, 4])
def test_uncorrelated_shares_make_the_multinomial_evaluation_model_vanish(classes: int, weighted: bool) -> None:
    rng = np.random.default_rng(9)
    X = draw_protected(400, rng)
    weight = rng.uniform(0.2, 3.0, 400) if weighted else np.ones(400)
    w = weight / weight.sum()
    unit = (X - X.mean(0)) / X.std(0)
    scores = 0.3 * unit @ rng.normal(size=(3, classes)) + 0.3 * rng.normal(size=(400, classes))
    before = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    mean = w @ before
    root = np.sqrt(w)[:, None]
    centred = X - w @ X
    rest = before - mean - centred @ np.linalg.lstsq(centred * root, (before - mean) * root, rcond=None)[0]
    after = mean + rest * 0.9 * min(1.0, (mean / -rest.min(0)).min())  # K - 1 columns are enough: rows sum to one
    assert after.min() > 0.0 and np.abs(after.sum(1) - 1.0).max() < 1e-12
    assert np.abs(multinomial_slopes(before, X, w)).max() > 0.05
    assert np.abs(multinomial_slopes(after, X, w)).max() < 1e-7


def test_the_condition_is_necessary(glm: Family) -> None:
    """A covariance that is small but not zero shows in the coefficients in proportion."""
    rng = np.random.default_rng(10)
    X = draw_protected(400, rng)
    before = leaky_predictions(glm, X, rng)
    after = uncorrelated(before, X, np.ones(400))
    tilt = X[:, 1] - X[:, 1].mean()
    tilt *= 1e-4 * after.mean() / np.abs(tilt).max()
    one = evaluation_coefficients(glm, after + tilt, X)[1]
    two = evaluation_coefficients(glm, after + 2.0 * tilt, X)[1]
    assert abs(one) > 1e-6
    assert two == pytest.approx(2.0 * one, rel=1e-2)
