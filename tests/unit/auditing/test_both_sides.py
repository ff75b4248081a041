"""Draws of the largest studentised difference, and marks of a figure."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from setsquare.auditing.documents.group_sections import _mark
from setsquare.auditing.groups.critical_values import _draw_largest


@pytest.mark.parametrize("share", [0.9, -0.9])
def test_one_difference_of_dependent_numbers_has_a_variance_of_one(share):
    D = np.array([[4.0, 2.0 * share], [2.0 * share, 1.0]])
    drawn = _draw_largest(D, np.array([0]), np.array([1]), np.random.default_rng(0), 20_000)
    assert np.mean(drawn**2) == pytest.approx(1.0, rel=0.05)
    assert np.quantile(drawn, 0.95) == pytest.approx(1.96, rel=0.03)


def test_marks_have_five_digits():
    spread = SimpleNamespace(
        mean=SimpleNamespace(estimate=0.1, ci_low=0.0, ci_high=0.2), quantiles=(0.1, 0.2), histogram=(0.1234567, 1.0)
    )
    assert _mark("left", spread) == {
        "side": "left",
        "mean": 0.1,
        "low": 0.0,
        "high": 0.2,
        "quantiles": [0.1, 0.2],
        "histogram": [0.12346, 1.0],
    }
