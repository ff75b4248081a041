"""Categories that remain codes give the moments, optima, certificates and predictions of their written-out dummies."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import setsquare as sq
from setsquare.families import Family, family
from setsquare.glm import preparation
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Solution, Status, choose, solve
from setsquare.rows.products import gram_and_product, weighted_gram
from setsquare.tables import design
from setsquare.tables.mixed_matrix import MixedMatrix, join

SIZES = st.lists(st.integers(2, 12), min_size=1, max_size=4)


def random_split(rng: np.random.Generator, n: int, sizes: list[int], d: int) -> MixedMatrix:
    """Numbers and categories in random order; every level occurs if there are enough rows."""
    codes = [rng.permutation(np.arange(n) % size) for size in sizes]
    parts = rng.permutation([True] * len(sizes) + [False] * d).tolist()
    return join(rng.normal(1.0, 2.0, size=(n, d)), codes, sizes, parts)


def written_out(sizes: list[int], Z: MixedMatrix) -> np.ndarray:
    """The same matrix by comparing codes, independently of products."""
    out = np.zeros(Z.shape)
    out[:, Z.places] = Z.dense
    for level, column in enumerate(Z.columns):
        if column >= 0:
            out[:, column] = (Z.codes == level).any(axis=1)
    return out


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), SIZES, st.integers(0, 3), st.integers(1, 60))
def test_products_are_those_of_the_dummies(seed: int, sizes: list[int], d: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    Z = random_split(rng, n, sizes, d)
    A, w, thin = written_out(sizes, Z), rng.normal(size=n), rng.normal(size=(n, 3))
    B = rng.normal(size=(Z.shape[1], 2))
    assert Z.shape == A.shape == (n, d + sum(sizes) - len(sizes))
    np.testing.assert_array_equal(Z.toarray(), A)
    np.testing.assert_allclose(Z @ B, A @ B, atol=1e-12)
    np.testing.assert_allclose(Z.T @ thin, A.T @ thin, atol=1e-12)
    np.testing.assert_allclose(w @ Z, w @ A, atol=1e-12)
    np.testing.assert_allclose(Z.squares(w), w @ A**2, atol=1e-11)
    gram, product = gram_and_product(Z, w, thin)
    np.testing.assert_allclose(gram, A.T @ (w[:, None] * A), atol=1e-11)
    np.testing.assert_allclose(product, A.T @ thin, atol=1e-12)
    np.testing.assert_allclose(weighted_gram(Z, w), gram, atol=1e-12)
    rows = slice(n // 3, n)
    np.testing.assert_array_equal(Z[rows].toarray(), A[rows])
    columns = rng.permutation(Z.shape[1])[:2]
    new = rng.normal(size=(n, len(columns)))
    A[:, columns] = new
    put = Z.put(columns, new)
    np.testing.assert_array_equal(put.toarray(), A)
    mean = np.where(rng.random(Z.shape[1]) < 0.5, rng.normal(size=Z.shape[1]), 0.0)
    mean[put.places] = rng.normal(size=len(put.places))
    np.testing.assert_allclose(put.centred(mean, ones=True).toarray(), np.column_stack([np.ones(n), A - mean]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), SIZES, st.integers(0, 3), st.integers(1, 60), st.integers(2, 200))
def test_merged_categories_have_the_same_dummies(seed: int, sizes: list[int], d: int, n: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    Z = random_split(rng, n, sizes, d)
    merged = Z.merged(most)
    A, w, thin = written_out(sizes, Z), rng.normal(size=n), rng.normal(size=(n, 3))
    B = rng.normal(size=(Z.shape[1], 2))
    assert merged.codes.shape[1] <= Z.codes.shape[1]
    assert all(last - first <= max(most, *sizes) for first, last in pairwise(merged.bounds))
    np.testing.assert_array_equal(merged.toarray(), A)
    np.testing.assert_array_equal(merged.counts(), Z.counts())
    np.testing.assert_allclose(merged @ B, A @ B, atol=1e-12)
    np.testing.assert_allclose(merged.T @ thin, A.T @ thin, atol=1e-12)
    np.testing.assert_allclose(merged.squares(w), w @ A**2, atol=1e-11)
    centred = merged.centred(np.where(rng.random(Z.shape[1]) < 0.5, 0.3, 0.0), ones=True)
    full = centred.toarray()
    gram, product = gram_and_product(centred, w, thin)
    np.testing.assert_allclose(gram, full.T @ (w[:, None] * full), atol=1e-11)
    np.testing.assert_allclose(product, full.T @ thin, atol=1e-12)
    columns = rng.permutation(Z.shape[1])[:2]
    new = rng.normal(size=(n, len(columns)))
    A[:, columns] = new
    np.testing.assert_array_equal(merged.put(columns, new).toarray(), A)


def outcome(rng: np.random.Generator, name: str, eta: np.ndarray) -> np.ndarray:
    eta = (eta - eta.mean()) / eta.std()
    if name == "gaussian":
        return eta + rng.normal(size=len(eta))
    if name == "poisson":
        return rng.poisson(np.exp(0.5 * eta)).astype(float)
    if name == "multinomial":
        return (np.digitize(eta + rng.logistic(size=len(eta)), [-1.0, 1.0])).astype(float)
    return (rng.random(len(eta)) < 1.0 / (1.0 + np.exp(-eta))).astype(float)


def draw_problem(name: str, seed: int, **options: Any) -> tuple[Problem, np.ndarray]:
    """A problem with three categories of 3 to 30 levels, and its features written out."""
    rng, n, sizes = np.random.default_rng(seed), 3000, [3, 12, 30]
    Z = random_split(rng, n, sizes, 2)
    A = written_out(sizes, Z)
    X = A[:, :2] @ rng.normal(size=(2, 2)) + A[:, -3:] @ rng.normal(size=(3, 2)) + 0.3 * rng.normal(size=(n, 2))
    y = outcome(rng, name, A @ rng.normal(size=A.shape[1]) + X[:, 0])
    if options.pop("weighted", False):
        options["weight"] = rng.integers(0, 4, n).astype(float)
    if options.pop("shifted", False):
        options["offset"] = 0.3 * rng.normal(size=n)
    return Problem(Z, y, X, family(name), **options), A


def with_features(problem: Problem, features: Any) -> Problem:
    return Problem(
        features, problem.outcome, problem.protected, problem.family, problem.weight, problem.offset, problem.l2
    )


def assert_same(a: Solution, b: Solution, *, coefficients: float = 1e-6) -> None:
    scale = np.abs(b.coef).max()
    np.testing.assert_allclose(a.coef, b.coef, atol=coefficients * scale)
    np.testing.assert_allclose(a.intercept, b.intercept, atol=coefficients * scale)
    assert a.status is b.status
    one, other = a.certificate, b.certificate
    assert one.is_orthogonal and one.is_optimal
    assert one.loss == pytest.approx(other.loss, rel=1e-8)
    assert one.loss_unconstrained == pytest.approx(other.loss_unconstrained, rel=1e-6)
    assert one.aliased_features == other.aliased_features
    assert one.rank_features == other.rank_features
    assert one.label_share == pytest.approx(other.label_share, rel=1e-8)
    if b.solver == "sqp":
        assert one.min_curvature == pytest.approx(other.min_curvature, rel=1e-4)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"weighted": True},
    "offset and ridge": {"shifted": True, "l2": 0.05},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "multinomial"])
@pytest.mark.parametrize("solver", ["sqp", "large"])
def test_fits_equal_those_of_dense_and_sparse_features(solver: str, name: str, case: str) -> None:
    options = dict(CASES[case])
    if name == "multinomial":
        options.pop("shifted", None)  # its offset has a column per class
    problem, A = draw_problem(name, 3, **options)
    found = solve(problem, solver)
    dense = solve(with_features(problem, A), solver)
    assert found.solver == dense.solver == solver
    assert_same(found, dense)
    assert_same(found, solve(with_features(problem, sparse.csr_array(A)), solver))
    assert found.certificate.max_correlation < 1e-8 < 0.02 < correlation_without_constraint(problem, A)


def correlation_without_constraint(problem: Problem, A: np.ndarray) -> float:
    free = solve(Problem(A, problem.outcome, None, problem.family, problem.weight, problem.offset, problem.l2))
    eta = A @ free.coef.T + free.intercept
    yhat = problem.family.activation(eta if problem.offset is None else eta + problem.offset[:, None])
    rows = slice(None) if problem.weight is None else problem.weight > 0.0
    assert problem.protected is not None
    together = np.corrcoef(np.column_stack([yhat, problem.protected])[rows].T)
    return float(np.abs(together[: yhat.shape[1], yhat.shape[1] :]).max())


@pytest.mark.parametrize("fam", [family("gaussian"), family("binomial")], ids=lambda fam: fam.name)
def test_nested_and_nearly_equal_categories_are_aliased_as_dummies_are(fam: Family) -> None:
    rng, n = np.random.default_rng(5), 4000
    town = rng.integers(0, 40, n)
    region = town // 8  # a function of the town
    almost = town.copy()
    almost[17] = (town[17] + 1) % 40  # differs in a single row
    rare = (rng.random(n) < 0.999).astype(int)  # a level with almost all rows
    codes = [town, region, almost, rare]
    sizes = [40, 5, 40, 2]
    Z = join(rng.normal(1e6, 1.0, size=(n, 1)), codes, sizes, [True, False, True, True, True])
    A = written_out(sizes, Z)
    X = (town % 2 + rng.normal(size=n))[:, None]
    y = outcome(rng, fam.name, Z @ rng.normal(size=(Z.shape[1], 1))[:, 0] + X[:, 0])
    found, dense = (solve(Problem(features, y, X, fam), "sqp") for features in (Z, A))
    assert len(found.certificate.aliased_features) == 4 + 38
    assert found.certificate.aliased_features == dense.certificate.aliased_features
    assert found.certificate.max_correlation < 1e-8
    assert found.certificate.loss == pytest.approx(dense.certificate.loss, rel=1e-8)
    np.testing.assert_allclose(Z @ found.coef.T + found.intercept, A @ dense.coef.T + dense.intercept, atol=1e-5)


@pytest.fixture
def always_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables, too, keep their categories."""
    monkeypatch.setattr(design, "FEW_DUMMIES", 0)


