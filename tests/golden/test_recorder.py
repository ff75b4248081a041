"""What golden masters notice, and what they do not."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.golden.recorder import FOLDER, About, describe, differences


class Record(NamedTuple):
    """Some values of a result."""

    numbers: np.ndarray
    name: str
    count: int


def record(numbers: np.ndarray) -> Any:
    return json.loads(json.dumps(describe({"one": Record(numbers, "a", 3)})))


NUMBERS = np.random.default_rng(0).normal(size=(40, 3))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_rounding_errors_make_no_difference(size):
    assert not differences(record(size * NUMBERS), record(size * NUMBERS * (1.0 + 1e-9)))


@pytest.mark.parametrize(
    "changed",
    [
        -NUMBERS,
        NUMBERS * 1.00001,
        NUMBERS[::-1],
        NUMBERS.reshape(3, 40),
        np.where(NUMBERS[7, 1] == NUMBERS, 0, NUMBERS),
    ],
    ids=["sign", "factor", "order", "shape", "one value"],
)
def test_another_sign_factor_order_shape_or_value_is_a_difference(changed):
    assert differences(record(NUMBERS), record(changed))


def test_a_value_that_is_not_finite_is_a_difference_wherever_it_stands():
    odd, other = NUMBERS.copy(), NUMBERS.copy()
    odd[3, 1], other[4, 1] = np.nan, np.nan
    assert not differences(record(odd), record(odd))
    assert differences(record(odd), record(other))
    assert differences(record(odd), record(np.where(np.isnan(odd), np.inf, odd)))


def test_words_counts_and_fields_are_compared_exactly():
    assert differences(describe(Record(NUMBERS, "a", 3)), describe(Record(NUMBERS, "a", 4)))
    assert differences(describe(Record(NUMBERS, "a", 3)), describe(Record(NUMBERS, "b", 3)))
    assert differences(describe({"a": 1}), describe({"a": 1, "b": None}))
    assert differences(describe({"a": 1}), describe({"a": True}))
    assert differences(describe([1.0, "x"]), describe([1.0]))


def test_short_arrays_are_compared_number_by_number():
    assert not differences(describe(np.array([1.0, 1e-12])), describe(np.array([1.0, 0.0])))
    assert differences(describe(np.array([1.0, 1e-5])), describe(np.array([1.0, 0.0])))


def test_the_files_stay_small():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.json")) < 3_200_000


def test_counts_may_differ_by_one():
    assert not differences(describe([About(7)]), describe([About(8)]))
    assert differences(describe([About(7)]), describe([About(9)]))
