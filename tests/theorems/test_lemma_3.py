"""THEORY §3 (Lemma 3): the linear correction of predictions empties the evaluation model, but leaves the range."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import statsmodels.api as sm

from setsquare.families import family
from setsquare.projection import GeneralizedProjector, Projector, project_out


def leaky_probabilities(
    n: int = 500, seed: int = 0, strength: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.3, rng.normal(50.0, 10.0, n)]).astype(float)
    eta = strength * (2.0 * X[:, 0] + 0.05 * (X[:, 1] - 50.0)) + rng.normal(size=n)
    return eta, 1.0 / (1.0 + np.exp(-eta)), X


def linear_slopes(yhat: np.ndarray, X: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    design = sm.add_constant((X - X.mean(0)) / X.std(0))
    return np.asarray(sm.WLS(yhat, design, 1.0 if weight is None else weight).fit().params[1:])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_the_linear_correction_empties_the_linear_evaluation_model(seed: int, weighted: bool) -> None:
    _, before, X = leaky_probabilities(seed=seed)
    weight = np.random.default_rng(seed).uniform(0.1, 4.0, len(X)) if weighted else None
    after = project_out(before, X, weight)
    assert np.abs(linear_slopes(before, X, weight)).max() > 0.05
    assert np.abs(linear_slopes(after, X, weight)).max() < 1e-13
    assert np.average(after, weights=weight) == pytest.approx(np.average(before, weights=weight), abs=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_the_linear_correction_empties_the_logistic_evaluation_model_where_it_is_defined(seed: int) -> None:
    _, before, X = leaky_probabilities(seed=seed, strength=0.4)
    before = 0.25 + 0.5 * before
    after = project_out(before, X)
    assert 0.0 < after.min() < after.max() < 1.0
    design = sm.add_constant((X - X.mean(0)) / X.std(0))
    slopes = [sm.GLM(p, design, sm.families.Binomial()).fit(tol=1e-14).params[1:] for p in (before, after)]
    assert np.abs(slopes[0]).max() > 0.05
    assert np.abs(slopes[1]).max() < 1e-10


def test_probabilities_leave_their_range() -> None:
    """The price of Lemma 3, which the generalised projection of the same predictions does not pay."""
    eta, before, X = leaky_probabilities()
    after = project_out(before, X)
    assert before.min() >= 0.0 and before.max() <= 1.0
    assert after.max() > 1.05 and project_out(1.0 - before, X).min() < -0.05
    kept = GeneralizedProjector.fit(eta, X, "sigmoid").predict(eta, X)
    assert kept.min() >= 0.0 and kept.max() <= 1.0


def test_a_probability_above_one_by_hand() -> None:
    """Group means 0.5 and 0.9 meet at 0.7: the row with 0.95 in the first group comes to 1.15."""
    X = np.repeat([[0.0], [1.0]], 2, axis=0)
    after = project_out(np.array([0.05, 0.95, 0.85, 0.95]), X)
    np.testing.assert_allclose(after, [0.25, 1.15, 0.65, 0.75], atol=1e-15)


def test_counts_become_negative() -> None:
    rng = np.random.default_rng(1)
    X = (rng.random((400, 1)) < 0.5).astype(float)
    before = np.exp(2.0 * X[:, 0] + 0.5 * rng.normal(size=400))
    assert before.min() > 0.0 > project_out(before, X).min()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not np.isfinite(family("poisson").deviance(before, project_out(before, X)))


def test_new_rows_need_the_protected_columns() -> None:
    """What is subtracted is the effect of X at each row, so the same prediction is corrected differently."""
    _, before, X = leaky_probabilities()
    projector = Projector.fit(before, X)
    same = np.full(2, 0.5)
    corrected = projector.apply(same, np.array([[0.0, 50.0], [1.0, 50.0]]))
    effect = np.linalg.lstsq(np.column_stack([np.ones(len(X)), X]), before, rcond=None)[0][1]
    assert corrected[0] - corrected[1] == pytest.approx(effect, rel=1e-10)
    assert effect > 0.1
