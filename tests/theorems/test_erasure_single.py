"""Erasure of features in single precision: exact all the same, and least change where single precision allows it."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.projection import Eraser, erasure, protected_basis, sampled_erasure, single_precision
from setsquare.projection.basis import cholesky_factor
from setsquare.projection.erasure import LARGE_GRAM
from setsquare.projection.sampled_erasure import find_directions
from setsquare.projection.single_precision import is_enough

N, Q = 3000, 260


def draw(condition: float, far: float = 0.0, sd: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Features with eigenvalues from 1 to 1 / condition that know two protected columns."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(N) < 0.2, rng.normal(size=N)]).astype(float)
    turn = np.linalg.qr(rng.normal(size=(Q, Q)))[0]
    Z = rng.normal(size=(N, Q)) * np.geomspace(1.0, condition**-0.5, Q) @ turn
    Z += 0.3 * ((X - X.mean(axis=0)) / X.std(axis=0)) @ rng.normal(size=(2, Q)) * Z.std(axis=0)
    return (far + sd * Z).astype(np.float32), X


def correlation(X: np.ndarray, Z: np.ndarray) -> float:
    X, Z = X - X.mean(axis=0), Z.astype(np.float64) - Z.mean(axis=0, dtype=np.float64)
    return float(np.abs(X.T @ Z / np.linalg.norm(X, axis=0)[:, None] / np.linalg.norm(Z, axis=0)).max())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("far", "sd"), [(0.0, 1e-6), (100.0, 1.0), (-5e6, 1e5)])
@pytest.mark.parametrize("condition", [1.0, 1e8])
def test_no_correlation_is_left_in_float64_whatever_the_condition(
    condition: float, far: float, sd: float, weighted: bool
) -> None:
    """The map itself is exact: applied in float64, nothing is left; applied in float32, only the rounding of values."""
    Z, X = draw(condition, far, sd)
    weight = np.random.default_rng(1).integers(0, 3, size=N).astype(float) if weighted else None
    eraser = Eraser.fit(Z, protected_basis(X, weight), X, weight)
    rows = slice(None) if weight is None else np.repeat(np.arange(N), weight.astype(int))
    before, after = Z[rows].astype(np.float64), eraser.apply(Z.astype(np.float64))[rows]
    assert Q >= LARGE_GRAM and correlation(X[rows], before) > 0.2
    assert correlation(X[rows], after) < 1e-11 * (1.0 + np.abs(far) / sd)
    single = eraser.apply(Z)
    assert single.dtype == np.float32 and correlation(X[rows], single[rows]) < 3e-8 * (1.0 + np.abs(far) / sd)


@pytest.mark.parametrize("condition", [1.0, 30.0, 1e3, 1e7])
def test_the_features_change_hardly_more_than_by_the_map_of_float64(condition: float) -> None:
    Z, X = draw(condition)
    exact = Z.astype(np.float64)
    maps = [Eraser.fit(kind, protected_basis(X), X) for kind in (Z, exact)]
    spread = np.linalg.inv(np.cov(exact.T))
    changes = []
    for eraser in maps:
        moved = exact - eraser.apply(exact)
        changes.append(float(np.sum((moved @ spread) * moved)))
    assert changes[1] * (1.0 - 1e-9) <= changes[0] <= changes[1] * (1.0 + 1e-4)


def test_single_precision_is_used_where_it_is_enough_and_only_there() -> None:
    used = []
    for condition in (1.0, 30.0, 1e6):
        S = np.cov(draw(condition)[0].astype(np.float64).T)
        R = cholesky_factor(S)
        used.append(R is not None and is_enough(S, R))
    assert used[0] and not used[-1]


MANY = 16_000


def draw_many(kind: str, condition: float = 30.0) -> tuple[np.ndarray, np.ndarray]:
    """So many rows that a part of them can stand for the covariance of all, at first."""
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.random(MANY) < 0.2, rng.normal(size=MANY)]).astype(float)
    turn = np.linalg.qr(rng.normal(size=(Q, Q)))[0]
    Z = rng.normal(size=(MANY, Q)) * np.geomspace(1.0, condition**-0.5, Q) @ turn
    Z += 0.3 * ((X - X.mean(axis=0)) / X.std(axis=0)) @ rng.normal(size=(2, Q)) * Z.std(axis=0)
    if kind == "every third row differs":  # the rows of the sample are not like the others
        Z[::3] *= np.geomspace(1e-3, 1.0, Q)
    elif kind == "heavy tails":
        Z *= rng.standard_t(1.5, size=(MANY, 1))
    elif kind == "constant in the sample":
        Z[::3, 0] = 1.0
    return (5.0 + Z).astype(np.float32), X


def whole_change(eraser: Eraser, Z: np.ndarray) -> float:
    """Change of the features in the Mahalanobis norm, which the erasure makes as small as possible."""
    exact = Z.astype(np.float64)
    moved = exact - eraser.apply(exact)
    return float(np.sum((moved @ np.linalg.inv(np.cov(exact.T))) * moved))


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts products with the covariance."""
    times, counted = sampled_erasure._covariance_times, [0]

    def count(*args: object) -> object:
        counted[0] += 1
        return times(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(sampled_erasure, "_covariance_times", count)
    return counted


@pytest.mark.parametrize("weighted", [False, True])
def test_a_sample_and_a_few_products_give_the_erasure_of_all_rows(products: list[int], weighted: bool) -> None:
    Z, X = draw_many("normal")
    weight = np.random.default_rng(1).integers(0, 3, size=MANY).astype(float) if weighted else None
    basis = protected_basis(X, weight)
    eraser, exact = Eraser.fit(Z, basis, X, weight), Eraser.fit(Z.astype(np.float64), basis, X, weight)
    rows = slice(None) if weight is None else np.repeat(np.arange(MANY), weight.astype(int))
    assert 3 <= products[0] <= 8
    assert correlation(X[rows], Z[rows]) > 0.2
    assert correlation(X[rows], eraser.apply(Z.astype(np.float64))[rows]) < 1e-11
    assert correlation(X[rows], eraser.apply(Z)[rows]) < 3e-8
    np.testing.assert_allclose(eraser.correlations, exact.correlations, rtol=1e-4)
    np.testing.assert_allclose([eraser.left, eraser.before], [exact.left, exact.before], rtol=1e-4)
    assert eraser.rank == exact.rank == Q
    if weight is None:
        best = whole_change(exact, Z)
        assert best * (1.0 - 1e-9) <= whole_change(eraser, Z) <= best * (1.0 + 1e-5)


def test_the_sample_alone_changes_the_features_more(monkeypatch: pytest.MonkeyPatch) -> None:
    Z, X = draw_many("normal")
    basis = protected_basis(X)
    best = whole_change(Eraser.fit(Z.astype(np.float64), basis, X), Z)
    monkeypatch.setattr(sampled_erasure, "ACCURATE", 0.5)  # ends after a step from the covariance of the sample
    assert whole_change(Eraser.fit(Z, basis, X), Z) > best * 1.01


@pytest.mark.parametrize("kind", ["every third row differs", "heavy tails", "constant in the sample"])
def test_a_sample_unlike_the_rest_is_noticed(kind: str) -> None:
    """Whether a few products are enough or all rows decide, nothing is left and the change is the smallest one."""
    Z, X = draw_many(kind)
    basis = protected_basis(X)
    eraser, exact = Eraser.fit(Z, basis, X), Eraser.fit(Z.astype(np.float64), basis, X)
    assert correlation(X, eraser.apply(Z.astype(np.float64))) < 1e-10
    best = whole_change(exact, Z)
    assert whole_change(eraser, Z) <= best * (1.0 + 1e-4)
    if kind != "heavy tails":
        assert find_directions(erasure._Coordinates(basis, X), Z, None) is None


def test_values_that_are_not_finite_are_refused_though_no_row_of_the_sample_has_one() -> None:
    Z, X = draw_many("normal")
    Z[1, 3] = np.nan
    with pytest.raises(ValueError, match=r"features at position\(s\) 3 \(counted from 0\) have missing"):
        Eraser.fit(Z, protected_basis(X), X)


def test_rounding_of_the_loadings_does_not_add_up_over_the_rows() -> None:
    """In single precision each value is rounded on its own, and no error is common to all rows."""
    rng = np.random.default_rng(0)
    X = (rng.random((2500, 2)) < 0.4).astype(np.float32)
    Z = rng.standard_normal((2500, 192), dtype=np.float32)
    Z += X @ rng.standard_normal((2, 192), dtype=np.float32)
    eraser = Eraser.fit(Z, protected_basis(X), X)
    left = [correlation(X, eraser.apply(Z, out)) for out in (None, np.empty_like(Z, order="F"), Z.copy())]
    assert max(left) < 1e-8 and correlation(X, Z) > 0.2


# ------------------------------------------------------------------------------------------- features in float64
def draw_double(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Features in float64 that know two protected columns, most of them in ways that single precision cannot hold."""
    rng, q = np.random.default_rng(3), 80
    X = np.column_stack([rng.random(MANY) < 0.2, rng.normal(size=MANY)]).astype(float)
    Z = rng.normal(size=(MANY, q)) + X @ rng.normal(size=(2, q)) * 0.3
    if kind == "within 90 standard deviations":
        Z += 90.0 * Z.std(axis=0)
    elif kind == "far from zero":
        Z += 1e4
    elif kind == "far from zero in the second half":
        Z[MANY // 2 :] += 1e6
    elif kind in ("a value of 1e25", "a value of 1e100"):  # in a row that is not in the sample
        Z[7, 3] = float(kind.split()[-1])
    elif kind in ("tiny", "huge"):
        Z *= 1e-22 if kind == "tiny" else 1e22
    elif kind == "many scales":
        Z *= np.geomspace(1e-12, 1e12, q)
    elif kind == "in three rows only":
        Z[:, 0] = np.arange(MANY) < 3
    elif kind == "constant in the sample":
        Z[::20, 0] = 1.0
    elif kind == "nearly collinear":
        Z[:, 1] = Z[:, 0] + 1e-4 * rng.normal(size=MANY)
    elif kind == "Cauchy":
        Z = rng.standard_cauchy((MANY, q)) + X @ rng.normal(size=(2, q))
    elif kind == "rare counts":
        Z = rng.poisson(0.01, size=Z.shape) + X[:, :1] * np.eye(1, q)
    elif kind == "a group of three rows":
        X[:, 0] = np.arange(MANY) < 3
        Z[:, 0] += X[:, 0]
    return Z, X


#: Kinds of features, and whether single precision is enough for their squares.
KINDS = {
    "plain": True,
    "within 90 standard deviations": True,
    "far from zero": False,
    "far from zero in the second half": False,
    "a value of 1e25": False,
    "a value of 1e100": False,
    "tiny": False,
    "huge": False,
    "many scales": True,
    "in three rows only": True,
    "constant in the sample": False,
    "nearly collinear": False,
    "Cauchy": True,
    "rare counts": True,
    "a group of three rows": True,
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_squares_in_single_precision_leave_the_erasure_of_float64_features_as_it_is(
    kind: str, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Z, X = draw_double(kind)
    weight = np.random.default_rng(1).gamma(0.5, size=MANY) if weighted else None
    basis = protected_basis(X, weight)
    exact = Eraser.fit(Z, basis, X, weight)
    used = list[bool]()
    before = erasure.factor_if_enough

    def noted(*given: object) -> np.ndarray | None:
        R = before(*given)  # type: ignore[arg-type]
        used.append(R is not None)
        return R

    monkeypatch.setattr(single_precision, "WORTH", 0.0)
    monkeypatch.setattr(erasure, "factor_if_enough", noted)
    eraser = Eraser.fit(Z, basis, X, weight)
    if not weighted:
        assert used == [True] if KINDS[kind] else not any(used)
    share = np.full(MANY, 1.0 / MANY) if weight is None else weight / weight.sum()

    def left(erased: np.ndarray) -> float:
        x, z = X - share @ X, erased - share @ erased
        cross = np.abs((x * share[:, None]).T @ z)
        return float((cross / np.sqrt(np.outer(share @ x**2, share @ z**2))).max())

    erased = eraser.apply(Z)
    assert left(erased) < max(1e-13, 2.0 * left(exact.apply(Z))) and left(Z) > 100.0 * left(erased)
    np.testing.assert_allclose(eraser.correlations, exact.correlations, rtol=1e-5)
    np.testing.assert_allclose([eraser.left, eraser.before], [exact.left, exact.before], rtol=1e-4)
    changes = [float((((one.apply(Z) - Z) / Z.std(axis=0)) ** 2).sum()) for one in (eraser, exact)]
    assert changes[0] == pytest.approx(changes[1], rel=1e-5)
