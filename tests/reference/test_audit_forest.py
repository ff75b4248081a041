"""The forest evaluation model on the paper's data sets: uncorrected predictions are flagged."""

from __future__ import annotations

import pytest

import setsquare as sq
from setsquare import datasets


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult", "bank", "compas", "health_retirement"])
def test_uncorrected_predictions_are_flagged(name: str) -> None:
    if not datasets.available(name):
        pytest.skip(f"the data set {name} is not on this machine: set SETSQUARE_DATA")
    data = getattr(datasets, f"load_{name}")()
    features = data.features_table().drop(columns=list(data.protected), errors="ignore")
    solution = _fit(features, data)
    found = sq.audit(solution, data.protected_table(), data.family, evaluation="forest", n_permutations=99)
    assert found.verdict == "leak"
    assert found.p_value == pytest.approx(0.01)
    assert found.evaluations[0].joint.statistic > 0.005  # out-of-bag R²


def _fit(features: object, data: datasets.Dataset) -> object:
    encoded = sq.tables.learn(features).apply(features)
    fit = sq.solve(sq.Problem(encoded.values, data.y, family=data.family))
    return sq.families.family(data.family).activation(fit.intercept[0] + encoded.values @ fit.coef[0])
