"""Sums by combination of protected values, against the matrix that they stand for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.rows.blocks import BlockRows
from setsquare.rows.cells import MOST_CELLS, Cells, combinations_of
from setsquare.tables.mixed_matrix import join


def draw(n: int = 400):
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, 5, n), rng.integers(0, 9, n)]
    Z = join(np.asfortranarray(rng.normal(size=(n, 2))), codes, [5, 9], [False, True, True, False])
    race = rng.integers(0, 4, n)
    X = np.column_stack([rng.integers(0, 2, n), race == 1, race == 2, race == 3]).astype(float)
    return rng, Z, X


def test_products_are_those_of_the_matrix() -> None:
    rng, Z, X = draw()
    Q, a = X @ rng.normal(size=(4, 4)), rng.normal(size=len(X))
    cells = Cells.of(Z, X, Q)
    assert cells is not None and len(cells.values) == 8
    np.testing.assert_array_equal(cells.values[cells.code], Q)
    np.testing.assert_allclose(cells.product(Z, a), Z.toarray().T @ (a[:, None] * Q), rtol=1e-12, atol=1e-12)
    thin = rng.normal(size=(4, 1))
    np.testing.assert_allclose(cells.times(thin), Q @ thin, rtol=1e-12, atol=1e-12)


def test_columns_with_many_values_or_combinations_have_no_cells() -> None:
    rng, Z, X = draw()
    assert Cells.of(Z, X[:, :2], X[:, :2]) is None  # two columns are as fast
    assert combinations_of(np.column_stack([X, rng.normal(size=len(X))])) is None
    assert combinations_of(rng.integers(0, 2, (400, MOST_CELLS.bit_length())).astype(float)) is None
    assert combinations_of(np.column_stack([np.ones(400), X[:, 0]])).max() == 1  # a constant column does not count


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_objective_is_the_same_without_cells(family: str) -> None:
    rng, Z, X = draw()
    y = rng.integers(0, 2, len(X)).astype(float)
    objective = prepare(Problem(Z, y, X, family=family)).objective
    assert all(block.cells is not None for block in objective.rows.blocks)
    plain = replace(objective, rows=BlockRows([replace(block, cells=None) for block in objective.rows.blocks]))
    theta = objective.start.theta + 0.1 * rng.normal(size=objective.n_parameters)
    lam = rng.normal(size=objective.n_constraints)
    for multipliers in (lam, None):
        ours, other = objective.model(theta, multipliers), plain.model(theta, multipliers)
        for name in ("loss", "c", "spread", "g", "J"):
            np.testing.assert_allclose(getattr(ours, name), getattr(other, name), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(objective.model(theta, lam).H, plain.model(theta, lam).H, rtol=1e-11, atol=1e-12)
