"""Work for other cores: done once, by whoever comes first, with its errors; and products in parts."""

from __future__ import annotations

import threading
import time
import warnings

import numpy as np
import pytest

from setsquare.rows import cores, parallel
from setsquare.rows.cores import Task, hand_over, is_shared, shared
from setsquare.rows.parallel import LEAST_PART, share_out, sum_parts
from setsquare.rows.passes import workers


def test_work_is_done_once_whoever_comes_first() -> None:
    done = list[int]()
    tasks = [hand_over(lambda i=i: (done.append(i), i * i)[1]) for i in range(200)]
    assert [task.result() for task in tasks] == [i * i for i in range(200)]
    assert sorted(done) == list(range(200))


def test_work_that_has_not_begun_is_dropped_and_never_done() -> None:
    done = list[int]()
    task = Task(lambda: done.append(1))
    task.drop()
    task.run()
    assert not done


def test_work_that_has_begun_is_waited_for() -> None:
    begun, go, done = threading.Event(), threading.Event(), list[int]()

    def work() -> None:
        begun.set()
        go.wait(10.0)
        done.append(1)

    task = Task(work)
    threading.Thread(target=task.run).start()
    begun.wait(10.0)
    threading.Timer(0.05, go.set).start()
    task.drop()
    assert done == [1]


@pytest.mark.parametrize("end", [Task.result, Task.drop])
def test_errors_reach_the_caller(end) -> None:
    def fail() -> None:
        raise ZeroDivisionError("here")

    task = Task(fail)
    task.run()
    with pytest.raises(ZeroDivisionError, match="here"):
        end(task)
    assert hand_over(lambda: 7).result() == 7  # the thread that met an error goes on


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch):
    """Slices that ``sum_parts`` asks for, and the threads that work on them, as on a machine of three cores."""
    monkeypatch.setattr(parallel, "n_cores", lambda: 3)
    seen = list[slice]()

    def total(n_rows: int, n_columns: int) -> float:
        seen.clear()

        def work(rows: slice) -> np.ndarray:
            seen.append(rows)
            return np.arange(n_rows)[rows].sum()

        return float(sum_parts(work, n_rows, n_columns))

    return total, seen


def test_products_are_summed_in_a_part_for_each_core_with_enough_numbers(parts) -> None:
    total, seen = parts
    for n_rows, count in ((2 * LEAST_PART // 10 - 1, 1), (2 * LEAST_PART // 10, 2), (LEAST_PART, 3)):
        assert total(n_rows, 10) == n_rows * (n_rows - 1) / 2
        assert len(seen) == count
        covered = np.concatenate([np.arange(n_rows)[rows] for rows in sorted(seen, key=lambda rows: rows.start)])
        np.testing.assert_array_equal(covered, np.arange(n_rows))


def test_products_stay_in_one_part_where_the_rows_are_shared_already(parts) -> None:
    total, seen = parts
    with shared():
        total(LEAST_PART, 10)
        assert len(seen) == 1
    counts = share_out(lambda some: [(is_shared(), total(LEAST_PART, 10), len(seen))[::2]], [1, 2], lambda a, b: a + b)
    assert counts == [(True, 1)] * 2 and not is_shared()
    assert workers().submit(is_shared).result() and hand_over(lambda: True).result()
    total(LEAST_PART, 10)
    assert len(seen) == 3


def test_no_part_warns_of_overflow() -> None:
    A = np.full((LEAST_PART, 10), 1e200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(sum_parts(lambda rows: np.square(A[rows]).sum(axis=0), *A.shape)).all()


def test_an_error_in_any_part_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "n_cores", lambda: 3)

    def fail(rows: slice) -> np.ndarray:
        time.sleep(0.01)
        if rows.start:
            raise ValueError("a later part")
        return np.zeros(1)

    with pytest.raises(ValueError, match="a later part"):
        sum_parts(fail, LEAST_PART, 10)


def test_tasks_are_taken_from_the_queue_where_the_process_began_with_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "n_cores", lambda: 1)
    cores._tasks.cache_clear()
    try:
        task = hand_over(lambda: 3)
        for _ in range(1000):
            if cores._tasks().empty():
                break
            time.sleep(0.01)
        assert cores._tasks().empty() and task.result() == 3
    finally:
        cores._tasks.cache_clear()
