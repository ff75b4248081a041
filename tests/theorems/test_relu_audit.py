"""What an auditor is told of the published correction before a ReLU, and of the generalised one, on the same data."""

from __future__ import annotations

import numpy as np

import setsquare as sq
from setsquare.projection import GeneralizedProjector, project_out


def test_published_correction_leaks_and_the_generalised_one_does_not() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(3, size=1500)
    X = np.eye(3)[group][:, 1:]
    pre = (0.5 + group) * rng.normal(size=1500) + 0.3 * group  # unequal means, and unequal spreads
    relu = {
        "uncorrected": np.maximum(pre, 0.0),
        "published": np.maximum(project_out(pre[:, None], X)[:, 0], 0.0),
        "generalised": np.maximum(GeneralizedProjector.fit(pre, X, "relu").apply(pre, X), 0.0).reshape(-1),
    }
    protected = np.asarray(["a", "b", "c"])[group]
    found = {
        name: sq.audit(y, protected, "gaussian", evaluation=["glm", "relu"], n_permutations=199)
        for name, y in relu.items()
    }
    assert {name: str(result.verdict) for name, result in found.items()} == {
        "uncorrected": "leak",
        "published": "leak",
        "generalised": "no leak found",
    }
    assert found["published"].evaluation("relu").joint.p_value <= 0.005
    assert found["generalised"].evaluation("relu").joint.p_value > 0.5
