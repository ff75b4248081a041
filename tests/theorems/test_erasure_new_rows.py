"""Erasure on new rows: what the exact map of the training rows leaves, the estimate of it, and what removes more."""

from __future__ import annotations

import numpy as np
import pytest

import setsquare as sq
from setsquare.errors import NewRowsWarning
from setsquare.projection import Eraser, protected_basis
from setsquare.projection.ridge_erasure import PENALTIES, LabelledRows, column_coordinates, fit_ridge

Q = 60


def population(seed: int = 0):
    """Features with a falling spectrum; a group and an age spread over all of them, as in embeddings."""
    rng = np.random.default_rng(seed)
    falling = (1.0 + np.arange(Q)) ** -0.5
    sides = rng.normal(size=(2, Q)) * falling
    sides /= np.linalg.norm(sides, axis=1)[:, None]
    turn = np.linalg.qr(rng.normal(size=(Q, Q)))[0]

    def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        X = np.column_stack([rng.random(n) < 0.4, rng.normal(50.0, 10.0, n)])
        W = rng.normal(size=(n, Q)) + 2.0 * (X[:, :1] - 0.4) * sides[0] + 0.1 * (X[:, 1:] - 50.0) * sides[1]
        return (W * falling**2) @ turn, X

    return draw


def probe(Z: np.ndarray, X: np.ndarray) -> float:
    """Largest multiple correlation of a protected column with the features of many rows."""
    Zc, Xc = Z - Z.mean(0), X - X.mean(0)
    fitted = Zc @ np.linalg.lstsq(Zc, Xc, rcond=1e-9)[0]
    return float(np.sqrt((fitted**2).sum(0) / (Xc**2).sum(0)).max())


def fit(Z, X, **options):
    return sq.LinearOrthogonalizer(using="features", **options).fit(Z, protected=X)


@pytest.mark.filterwarnings("ignore::setsquare.errors.NewRowsWarning")
def test_an_exact_erasure_leaves_much_on_new_rows_as_estimated_and_an_adapted_one_far_less():
    draw = population()
    found: dict[str, list[float]] = {}
    for seed in range(8):
        rng = np.random.default_rng(seed)
        (Z, X), (new, Xn) = draw(300, rng), draw(20_000, rng)
        exact = fit(Z, X)
        assert probe(exact.transform(Z), X) < 1e-8
        adapted = fit(Z, X, orthogonal_on="new rows")
        own = probe(adapted.transform(new), Xn), adapted.new_rows_.correlation
        adapted.adapt(np.vstack([Z, new]))
        for name, value in {
            "before": probe(new, Xn),
            "exact": probe(exact.transform(new), Xn),
            "exact, estimated": exact.new_rows_.correlation,
            "before, estimated": exact.new_rows_.before,
            "own": own[0],
            "own, estimated": own[1],
            "adapted": probe(adapted.transform(new), Xn),
            "adapted, estimated": adapted.new_rows_.correlation,
        }.items():
            found.setdefault(name, []).append(value)
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    assert mean["before"] > 0.65
    assert mean["exact"] > 0.35  # "exactly" erased
    for name in ("before", "exact", "own", "adapted"):
        assert mean[f"{name}, estimated"] == pytest.approx(mean[name], abs=0.05)
    assert mean["own"] < 1.02 * mean["exact"]
    assert mean["adapted"] < 0.8 * mean["exact"]
    assert all(a < b for a, b in zip(found["adapted"], found["exact"], strict=True))


def test_what_remains_is_the_parallel_sum_of_the_correlation_and_the_noise_of_the_covariances():
    """Of R² there remains R² ν / (R² + ν) with ν = q / n, against the exact population covariances."""
    rng = np.random.default_rng(0)
    direction = rng.normal(size=Q) / np.sqrt(Q)
    for n in (400, 1600):
        left = []
        for _ in range(60):
            x = rng.normal(size=(n, 1))
            Z = rng.normal(size=(n, Q)) + x * direction
            S, s = np.eye(Q) + np.outer(direction, direction), direction
            b = Z.T @ (x - x.mean()) / n  # the map removes exactly this direction
            whitened = np.linalg.solve(np.linalg.cholesky(S), np.column_stack([s, b]))
            total = whitened[:, 0] @ whitened[:, 0]
            left.append(total - (whitened[:, 0] @ whitened[:, 1]) ** 2 / (whitened[:, 1] @ whitened[:, 1]))
        R2 = direction @ direction / (1.0 + direction @ direction)
        assert np.mean(left) == pytest.approx(R2 * (Q / n) / (R2 + Q / n), rel=0.05)


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_left_out_predictions_are_those_of_refits(weighted, clustered):
    rng = np.random.default_rng(1)
    n, q = 40, 6
    X = rng.normal(size=(n, 1))
    Z = X * rng.normal(size=q) + rng.normal(size=(n, q)) * [5.0, 1.0, 1.0, 0.2, 1.0, 3.0]
    weight = rng.integers(1, 4, n).astype(float) if weighted else np.ones(n)
    share, basis = weight / weight.sum(), protected_basis(X, weight)
    mean, target = share @ Z, basis.apply(X)
    S, C = (Z - mean).T @ ((Z - mean) * share[:, None]), (Z - mean).T @ (target * share[:, None])
    cluster = rng.integers(0, 15, n) if clustered else None
    cluster = np.unique(cluster, return_inverse=True)[1] if clustered else None
    found = fit_ridge(LabelledRows(Z, X, basis, share, cluster), mean, S, C, np.ones(q))

    def error(penalty: float) -> tuple[float, np.ndarray]:
        design = np.column_stack([np.ones(n), Z])
        ridge = np.diag([0.0] + [penalty] * q)
        left = np.empty(n)
        for i in range(n):
            w = np.where(np.arange(n) == i if cluster is None else cluster == cluster[i], 0.0, share)
            solved = np.linalg.solve(design.T @ (design * w[:, None]) + ridge, design.T @ (w * target[:, 0]))
            left[i] = design[i] @ solved
        return float(share @ (target[:, 0] - left) ** 2), left

    refits = [error(penalty) for penalty in PENALTIES * np.linalg.eigvalsh(S)[-1]]
    best, left = min(refits, key=lambda pair: pair[0])
    assert found.error == pytest.approx(best, rel=1e-9)
    explained = (share @ (left * target[:, 0])) ** 2 / (share @ left**2)
    assert found.predicted[0] == pytest.approx(explained, rel=1e-8)


