"""Corrections around models of the user's own, black boxes included."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

import setsquare as sq
from setsquare.errors import BoundaryWarning


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=600), rng.random(600) < 0.3])
    Z = X @ [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]] + rng.normal(size=(600, 3))
    y = (Z.sum(axis=1) + rng.normal(size=600) > 0.5).astype(int)
    return Z, X, y


def correlation(X, p) -> float:
    P = np.asarray(p).reshape(len(X), -1)
    return float(np.abs(np.corrcoef(X.T, P.T)[: X.shape[1], X.shape[1] :]).max())


@pytest.mark.parametrize("inner", [LogisticRegression(), HistGradientBoostingClassifier(max_iter=30)])
def test_probabilities_are_orthogonal_in_range_and_keep_their_mean(data, inner):
    Z, X, y = data
    model = sq.PredictionOrthogonalizer(inner, cv="training rows").fit(Z, y, protected=X)
    before = model.estimator_.predict_proba(Z)[:, 1]
    after = model.predict_proba(Z, protected=X)[:, 1]
    assert correlation(X, before) > 0.3
    assert correlation(X, after) < 1e-8
    assert after.mean() == pytest.approx(before.mean(), abs=1e-12)
    assert after.min() >= 0.0 and after.max() <= 1.0


def test_the_linear_method_is_orthogonal_too_but_leaves_the_range_and_counts_it(data):
    Z, X, y = data
    with pytest.warns(BoundaryWarning, match="out of their range"):
        model = sq.PredictionOrthogonalizer(LogisticRegression(), "linear", cv="training rows").fit(Z, y, protected=X)
    after = model.predict_proba(Z, protected=X)[:, 1]
    assert correlation(X, after) < 1e-12
    assert model.n_outside_ == np.count_nonzero((after < 0) | (after > 1)) > 0


def test_a_forests_zeros_and_ones_are_moved_inside_and_counted(data):
    Z, X, y = data
    forest = RandomForestClassifier(20, random_state=0)
    with pytest.warns(BoundaryWarning, match="boundary"):
        model = sq.PredictionOrthogonalizer(forest, cv="training rows").fit(Z, y, protected=X)
    before = model.estimator_.predict_proba(Z)[:, 1]
    after = model.predict_proba(Z, protected=X)[:, 1]
    assert model.n_boundary_ == np.count_nonzero((before == 0) | (before == 1)) > 0
    assert model.boundary_ == pytest.approx((0.5 * before[before > 0].min(), 0.5 * (1 - before[before < 1].max())))
    assert correlation(X, after) < 1e-8
    assert after.mean() == pytest.approx(before.mean(), abs=1e-12)
    assert after.min() > 0.0 and after.max() < 1.0


def test_a_tree_that_predicts_only_zeros_and_ones(data):
    Z, X, y = data
    tree = DecisionTreeClassifier(random_state=0)
    with pytest.warns(BoundaryWarning, match="boundary"):
        model = sq.PredictionOrthogonalizer(tree, cv="training rows").fit(Z, y, protected=X)
    before = model.estimator_.predict_proba(Z)[:, 1]
    after = model.predict_proba(Z, protected=X)[:, 1]
    assert set(before) == {0.0, 1.0} and model.n_boundary_ == len(y)
    assert model.boundary_ == (0.5 / len(y), 0.5 / len(y))
    assert correlation(X, before) > 0.1 and correlation(X, after) < 1e-8
    assert after.mean() == pytest.approx(before.mean(), abs=1e-12)
    assert after.min() > 0.0 and after.max() < 1.0
    assert np.corrcoef(before, after)[0, 1] > 0.8  # still the tree's predictions


def test_several_classes_are_corrected_together(data):
    Z, X, _ = data
    y = np.digitize(Z.sum(axis=1), [0.0, 2.0])
    model = sq.PredictionOrthogonalizer(LogisticRegression(), cv="training rows").fit(Z, y, protected=X)
    after = model.predict_proba(Z, protected=X)
    np.testing.assert_allclose(after.sum(axis=1), 1.0, atol=1e-14)
    np.testing.assert_allclose(after.mean(axis=0), model.estimator_.predict_proba(Z).mean(axis=0), atol=1e-12)
    assert correlation(X, model.estimator_.predict_proba(Z)) > 0.3
    assert correlation(X, after) < 1e-8


def test_regressors_keep_their_range_where_an_activation_is_named(data):
    Z, X, _ = data
    counts = np.random.default_rng(1).poisson(np.exp(0.5 * Z[:, 0]))
    plain = sq.PredictionOrthogonalizer(LinearRegression(), cv="training rows").fit(Z, counts, protected=X)
    positive = sq.PredictionOrthogonalizer(PoissonRegressor(), activation="exp", cv="training rows")
    positive.fit(Z, counts, protected=X)
    assert correlation(X, plain.predict(Z, protected=X)) < 1e-8
    assert correlation(X, positive.predict(Z, protected=X)) < 1e-8
    assert positive.predict(Z, protected=X).min() > 0.0
    with pytest.raises(sq.errors.InputError, match="outside the range"):
        sq.PredictionOrthogonalizer(LinearRegression(), activation="exp").fit(Z, counts - 5.0, protected=X)


def test_a_fitted_model_is_not_fitted_again(data):
    Z, X, y = data
    fitted = LogisticRegression().fit(Z[:300], y[:300])
    coef = fitted.coef_.copy()
    for wrapped in (
        sq.PredictionOrthogonalizer(fitted, prefit="held out"),
        sq.PredictionOrthogonalizer(FrozenEstimator(fitted), prefit="held out"),
    ):
        wrapped.fit(Z, y, protected=X)
        np.testing.assert_array_equal(fitted.coef_, coef)
        np.testing.assert_array_equal(wrapped.estimator_.predict_proba(Z), fitted.predict_proba(Z))
        assert correlation(X, wrapped.predict_proba(Z, protected=X)[:, 1]) < 1e-8


def test_held_out_predictions_teach_a_correction_that_holds_on_new_rows():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(4000, 1))
    Z = X + rng.normal(size=(4000, 3))
    y = (Z[:, 0] + rng.normal(size=4000) > 0).astype(int)
    forest = RandomForestClassifier(40, random_state=0)
    leaks = {}
    for cv in ("training rows", 5):
        with pytest.warns(BoundaryWarning):
            model = sq.PredictionOrthogonalizer(forest, cv=cv).fit(Z[:2000], y[:2000], protected=X[:2000])
        leaks[cv] = correlation(X[2000:], model.predict_proba(Z[2000:], protected=X[2000:])[:, 1])
    uncorrected = correlation(X[2000:], model.estimator_.predict_proba(Z[2000:])[:, 1])
    assert uncorrected > 0.4
    assert leaks[5] < 0.06  # two standard errors at n = 2000 are 0.045
    assert leaks[5] < 0.5 * leaks["training rows"]


def test_columns_inside_the_table_are_kept_from_the_model(data):
    Z, X, y = data
    table = pd.DataFrame(np.column_stack([X, Z]), columns=["age", "male", "a", "b", "c"])
    model = sq.PredictionOrthogonalizer(LogisticRegression(), protected=["age", "male"], cv="training rows").fit(
        table, y
    )
    assert list(model.estimator_.feature_names_in_) == ["a", "b", "c"]
    assert correlation(X, model.predict_proba(table)[:, 1]) < 1e-8
    assert set(model.predict(table)) == {0, 1}
    assert model.score(table, y) > 0.6


def test_weights_are_those_of_the_correction_and_of_the_model(data):
    Z, X, y = data
    weight = np.random.default_rng(3).integers(1, 4, size=len(y)).astype(float)
    model = sq.PredictionOrthogonalizer(LogisticRegression(), cv="training rows")
    model.fit(Z, y, protected=X, sample_weight=weight)
    p = model.predict_proba(Z, protected=X)[:, 1]
    w = weight / weight.sum()
    assert np.abs((X - w @ X).T @ (w * p)).max() < 1e-10
    np.testing.assert_allclose(model.estimator_.coef_, LogisticRegression().fit(Z, y, weight).coef_)


def test_models_without_probabilities_are_refused_with_advice(data):
    Z, X, y = data
    with pytest.raises(sq.errors.InputError, match="CalibratedClassifierCV"):
        sq.PredictionOrthogonalizer(LinearSVC()).fit(Z, y, protected=X)


def test_regressors_have_no_probabilities(data):
    Z, X, y = data
    forest = RandomForestRegressor(5, random_state=0)
    model = sq.PredictionOrthogonalizer(forest, cv="training rows").fit(Z, y * 1.0, protected=X)
    assert not hasattr(model, "predict_proba")
    assert correlation(X, model.predict(Z, protected=X)) < 1e-8


def test_a_very_sure_classifier_is_corrected_too():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, size=400)
    X = (y + rng.normal(size=400))[:, None]
    Z = 12.0 * y[:, None] + rng.normal(size=(400, 3))
    with pytest.warns(BoundaryWarning):
        model = sq.PredictionOrthogonalizer(GaussianNB(), cv="training rows").fit(Z, y, protected=X)
    p = model.predict_proba(Z, protected=X)[:, 1]
    assert np.abs(np.cov(X[:, 0], p)[0, 1]) < 1e-9 and p.min() >= 0.0 and p.max() <= 1.0


def test_large_predictions_lose_no_digits():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(300, 1))
    Z = X + rng.normal(size=(300, 2))
    y = 1e10 + Z[:, 0] + rng.normal(size=300)
    model = sq.PredictionOrthogonalizer(LinearRegression(), cv="training rows").fit(Z, y, protected=X)
    p = model.predict(Z, protected=X) - 1e10
    assert correlation(X, p) < 1e-5  # a prediction of 1e10 has six digits behind the point


def test_protected_columns_are_not_given_twice(data):
    Z, X, y = data
    model = sq.PredictionOrthogonalizer(LogisticRegression(), protected=[0]).fit(np.column_stack([X, Z]), y)
    with pytest.raises(sq.errors.InputError, match="given twice"):
        model.predict(np.column_stack([X, Z]), protected=X)


def test_weights_reach_the_folds_whatever_metadata_routing_says(data):
    Z, X, y = data
    weight = np.random.default_rng(7).integers(1, 4, size=len(y)).astype(float)
    plain = sq.PredictionOrthogonalizer(LogisticRegression(), cv=3).fit(Z, y, protected=X, sample_weight=weight)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = sq.PredictionOrthogonalizer(LogisticRegression(), cv=3).fit(Z, y, protected=X, sample_weight=weight)
    np.testing.assert_array_equal(plain.projector_.coefficients, routed.projector_.coefficients)
    unweighted = sq.PredictionOrthogonalizer(LogisticRegression(), cv=3).fit(Z, y, protected=X)
    assert np.abs(plain.projector_.coefficients - unweighted.projector_.coefficients).max() > 1e-3


def test_adapt_makes_new_rows_exactly_orthogonal_without_their_outcomes():
    """Effects of the training rows leave sampling error on new ones; a correction learned there leaves nothing."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=400)
    Z = np.column_stack([x + rng.normal(size=400), rng.normal(size=400)])
    y = (Z.sum(axis=1) + rng.normal(size=400) > 0).astype(int)
    model = sq.PredictionOrthogonalizer(LogisticRegression()).fit(Z[:300], y[:300], protected=x[:300])
    plain = model.estimator_.predict_proba(Z[300:])[:, 1]
    before = model.predict_proba(Z[300:], protected=x[300:])[:, 1]
    after = model.adapt(Z[300:], protected=x[300:]).predict_proba(Z[300:], protected=x[300:])[:, 1]
    assert abs(np.corrcoef(before, x[300:])[0, 1]) > 1e-3
    assert abs(np.corrcoef(after, x[300:])[0, 1]) < 1e-8
    assert after.mean() == pytest.approx(plain.mean(), abs=1e-8)
