"""Post-hoc orthogonalisation: effects of a regression, unchanged predictions, and Komiyama's features."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

import setsquare as sq
from setsquare.errors import InputError
from studies.comparators import COMPARATORS


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2)) @ [[1.0, 0.5], [0.0, 1.0]] + 3.0
    Z = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2, X[:, 0] * X[:, 1], X[:, 0] + rng.normal(size=400)])
    return X, Z, X @ [1.0, -2.0] + Z @ [1.0, 0.3, 0.2, 1.0] + rng.normal(size=400)


def test_the_effects_are_those_of_a_regression_and_the_predictions_stay(data: tuple[np.ndarray, ...]) -> None:
    """With a model that is least squares in both parts, beta becomes the regression of y on X alone."""
    X, Z, y = data
    both = sm.OLS(y, sm.add_constant(np.column_stack([X, Z]))).fit()
    beta, deep = both.params[1:3], Z @ both.params[3:]
    alone = sm.OLS(y, sm.add_constant(X)).fit().params
    found = sq.pho(X, deep, beta, both.params[0])
    assert np.abs(beta - alone[1:]).max() > 0.5  # before, the network has its share
    np.testing.assert_allclose(found.coef, alone[1:], atol=1e-11)
    np.testing.assert_allclose(found.intercept + X @ found.coef + found.flexible, both.fittedvalues, atol=1e-11)
    before, after = (np.abs(np.corrcoef(part, X.T)[0, 1:]).max() for part in (deep, found.flexible))
    assert before > 0.1 and after < 1e-12
    again = sq.pho(X, found.flexible, found.coef, found.intercept)
    np.testing.assert_allclose(again.coef, found.coef, atol=1e-12)  # nothing left to move


def test_with_a_bound_of_one_komiyamas_features_have_the_same_effects(data: tuple[np.ndarray, ...]) -> None:
    X, Z, y = data
    both = sm.OLS(y, sm.add_constant(np.column_stack([X, Z]))).fit()
    found = sq.pho(X, Z @ both.params[3:], both.params[1:3], both.params[0])
    D = sm.add_constant(X)
    U = Z - D @ np.linalg.lstsq(D, Z, rcond=None)[0]  # Komiyama's features
    np.testing.assert_allclose(sm.OLS(y, np.column_stack([D, U])).fit().params[1:3], found.coef, rtol=1e-12)
    fair = COMPARATORS["komiyama-sp"](family="gaussian", bound=1.0).fit(Z, y, X).result_
    assert fair.protected_coef is not None  # of Z as given: what Z shares with X still belongs to its effects
    same = sq.pho(X, Z @ fair.coef, fair.protected_coef, fair.intercept)
    np.testing.assert_allclose(same.coef, found.coef, rtol=1e-10)
    bounded = COMPARATORS["komiyama-sp"](family="gaussian", bound=0.05).fit(Z, y, X).result_
    assert bounded.protected_coef is not None
    assert np.abs(sq.pho(X, Z @ bounded.coef, bounded.protected_coef).coef - found.coef).max() > 0.1  # a tighter bound


def test_standard_errors_are_hc3_of_the_regression_on_both_orthogonal_parts(data: tuple[np.ndarray, ...]) -> None:
    X, Z, y = data
    both = sm.OLS(y, sm.add_constant(np.column_stack([X, Z]))).fit()
    found = sq.pho(X, Z @ both.params[3:], both.params[1:3], both.params[0], y=y)
    given = sm.OLS(y - found.flexible, sm.add_constant(X)).fit(cov_type="HC3")
    np.testing.assert_allclose(given.params[1:], found.coef, atol=1e-10)
    np.testing.assert_allclose(found.std_error, given.bse[1:], rtol=1e-8)


def test_weights_are_repetitions_and_working_weights_project_as_in_a_glm(data: tuple[np.ndarray, ...]) -> None:
    X, Z, _ = data
    times = np.random.default_rng(1).integers(1, 4, len(X))
    weighted = sq.pho(X, Z[:, 1], sample_weight=times)
    repeated = sq.pho(np.repeat(X, times, axis=0), np.repeat(Z[:, 1], times))
    np.testing.assert_allclose(weighted.coef, repeated.coef, rtol=1e-10)
    assert np.abs((X - np.average(X, axis=0, weights=times)).T @ (times * weighted.flexible)).max() < 1e-8


def test_torch_finds_the_same_and_has_gradients(data: tuple[np.ndarray, ...]) -> None:
    torch = pytest.importorskip("torch")
    X, Z, _ = data
    deep = torch.tensor(Z[:, 1], requires_grad=True)
    found = sq.nn.pho(torch.tensor(X), deep, torch.tensor([0.3, -0.2], dtype=torch.float64), 1.0)
    same = sq.pho(X, Z[:, 1], [0.3, -0.2], 1.0)
    np.testing.assert_allclose(found.coef.detach(), same.coef, rtol=1e-10)
    np.testing.assert_allclose(found.flexible.detach(), same.flexible, atol=1e-10)
    found.coef[0].backward()
    Xc = np.column_stack([np.ones(len(X)), X])
    np.testing.assert_allclose(deep.grad, np.linalg.pinv(Xc)[1], atol=1e-10)


def test_columns_that_are_not_identified_are_refused(data: tuple[np.ndarray, ...]) -> None:
    X, Z, _ = data
    for wrong in (np.column_stack([X, X[:, 0]]), np.column_stack([X, np.ones(len(X))])):
        with pytest.raises(InputError, match="linear combinations"):
            sq.pho(wrong, Z[:, 0])
    with pytest.raises(InputError, match="shape"):
        sq.pho(X[:, 0], Z[:, 0])
