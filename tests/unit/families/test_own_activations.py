"""Functions that are no activations: those that overflow, or fall, are refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.errors import InputError
from setsquare.families.custom_activation import check_increasing


def test_an_activation_that_overflows_on_both_sides_of_a_point():
    with pytest.raises(InputError, match=r"is not finite on \[-30, 30\]"):
        check_increasing("steep", lambda x: np.exp(100.0 * x), lambda x: 100.0 * np.exp(100.0 * x))
    with pytest.raises(InputError, match="decreases at"):
        check_increasing("wave", np.sin, np.cos)
    with pytest.raises(InputError, match="is not its derivative"):
        check_increasing("line", lambda x: x, lambda x: 2.0 + 0.0 * x)
    check_increasing("line", lambda x: x, np.ones_like)
