"""Rare branches of the projections: odd units, rows without weight, constants, and the numbers in refusals."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.errors import InputError
from setsquare.projection import (
    Eraser,
    GeneralizedProjector,
    Transport,
    basis_of_moments,
    generalized,
    protected_basis,
    sampled_erasure,
)
from setsquare.projection.basis import keeps_all, settle_basis
from setsquare.projection.cells import find_cells
from setsquare.projection.controls import fit_controls
from setsquare.projection.moments import Moments
from setsquare.projection.ridge_erasure import _solve_clusters
from setsquare.projection.sampled_erasure import Sampled

RNG = np.random.default_rng


def test_collinear_columns_of_very_different_units_keep_their_rank() -> None:
    a, b = RNG(0).normal(size=(2, 90))
    found = basis_of_moments(Moments.of(np.column_stack([1e-9 * a, b, 2e-9 * a])))
    assert found.rank == 2 and found.collinear == ("x2",)


def test_controls_that_are_different_constants_explain_nothing() -> None:
    X, C = RNG(1).normal(size=(50, 2)), np.column_stack([np.full(50, 2.0), np.full(50, 3.0)])
    found = fit_controls(X, C, None, ("a", "b"))
    assert found.transform.shape == (2, 0) and np.allclose(found.residual(X, C), X - X.mean(axis=0))


def test_the_cells_that_are_too_small_are_counted() -> None:
    Z, X = RNG(2).normal(size=(60, 4)), np.repeat([0.0, 1.0, 2.0], [30, 27, 3])[:, None]
    with pytest.raises(InputError, match=r"^1 of 3 cells .* dimensions \(4\)"):
        Transport.fit(Z, X, None, None, 0.0)


def test_a_sample_without_weight_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_erasure, "WORTH", 1.0)
    Z, weight = RNG(3).normal(size=(300, 4)).astype(np.float32), np.ones(300)
    weight[:: 300 // 40] = 0.0
    assert sampled_erasure.find_directions(RNG(4).normal(size=(300, 1)), Z, weight) is None
    assert sampled_erasure.find_directions(RNG(4).normal(size=(300, 1)), Z, np.ones(300)) is not None


@pytest.mark.parametrize("kind", ["cluster", "preserve"])
def test_clusters_and_preserved_columns_need_all_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of the rows says nothing of clusters, and preserved columns would be lost."""
    monkeypatch.setattr(sampled_erasure, "WORTH", 1.0)
    Z, X = RNG(5).normal(size=(900, 64)).astype(np.float32), RNG(6).normal(size=(900, 1))
    Z[:, :2] += X.astype(np.float32)
    cluster, kept = np.arange(900) // 3, Z[:, 1:2] + RNG(7).normal(size=(900, 1))
    more = {"cluster": cluster} if kind == "cluster" else {"preserve": kept.astype(float)}
    single = Eraser.fit(Z, protected_basis(X), X, **more)
    double = Eraser.fit(Z.astype(float), protected_basis(X), X, **more)
    assert single.n_rows == pytest.approx(double.n_rows, rel=1e-4)
    assert np.isnan(single.overlap) == (kind == "cluster") and np.isnan(single.kept) == (kind == "cluster")


def test_a_feature_of_zeros_changes_nothing() -> None:
    Z, X = RNG(8).normal(size=(80, 3)), RNG(9).normal(size=(80, 2))
    Z[:, 0] += X[:, 0]
    more = np.column_stack([Z, np.zeros(80)])
    one, two = (Eraser.fit_for_new_rows(features, protected_basis(X), X) for features in (Z, more))
    np.testing.assert_allclose(two.apply(more), np.column_stack([one.apply(Z), np.zeros(80)]), atol=1e-12)
    np.testing.assert_allclose(two.explained, one.explained, rtol=1e-9)


def test_what_cannot_be_told_has_one_number_for_each_protected_column() -> None:
    Z, X = RNG(10).normal(size=(22, 20)), RNG(11).normal(size=(22, 2))
    X = np.column_stack([X, X.sum(axis=1)])  # a rank of two
    found = Eraser.fit(Z, protected_basis(X), X)
    assert found.explained.shape == found.removed.shape == (3,) and np.isnan(found.explained).all()


@pytest.mark.parametrize(("share", "rank"), [(0.7, 1), (1.4, 2)])
def test_columns_far_from_zero_differ_by_more_than_rounding(share: float, rank: int) -> None:
    size, mean = 1e-9, np.array([0.0, 1.0])
    limit = 4.0 * np.finfo(float).eps / size
    R = size * np.array([[1.0, 1.0], [0.0, share * limit]])
    assert keeps_all(mean, R) is (rank == 2) and settle_basis(mean, R, ("a", "b")).rank == rank


def test_a_cluster_with_all_the_weight_is_counted() -> None:
    U, Q, root = np.zeros((2, 2, 1)), np.ones((2, 2, 1)), np.sqrt(np.array([[0.5, 0.5], [0.1, 0.2]]))
    error, _, _, full = _solve_clusters(U, Q, root, np.zeros((1, 1)), np.ones(1))
    assert full == 1 and np.isfinite(error)


def test_an_array_without_units_has_nothing_to_correct() -> None:
    X = np.random.default_rng(0).normal(size=(50, 2))
    found = GeneralizedProjector.fit(np.zeros((50, 0)), X, "sigmoid")
    assert found.coefficients.shape == (3, 0) and found.predict(np.zeros((50, 0)), X).shape == (50, 0)


def test_directions_without_covariance_are_left_out() -> None:
    """Two columns with the same covariances have one direction; the other is zero, not divided by zero."""
    cross = np.outer(RNG(8).normal(size=4), np.ones(2))
    covariances, directions, loadings = Sampled(np.zeros(4), cross, cross).whiten()
    assert all(np.isfinite(found).all() for found in (covariances, directions, loadings))
    np.testing.assert_allclose(directions @ loadings, cross[:, :1] @ cross[:, :1].T / (cross[:, 0] @ cross[:, 0]))


def test_cells_of_no_rows_are_numbers() -> None:
    cells = find_cells(np.array([[0.0, 1.0], [0.0, 2.0], [1.0, 1.0]]), n_features=2)
    assert cells.of(np.zeros((0, 2))).dtype == np.intp


@pytest.mark.parametrize("gap", [1e-11, 1e-9])
def test_a_small_correlation_is_enough_where_rounding_lets_it_become_no_smaller(gap: float) -> None:
    """The gradient does not vanish: its rounding error is above the limit relative to the size of the output."""
    one = np.ones(1)

    def sums(B: np.ndarray, active: object) -> generalized._ProblemState:
        return generalized._ProblemState(one, np.full((1, 1), gap), np.ones((1, 1, 1)), one, one, one, one)

    *_, converged, n_iter = generalized._minimise(sums, 1, 1, 20)
    assert converged.tolist() == [gap <= generalized.TOLERANCE] and (n_iter < 20) == converged[0]
