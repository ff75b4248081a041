"""The paper's tabular data, and predictions on rows that a model has not seen."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare import datasets
from studies.paper import benchmark_sets
from studies.paper.benchmark_sets import BenchmarkSet


def draw(n: int, rng: np.random.Generator) -> BenchmarkSet:
    X = rng.normal(size=(n, 3))
    Z = np.column_stack([X + rng.normal(size=(n, 3)), rng.normal(size=(n, 4))])
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-Z[:, :4].sum(axis=1) / 2.0))).astype(float)
    return BenchmarkSet("drawn", "binomial", Z, y, X, tuple("abcdefg"), ("u", "v", "w"))


def correlation(predictions: np.ndarray, X: np.ndarray) -> float:
    """Multiple correlation, by least squares."""
    design = np.column_stack([np.ones(len(X)), X])
    fitted = design @ np.linalg.lstsq(design, predictions, rcond=None)[0]
    return float(np.std(fitted) / np.std(predictions))


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_each_row_is_held_out_once(family: str) -> None:
    rng = np.random.default_rng(0)
    data = draw(103, rng)
    data = BenchmarkSet("rows", family, np.arange(103.0)[:, None], data.y, data.X, ("row",), data.protected)

    def method(train: BenchmarkSet, new: BenchmarkSet) -> np.ndarray:
        assert not np.intersect1d(train.Z, new.Z).size
        assert len(train.y) + len(new.y) == 103
        np.testing.assert_array_equal(train.y, data.y[train.Z[:, 0].astype(int)])
        return new.Z[:, 0]

    predictions, fold = benchmark_sets.held_out(method, data, folds=5)
    np.testing.assert_array_equal(predictions, np.arange(103.0))
    assert np.bincount(fold).min() >= 20 and fold.max() == 4


def test_folds_of_a_constrained_model_look_too_good_when_pooled() -> None:
    """The reason for an audit of each fold: the pooled one has less correlation than the models have on new rows."""
    rng = np.random.default_rng(0)
    many = draw(20_000, rng)
    pooled, by_fold, by_chance, true = [], [], [], []
    for _ in range(12):
        data = draw(400, rng)
        solutions = []

        def method(train: BenchmarkSet, new: BenchmarkSet, solutions: list = solutions) -> np.ndarray:
            solutions.append(benchmark_sets.solve_set(train, corrected=True))
            return benchmark_sets.apply_solution(solutions[-1], new)

        predictions, fold = benchmark_sets.held_out(method, data)
        found = benchmark_sets.leak(data, predictions, fold)
        pooled.append(correlation(predictions, data.X))
        by_fold.append(found["correlation"])
        by_chance.append(found["by_chance"])
        true += [correlation(benchmark_sets.apply_solution(one, many), many.X) for one in solutions]
    assert np.mean(pooled) < 0.75 * np.mean(true)
    assert np.mean(by_fold) > np.mean(true)  # it has the sampling error of the fold besides
    assert np.mean(by_fold) == pytest.approx(np.mean(by_chance), rel=0.15)


def test_leak_of_folds_is_that_of_least_squares() -> None:
    rng = np.random.default_rng(1)
    data = draw(300, rng)
    predictions, fold = benchmark_sets.held_out(benchmark_sets.without, data, folds=3)
    each = [correlation(predictions[fold == k], data.X[fold == k]) for k in range(3)]
    assert benchmark_sets.leak(data, predictions, fold)["correlation"] == pytest.approx(np.mean(each), rel=1e-9)


@pytest.mark.parametrize("name", ["compas", "health", "adult 5000"])
def test_sets_have_their_protected_columns_among_the_features(name: str) -> None:
    source = {"health": "health_retirement", "adult 5000": "adult"}.get(name, name)
    if not datasets.available(source) or name not in benchmark_sets.names():
        pytest.skip(f"the data set {name} is not on this machine: set SETSQUARE_DATA")
    data = benchmark_sets.load(name)
    assert set(data.protected) <= set(data.features)
    assert data.unprotected.shape == (len(data.y), len(data.features) - len(data.protected))
    inside = [data.features.index(column) for column in data.protected]
    np.testing.assert_array_equal(data.Z[:, inside], data.X)
    assert name != "adult 5000" or len(data.y) == 5000
