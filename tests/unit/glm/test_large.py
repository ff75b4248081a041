"""Many features: products against matrices, no copies, the choice of a solver, certificates that claim no more."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import setsquare as sq
from setsquare.errors import InputError
from setsquare.families import Family, family
from setsquare.glm.krylov import Metric, conjugate_gradients, lowest_curvature
from setsquare.glm.large import Krylov
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Status, choose, solve
from setsquare.glm.sqp import Settings
from setsquare.glm.step_algebra import Frame
from setsquare.glm.wide import HessianProduct, WideObjective, prepare_wide
from setsquare.rows.wide import WideRows

STORED: dict[str, Callable[[np.ndarray], object]] = {
    "float64": np.asarray,
    "by column": np.asfortranarray,
    "float32": lambda Z: Z.astype(np.float32),
    "float16": lambda Z: Z.astype(np.float16),
    "sparse": sparse.csr_array,
    "sparse, float32": lambda Z: sparse.csr_array(Z.astype(np.float32)),
}


def small_numbers(n: int, q: int, seed: int = 0) -> np.ndarray:
    """Numbers that float16 holds exactly, many of them zero."""
    rng = np.random.default_rng(seed)
    return rng.integers(-8, 9, size=(n, q)) / 4.0 * (rng.random((n, q)) < 0.5)


def wide(problem: Problem) -> WideObjective:
    objective = prepare_wide(problem).objective
    assert isinstance(objective, WideObjective)
    return objective


# ------------------------------------------------------------------------------------------------------------- rows
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("every", [1, 7])
def test_rows_as_they_are_stored_give_the_sums_of_float64(stored: str, every: int) -> None:
    n, q = 40_000, 30  # several blocks and threads
    Z, B = small_numbers(n, q), np.random.default_rng(1).normal(size=(1 + q, 2))
    y, w, extra = np.arange(float(n))[:, None], np.full(n, 1.0 / n), np.sin(np.arange(n))
    rows = WideRows(STORED[stored](Z), y, np.zeros((n, 0)), w)
    assert len(rows._parts) > 1

    def kernel(block, part):
        return block.Z.T @ (part[:, None] * (block.Z @ B)), np.asarray(block.weight @ block.y)

    taken = np.concatenate([np.arange(part.start, part.stop)[::every] for part, _ in rows._parts])
    D = np.column_stack([np.ones(n), Z])[taken]
    product, mean = rows.reduce(kernel, extra, every=every)
    np.testing.assert_allclose(product, D.T @ (extra[taken, None] * (D @ B)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(mean, w[taken] @ y[taken], rtol=1e-12)


def test_a_kernel_may_write_into_columns() -> None:
    Z, out = small_numbers(50_000, 20), np.zeros(50_000)

    def kernel(block, part):
        part[:] = block.Z.Z.sum(axis=1)
        return (np.zeros(1),)

    WideRows(Z, out[:, None], np.zeros((len(Z), 0)), np.ones(len(Z))).reduce(kernel, out)
    np.testing.assert_allclose(out, Z.sum(axis=1))


def test_a_part_of_sparse_rows_is_a_view() -> None:
    Z = sparse.csr_array(small_numbers(20_000, 30))
    rows = WideRows(Z, np.zeros((20_000, 1)), np.zeros((20_000, 0)), np.ones(20_000))
    assert all(
        np.shares_memory(part.data, Z.data) and np.shares_memory(part.indices, Z.indices) for _, part in rows._parts
    )


# -------------------------------------------------------------------------------------------------------- objective
def check_products(problem: Problem) -> None:
    """Values, gradient, Jacobian and products with the Hessian against those of the whole matrices."""
    dense = replace(problem, features=problem.features.toarray()) if sparse.issparse(problem.features) else problem
    full, thin = prepare(dense, whiten=False), prepare_wide(problem)
    a, b = full.objective, wide(problem)
    rng = np.random.default_rng(3)
    intercept, coef = full.coefficients(a.start.theta + 0.02 * rng.normal(size=a.n_parameters))
    theta, lam = thin.theta(intercept, coef), rng.normal(size=b.n_constraints)
    np.testing.assert_allclose(thin.coefficients(theta)[1], coef, rtol=1e-9)
    one, other = a.model(full.theta(intercept, coef), lam), b.model(theta, lam)
    # from coordinates with one divisor a feature to those with another
    ratio = np.concatenate([[1.0], full.scale / b.to_raw.divisor])
    D = np.tile(ratio, b.n_predictors)
    assert other.loss == pytest.approx(one.loss, rel=1e-11)
    np.testing.assert_allclose(other.c, one.c, atol=1e-11)
    np.testing.assert_allclose(other.g, D * one.g, atol=1e-10)
    np.testing.assert_allclose(other.J, one.J * D, atol=1e-10)
    H, v = np.outer(D, D) * one.H, rng.normal(size=b.n_parameters)
    np.testing.assert_allclose(other.H @ v, H @ v, rtol=1e-8, atol=1e-9 * np.abs(H).max())
    moved = problem.features @ b.raw(v)[1:] + b.raw(v)[0] - thin.mean @ b.raw(v)[1:]
    assert other.H.variance(v) == pytest.approx(float(np.sum(problem.mean_weight() @ moved**2)), rel=1e-10)
    assert b.values(theta).loss == pytest.approx(one.loss, rel=1e-11)


def test_products_are_those_with_the_hessian(glm: Family, draw) -> None:
    check_products(Problem(*draw(glm), family=glm))


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("name", ["binomial", "multinomial"])
def test_products_do_not_depend_on_how_features_are_stored(name: str, stored: str, draw) -> None:
    _, y, X = draw(family(name))
    weight, l2 = np.random.default_rng(0).uniform(0.5, 2.0, len(y)), 0.3
    Z = STORED[stored](small_numbers(len(y), 6) + 0.25)
    check_products(Problem(Z, y, X, family=name, weight=weight, l2=l2))


def test_products_in_single_precision_have_its_digits(draw) -> None:
    Z, y, X = draw(family("binomial"), q=40)
    objective = wide(Problem(Z.astype(np.float32), y, X, family="binomial"))
    assert objective.stands_rounding
    model = objective.model(objective.start.theta, np.ones(3))
    v = np.random.default_rng(0).normal(size=objective.n_parameters)
    exact = model.H @ v
    error = np.linalg.norm(model.H.rough(v) - exact) / np.linalg.norm(exact)
    assert 1e-10 < error < 1e-6


@pytest.mark.parametrize("Z", [np.zeros((50, 2)) + np.arange(50.0)[:, None] % 7 + 1e6, np.eye(50)[:, :2]])
def test_single_precision_is_left_where_it_gains_nothing_or_loses_digits(Z: np.ndarray) -> None:
    stored = Z.astype(np.float32) if Z.max() > 1.0 else Z  # far from zero; in double precision anyway
    assert not wide(Problem(stored, np.arange(50.0))).stands_rounding


def test_features_far_from_zero_keep_their_digits(draw) -> None:
    Z, y, X = draw(family("poisson"))
    near, far = (solve(Problem(Z + shift, y, X, family="poisson"), "large") for shift in (0.0, 1e5))
    np.testing.assert_allclose(far.coef, near.coef, atol=1e-6)
    assert far.certificate.is_orthogonal


# ----------------------------------------------------------------------------------------------------------- krylov
@pytest.mark.parametrize("seed", range(30))
def test_conjugate_gradients_on_a_subspace_solve_the_constrained_problem(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, J, g = rng.normal(size=(20, 20)), rng.normal(size=(3, 20)), rng.normal(size=20)
    A = A @ A.T + np.eye(20)
    P = np.eye(20) - np.linalg.pinv(J) @ J
    found = conjugate_gradients(lambda v: A @ v, lambda v: P @ v, g, 1e-12, 100, lambda v: P @ v)
    system = np.block([[A, J.T], [J, np.zeros((3, 3))]])
    exact = np.linalg.solve(system, np.concatenate([g, np.zeros(3)]))[:20]
    assert found.solved and not found.negative and found.n_products <= 22
    np.testing.assert_allclose(found.x, exact, atol=1e-10)
    np.testing.assert_allclose(found.Ax, A @ found.x, atol=1e-9)


def test_conjugate_gradients_stop_where_the_matrix_bends_downwards() -> None:
    A, target = np.diag([3.0, 1.0, -2.0]), np.array([1.0, 1.0, 0.5])
    found = conjugate_gradients(lambda v: A @ v, lambda v: v, target, 1e-12, 100)
    assert found.negative and not found.solved
    assert 0.5 * found.x @ A @ found.x - target @ found.x < 0.0  # the loss falls all the same
    np.testing.assert_allclose(found.Ax, A @ found.x, atol=1e-12)


def test_conjugate_gradients_give_up_after_so_many_products() -> None:
    A = np.diag(10.0 ** np.linspace(0.0, 6.0, 50))
    found = conjugate_gradients(lambda v: A @ v, lambda v: v, np.ones(50), 1e-10, 5)
    assert found.n_products == 5 and not found.solved and not found.negative


@pytest.mark.parametrize("lowest", [-1.0, 1e-3, 0.5])
def test_lanczos_finds_the_smallest_eigenvalue(lowest: float) -> None:
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.normal(size=(200, 200)))[0]
    A = (V * np.concatenate([[lowest], np.linspace(1.0, 2.0, 199)])) @ V.T
    value, vector = lowest_curvature(lambda v: A @ v, rng.normal(size=200), np.zeros((200, 0)), 60)
    assert value == pytest.approx(lowest, abs=1e-9)
    assert vector @ A @ vector / (vector @ vector) == pytest.approx(lowest, abs=1e-9)
    outside, _ = lowest_curvature(lambda v: A @ v, rng.normal(size=200), V[:, :1], 60)
    assert outside == pytest.approx(1.0, abs=1e-4)


def test_lanczos_does_not_drift_into_what_it_leaves_out() -> None:
    """Nearly a multiple of one outside: small new directions would let rounding of what is left out grow."""
    rng = np.random.default_rng(0)
    Y = np.linalg.qr(rng.normal(size=(200, 2)))[0]
    P = np.eye(200) - Y @ Y.T
    A = P @ np.diag(1.0 + 1e-4 * rng.normal(size=200)) @ P
    value, vector = lowest_curvature(lambda v: A @ v, rng.normal(size=200), Y, 60)
    assert 0.999 < value < 1.0 and np.abs(Y.T @ vector).max() < 1e-12


def test_lanczos_stops_where_there_are_no_more_directions() -> None:
    value, _ = lowest_curvature(lambda v: np.where(np.arange(50) < 2, 3.0, 2.0) * v, np.ones(50), np.zeros((50, 0)), 30)
    assert value == pytest.approx(2.0, abs=1e-12)


def test_a_learned_metric_makes_a_falling_spectrum_flat() -> None:
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.normal(size=(300, 300)))[0]
    spectrum = np.arange(1.0, 301.0) ** -2.0
    A = (V * spectrum) @ V.T
    metric = Metric.nystrom(lambda probes: A @ probes, 300, 100, 1.0, rng)
    S = metric(np.eye(301))
    np.testing.assert_allclose(S, S.T, atol=1e-12)
    np.testing.assert_allclose(metric(np.arange(301.0)), S @ np.arange(301.0), atol=1e-10)
    whole = np.zeros((301, 301))
    whole[0, 0], whole[1:, 1:] = 1.0, A
    after = np.linalg.eigvalsh(S @ whole @ S)
    assert np.linalg.cond(A) > 8e4 and after[-1] / after[0] < 30.0
    assert after[-1] < 10.0  # and the size is about that of whitened features


def test_a_metric_of_several_predictors_treats_them_alike() -> None:
    rng = np.random.default_rng(0)
    metric = Metric(np.linalg.qr(rng.normal(size=(5, 2)))[0], np.array([0.1, 0.3]), 2.0)
    v = rng.normal(size=(12, 3))
    np.testing.assert_allclose(metric(v), np.vstack([metric(v[:6]), metric(v[6:])]), atol=1e-14)


def test_a_metric_of_no_more_directions_than_there_are() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(size=(60, 5))
    metric = Metric.nystrom(lambda probes: half @ (half.T @ probes), 60, 30, 1.0, rng)
    assert metric.U.shape == (60, 5)
    nothing = Metric.nystrom(np.zeros_like, 60, 30, 1.0, rng)
    np.testing.assert_array_equal(nothing(np.ones(61)), np.ones(61))


@pytest.mark.parametrize("learned", [False, True])
def test_the_frame_inverts_the_jacobian_in_any_metric(learned: bool, draw) -> None:
    Z, y, X = draw(family("binomial"), q=30)
    objective = wide(Problem(Z, y, X, family="binomial"))
    algebra = Krylov(objective, Settings(), np.random.default_rng(0))
    model = objective.model(objective.start.theta, np.zeros(3))
    if learned:
        algebra._improve(model)
    frame: Frame = algebra.frame(model)
    np.testing.assert_allclose(model.J @ frame.pinv, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(frame.basis.T @ frame.basis, np.eye(3), atol=1e-12)
    step = algebra.direction(model, frame).step
    np.testing.assert_allclose(model.J @ step, -model.c, atol=1e-10)
    assert model.g @ step < 0.0


# ----------------------------------------------------------------------------------------------------------- memory
def peak_of(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def short_problem(dtype: type, n: int = 30_000, q: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((n, q), dtype=np.float32).astype(dtype)
    X = (Z[:, :1] + rng.normal(size=(n, 1)) > 0.0).astype(float)
    return Z, (rng.random(n) < 1.0 / (1.0 + np.exp(-Z[:, 0].astype(float)))).astype(float), X


def sparse_problem() -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    n, columns, levels = 30_000, 10, 200
    level = rng.integers(levels, size=(n, columns))
    indices = (level + levels * np.arange(columns)).ravel()
    Z = sparse.csr_array((np.ones(indices.size), indices, np.arange(0, n * columns + 1, columns)))
    X = (level[:, :1] + 50.0 * rng.normal(size=(n, 1)) > 100.0).astype(float)
    return Z, (rng.random(n) < 0.3 + 0.4 * (level[:, 0] > 100)).astype(float), X


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_features_in_short_precision_are_never_copied(dtype: type) -> None:
    Z, y, X = short_problem(dtype)
    problem = Problem(Z, y, X, family="binomial")
    assert problem.features is Z
    assert peak_of(lambda: solve(problem, "large")) < 40e6 < 8.0 * Z.size / 1.5


def test_sparse_features_are_never_densified() -> None:
    Z, y, X = sparse_problem()
    problem = Problem(Z, y, X, family="binomial")
    assert peak_of(lambda: solve(problem, "large")) < 50e6 < 8.0 * Z.shape[0] * Z.shape[1] / 9


@pytest.mark.parametrize("make", [lambda: short_problem(np.float32), sparse_problem], ids=["float32", "sparse"])
def test_the_estimator_hands_features_on_as_they_are_stored(make: Callable) -> None:
    Z, y, X = make()
    model = sq.OrthogonalGLMClassifier(solver="large")
    assert peak_of(lambda: model.fit(Z, y, protected=X)) < 50e6
    assert peak_of(lambda: model.predict_proba(Z)) < 25e6
    p = model.predict_proba(Z)[:, 1]
    assert abs(np.corrcoef(p, X[:, 0])[0, 1]) < 1e-8
    free = solve(Problem(Z, y, family="binomial"), "large", tol=1e-2)
    before = 1.0 / (1.0 + np.exp(-(Z @ free.coef[0] + free.intercept)))
    assert abs(np.corrcoef(before, X[:, 0])[0, 1]) > 0.1


def test_the_estimator_reads_short_features_as_it_reads_long_ones() -> None:
    Z, y, X = short_problem(np.float32, n=500, q=8)
    both = np.column_stack([X.astype(np.float32), Z])
    for table, given in ((Z, {"protected": X}), (both, {})):
        short, long = (
            sq.OrthogonalGLMClassifier(protected=None if given else [0]).fit(part, y, **given)
            for part in (table, table.astype(float))
        )
        np.testing.assert_array_equal(short.coefficient_names_, long.coefficient_names_)
        np.testing.assert_allclose(short.coef_, long.coef_, atol=1e-9)
        np.testing.assert_allclose(short.predict_proba(table), long.predict_proba(table.astype(float)), atol=1e-9)


def test_missing_values_in_short_features_are_dropped_as_in_long_ones() -> None:
    Z, y, X = short_problem(np.float32, n=500, q=8)
    Z[3, 2] = np.nan
    model = sq.OrthogonalGLMClassifier(missing="drop").fit(Z, y, protected=X)
    assert model.n_dropped_ == 1
    with pytest.raises(InputError, match="x2"):
        sq.OrthogonalGLMClassifier().fit(Z, y, protected=X)


# ----------------------------------------------------------------------------------------------------------- choice
def of_shape(n: int, q: int, **more) -> Problem:
    return Problem(np.broadcast_to(np.float32(1.0), (n, q)), np.arange(n) % 2.0, family="binomial", **more)


def test_wide_features_are_for_products_and_narrow_ones_for_the_hessian() -> None:
    assert [choose(of_shape(20_000, q)) for q in (10, 100, 300, 2000)] == ["sqp", "sqp", "sqp", "large"]
    assert [choose(of_shape(2000, q)) for q in (100, 600)] == ["sqp", "large"]


def test_small_problems_keep_the_full_certificate() -> None:
    assert choose(of_shape(15, 30)) == choose(of_shape(50, 300)) == "sqp" and choose(of_shape(50, 3000)) == "large"


def test_sparse_rows_change_to_products_earlier() -> None:
    def problem(q: int) -> Problem:
        Z = sparse.csr_array(
            (np.ones(20_000 * 5), np.arange(20_000 * 5) % q, np.arange(0, 100_001, 5)), shape=(20_000, q)
        )
        return Problem(Z, np.arange(20_000) % 2.0, family="binomial")

    chosen = [choose(problem(q)) for q in (30, 100, 400, 1000)]
    assert chosen == ["sqp", "sqp", "large", "large"] and choose(of_shape(20_000, 400)) == "sqp"


def test_what_would_not_fit_into_memory_twice_is_for_products() -> None:
    assert choose(of_shape(10**6, 50)) == "sqp" and choose(of_shape(10**7, 60)) == "large"


def test_auto_takes_the_solver_that_was_chosen() -> None:
    rng = np.random.default_rng(0)
    Z, y = rng.normal(size=(300, 400)), rng.normal(size=300)
    X = Z[:, :1] + rng.normal(size=(300, 1))
    assert solve(Problem(Z, y, X, l2=0.1)).solver == "large"
    assert solve(Problem(Z[:, :10], y, X)).solver == "sqp"


# ------------------------------------------------------------------------------------------------------ certificates
def test_the_certificate_claims_no_more_than_it_knows(draw) -> None:
    Z, y, X = draw(family("binomial"))
    Z = np.column_stack([Z, Z[:, 0], np.full(len(y), 3.0)])
    names = ("a", "b", "c", "d", "e", "f", "copy", "constant")
    found = solve(Problem(Z, y, X, family="binomial", feature_names=names), "large")
    c = found.certificate
    assert c.rank_features is None and c.aliased_features == ("constant",) and found.coef[0, 7] == 0.0
    assert "not known of 8" in str(c) and json.loads(json.dumps(c.to_dict()))["rank_features"] is None
    assert c.loss_unconstrained < c.loss < c.loss_null and 0.0 < c.cost < 1.0


@pytest.mark.parametrize("name", ["binomial", "poisson"])
def test_a_level_without_variation_is_flat_and_named(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    level = (np.arange(len(y)) % 20 == 0).astype(float)
    y = np.where(level == 1.0, 0.0, y)
    names = ("a", "b", "c", "d", "e", "f", "level")
    found = solve(Problem(np.column_stack([Z, level]), y, X, family=name, feature_names=names), "large")
    assert found.status is Status.FLAT and found.certificate.flat_features == ("level",)
    assert found.certificate.is_orthogonal and found.coef[0, 6] < -3.0


def test_a_saddle_is_left_behind() -> None:
    """The intercept-only model is stationary and feasible, and no minimum: only the curvature tells."""
    z, u = (part.ravel() for part in np.meshgrid(np.linspace(-2.0, 2.0, 21), np.linspace(-1.0, 1.0, 11)))
    y = np.cosh(4.0 * z) / np.cosh(4.0 * z).mean()
    problem = Problem(np.column_stack([z, u]), y, u[:, None], family=family("gaussian", "log"))
    objective = wide(problem)
    start = objective.model(objective.start.theta, np.zeros(1))
    assert np.abs(start.g).max() < 1e-12 and np.abs(start.c).max() < 1e-12
    found = solve(problem, "large")
    assert found.certificate.is_optimal and abs(found.coef[0, 0]) > 0.1
    assert found.certificate.loss < found.certificate.loss_null * (1.0 - 1e-3)


def test_the_loss_falls_or_the_constraint_comes_closer(draw) -> None:
    found = solve(Problem(*draw(family("binomial"), q=30), family="binomial"), "large")
    assert all(b.loss < a.loss or b.constraint < a.constraint for a, b in pairwise(found.trace))
    assert found.trace[0].loss == pytest.approx(found.certificate.loss_null, rel=1e-12)


# ------------------------------------------------------------------------------------------------------------ options
def test_a_warm_start_is_nearly_done(draw) -> None:
    problem = Problem(*draw(family("multinomial")), family="multinomial")
    cold = solve(problem, "large")
    warm = solve(problem, "large", start=(cold.intercept, cold.coef))
    assert warm.n_iter <= 1
    np.testing.assert_allclose(warm.coef, cold.coef, atol=1e-7)


def test_restarts_are_reproducible_and_never_worse(draw) -> None:
    problem = Problem(*draw(family("binomial"), n=200, q=5, seed=4), family="binomial")
    once = solve(problem, "large")
    first, again = (solve(problem, "large", n_restarts=3, random_state=0) for _ in range(2))
    np.testing.assert_array_equal(first.coef, again.coef)
    assert first.certificate.loss <= once.certificate.loss + 1e-12


def test_too_few_iterations_are_said(draw) -> None:
    found = solve(Problem(*draw(family("binomial")), family="binomial"), "large", max_iter=1)
    assert found.status is Status.MAX_ITER and found.n_iter == 1
    assert found.certificate.is_orthogonal and not found.certificate.is_optimal


def test_as_many_protected_columns_as_features_are_refused(draw) -> None:
    Z, y, X = draw(family("binomial"), q=3)
    with pytest.raises(InputError, match="Only a constant prediction is orthogonal"):
        solve(Problem(Z, y, X, family="binomial"), "large")


def test_an_unknown_solver_is_one_clear_sentence(draw) -> None:
    with pytest.raises(InputError, match="auto, sqp, large, mdmm"):
        solve(Problem(*draw(family("gaussian"))), "huge")


def test_negative_curvature_of_rounded_products_is_checked_by_exact_ones() -> None:
    A, exact = np.diag([1.0, 1e-9]), [0]

    def product(v: np.ndarray) -> np.ndarray:
        exact[0] += 1
        return A @ v

    target = np.array([0.0, 1e-9])
    found = conjugate_gradients(lambda v: A @ v - 1e-7 * v, lambda v: v, target, 1e-15, 9, exact=product)
    assert found.solved and not found.negative and exact[0] == 1
    np.testing.assert_allclose(found.x, [0.0, 1.0])
    bent = conjugate_gradients(lambda v: -v, lambda v: v, np.ones(2), 1e-9, 9, exact=lambda v: -v)
    assert bent.negative


def test_a_fit_with_negative_curvature_goes_on_with_products_in_single_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nearly separable classes: many steps meet negative curvature of the Lagrangian, which is no rounding error."""
    rng = np.random.default_rng(0)
    n, q = 1000, 350
    X = np.column_stack([rng.random((n, 2)) < (0.3, 0.1), rng.normal(size=(n, 2))]).astype(float)
    Z = rng.standard_normal((n, q), dtype=np.float32)
    Z[:, 2:6] += X
    signal = 0.6 * Z[:, :8] @ rng.normal(size=8)
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-signal))).astype(float)
    counts = {"rough": 0, "__matmul__": 0}
    calls = {name: getattr(HessianProduct, name) for name in counts}
    for name in counts:

        def count(H: HessianProduct, v: np.ndarray, name: str = name) -> Any:
            counts[name] += 1
            return calls[name](H, v)

        monkeypatch.setattr(HessianProduct, name, count)
    found = solve(Problem(Z, y, X, family="binomial"), "large")
    assert found.status is Status.CONVERGED and found.certificate.max_correlation < 1e-8
    assert counts["__matmul__"] < counts["rough"]