@pytest.mark.filterwarnings("ignore::setsquare.errors.NewRowsWarning")
def test_estimates_for_new_patients_count_patients_and_those_that_count_rows_are_too_small():
    draw = population()
    found: dict[str, list[float]] = {}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        (Z, X), (new, Xn) = draw(150, rng), draw(20_000, rng)
        patient = np.repeat(np.arange(150), 5)
        Z, X = Z[patient] + 0.02 * rng.normal(size=(750, Q)), X[patient]
        for on in ("training rows", "new rows"):
            for name, cluster in (("by patient", patient), ("by row", None)):
                fitted = sq.LinearOrthogonalizer(using="features", orthogonal_on=on)
                fitted.fit(Z, protected=X, cluster=cluster)
                found.setdefault(f"{on}, {name}", []).append(fitted.new_rows_.correlation)
                found.setdefault(f"{on}, {name}, true", []).append(probe(fitted.transform(new), Xn))
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    for on in ("training rows", "new rows"):
        assert mean[f"{on}, by patient"] == pytest.approx(mean[f"{on}, by patient, true"], abs=0.08)
        assert mean[f"{on}, by row"] < mean[f"{on}, by row, true"] - 0.1


def test_without_a_penalty_it_is_the_exact_erasure():
    """Where every penalty hurts (many rows, all directions alike) both maps agree up to the smallest penalty."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(20_000, 1))
    Z = X * [1.0, 0.5, 0.0] + rng.normal(size=(20_000, 3))
    exact, ours = (fit(Z, X, orthogonal_on=on).transform(Z) for on in ("training rows", "new rows"))
    np.testing.assert_allclose(ours, exact, atol=0.02)
    assert probe(ours, X) < 0.01


def test_columns_in_their_basis_have_unit_length():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 3))
    X = np.column_stack([X, X[:, 0] - X[:, 1], np.ones(200)])
    basis = protected_basis(X)
    A = column_coordinates(basis)
    standard = (X[:, :3] - X[:, :3].mean(0)) / X[:, :3].std(0)
    np.testing.assert_allclose(basis.apply(X) @ A[:, :3], standard, atol=1e-9)
    np.testing.assert_array_equal(A[:, 3:], 0.0)


def test_adapting_to_the_rows_of_the_fit_changes_nothing():
    Z, X = population()(400, np.random.default_rng(4))
    eraser = Eraser.fit_for_new_rows(Z, protected_basis(X), X)
    again = eraser.adapt(Z)
    np.testing.assert_allclose(again.apply(Z), eraser.apply(Z), atol=1e-10)
    np.testing.assert_allclose(again.removed, eraser.removed, rtol=1e-12)


def test_weights_are_repetitions():
    Z, X = population()(300, np.random.default_rng(5))
    times = np.random.default_rng(6).integers(1, 3, 300)
    weighted = Eraser.fit_for_new_rows(Z, protected_basis(X, times * 1.0), X, times * 1.0).adapt(Z, times * 1.0)
    again = np.repeat(Z, times, 0)
    scores = again @ weighted.directions
    expected = np.linalg.lstsq(scores - scores.mean(0), again - again.mean(0), rcond=None)[0]
    np.testing.assert_allclose(weighted.loadings, expected, atol=1e-9)


def test_few_rows_are_said_with_numbers_and_advice():
    draw = population()
    Z, X = draw(300, np.random.default_rng(7))
    with pytest.warns(NewRowsWarning, match=r"Of the correlation 0\.\d\d, about 0\.\d\d remains on new rows"):
        fit(Z, X)
    with pytest.warns(NewRowsWarning, match=r"n_components=\d+\)\), adapt the correction"):
        fit(Z, X, orthogonal_on="new rows")
    many, protected = draw(6000, np.random.default_rng(8))
    assert fit(many, protected).new_rows_.correlation < 0.12  # and no warning


def test_more_features_than_rows_can_be_erased_for_new_rows_and_the_estimate_says_that_it_cannot_know():
    rng = np.random.default_rng(9)
    draw = population()
    (Z, X), (new, Xn) = draw(50, rng), draw(20_000, rng)
    with pytest.raises(sq.errors.InputError, match="Too few rows"):
        fit(Z, X)
    with pytest.warns(NewRowsWarning, match="cannot be estimated"):
        ours = fit(Z, X, orthogonal_on="new rows")
    assert np.isnan(ours.new_rows_.correlation)
    assert probe(ours.adapt(new).transform(new), Xn) < probe(new, Xn) - 0.1
