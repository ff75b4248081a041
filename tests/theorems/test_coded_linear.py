"""Linear correction by categories of many levels: the residual of a regression on all dummies, without writing them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.errors import DroppedColumnWarning
from setsquare.projection import Projector
from setsquare.tables import learn
from setsquare.tables.mixed_matrix import MixedMatrix


def _rows(n: int = 3000, levels: int = 150, seed: int = 0) -> tuple[np.ndarray, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    site, region = rng.integers(0, levels, n), rng.integers(0, 12, n)
    site[:levels] = np.arange(levels)
    age = 1e3 + rng.normal(size=n)
    Z = rng.normal(size=(n, 4)) + 5e3
    Z[:, 0] += rng.normal(size=levels)[site] + 0.5 * (age - 1e3) + 0.3 * region
    return Z, pd.DataFrame({"site": site.astype(str), "age": age, "region": region.astype(str)})


def _residual(Z: np.ndarray, X: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Independent reference: least squares by singular values."""
    A = np.column_stack([np.ones(len(X)), X])
    root = np.ones(len(X)) if weight is None else np.sqrt(weight)
    share = root**2 / np.sum(root**2)
    B = np.linalg.lstsq(A * root[:, None], (Z - share @ Z) * root[:, None], rcond=None)[0]
    return np.asarray(Z - A @ B)


@pytest.mark.parametrize("weighted", [False, True])
def test_codes_give_the_residual_of_a_regression_on_all_dummies(weighted: bool) -> None:
    Z, X = _rows()
    weight = np.random.default_rng(1).exponential(size=len(Z)) if weighted else None
    design = learn(X)
    coded, dummies = design.split(X).values, design.apply(X).values
    assert isinstance(coded, MixedMatrix)
    corrected = sq.LinearOrthogonalizer().fit_transform(Z, protected=X, sample_weight=weight)
    expected = _residual(Z, dummies, weight)
    assert np.abs(corrected - expected).max() < 1e-9 * np.abs(Z).max()
    share = np.ones(len(Z)) / len(Z) if weight is None else weight / weight.sum()
    before, after = (
        np.abs((share[:, None] * (dummies - share @ dummies)).T @ (A - share @ A)).max() for A in (Z, corrected)
    )
    assert before > 1e-2 and after < 1e-11


def test_new_rows_are_corrected_as_by_dummies() -> None:
    Z, X = _rows()
    design = learn(X)
    codes = Projector.fit(Z, design.split(X).values, None, design.names)
    dummies = Projector.fit(Z, design.apply(X).values, None, design.names)
    A, B = _rows(400, seed=3)
    some = design.apply(B).values
    assert np.abs(codes.apply(A, design.split(B).values) - dummies.apply(A, some)).max() < 1e-9
    assert np.abs(codes.apply(A, some) - dummies.apply(A, some)).max() < 1e-9  # a model does not depend on the storage


def test_nested_categories_are_dropped_and_named() -> None:
    Z, X = _rows()
    X = X.assign(state=[f"s{int(site) // 50}" for site in X["site"]])  # each site is in one state
    with pytest.warns(DroppedColumnWarning, match=r"state\[s"):
        corrected = sq.LinearOrthogonalizer().fit_transform(Z, protected=X)
    assert np.abs(corrected - _residual(Z, learn(X).apply(X).values)).max() < 1e-8 * np.abs(Z).max()


def test_a_reference_level_of_one_row_loses_no_digits() -> None:
    rng = np.random.default_rng(2)
    site = np.where(rng.random(50_000) < 0.5, "b", np.char.add("c", rng.integers(0, 150, 50_000).astype(str)))
    site[17] = "a"
    Z, X = rng.normal(size=(50_000, 2)), pd.DataFrame({"site": site})
    Z[:, 0] += site == "b"
    corrected = sq.LinearOrthogonalizer().fit_transform(Z, protected=X)
    groups = pd.DataFrame(corrected - corrected.mean(axis=0)).groupby(site)
    correlations = groups.mean().to_numpy() * np.sqrt(groups.size().to_numpy()[:, None] / len(site))
    assert np.abs(correlations).max() < 1e-11


def test_memory_does_not_grow_with_dummies() -> None:
    Z, X = _rows(200_000, 300)
    sq.LinearOrthogonalizer().fit_transform(Z[:3000], protected=X[["site"]][:3000])
    tracemalloc.start()
    sq.LinearOrthogonalizer().fit_transform(Z, protected=X[["site"]])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # the dummies alone would take 480 MB


def test_values_that_are_not_finite_are_refused() -> None:
    Z, X = _rows()
    Z[5, 1] = np.inf
    design: Any = learn(X)
    with pytest.raises(ValueError, match="The array to correct has"):
        Projector.fit(Z, design.split(X).values, None, design.names)
