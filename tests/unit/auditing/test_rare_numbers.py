"""Numbers of audits where an approximation or another way begins, against what holds exactly."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, special, stats

from setsquare.auditing.bounds import NORMAL, _largest_noncentrality
from setsquare.auditing.evaluations.tensor import EffectMap
from setsquare.auditing.evaluations.unit_glms import _newton
from setsquare.auditing.fold_dependence import Mutual
from setsquare.auditing.held_out import _combines
from setsquare.families import family
from setsquare.glm.new_rows_bound import length_quantile

RNG = np.random.default_rng


@pytest.mark.parametrize("statistic", [0.9 * NORMAL, 1.1 * NORMAL, 40.0 * NORMAL])
@pytest.mark.parametrize("dimension", [1.0, 7.0])
def test_a_noncentrality_that_is_just_not_ruled_out(statistic: float, dimension: float) -> None:
    t = float(special.ndtri(0.95))
    found = _largest_noncentrality(statistic, dimension, 1e9, 0.95, t)
    assert stats.ncx2.cdf(statistic, dimension, found) == pytest.approx(0.05, abs=3e-3)


@pytest.mark.parametrize("rank", [3, 400, 1200])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_the_length_of_a_normal_vector_has_chi_square_quantiles(rank: int, shift: float) -> None:
    b = np.zeros(rank)
    b[0] = shift
    found = length_quantile(b, np.eye(rank), 0.95)
    exact = stats.ncx2.ppf(0.95, rank, shift**2) if shift else stats.chi2.ppf(0.95, rank)
    assert found == pytest.approx(exact, rel=2e-3)


def test_effect_maps_are_equal_by_their_numbers() -> None:
    one = EffectMap(*(np.full((2, 3), value) for value in (0.1, 0.2, np.nan, 0.4, 0.5)), ("sex",))
    same = EffectMap(*(np.full((2, 3), value) for value in (0.1, 0.2, np.nan, 0.4, 0.5)), ("sex",))
    assert one == same and hash(one) == hash(same)
    assert one != replace(one, names=("age",)) and one != "sex" and one != replace(one, p_value=np.zeros((2, 3)))
    with pytest.raises(ValueError, match="read-only"):
        one.correlation[0, 0] = 1.0


def test_a_test_of_any_dependence_has_linear_and_other_parts() -> None:
    mutual = Mutual(np.array([0.3, 0.1]), {"sex": np.array([0.2])}, {}, {}, np.array([0.4, 0.2]))
    assert mutual.concerning("forest", "sex").tolist() == pytest.approx([0.5])
    assert mutual.concerning("shape", "sex").tolist() == [0.4, 0.2]
    assert mutual.concerning("glm", "sex").tolist() == [0.2] and mutual.concerning("glm", "age").tolist() == [0.3, 0.1]
    large = replace(mutual, together=np.array([0.9]), beyond=np.array([0.8]))
    assert large.concerning("relu", "sex").tolist() == [1.0]


def test_features_that_combine_to_a_protected_column() -> None:
    rng = RNG(0)
    X = rng.normal(size=(40, 1))
    X = (X - X.mean(axis=0)) / np.linalg.norm(X - X.mean(axis=0))
    F = rng.normal(size=(40, 3))
    assert not _combines(np.ones((40, 2)), X) and not _combines(F, X)
    assert _combines(np.column_stack([F[:, 0], 5.0 + 2.0 * F[:, 0] - 3.0 * X[:, 0]]), X)
    many = rng.normal(size=(40, 30))  # these could fit any column: only a copy counts
    assert not _combines(many, X) and _combines(np.column_stack([many, 7.0 - 2.0 * X[:, 0]]), X)


@pytest.mark.parametrize("start", [0.0, 4.0, -6.0])
def test_newton_of_many_units_ends_at_each_optimum_from_far_away(start: float) -> None:
    rng, glm = RNG(1), family("poisson")
    D = np.column_stack([np.ones(50), rng.normal(size=50)])
    Y = rng.poisson(np.exp(D @ np.array([[0.2, 1.5, -1.0], [0.3, -0.6, 0.0]]))).astype(float)
    w = np.full(50, 0.02)
    pairs = tuple(part.astype(np.int64) for part in np.tril_indices(2))
    products = (D[:, pairs[0]] * D[:, pairs[1]]).T
    theta = np.full((2, 3), start)
    with np.errstate(all="ignore"):
        found = _newton(theta, Y, D, w, glm, products, pairs)  # type: ignore[arg-type]
    for k in range(3):
        best = optimize.minimize(lambda b, y=Y[:, k]: np.exp(D @ b).sum() - y @ (D @ b), np.zeros(2), tol=1e-12)
        np.testing.assert_allclose(found[:, k], best.x, atol=1e-5)
    assert math.isfinite(found.sum())
