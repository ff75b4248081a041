"""The linear correction of features as a transformer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fairlearn.preprocessing import CorrelationRemover

import setsquare as sq


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(50, 10, size=300), rng.random(300) < 0.02])
    Z = 0.1 * X[:, :1] + 2.0 * X[:, 1:] + rng.normal(size=(300, 4))
    return Z, X


def correlation(X, Z) -> float:
    return float(np.abs(np.corrcoef(X.T, Z.T)[: X.shape[1], X.shape[1] :]).max())


def test_no_feature_is_correlated_afterwards_and_all_were_before(data):
    Z, X = data
    corrected = sq.LinearOrthogonalizer().fit_transform(Z, protected=X)
    assert correlation(X, Z) > 0.3
    assert correlation(X, corrected) < 1e-12
    np.testing.assert_allclose(corrected.mean(axis=0), Z.mean(axis=0), rtol=1e-12)


def test_it_agrees_with_fairlearn_up_to_its_centring(data):
    Z, X = data
    table = np.column_stack([X, Z])
    theirs = CorrelationRemover(sensitive_feature_ids=[0, 1]).fit_transform(table)
    ours = sq.LinearOrthogonalizer(protected=[0, 1]).fit_transform(table)
    np.testing.assert_allclose(theirs - theirs.mean(axis=0), ours - ours.mean(axis=0), atol=1e-9)


def test_new_rows_are_corrected_with_the_effects_of_the_training_rows(data):
    Z, X = data
    fitted = sq.LinearOrthogonalizer().fit(Z[:200], protected=X[:200])
    design = np.column_stack([np.ones(200), X[:200]])
    effects = np.linalg.lstsq(design, Z[:200], rcond=None)[0][1:]
    expected = Z[200:] - (X[200:] - X[:200].mean(axis=0)) @ effects
    np.testing.assert_allclose(fitted.transform(Z[200:], protected=X[200:]), expected, rtol=1e-10)


def test_names_and_output_container_follow_scikit_learn(data):
    Z, X = data
    table = pd.DataFrame(np.column_stack([X, Z]), columns=["age", "rare", "a", "b", "c", "d"])
    table["kind"] = np.where(Z[:, 0] > np.median(Z[:, 0]), "high", "low")
    transformer = sq.LinearOrthogonalizer(protected=["age", "rare"]).set_output(transform="pandas")
    corrected = transformer.fit_transform(table)
    assert list(corrected.columns) == ["a", "b", "c", "d", "kind[low]"]
    assert correlation(X, corrected.to_numpy()) < 1e-12


def test_without_protected_columns_nothing_is_transformed(data):
    Z, X = data
    fitted = sq.LinearOrthogonalizer().fit(Z, protected=X)
    with pytest.raises(sq.errors.InputError, match="pass protected="):
        fitted.transform(Z)
    with pytest.raises(sq.errors.InputError, match="same rows"):
        fitted.transform(Z, protected=X[:10])
    with pytest.raises(sq.errors.InputError, match="Nothing is protected"):
        sq.LinearOrthogonalizer().fit(Z)


def test_single_precision_stays_single_and_is_still_orthogonal(data):
    Z, X = data
    corrected = sq.LinearOrthogonalizer().fit_transform(Z.astype(np.float32), protected=X)
    assert correlation(X, corrected.astype(np.float64)) < 1e-6
