"""A gradient boosting model on Adult, corrected after the fact."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

import setsquare as sq

pytestmark = pytest.mark.skipif(not sq.datasets.available("adult"), reason="the Adult data are not in $SETSQUARE_DATA")


def test_boosted_probabilities_on_adult_are_orthogonal_in_range_and_keep_their_mean():
    data = sq.datasets.load_adult()
    table = data.features_table()
    boosting = HistGradientBoostingClassifier(categorical_features="from_dtype", max_iter=50, random_state=0)
    model = sq.PredictionOrthogonalizer(boosting, protected=list(data.protected), cv="training rows")
    model.fit(table, data.y)
    before = model.estimator_.predict_proba(table.drop(columns=list(data.protected)))[:, 1]
    after = model.predict_proba(table)[:, 1]
    X = pd.get_dummies(data.protected_table(), drop_first=True).to_numpy(float)

    def largest(p):
        return np.abs(np.corrcoef(X.T, p)[:-1, -1]).max()

    assert largest(before) > 0.2
    assert largest(after) <= 1e-8
    assert after.min() >= 0.0 and after.max() <= 1.0
    assert abs(after.mean() - before.mean()) <= 1e-10
