"""Lemma 3 as printed (no centring): where it holds, and where not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import root
from scipy.special import expit, logit
from scipy.stats import norm

from studies.paper.lemma import printed, printed_weighted


def effects(predictions: np.ndarray, X: np.ndarray, intercept: bool) -> np.ndarray:
    """Slopes of the logistic evaluation model, by its score equations, which are defined outside (0, 1), too."""
    D = np.column_stack([np.ones(len(X)), X]) if intercept else X
    found = root(lambda b: D.T @ (predictions - expit(D @ b)) / len(D), np.zeros(D.shape[1]), tol=1e-13)
    assert np.abs(found.fun).max() < 1e-11
    return found.x[1:] if intercept else found.x


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = (rng.random((600, 1)) < 0.7).astype(float)
    return expit(1.0 + 1.2 * X[:, 0] + 0.5 * rng.normal(size=600)), X


def test_without_an_intercept_the_printed_form_empties_the_evaluation_model(data: tuple[np.ndarray, ...]) -> None:
    yhat, X = data
    after = printed(yhat, X, expit(0.0))
    assert np.abs(effects(yhat, X, intercept=False)).max() > 1.0
    assert np.abs(effects(after, X, intercept=False)).max() < 1e-10


def test_with_an_intercept_it_leaves_an_effect_and_moves_the_mean(data: tuple[np.ndarray, ...]) -> None:
    """Rows with x = 1 are centred at h(0) = 0.5, rows with x = 0 are raised by it, here above one."""
    yhat, X = data
    X = 1.0 - X  # three in ten
    low = 0.5 * yhat  # so that the corrected group means stay below one
    after = printed(low, X, expit(0.0))
    means = [float(after[X[:, 0] == x].mean()) for x in (0.0, 1.0)]
    left = effects(after, X, intercept=True)[0]
    assert means[1] == pytest.approx(0.5, abs=1e-12) and means[0] > 0.8
    assert left == pytest.approx(logit(0.5) - logit(means[0]), abs=1e-8) and abs(left) > 1.0
    assert after.mean() > low.mean() + 0.3
    constants = (0.2, float(low.mean()), 0.5)  # the appendix adds h(intercept): a covariance stays
    covariances = [float(np.cov(printed(low, X, c), X[:, 0])[0, 1]) for c in constants]
    assert covariances == pytest.approx([covariances[0]] * 3) and abs(covariances[0]) > 0.05
    alone = printed(low - low.mean(), X, 0.0)  # "centre the predictions and drop the constant": neither
    assert abs(float(np.corrcoef(alone, X[:, 0])[0, 1])) > 0.1
    centred = low - (X - X.mean()) @ np.linalg.lstsq(X - X.mean(), low, rcond=None)[0]  # what Corollary 4 centres
    assert np.abs(effects(centred, X, intercept=True)).max() < 1e-10
    assert centred.mean() == pytest.approx(low.mean(), abs=1e-12)


def test_with_columns_of_mean_zero_the_printed_form_holds_with_an_intercept_too(data: tuple[np.ndarray, ...]) -> None:
    yhat, X = data
    centred = X - X.mean(0)
    after = printed(0.4 * yhat, centred, expit(0.0))  # h(0) is added on top of the mean: 0.5 too much, but no effect
    assert np.abs(effects(after, centred, intercept=True)).max() < 1e-10
    assert after.mean() == pytest.approx(0.4 * yhat.mean() + 0.5)


def test_with_the_constant_among_the_columns_it_holds_with_an_intercept_too(data: tuple[np.ndarray, ...]) -> None:
    """A reading of the appendix on models with an intercept: then P y has mean zero, and any constant will do."""
    yhat, X = data
    after = printed(yhat, np.column_stack([np.ones(len(X)), X]), 0.3)
    assert np.abs(effects(yhat, X, intercept=True)).max() > 0.5
    assert np.abs(effects(after, X, intercept=True)).max() < 1e-10
    assert after.mean() == pytest.approx(0.3)


def test_the_weighted_form_holds_for_canonical_links_and_otherwise_only_with_the_weights_at_zero(
    data: tuple[np.ndarray, ...],
) -> None:
    yhat, X = data
    X = np.column_stack([X, np.random.default_rng(1).normal(size=len(X))])
    at_zero = np.full(len(X), 0.25)  # h'(0) of the logistic function; U = h', G = 1 / h', so that U G = 1
    right = printed_weighted(yhat, X, at_zero, 1.0 / at_zero, 0.5)
    assert np.abs(effects(right, X, intercept=False)).max() < 1e-10
    np.testing.assert_allclose(right - 0.5, 0.5 * (printed(yhat, X, 0.5) - 0.5), atol=1e-12)  # c_1 = V(h(0))^(1/2)
    eta = X @ effects(yhat, X, intercept=False)
    own = expit(eta) * expit(-eta)  # the weights of the uncorrected evaluation model
    assert np.abs(effects(printed_weighted(yhat, X, own, 1.0 / own, 0.5), X, intercept=False)).max() < 1e-10
    density, mean = norm.pdf(eta), norm.cdf(eta)  # probit: U G is not constant
    wrong = printed_weighted(yhat, X, density**2 / (mean * (1.0 - mean)), 1.0 / density, 0.5)
    assert np.abs(X.T @ (wrong - 0.5)).max() > 0.1  # the score of any evaluation model at zero effects
