"""relax="box": options, storage, weights, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import setsquare as sq
from setsquare._typing import Array
from setsquare.errors import DroppedColumnWarning, InputError


def _draw(n: int = 300, p: int = 30) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, p))
    Z = rng.normal(size=(n, 8))
    Z[:, :2] += X[:, :2]
    return Z, X, (rng.random(n) < 1.0 / (1.0 + np.exp(-Z[:, :5].sum(axis=1)))).astype(int)


def test_a_saved_model_keeps_it(tmp_path: Path) -> None:
    Z, X, y = _draw()
    model = sq.OrthogonalGLMClassifier(relax={"box": 1.5}).fit(Z, y, protected=X)
    sq.save(model, tmp_path / "m")
    again = sq.load(tmp_path / "m")
    assert again.solution_.certificate == model.solution_.certificate
    assert again.relax == {"box": 1.5} and not again.solution_.certificate.is_orthogonal
    assert np.array_equal(again.predict_proba(Z), model.predict_proba(Z))


def test_weights_count_as_repetitions_of_rows() -> None:
    Z, X, y = _draw()
    weight = np.where(np.arange(len(y)) % 3 == 0, 0.0, 1.0)
    kept = weight > 0.0
    a = sq.OrthogonalGLMClassifier(relax="box").fit(Z, y, protected=X, sample_weight=weight)
    b = sq.OrthogonalGLMClassifier(relax="box").fit(Z[kept], y[kept], protected=X[kept])
    np.testing.assert_allclose(a.coef_, b.coef_, atol=1e-8)
    assert a.solution_.certificate.box == pytest.approx(b.solution_.certificate.box)


def test_constant_columns_need_no_bound() -> None:
    Z, X, y = _draw()
    X[:, 4] = 1.0
    with pytest.warns(DroppedColumnWarning, match="constant: x4"):
        model = sq.OrthogonalGLMClassifier(relax="box").fit(Z, y, protected=X)
    assert model.solution_.certificate.box == pytest.approx(np.sqrt(2.0 * np.log(29) / 300))


def test_predictions_within_the_limit_are_those_without_a_constraint() -> None:
    Z, X, y = _draw()
    model = sq.OrthogonalGLMClassifier(relax={"box": 9.0}).fit(Z, y, protected=X)
    certificate = model.solution_.certificate
    assert certificate.n_at_limit == 0 and certificate.cost == pytest.approx(0.0, abs=1e-9)


def test_categories_and_a_regression() -> None:
    Z, _, y = _draw()
    site = np.array([f"s{j % 40}" for j in range(len(y))])
    model = sq.OrthogonalGLMRegressor("poisson", relax="box").fit(Z, y, protected=site)
    assert model.solution_.certificate.n_protected == 39


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"relax": "no"}, "relax must be None"),
        ({"relax": {"box": 0.0}}, "positive factor"),
        ({"relax": {"ball": 1.0}}, "relax must be None"),
        ({"relax": "box", "expand": "auto"}, "leave out expand"),
        ({"relax": "box", "l2": "auto"}, "leave out l2"),
        ({"relax": "box", "orthogonal_on": "new rows"}, "leave out orthogonal_on"),
        ({"relax": "box", "max_correlation": 0.1}, "leave out max_correlation"),
        ({"relax": "box", "given": "outcome"}, "leave out given"),
        ({"relax": "box", "threshold": 0.5}, "leave out threshold"),
        ({"relax": "box", "budget": 0.5}, "leave out budget"),
    ],
)
def test_what_a_relaxed_fit_does_not_have_is_refused(options: dict[str, Any], sentence: str) -> None:
    Z, X, y = _draw()
    with pytest.raises(InputError, match=sentence):
        sq.OrthogonalGLMClassifier(**options).fit(Z, y, protected=X)


def test_three_classes_and_streams_are_refused() -> None:
    Z, X, y = _draw()
    with pytest.raises(InputError, match="two classes or numbers"):
        sq.OrthogonalGLMClassifier(relax="box").fit(Z, y + (Z[:, 0] > 1.0), protected=X)
    stream = sq.Stream(lambda: iter([np.column_stack([Z, y])]))
    with pytest.raises(InputError, match="in memory"):
        sq.OrthogonalGLMClassifier(protected="x", relax="box").fit(stream, "y")
