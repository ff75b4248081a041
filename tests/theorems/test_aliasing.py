"""Features are dropped only where they are combinations of others to the limit of the arithmetic, and by name."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pytest
from scipy import sparse

import setsquare as sq
from setsquare.errors import DroppedColumnWarning, InputError
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve

N = 3000


@pytest.fixture(scope="module")
def visits() -> pd.DataFrame:
    """Visits of about a minute over a year, in seconds; their length decides on the outcome."""
    rng = np.random.default_rng(0)
    group = (rng.random(N) < 0.4).astype(float)
    start, duration = 1.7e9 + 3.15e7 * rng.random(N), rng.exponential(60.0, N)
    age = rng.normal(size=N) + 0.5 * group
    chance = 1.0 / (1.0 + np.exp(-3.0 * (duration / 60.0 - 1.0) - 0.6 * age))
    return pd.DataFrame(
        {"start": start, "end": start + duration, "age": age, "group": group, "duration": duration}
    ).assign(y=(rng.random(N) < chance).astype(float))


def given(visits: pd.DataFrame, *names: str) -> Problem:
    return Problem(visits[list(names)].to_numpy(), visits["y"], visits["group"], family="binomial", feature_names=names)


@pytest.mark.parametrize("order", list(itertools.permutations(("start", "end", "age"))))
def test_start_and_end_tell_as_much_as_start_and_duration(visits: pd.DataFrame, order: tuple[str, ...]) -> None:
    plain = solve(given(visits, "start", "duration", "age")).certificate
    found = solve(given(visits, *order))
    assert found.certificate.loss == pytest.approx(plain.loss, abs=1e-9)
    assert plain.loss < 0.95 * solve(given(visits, "start", "age")).certificate.loss  # and it is much
    assert found.certificate.aliased_features == () and found.certificate.is_optimal
    eta = given(visits, *order).features @ found.coef[0] + found.intercept[0]
    assert abs(np.corrcoef(1.0 / (1.0 + np.exp(-eta)), visits["group"])[0, 1]) < 1e-8


def test_sparse_and_streamed_features_are_told_apart_as_well(visits: pd.DataFrame) -> None:
    plain = solve(given(visits, "start", "duration", "age")).certificate.loss
    dense = given(visits, "start", "end", "age")
    thin = Problem(sparse.csr_array(dense.features), dense.outcome, dense.protected, family="binomial")
    assert solve(thin).certificate.loss == pytest.approx(plain, abs=1e-9)
    table = pa.table(visits[["start", "end", "age", "group", "y"]].astype({"y": int}))
    batches = sq.Stream(pa.dataset.dataset(table.to_batches(max_chunksize=700)))
    model = sq.OrthogonalGLMClassifier(protected=["group"]).fit(batches, "y")
    assert model.solution_.certificate.loss == pytest.approx(plain, abs=1e-9)


def test_a_ridge_acts_on_the_coefficients_of_the_features_as_given(visits: pd.DataFrame) -> None:
    """Near copies are replaced by residuals inside: the penalty must not be."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=N)
    Z = np.column_stack([a, a + 1e-4 * rng.normal(size=N), visits["age"]])
    l2 = 0.01
    found = solve(Problem(Z, visits["y"], visits["group"], family="binomial", l2=l2))
    eta = Z @ found.coef[0] + found.intercept[0]
    loss = np.mean(np.logaddexp(0.0, eta) - visits["y"] * eta) + l2 / 2.0 * np.sum(found.coef**2)
    assert found.certificate.loss == pytest.approx(loss, abs=1e-12)
    slope = 1.0 / (1.0 + np.exp(-eta)) - visits["y"]
    weight = np.exp(eta) / (1.0 + np.exp(eta)) ** 2
    X = visits["group"] - visits["group"].mean()
    g = np.r_[slope.mean(), Z.T @ slope / N + l2 * found.coef[0]]
    J = np.r_[(X * weight).mean(), Z.T @ (X * weight) / N]
    assert np.linalg.norm(g - J * (J @ g) / (J @ J)) < 1e-9


@pytest.mark.parametrize("ratio", [1e-3, 1e-5, 3e-7])
def test_chains_of_near_copies_are_all_kept(ratio: float) -> None:
    rng = np.random.default_rng(2)
    a, b, c = rng.normal(size=(3, 1000))
    Z = np.column_stack([a, a + ratio * b, a + ratio * b + ratio * c])
    X = (a + rng.normal(size=1000))[:, None]
    y = a + b + c + rng.normal(size=1000)
    one, other = solve(Problem(Z, y, X)), solve(Problem(np.column_stack([a, b, c]), y, X))
    assert one.certificate.loss == pytest.approx(other.certificate.loss, rel=1e-8)
    again = prepare(Problem(Z, y, X))
    theta = again.theta(one.intercept, one.coef)  # a warm start is where it was
    assert again.objective.values(theta).loss == pytest.approx(one.certificate.loss, rel=1e-6)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("far", [0.0, 1e4])
def test_rounding_is_no_information(kind: type[np.floating], far: float) -> None:
    """A sum that was computed from others differs from them by rounding alone, on any scale."""
    rng = np.random.default_rng(3)
    Z = (far + rng.normal(size=(500, 3))).astype(kind)
    Z = np.column_stack([Z, (0.1 * Z[:, 0] + 0.7 * Z[:, 1]).astype(kind), np.full(500, 0.1, kind)])
    X = rng.normal(size=(500, 1))
    found = solve(Problem(Z, Z[:, 0] + rng.normal(size=500), X), "sqp")
    assert found.certificate.aliased_features == ("z3", "z4")


