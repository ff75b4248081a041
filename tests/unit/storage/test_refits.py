"""Refits in a model file: counts of 0 are possible, and each part must belong to the coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from setsquare.errors import InputError
from setsquare.storage.states import _read_refits

ERRORS = np.ones((1, 3))


def state(**changed: Any) -> dict[str, Any]:
    values = dict.fromkeys(("std_error", "precision", "drawn_error"), ERRORS)
    return values | {"n_refits": 5, "n_failed": 0} | changed


def test_refits_that_all_ended_are_read():
    found = _read_refits(state(), ERRORS)
    assert found is not None and (found.n_refits, found.n_failed) == (5, 0)
    assert _read_refits(state(n_refits=0, n_failed=3), ERRORS) is not None and _read_refits(None, ERRORS) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"n_failed": -1},
        {"n_refits": True},
        {"n_refits": 5.0},
        {"precision": np.ones((1, 2))},
        {"std_error": ERRORS > 0.0},
    ],
)
def test_refits_of_something_else_are_refused(changed):
    with pytest.raises(InputError, match="do not belong to its coefficients"):
        _read_refits(state(**changed), ERRORS)
