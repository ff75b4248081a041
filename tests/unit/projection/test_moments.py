"""Sums over blocks of rows, and moments of what lies side by side."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.projection.moments import Moments
from setsquare.rows.parallel import OWN_CACHE, n_cores, sum_over_rows, workers

N = 3 * OWN_CACHE // 16  # several blocks of two columns


def test_every_row_is_counted_once_and_the_digits_are_always_the_same() -> None:
    A = np.random.default_rng(0).normal(size=(N, 2))
    first = sum_over_rows(lambda rows, _: (A[rows].sum(axis=0), np.array(len(A[rows]))), N, 2)
    np.testing.assert_allclose(first[0], A.sum(axis=0), rtol=1e-11)
    assert first[1] == N
    for _ in range(5):
        again = sum_over_rows(lambda rows, _: (A[rows].sum(axis=0),), N, 2)
        np.testing.assert_array_equal(again[0], first[0])


def test_a_worker_may_ask_for_a_sum_itself() -> None:
    """As batches of a stream do: if it waited for the others, which wait too, nothing would ever end."""
    A = np.ones((N, 2))
    tasks = [workers().submit(Moments.of, A) for _ in range(4 * n_cores())]
    assert [task.result(timeout=60).weight for task in tasks] == [N] * len(tasks)


def test_an_error_in_any_block_is_raised() -> None:
    def fail(rows: slice, memory: np.ndarray) -> tuple[()]:
        if rows.stop == N:
            raise ValueError("the last block")
        return ()

    with pytest.raises(ValueError, match="the last block"):
        sum_over_rows(fail, N, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_side_by_side_are_one_matrix(dtype, order, weighted) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 1)) + 1e6
    Z = np.asarray(X - 1e6 + rng.normal(size=(N, 3)) + 5.0, dtype=dtype, order=order)
    weight = rng.exponential(size=N) if weighted else None
    found, A = Moments.of([X, Z], weight), np.hstack([X, Z])
    w = np.ones(N) if weight is None else weight
    mean = (w / w.sum()) @ A
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(found.scatter, ((A - mean) * w[:, None]).T @ (A - mean), rtol=1e-9)
    assert found.weight == pytest.approx(w.sum(), rel=1e-12)
