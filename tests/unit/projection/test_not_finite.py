"""Values that are infinite, or so large that their sums and squares are, in one of the first rows or in a later one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from setsquare.errors import InputError
from setsquare.projection import Eraser, GeneralizedProjector, Projector, project_out, protected_basis
from setsquare.projection.moments import Moments
from setsquare.projection.sampled_erasure import _covariance_times
from setsquare.projection.single_precision import single_cross, single_moments
from setsquare.projection.whitening import whiten
from setsquare.tables.mixed_matrix import join

INFINITE = [np.inf, -np.inf] * 40
PLACES = [0, 1_500]


def draw(dtype: type = np.float64, q: int = 3, n: int = 2_000) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, q)).astype(dtype), np.column_stack([rng.normal(size=n), np.arange(n) % 2.0])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("values", [INFINITE, [np.inf], [1.7e308] * 4], ids=["infinite", "one", "sums beyond float64"])
@pytest.mark.parametrize("column", ["outputs", "protected"])
def test_projections_and_erasure_refuse_them_without_a_warning(column: str, values: Any, place: int) -> None:
    Y, X = draw()
    (Y if column == "outputs" else X)[place : place + len(values), 0] = values
    calls: list[Any] = [lambda: Projector.fit(Y, X), lambda: project_out(Y, X)]
    if column == "outputs":
        codes = join(X[:, :1], [np.arange(len(Y)) % 40], [40], [False, True])
        calls += [lambda: Projector.fit(Y, codes)]
    calls += [lambda: Eraser.fit(Y, protected_basis(X), X)]
    calls += [lambda: GeneralizedProjector.fit(Y, X, "sigmoid")] if values[0] == np.inf or column != "outputs" else []
    for call in calls:
        with pytest.raises(InputError, match="infinite"):
            call()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("values", [INFINITE, [np.inf], [3e38, -3e38, 3e38]], ids=["infinite", "one", "squares"])
def test_erasure_in_single_precision_refuses_them_without_a_warning(values: Any, place: int) -> None:
    Z, X = draw(np.float32, 80)
    Z[place : place + len(values), 1] = values
    with pytest.raises(InputError, match="infinite"):
        Eraser.fit(Z, protected_basis(X), X)
    for weight in (None, np.ones(len(Z))):
        assert not np.isfinite(single_moments(X, Z, weight).scatter[3]).all()
        mean, cross = single_cross(X, Z, weight)
        assert np.isfinite(mean).all() == np.isfinite(cross).all() == (values[0] < np.inf)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("values", [INFINITE, [1.7e308] * 4, [1e200]], ids=["infinite", "sums", "squares"])
def test_moments_of_them_are_not_finite(values: Any, place: int) -> None:
    Z, X = draw()
    Z[place : place + len(values), 0] = values
    found = Moments.of([X, Z])
    assert not np.isfinite(found.scatter[2, 2]) and np.isfinite(found.scatter[:2, :2]).all()
    assert np.isfinite(found.mean[2]) == (values == [1e200])


@pytest.mark.parametrize("values", [[1e30, -1e30], [1e30, 1e30, -1e20], [3e38, 3e38]])
@pytest.mark.parametrize("weighted", [False, True])
def test_products_beyond_single_precision_are_not_finite(values: Any, weighted: bool) -> None:
    Z, _ = draw(np.float32, 4)
    Z[7 : 7 + len(values), 1] = values
    weight = np.ones(len(Z)) if weighted else None
    found = _covariance_times(Z, weight, Z.mean(axis=0, dtype=np.float64), np.eye(4)[:, :2])
    assert not np.isfinite(found[1, 1]) and np.isfinite(found[[0, 2, 3], 0]).all()


@pytest.mark.parametrize("find", [lambda Z, X: Eraser.fit(Z, protected_basis(X), X), lambda Z, X: whiten(Z)])
def test_features_whose_squares_exceed_float64_are_named_by_their_position(find: Any) -> None:
    Z, X = draw(q=8)
    find(Z, X)
    Z[7, 2] = 1e200
    with pytest.raises(InputError, match=r"at position\(s\) 2 \(counted .* squares exceed float64"):
        find(Z, X)
    Z[9] = 1e200
    with pytest.raises(InputError, match=r"at position\(s\) 0, 1, 2, 3, 4, \.\.\. \("):
        find(Z, X)
