"""Sums over row blocks do not depend on the blocks, nor on whether the features are sparse."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl
from scipy import sparse

from setsquare.glm.aliasing import as_double
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve
from setsquare.rows import blocks as rows_module
from setsquare.rows.blocks import ArrayRows, add_up, is_sparse, row_slices
from setsquare.rows.products import weighted_gram, weighted_product


def draw_rows(n: int = 1234, q: int = 5, seed: int = 0, *, make=np.asarray) -> ArrayRows:
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, q)) * (rng.random((n, q)) < 0.4)
    weight = rng.random(n)
    return ArrayRows(
        Z=make(Z),
        y=rng.normal(size=(n, 2)),
        Q=rng.normal(size=(n, 3)),
        weight=weight / weight.sum(),
        offset=rng.normal(size=(n, 2)),
        X=rng.normal(size=(n, 4)),
    )


def kernel(block) -> tuple[np.ndarray, ...]:
    """Something of every part."""
    return (
        weighted_gram(block.Z, block.weight),
        np.asarray(block.Z.T @ block.y),
        block.Q.T @ (block.weight[:, None] * block.offset),
        np.asarray(block.X.sum()),
    )


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("block_bytes", [1, 8 * 5 * 100, 8 * 5 * 333, 2**30])
def test_sums_do_not_depend_on_the_size_of_blocks(block_bytes: int, make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = kernel(draw_rows(make=make))  # the rows themselves have all that a block has
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(rows_module, "SHARE_BYTES", 1)
    whole = draw_rows(make=make)
    assert len(whole.blocks) > 1
    for ours, expected in zip(whole.reduce(kernel), one, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


def test_large_rows_are_cut_and_their_sums_are_the_same_each_time() -> None:
    big = draw_rows(n=200_000, q=8)
    assert len(big.blocks) > 1
    assert sum(len(block.y) for block in big.blocks) == big.n_rows == 200_000
    first, second = big.reduce(kernel), big.reduce(kernel)
    for a, b, expected in zip(first, second, kernel(big), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, expected, rtol=1e-10, atol=1e-9)


def test_an_error_in_a_kernel_reaches_the_caller() -> None:
    big = draw_rows(n=200_000, q=8)

    def broken(block) -> tuple[np.ndarray, ...]:
        raise ZeroDivisionError("in a block")

    with pytest.raises(ZeroDivisionError, match="in a block"):
        big.reduce(broken)


@pytest.mark.parametrize("n_rows", [1, 99, 100, 101, 1000, 12345])
@pytest.mark.parametrize("block_bytes", [1, 10_000, 2**22])
def test_slices_cover_every_row_once(n_rows: int, block_bytes: int) -> None:
    covered = np.concatenate([np.arange(n_rows)[part] for part in row_slices(n_rows, 7, block_bytes)])
    np.testing.assert_array_equal(covered, np.arange(n_rows))


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, sparse.csr_matrix], ids=["dense", "array", "matrix"])
@pytest.mark.parametrize("signs", ["positive", "negative", "mixed", "zero"])
def test_weighted_gram_with_weights_of_any_sign(signs: str, make) -> None:
    rng = np.random.default_rng(1)
    A = rng.normal(size=(50, 4))
    weight = {
        "positive": rng.random(50),
        "negative": -rng.random(50),
        "mixed": rng.normal(size=50),
        "zero": np.zeros(50),
    }[signs]
    brute = sum(w * np.outer(a, a) for w, a in zip(weight, A, strict=True))
    gram = weighted_gram(make(A), weight)
    assert isinstance(gram, np.ndarray)
    np.testing.assert_allclose(gram, brute, atol=1e-12)
    np.testing.assert_allclose(gram, gram.T, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("left", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("right", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_weighted_product_of_any_two_kinds(left, right) -> None:
    rng = np.random.default_rng(2)
    A, B, weight = rng.normal(size=(50, 4)), rng.normal(size=(50, 3)), rng.normal(size=50)
    product = weighted_product(left(A), weight, right(B))
    assert isinstance(product, np.ndarray) and product.shape == (4, 3)
    np.testing.assert_allclose(product, A.T @ np.diag(weight) @ B, atol=1e-12)


def test_infinite_parts_stay_infinite_without_a_warning() -> None:
    total = add_up(iter([(np.array([np.inf, 1.0]),), (np.array([-np.inf, 1e308 * 1.5]),), (np.array([0.0, 1e308]),)]))
    assert np.isnan(total[0][0]) and total[0][1] == np.inf


def test_double_precision_without_a_copy_where_it_is_there_already() -> None:
    A = np.ones((3, 2))
    assert as_double(A) is A
    assert as_double(A.astype(np.float32)).dtype == np.float64
    S = sparse.csr_array(A.astype(np.float32))
    assert as_double(S).dtype == np.float64 and is_sparse(as_double(S)) and not is_sparse(A)


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


def test_the_limit_on_blas_threads_goes_when_the_last_of_several_solves_ends() -> None:
    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    before = threads()
    with ThreadPoolExecutor(4) as pool:
        inside = list(pool.map(lambda seed: (fit_large(seed), threads())[0], range(6)))
    assert len(inside) == 6 and threads() == before
    with rows_module.single_threaded_blas():
        assert set(threads()) == {1}
    assert threads() == before


def test_threads_do_not_share_their_scratch_memory() -> None:
    rng = np.random.default_rng(0)
    A = [rng.normal(size=(20_000, 20)) for _ in range(4)]
    w = rng.random(20_000)
    expected = [a.T @ (a * w[:, None]) for a in A]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for ours, right in zip(pool.map(lambda a: weighted_gram(a, w), A), expected, strict=True):
                np.testing.assert_allclose(ours, right, rtol=1e-9, atol=1e-7)
