"""Bases of the protected columns: what holds for every function in them, and for a whole ball of smooth functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist

import setsquare as sq
from setsquare import tables


def applicants(n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Features that follow curves of age and income by group; protected columns; outcome."""
    rng = np.random.default_rng(seed)
    age, site = rng.uniform(20.0, 70.0, n), np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    shapes = np.column_stack(
        [np.sin(age / 8.0), ((age - 45.0) / 15.0) ** 2, np.where(site == "b", np.cos(age / 6.0), 0.0), age / 20.0]
    )
    Z = shapes @ rng.normal(size=(4, 30)) / 2.0 + rng.normal(size=(n, 30))
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-Z[:, :6].sum(axis=1) / 2.0))).astype(int)
    return Z, pd.DataFrame({"age": age, "site": site}), y


def inputs(protected: Any, width: float) -> Any:
    """Inputs of the kernel, written independently of the library: numbers in widths of the kernel, dummies."""
    parts = [protected["age"].to_numpy() / width]
    if "site" in protected:
        parts += [(protected["site"] == level).to_numpy(float) for level in "abc"]
    return np.column_stack(parts)


@pytest.mark.parametrize(("columns", "bound"), [(["age"], 0.01), (["age"], 0.05), (["age", "site"], 0.05)])
def test_the_bound_holds_for_200_random_functions_and_for_the_worst_of_the_ball(columns: Any, bound: float) -> None:
    Z, protected, y = applicants(900)
    protected = protected[columns]
    model = sq.OrthogonalGLMClassifier(basis={"kernel": bound}).fit(Z, y, protected=protected)
    plain = sq.OrthogonalGLMClassifier().fit(Z, y, protected=protected)
    ball = model.ball_
    assert ball is not None and ball.remainder <= bound
    ((name, width),) = ball.widths
    steps = np.log(width / protected["age"].std(ddof=0) / (243.0 / len(y)) ** 0.2) / np.log(1.25)
    assert name == "age" and f"(width: age {width:.3g})" in str(ball)
    assert steps == pytest.approx(0.0, abs=1e-9) if columns == ["age"] else width == protected["age"].std(ddof=0)
    K = np.exp(-0.5 * cdist(*[inputs(protected, width)] * 2, "sqeuclidean"))
    p, before = (m.predict_proba(Z)[:, 1] for m in (model, plain))
    rng = np.random.default_rng(1)
    # Rough and smooth functions of norm 1: sums of kernels at a few and at many rows.
    found, linear = [], []
    for i in range(200):
        alpha = np.zeros(len(y))
        alpha[rng.choice(len(y), size=1 + i % 40, replace=False)] = rng.normal(size=1 + i % 40)
        g = K @ alpha / np.sqrt(alpha @ K @ alpha)
        found.append(abs(np.cov(g, p, ddof=0)[0, 1]) / p.std())
        linear.append(abs(np.cov(g, before, ddof=0)[0, 1]) / before.std())
    assert max(found) <= ball.remainder
    assert max(linear) > ball.remainder  # a model that is orthogonal to the columns alone is not
    centred = p - p.mean()
    assert np.sqrt(centred @ K @ centred) / len(y) / p.std() <= ball.remainder * (1.0 + 1e-8)


@pytest.mark.parametrize("basis", ["spline", "kernel"])
def test_more_rows_follow_steeper_curves(basis: str) -> None:
    """A jump (retirement): a basis leaves less of it where there are more rows, which could show the rest."""
    left = []
    for n in (200, 500, 4000, 30_000):
        age = np.random.default_rng(0).integers(18, 80, n).astype(float)
        table, jump = pd.DataFrame({"age": age}), (age > 60.0).astype(float)
        A = np.column_stack([np.ones(n), tables.learn(table, basis=basis).apply(table).values])
        rest = jump - A @ np.linalg.lstsq(A, jump, rcond=None)[0]
        left.append(rest.var() / jump.var())
    assert left[3] < 0.55 * left[1] and left[3] < left[2] < left[1]  # 0.06 to 0.09 with 500 rows
    assert left[1] > 0.05 and left[0] > 0.05


