"""Corrections of second moments: equal means and covariances in every cell, or no product that knows the groups."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import sqrtm

import setsquare as sq
from setsquare.errors import InputError, NotOrthogonalError, SecondMomentsWarning
from setsquare.projection import Eraser, Transport, fit_quadratic, protected_basis
from setsquare.projection.isotropic import find_isotropic
from setsquare.projection.oblique import find_oblique


def draw(n: int = 3000, q: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features whose mean and covariance depend on a group of three (one of 5 %); dummies; the group."""
    rng = np.random.default_rng(seed)
    group = rng.choice(3, p=[0.55, 0.4, 0.05], size=n)
    turns = [np.linalg.qr(rng.normal(size=(q, q)))[0] * np.exp(0.4 * rng.normal(size=q)) for _ in range(3)]
    Z = np.stack([rng.normal(size=q) @ turns[g] for g in group]) + rng.normal(size=(3, q))[group]
    Z = Z * 10.0 ** rng.integers(-3, 4, q) + 50.0
    return Z, np.column_stack([group == 1, group == 2]).astype(float), group


def differences(Z: np.ndarray, group: np.ndarray) -> tuple[float, float]:
    """Largest differences of group means and covariances to those of group 0, in standard deviations of all rows."""
    A = (Z - Z.mean(0)) / np.where(Z.std(0) > 0, Z.std(0), 1.0)
    means = [A[group == g].mean(0) for g in np.unique(group)]
    covariances = [np.cov(A[group == g].T, bias=True) for g in np.unique(group)]
    return max(np.abs(m - means[0]).max() for m in means), max(np.abs(c - covariances[0]).max() for c in covariances)


