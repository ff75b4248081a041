"""Families and data that several tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest

from setsquare.families import Family, family

# Where nobody looks at a new failure at once, the same examples are tried each time.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")

#: Every family with its links.
GLMS = (
    family("gaussian"),
    family("gaussian", "log"),
    family("binomial"),
    family("binomial", "log"),
    family("poisson"),
    family("gamma", "canonical"),
    family("gamma", "log"),
    family("tweedie", "canonical", 1.5),
    family("tweedie", "log", 1.5),
    family("negative_binomial", "canonical", 2.0),
    family("negative_binomial", "log", 2.0),
)


class Data(NamedTuple):
    """Features (n, q), outcome (n,), protected columns (n, 3): a group, an age, a scale of its own."""

    Z: np.ndarray
    y: np.ndarray
    X: np.ndarray


def draw_data(glm: Family, n: int = 600, q: int = 6, seed: int = 0, classes: int = 3) -> Data:
    """Features that know the protected columns, and an outcome that depends on both."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.3, rng.normal(40.0, 12.0, n), 1e-3 * rng.normal(size=n)]).astype(float)
    unit = (X - X.mean(0)) / X.std(0)
    Z = unit @ rng.normal(size=(3, q)) * 0.5 + rng.normal(size=(n, q))
    slope = rng.normal(size=q)
    signal = 0.6 * (Z @ slope / np.linalg.norm(slope)) + 0.3 * unit[:, 0]
    return Data(Z, _draw_outcome(glm, signal, Z, classes, rng), X)


def _draw_outcome(glm: Family, signal: np.ndarray, Z: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    mu = np.exp(0.5 * signal)
    if glm.name == "gaussian":
        return mu + 0.3 * rng.normal(size=len(mu)) if glm.link == "log" else signal + rng.normal(size=len(mu))
    if glm.name == "binomial":
        chance = np.exp(np.minimum(0.3 * signal - 1.6, -0.1)) if glm.link == "log" else 1.0 / (1.0 + np.exp(-signal))
        return (rng.random(len(mu)) < chance).astype(float)
    if glm.name == "multinomial":
        scores = 0.7 * Z @ rng.normal(size=(Z.shape[1], classes)) + rng.gumbel(size=(len(Z), classes))
        return scores.argmax(axis=1).astype(float)
    if glm.name == "poisson":
        return rng.poisson(mu).astype(float)
    if glm.name == "negative_binomial":
        return rng.poisson(rng.gamma(2.0, mu / 2.0)).astype(float)
    # positive, with some zeros where the family has them
    y = rng.gamma(2.0, mu / 2.0)
    return y * (rng.random(len(mu)) < 0.85) if glm.name == "tweedie" else y


@pytest.fixture(params=GLMS, ids=str)
def glm(request: pytest.FixtureRequest) -> Family:
    """Every family with one linear predictor, with each of its links."""
    return request.param


@pytest.fixture(scope="session")
def draw() -> Callable[..., Data]:
    """Draw features, an outcome of the family, and protected columns."""
    return draw_data


@pytest.fixture
def draw_outcome() -> Callable[..., np.ndarray]:
    """Outcomes of a family, given a signal."""
    return _draw_outcome
