"""The paper's synthetic data, checked against their own distribution."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from setsquare.datasets import make_synthetic
from setsquare.errors import InputError

LARGE = 200_000


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize(("p", "q"), [(5, 10), (10, 100), (4, 4), (5, 2), (1, 1)])
def test_shapes_hold_for_p_below_and_above_q(family: Any, p: int, q: int) -> None:
    data = make_synthetic(family, n=50, p=p, q=q, rho=2.0, random_state=1)
    assert data.Z.shape == (50, q) and data.X.shape == (50, p) and data.y.shape == (50,)
    assert data.coefficients.shape == (q,) and data.protected_coefficients.shape == (p,)
    assert all(part.dtype == np.float64 for part in (data.Z, data.X, data.y))


@pytest.mark.parametrize("rho", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(("p", "q"), [(2, 3), (3, 2)])
def test_each_protected_column_is_correlated_with_its_own_feature_only(rho: float, p: int, q: int) -> None:
    data = make_synthetic(n=LARGE, p=p, q=q, rho=rho, random_state=2)
    correlation = np.corrcoef(data.X, data.Z, rowvar=False)[:p, p:]
    np.testing.assert_allclose(correlation, np.eye(p, q) * rho / np.sqrt(1 + rho**2), atol=0.01)


@pytest.mark.parametrize("rho", [0.0, 2.0])
@pytest.mark.parametrize(("p", "q"), [(5, 100), (10, 3)])
def test_the_linear_predictor_has_the_spread_asked_for(rho: float, p: int, q: int) -> None:
    data = make_synthetic(n=LARGE // 4, p=p, q=q, rho=rho, random_state=3, signal=0.7)
    assert np.std(data.linear_predictor) == pytest.approx(0.7, rel=0.03)


def test_binomial_outcomes_follow_their_probabilities() -> None:
    data = make_synthetic("binomial", n=LARGE, random_state=4)
    assert set(np.unique(data.y)) == {0.0, 1.0}
    mu = expit(data.linear_predictor)
    # Scores of the true model have mean zero and the variance mu (1 - mu).
    score = (data.y - mu) * data.linear_predictor
    assert abs(score.mean()) < 4 * score.std() / np.sqrt(LARGE)
    assert ((data.y - mu) ** 2).mean() == pytest.approx((mu * (1 - mu)).mean(), rel=0.02)


def test_poisson_outcomes_are_counts_with_sane_rates() -> None:
    data = make_synthetic("poisson", n=LARGE, p=10, q=100, rho=2.0, random_state=5)
    assert np.array_equal(data.y, np.round(data.y)) and data.y.min() == 0
    assert data.y.mean() == pytest.approx(np.exp(0.5), rel=0.03)
    assert data.y.max() < 300
    mu = np.exp(data.linear_predictor)
    assert (((data.y - mu) ** 2) / mu).mean() == pytest.approx(1.0, rel=0.03)


def test_no_signal_means_no_effect() -> None:
    data = make_synthetic(n=10, random_state=0, signal=0.0)
    assert not data.coefficients.any() and not data.protected_coefficients.any()


def test_the_seed_decides_and_the_global_state_does_not() -> None:
    first = make_synthetic("poisson", n=30, random_state=6)
    state = np.random.get_state()[1].copy()  # noqa: NPY002  that nothing touches it is the point
    again = make_synthetic("poisson", n=30, random_state=np.random.default_rng(6))
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    for name in ("Z", "X", "y", "coefficients", "protected_coefficients"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.Z, make_synthetic("poisson", n=30, random_state=7).Z)
    with pytest.raises(AttributeError):
        first.y = first.Z  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "gamma"}, 'family must be "binomial" or "poisson", not \'gamma\''),
        ({"n": 0}, "n must be a whole number of at least 1, not 0"),
        ({"p": 2.5}, "p must be a whole number of at least 1, not 2.5"),
        ({"rho": np.nan}, "rho must be finite"),
        ({"signal": 6.0}, "signal must lie between 0 and 5, not 6.0"),
        ({"signal": np.nan}, "signal must lie between 0 and 5"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make_synthetic(**arguments)
