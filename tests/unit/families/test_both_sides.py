"""Ranges of activations, and pre-activations at the edge of the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.families import activations

RANGES = {
    "IDENTITY": (-np.inf, np.inf),
    "SIGMOID": (0.0, 1.0),
    "EXP": (0.0, np.inf),
    "RELU": (0.0, np.inf),
    "TANH": (-1.0, 1.0),
    "LEAKY_RELU": (-np.inf, np.inf),
    "SOFTPLUS": (0.0, np.inf),
    "ELU": (-1.0, np.inf),
}


@pytest.mark.parametrize("name", RANGES)
def test_the_range_is_that_of_the_values(name):
    one = getattr(activations, name)
    assert one.range == RANGES[name]
    ends = one(np.array([-700.0, 700.0]))
    for end, limit in zip(ends, RANGES[name], strict=True):
        assert end == pytest.approx(limit, abs=1e-300) if np.isfinite(limit) else abs(end) >= 7.0


def test_a_power_of_the_smallest_number_gives_no_warning():
    _, mean, *_ = activations._power(1.5, np.array([-5e-324]))
    assert np.isinf(mean).all()
