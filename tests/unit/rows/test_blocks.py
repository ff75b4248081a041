"""Sums over row blocks do not depend on the blocks, nor on whether the features are sparse."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from setsquare.glm.aliasing import as_double
from setsquare.rows import blocks as rows_module
from setsquare.rows.blocks import ArrayRows, is_sparse
from setsquare.rows.products import weighted_gram


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
    monkeypatch.setattr(rows_module, "HELD_BYTES", block_bytes)
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


def test_double_precision_without_a_copy_where_it_is_there_already() -> None:
    A = np.ones((3, 2))
    assert as_double(A) is A
    assert as_double(A.astype(np.float32)).dtype == np.float64
    S = sparse.csr_array(A.astype(np.float32))
    assert as_double(S).dtype == np.float64 and is_sparse(as_double(S)) and not is_sparse(A)
