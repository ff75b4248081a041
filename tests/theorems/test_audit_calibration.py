"""The audit's promises in a small simulation; benchmarks/audit_calibration.py has the large one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import setsquare as sq

N_SAMPLES = 200


def draw(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "binary":
        return (rng.random(n) < 0.4).astype(float)
    return rng.normal(size=n) if kind == "continuous" else np.asarray(list("abcd"))[rng.integers(4, size=n)]


def p_values(kind: str, family: str, vcov: str, leak: float, n_samples: int = N_SAMPLES) -> np.ndarray:
    found, n = [], 500
    for seed in range(n_samples):
        rng = np.random.default_rng(seed)
        x = draw(kind, n, rng)
        signal = rng.normal(size=n) + leak * ((x == "b") if kind == "levels" else x)
        y = 1.0 / (1.0 + np.exp(-signal)) if family == "binomial" else np.exp(0.5 * signal)
        found.append(sq.audit(y, x, family=family, vcov=vcov).p_value)
    return np.asarray(found)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        pytest.param("binary", "binomial", marks=pytest.mark.slow),
        pytest.param("continuous", "poisson", marks=pytest.mark.slow),
        ("levels", "binomial"),
    ],
)
def test_default_rejects_independent_predictions_as_often_as_it_says(kind: str, family: str) -> None:
    p = p_values(kind, family, "HC3", 0.0)
    low, high = stats.binom.ppf([0.0005, 0.9995], N_SAMPLES, 0.05)
    assert low <= (p <= 0.05).sum() <= high
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_paper_mode_is_blind_where_the_default_sees() -> None:
    """Fractional predictions vary far less than the outcomes whose errors they are given."""
    leak = 0.35
    default, paper = (p_values("binary", "binomial", vcov, leak, 60) for vcov in ("HC3", "model"))
    assert (default <= 0.05).mean() > 0.9
    assert (paper <= 0.05).mean() < 0.25
    assert (p_values("binary", "binomial", "model", 0.0, 100) <= 0.05).mean() < 0.005


@pytest.mark.parametrize("leak", [0.0, 0.4])
def test_upper_bounds_hold(leak: float) -> None:
    rng = np.random.default_rng(0)
    x = (rng.random(200_000) < 0.4).astype(float)
    whole = sq.audit(1.0 / (1.0 + np.exp(-rng.normal(size=len(x)) - leak * x)), x).certificate
    truth = (whole.correlation, whole.columns[0].effect) if leak else (0.0, 1.0)
    held = np.zeros(2)
    for seed in range(N_SAMPLES):
        rng = np.random.default_rng([1, seed])
        x = (rng.random(400) < 0.4).astype(float)
        score = 1.0 / (1.0 + np.exp(-rng.normal(size=400) - leak * x))
        found = sq.audit(score, x, evaluation="glm").certificate  # the bounds do not depend on the evaluation
        held += (found.correlation_upper >= truth[0], found.columns[0].effect_upper >= truth[1])
    assert (held / N_SAMPLES >= 0.92).all()
    if leak:
        assert (held / N_SAMPLES < 0.99).all()  # a bound that always holds says little
