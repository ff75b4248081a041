"""Protected columns that are partly missing: doubly robust moments (theory, section 14)."""

from __future__ import annotations

import numpy as np
import pytest

import setsquare as sq
from setsquare._typing import Array
from setsquare.glm.missing_protected import doubly_robust


def _expit(t: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-t)))


def _draw(n: int, seed: int) -> tuple[Array, Array, Array, Array, Array]:
    """Features, protected column, outcome, probability of being observed (20 % on average) and a model of the column.

    The column bends in the first feature; rows in which it rises steeply are observed less often.
    """
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 5))
    mean = np.maximum(Z[:, 0], 0.0) - 0.2 * Z[:, 0] + 0.8 * Z[:, 2]
    x = mean + rng.normal(size=n)
    y = (rng.random(n) < _expit(Z[:, 0] + Z[:, 2] + Z[:, 3] + 0.8 * Z[:, 4])).astype(float)
    return Z, x, y, _expit(-1.75 - 1.2 * Z[:, 0] + 0.7 * (y - 0.5)), mean


def _corr(a: Array, b: Array) -> float:
    return float(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize(
    ("right_probability", "right_model", "holds"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
def test_one_right_model_is_enough(right_probability: bool, right_model: bool, holds: bool) -> None:
    Z, x, _, probability, mean = _draw(400_000, 0)
    rng = np.random.default_rng(1)
    known = rng.random(len(x)) < probability
    used = probability if right_probability else np.full(len(x), known.mean())
    model = mean if right_model else np.zeros(len(x))
    values = doubly_robust(np.where(known, x, np.nan)[:, None], model[:, None], used)[:, 0]
    score = _expit(Z @ [1.0, 0.0, 0.5, -1.0, 0.0])
    gap = (values - x) * (score - score.mean())
    error = float(gap.mean() / (gap.std() / np.sqrt(len(gap))))
    if holds:
        assert abs(error) < 4.0
    else:
        assert abs(error) > 20.0
    complete = _corr(x[known], score[known]) - _corr(x, score)
    assert abs(complete) > 0.05  # the rows that have the column say something else


def test_a_model_is_orthogonal_in_the_population_with_80_percent_missing() -> None:
    Z_new, x_new, *_ = _draw(200_000, 99)
    left: dict[str, list[float]] = {"model": [], "drop": []}
    covered = 0
    for seed in range(6):
        Z, x, y, probability, _ = _draw(5000, seed)
        known = np.random.default_rng(seed + 100).random(len(x)) < probability
        assert 0.78 < 1.0 - known.mean() < 0.82
        gaps = np.where(known, x, np.nan)
        for rule, found in left.items():
            model = sq.OrthogonalGLMClassifier(missing=rule).fit(Z, y, protected=gaps)
            found.append(_corr(x_new, model.predict_proba(Z_new)[:, 1]))
            if rule == "model":
                certificate = model.solution_.certificate
                assert certificate.is_orthogonal and certificate.new_rows is not None
                covered += abs(found[-1]) <= certificate.new_rows.upper
    plain = sq.OrthogonalGLMClassifier().fit(Z, y, protected=np.random.default_rng(0).normal(size=len(y)))
    assert _corr(x_new, plain.predict_proba(Z_new)[:, 1]) > 0.3  # before any correction
    assert min(left["drop"]) > 0.05  # complete rows only: a correlation remains in every sample
    error = float(np.std(left["model"]) / np.sqrt(len(left["model"])))
    assert abs(np.mean(left["model"])) < max(3.0 * error, 0.02)
    assert abs(np.mean(left["model"])) < 0.4 * np.mean(left["drop"])
    assert covered >= 5


def test_it_changes_nothing_where_nothing_is_missing() -> None:
    Z, x, y, *_ = _draw(500, 3)
    a = sq.OrthogonalGLMClassifier().fit(Z, y, protected=x)
    b = sq.OrthogonalGLMClassifier(missing="model").fit(Z, y, protected=x)
    assert np.array_equal(a.coef_, b.coef_)
    assert b.solution_.certificate.missing_protected == ()
