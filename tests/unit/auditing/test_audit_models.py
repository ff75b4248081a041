"""Audits of models: refitted in folds, held out for real, with every kind of estimator."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneOut,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_predict,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

import setsquare as sq
from setsquare.auditing.audit_models import predict_held_out
from setsquare.auditing.held_out import audit_held_out
from setsquare.errors import InputError

N = 240
rng = np.random.default_rng(1)
X = pd.DataFrame({"age": rng.normal(50.0, 10.0, N), "sex": rng.choice(["f", "m"], N)})
Z = pd.DataFrame(rng.normal(size=(N, 4)), columns=list("abcd"))
Z["a"] += 0.06 * (X["age"] - 50.0)
Z["b"] += X["sex"] == "m"
SIGNAL = Z.sum(axis=1) + rng.normal(size=N)
Y = (SIGNAL > 0.0).astype(int)
Y3 = np.array(["low", "mid", "high"])[np.digitize(SIGNAL, [-1.0, 1.0])]


def refused(*args: object, **options: object) -> str:
    with pytest.raises(InputError) as error:
        sq.audit_model(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


class Memory(RegressorMixin, BaseEstimator):
    """Knows the outcome of every row that it was fitted on, and nothing of others; counts what it is asked."""

    def fit(self, Z: pd.DataFrame, y: np.ndarray) -> Memory:
        self.known_ = {tuple(row): value for row, value in zip(np.asarray(Z), np.asarray(y), strict=True)}
        return self

    def predict(self, Z: pd.DataFrame) -> np.ndarray:
        seen = [self.known_.get(tuple(row)) for row in np.asarray(Z)]
        return np.array(
            [float(row[0]) if value is None else value for row, value in zip(np.asarray(Z), seen, strict=True)]
        )


# --------------------------------------------------------------------------------------------------- held out
@pytest.mark.parametrize("cv", [5, KFold(3), LeaveOneOut(), list(KFold(4).split(Z))], ids=["5", "3", "one out", "list"])
def test_no_row_is_predicted_by_a_model_that_has_seen_it(cv: object) -> None:
    noise = np.random.default_rng(0).normal(size=(N, 1))
    held_out = predict_held_out(Memory(), noise, X["age"], None, cv, None, None, np.random.default_rng(0))
    np.testing.assert_array_equal(held_out.predictions, noise[:, 0])  # it never remembered
    held_out = sq.audit_model(Memory(), noise, X["age"], X[["age"]], cv=cv)
    assert held_out.setting.startswith("held out (")
    in_sample = sq.audit_model(Memory(), noise, X["age"], X[["age"]], cv=None)
    assert in_sample.verdict == "leak" and in_sample.certificate.correlation == pytest.approx(1.0)


def test_in_sample_is_labelled() -> None:
    found = sq.audit_model(DecisionTreeRegressor(random_state=0), Z, SIGNAL, X, cv=None)
    assert "in-sample" in found.setting and "in-sample" in str(found)
    assert "in-sample" in found.notes[0]
    held_out = sq.audit_model(DecisionTreeRegressor(random_state=0), Z, SIGNAL, X)
    assert held_out.setting == "held out (5 folds)" and not any("in-sample" in note for note in held_out.notes)


def test_a_corrected_model_in_sample_is_a_tautology() -> None:
    found = sq.audit_model(sq.OrthogonalGLMClassifier(), Z, Y, X, cv=None)
    assert found.p_value > 1.0 - 1e-6 and any("corrected on these same rows" in note for note in found.notes)
    held_out = sq.audit_model(sq.OrthogonalGLMClassifier(), Z, Y, X)
    assert held_out.p_value < 1.0 - 1e-3 and not any("rounding" in note for note in held_out.notes)


def test_a_fitted_model_is_left_as_it_is() -> None:
    model = LinearRegression().fit(Z[:120], SIGNAL[:120])
    coef = model.coef_.copy()
    found = sq.audit_model(model, Z[120:], SIGNAL[120:], X[120:], cv="prefit")
    assert found.n == 120 and found.setting == "a fitted model on the rows given"
    assert found.p_value == pytest.approx(sq.audit(model.predict(Z[120:]), X[120:]).p_value, rel=1e-12)
    np.testing.assert_array_equal(model.coef_, coef)
    unfitted = LinearRegression()
    sq.audit_model(unfitted, Z, SIGNAL, X)
    assert not hasattr(unfitted, "coef_")


def test_progress_and_repetition() -> None:
    seen: list[tuple[int, int]] = []
    first = sq.audit_model(
        LinearRegression(), Z, SIGNAL, X, cv=3, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert sq.audit_model(LinearRegression(), Z, SIGNAL, X, cv=3) == first
    assert sq.audit_model(LinearRegression(), Z, SIGNAL, X, cv=3, random_state=1).p_value != first.p_value


@pytest.mark.parametrize(
    "cv",
    [ShuffleSplit(3), RepeatedKFold(n_splits=3, n_repeats=2), TimeSeriesSplit(3)],
    ids=lambda cv: type(cv).__name__,
)
def test_splitters_that_do_not_hold_out_each_row_once_are_refused(cv: object) -> None:
    assert "exactly once" in refused(LinearRegression(), Z, SIGNAL, X, cv=cv)


def test_folds_that_overlap_are_refused() -> None:
    refused(LinearRegression(), Z, SIGNAL, X, cv=[(np.arange(N), test) for _, test in KFold(3).split(Z)])


@pytest.mark.parametrize("cv", [1, 0, 1000, True, "five"])
def test_a_number_of_folds_that_cannot_be(cv: object) -> None:
    refused(LinearRegression(), Z, SIGNAL, X, cv=cv)


def test_folds_by_cluster() -> None:
    found = sq.audit_model(LinearRegression(), Z, SIGNAL, X, cv=GroupKFold(4), cluster=np.arange(N) // 4)
    assert found.setting == "held out (4 folds)"


def test_clusters_are_held_out_whole() -> None:
    """Copies of a row in one cluster: a memory must not know the row from its copy."""
    noise, again = np.random.default_rng(0).normal(size=(80, 1)), np.repeat(np.arange(80), 3)
    found = sq.audit_model(
        Memory(), noise[again], X["age"][:80].to_numpy()[again], X[["age"]].iloc[again], cluster=again
    )
    assert found.verdict != "leak"


# ------------------------------------------------------------------------------------------------ estimators
def test_regressors_and_classifiers_of_scikit_learn() -> None:
    assert sq.audit_model(LinearRegression(), Z, SIGNAL, X).family == "gaussian"
    logistic = sq.audit_model(LogisticRegression(), Z, Y, X, cv=3)
    assert logistic.family == "binomial" and logistic.verdict == "leak"
    assert not any("labels" in note for note in logistic.notes)  # by its probabilities
    assert sq.audit_model(LogisticRegression(), Z, Y3, X).family == "multinomial"
    assert sq.audit_model(make_pipeline(StandardScaler(), LogisticRegression()), Z, Y, X).verdict == "leak"
    assert sq.audit_model(GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2), Z, Y, X, cv=2).verdict == "leak"


def test_text_labels_are_those_of_numbers() -> None:
    text = sq.audit_model(LogisticRegression(), Z, np.where(Y, "yes", "no"), X)
    assert text.p_value == pytest.approx(sq.audit_model(LogisticRegression(), Z, Y, X).p_value, rel=1e-9)


@pytest.mark.parametrize("outcome", [np.where(Y, "yes", "no"), Y3, Y], ids=["two labels", "three labels", "numbers"])
def test_a_classifier_without_probabilities_is_audited_by_its_labels(outcome: np.ndarray) -> None:
    found = sq.audit_model(RidgeClassifier(), Z, outcome, X)
    assert any("labels" in note for note in found.notes)
    assert found.family == ("multinomial" if len(np.unique(outcome)) == 3 else "binomial")


class Longer(ClassifierMixin, BaseEstimator):
    """Predicts the most frequent label of its training rows; text of another length in another fold."""

    def fit(self, Z: object, y: np.ndarray) -> Longer:
        self.classes_, counts = np.unique(y, return_counts=True)
        self.best_ = self.classes_[counts.argmax()]
        return self

    def predict(self, Z: np.ndarray) -> np.ndarray:
        return np.array([self.best_] * len(Z))


def test_labels_of_different_lengths_are_not_cut_off() -> None:
    half = np.arange(N) < N // 2
    outcome = np.where(half, "no", "probably")
    group = np.where(half, "x", "y")
    folds = [(np.flatnonzero(half), np.flatnonzero(~half)), (np.flatnonzero(~half), np.flatnonzero(half))]
    found = sq.audit_model(Longer(), Z.to_numpy(), outcome, group, cv=folds)
    assert any("'probably'" in note for note in found.notes)


def test_classes_keep_their_names() -> None:
    terms = [e.term for e in sq.audit_model(LogisticRegression(), Z, Y3, X).evaluations[0].effects]
    assert "age (low vs high)" in terms


def test_a_class_that_a_fold_does_not_know_is_refused() -> None:
    rare = np.where(np.arange(N) < 2, "rare", Y3)
    assert "class" in refused(LogisticRegression(), Z, rare, X, cv=KFold(5))


def test_folds_with_different_classes_are_refused() -> None:
    half = np.arange(N) < N // 2
    outcome = np.where(Y == 1, "a", np.where(half, "b", "c"))
    folds = [(np.flatnonzero(half), np.flatnonzero(~half)), (np.flatnonzero(~half), np.flatnonzero(half))]
    refused(LogisticRegression(), Z, outcome, X, cv=folds)


def test_several_outcomes_are_units() -> None:
    found = sq.audit_model(LinearRegression(), Z, np.column_stack([SIGNAL, -SIGNAL]), X, n_permutations=19)
    assert found.effect_map.p_value.shape == (2,)


# ------------------------------------------------------------------------------------- estimators of this library
def test_our_models_get_the_protected_columns() -> None:
    """Beside the features, where a plain model leaks."""
    plain = sq.audit_model(LogisticRegression(), Z, Y, X)
    for model in (sq.OrthogonalGLMClassifier(), sq.PredictionOrthogonalizer(LogisticRegression())):
        corrected = sq.audit_model(model, Z, Y, X)
        assert plain.verdict == "leak" and corrected.p_value > 0.01
        assert corrected.certificate.correlation < 0.5 * plain.certificate.correlation
    assert sq.audit_model(sq.OrthogonalGLMRegressor(), Z, SIGNAL, X).p_value > 0.01
    assert sq.audit_model(sq.OrthogonalGLMClassifier(), Z, Y3, X).family == "multinomial"


def test_protected_columns_inside_the_features() -> None:
    both = pd.concat([Z, X], axis=1)
    inside = sq.audit_model(sq.OrthogonalGLMClassifier(protected=["age", "sex"]), both, Y, ["age", "sex"])
    beside = sq.audit_model(sq.OrthogonalGLMClassifier(), Z, Y, X)
    assert inside.p_value == pytest.approx(beside.p_value, rel=1e-6)
    leaking = sq.audit_model(LinearRegression(), both[[*"abcd", "age"]], SIGNAL + 2.0 * X["age"], "age")
    assert leaking.verdict == "leak"
    assert "did you mean" in refused(LinearRegression(), both[[*"abcd", "age"]], SIGNAL, "agee")


def test_protected_columns_twice_are_refused() -> None:
    model = sq.OrthogonalGLMClassifier(protected=["age", "sex"])
    assert "twice" in refused(model, pd.concat([Z, X], axis=1), Y, X)


def test_a_fitted_correction_of_predictions() -> None:
    model = sq.PredictionOrthogonalizer(LogisticRegression()).fit(Z[:120], Y[:120], protected=X[:120])
    found = sq.audit_model(model, Z[120:], Y[120:], X[120:], cv="prefit")
    wanted = sq.audit(model.predict_proba(Z[120:], protected=X[120:]), X[120:])
    assert found.p_value == pytest.approx(wanted.p_value, rel=1e-12)


def test_metadata_routing_through_pipelines_and_searches() -> None:
    corrector = sq.LinearOrthogonalizer
    with sklearn.config_context(enable_metadata_routing=True):
        step = corrector().set_fit_request(protected=True).set_transform_request(protected=True)
        linear = sq.audit_model(make_pipeline(step, LinearRegression()), Z, SIGNAL, X)
        glm = sq.OrthogonalGLMClassifier().set_fit_request(protected=True)
        piped = sq.audit_model(make_pipeline(StandardScaler(), glm), Z, Y, X)
        searched = sq.audit_model(GridSearchCV(glm, {"l2": [0.0]}, cv=2), Z, Y, X)
        plain = sq.audit_model(make_pipeline(StandardScaler(), LogisticRegression()), Z, Y, X)
        alone = sq.audit_model(sq.OrthogonalGLMClassifier(), Z, Y, X)
    assert plain.verdict == "leak" and linear.p_value > 0.01
    direct = sq.audit_model(sq.OrthogonalGLMClassifier(), Z, Y, X)
    for found in (piped, searched, alone):
        assert found.p_value == pytest.approx(direct.p_value, rel=1e-4)


def test_a_pipeline_that_is_not_told_of_them_says_so() -> None:
    assert "protected" in refused(make_pipeline(sq.LinearOrthogonalizer(), LinearRegression()), Z, SIGNAL, X)


BOTH = pd.concat([Z, X[["age"]]], axis=1)
KNOWS_COLUMNS = {
    "passed to fit": (sq.OrthogonalGLMRegressor(), Z, X[["age"]]),
    "among the features": (LinearRegression(), BOTH, ["age"]),
    "named in a step": (make_pipeline(sq.OrthogonalGLMRegressor(protected=["age"])), BOTH, X[["age"]]),
}


@pytest.mark.parametrize(("model", "features", "protected"), KNOWS_COLUMNS.values(), ids=KNOWS_COLUMNS)
def test_bounds_of_a_model_that_knows_the_columns_are_wider(model: object, features: object, protected: object) -> None:
    found = sq.audit_model(model, features, SIGNAL, protected, cv=KFold(5))
    beside = protected if features is Z else None
    held = predict_held_out(model, features, SIGNAL, beside, KFold(5), None, None, np.random.default_rng(0))
    pooled = audit_held_out(held, SIGNAL, X[["age"]], told=False)
    assert found.p_value == pytest.approx(pooled.p_value, rel=1e-6)
    assert found.certificate.correlation == pytest.approx(pooled.certificate.correlation, rel=1e-6)
    assert found.certificate.correlation_upper > pooled.certificate.correlation_upper + 1e-3
    assert found.certificate.columns[0].effect_upper > pooled.certificate.columns[0].effect_upper + 1e-3
    assert f"{found.certificate.correlation_upper:.3f}" in found.reason
    source = "from its leave-one-out predictions" if features is Z else "the bounds correct for this"
    assert any(source in note for note in found.notes)


def test_bounds_of_a_model_that_does_not_know_the_columns_are_those_of_its_predictions() -> None:
    found = sq.audit_model(LinearRegression(), Z, SIGNAL, X, cv=KFold(5)).certificate
    pooled = sq.audit(cross_val_predict(LinearRegression(), Z, SIGNAL, cv=KFold(5)), X).certificate
    assert found.correlation == pytest.approx(pooled.correlation, abs=0.01)
    assert found.correlation_upper == pytest.approx(pooled.correlation_upper, abs=0.01)


def test_wider_bounds_are_what_a_tolerance_is_compared_with() -> None:
    y = SIGNAL + X["age"] / X["age"].std()
    free = sq.audit_model(LinearRegression(), BOTH, y, ["age"])
    above, below = free.certificate.correlation_upper + np.array([0.001, -0.001])
    assert free.verdict == "leak"
    assert sq.audit_model(LinearRegression(), BOTH, y, ["age"], tolerance=above).verdict == "trace"
    assert sq.audit_model(LinearRegression(), BOTH, y, ["age"], tolerance=below).verdict == "leak"


def test_constant_predictions_of_a_model_that_knows_the_columns() -> None:
    found = sq.audit_model(DummyRegressor(strategy="constant", constant=1.0), BOTH, SIGNAL, ["age"])
    assert found.verdict == "no leak found" and found.certificate.correlation_upper == 0.0


# ------------------------------------------------------------------------------------------------------- tables
def test_tables_of_every_library() -> None:
    wanted = sq.audit_model(LinearRegression(), Z, SIGNAL, X)
    polars = sq.audit_model(LinearRegression(), pl.from_pandas(Z), pl.Series(SIGNAL.to_numpy()), pl.from_pandas(X))
    arrow = sq.audit_model(LinearRegression(), pa.Table.from_pandas(Z), SIGNAL, pa.Table.from_pandas(X))
    arrays = sq.audit_model(LinearRegression(), Z.to_numpy(), SIGNAL.tolist(), X[["age"]].to_numpy())
    assert polars.p_value == pytest.approx(wanted.p_value, rel=1e-9) == arrow.p_value
    assert isinstance(polars.table(), pl.DataFrame) and isinstance(arrow.table(), pa.Table)
    assert arrays.n_protected == 1


def test_options_go_to_the_audit() -> None:
    cluster = np.arange(N) // 3
    found = sq.audit_model(
        LinearRegression(),
        Z,
        SIGNAL,
        X,
        evaluation=["glm", "linear"],
        cluster=cluster,
        reference={"sex": "m"},
        confidence=0.9,
    )
    assert [e.name for e in found.evaluations] == ["glm", "linear"] and found.confidence == 0.9
    assert "cluster" in found.evaluations[0].title and "sex[f]" in [e.term for e in found.evaluations[0].effects]
    weighted = sq.audit_model(LinearRegression(), Z, SIGNAL, X, sample_weight=np.linspace(0.5, 2.0, N))
    assert weighted.p_value != found.p_value


def test_missing_protected_values_can_be_dropped_from_the_audit() -> None:
    gaps = X.assign(age=X["age"].mask(np.arange(N) < 9))
    assert sq.audit_model(LinearRegression(), Z, SIGNAL, gaps, missing="drop").n == N - 9


@pytest.mark.parametrize(("y", "protected"), [(SIGNAL[:-1], X), (SIGNAL, X[:-1])], ids=["outcome", "protected"])
def test_lengths(y: pd.Series, protected: pd.DataFrame) -> None:
    assert f"{N - 1} rows" in refused(LinearRegression(), Z, y, protected)


def test_lengths_in_good_english() -> None:
    assert "outcome have" not in refused(LinearRegression(), Z, SIGNAL[:-1], X)


def test_rows_in_another_order_are_refused() -> None:
    assert "order" in refused(LinearRegression(), Z, SIGNAL, X[::-1])


def test_an_outcome_in_another_order_is_refused() -> None:
    refused(LinearRegression(), Z, SIGNAL[::-1], X)


def test_a_fitted_model_needs_no_outcome() -> None:
    assert sq.audit_model(LinearRegression().fit(Z, SIGNAL), Z, None, X, cv="prefit").n == N


def test_a_list_of_labels_is_a_column() -> None:
    assert sq.audit_model(LinearRegression(), Z, SIGNAL, X["sex"].tolist()).n_protected == 1


def test_stratified_folds_for_classifiers() -> None:
    """A class of 5 % is in each of five folds; unstratified and sorted it would not be."""
    outcome = np.where(np.arange(N) < 12, "rare", Y3)
    assert sq.audit_model(LogisticRegression(), Z, outcome, X).family == "multinomial"
    assert sq.audit_model(LogisticRegression(), Z, outcome, X, cv=StratifiedKFold(4)).setting == "held out (4 folds)"
