"""Parts of the projections against brute force, and their limits just inside and just outside."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.errors import InputError, MissingValuesError
from setsquare.projection import Eraser, GeneralizedProjector, Projector, Transport, basis_of_moments, protected_basis
from setsquare.projection import transport as transport_module
from setsquare.projection.basis import (
    check_rows,
    cholesky_factor,
    keeps_all,
    largest_leverage,
    leverages,
    settle_basis,
)
from setsquare.projection.cells import find_cells
from setsquare.projection.controls import fit_controls
from setsquare.projection.identifiability import pho
from setsquare.projection.isotropic import find_isotropic
from setsquare.projection.moments import Moments, Ranges
from setsquare.projection.oblique import find_oblique
from setsquare.projection.quadratic_erasure import fit_quadratic
from setsquare.projection.ridge_erasure import (
    PENALTIES,
    LabelledRows,
    column_coordinates,
    effective_rows,
    fit_ridge,
    independent_rows,
    quadratic_forms,
    unbiased_gram,
)
from setsquare.projection.single_precision import is_enough, single_moments
from setsquare.projection.whitening import whiten
from setsquare.rows.blocks import ArrayRows, Block

RNG = np.random.default_rng


def weights(n: int, seed: int = 9) -> np.ndarray:
    return RNG(seed).uniform(0.2, 3.0, n)


def covariance(A: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
    share = np.full(len(A), 1.0 / len(A)) if w is None else w / w.sum()
    centred = A - share @ A
    return (centred * share[:, None]).T @ centred


def block(Z: np.ndarray, w: np.ndarray) -> Block:
    nothing = np.zeros((len(Z), 0))
    return Block(Z, nothing, nothing, w, np.zeros((len(Z), 1)))


# ----------------------------------------------------------------------------------------------------------- basis
def test_leverages_are_the_diagonal_of_the_hat_matrix() -> None:
    Z, w = RNG(0).normal(size=(40, 3)), weights(40)
    w /= w.sum()
    D = np.column_stack([np.ones(40), Z]) * np.sqrt(w)[:, None]
    hat = np.einsum("ij,ij->i", D, np.linalg.pinv(D).T)
    basis = protected_basis(Z, w)
    np.testing.assert_allclose(leverages(basis, block(Z, w)), hat, rtol=1e-11)
    nothing = np.zeros((40, 0))
    assert largest_leverage(basis, ArrayRows(Z, nothing, nothing, w)) == pytest.approx(hat.max(), rel=1e-11)


def test_the_reach_of_a_basis_bounds_every_row_of_the_box() -> None:
    X = RNG(0).normal(size=(50, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]])
    basis = protected_basis(X)
    low, high = X.min(0) - 1.0, X.max(0) + 2.0
    corners = np.array([[a, b] for a in (low[0], high[0]) for b in (low[1], high[1])])
    norms = np.linalg.norm(basis.apply(corners), axis=1)
    assert norms.max() <= basis.reach(low, high)
    one = protected_basis(X[:, :1])  # with one column it is attained
    assert one.reach(low[:1], high[:1]) == pytest.approx(np.abs(one.apply(corners[:, :1])).max(), rel=1e-13)


def test_a_basis_of_moments_is_that_of_the_rows() -> None:
    X, w = RNG(0).normal(size=(60, 3)) + 5.0, weights(60)
    one, other = protected_basis(X, w), basis_of_moments(Moments.of(X, w))
    np.testing.assert_allclose(one.transform, other.transform, rtol=1e-10)
    assert one.names == other.names == ("x0", "x1", "x2")
    X = np.column_stack([X, X[:, 0] + X[:, 1], np.full(60, 3.0)])
    found = basis_of_moments(Moments.of(X, w), ("a", "b", "c", "d", "e"))
    assert (found.rank, found.collinear, found.constant, found.dropped) == (3, ("d",), ("e",), ("e", "d"))
    np.testing.assert_allclose(covariance(found.apply(X), w), np.eye(3), atol=1e-6)


def test_as_many_columns_as_rows_are_refused() -> None:
    check_rows(4, 3)
    for p in (4, 5):
        with pytest.raises(InputError, match=rf"n_samples = 4\) for {p} protected"):
            check_rows(4, p)
        with pytest.raises(InputError, match="Too few rows"):
            protected_basis(RNG(0).normal(size=(4, p)))


@pytest.mark.parametrize("fit", [protected_basis, lambda X, names: basis_of_moments(Moments.of(X), names)])
def test_columns_with_missing_values_are_named_and_others_not(fit) -> None:
    X = RNG(0).normal(size=(20, 3))
    X[3, 1] = np.nan
    with pytest.raises(MissingValuesError, match=r"column\(s\) b have"):
        fit(X, names=("a", "b", "c"))


def test_factors_of_nearly_collinear_columns_are_left_to_qr() -> None:
    def gram(share: float) -> np.ndarray:  # of the second column, this share is outside the first
        return np.array([[1.0, np.sqrt(1.0 - share**2)], [np.sqrt(1.0 - share**2), 1.0]])

    R = cholesky_factor(4.0 * gram(2e-3))
    assert R is not None and np.allclose(np.tril(R, -1), 0.0)
    np.testing.assert_allclose(R.T @ R, 4.0 * gram(2e-3), rtol=1e-14)
    assert cholesky_factor(gram(0.5e-3)) is None and cholesky_factor(gram(0.5e-3), 1e-4) is not None
    assert cholesky_factor(np.diag([1.0, 0.0])) is None and cholesky_factor(np.diag([1.0, -1.0])) is None


@pytest.mark.parametrize(
    ("mean", "R", "kept"),
    [
        ((0.0, 0.0), [[1.0, 0.5], [0.0, 1.0]], True),
        ((0.0, 0.0), [[1.0, 1.0], [0.0, 2e-9]], True),
        ((0.0, 0.0), [[1.0, 1.0], [0.0, 0.5e-9]], False),
        ((0.0, 1e8), [[1.0, 1.0], [0.0, 2e-7]], True),  # rounding of its digits is 4 eps 1e8 = 0.9e-7
        ((0.0, 1e8), [[1.0, 1.0], [0.0, 0.5e-7]], False),
        ((0.0, 1.0), [[1.0, 0.0], [0.0, 2e-13]], True),
        ((1.0, 0.0), [[0.5e-13, 0.0], [0.0, 1.0]], False),
        ((0.0, 0.0), [[0.0, 0.0], [0.0, 1.0]], False),
    ],
)
def test_which_columns_have_a_direction_of_their_own(mean, R, kept: bool) -> None:
    assert keeps_all(np.array(mean), np.array(R)) is kept
    assert (settle_basis(np.array(mean), np.array(R), ("a", "b")).rank == 2) is kept


# --------------------------------------------------------------------------------------------------------- moments
def test_ranges_are_merged_from_their_parts() -> None:
    Z, w = np.column_stack([np.arange(6.0), RNG(0).normal(size=6)]), weights(6)
    whole = Ranges.of(block(Z, w))
    parts = Ranges.of(block(Z[:2], w[:2])).merge(Ranges.of(block(Z[2:], w[2:])))
    for one in (whole, parts):
        np.testing.assert_array_equal(one.low, Z.min(0))
        np.testing.assert_array_equal(one.high, Z.max(0))
        np.testing.assert_allclose(one.total, Z.sum(0))
        assert one.is_whole.tolist() == [True, False] and one.heaviest == w.max()
        assert one.concentration == pytest.approx((w**2).sum())
        np.testing.assert_allclose(one.moments.scatter, w.sum() * covariance(Z, w), rtol=1e-10)
        np.testing.assert_allclose(one.moments.mean, w @ Z / w.sum(), rtol=1e-12)


def test_a_column_that_varies_only_without_weight_is_constant() -> None:
    A, w = np.full((20, 2), 0.1), np.ones(20)
    A[:, 1], A[0, 0], w[0] = RNG(0).normal(size=20), 7.0, 0.0
    found = Moments.of(A, w)
    assert found.scatter[0, 0] == 0.0 and found.mean[0] == 0.1 and found.weight == 19.0
    assert Moments.of(A, np.r_[np.zeros(19), 1.0]).mean[1] == pytest.approx(A[-1, 1])
    assert not np.isfinite(Moments.of(np.array([[1e200], [-1e200]])).scatter).any()


@pytest.mark.parametrize("n", [7, 300, 4097, 9000])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_in_single_precision(n: int, weighted: bool) -> None:
    rng = RNG(n)
    Q, Z = rng.normal(size=(n, 2)), np.float32(rng.normal((3.0, -2.0, 0.0), size=(n, 3)))
    w = weights(n) if weighted else None
    found, exact = single_moments(Q, Z, w), Moments.of([Q, Z], w)
    assert found.weight == pytest.approx(exact.weight)
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-7)
    scale = np.sqrt(np.outer(np.diag(exact.scatter), np.diag(exact.scatter)))
    np.testing.assert_allclose(found.scatter / scale, exact.scatter / scale, atol=2e-6)
    np.testing.assert_allclose(found.scatter[:2] / scale[:2], exact.scatter[:2] / scale[:2], atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_single_precision_is_enough_unless_features_are_nearly_collinear(size: float) -> None:
    def enough(share: float) -> bool:
        S = size * np.array([[1.0, 1.0 - share], [1.0 - share, 1.0]])
        return is_enough(S, np.linalg.cholesky(S).T)

    assert enough(0.5) and enough(1e-5) and not enough(5e-6) and not enough(1e-7)


# ----------------------------------------------------------------------------------------------------------- cells
@pytest.mark.parametrize(
    ("n", "n_features", "bands"), [(4000, 1, 10), (150, 1, 5), (95, 1, 3), (40, 1, 2), (300, 50, 3), (150, 50, 2)]
)
def test_bands_leave_about_two_rows_per_feature_and_thirty_rows(n: int, n_features: int, bands: int) -> None:
    X = RNG(0).normal(size=(n, 1))
    cells = find_cells(X, n_features)
    counts = np.bincount(cells.of(X))
    assert len(cells.codes) == len(counts) == bands and counts.max() - counts.min() <= 1


def test_levels_up_to_eight_are_kept_and_two_banded_columns_share_the_room() -> None:
    for levels, parts in ((8, 8), (9, 2)):
        X = np.resize(np.arange(levels, dtype=float), 72)[:, None]
        assert len(find_cells(X, 2).codes) == parts
    X = RNG(0).normal(size=(30 * 16, 2))
    assert [len(cuts) for cuts in find_cells(X, 1).thresholds] == [3, 3]  # 4 bands each
    with_sex = np.column_stack([X[:, 0], np.arange(480) % 2])
    assert [len(cuts) for cuts in find_cells(with_sex, 1).thresholds] == [7, 1]  # 480 / (2 x 30) bands
    steps = find_cells(np.array([[1.0], [1.0], [3.0]]), 1)
    assert steps.thresholds[0].tolist() == [2.0]  # half way, and a value on it belongs above
    assert steps.split(np.array([[1.9], [2.0], [9.0]])).ravel().tolist() == [0, 1, 1]


# -------------------------------------------------------------------------------------------------------- controls
def test_controls_that_determine_some_or_all_columns() -> None:
    C = RNG(0).normal(size=(50, 2))
    own = RNG(1).normal(size=50)
    X = np.column_stack([C[:, 0] - 2.0 * C[:, 1], own, np.full(50, 4.0)])
    found = fit_controls(X, C, None, ("a", "b", "c"))
    assert found.names(("a", "b", "c")) == ("b", "c") and found.free.tolist() == [False, True, True]
    np.testing.assert_allclose(covariance(found.basis(C)), np.eye(2), atol=1e-12)
    D = np.column_stack([np.ones(50), C])
    np.testing.assert_allclose(found.residual(X, C)[:, 0], own - D @ np.linalg.lstsq(D, own, rcond=None)[0], atol=1e-12)
    w = weights(50)
    weighted = fit_controls(X[:, 1:2], C, w, ("b",)).residual(X[:, 1:2], C)
    np.testing.assert_allclose((C - w @ C / w.sum()).T @ (w[:, None] * weighted), 0.0, atol=1e-11)
    names = tuple("abcdef")
    with pytest.raises(InputError, match=r"Given u, v, nothing of the protected columns \(a\) is left"):
        fit_controls(X[:, :1], C, None, ("a",), ("u", "v"))
    many = np.column_stack([C, *(C[:, 0] * k for k in range(2, 6))])
    with pytest.raises(InputError, match=r"Given a, b, c, d, \.\.\., nothing"):
        fit_controls(X[:, :1], many, None, ("a",), names)
    with pytest.raises(InputError, match="Given the controls, nothing"):
        fit_controls(X[:, :1], C, None, ("a",))


# --------------------------------------------------------------------------------------------------------- oblique
@pytest.mark.parametrize(("overlap", "passes"), [(0.9985, True), (0.9995, False)])
def test_preserved_and_protected_directions_must_differ(overlap: float, passes: bool) -> None:
    protected, preserved = np.array([[0.5], [0.0]]), 0.3 * np.array([[overlap], [np.sqrt(1.0 - overlap**2)]])
    if not passes:
        with pytest.raises(InputError, match=r"predictions correlate with 0\.9995"):
            find_oblique(protected, preserved)
        return
    found = find_oblique(protected, preserved)
    P = np.eye(2) - found.variates @ found.left.T
    np.testing.assert_allclose(P @ protected, 0.0, atol=1e-12)
    np.testing.assert_allclose(P @ preserved, preserved, atol=1e-12)
    assert found.overlap == pytest.approx(overlap) and found.kept == pytest.approx(1.0 - overlap**2)


def test_directions_that_are_rounding_error_are_kept() -> None:
    protected = np.diag([0.5, 0.5e-9])
    found = find_oblique(protected, np.zeros((2, 0)))
    assert found.correlations.tolist() == [0.5] and found.left.shape == (2, 1) and np.isnan(found.overlap)
    assert len(find_oblique(np.diag([0.5, 2e-9]), np.zeros((2, 0))).correlations) == 2
    none = find_oblique(np.array([[0.5], [0.0]]), np.zeros((2, 1)))  # nothing predicts what is to be preserved
    assert none.overlap == 0.0 and none.kept == 1.0


# ------------------------------------------------------------------------------------------------------------- PHO
def test_identified_effects_and_their_errors_by_hand() -> None:
    rng = RNG(0)
    X, w = rng.normal(size=(30, 2)), weights(30)
    u, y = np.sin(X[:, 0]) + X[:, 1], rng.normal(size=30)
    D, W = np.column_stack([np.ones(30), X]), np.diag(w)
    inverse = np.linalg.inv(D.T @ W @ D)
    moved = inverse @ D.T @ W @ u
    found = pho(X, u, coef=np.array([1.0, -1.0]), intercept=0.5, sample_weight=w, y=y)
    np.testing.assert_allclose([found.intercept, *found.coef], np.array([0.5, 1.0, -1.0]) + moved, rtol=1e-11)
    np.testing.assert_allclose(found.flexible, u - D @ moved, atol=1e-12)
    hat = np.einsum("ij,jk,ik->i", D, inverse, D) * w
    e = (y - found.intercept - X @ found.coef - found.flexible) / (1.0 - hat)
    sandwich = inverse @ D.T @ np.diag((w * e) ** 2) @ D @ inverse
    np.testing.assert_allclose(found.std_error, np.sqrt(np.diag(sandwich))[1:], rtol=1e-10)
    plain = pho(X, u)
    assert plain.std_error is None and plain.intercept == pytest.approx(np.linalg.lstsq(D, u, rcond=None)[0][0])
    pho(X[:3], u[:3])  # as many rows as effects
    for bad in (np.column_stack([X, X[:, 0]]), np.column_stack([X, np.ones(30)])):
        with pytest.raises(InputError, match="constant or linear combinations"):
            pho(bad, u)
    with pytest.raises(InputError, match="constant or linear combinations"):
        pho(X[:2], u[:2])
    for wrong in (X[:-1], X[:, 0]):
        with pytest.raises(InputError, match="shape"):
            pho(wrong, u)


# ------------------------------------------------------------------------------------------- whitening, second moments
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("turn_only", [False, True])
def test_whitened_features_are_uncorrelated_and_come_back(weighted: bool, turn_only: bool) -> None:
    rng = RNG(0)
    Z = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 3)) * [1.0, 10.0, 0.1] + 3.0
    Z = np.column_stack([Z, Z[:, 0] + Z[:, 1], np.full(60, 2.0)])
    w, side = weights(60) if weighted else None, rng.normal(size=(60, 2))
    own = whiten(Z, w, (side,), turn_only=turn_only)
    S = covariance(own.apply(Z), w)
    share = np.full(60, 1 / 60) if w is None else w / w.sum()
    assert own.rank == 3 and own.n_rows == pytest.approx(1.0 / (share**2).sum())
    np.testing.assert_allclose(own.sides, share @ side, rtol=1e-11)
    np.testing.assert_allclose(own.mean + own.apply(Z) @ own.loadings, Z, atol=1e-9)
    np.testing.assert_allclose(S - np.diag(np.diag(S)), 0.0, atol=1e-9)
    if turn_only:  # distances between standardised rows stay
        spread = np.sqrt(np.diag(covariance(Z, w)))[:4]
        gap = (Z[0] - Z[1])[:4] / spread
        assert np.linalg.norm(own.apply(Z[:1]) - own.apply(Z[1:2])) == pytest.approx(np.linalg.norm(gap), rel=1e-9)
    else:
        np.testing.assert_allclose(S, np.eye(3), atol=1e-9)


def test_whitening_needs_rows_and_variation() -> None:
    Z = RNG(0).normal(size=(4, 3))
    whiten(Z)
    with pytest.raises(InputError, match=r"n_samples = 3\) to find the second moments of 3 features"):
        whiten(Z[:3])
    with pytest.raises(InputError, match="constant"):
        whiten(np.ones((9, 2)))
    with pytest.raises(InputError, match="The features at"):
        whiten(np.where(np.arange(12).reshape(4, 3) == 5, np.nan, Z))


def test_forms_that_vanish_together() -> None:
    rng = RNG(1)
    A = rng.normal(size=(2, 12, 12))
    M = A + np.swapaxes(A, 1, 2)
    found = find_isotropic(M, np.eye(12))
    assert found.W.shape == (12, 2)  # half of (2 d - p) / (p + 2), rounded down
    np.testing.assert_allclose(found.W.T @ found.W, np.eye(2), atol=1e-12)
    assert found.exact and np.abs(found.W.T @ M @ found.W).max() == pytest.approx(found.residual, abs=1e-15)
    assert found.residual <= 1e-10 * np.abs(np.linalg.eigvalsh(M)).max()
    definite = find_isotropic(np.diag([3.0, 2.0, 1.0])[None], np.eye(3))
    assert not definite.exact and definite.W.shape == (3, 1) and definite.residual == pytest.approx(1.0, rel=1e-6)
    nothing = find_isotropic(np.zeros((1, 0, 0)), np.zeros((0, 0)))
    assert nothing.exact and nothing.W.shape == (0, 0)
    rigid = find_isotropic(M, np.eye(12), n_rigid=1)
    assert rigid.exact and np.linalg.norm(rigid.W.T[:, 0]) >= np.linalg.norm(found.W.T[:, 0]) - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_forms_that_do_not_vanish_have_the_same_best_directions_with_the_other_sign(seed: int) -> None:
    A = RNG(seed).normal(size=(4, 3, 3))
    M = A + np.swapaxes(A, 1, 2) + 6.0 * np.eye(3)
    found, other = find_isotropic(M, np.eye(3)), find_isotropic(-M, np.eye(3))
    assert not found.exact and other.residual == pytest.approx(found.residual, rel=1e-12)
    np.testing.assert_allclose(other.W, found.W, atol=1e-12)


def test_erased_squares_are_measured_on_the_rows() -> None:
    rng = RNG(2)
    x = np.arange(300) % 2.0
    grows = np.column_stack([1.0 + x, 1.0 + x, 1.0 + x, 2.0 - x, 2.0 - x])
    Z, X, w = rng.normal(size=(300, 5)) * grows + x[:, None], x[:, None], weights(300)
    eraser = fit_quadratic(Z, protected_basis(X, w), X, w)
    erased = eraser.apply(Z)
    pairs = [erased[:, i] * erased[:, j] for i in range(5) for j in range(i, 5)]
    left = covariance(np.column_stack([x, erased, *pairs]), w)
    spread = np.sqrt(np.maximum(np.diag(left), 1e-30))
    assert np.abs(left[0, 1:] / spread[0] / spread[1:]).max() < 1e-6
    before = covariance(np.column_stack([x, Z**2]), w)
    attained = np.abs(before[0, 1:] / np.sqrt(before[0, 0] * np.diag(before)[1:])).max()
    assert eraser.squares_before >= 0.9 * attained > 0.2 > 1e-6 > eraser.squares
    assert eraser.n_kept == np.linalg.matrix_rank(erased - erased.mean(0), tol=1e-6) > 0
    assert np.isnan(eraser.kept) and eraser.n_rows == pytest.approx(w.sum() ** 2 / (w**2).sum())


# ---------------------------------------------------------------------------------------------------------- erasure
def ridge_by_hand(U: np.ndarray, Q: np.ndarray, share: np.ndarray, out: np.ndarray, penalty: float) -> np.ndarray:
    """Errors of the rows ``out`` predicted by a ridge regression with the weights of the other rows as they are."""
    keep = np.setdiff1d(np.arange(len(U)), out)
    D, w = np.column_stack([np.ones(len(U)), U]), share[keep]
    ridge = np.diag([0.0] + [penalty] * U.shape[1])
    B = np.linalg.solve((D[keep] * w[:, None]).T @ D[keep] + ridge, (D[keep] * w[:, None]).T @ Q[keep])
    return Q[out] - D[out] @ B


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_left_out_errors_are_those_of_refits(clustered: bool, weighted: bool) -> None:
    rng = RNG(0)
    n, q = 30, 3
    X = rng.normal(size=(n, 2))
    Z = X @ rng.normal(size=(2, q)) * 0.5 + rng.normal(size=(n, q))
    w = weights(n) if weighted else None
    share = np.full(n, 1 / n) if w is None else w / w.sum()
    cluster = np.minimum(np.arange(n) // 2, 11) if clustered else None  # pairs, and one cluster of eight
    basis = protected_basis(X, w)
    data = LabelledRows(Z, X, basis, share, cluster)
    Q, mean, S = basis.apply(X), share @ Z, covariance(Z, w)
    S_zq = ((Z - mean) * share[:, None]).T @ Q
    found = fit_ridge(data, mean, S, S_zq, np.ones(q))
    largest = np.linalg.eigvalsh(S)[-1]
    groups = [np.array([i]) for i in range(n)] if cluster is None else [np.flatnonzero(cluster == k) for k in range(12)]
    errors = [
        sum((share[g][:, None] * ridge_by_hand(Z - mean, Q, share, g, largest * penalty) ** 2).sum() for g in groups)
        for penalty in PENALTIES
    ]
    assert found.error == pytest.approx(min(errors), rel=1e-8)
    assert found.rank == 3 and found.n_rows <= effective_rows(share) * (1 + 1e-12)
    scores = (Z - mean) @ found.directions
    np.testing.assert_allclose(covariance(scores, w), np.eye(scores.shape[1]), atol=1e-10)
    np.testing.assert_allclose(found.loadings, found.directions.T @ S, atol=1e-12)
    np.testing.assert_allclose(
        found.correlations, np.linalg.norm((scores * share[:, None]).T @ Q, axis=1), rtol=1e-9, atol=1e-12
    )


def test_rows_that_are_alike_in_clusters_count_less() -> None:
    rng = RNG(0)
    once_X, once_Z = rng.normal(size=(60, 1)), rng.normal(size=(60, 2))
    X, Z = np.repeat(once_X, 4, axis=0), np.repeat(once_Z, 4, axis=0)
    basis, share = protected_basis(X), np.full(240, 1 / 240)
    own = whiten(Z)
    alone = LabelledRows(Z, X, basis, share)
    assert independent_rows(alone, own.mean @ own.transform, own.transform) == pytest.approx(240.0)
    together = LabelledRows(Z, X, basis, share, np.repeat(np.arange(60), 4))
    found = independent_rows(together, own.mean @ own.transform, own.transform)
    products = (own.apply(once_Z) * basis.apply(once_X)) ** 2 / 60**2
    assert found == pytest.approx(2.0 / products.sum(), rel=1e-9) and 30 < found < 120


def test_a_cluster_that_decides_its_own_prediction_rules_a_penalty_out() -> None:
    rng = RNG(0)
    X, Z = rng.normal(size=(40, 1)), rng.normal(size=(40, 2))
    Z[:, 1] = 0.0
    Z[:2, 1] = (1.0, -1.0)  # without a penalty, one cluster alone determines the effect of the second feature
    basis, share = protected_basis(X), np.full(40, 1 / 40)
    data = LabelledRows(Z, X, basis, share, np.arange(40) // 2)
    mean, S = share @ Z, covariance(Z)
    found = fit_ridge(data, mean, S, ((Z - mean) * share[:, None]).T @ basis.apply(X), np.ones(2))
    errors = []
    for penalty in PENALTIES[1:]:
        groups = [np.arange(2 * k, 2 * k + 2) for k in range(20)]
        left = [ridge_by_hand(Z - mean, basis.apply(X), share, g, np.linalg.eigvalsh(S)[-1] * penalty) for g in groups]
        errors.append(sum((one**2).sum() for one in left) / 40)
    assert found.error == pytest.approx(min(errors), rel=1e-8)


def test_adjusted_shares_and_forms() -> None:
    R = np.array([[0.6, 0.0], [0.0, 0.5], [0.0, 0.0]])
    T = unbiased_gram(R, 21.0)
    assert T[0, 0] == pytest.approx(1 - 0.64 * 20 / 17) and T[1, 1] == pytest.approx(1 - 0.75 * 20 / 17)
    assert np.isnan(unbiased_gram(R, 5.0)).all() and np.isfinite(unbiased_gram(R, 5.1)).all()
    X = RNG(0).normal(size=(40, 2)) @ np.array([[2.0, 1.0], [0.0, 0.1]])
    X = np.column_stack([X, X[:, 0]])
    basis = protected_basis(X, names=("a", "b", "c"))
    A = column_coordinates(basis)
    np.testing.assert_allclose(np.linalg.norm(A, axis=0), [1.0, 1.0, 0.0], atol=1e-12)
    scaled = (X - X.mean(0))[:, :2] / X.std(0)[:2]
    np.testing.assert_allclose(basis.apply(X) @ A[:, :2], scaled, atol=1e-10)
    assert quadratic_forms(-np.eye(2), A).tolist() == [0.0, 0.0, 0.0]
    assert effective_rows(np.array([0.5, 0.5])) == 2.0


def test_erasing_without_rows_or_variation_is_refused() -> None:
    rng = RNG(0)
    X, Z = rng.normal(size=(4, 1)), rng.normal(size=(4, 3))
    basis = protected_basis(X)
    Eraser.fit(Z, basis, X)
    with pytest.raises(InputError, match=r"n_samples = 3\) to correct 3 features"):
        Eraser.fit(Z[:3], protected_basis(X[:3]), X[:3])
    with pytest.raises(InputError, match="constant"):
        Eraser.fit(np.ones((4, 2)), basis, X)
    bad = Z.copy()
    bad[0, 0] = np.inf
    with pytest.raises(InputError, match="The features at"):
        Eraser.fit(bad, basis, X)
    spike = np.r_[1.0, np.full(3, 1e-12)]
    with pytest.raises(InputError, match="One row or cluster has nearly all the weight"):
        Eraser.fit_for_new_rows(Z, protected_basis(X, spike), X, spike)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_are_erased_in_place_or_beside(order: str, dtype: type) -> None:
    rng = RNG(0)
    X = rng.normal(size=(50, 1))
    Z = np.asarray(X + rng.normal(size=(50, 4)), dtype=dtype, order=order)
    eraser = Eraser.fit(Z, protected_basis(X), X)
    wanted = Z - (Z - eraser.mean) @ eraser.directions @ eraser.loadings
    before = Z.copy()
    beside = eraser.apply(Z)
    np.testing.assert_array_equal(Z, before)
    assert beside.dtype == dtype and eraser.apply(Z, out=Z) is Z
    for found in (beside, Z):
        np.testing.assert_allclose(found, wanted, atol=1e-5 if dtype == np.float32 else 1e-12)


def test_what_is_learned_again_from_rows_without_protected_columns() -> None:
    rng = RNG(0)
    X = rng.normal(size=(80, 1))
    Z, new, w = X + rng.normal(size=(80, 3)), rng.normal(size=(500, 3)) + 1.0, weights(500)
    eraser = Eraser.fit_for_new_rows(Z, protected_basis(X), X)
    again = eraser.adapt(new, w)
    share = w / w.sum()
    np.testing.assert_allclose(again.mean, share @ new, rtol=1e-12)
    scores = new @ eraser.directions
    C = covariance(np.hstack([scores, new]), w)
    k = scores.shape[1]
    np.testing.assert_allclose(again.loadings, np.linalg.solve(C[:k, :k], C[:k, k:]), rtol=1e-9)
    n = effective_rows(share)
    assert again.n_rows == pytest.approx(n) and np.array_equal(again.directions, eraser.directions)
    np.testing.assert_allclose(again.removed, eraser.removed * (1 + 3 / 80) / (1 + 3 / n), rtol=1e-12)
    assert again.left < eraser.left < eraser.before == np.sqrt(eraser.explained.max())


# -------------------------------------------------------------------------------------------------------- transport
def test_cells_are_moved_to_one_mean_and_covariance() -> None:
    rng = RNG(0)
    X = np.repeat([[0.0], [1.0], [2.0]], 50, axis=0)
    Z = (rng.normal(size=(150, 2)) @ np.array([[1.0, 0.4], [0.0, 1.0]])) * (1.0 + X) + X**2
    w = weights(150)
    moved = Transport.fit(Z, X, w, shrinkage=0.0)
    after = moved.apply(Z, X)
    for k in range(1, 3):
        rows, first = X[:, 0] == k, X[:, 0] == 0
        np.testing.assert_allclose(covariance(after[rows], w[rows]), covariance(after[first], w[first]), rtol=1e-9)
        np.testing.assert_allclose(w[rows] @ after[rows] / w[rows].sum(), w @ Z / w.sum(), atol=1e-9)
    assert moved.n_rows.tolist() == [50, 50, 50] and not moved.shrinkage.any()
    assert moved.unknown(np.array([[0.0], [2.0]])).tolist() == [False, False]
    assert moved.apply(Z.astype(np.float32), X).dtype == np.float32


def test_automatic_shrinkage_has_as_many_rows_as_features() -> None:
    rng = RNG(0)
    X = np.repeat([[0.0], [1.0]], [30, 90], axis=0)
    Z = rng.normal(size=(120, 3)) * (1.0 + X)
    np.testing.assert_allclose(Transport.fit(Z, X).shrinkage, [3 / 33, 3 / 93])
    half = Transport.fit(Z, X, shrinkage=0.5)
    np.testing.assert_allclose(half.shrinkage, 0.5)
    ratio = [
        np.linalg.det(covariance(one.apply(Z, X)[30:])) / np.linalg.det(covariance(one.apply(Z, X)[:30]))
        for one in (Transport.fit(Z, X, shrinkage=0.0), half, Transport.fit(Z, X, shrinkage=1.0))
    ]
    assert ratio[0] == pytest.approx(1.0, rel=1e-9) and ratio[0] < ratio[1] < ratio[2]


def test_cells_without_enough_rows_or_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = RNG(0)
    X = np.repeat([[0.0], [1.0]], [3, 60], axis=0)
    Z = rng.normal(size=(63, 3))
    with pytest.raises(InputError, match=r"^1 of 2 cells .* dimensions \(3\)"):
        Transport.fit(Z, X, shrinkage=0.0)
    Transport.fit(Z, X, shrinkage=0.1)
    Transport.fit(Z[:, :2], X, shrinkage=0.0)
    monkeypatch.setattr(transport_module, "MOST_BYTES", 8 * 2 * 9)
    Transport.fit(Z, X)
    monkeypatch.setattr(transport_module, "MOST_BYTES", 8 * 2 * 9 - 1)
    with pytest.raises(InputError, match="have 2 cells, whose maps of 3 features"):
        Transport.fit(Z, X)


# ----------------------------------------------------------------------------------------------------- generalised
def test_units_are_solved_together_as_they_are_alone() -> None:
    rng = RNG(0)
    X, w = rng.normal(size=(80, 2)), weights(80)
    eta = rng.normal(size=(80, 3)) * [0.1, 1.0, 5.0] + X[:, :1]
    for name in ("exp", "sigmoid", "relu", "tanh"):
        whole = GeneralizedProjector.fit(eta, X, name, w)
        for j in range(3):
            alone = GeneralizedProjector.fit(eta[:, j], X, name, w)
            np.testing.assert_allclose(whole.coefficients[:, j], alone.coefficients[:, 0], rtol=1e-6, atol=1e-7)
            assert alone.converged.all() and alone.apply(eta[:, j], X).shape == (80,)
        assert whole.converged.all() and whole.residual.max() < 1e-10 and whole.n_iter < 60


def test_tensors_are_corrected_in_their_shape() -> None:
    rng = RNG(0)
    X, eta = rng.normal(size=(40, 1)), rng.normal(size=(40, 2, 3))
    found = GeneralizedProjector.fit(eta, X, "sigmoid")
    flat = GeneralizedProjector.fit(eta.reshape(40, 6), X, "sigmoid")
    np.testing.assert_array_equal(found.apply(eta, X), flat.apply(eta.reshape(40, 6), X).reshape(40, 2, 3))
    with pytest.raises(InputError, match=r"range from 800 to 8\d\d.*where exp has no finite value"):
        GeneralizedProjector.fit(np.linspace(800.0, 850.0, 40), X, "exp")
    GeneralizedProjector.fit(np.linspace(-850.0, 0.0, 40), X, "exp")


def test_a_constant_output_is_already_orthogonal() -> None:
    X = RNG(0).normal(size=(30, 1))
    for value in (0.0, 2.0, -3.0):
        found = GeneralizedProjector.fit(np.full(30, value), X, "relu")
        assert found.converged.all() and found.predict(np.full(30, value), X) == pytest.approx(max(value, 0.0))


def test_effects_of_arrays_with_any_axes_and_weights() -> None:
    rng = RNG(0)
    X, w = rng.normal(size=(50, 2)), weights(50)
    Y = rng.normal(size=(50, 2, 3)) + X[:, :1, None]
    D = np.column_stack([np.ones(50), X])
    B = np.linalg.solve((D * w[:, None]).T @ D, (D * w[:, None]).T @ Y.reshape(50, 6))
    centred = X - w @ X / w.sum()
    projector = Projector.fit(Y, X, w)
    np.testing.assert_allclose(projector.apply(Y, X), Y - (centred @ B[1:]).reshape(Y.shape), atol=1e-11)
    joint = Projector.of_moments(Moments.of([X, Y.reshape(50, 6)], w), ("a", "b"))
    np.testing.assert_allclose(joint.apply(Y.reshape(50, 6), X), projector.apply(Y, X).reshape(50, 6), atol=1e-11)
    for order in ("C", "F"):
        own = np.array(Y.reshape(50, 6), order=order)
        assert projector.apply(own, X, out=own) is own
        np.testing.assert_allclose(own, projector.apply(Y, X).reshape(50, 6), atol=1e-12)
    assert projector.apply(Y.astype(np.float32), X).dtype == np.float32
    assert projector.apply(np.arange(300).reshape(50, 6), X).dtype == np.float64
    Y[3, 1, 1] = np.nan
    with pytest.raises(InputError, match="The array to correct has"):
        Projector.fit(Y, X)
