"""Bases of protected columns: bad input, files, the old word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.preprocessing import PolynomialFeatures

import setsquare as sq
from setsquare import tables
from setsquare.errors import InputError
from setsquare.tables.coders import Numeric
from setsquare.tables.smooth import learn_spline


def rows(n: int = 300) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    age = rng.uniform(20.0, 70.0, n)
    Z = rng.normal(size=(n, 15)) + np.sin(age / 9.0)[:, None]
    return Z, (Z[:, 0] + rng.normal(size=n) > 0).astype(int), pd.DataFrame({"age": age})


@pytest.mark.parametrize("basis", ["spline", "kernel", {"kernel": 0.05}])
def test_a_saved_model_has_its_basis(basis: Any, tmp_path: Path) -> None:
    Z, y, age = rows()
    model = sq.LinearOrthogonalizer(basis=basis).fit(Z, protected=age)
    sq.save(model, tmp_path / "model")
    again = sq.load(tmp_path / "model")
    new = age + 30.0  # beyond the training rows, too
    assert np.array_equal(again.transform(Z, protected=new), model.transform(Z, protected=new))
    assert again.get_params()["basis"] == basis
    glm = sq.OrthogonalGLMClassifier(basis=basis).fit(Z, y, protected=age)
    sq.save(glm, tmp_path / "glm")
    assert sq.load(tmp_path / "glm").ball_ == glm.ball_


def test_a_transformer_cannot_be_saved(tmp_path: Path) -> None:
    Z, _, age = rows()
    model = sq.LinearOrthogonalizer(basis=PolynomialFeatures(2, include_bias=False)).fit(Z, protected=age)
    with pytest.raises(InputError, match="cannot be saved"):
        sq.save(model, tmp_path / "model")


def test_the_ball_is_claimed_only_where_it_holds() -> None:
    Z, y, age = rows()
    fit = sq.OrthogonalGLMClassifier(basis="kernel", l2=0.01)
    ball = clone(fit).fit(Z, y, protected=age).ball_
    assert ball is not None and f"{ball.n_functions} functions" in str(ball)
    assert clone(fit).fit(Z, y, protected=age, sample_weight=np.arange(300.0) + 1.0).ball_ is None
    assert clone(fit).set_params(basis="spline").fit(Z, y, protected=age).ball_ is None


@pytest.mark.parametrize(
    ("basis", "sentence"),
    [
        ("onehot", "basis='onehot' is not one of 'linear', 'cells', 'spline', 'kernel'"),
        ("dummy", "basis='dummy' does not exist"),
        ({"kernel": 0.0}, "with a bound between 0 and 1"),
        ({"spline": 3}, "must be {'kernel': bound}"),
        ("~ height", "height"),
        (PolynomialFeatures, "basis="),
    ],
)
def test_a_basis_that_does_not_exist_is_refused(basis: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tables.learn(rows()[2], basis=basis)


def test_a_formula_is_over_the_protected_columns_and_over_all_of_them() -> None:
    table = rows()[2].assign(height=1.0 + np.arange(300.0))
    with pytest.raises(InputError, match="uses 'height', which is not a protected column"):
        tables.learn(table, ["age"], basis="~ age * height")
    with pytest.raises(InputError, match="leaves out the protected column 'height'"):
        tables.learn(table, ["age", "height"], basis="~ age")


def test_a_kernel_of_one_distinct_value_is_refused() -> None:
    Z, y, age = rows()
    with pytest.raises(InputError, match="at least two distinct values: age is constant"):
        sq.OrthogonalGLMClassifier(basis="kernel").fit(Z, y, protected=age * 0.0)


def test_a_basis_wider_than_the_rows_is_refused() -> None:
    Z, _, _ = rows(12)
    age = pd.DataFrame(np.random.default_rng(1).normal(size=(12, 3)), columns=["a", "b", "c"])
    with pytest.raises(InputError, match="rows"):
        sq.LinearOrthogonalizer(basis=PolynomialFeatures(4, include_bias=False)).fit(Z, protected=age)
    with pytest.raises(
        InputError, match="11 functions of a, b, c for its bound of 1e-06, but there are 12 rows: pass more rows"
    ):
        sq.LinearOrthogonalizer(basis={"kernel": 1e-6}).fit(Z, protected=age)


def test_rows_in_batches_take_the_simple_bases() -> None:
    Z, y, age = rows()
    table = pd.DataFrame(Z, columns=[f"z{j}" for j in range(15)]).assign(y=y, age=age["age"])
    stream = sq.Stream(lambda: iter([table]))
    with pytest.raises(InputError, match="Rows read in batches take basis="):
        sq.OrthogonalGLMClassifier("age", basis="spline").fit(stream, "y")


@pytest.mark.parametrize("kind", [sq.OrthogonalGLMClassifier, sq.OrthogonalGLMRegressor, sq.LinearOrthogonalizer])
def test_the_old_word_is_refused_with_the_new_one(kind: Any) -> None:
    with pytest.raises(InputError, match="coding= is now called basis="):
        kind(coding="cells")
    with pytest.raises(InputError, match="coding= is now called basis="):
        sq.audit(np.arange(10.0), np.arange(10.0), coding="dummy")  # type: ignore[call-arg]


def test_an_old_file_has_the_new_word() -> None:
    fixtures = Path(__file__).parents[2] / "fixtures"
    for path in sorted(fixtures.glob("model-v1-*.setsquare")):
        model = sq.load(path)
        assert "coding" not in model.get_params()
        if hasattr(model, "basis"):
            assert model.basis in ("linear", "cells")


@pytest.mark.parametrize("more", [(), tuple(range(2, 12))], ids=["few values", "many values"])
def test_values_that_differ_by_rounding_only_share_a_knot(more: tuple[int, ...]) -> None:
    values = np.array([1.0, 0.0, 0.0, 5e-323, 1.0 - 1e-16, *more])
    coder = learn_spline(Numeric("x"), values)
    out = np.zeros((len(values), len(coder.made)))
    coder.write(values, out)
    assert np.isfinite(out).all()
