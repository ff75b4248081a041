"""Sums of one pass over dense rows: those of the formulas, for copied features and for features as stored."""

from __future__ import annotations

import numpy as np
import pytest

import setsquare as sq
from setsquare.families import binomial, poisson
from setsquare.glm import dense_pass, preparation
from setsquare.glm.dense_pass import DensePass
from setsquare.rows.blocks import Block
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


#: Third feature of rows that are looked at and of the others, from a normal draw; and how often moments are summed.
KINDS = {
    "near zero": (lambda z: z, lambda z: z, 1),
    "far": (lambda z: z + 1e6, lambda z: z + 1e6, 1),
    "far only where one looks": (lambda z: z + 1e4, lambda z: z, 2),
    "near zero only where one looks": (lambda z: z, lambda z: z + 1e6, 2),
    "wide only where one looks": (lambda z: 1e3 * z, lambda z: z + 1e4, 2),
    "constant": (lambda z: 0.1 + 0.0 * z, lambda z: 0.1 + 0.0 * z, 1),
    "constant where one looks": (lambda z: 0.1 + 0.0 * z, lambda z: z, 1),
    "varies only where one looks": (lambda z: z, lambda z: 0.1 + 0.0 * z, 1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_features_are_read_near_zero_whatever_the_rows_that_were_looked_at(
    monkeypatch: pytest.MonkeyPatch, kind: str, weighted: bool
) -> None:
    rng, n = np.random.default_rng(5), 6000
    Z, X = rng.normal(size=(n, 4)), rng.normal(size=(n, 1))
    Z[:, 0] += X[:, 0]
    y = (Z @ [1.0, 0.5, 0.5, 0.0] + rng.logistic(size=n) > 0).astype(float)
    looked, other, passes = KINDS[kind]
    weight = None
    if weighted:  # rows of weight 0 have values that must not count
        weight = np.ones(n)
        weight[::7] = 0.0
        Z[::7] = 1e12
    counted = np.arange(n) if weight is None else np.flatnonzero(weight)
    monkeypatch.setattr(preparation, "SAMPLE", 10)
    some = np.isin(np.arange(n), counted[:: len(counted) // 10])
    Z[counted, 2] = np.where(some, looked(Z[:, 2]), other(Z[:, 2]))[counted]
    problem = sq.Problem(Z, y, X, "binomial", weight=weight)
    copied, summed = sq.solve(problem), list[int]()
    before = preparation.feature_moments
    monkeypatch.setattr(preparation, "feature_moments", lambda *given: (summed.append(1), before(*given))[1])
    monkeypatch.setattr(preparation, "LARGEST_COPY", 0)
    stored = sq.solve(problem)
    assert len(summed) == passes
    assert stored.certificate.aliased_features == copied.certificate.aliased_features
    scale = Z[counted].std(axis=0)
    np.testing.assert_allclose(stored.coef * scale, copied.coef * scale, rtol=1e-6, atol=1e-7)
    assert stored.certificate.max_correlation < 1e-8
    assert stored.certificate.loss == pytest.approx(copied.certificate.loss, rel=1e-10)


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
