"""The linear correction that needs no protected columns: exact on the training rows, and the least change."""

from __future__ import annotations

import numpy as np
import pytest

import setsquare as sq
from setsquare.projection import Eraser, protected_basis


def draw(n: int = 500, q: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features far from zero on different scales, and an age, a rare group of 2 % and a column in millionths."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(50.0, 10.0, n), rng.random(n) < 0.02, 1e-6 * rng.normal(size=n)])
    unit = (X - X.mean(0)) / X.std(0)
    Z = (unit @ rng.normal(size=(3, q)) + rng.normal(size=(n, q)) @ rng.normal(size=(q, q))) * 10.0 ** rng.integers(
        -3, 4, q
    )
    return Z + 5.0 * Z.std(0), X


def erase(Z: np.ndarray, X: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    return sq.LinearOrthogonalizer(using="features").fit(Z, protected=X, sample_weight=weight).transform(Z)


def correlation(X: np.ndarray, Z: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Largest |corr| between columns."""
    w = np.full(len(X), 1.0 / len(X)) if weight is None else weight / weight.sum()
    X, Z = X - w @ X, Z - w @ Z
    spread = np.sqrt(w @ X**2)[:, None] * np.sqrt(w @ Z**2)
    return float(np.abs((X * w[:, None]).T @ Z / spread).max())


def moments(Z: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    Zc, Xc = Z - Z.mean(0), X - X.mean(0)
    return Zc.T @ Zc / len(Z), Zc.T @ Xc / len(Z)


@pytest.mark.parametrize("weighted", [False, True])
def test_no_feature_is_correlated_afterwards_and_all_were_before(weighted):
    Z, X = draw()
    weight = np.random.default_rng(1).exponential(size=len(Z)) if weighted else None
    erased = erase(Z, X, weight)
    assert correlation(X, Z, weight) > 0.3
    assert correlation(X, erased, weight) < 1e-12
    np.testing.assert_allclose(np.average(erased, axis=0, weights=weight), np.average(Z, axis=0, weights=weight))


def test_a_group_of_one_in_a_thousand_is_erased_as_any_other():
    rng = np.random.default_rng(0)
    rare = np.zeros((4000, 1))
    rare[:4] = 1.0
    Z = 3.0 * rare + rng.normal(size=(4000, 5))
    assert correlation(rare, Z) > 0.05
    assert correlation(rare, erase(Z, rare)) < 1e-13


def test_it_is_a_map_of_the_features_alone_that_changes_nothing_the_second_time():
    Z, X = draw()
    fitted = sq.LinearOrthogonalizer(using="features").fit(Z, protected=X)
    erased = fitted.transform(Z)
    scale = Z.std(0)
    np.testing.assert_allclose(fitted.transform(erased) / scale, erased / scale, atol=1e-10)
    np.testing.assert_allclose(fitted.transform(Z[::-1])[::-1], erased, rtol=1e-12)
    mixed = 0.3 * Z[:200] + 0.7 * Z[200:400]
    np.testing.assert_allclose(
        fitted.transform(mixed) / scale, (0.3 * erased[:200] + 0.7 * erased[200:400]) / scale, rtol=1e-10
    )
    again = Eraser.fit(erased, protected_basis(X), X)
    assert again.directions.shape[1] == 0 and again.rank == 4
    np.testing.assert_array_equal(again.apply(erased), erased)


def test_it_solves_the_problem_of_least_change():
    """Written out: min E|r(z) - z|² over r(z) = z + (P - I)(z - mean) with P S_zx = 0, a linear system for each row."""
    Z, X = draw(q=5)
    Z = Z / Z.std(0)
    S, C = moments(Z, X / X.std(0))
    system = np.block([[S, C], [C.T, np.zeros((3, 3))]])
    P = np.linalg.solve(system, np.vstack([S, np.zeros((3, 5))]))[:5].T
    expected = Z.mean(0) + (Z - Z.mean(0)) @ P.T
    np.testing.assert_allclose(erase(Z, X), expected, atol=1e-10)
    assert np.abs(expected - Z).max() > 0.5


def test_no_other_map_that_erases_changes_less_in_any_quadratic_norm():
    Z, X = draw(q=5)
    Z = Z / Z.std(0)
    S, C = moments(Z, X)
    erased = erase(Z, X)
    change = np.cov((erased - Z).T, bias=True)
    rng = np.random.default_rng(3)
    for M in (np.eye(5), C, rng.normal(size=(5, 5)), np.linalg.cholesky(np.linalg.inv(S))):
        norm = M @ M.T
        least = np.trace(norm @ change)
        for _ in range(20):
            A = np.linalg.inv(S) + 0.3 * np.cov(rng.normal(size=(5, 9)))  # any matrix gives a map that erases
            other = -(Z - Z.mean(0)) @ A @ C @ np.linalg.solve(C.T @ A @ C, C.T)
            assert correlation(X, Z + other) < 1e-9
            assert np.trace(norm @ np.cov(other.T, bias=True)) >= least * (1.0 - 1e-12)


def test_it_is_the_map_of_leace():
    leace = pytest.importorskip("concept_erasure", reason="concept-erasure is not installed").LeaceEraser
    torch = pytest.importorskip("torch")
    Z, X = draw()
    Z, X = Z / Z.std(0), (X - X.mean(0)) / X.std(0)
    exact = {"shrinkage": False, "svd_tol": 1e-9}  # by default it is off by more than rounding
    theirs = leace.fit(torch.from_numpy(Z), torch.from_numpy(X), **exact)(torch.from_numpy(Z)).numpy()
    np.testing.assert_allclose(erase(Z, X), theirs, atol=1e-8)


def test_collinear_columns_on_either_side_change_nothing():
    Z, X = draw()
    doubled = np.column_stack([Z, Z @ np.arange(7.0), np.full(len(Z), 2.0), Z[:, 0]])
    erased = erase(doubled, X)
    np.testing.assert_allclose(erased[:, :7], erase(Z, X), rtol=1e-8)
    np.testing.assert_array_equal(erased[:, 8], 2.0)
    assert correlation(X, erased[:, [*range(8), 9]]) < 1e-11
    with pytest.warns(sq.errors.DroppedColumnWarning, match="linear combinations of others: x3"):
        dependent = erase(Z, np.column_stack([X, X[:, 0] - 20.0 * X[:, 1]]))
    np.testing.assert_allclose(dependent, erase(Z, X), rtol=1e-10)


def test_a_direction_of_nearly_no_variance_that_is_the_protected_column_is_erased():
    """Two copies of a feature that differ by a millionth of the column: the covariance matrix alone cannot see it."""
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 400))
    Z = np.column_stack([z, z + 1e-7 * x])
    before, after = (np.cov(np.diff(A, axis=1)[:, 0], x)[0, 1] for A in (Z, erase(Z, x[:, None])))
    assert correlation(x[:, None], np.diff(Z, axis=1)) > 0.999
    assert abs(after) < 1e-8 * before  # which is how exactly the difference itself is known


def test_weights_are_repetitions():
    Z, X = draw(n=200)
    times = np.random.default_rng(2).integers(0, 4, 200)
    repeated = sq.LinearOrthogonalizer(using="features").fit(np.repeat(Z, times, 0), protected=np.repeat(X, times, 0))
    weighted = sq.LinearOrthogonalizer(using="features").fit(Z, protected=X, sample_weight=times)
    np.testing.assert_allclose(weighted.transform(Z), repeated.transform(Z), rtol=1e-9)


def test_where_the_features_span_no_more_than_the_protected_columns_nothing_is_left_and_this_is_said():
    Z, X = draw(q=2)
    with pytest.warns(sq.errors.SetsquareWarning, match="rank 2, no more than the protected columns"):
        erased = erase(Z, X)
    np.testing.assert_allclose(erased, np.broadcast_to(Z.mean(0), Z.shape), rtol=1e-9)


def test_features_that_know_nothing_are_left_as_they_are():
    Z, X = draw()
    innocent = sq.LinearOrthogonalizer().fit_transform(Z, protected=X)
    np.testing.assert_array_equal(erase(innocent, X), innocent)
