"""Corollary 6 and the generalised projection in torch: tensors of any shape equal the core, and nothing is left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from setsquare import projection

torch = pytest.importorskip("torch")
sqnn = pytest.importorskip("setsquare.nn")
project_out, generalized_project_out = sqnn.functional.project_out, sqnn.functional.generalized_project_out
ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh", "exp")
#: Two- to five-dimensional tensors, and one unit without an axis.
SHAPES = [(), (5,), (2, 3), (2, 3, 2), (2, 2, 3, 2)]
each_activation = pytest.mark.parametrize("name", ACTIVATIONS)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def draw(shape: tuple[int, ...] = (4,), n: int = 80, p: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Units (n, ...) that depend on protected columns of different means and scales."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.3, rng.normal(size=(n, p - 1)) * 10.0 ** np.arange(p - 1) + 40.0])
    d = int(np.prod(shape, dtype=int))
    Y = 0.5 * (X - X.mean(0)) / X.std(0) @ rng.normal(size=(p, d)) + rng.normal(size=(n, d))
    return Y.reshape(n, *shape), X.astype(float)


@each_shape
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_project_out_equals_the_core(shape: tuple[int, ...], weighted: bool) -> None:
    Y, X = draw(shape)
    weight = np.random.default_rng(1).uniform(0.0, 2.0, len(X)) if weighted else None
    expected = projection.project_out(Y, X, weight)
    w = None if weight is None else torch.tensor(weight)
    assert np.abs(Y - expected).max() > 0.1
    out = project_out(torch.tensor(Y), torch.tensor(X), w)
    assert out.shape == Y.shape and np.abs(out.numpy() - expected).max() < 1e-10
    single = project_out(torch.tensor(Y).float(), torch.tensor(X), w)
    assert single.dtype == torch.float32 and np.abs(single.numpy() - expected).max() < 1e-5


@each_shape
@each_activation
def test_generalized_project_out_equals_the_core(name: str, shape: tuple[int, ...]) -> None:
    Y, X = draw(shape)
    expected = projection.GeneralizedProjector.fit(Y, X, name).apply(Y, X)
    assert np.abs(Y - expected).max() > 0.1
    out = generalized_project_out(torch.tensor(Y), torch.tensor(X), name)
    assert out.shape == Y.shape and np.abs(out.numpy() - expected).max() < 1e-10
    single = generalized_project_out(torch.tensor(Y).float(), torch.tensor(X), name)
    assert single.dtype == torch.float32 and np.abs(single.numpy() - expected).max() < 1e-5


@given(n=st.integers(12, 60), p=st.integers(1, 4), seed=st.integers(0, 1000), name=st.sampled_from(ACTIVATIONS))
@settings(max_examples=25, deadline=None)
def test_any_draw_equals_the_core(n: int, p: int, seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * 10.0 ** rng.integers(-3, 4, p)
    Y = rng.normal(size=(n, 3)) + X[:, :1] / X.std()
    out = project_out(torch.tensor(Y), torch.tensor(X)).numpy()
    np.testing.assert_allclose(out, projection.project_out(Y, X), atol=1e-10)
    core = projection.GeneralizedProjector.fit(Y, X, name)
    if core.converged.all():
        u = generalized_project_out(torch.tensor(Y), torch.tensor(X), name).numpy()
        np.testing.assert_allclose(core.activation(u), core.predict(Y, X), atol=1e-8, rtol=1e-8)


def test_a_linear_probe_finds_nothing_afterwards_and_did_before() -> None:
    rng = np.random.default_rng(0)
    group = rng.random(600) < 0.5
    Y = rng.normal(size=(600, 8)) + 0.8 * group[:, None] * rng.normal(size=8)

    def accuracy(features: np.ndarray) -> float:
        return float(LogisticRegression(C=1e6).fit(features, group).score(features, group))

    assert accuracy(Y) > 0.8
    out = project_out(torch.tensor(Y), torch.tensor(group))
    assert accuracy(out.numpy()) <= max(group.mean(), 1 - group.mean()) + 1e-9
    layer = sqnn.Orthogonalize(1)
    assert accuracy(layer(torch.tensor(Y), torch.tensor(group)).numpy()) <= max(group.mean(), 1 - group.mean()) + 1e-9