def table_of(seed: int, n: int = 2500) -> tuple[pd.DataFrame, np.ndarray]:
    """Table with missing values and a category of 30 levels that depends on the protected columns."""
    rng = np.random.default_rng(seed)
    sex, job = rng.choice(["f", "m"], n), rng.integers(0, 30, n)
    job = np.where((sex == "m") & (rng.random(n) < 0.3), job // 3, job)
    age = rng.normal(40.0, 10.0, n)
    signal = 0.5 * (sex == "m") + np.sin(job) + 0.02 * age
    table = pd.DataFrame(
        {
            "job": np.array([f"j{c:02d}" for c in job], dtype=object),
            "age": age,
            "place": rng.choice(list("abcdefghijkl"), n),
            "sex": sex,
            "race": rng.choice(["a", "b", "c"], n),
        }
    )
    table.loc[rng.random(n) < 0.05, "job"] = None
    table.loc[rng.random(n) < 0.05, "age"] = np.nan
    return table, (rng.random(n) < 1.0 / (1.0 + np.exp(-signal + 1.2))).astype(int)


@pytest.mark.usefixtures("always_codes")
@pytest.mark.parametrize("missing", ["level", "drop"])
@pytest.mark.parametrize("use_protected", [False, True])
@pytest.mark.parametrize("solver", ["sqp", "large"])
def test_estimators_code_tables_alike(
    monkeypatch: pytest.MonkeyPatch, missing: str, use_protected: bool, solver: str
) -> None:
    table, y = table_of(1)
    new = table_of(2)[0].dropna() if missing == "drop" else table_of(2)[0]
    new.loc[new.index[:7], "job"] = "never seen"
    options: dict[str, Any] = {"missing": missing, "unseen": "pool", "use_protected": use_protected, "solver": solver}

    def fit() -> tuple[Any, np.ndarray]:
        model = sq.OrthogonalGLMClassifier(["sex", "race"], **options).fit(table, y)
        with pytest.warns(sq.errors.PooledLevelWarning, match=r"job \(7\)"):
            return model, model.predict_proba(new)

    coded, shares = fit()
    read = coded.reader_.stored_matrix(coded.reader_.feature_table(table.dropna()), learned=True, as_codes=True)[0]
    codes = 3 if use_protected else 2  # job, place, and race
    assert isinstance(read, MixedMatrix) and read.codes.shape[1] == codes
    monkeypatch.setattr(design, "FEW_LEVELS", 1000)
    dense, dense_shares = fit()
    assert_same(coded.solution_, dense.solution_)
    np.testing.assert_allclose(shares, dense_shares, atol=1e-7)
    assert list(coded.coefficient_names_) == list(dense.coefficient_names_)


@pytest.mark.parametrize("solver", ["sqp", "large"])
def test_no_matrix_of_dummies_is_made(solver: str) -> None:
    rng, n, levels = np.random.default_rng(0), 60_000, 400
    table = pd.DataFrame({"site": pd.Categorical(rng.integers(0, levels, n)), "age": rng.normal(size=n)})
    sex = pd.DataFrame({"sex": pd.Categorical(rng.choice(["f", "m"], n))})
    y = table["age"].to_numpy() + 0.5 * (sex["sex"] == "m").to_numpy() + rng.normal(size=n)
    model = sq.OrthogonalGLMRegressor("gaussian", solver=solver)
    model.fit(table[:5000], y[:5000], protected=sex[:5000])  # imports and caches
    tracemalloc.start()
    model.fit(table, y, protected=sex)
    model.predict(table)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert model.solution_.certificate.max_correlation < 1e-8
    assert peak < 0.3 * 8 * n * levels


def test_ten_thousand_levels_need_no_square_matrix() -> None:
    rng, n, levels = np.random.default_rng(0), 30_000, 10_000
    codes = rng.permutation(np.arange(n) % levels)
    x = rng.integers(0, 2, n).astype(float)
    Z = join(rng.normal(size=(n, 1)) + x[:, None], [codes], [levels], [False, True])
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-Z.dense[:, 0] - np.sin(codes)))).astype(float)
    problem = Problem(Z, y, x[:, None], family("binomial"), l2=1e-4)
    assert choose(problem) == "large"
    tracemalloc.start()
    found = solve(problem)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.certificate.is_orthogonal and found.certificate.is_optimal
    assert peak < 1e8 < 8 * levels**2


