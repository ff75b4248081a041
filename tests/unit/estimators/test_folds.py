"""Folds of the cross-fitted correction, and signs that a fitted model has seen the rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from scipy import sparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import (
    GradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVR

import setsquare as sq
from setsquare.errors import BoundaryWarning, InputError, SetsquareWarning, TrainingRowsWarning
from setsquare.estimators.folds import split_rows
from setsquare.estimators.training_rows import rows_fitted_on

N = 200


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=N)
    Z = x[:, None] + rng.normal(size=(N, 3))
    return Z, x, (Z.sum(axis=1) + rng.normal(size=N) > 0).astype(int)


def wrapper(**options):
    return sq.PredictionOrthogonalizer(LogisticRegression(), **options)


def refused(match, Z, y, x, inner=None, *, cluster=None, **options):
    model = sq.PredictionOrthogonalizer(inner or LogisticRegression(), **options)
    with pytest.raises(InputError, match=match) as caught:
        model.fit(Z, y, protected=x, cluster=cluster)
    assert "\n" not in str(caught.value)


def test_fewer_rows_than_folds_are_refused(data):
    Z, x, y = data
    refused(r"cv=5 folds of the rows \(n_samples = 4\)", Z[:4], [0, 1, 0, 1], x[:4])
    refused("cv=1 folds", Z, y, x, cv=1)
    refused("cv=0 folds", Z, y, x, cv=0)


def test_words_that_do_not_exist_are_refused(data):
    Z, x, y = data
    refused("cv='in-sample' is not a number of folds, a splitter, None or 'training rows'", Z, y, x, cv="in-sample")
    refused("cv must be a number of folds", Z, y, x, cv=2.5)
    refused("prefit='yes' is not one of 'held out'", Z, y, x, prefit="yes")


def test_one_cluster_and_fewer_clusters_than_folds_are_refused(data):
    Z, x, y = data
    refused("cluster has the same value in every row", Z, y, x, cluster=np.zeros(N))
    refused("cv=5 folds of 3 clusters are not possible: give 2 to 3", Z, y, x, cluster=np.arange(N) % 3)
    refused(r"cluster has the shape \(3,\)", Z, y, x, cluster=np.arange(3))
    refused("cluster has missing values", Z, y, x, cluster=np.where(np.arange(N) < 5, np.nan, np.arange(N)))


def test_folds_that_split_a_cluster_or_leave_rows_out_are_refused(data):
    Z, x, y = data
    refused("use GroupKFold", Z, y, x, cv=KFold(4), cluster=np.arange(N) % 50)
    refused("exactly once", Z, y, x, cv=[(np.arange(100), np.arange(100, 150))])
    wrapper(cv=GroupKFold(4)).fit(Z, y, protected=x, cluster=np.arange(N) % 50)


def test_a_class_in_one_fold_only_is_refused_by_name(data):
    Z, x, y = data
    labels = np.where(np.arange(N) == 7, "rare", np.where(y > 0, "yes", "no"))
    refused(r"All 1 row\(s\) of the class 'rare' are in one fold", Z, labels, x)
    labels[8] = "rare"  # two rows are in different folds
    assert wrapper().fit(Z, labels, protected=x).predict_proba(Z, protected=x).shape == (N, 3)
    patients = np.arange(N) // 4  # ... unless they are of one patient
    labels[[7, 8]] = "no", "no"
    labels[[20, 21]] = "rare"
    refused(r"All 2 row\(s\) of the class 'rare'", Z, labels, x, cluster=patients)


def test_a_level_of_a_feature_in_one_fold_only_is_refused_with_the_reason_or_ignored(data):
    Z, x, y = data
    table = pd.DataFrame({"z": np.round(Z[:, 0]), "site": np.where(np.arange(N) == 3, "C", np.where(x > 0, "A", "B"))})
    strict = make_pipeline(OneHotEncoder(), LogisticRegression())
    refused(r"failed on a fold of them: Found unknown categories.*cv='training rows'", table, y, x, strict)
    assert sq.PredictionOrthogonalizer(strict, cv="training rows").fit(table, y, protected=x).n_boundary_ == 0
    tolerant = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    sq.PredictionOrthogonalizer(tolerant).fit(table, y, protected=x)


def test_a_protected_level_in_one_fold_only_is_corrected_as_any_other(data):
    Z, _, y = data
    site = np.where(np.arange(N) < 3, "C", np.where(np.arange(N) % 2 == 0, "A", "B"))
    folds = [(np.arange(50, N), np.arange(50)), (np.arange(50), np.arange(50, N))]
    model = wrapper(cv=folds).fit(Z, y, protected=pd.DataFrame({"site": site}))
    assert model.projector_.basis.rank == 2


def test_the_folds_are_stratified_shuffled_and_keep_clusters_together():
    y = np.repeat([0, 1], [90, 10])  # sorted, as tables often are
    for train, test in split_rows(5, y, None, True, 0):
        assert y[test].sum() == 2 and len(np.intersect1d(train, test)) == 0
    cluster = np.repeat(np.arange(20), 5)
    for train, test in split_rows(5, y, cluster, True, 0):
        assert len(np.intersect1d(cluster[train], cluster[test])) == 0


def test_results_repeat_and_depend_on_the_seed(data):
    Z, x, y = data
    first, again, other = (
        wrapper(random_state=seed).fit(Z, y, protected=x).projector_.coefficients for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.0


def test_cv_none_is_the_training_rows_too(data):
    Z, x, y = data
    models = [wrapper(cv=cv).fit(Z, y, protected=x) for cv in (None, "training rows")]
    assert [model.learned_on_ for model in models] == ["training rows"] * 2
    np.testing.assert_array_equal(*(model.predict_proba(Z, protected=x) for model in models))


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, sparse.csr_array, list, np.asarray])
def test_tables_of_any_kind_are_split(data, kind):
    Z, x, y = data
    columns = {} if kind in (sparse.csr_array, list, np.asarray) else {"columns": ["a", "b", "c"]}
    if kind is pl.DataFrame:
        columns = {"schema": ["a", "b", "c"]}
    table = Z.tolist() if kind is list else kind(Z, **columns)
    found = wrapper().fit(table, y, protected=x).projector_.coefficients
    np.testing.assert_allclose(found, wrapper().fit(Z, y, protected=x).projector_.coefficients, rtol=1e-6)


def test_clusters_are_routed(data):
    Z, x, y = data
    cluster = np.arange(N) % 40
    with sklearn.config_context(enable_metadata_routing=True):
        inner = wrapper().set_fit_request(protected=True, cluster=True)
        pipeline = make_pipeline(StandardScaler(), inner).fit(Z, y, protected=x, cluster=cluster)
    direct = wrapper().fit(StandardScaler().fit_transform(Z), y, protected=x, cluster=cluster)
    np.testing.assert_array_equal(pipeline[-1].projector_.coefficients, direct.projector_.coefficients)
    plain = wrapper().fit(StandardScaler().fit_transform(Z), y, protected=x)
    assert np.abs(direct.projector_.coefficients - plain.projector_.coefficients).max() > 0.0


class Fragile(RegressorMixin, BaseEstimator):
    """Fails on fewer than all rows."""

    def fit(self, Z, y):
        if len(y) < N:
            raise ValueError("too few rows\nfor this model")
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, Z):
        return np.full(len(Z), self.mean_)


def test_a_model_that_fails_in_a_fold_is_named(data):
    Z, x, y = data
    refused("Fragile was fitted to all rows but failed on a fold of them: too few rows. ", Z, y * 1.0, x, Fragile())


def test_rows_of_weight_zero_do_not_decide(data):
    Z, x, y = data
    weight = (np.arange(N) < 150).astype(float)
    model = wrapper().fit(Z, y, protected=x, sample_weight=weight)
    assert np.isfinite(model.predict_proba(Z, protected=x)).all()


FITTED = {
    "forest": lambda Z, y: RandomForestRegressor(5).fit(Z, y),
    "boosting": lambda Z, y: GradientBoostingClassifier(n_estimators=3).fit(Z, y),
    "neighbours": lambda Z, y: KNeighborsRegressor().fit(Z, y),
    "support vectors": lambda Z, y: SVR().fit(Z, y),
    "pipeline": lambda Z, y: make_pipeline(StandardScaler(), LinearRegression()).fit(Z, y),
    "search": lambda Z, y: GridSearchCV(KNeighborsRegressor(), {"n_neighbors": [2, 3]}).fit(Z, y),
    "frozen": lambda Z, y: FrozenEstimator(KNeighborsRegressor().fit(Z, y)),
}


@pytest.mark.parametrize("name", FITTED)
def test_the_number_of_rows_that_a_model_saw_is_found_where_it_keeps_it(data, name):
    Z, _, y = data
    assert rows_fitted_on(FITTED[name](Z, y)) == N


def test_a_model_that_keeps_nothing_gives_no_number(data):
    Z, _, y = data
    assert rows_fitted_on(LinearRegression().fit(Z, y)) is None
    assert rows_fitted_on(make_pipeline("passthrough", LogisticRegression()).fit(Z, y)) is None


def warned(model, Z, y, x):
    with pytest.warns(SetsquareWarning) as caught:
        model.fit(Z, y, protected=x)
    return " ".join(str(w.message) for w in caught if w.category is TrainingRowsWarning)


def test_training_rows_of_a_fitted_model_are_named_where_they_can_be_seen(data):
    Z, x, y = data
    forest = RandomForestClassifier(30, random_state=0).fit(Z, y)
    for prefit in (True, "held out"):
        said = warned(sq.PredictionOrthogonalizer(forest, prefit=prefit), Z, y, x)
        assert f"RandomForestClassifier was fitted on {N} rows, as many as are given here" in said
    said = warned(sq.PredictionOrthogonalizer(forest, prefit=True), Z[:150], y[:150], x[:150])
    assert "fit the outcomes far better than they claim to" in said  # another number of rows
    exact = KNeighborsRegressor(1).fit(Z, x)
    said = warned(sq.PredictionOrthogonalizer(FrozenEstimator(exact)), Z[:150], x[:150], y[:150] * 1.0)
    assert "KNeighborsRegressor predicts every outcome exactly" in said


def test_what_cannot_be_seen_is_said_unless_the_user_confirms_that_the_rows_are_new(data):
    Z, x, y = data
    model = LogisticRegression().fit(Z[:100], y[:100])
    for fitted in (
        sq.PredictionOrthogonalizer(model, prefit=True),
        sq.PredictionOrthogonalizer(FrozenEstimator(model)),
    ):
        assert "cannot be seen" in warned(fitted, Z[100:], y[100:], x[100:])
    confirmed = sq.PredictionOrthogonalizer(model, prefit="held out").fit(Z[100:], y[100:], protected=x[100:])
    assert confirmed.learned_on_ == "rows given"
    assert abs(np.corrcoef(confirmed.predict_proba(Z[100:], protected=x[100:])[:, 1], x[100:])[0, 1]) < 1e-8


def test_an_unfitted_model_is_never_suspected(data):
    Z, x, y = data
    with pytest.warns(BoundaryWarning):  # and nothing else: warnings are errors here
        sq.PredictionOrthogonalizer(RandomForestClassifier(10, random_state=0)).fit(Z, y, protected=x)


def test_the_default_splits_as_scikit_learn_does(data):
    _, _, y = data
    ours = [test for _, test in split_rows(5, y, None, True, 0)]
    theirs = [test for _, test in StratifiedKFold(5, shuffle=True, random_state=0).split(y, y)]
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
