"""Sums of one pass over dense rows: those of the formulas, for copied features and for features as stored."""

from __future__ import annotations

import numpy as np
import pytest

import setsquare as sq
from setsquare.families import binomial, poisson
from setsquare.glm import dense_pass, preparation
from setsquare.glm.dense_pass import DensePass
from setsquare.rows.blocks import Block
from setsquare.rows.products import weighted_sums
from setsquare.rows.wide import Slab

Q = 5  # features


def sample(r: int, n: int = 700) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(r)
    Z = rng.normal(size=(n, Q)) + np.array([0.0, 0.0, 30.0, 0.0, -20.0])
    return Z, rng.integers(0, 2, (n, 1)).astype(float), rng.normal(size=(n, r)), rng.uniform(0.5, 2.0, n)


def features(Z: np.ndarray, form: str) -> np.ndarray | Slab:
    """Ones and features: copied, or stored by rows or columns with two features far from zero."""
    mean = np.array([0.0, 0.0, 30.0, 0.0, -20.0])
    if form == "copied":
        return np.asfortranarray(np.hstack([np.ones((len(Z), 1)), Z - mean]))
    return Slab.shifted(np.asarray(Z, order="C" if form == "rows" else "F"), mean)


@pytest.mark.parametrize("form", ["copied", "rows", "columns"])
@pytest.mark.parametrize("overall", [False, True])
@pytest.mark.parametrize("r", range(8))
@pytest.mark.parametrize("equal", [False, True])
def test_gradient_and_jacobian_are_those_of_the_formulas(
    monkeypatch: pytest.MonkeyPatch, form: str, overall: bool, r: int, equal: bool
) -> None:
    monkeypatch.setattr(dense_pass, "PIECE_BYTES", 2**14)
    monkeypatch.setattr(dense_pass, "LEAST_ROWS", 100)
    Z, y, basis, w = sample(r)
    w = np.full_like(w, 0.25) if equal else w
    raw = np.random.default_rng(9).normal(size=1 + Q) / 3
    family = binomial if r % 2 else poisson
    kernel = DensePass(family, 0.4, raw, np.zeros(r), second=False, overall=overall)
    sums = kernel(Block(features(Z, form), y, basis, w))
    A = np.asarray(features(Z, "copied"))
    (loss, slope, _), (h, dh, _) = family.evaluate(y[:, 0], A @ raw)
    expected = w @ loss, (w * (h - 0.4)) @ basis, w @ (h - 0.4), w @ (h - 0.4) ** 2, w @ dh, (w * slope) @ A
    for found, value in zip(sums, expected, strict=False):
        np.testing.assert_allclose(np.ravel(found), np.ravel(value), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sums[6][0, 0], (basis * (w * dh)[:, None]).T @ A, rtol=1e-9, atol=1e-9)
    assert len(sums) == 7 + overall


@pytest.mark.parametrize("order", ["C", "F"])
def test_sums_of_features_do_not_depend_on_pieces(order: str) -> None:
    rng = np.random.default_rng(0)
    Z, w = np.asarray(rng.normal(size=(90_000, 4)), order=order), rng.uniform(size=90_000)
    total, squares = weighted_sums(Z, w)
    np.testing.assert_allclose(total, w @ Z, rtol=1e-12)
    np.testing.assert_allclose(squares, w @ Z**2, rtol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_fit_to_features_as_stored_is_that_to_a_copy(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    Z, y, X, w = sample(3, 2000)
    problem = sq.Problem(np.asarray(Z, order=order), y[:, 0], X, "binomial", weight=w)
    copied = sq.solve(problem)
    monkeypatch.setattr(preparation, "LARGEST_COPY", 0)
    stored = sq.solve(problem)
    np.testing.assert_allclose(stored.coef, copied.coef, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(stored.intercept, copied.intercept, rtol=1e-9, atol=1e-10)
    assert stored.certificate.max_correlation < 1e-8
