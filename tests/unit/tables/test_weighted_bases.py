"""Knots of splines and functions of kernels with row weights: whole weights are repeated rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import setsquare as sq
from setsquare import tables
from setsquare.auditing.protected import code_protected
from setsquare.tables.coders import Numeric
from setsquare.tables.smooth import learn_spline, quantiles

SMOOTH = ["spline", "kernel", {"kernel": 0.05}]


def rows(n: int = 120) -> tuple[Any, Any, Any, Any]:
    """Features, outcome, protected columns and whole weights; repeated, these are fewer than a kernel narrows at."""
    rng = np.random.default_rng(0)
    age = rng.gamma(2.0, 10.0, n).round(1)
    Z = rng.normal(size=(n, 15)) + np.sin(age / 9.0)[:, None]
    y = (Z[:, 0] + rng.normal(size=n) > 0).astype(int)
    protected = pd.DataFrame({"age": age, "sex": rng.choice(["f", "m"], n)})
    return Z, y, protected, np.where(age > np.median(age), 3, rng.integers(0, 2, n))


@pytest.mark.parametrize("basis", SMOOTH)
@pytest.mark.parametrize("scale", [1.0, 0.01, 1e6])
def test_whole_weights_are_repeated_rows_at_any_scale(basis: Any, scale: float) -> None:
    _, _, table, weight = rows()
    again = table.loc[np.repeat(np.arange(len(table)), weight)].reset_index(drop=True)
    one = tables.learn(table, basis=basis, weight=scale * weight)
    other = tables.learn(again, basis=basis)
    assert one.names == other.names
    assert np.allclose(one.apply(table).values, other.apply(table).values, atol=1e-7)
    assert one.coders != tables.learn(table, basis=basis).coders  # the weights matter


def test_knots_are_the_same_to_the_last_bit() -> None:
    _, _, table, weight = rows()
    x = table["age"].to_numpy()
    repeated = learn_spline(Numeric("x"), np.repeat(x, weight))
    assert learn_spline(Numeric("x"), x, weight=weight.astype(float)) == repeated
    assert learn_spline(Numeric("x"), x, weight=np.ones(len(x))) == learn_spline(Numeric("x"), x)


@pytest.mark.parametrize("basis", SMOOTH)
def test_rows_of_weight_0_are_left_out(basis: Any) -> None:
    _, _, table, weight = rows()
    far = pd.concat([table, pd.DataFrame({"age": [500.0, np.nan], "sex": ["f", "m"]})], ignore_index=True)
    used = table[weight > 0]
    one = tables.learn(far, basis=basis, weight=np.append(weight > 0, [0, 0]).astype(float), missing="drop")
    other = tables.learn(used, basis=basis, missing="drop")
    assert np.allclose(one.apply(table).values, other.apply(table).values, atol=1e-12)


def test_quantiles_are_numpys_by_the_inverted_distribution_function() -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 7, 300):
        x, shares = rng.normal(size=n).round(1), np.linspace(0.0, 1.0, 12)[1:-1]
        weight = rng.uniform(size=n)
        assert np.array_equal(quantiles(x, shares), np.quantile(x, shares, method="inverted_cdf"))
        assert np.array_equal(
            quantiles(x, shares, weight), np.quantile(x, shares, method="inverted_cdf", weights=weight)
        )


@pytest.mark.parametrize("basis", ["spline", "kernel"])
@pytest.mark.parametrize("missing", ["error", "level", "model"])
def test_fits_with_whole_weights_are_fits_to_repeated_rows(basis: str, missing: str) -> None:
    Z, y, table, weight = rows()
    pick = np.repeat(np.arange(len(y)), weight)
    model = sq.OrthogonalGLMClassifier(basis=basis, l2=0.01, missing=missing)
    one = model.fit(Z, y, protected=table, sample_weight=weight).predict_proba(Z)
    other = model.fit(Z[pick], y[pick], protected=table.iloc[pick].reset_index(drop=True)).predict_proba(Z)
    assert np.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("basis", ["spline", "kernel"])
def test_corrections_with_whole_weights_have_the_basis_of_repeated_rows(basis: str) -> None:
    Z, y, table, weight = rows()
    pick = np.repeat(np.arange(len(y)), weight)
    again = table.iloc[pick].reset_index(drop=True)
    linear = sq.LinearOrthogonalizer(basis=basis)
    one = linear.fit(Z, protected=table, sample_weight=weight).transform(Z, protected=table)
    other = linear.fit(Z[pick], protected=again).transform(Z, protected=table)
    assert np.allclose(one, other, atol=1e-8)
    batch = sq.LinearOrthogonalizer(basis=basis).partial_fit(Z, protected=table, sample_weight=weight)
    assert np.allclose(batch.transform(Z, protected=table), other, atol=1e-8)
    prediction = sq.PredictionOrthogonalizer(LinearRegression(), basis=basis, cv=None)
    target = Z[:, 0] + Z[:, 1] ** 2
    one = prediction.fit(Z, target, protected=table, sample_weight=weight).predict(Z, protected=table)
    other = prediction.fit(Z[pick], target[pick], protected=again).predict(Z, protected=table)
    assert np.allclose(one, other, atol=1e-8)


@pytest.mark.parametrize("basis", ["spline", "kernel"])
def test_audits_with_whole_weights_have_the_basis_of_repeated_rows(basis: str) -> None:
    _, _, table, weight = rows()
    pick = np.repeat(np.arange(len(table)), weight)
    all_rows = np.ones(len(table), dtype=bool)
    one = code_protected(table, weight.astype(float), None, all_rows, {"basis": basis}).columns
    other = code_protected(
        table.iloc[pick].reset_index(drop=True), None, None, np.ones(len(pick), bool), {"basis": basis}
    )
    assert one.names == other.columns.names
    assert np.allclose(one.values[pick], other.columns.values, atol=1e-7)
