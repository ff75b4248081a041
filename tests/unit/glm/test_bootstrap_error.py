"""The relative error of a standard error from a bootstrap is that which repetitions of it show."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.glm.bootstrap import _deviation, _regressed


def normal_moments(variance: np.ndarray) -> np.ndarray:
    """Means of the first four powers of a centred normal response."""
    return np.stack([0.0 * variance, variance, 0.0 * variance, 3.0 * variance**2])


@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_the_error_of_a_standard_error_is_that_of_repetitions(scale: float) -> None:
    rng, n, times = np.random.default_rng(0), 200, 400
    moved = rng.normal(size=(n, times))
    drawn = scale * (moved + 0.5 * rng.normal(size=(n, times)) ** 3)
    plain, claimed = _deviation(drawn)
    assert np.median(claimed) == pytest.approx(plain.std() / plain.mean(), rel=0.35)
    better, error = _regressed(drawn, moved, normal_moments(np.ones(times)))
    assert better.mean() == pytest.approx(scale * np.sqrt(1.0 + 0.25 * 15.0), rel=0.05)
    assert np.mean(error) == pytest.approx(better.std() / better.mean(), rel=0.35)
    assert error.mean() < 1.05 * claimed.mean()  # as if each refit were left out: on the safe side


def test_a_response_that_explains_everything_has_no_error() -> None:
    moved = np.random.default_rng(0).normal(size=(50, 2))
    found, error = _regressed(3.0 * moved, moved, normal_moments(np.array([4.0, 9.0])))
    np.testing.assert_allclose(found, [6.0, 9.0], rtol=1e-7)
    np.testing.assert_allclose(error, 0.0, atol=1e-7)
