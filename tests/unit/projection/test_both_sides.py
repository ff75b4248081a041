"""Both sides of conditions of projections: one core, constant columns, sums that are not finite, cells of two rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from setsquare.errors import InputError
from setsquare.projection import linear, protected_basis, sampled_erasure
from setsquare.projection.cells import Cells
from setsquare.projection.controls import _refuse_determined, controls_of
from setsquare.projection.erasure import _on_new_rows
from setsquare.projection.linear import subtract_product
from setsquare.projection.moments import Moments
from setsquare.projection.transport import _shrink, _Summary


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("kind", ["new", "in place", "other order", "single", "tensor", "no columns"])
def test_a_product_is_subtracted_alike_on_one_core_and_on_two(monkeypatch, cores, kind):
    monkeypatch.setattr(linear, "n_cores", lambda: cores)
    rng = np.random.default_rng(0)
    A, B = (
        rng.normal(size=(7, 0 if kind == "no columns" else 2)),
        rng.normal(size=(0 if kind == "no columns" else 2, 6)),
    )
    Y = rng.normal(size=(7, 2, 3) if kind == "tensor" else (7, 6))
    wanted = Y - (A @ B).reshape(Y.shape)
    out = Y.astype(np.float32) if kind == "single" else np.full_like(Y, 9.0)
    out = np.asfortranarray(out) if kind == "other order" else Y if kind == "in place" else out
    subtract_product(Y, A, B, np.empty((7, 6)), out)
    np.testing.assert_allclose(out, wanted, rtol=0.0, atol=1e-6 if kind == "single" else 1e-14)


def of_controls(C: Any, X: Any, given: tuple[str, ...] = ("a", "b")) -> Any:
    return controls_of(Moments.of([C, X], None), C.shape[1], ("x", "y"), given)


def test_a_constant_column_among_the_controls_and_among_the_protected_columns():
    rng = np.random.default_rng(0)
    c = rng.normal(size=50)
    C = np.column_stack([np.full(50, 3.0), c])
    X = np.column_stack([c + rng.normal(size=50), rng.normal(size=50)])
    found = of_controls(C, X)
    left = found.residual(X, C)
    assert np.abs(left.T @ (c - c.mean())).max() < 1e-12 and found.free.all()
    with pytest.raises(InputError, match="nothing of the protected columns"):
        of_controls(C, np.column_stack([np.full(50, 1.0), 2.0 * c]))
    assert of_controls(C, np.column_stack([2.0 * c, X[:, 1]])).free.tolist() == [False, True]
    assert of_controls(C, np.column_stack([np.full(50, 1.0), np.full(50, 2.0)])).free.all()


@pytest.mark.parametrize(("count", "shown"), [(4, "Given a, b, c, d, nothing"), (5, "Given a, b, c, d, ..., nothing")])
def test_four_controls_are_named(count, shown):
    with pytest.raises(InputError, match=shown.replace(".", r"\.")):
        _refuse_determined(("x",), tuple("abcde"[:count]))


def test_one_covariance_that_is_not_finite_leaves_nothing_known_on_new_rows():
    basis = protected_basis(np.random.default_rng(0).normal(size=(30, 2)))
    R = np.array([[0.3, 0.1], [0.2, 0.4]])
    known = _on_new_rows(basis, R, 30.0)
    assert np.isfinite(known[0]).all() and known[2] == 30.0
    R[0, 0] = np.nan
    assert np.isnan(np.concatenate(_on_new_rows(basis, R, 30.0)[:2])).all()


@pytest.mark.parametrize(
    ("product", "is_solved"),
    [((1.0, 1.0), True), ((np.nan, 1.0), False), ((-1.0, 1.0), False), ((1.0, np.inf), False), ((0.0, 0.0), False)],
)
def test_conjugate_gradients_end_where_a_curvature_is_negative_or_not_finite(monkeypatch, product, is_solved):
    calls = []

    def times(Z: Any, weight: Any, mean: Any, step: Any) -> Any:
        calls.append(1)
        return step * np.array(product)

    monkeypatch.setattr(sampled_erasure, "_covariance_times", times)
    cross = np.array([[1.0, 0.5], [0.5, 1.0]])
    found = sampled_erasure._conjugate_gradients(np.zeros((4, 2)), None, np.zeros(2), cross, np.eye(2))
    assert (found is not None) is is_solved
    assert len(calls) == (sampled_erasure.MOST_PRODUCTS if product == (0.0, 0.0) else 1)
    if is_solved:
        np.testing.assert_allclose(found, cross, atol=1e-15)


@pytest.mark.parametrize("wrong", ["", "mean", "cross"])
def test_sums_of_all_rows_that_are_not_finite_are_left_to_all_rows(monkeypatch, wrong):
    rng = np.random.default_rng(0)
    Z, Q = rng.normal(size=(300, 3)).astype(np.float32), rng.normal(size=(300, 1))
    monkeypatch.setattr(sampled_erasure, "WORTH", 0.0)
    before = sampled_erasure.single_cross

    def single_cross(*given: Any) -> Any:
        mean, cross = before(*given)
        return (np.full_like(mean, np.nan) if wrong == "mean" else mean), (
            np.full_like(cross, np.nan) if wrong == "cross" else cross
        )

    monkeypatch.setattr(sampled_erasure, "single_cross", single_cross)
    found = sampled_erasure.find_directions(Q, Z, None)
    assert (found is None) is bool(wrong)


def test_the_mean_of_a_cell_of_two_rows_is_kept_and_that_of_one_is_not():
    summary = _Summary(
        np.array([1, 2, 9]), np.array([0.1, 0.2, 0.7]), np.ones((3, 2)), np.full(3, 0.5), np.stack([np.eye(2)] * 3)
    )
    means, _, shares = _shrink(summary, None)
    np.testing.assert_allclose(means, [[0.0, 0.0], [0.75, 0.75], [0.75, 0.75]])
    np.testing.assert_allclose(shares, [2 / 3, 2 / 4, 2 / 11])


def test_a_combination_that_did_not_occur_has_no_cell():
    cells = Cells((np.array([0.5]), np.array([0.5])), np.array([[0, 0], [1, 1]]))
    assert cells.of(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])).tolist() == [0, -1, 1]
