"""Weighted products of dense and sparse matrices, against their definition and across threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse

from setsquare.rows.products import weighted_gram, weighted_product


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


def test_weights_far_below_one_count_in_full() -> None:
    A = np.random.default_rng(3).normal(size=(50, 4))
    np.testing.assert_allclose(weighted_gram(A, np.full(50, 1e-260)), 1e-260 * (A.T @ A), rtol=1e-12)


@pytest.mark.parametrize("left", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("right", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_weighted_product_of_any_two_kinds(left, right) -> None:
    rng = np.random.default_rng(2)
    A, B, weight = rng.normal(size=(50, 4)), rng.normal(size=(50, 3)), rng.normal(size=50)
    product = weighted_product(left(A), weight, right(B))
    assert isinstance(product, np.ndarray) and product.shape == (4, 3)
    np.testing.assert_allclose(product, A.T @ np.diag(weight) @ B, atol=1e-12)


def test_threads_do_not_share_their_scratch_memory() -> None:
    rng = np.random.default_rng(0)
    A = [rng.normal(size=(20_000, 20)) for _ in range(4)]
    w = rng.random(20_000)
    expected = [a.T @ (a * w[:, None]) for a in A]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for ours, right in zip(pool.map(lambda a: weighted_gram(a, w), A), expected, strict=True):
                np.testing.assert_allclose(ours, right, rtol=1e-9, atol=1e-7)
