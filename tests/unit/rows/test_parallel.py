"""Parallel sums: every row once, infinite parts, forked processes, and the limit on BLAS threads."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl

from setsquare import LinearOrthogonalizer
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve
from setsquare.projection import Projector
from setsquare.rows.parallel import MANY_COLUMNS, add_up, row_slices, single_threaded_blas


@pytest.mark.parametrize("n_rows", [1, 99, 100, 101, 1000, 12345])
@pytest.mark.parametrize("block_bytes", [1, 10_000, 2**22])
def test_slices_cover_every_row_once(n_rows: int, block_bytes: int) -> None:
    covered = np.concatenate([np.arange(n_rows)[part] for part in row_slices(n_rows, 7, block_bytes)])
    np.testing.assert_array_equal(covered, np.arange(n_rows))


def test_infinite_parts_stay_infinite_without_a_warning() -> None:
    total = add_up(iter([(np.array([np.inf, 1.0]),), (np.array([-np.inf, 1e308 * 1.5]),), (np.array([0.0, 1e308]),)]))
    assert np.isnan(total[0][0]) and total[0][1] == np.inf


def fit_large(seed: int = 0) -> int:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60_000, 1))
    Z = X + rng.normal(size=(60_000, 12))
    y = (Z[:, 0] + rng.normal(size=60_000) > 0.0).astype(float)
    return solve(Problem(Z, y, X, family="binomial")).n_iter


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_makes_threads_of_its_own() -> None:
    fit_large()
    child = multiprocessing.get_context("fork").Process(target=fit_large)
    child.start()
    child.join(60)
    alive = child.is_alive()
    child.kill()
    assert not alive and child.exitcode == 0


def threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize("columns", [2, MANY_COLUMNS])
def test_corrections_of_features_give_blas_one_thread_unless_there_are_many_columns(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = []
    for name in ("fit", "apply"):
        before = getattr(Projector, name)
        monkeypatch.setattr(Projector, name, lambda *a, before=before: (inside.append(threads()), before(*a))[1])
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        Z = np.random.default_rng(0).normal(size=(50, columns))
        LinearOrthogonalizer().fit_transform(Z, protected=np.arange(50.0))
        wanted = threads() if columns == MANY_COLUMNS else [1] * len(threads())
        assert inside == [wanted, wanted] and max(threads()) == 2


def test_the_limit_on_blas_threads_goes_when_the_last_of_several_solves_ends() -> None:
    before = threads()
    with ThreadPoolExecutor(4) as pool:
        inside = list(pool.map(lambda seed: (fit_large(seed), threads())[0], range(6)))
    assert len(inside) == 6 and threads() == before
    with single_threaded_blas():
        assert set(threads()) == {1}
    assert threads() == before
