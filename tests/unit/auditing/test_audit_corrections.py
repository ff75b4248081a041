"""The confound-leakage control: what it reports, its randomness, its messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from setsquare import LinearOrthogonalizer
from setsquare.auditing import audit_corrections as leakage
from setsquare.auditing.audit_corrections import ConfoundLeakage, confound_leakage
from setsquare.errors import InputError, MissingValuesError


def draw(n: int = 90, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    Z = X @ rng.normal(size=(2, 3)) + rng.normal(size=(n, 3))
    return Z, Z[:, 0] + X[:, 0] + rng.normal(size=n), X


def run(Z: np.ndarray, y: np.ndarray, X: np.ndarray, **options: Any) -> ConfoundLeakage:
    defaults = {"estimator": Ridge(), "classification": False, "cv": 3, "n_shuffles": 3}
    return confound_leakage(Z, y, X, **{"rng": np.random.default_rng(0), **defaults, **options})


def test_the_scores_are_those_of_the_linear_orthogonalizer_within_the_folds() -> None:
    """The first draw of the generator is the seed of the folds as they are, the second that of the corrected ones."""
    Z, y, X = draw()
    found = run(Z, y, X)
    rng = np.random.default_rng(0)
    expected = []
    for correct in (False, True):
        scores = []
        for train, test in KFold(3, shuffle=True, random_state=int(rng.integers(2**31))).split(Z):
            A, B = Z[train], Z[test]
            if correct:
                remover = LinearOrthogonalizer().fit(A, protected=X[train])
                A, B = remover.transform(A, protected=X[train]), remover.transform(B, protected=X[test])
            scores.append(Ridge(random_state=0).fit(A, y[train]).score(B, y[test]))
            rng.integers(2**31)  # the random state of the learner
        expected.append(np.mean(scores))
    assert (found.raw, found.corrected) == pytest.approx(tuple(expected), abs=1e-12)
    assert found.raw > found.corrected + 0.1


def test_the_same_generator_gives_the_same_answer_with_open_random_states_too() -> None:
    Z, y, X = draw()
    tree = make_pipeline(StandardScaler(), DecisionTreeRegressor(max_features=1, max_depth=3))
    first, again = (run(Z, y, X, estimator=tree) for _ in range(2))
    other = run(Z, y, X, estimator=tree, rng=np.random.default_rng(1))
    assert first == again and first.shuffled != other.shuffled
    assert tree.get_params()["decisiontreeregressor__random_state"] is None  # the caller's learner is left alone


def test_a_random_state_that_is_given_is_kept() -> None:
    fresh = leakage._fresh(DecisionTreeRegressor(random_state=7), np.random.default_rng(0))
    assert fresh.random_state == 7
    assert leakage._fresh(DecisionTreeRegressor(), np.random.default_rng(0)).random_state is not None


@pytest.mark.parametrize(("classes", "scoring"), [(2, "roc_auc"), (3, "roc_auc_ovr")])
def test_classes_are_scored_by_the_area_under_the_curve(classes: int, scoring: str) -> None:
    Z, y, X = draw()
    label = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes)).astype(float)
    found = run(Z, label, X, estimator=DecisionTreeClassifier(max_depth=2), classification=True)
    assert found.scoring == scoring and found.raw > 0.65 and found.shuffled < 0.6
    assert run(Z, label, X, estimator=DecisionTreeClassifier(), classification=True, scoring="accuracy").scoring


def test_a_learner_that_learns_nothing_is_not_flagged() -> None:
    Z, y, X = draw()
    found = run(Z, (y > 0).astype(float), X, estimator=DummyClassifier(), classification=True)
    assert (found.raw, found.shuffled_corrected, found.chance, found.p_value) == (0.5, 0.5, 0.5, 1.0)
    assert not found.flagged


def test_numbers_are_tested_by_correlation_because_r2_falls_with_noise() -> None:
    """R² of a permuted target is far lower than that of one which the protected columns explain: not by leakage."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(120, 1))
    found = run(rng.normal(size=(120, 25)), X[:, 0] + 0.1 * rng.normal(size=120), X, n_shuffles=10)
    assert found.chance < -0.2 < -0.1 < found.shuffled_corrected < 0.05
    assert found.p_value > 0.1 and not found.flagged


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"Z": np.zeros((5, 2))}, "same rows"),
        ({"X": np.zeros(90)}, "same rows"),
        ({"cv": 1}, "at least 2 of each"),
        ({"n_shuffles": 1}, "at least 2 of each"),
        ({"y": np.zeros(90)}, "lower cv"),
        ({"y": (np.arange(90) < 2).astype(float), "classification": True}, "lower cv"),
        ({"X": np.ones((90, 1))}, "constant"),
    ],
)
def test_bad_input_gets_a_sentence(change: dict[str, Any], said: str) -> None:
    Z, y, X = draw()
    with pytest.raises(InputError, match=said):
        run(**{"Z": Z, "y": y, "X": X, **change})


def test_missing_values_are_named() -> None:
    Z, y, X = draw()
    Z[3, 1] = np.nan
    with pytest.raises(MissingValuesError, match="Feature 1 has 1 NaN"):
        run(Z, y, X)