def product_correlation(Z: np.ndarray, X: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Largest correlation of a product of two features, or a square, with a protected column."""
    w = np.full(len(Z), 1.0 / len(Z)) if weight is None else weight / weight.sum()
    A = Z - w @ Z
    A = A / np.sqrt(np.maximum(w @ A**2, 1e-300))
    pairs = np.stack([A[:, i] * A[:, j] for i in range(A.shape[1]) for j in range(i + 1)], axis=1)
    pairs, Xc = pairs - w @ pairs, X - w @ X
    spread = np.sqrt(w @ pairs**2)[:, None] * np.sqrt(w @ Xc**2)
    return float(np.abs((pairs * w[:, None]).T @ Xc / spread).max())


def linear_correlation(Z: np.ndarray, X: np.ndarray) -> float:
    A = Z - Z.mean(0)
    return float(np.abs(np.corrcoef(A.T, X.T)[: A.shape[1], A.shape[1] :]).max())


# With protected columns: transport between cells


def test_means_and_covariances_are_equal_in_every_cell_afterwards_and_differed_before():
    Z, X, group = draw()
    before = differences(Z, group)
    linear = sq.LinearOrthogonalizer().fit_transform(Z, protected=X)
    moved = sq.LinearOrthogonalizer(moments=2, shrinkage=0.0).fit_transform(Z, protected=X)
    assert min(before) > 0.5
    assert differences(linear, group)[0] < 1e-10 and differences(linear, group)[1] > 0.5
    assert max(differences(moved, group)) < 1e-9
    np.testing.assert_allclose(moved.mean(0), Z.mean(0))


def test_each_map_is_the_optimal_transport_between_normal_distributions():
    Z, X, group = draw(q=4)
    found = Transport.fit(Z, X, shrinkage=0.0)
    clean = (found.first.apply(Z, X) - found.mean) @ found.transform
    place = found.cells.of(X)
    target = np.cov(((found.apply(Z, X) - found.mean) @ found.transform)[group == 0].T, bias=True)
    for k, A in enumerate(found.maps):
        S = np.cov(clean[place == k].T, bias=True)
        root = np.real(sqrtm(S))
        expected = np.linalg.inv(root) @ np.real(sqrtm(root @ target @ root)) @ np.linalg.inv(root)
        np.testing.assert_allclose(A, expected, atol=1e-8)
        assert np.linalg.eigvalsh(A).min() > 0.0


def test_the_common_covariance_is_the_barycentre():
    """Its own average map is the identity, so no other common covariance moves the rows less."""
    Z, X, _ = draw(q=4)
    found = Transport.fit(Z, X, shrinkage=0.0)
    share = found.n_rows / found.n_rows.sum()
    back = np.tensordot(share, np.linalg.inv(found.maps), axes=1)
    np.testing.assert_allclose(back, np.eye(4), atol=5e-3)


def test_weights_are_repetitions_and_rows_of_weight_zero_do_not_count():
    Z, X, _ = draw(n=800, q=3)
    times = np.random.default_rng(1).integers(0, 3, len(Z))
    weighted = sq.LinearOrthogonalizer(moments=2, shrinkage=0.0).fit(Z, protected=X, sample_weight=times)
    repeated = sq.LinearOrthogonalizer(moments=2, shrinkage=0.0).fit(
        np.repeat(Z, times, 0), protected=np.repeat(X, times, 0)
    )
    np.testing.assert_allclose(weighted.transform(Z, protected=X), repeated.transform(Z, protected=X), rtol=1e-8)


def test_a_continuous_column_is_cut_into_bands_and_has_no_linear_effect_left():
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 4000)
    Z = rng.normal(size=(4000, 5)) * (0.5 + age[:, None] / 40) + age[:, None] * rng.normal(size=5) / 20
    young, old = age < 35, age > 65
    moved = sq.LinearOrthogonalizer(moments=2).fit_transform(Z, protected=age[:, None])
    assert linear_correlation(moved, age[:, None]) < 1e-12 < linear_correlation(Z, age[:, None])
    ratio = lambda A: float((A[old].std(0) / A[young].std(0)).max())  # noqa: E731
    linear = sq.LinearOrthogonalizer().fit_transform(Z, protected=age[:, None])
    assert ratio(linear) > 1.5
    assert abs(ratio(moved) - 1.0) < 0.12


def test_small_cells_are_shrunk_and_hold_on_new_rows():
    """A group of 25 rows among 20 features: its own covariance is noise, which shrinkage does not follow."""
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], [2000, 25])
    X, Z = group[:, None].astype(float), rng.normal(size=(2025, 20))
    new = rng.normal(size=(4000, 20))
    ones = np.ones((4000, 1))
    auto = sq.LinearOrthogonalizer(moments=2).fit(Z, protected=X)
    exact = sq.LinearOrthogonalizer(moments=2, shrinkage=0.0).fit(Z, protected=X)
    change = [np.sqrt(np.mean((m.transform(new, protected=ones) - new) ** 2)) for m in (auto, exact)]
    assert change[0] < 0.5 * change[1]
    assert auto.transport_.shrinkage[1] > 0.4 > auto.transport_.shrinkage[0]


def test_collinear_and_constant_features_stay_so():
    Z, X, group = draw(n=1000, q=4)
    Z = np.column_stack([Z, Z[:, 0] + Z[:, 1], np.full(1000, 7.0)])
    moved = sq.LinearOrthogonalizer(moments=2, shrinkage=0.0).fit_transform(Z, protected=X)
    np.testing.assert_allclose(
        moved[:, 4] - moved[:, 4].mean(),
        (moved[:, 0] + moved[:, 1] - moved[:, :2].sum(1).mean()),
        atol=1e-6 * Z[:, :2].std(),
    )
    np.testing.assert_allclose(moved[:, 5], 7.0)
    assert max(differences(moved[:, :4], group)) < 1e-6


# Without protected columns: directions whose products know nothing


@pytest.mark.parametrize("weighted", [False, True])
def test_no_product_of_features_is_correlated_afterwards_and_was_before(weighted):
    Z, X, _ = draw(q=12)
    weight = np.random.default_rng(1).exponential(size=len(Z)) if weighted else None
    fitted = sq.LinearOrthogonalizer(using="features", moments=2).fit(Z, protected=X, sample_weight=weight)
    once = sq.LinearOrthogonalizer(using="features").fit_transform(Z, protected=X, sample_weight=weight)
    erased = fitted.transform(Z)
    assert product_correlation(once, X, weight) > 0.1
    assert product_correlation(erased, X, weight) < 1e-8
    assert fitted.eraser_.squares < 1e-8 < 0.1 < fitted.eraser_.squares_before
    assert np.linalg.matrix_rank(erased - erased.mean(0), tol=1e-6 * np.abs(erased).max()) <= fitted.eraser_.n_kept
    if not weighted:
        assert linear_correlation(erased[:, :3], X) < 1e-8


def test_a_quadratic_model_of_the_erased_features_finds_nothing_and_did_before():
    """The score of a logistic model with all products is zero at the constant: nothing can be learned."""
    Z, X, group = draw(q=12)
    erased = sq.LinearOrthogonalizer(using="features", moments=2).fit_transform(Z, protected=X)
    target = (group == 1).astype(float)

    def explained(A: np.ndarray) -> float:
        A = (A - A.mean(0)) / A.std(0)
        D = np.column_stack([np.ones(len(A)), A, *(A[:, i] * A[:, j] for i in range(12) for j in range(i + 1))])
        fit = D @ np.linalg.lstsq(D, target, rcond=1e-9)[0]
        return float(np.var(fit) / np.var(target))

    assert explained(Z) > 0.5
    assert explained(erased) < 1e-10


def test_the_outcome_is_preserved_exactly_in_covariance_and_mostly_in_prediction():
    Z, X, _ = draw(q=24)
    y = Z[:, 3] / Z[:, 3].std() + 0.3 * np.random.default_rng(1).normal(size=len(Z))
    kept = sq.LinearOrthogonalizer(using="features", moments=2, preserve="outcome").fit(Z, y, protected=X)
    lost = sq.LinearOrthogonalizer(using="features", moments=2).fit(Z, y, protected=X)
    cov = lambda A: (A - A.mean(0)).T @ (y - y.mean()) / len(y)  # noqa: E731
    np.testing.assert_allclose(cov(kept.transform(Z)), cov(Z), rtol=1e-6, atol=1e-8 * np.abs(cov(Z)).max())
    assert product_correlation(kept.transform(Z), X) < 1e-7
    assert kept.eraser_.kept > 0.5
    assert np.abs(cov(lost.transform(Z))[3]) < 0.95 * np.abs(cov(Z)[3])


@pytest.mark.parametrize(("d", "p"), [(2, 1), (5, 1), (30, 2), (60, 5)])
def test_isotropic_subspaces_of_random_forms_are_exact(d, p):
    rng = np.random.default_rng(d)
    A = rng.normal(size=(p, d, d))
    M = A + np.swapaxes(A, 1, 2)
    if d == 2:
        M = np.diag([1.0, -2.0])[None]
    found = find_isotropic(M, np.linalg.qr(rng.normal(size=(d, d)))[0])
    assert found.exact
    np.testing.assert_allclose(found.W.T @ found.W, np.eye(found.W.shape[1]), atol=1e-12)
    assert np.abs(found.W.T @ M @ found.W).max() < 1e-8 < np.abs(M).max()
    assert found.W.shape[1] >= max(1, int(0.3 * (2 * d - p) / (p + 2)))


def test_a_definite_form_has_no_such_direction():
    found = find_isotropic(np.diag([3.0, 2.0, 0.5])[None], np.eye(3))
    assert not found.exact
    assert found.residual == pytest.approx(0.5)


def test_a_group_that_varies_more_in_every_direction_is_refused_or_warned_of():
    rng = np.random.default_rng(0)
    X = (rng.random((2000, 1)) < 0.5).astype(float)
    for factor, expected in ((2.0, NotOrthogonalError), (1.1, SecondMomentsWarning)):
        Z = rng.normal(size=(2000, 4)) * np.where(X == 1.0, factor, 1.0)
        model = sq.LinearOrthogonalizer(using="features", moments=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(expected, match="varies more in every direction"):
                model.fit(Z, protected=X)


# Preserved columns (SPLINCE)


@pytest.mark.parametrize("weighted", [False, True])
def test_erasure_keeps_the_covariance_with_the_outcome_exactly_and_leace_does_not(weighted):
    Z, X, _ = draw()
    y = Z @ np.random.default_rng(2).normal(size=Z.shape[1]) + X[:, 0]
    weight = np.random.default_rng(1).exponential(size=len(Z)) if weighted else None
    w = np.full(len(Z), 1.0) if weight is None else weight
    cov = lambda A: ((A - np.average(A, axis=0, weights=w)) * w[:, None]).T @ y / w.sum()  # noqa: E731
    kept = sq.LinearOrthogonalizer(using="features", preserve="outcome").fit(Z, y, protected=X, sample_weight=weight)
    plain = sq.LinearOrthogonalizer(using="features").fit(Z, y, protected=X, sample_weight=weight)
    np.testing.assert_allclose(cov(kept.transform(Z)), cov(Z), rtol=1e-9)
    assert np.abs(cov(plain.transform(Z)) / cov(Z) - 1.0).max() > 0.01
    Xc = (X - np.average(X, axis=0, weights=w)) * w[:, None] / w.sum()
    A = kept.transform(Z)
    # A feature of 50 with the spread 4e-4 has lost five digits.
    assert np.abs(Xc.T @ (A / A.std(0))).max() < 1e-10 < 0.05 < np.abs(Xc.T @ (Z / Z.std(0))).max()
    assert 0.0 < kept.eraser_.overlap < 1.0 and 0.0 < kept.eraser_.kept < 1.0


def test_it_is_the_published_formula():
    """``P = W^-1 [I - V (A'V)^-1 A'] W`` with whitening W, bases U and V, and ``A = (I - UU') V``."""
    Z, X, _ = draw(q=6)
    Y = np.column_stack([(Z[:, 0] - Z[:, 0].mean()) * X[:, 0], Z[:, 1]])
    eraser = Eraser.fit(Z, protected_basis(X), X, preserve=Y)
    Zc = Z - Z.mean(0)
    S = Zc.T @ Zc / len(Z)
    values, vectors = np.linalg.eigh(S)
    W, back = (vectors / np.sqrt(values)) @ vectors.T, (vectors * np.sqrt(values)) @ vectors.T
    U = np.linalg.qr(W @ Zc.T @ (Y - Y.mean(0)))[0]
    V = np.linalg.qr(W @ Zc.T @ (X - X.mean(0)))[0]
    A = V - U @ (U.T @ V)
    P = back @ (np.eye(6) - V @ np.linalg.solve(A.T @ V, A.T)) @ W
    np.testing.assert_allclose((eraser.apply(Z) - Z.mean(0)) / Z.std(0), Zc @ P.T / Z.std(0), atol=1e-6)


def test_collinear_features_and_named_columns():
    Z, X, _ = draw(q=5)
    table = pd.DataFrame(np.column_stack([Z, Z[:, 0] - Z[:, 1]]), columns=list("abcdef"))
    kept = sq.LinearOrthogonalizer(using="features", preserve=["c"]).fit(table, protected=X)
    A, c = kept.transform(table), Z[:, 2] - Z[:, 2].mean()
    np.testing.assert_allclose(c @ A, c @ table.to_numpy(), rtol=1e-6)
    assert linear_correlation(A, X) < 1e-8


def test_what_cannot_be_kept_and_erased_is_refused_with_the_overlap():
    Z, X, _ = draw()
    with pytest.raises(InputError, match=r"correlate with 1\.0000"):
        sq.LinearOrthogonalizer(using="features", preserve="outcome").fit(Z, X[:, 0], protected=X)


def test_second_moments_of_preserved_outcome_classes():
    Z, X, _ = draw(q=24)
    y = np.array(["low", "mid", "high"])[np.digitize(Z[:, 3], np.quantile(Z[:, 3], [0.3, 0.6]))]
    fitted = fit_quadratic(Z, protected_basis(X), X, None, pd.get_dummies(y).to_numpy(float)[:, 1:])
    by_name = sq.LinearOrthogonalizer(using="features", moments=2, preserve="outcome").fit(Z, y, protected=X)
    assert by_name.eraser_.kept == pytest.approx(fitted.kept, rel=1e-6)


def test_of_several_preserved_columns_the_least_kept_is_reported():
    """Shares are those of the R² of regressions on the features after and before."""
    rng = np.random.default_rng(3)
    X = rng.integers(0, 2, (3000, 1)).astype(float)
    Z = rng.normal(size=(3000, 8)) * (1.0 + 0.5 * X) + 0.5 * X
    Y = np.column_stack([Z[:, 0] + rng.normal(size=3000), Z[:, 1] - Z[:, 2] + rng.normal(size=3000)])
    fitted = fit_quadratic(Z, protected_basis(X), X, None, Y)
    after = fitted.apply(Z)

    def explained(features: np.ndarray) -> np.ndarray:
        A = np.column_stack([np.ones(len(features)), features])
        return 1.0 - (Y - A @ np.linalg.lstsq(A, Y, rcond=1e-8)[0]).var(axis=0) / Y.var(axis=0)

    shares = explained(after) / explained(Z)
    assert fitted.kept == pytest.approx(shares.min(), rel=1e-6) and shares.min() < shares.max() - 1e-3


def test_a_column_that_is_not_related_to_the_features_is_preserved_as_it_is():
    protected, preserved = np.array([[0.6], [0.0], [0.0]]), np.array([[0.3, 0.0], [0.3, 0.0], [0.0, 0.0]])
    alone, beside = find_oblique(protected, preserved[:, :1]), find_oblique(protected, preserved)
    np.testing.assert_allclose(beside.variates @ beside.left.T, alone.variates @ alone.left.T, atol=1e-12)
    assert beside.overlap == pytest.approx(alone.overlap)


def test_the_largest_effect_on_squares_is_reported_before_and_after():
    rng = np.random.default_rng(4)
    X = rng.integers(0, 2, (4000, 2)).astype(float)
    wide = np.where(np.arange(8) < 4, X[:, :1], 1.0 - X[:, :1])  # the second column changes nothing
    Z = rng.normal(size=(4000, 8)) * (1.0 + 2.0 * wide)
    fitted = fit_quadratic(Z, protected_basis(X), X)
    assert fitted.squares_before > 0.2 > 1e-6 > fitted.squares