@pytest.mark.usefixtures("always_codes")
@pytest.mark.parametrize("scratch", [False, True])
@pytest.mark.parametrize("missing", ["level", "drop"])
def test_streams_of_categories_equal_memory(tmp_path: Any, scratch: bool, missing: str) -> None:
    table, y = table_of(4)
    table["y"], table["w"] = y, np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    path = tmp_path / "rows.parquet"
    table.to_parquet(path, row_group_size=700)
    stream = sq.Stream(path, memory="3MB", scratch=scratch)
    columns: dict[str, Any] = {"protected": ["sex", "race"], "missing": missing, "unseen": "pool"}
    streamed = sq.OrthogonalGLMClassifier(**columns).fit(stream, "y", sample_weight="w")
    held = sq.OrthogonalGLMClassifier(**columns, solver="sqp").fit(
        table.drop(columns=["y", "w"]), y, sample_weight=table["w"].to_numpy()
    )
    assert_same(streamed.solution_, held.solution_)
    new = table.dropna() if missing == "drop" else table
    new.to_parquet(tmp_path / "new.parquet")
    shares = streamed.predict_proba(sq.Stream(tmp_path / "new.parquet"))
    np.testing.assert_allclose(shares, held.predict_proba(new.drop(columns=["y", "w"])), atol=1e-7)