@pytest.mark.parametrize(("basis", "fewest", "most"), [("spline", 7, 11), ("kernel", 6, 9)])
def test_a_basis_grows_with_the_rows_as_far_as_the_features_leave_room(basis: str, fewest: int, most: int) -> None:
    """Few features keep the smallest basis, and predict; missing protected values take the same room."""
    rng = np.random.default_rng(0)
    age = pd.DataFrame({"age": rng.uniform(20.0, 70.0, 4000)})
    Z = rng.normal(size=(4000, 40)) + 0.03 * age.to_numpy()
    y = (rng.random(4000) < 1.0 / (1.0 + np.exp(-Z[:, 0]))).astype(int)
    for q, known in ((9, fewest), (40, most)):
        model = sq.OrthogonalGLMClassifier(basis=basis).fit(Z[:, :q], y, protected=age)
        assert len(model.protected_names_) == known and model.solution_.certificate.is_orthogonal
        partly = age.where(rng.random((4000, 1)) < 0.9)
        if basis == "spline":
            part = sq.OrthogonalGLMClassifier(basis=basis, missing="model").fit(Z[:, :q], y, protected=partly)
            assert len(part.protected_names_) == known


def test_functions_of_the_kernel_are_uncorrelated_and_standardised() -> None:
    _, protected, _ = applicants(700)
    design = tables.learn(protected, basis="kernel")
    A = design.apply(protected).values
    assert np.allclose(A.T @ A / len(A), np.eye(A.shape[1]), atol=1e-6)
    assert np.allclose(A.mean(axis=0), 0.0, atol=1e-8)
    assert tables.Design.from_dict(design.to_dict()) == design


def test_a_smaller_bound_takes_more_functions() -> None:
    _, protected, _ = applicants(700)
    counts = [len(tables.learn(protected[["age"]], basis={"kernel": bound}).names) for bound in (0.1, 0.01, 0.001)]
    assert counts == sorted(counts) and counts[0] < counts[-1]


@pytest.mark.parametrize("basis", ["spline", "kernel", "~ bs(age, df=6) + site"])
def test_curves_that_a_linear_basis_leaves_are_gone(basis: str) -> None:
    Z, protected, y = applicants(1500)
    linear = sq.OrthogonalGLMClassifier().fit(Z, y, protected=protected).predict_proba(Z)[:, 1]
    model = sq.OrthogonalGLMClassifier(basis=basis).fit(Z, y, protected=protected)
    p = model.predict_proba(Z)[:, 1]
    curve = ((protected["age"] - 45.0) / 15.0) ** 2
    assert abs(np.corrcoef(curve, linear)[0, 1]) > 0.1
    assert abs(np.corrcoef(curve, p)[0, 1]) < 0.005
    assert abs(np.corrcoef(protected["age"], p)[0, 1]) < 0.005
    assert model.solution_.certificate.is_orthogonal


@pytest.mark.parametrize("basis", ["spline", "kernel"])
def test_every_corrector_and_the_audit_take_a_basis(basis: str) -> None:
    Z, protected, y = applicants(800)
    curve = ((protected["age"].to_numpy() - 45.0) / 15.0) ** 2
    age = protected[["age"]]
    features = sq.LinearOrthogonalizer(basis=basis).fit(Z, protected=age).transform(Z, protected=age)
    assert np.abs(np.corrcoef(features.T, curve)[-1, :-1]).max() < 0.01 < np.abs(np.corrcoef(Z.T, curve)[-1, :-1]).max()
    corrected = sq.PredictionOrthogonalizer(
        sq.OrthogonalGLMClassifier().fit(Z, y, protected=protected[["site"]]), basis=basis, prefit="held out"
    )
    p = corrected.fit(Z, y, protected=age).predict_proba(Z, protected=age)[:, 1]
    assert abs(np.corrcoef(p, curve)[0, 1]) < 0.01
    leaking = 1.0 / (1.0 + np.exp(-curve + np.random.default_rng(0).normal(size=800)))
    found = sq.audit(leaking, age, basis=basis)
    assert len(found.table()) > 3 and found.verdict == "leak"
    assert sq.audit(p, age, basis=basis).certificate.correlation < 0.01


def test_a_transformer_is_a_basis() -> None:
    from sklearn.preprocessing import PolynomialFeatures

    Z, protected, y = applicants(700)
    basis = PolynomialFeatures(3, include_bias=False)
    model = sq.OrthogonalGLMClassifier(basis=basis).fit(Z, y, protected=protected[["age"]])
    p = model.predict_proba(Z)[:, 1]
    assert max(abs(np.corrcoef(protected["age"] ** k, p)[0, 1]) for k in (1, 2, 3)) < 1e-7


def test_more_columns_than_rank_shrink_to_the_rank_which_the_certificate_says() -> None:
    from sklearn.preprocessing import FunctionTransformer

    Z, protected, y = applicants(700)
    double = FunctionTransformer(lambda U: np.column_stack([U, 2.0 * U, U**2]))
    with pytest.warns(UserWarning, match="linear combination|collinear"):
        model = sq.OrthogonalGLMClassifier(basis=double).fit(Z, y, protected=protected[["age"]])
    certificate = model.solution_.certificate
    assert (certificate.rank_protected, certificate.n_protected) == (2, 3)
