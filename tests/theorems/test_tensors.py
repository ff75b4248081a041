"""THEORY §6 (Corollary 6): tensors are projected along their first axis, without an n by n matrix."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from setsquare.projection import GeneralizedProjector, Projector, project_out

SHAPES = [(), (7,), (3, 4), (2, 3, 4), (2, 2, 3, 2)]


def draw_tensor(shape: tuple[int, ...], n: int = 60, p: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * np.array([1.0, 100.0, 0.01])[:p] + np.array([5.0, -300.0, 0.0])[:p]
    Y = np.tensordot(X / X.std(0), rng.normal(size=(p, *shape)), axes=1) + rng.normal(size=(n, *shape))
    return Y, X


def brute_force(Y: np.ndarray, X: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
    """``P⊥ ×₁ Y`` plus the mean, with the n × n projector written out."""
    n = len(X)
    w = np.full(n, 1.0 / n) if w is None else w / w.sum()
    Xc = (X - w @ X) / X.std(0)
    complement = np.eye(n) - Xc @ np.linalg.solve((Xc * w[:, None]).T @ Xc, (Xc * w[:, None]).T)
    return np.einsum("ij,j...->i...", complement, Y)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{1 + len(s)}-dimensional")
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_tensors_equal_the_brute_force_projector(shape: tuple[int, ...], weighted: bool) -> None:
    Y, X = draw_tensor(shape)
    weight = np.random.default_rng(1).uniform(0.1, 3.0, len(X)) if weighted else None
    corrected = project_out(Y, X, weight)
    assert corrected.shape == Y.shape
    np.testing.assert_allclose(corrected, brute_force(Y, X, weight), atol=1e-10)
    w = np.full(len(X), 1.0 / len(X)) if weight is None else weight / weight.sum()
    Xc = (X - w @ X) / X.std(0) * w[:, None]
    before, after = np.tensordot(Xc, Y, axes=(0, 0)), np.tensordot(Xc, corrected, axes=(0, 0))
    assert np.abs(before).max() > 0.5 and np.abs(after).max() < 1e-13
    np.testing.assert_allclose(np.tensordot(w, corrected, axes=1), np.tensordot(w, Y, axes=1), atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=lambda s: f"{1 + len(s)}-dimensional")
def test_every_fibre_is_corrected_by_itself(shape: tuple[int, ...]) -> None:
    Y, X = draw_tensor(shape)
    corrected = project_out(Y, X)
    for index in np.ndindex(*shape):
        np.testing.assert_allclose(corrected[:, *index], project_out(Y[:, *index], X), atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{1 + len(s)}-dimensional")
@pytest.mark.parametrize("name", ["relu", "sigmoid"])
def test_the_generalised_projection_keeps_the_shape_of_tensors(shape: tuple[int, ...], name: str) -> None:
    Y, X = draw_tensor(shape, n=200)
    projector = GeneralizedProjector.fit(Y, X, name)
    out = projector.predict(Y, X)
    assert out.shape == projector.apply(Y, X).shape == Y.shape
    covariance = np.tensordot((X - X.mean(0)) / X.std(0), out, axes=(0, 0)) / len(X)
    assert np.abs(covariance).max() < 1e-10


def test_correcting_in_place_gives_the_same_tensor() -> None:
    Y, X = draw_tensor((3, 4))
    projector = Projector.fit(Y, X)
    expected = projector.apply(Y, X)
    again = projector.apply(Y, X, out=Y)
    assert again is Y
    np.testing.assert_array_equal(Y, expected)


def test_single_precision_stays_single_precision() -> None:
    Y, X = draw_tensor((3, 4))
    corrected = project_out(Y.astype(np.float32), X.astype(np.float32))
    assert corrected.dtype == np.float32
    np.testing.assert_allclose(corrected, brute_force(Y, X), atol=2e-4)


def test_integers_are_not_rounded_back() -> None:
    Y, X = draw_tensor((3,))
    whole = np.round(Y).astype(np.int64)
    np.testing.assert_allclose(project_out(whole, X), brute_force(whole.astype(float), X), atol=1e-10)


def test_no_matrix_of_rows_by_rows_is_ever_built() -> None:
    """At 20 000 rows the n × n projector would take 3.2 GB; the correction takes less than 30 MB."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20_000, 2)), rng.normal(size=(20_000, 3, 2))
    project_out(Y[:100], X[:100])
    tracemalloc.start()
    try:
        project_out(Y, X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30e6
