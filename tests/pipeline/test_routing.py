"""Protected columns and weights travel through scikit-learn's pipelines and searches by metadata routing."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, make_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import setsquare as sq
from setsquare.errors import InputError


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


def wrapper(**options):
    return sq.PredictionOrthogonalizer(LogisticRegression(), **options)


def asking(model):
    """A model that asks for the protected columns wherever it can."""
    requests = ("fit", "score", "predict", "predict_proba", "transform")
    for method in requests:
        if hasattr(model, f"set_{method}_request") and hasattr(type(model), method):
            getattr(model, f"set_{method}_request")(protected=True)
    return model


GRID = {"estimator__C": [1e-4, 1.0]}
SCORINGS = [
    "roc_auc",
    "accuracy",
    ["roc_auc", "neg_log_loss"],
    make_scorer(brier_score_loss, response_method="predict"),
]


@pytest.mark.parametrize("scoring", SCORINGS, ids=["auc", "accuracy", "several", "own metric"])
def test_a_search_whose_scorer_cannot_hand_protected_columns_on_is_refused_at_once(data, scoring):
    # scikit-learn would swallow the error of predict_proba: all scores NaN, and the first candidate wins.
    Z, X, y = data
    search = GridSearchCV(asking(wrapper()), GRID, scoring=scoring, refit=False, cv=3)
    with pytest.raises(ValueError, match=r"does not pass protected= on to predictions[^.]*into the feature table"):
        search.fit(Z, y, protected=X)


def test_cross_validation_without_routing_is_refused_too(data):
    Z, X, y = data
    with sklearn.config_context(enable_metadata_routing=False), pytest.raises(ValueError, match="feature table"):
        cross_val_score(wrapper(), Z, y, scoring="roc_auc", params={"protected": X})


@pytest.mark.parametrize("steps", [1, 2])
def test_models_in_pipelines_and_around_are_refused_too(data, steps):
    Z, X, y = data
    corrector = make_pipeline(asking(sq.LinearOrthogonalizer()), LogisticRegression())
    model = corrector if steps == 1 else make_pipeline(StandardScaler(), asking(wrapper()))
    with pytest.raises(ValueError, match="feature table"):
        cross_val_score(model, Z, y, scoring="roc_auc", params={"protected": X})
    around = CalibratedClassifierCV(asking(wrapper()))
    with pytest.raises(ValueError, match="feature table"):
        cross_val_score(around, Z, y, scoring="roc_auc", params={"protected": X})


def test_held_out_predictions_are_refused_before_the_fit(data):
    Z, X, y = data
    with pytest.raises(InputError, match=r"cross_val_predict does not pass protected= on .*protected=\['age'\]"):
        cross_val_predict(asking(wrapper()), Z, y, method="predict_proba", params={"protected": X})


def test_the_models_own_score_gets_them(data):
    Z, X, y = data
    search = GridSearchCV(asking(wrapper()), GRID, cv=3).fit(Z, y, protected=X)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all() and search.best_params_["estimator__C"] == 1.0
    pipeline = make_pipeline(asking(sq.LinearOrthogonalizer()), LogisticRegression())
    assert np.isfinite(cross_val_score(pipeline, Z, y, params={"protected": X})).all()


@pytest.mark.parametrize("scoring", SCORINGS[:3], ids=["auc", "accuracy", "several"])
def test_columns_inside_the_table_work_with_every_scorer(data, scoring):
    Z, X, y = data
    refit = "roc_auc" if isinstance(scoring, list) else True
    # Cross-fitted, the two candidates rank the rows nearly alike.
    model = wrapper(protected=[0, 1], cv="training rows")
    search = GridSearchCV(model, GRID, scoring=scoring, refit=refit, cv=3)
    search.fit(np.column_stack([X, Z]), y)
    scores = search.cv_results_["mean_test_roc_auc" if isinstance(scoring, list) else "mean_test_score"]
    assert np.isfinite(scores).all() and search.best_params_["estimator__C"] == 1.0


class Splitter(ClassifierMixin, BaseEstimator):
    """A user's model that takes the protected columns out of its table and hands them on itself."""

    def fit(self, Z, y):
        self.classes_ = np.unique(y)
        self.inner_ = wrapper().fit(Z[:, 2:], y, protected=Z[:, :2])
        return self

    def predict_proba(self, Z):
        return self.inner_.predict_proba(Z[:, 2:], protected=Z[:, :2])

    def predict(self, Z):
        return self.classes_[self.predict_proba(Z).argmax(axis=1)]


def test_a_model_that_hands_them_on_itself_is_left_alone(data):
    Z, X, y = data
    table = np.column_stack([X, Z])
    assert np.isfinite(cross_val_score(Splitter(), table, y, scoring="roc_auc")).all()
    assert cross_val_predict(Splitter(), table, y, method="predict_proba").shape == (len(y), 2)


def test_a_scorer_of_a_user_may_know_the_columns(data):
    Z, X, y = data
    place = {row.tobytes(): i for i, row in enumerate(Z)}

    def auc(model, features, outcome):
        rows = [place[row.tobytes()] for row in features]
        return roc_auc_score(outcome, model.predict_proba(features, protected=X[rows])[:, 1])

    assert np.isfinite(cross_val_score(asking(wrapper()), Z, y, scoring=auc, params={"protected": X})).all()
