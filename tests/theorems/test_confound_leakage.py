"""Confound leakage (Hamdan et al., GigaScience 2023): a linear correction can write the confound into the features."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from setsquare import datasets, tables
from setsquare.auditing.audit_corrections import confound_leakage
from setsquare.projection import Projector


def draw(levels: int, n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features with few values that know nothing, a target that a continuous confound explains, and the confound."""
    rng = np.random.default_rng(seed)
    X = rng.normal(50.0, 10.0, (n, 1))
    return rng.integers(0, levels, (n, 3)).astype(float), (X[:, 0] - 50.0) / 10.0 + 0.4 * rng.normal(size=n), X


def test_the_correction_writes_the_confound_beside_each_value_of_a_binary_feature() -> None:
    """The mechanism: within each value of the feature the corrected one is the confound, up to sign and scale."""
    Z, _, X = draw(levels=2)
    train, test = np.arange(400) < 200, np.arange(400) >= 200
    projector = Projector.fit(Z[train], X[train])
    corrected = projector.apply(Z[test], X[test])
    for value in (0.0, 1.0):
        rows = Z[test, 0] == value
        assert np.ptp(Z[test, 0][rows]) == 0.0  # before, it says nothing of the confound
        assert abs(np.corrcoef(corrected[rows, 0], X[test][rows, 0])[0, 1]) > 1.0 - 1e-10
    assert abs(np.corrcoef(projector.apply(Z[train], X[train])[:, 0], X[train, 0])[0, 1]) < 1e-12  # yet uncorrelated


@pytest.mark.parametrize("levels", [2, 5])
@pytest.mark.parametrize("classification", [True, False], ids=["classes", "numbers"])
def test_a_tree_is_fed_by_the_correction_and_was_not_before(levels: int, classification: bool) -> None:
    Z, y, X = draw(levels)
    tree = DecisionTreeClassifier if classification else DecisionTreeRegressor
    found = confound_leakage(
        Z,
        (y > 0.0).astype(float) if classification else y,
        X,
        estimator=tree(max_depth=6, min_samples_leaf=5),
        classification=classification,
        rng=np.random.default_rng(1),
        cv=3,
        n_shuffles=5,
    )
    nothing, much = (0.5, 0.7) if classification else (0.0, 0.2)
    assert found.raw < nothing + 0.08 and found.shuffled < nothing + 0.05
    assert found.corrected > much and found.shuffled_corrected > much
    assert found.flagged
    assert "the correction itself" in found.reason


def test_by_hand_the_fed_tree_scores_as_if_it_had_the_confound() -> None:
    """The same control written out with scikit-learn alone: least squares on the training half, then a tree."""
    Z, y, X = draw(levels=2)
    label = (y > 0.0).astype(float)
    noise = np.random.default_rng(5).permuted(Z, axis=0)
    train, test = np.arange(400) < 200, np.arange(400) >= 200
    line = LinearRegression().fit(X[train], noise[train])
    residual = noise - line.predict(X)
    scores = [
        roc_auc_score(
            label[test],
            DecisionTreeClassifier(max_depth=6, min_samples_leaf=5, random_state=0)
            .fit(A[train], label[train])
            .predict_proba(A[test])[:, 1],
        )
        for A in (noise, residual, X)
    ]
    assert scores[0] < 0.6 and scores[1] > 0.8 and abs(scores[2] - scores[1]) < 0.15


@pytest.mark.parametrize("q", [3, 20])
def test_gaussian_features_and_a_linear_learner_are_not_fed(q: int) -> None:
    """With 20 features R² of a permuted target is well below 0 and that of the true one is not: no leakage."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(150, 1))
    Z, y = X + rng.normal(size=(150, q)), X[:, 0] + 0.3 * rng.normal(size=150)
    options = {"estimator": LinearRegression(), "classification": False, "cv": 3, "n_shuffles": 10}
    found = confound_leakage(Z, y, X, rng=np.random.default_rng(0), **options)
    assert found.raw > 0.5 > found.corrected  # the confound was in the features, and is gone
    assert not found.flagged and found.p_value > 0.1 and "no sign" in found.reason


def test_the_test_is_calibrated_where_the_target_does_not_depend_on_the_confound() -> None:
    """30 data sets: more than 5 below 0.05 have a chance of 0.3 %, a mean that far from 0.5 one of 0.5 %."""
    p_values = []
    for seed in range(30):
        rng = np.random.default_rng([seed, 11])
        X = rng.normal(size=(60, 1))
        Z, y = rng.integers(0, 2, (60, 2)).astype(float), rng.normal(size=60)
        tree = DecisionTreeRegressor(max_depth=3)
        found = confound_leakage(Z, y, X, estimator=tree, classification=False, rng=rng, cv=2, n_shuffles=5)
        p_values.append(found.p_value)
    assert np.sum(np.array(p_values) < 0.05) <= 5
    assert abs(np.mean(p_values) - 0.5) < 0.15


@pytest.mark.parametrize("protected", [("sex", "race"), ("age",)], ids=" and ".join)
def test_on_compas_a_tree_is_fed_and_a_linear_model_is_not(protected: tuple[str, ...]) -> None:
    if not datasets.available("compas"):
        pytest.skip("the COMPAS data are not here: set SETSQUARE_DATA to their folder")
    data = datasets.load_compas()
    few_valued = [
        "juv_fel_count",
        "juv_misd_count",
        "juv_other_count",
        "decile_score",
        "v_decile_score",
        "priors_count",
    ]
    table = data.table[list(protected)]
    Z, X = data.table[few_valued].to_numpy(dtype=float), tables.learn(table).apply(table).values
    fed, linear = (
        confound_leakage(
            Z,
            data.y,
            X,
            estimator=learner,
            classification=True,
            rng=np.random.default_rng(0),
            cv=3,
            n_shuffles=4,
        )
        for learner in (DecisionTreeClassifier(max_depth=5, min_samples_leaf=20), LinearDiscriminantAnalysis())
    )
    assert fed.shuffled < 0.52 and fed.shuffled_corrected > 0.55 and fed.flagged
    assert linear.shuffled_corrected < 0.53 and not linear.flagged
