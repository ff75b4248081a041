"""Shared parts of the permutation tests: p-values, samples of rows, checks."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.auditing.evaluations.permutation import (
    columns_by_source,
    paired_arrays,
    permutation_test,
    row_blocks,
    sample_rows,
)
from setsquare.errors import InputError, MissingValuesError

GOOD = np.arange(8.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_on_either_side(bad: float) -> None:
    for place in (0, 7):
        wrong = GOOD.copy()
        wrong[place] = bad
        for y, X in ((wrong, GOOD[:, None]), (GOOD, wrong[:, None]), (GOOD, np.column_stack([GOOD, wrong]))):
            with pytest.raises(MissingValuesError, match="predictions or the protected columns have"):
                paired_arrays(y, X, 99)


def test_shapes_rows_and_permutations_are_checked() -> None:
    y, X = paired_arrays(GOOD, GOOD[:, None], 1)
    assert y.shape == X.shape == (8, 1)
    assert paired_arrays(np.ones((8, 3)), GOOD[:, None], 1)[0].shape == (8, 3)
    for wrong_y, wrong_X in ((GOOD, GOOD), (GOOD[:7], GOOD[:, None]), (np.ones((8, 1, 1)), GOOD[:, None])):
        with pytest.raises(InputError, match="do not belong together"):
            paired_arrays(wrong_y, wrong_X, 99)
    with pytest.raises(InputError, match="n_permutations=0 gives no p-value"):
        paired_arrays(GOOD, GOOD[:, None], 0)
    with pytest.raises(InputError, match="7 rows are too few"):
        paired_arrays(GOOD[:7], GOOD[:7, None], 99)


def test_ties_and_missing_null_statistics_never_make_a_p_value_small() -> None:
    assert permutation_test(1.0, np.array([1.0 - 1e-12, 0.5, 0.2]), n_rows=9).p_value == 0.5
    assert permutation_test(1.0, np.array([1.0 - 1e-8, 0.5, 0.2]), n_rows=9).p_value == 0.25
    assert permutation_test(-2.0, np.array([-1.0, -3.0, np.nan]), n_rows=9).p_value == 0.75
    found = permutation_test(2.0, np.array([0.0, 4.0]), n_rows=9, n_blocks=3)
    assert (found.null_mean, found.null_sd, found.n_permutations, found.n_rows, found.n_blocks) == (2.0, 2.0, 2, 9, 3)


def test_rows_are_drawn_once_and_in_blocks_of_one_size() -> None:
    rng = np.random.default_rng(0)
    blocks = row_blocks(103, rng, max_rows=50, block_rows=20)
    assert blocks.shape == (3, 16) and len(set(blocks.ravel())) == 48 and blocks.max() < 103
    assert row_blocks(40, rng, max_rows=50, block_rows=20).shape == (2, 20)
    for limits in ({"max_rows": 7, "block_rows": 20}, {"max_rows": 20, "block_rows": 7}):
        with pytest.raises(InputError, match="at least 8 rows per block"):
            row_blocks(40, rng, **limits)
    assert row_blocks(40, rng, max_rows=8, block_rows=8).shape == (1, 8)
    drawn = sample_rows(100, 10, rng)
    assert len(set(drawn)) == 10 and list(drawn) == sorted(drawn)
    assert sample_rows(10, 10, rng).tolist() == list(range(10))


def test_columns_of_a_source_stay_together() -> None:
    assert columns_by_source(["b", "a", "b"], 3) == {"b": [0, 2], "a": [1]}
    for sources, count in ((["a"], 2), ([], 0)):
        with pytest.raises(InputError, match="give one per column"):
            columns_by_source(sources, count)