@pytest.mark.usefixtures("always_codes")
def test_dask_partitions_of_categories_equal_memory() -> None:
    dask = pytest.importorskip("dask.dataframe")
    table, y = table_of(5)
    table = table.assign(y=y).dropna()
    collection = dask.from_pandas(table, npartitions=3)
    remote = sq.OrthogonalGLMClassifier(["sex", "race"]).fit(collection, "y")
    held = sq.OrthogonalGLMClassifier(["sex", "race"]).fit(table.drop(columns="y"), table["y"])
    assert_same(remote.solution_, held.solution_)


def test_levels_that_the_outcome_separates_do_not_slow_down_the_others() -> None:
    """Most levels have equal outcomes: both solvers stop by the loss, here 4e-5 apart, and meet the constraint.

    A few levels have finite coefficients at the optimum of ``sqp``. In a direction of negative curvature ``large``
    moved them to the end of the predictions, where their gradient vanishes: ``sqp`` started there ends there, too.
    """
    rng, n, levels = np.random.default_rng(0), 900, 300
    codes, x = rng.permutation(np.arange(n) % levels), rng.integers(0, 2, n).astype(float)
    Z = join(rng.normal(size=(n, 1)) + x[:, None], [codes], [levels], [False, True])
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-Z.dense[:, 0] - 2.0 * np.sin(codes)))).astype(float)
    problem = Problem(Z, y, x[:, None], family("binomial"))
    found, exact = solve(problem, "large"), solve(problem, "sqp")
    stays = solve(problem, "sqp", start=(found.intercept, found.coef))
    assert stays.certificate.loss == pytest.approx(found.certificate.loss, rel=1e-7)
    for one in (found, exact):
        assert one.status is Status.FLAT and one.certificate.is_optimal
        assert one.certificate.max_correlation < 1e-8
    assert found.certificate.loss == pytest.approx(exact.certificate.loss, rel=2e-4)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("far", [0.0, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_read_as_stored_give_the_fit_of_a_centred_copy(
    monkeypatch: pytest.MonkeyPatch, order: Any, far: float, dtype: Any
) -> None:
    """Near zero, far from zero, and nearly equal features; the input is not changed."""
    rng, n = np.random.default_rng(2), 2000
    X = rng.normal(size=(n, 2))
    A = X @ rng.normal(size=(2, 6)) + rng.normal(size=(n, 6)) + [0.0, far, 5.0, -3.0, 0.0, far]
    if dtype is np.float64:
        A[:, 4] = A[:, 1] + 1e-5 * rng.normal(size=n)  # residuals take its place
    Z = np.asarray(A, dtype=dtype, order=order)
    before = Z.copy()
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-Z[:, 0] + Z[:, 3] + 3.0))).astype(float)
    copied = solve(Problem(Z, y, X, family("binomial")), "sqp")
    monkeypatch.setattr(preparation, "LARGEST_COPY", 0)
    found = solve(Problem(Z, y, X, family("binomial")), "sqp")
    np.testing.assert_array_equal(Z, before)
    assert_same(found, copied)
    again = np.asarray(Z, dtype=np.float64) @ found.coef[0] + found.intercept
    assert (
        np.abs(np.corrcoef(np.column_stack([family("binomial").activation(again[:, None]), X]).T)[0, 1:]).max() < 1e-6
    )