def test_an_audit_tells_near_copies_apart_as_well(visits: pd.DataFrame) -> None:
    """Its model is fitted by the same preparation: a leak along the duration is found through start and end."""
    noise = np.random.default_rng(9).normal(size=N)
    scores = 1.0 / (1.0 + np.exp(1.0 + noise - visits["duration"] / 200.0))
    tests = [
        sq.audit(scores, visits[list(names)]).evaluations[0].joint
        for names in (("start", "duration"), ("start", "end"))
    ]
    assert tests[0].statistic == pytest.approx(tests[1].statistic, rel=1e-4) and tests[0].df == tests[1].df == 2.0


@pytest.mark.parametrize("solver", ["sqp", "large"])
@pytest.mark.parametrize("mean", [1e8, 1e10])
def test_sparse_columns_far_from_zero_are_not_constant(visits: pd.DataFrame, solver: str, mean: float) -> None:
    rng = np.random.default_rng(4)
    Z = np.column_stack([mean + np.round(visits["duration"]), visits["age"], rng.normal(size=N)])
    near = Z - [mean, 0.0, 0.0]
    losses = [
        solve(Problem(A, visits["y"], visits["group"], family="binomial"), solver).certificate.loss
        for A in (near, sparse.csr_array(Z))
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-8)
    constant = sparse.csr_array(np.column_stack([np.full(N, 0.1), near]))
    found = solve(Problem(constant, visits["y"], visits["group"], family="binomial"), solver)
    assert found.certificate.aliased_features == ("z0",)


def test_a_warning_names_what_is_dropped(visits: pd.DataFrame) -> None:
    table = visits[["age", "duration", "group"]].assign(years=3.0 * visits["age"] + 1.0, one=4.0)
    with pytest.warns(DroppedColumnWarning, match=r"2 feature.* years, one. Their coefficients are 0"):
        sq.OrthogonalGLMClassifier(protected=["group"]).fit(table, visits["y"].astype(int))
    sq.OrthogonalGLMClassifier(protected=["group"], l2=1e-3).fit(table.drop(columns="one"), visits["y"].astype(int))


# ------------------------------------------------------------------------------------- how much freedom is left
def factorial() -> tuple[np.ndarray, np.ndarray]:
    """A feature and two protected columns, every combination equally often."""
    cells = np.array(list(itertools.product([0.0, 1.0], [0.0, 1.0], [-1.0, 0.0, 1.0])) * 40)
    return cells[:, 2:], cells[:, :2]


@pytest.mark.parametrize("solver", ["sqp", "large"])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_one_feature_is_enough_beside_protected_columns_that_it_does_not_follow(family: str, solver: str) -> None:
    a, X = factorial()
    y = (np.random.default_rng(5).random(len(a)) < np.exp(0.5 * a[:, 0] - 1.0)).astype(float)
    found, plain = solve(Problem(a, y, X, family=family), solver), solve(Problem(a, y, None, family=family), solver)
    assert found.certificate.is_orthogonal and found.certificate.is_optimal
    assert found.certificate.loss == pytest.approx(plain.certificate.loss, rel=1e-10)
    np.testing.assert_allclose(found.coef, plain.coef, rtol=1e-6)
    with pytest.raises(InputError, match="Only a constant prediction is orthogonal"):
        solve(Problem(a + 0.1 * X[:, :1], y, X, family=family), solver)


def test_features_that_only_look_free_are_refused_after_the_fit() -> None:
    """Uncorrelated, but with another spread in each group: exp makes other means of that, whatever the coefficient."""
    group, z = np.tile([0.0, 0.0, 1.0, 1.0], 100), np.tile([-1.0, 1.0, -2.0, 2.0], 100)
    y = np.random.default_rng(6).poisson(np.exp(0.4 * z)).astype(float)
    assert solve(Problem(z[:, None], y, group)).certificate.is_orthogonal
    with pytest.raises(InputError, match="Only a constant prediction is orthogonal"):
        solve(Problem(z[:, None], y, group, family="poisson"))


def test_too_many_levels_are_refused_before_they_are_coded() -> None:
    """1000 levels of 6000 rows would be 46 MB as dummies, and four times that for their moments."""
    rng = np.random.default_rng(7)
    table = pd.DataFrame(rng.normal(size=(6000, 5)), columns=list("abcde"))
    table["town"] = rng.permutation(np.arange(6000) % 1000).astype(str)
    y = (rng.random(6000) < 0.5).astype(int)
    model = sq.OrthogonalGLMClassifier(protected=["town"])
    tracemalloc.start()
    with pytest.raises(InputError, match=r"Only a constant prediction is orthogonal to the 999 protected column"):
        model.fit(table, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 45e6
    with pytest.raises(InputError, match="Only a constant prediction is orthogonal"):
        model.fit(sq.Stream(pa.dataset.dataset(pa.table(table.assign(y=y)))), "y")


def test_many_levels_are_fine_where_they_leave_freedom() -> None:
    """60 groups and one feature that has the same values in each."""
    group, a = np.repeat(np.arange(60), 20).astype(str), np.tile(np.linspace(-1.0, 1.0, 20), 60)
    y = (np.random.default_rng(8).random(1200) < 0.5 + 0.3 * a).astype(int)
    model = sq.OrthogonalGLMClassifier().fit(a[:, None], y, protected=pd.DataFrame({"town": group}))
    assert model.solution_.certificate.is_orthogonal and abs(model.coef_[0, 0]) > 0.5
