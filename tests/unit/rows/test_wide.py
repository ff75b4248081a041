"""Features as stored, with an implicit column of ones."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.rows.products import gram_and_product, weighted_gram
from setsquare.rows.wide import Slab


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("far", [False, True])
def test_products_with_ones_and_shift(order: str, dtype: type, far: bool) -> None:
    rng = np.random.default_rng(0)
    Z = np.asarray(rng.normal(3.0, 1.0, size=(40, 5)), dtype=dtype, order=order)
    before, mean = Z.copy(), np.array([0.0, 3.0, 0.0, 2.9, 0.0]) * far
    slab, w, thin = Slab.shifted(Z, mean), rng.normal(size=40), rng.normal(size=(40, 3))
    A = np.column_stack([np.ones(40), Z - mean])
    np.testing.assert_array_equal(slab.toarray(), A)
    B = rng.normal(size=(6, 2))
    np.testing.assert_allclose(slab @ B, A @ B, atol=1e-12)
    np.testing.assert_allclose(slab.T @ thin, A.T @ thin, atol=1e-12)
    np.testing.assert_allclose(slab.T @ w, A.T @ w, atol=1e-12)
    gram, product = gram_and_product(slab, w, thin)
    np.testing.assert_allclose(gram, A.T @ (w[:, None] * A), atol=1e-11)
    np.testing.assert_allclose(product, A.T @ thin, atol=1e-11)
    np.testing.assert_allclose(weighted_gram(slab, w), gram, atol=1e-12)
    np.testing.assert_array_equal(Z, before)
