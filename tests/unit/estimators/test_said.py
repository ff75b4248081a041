"""What fits say about outcomes and predictions that their family cannot have."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

import setsquare as sq
from setsquare.errors import OutcomeRangeError
from setsquare.estimators.warn import BoundaryWarning


def batches(y: np.ndarray, weight: np.ndarray | None = None) -> sq.Stream:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(len(y), 3)), columns=["a", "b", "c"]).assign(sex=np.arange(len(y)) % 2, y=y)
    table = table if weight is None else table.assign(w=weight)
    return sq.Stream(lambda: iter([table[:50], table[50:]]))


@pytest.mark.parametrize(("family", "bad"), [("poisson", -1.0), ("gamma", 0.0), ("negative_binomial", -2.0)])
def test_a_stream_refuses_outcomes_that_the_family_cannot_produce(family: str, bad: float) -> None:
    y = np.random.default_rng(1).poisson(3.0, 100).astype(float) + 1.0
    y[70] = bad
    model = sq.OrthogonalGLMRegressor(family, protected=["sex"])
    with pytest.raises(OutcomeRangeError, match=rf"1 value\(s\) that the {family} family cannot produce"):
        model.fit(batches(y), "y")
    weight = np.ones(100)
    weight[70] = 0.0  # a row without weight may have any outcome
    model.fit(batches(y, weight), "y", sample_weight="w")


class Known(RegressorMixin, BaseEstimator):
    """Predicts its first feature."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Known:
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(X)[:, 0]


@pytest.mark.parametrize(("low", "high", "moved"), [(0.3, 0.9, "0.15"), (0.1, 0.6, "0.2")])
def test_the_warning_names_the_larger_of_the_two_distances_from_the_ends(low: float, high: float, moved: str) -> None:
    p = np.r_[0.0, 0.0, 1.0, 1.0, np.linspace(low, high, 56)]
    model = sq.PredictionOrthogonalizer(Known(), activation="sigmoid")
    with pytest.warns(BoundaryWarning, match=rf"4 of 60 predictions .* moved inside by {moved} before"):
        model.fit(p[:, None], p, protected=np.arange(60.0) % 2)
