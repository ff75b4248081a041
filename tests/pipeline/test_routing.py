"""Protected columns and weights travel through scikit-learn's pipelines and searches by metadata routing."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import setsquare as sq


@pytest.fixture(autouse=True)
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=400), rng.random(400) < 0.4])
    Z = X @ [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 0.5, 0.0]] + rng.normal(size=(400, 4))
    y = (Z @ [1.0, 1.0, 1.0, 2.0] + rng.normal(size=400) > 0.5).astype(int)
    return Z, X, y


def correlation(X, p) -> float:
    return float(np.abs(np.corrcoef(X.T, p)[:2, 2]).max())


def test_a_pipeline_hands_protected_columns_and_weights_to_the_model(data):
    Z, X, y = data
    weight = np.random.default_rng(1).integers(1, 5, size=len(y))
    scaler = StandardScaler().set_fit_request(sample_weight=True)
    model = sq.OrthogonalGLMClassifier().set_fit_request(protected=True, sample_weight=True)
    pipeline = make_pipeline(scaler, model).fit(Z, y, protected=X, sample_weight=weight)
    p = pipeline.predict_proba(Z)[:, 1]
    w = weight / weight.sum()
    assert np.abs((X - w @ X).T @ (w * p)).max() < 1e-10


def test_a_transformer_in_a_pipeline_gets_them_when_fitting_and_when_predicting(data):
    Z, X, y = data
    corrector = sq.LinearOrthogonalizer().set_fit_request(protected=True).set_transform_request(protected=True)
    pipeline = Pipeline([("correct", corrector), ("model", LogisticRegression())])
    pipeline.fit(Z, y, protected=X)
    scores = pipeline.decision_function(Z, protected=X)
    assert correlation(X, scores) < 1e-10
    assert correlation(X, LogisticRegression().fit(Z, y).decision_function(Z)) > 0.3


def test_cross_validation_splits_the_protected_columns_with_the_rows(data):
    Z, X, y = data
    model = sq.OrthogonalGLMClassifier().set_fit_request(protected=True)
    scores = cross_val_score(model, Z, y, cv=5, params={"protected": X})
    assert scores.shape == (5,) and scores.mean() > 0.6
    p = cross_val_predict(model, Z, y, cv=5, method="predict_proba", params={"protected": X})[:, 1]
    assert correlation(X, p) < 0.15  # held out: orthogonal up to chance


def test_a_grid_search_tunes_the_ridge(data):
    Z, X, y = data
    search = GridSearchCV(
        sq.OrthogonalGLMClassifier().set_fit_request(protected=True), {"l2": [0.0, 0.01, 1.0]}, scoring="neg_log_loss"
    )
    search.fit(Z, y, protected=X)
    assert search.best_params_["l2"] < 1.0
    assert correlation(X, search.predict_proba(Z)[:, 1]) < 1e-8


def test_the_wrapper_takes_its_protected_columns_from_the_table_in_cross_validation(data):
    # scikit-learn routes metadata to fit alone there, so the columns travel inside the table.
    Z, X, y = data
    table = np.column_stack([X, Z])
    wrapper = sq.PredictionOrthogonalizer(LogisticRegression(), protected=[0, 1])
    p = cross_val_predict(wrapper, table, y, cv=4, method="predict_proba")[:, 1]
    plain = cross_val_predict(LogisticRegression(), Z, y, cv=4, method="predict_proba")[:, 1]
    assert correlation(X, plain) > 0.3
    assert correlation(X, p) < 0.15
