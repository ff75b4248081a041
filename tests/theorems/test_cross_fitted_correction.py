"""A correction around a model that overfits: exact on cross-fitted predictions, and at chance on new rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import setsquare as sq

pytestmark = pytest.mark.filterwarnings("ignore::setsquare.errors.BoundaryWarning")


def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = (rng.random(n) < 0.4).astype(float)
    Z = x[:, None] * [1.0, 0.5, 0.0, 0.0] + rng.normal(size=(n, 4))
    y = (Z[:, 0] + Z[:, 2] + rng.normal(size=n) > 0.4).astype(int)
    return Z, x, y


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def test_cross_fitted_predictions_are_exactly_orthogonal_and_those_of_the_training_rows_are_not():
    Z, x, y = draw(600, np.random.default_rng(0))
    forest = RandomForestClassifier(30, random_state=0)
    model = sq.PredictionOrthogonalizer(forest).fit(Z, y, protected=x)
    assert model.learned_on_ == "cross-fitted predictions"
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    held_out = cross_val_predict(forest, Z, y, cv=folds, method="predict_proba")[:, 1:]
    eta = np.clip(held_out, model.boundary_[0], 1.0 - model.boundary_[1])
    corrected = model.projector_.predict(np.log(eta / (1.0 - eta)), x[:, None])[:, 0]
    assert correlation(held_out[:, 0], x) > 0.2
    assert abs(correlation(corrected, x)) < 1e-8
    assert corrected.mean() == pytest.approx(held_out.mean(), abs=1e-10)
    assert model.n_boundary_ == np.count_nonzero((held_out == 0.0) | (held_out == 1.0))
    assert abs(correlation(model.predict_proba(Z, protected=x)[:, 1], x)) > 0.02  # they overfit, which is not corrected


#: A model that predicts each training row's outcome depends on x there as the outcome does, and on new rows, too.
MODELS = {
    "forest": RandomForestClassifier(12, random_state=0),
    "neighbours (0 and 1)": KNeighborsClassifier(1),
    "tree (0 and 1)": DecisionTreeClassifier(random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
def test_on_new_rows_the_correlation_is_chance_and_of_a_forest_learned_on_training_rows_it_is_not(name):
    rng = np.random.default_rng(1)
    found: dict[str, list[float]] = {"plain": [], "training rows": [], "cross-fitted": []}
    for _ in range(12):
        Z, x, y = draw(400, rng)
        new, xn, _ = draw(4000, rng)
        for label, cv in (("training rows", "training rows"), ("cross-fitted", 5)):
            model = sq.PredictionOrthogonalizer(MODELS[name], cv=cv).fit(Z, y, protected=x)
            found[label].append(correlation(model.predict_proba(new, protected=xn)[:, 1], xn))
        found["plain"].append(correlation(model.estimator_.predict_proba(new)[:, 1], xn))
    mean = {label: float(np.mean(values)) for label, values in found.items()}
    error = float(np.std(found["cross-fitted"], ddof=1)) / np.sqrt(12)
    assert mean["plain"] > 0.15
    assert abs(mean["cross-fitted"]) < 3.0 * error
    assert np.sqrt(np.mean(np.square(found["cross-fitted"]))) < 1.6 * np.sqrt(1 / 400 + 1 / 4000)
    if name == "forest":
        assert abs(mean["training rows"]) > 3.0 * error


def test_a_regression_forest_of_a_skewed_outcome_is_at_chance_on_new_rows():
    rng = np.random.default_rng(2)
    found: dict[str, list[float]] = {"training rows": [], "cross-fitted": []}
    for _ in range(8):
        Z, x, _ = draw(500, rng)
        new, xn, _ = draw(4000, rng)
        y = np.exp(0.5 * Z[:, 0] + 0.7 * rng.normal(size=500))
        for label, cv in (("training rows", "training rows"), ("cross-fitted", 5)):
            model = sq.PredictionOrthogonalizer(RandomForestRegressor(12, random_state=0), activation="exp", cv=cv)
            model.fit(Z, y, protected=x)
            assert model.predict(new, protected=xn).min() > 0.0
            found[label].append(correlation(model.predict(new, protected=xn), xn))
    error = float(np.std(found["cross-fitted"], ddof=1)) / np.sqrt(8)
    assert abs(np.mean(found["cross-fitted"])) < 3.0 * error
    assert abs(np.mean(found["cross-fitted"])) < abs(np.mean(found["training rows"]))


def test_folds_of_whole_clusters_are_needed_where_a_model_remembers_a_patient():
    """Rows of a patient are nearly copies, with one outcome: only new patients are new."""
    rng = np.random.default_rng(3)
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(10):
        Z, x, y = draw(150, rng)
        patient = np.repeat(np.arange(150), 6)
        Z, x, y = Z[patient] + 0.01 * rng.normal(size=(900, 4)), x[patient], y[patient]
        new, xn, _ = draw(4000, rng)
        for clustered in (True, False):
            model = sq.PredictionOrthogonalizer(RandomForestClassifier(12, random_state=0))
            model.fit(Z, y, protected=x, cluster=patient if clustered else None)
            found[clustered].append(correlation(model.predict_proba(new, protected=xn)[:, 1], xn))
    error = float(np.std(found[True], ddof=1)) / np.sqrt(10)
    assert abs(np.mean(found[True])) < 3.0 * error
    assert abs(np.mean(found[False])) > 3.0 * error
