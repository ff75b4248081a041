"""Golden masters of the parts of constrained fits: linear algebra, bounds, summaries, and the passes that fits take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.conftest import GLMS, draw_data
from tests.golden.recorder import About
from tests.golden.test_glm import data, offset, weights

from setsquare.errors import SetsquareError
from setsquare.families import family
from setsquare.families.activations import EXP, SIGMOID
from setsquare.glm import (
    Problem,
    Settings,
    aliasing,
    budget,
    domain_edge,
    feasibility,
    first_step,
    freedom,
    given,
    influence,
    intercept,
    krylov,
    missing_protected,
    new_rows_bound,
    prepare,
    solve,
    sqp,
)
from setsquare.glm.budget_steps import _extrapolate, cheapest_target
from setsquare.glm.certify import level_of
from setsquare.glm.kkt_inverse import _inverse_root, invert
from setsquare.glm.objective import Objective, spread_of
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.glm.preparation import check_squares
from setsquare.glm.solver import fit_path
from setsquare.glm.sqp import solve_sqp
from setsquare.glm.wide import HessianProduct
from setsquare.rows.blocks import Block

VECTOR = family("multinomial")


@pytest.fixture
def passes(monkeypatch):
    """Number of calls of the objective, and of products with the Hessian."""
    counts = {"model": 0, "values": 0, "product": 0, "damped": 0}

    def count(kind: type, method: str, name: str) -> None:
        plain = getattr(kind, method)

        def counted(self, *arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return plain(self, *arguments, **named)

        monkeypatch.setattr(kind, method, counted)

    count(Objective, "model", "model")
    count(Objective, "values", "values")
    count(Objective, "damped", "damped")
    count(HessianProduct, "__matmul__", "product")
    return counts


@pytest.mark.parametrize("glm", [*GLMS, VECTOR], ids=str)
@pytest.mark.parametrize("kind", ["plain", "offset", "new rows", "budget", "large"])
def test_passes_of_fits(golden, passes, glm, kind):
    Z, y, X = data(glm, q=6, seed=3)
    options = {"offset": offset(glm)} if kind == "offset" else {}
    how: dict[str, Any] = {"new rows": {"orthogonal_on": "new rows"}, "budget": {"budget": 0.5}}.get(kind, {})
    if kind == "large":
        how = {"solver": "large"}
    found = solve(Problem(Z, y, X, glm, **options), **how)
    calls = [About(passes[name]) for name in ("model", "values", "damped")]
    products = About(round(passes["product"] / 4))  # rounding decides some of them
    golden([calls, products, About(found.n_iter), found.coef], relative=1e-4)


@pytest.mark.parametrize("name", ["binomial", "poisson", "multinomial"])
def test_passes_of_paths(golden, passes, name):
    Z, y, X = data(family(name), q=6, seed=4)
    path = fit_path(Problem(Z, y, X, family(name)), [0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0])
    points = [[p.share, p.correlation, p.slope, p.end.model.loss, p.end.status.name] for p in path.points]
    calls = [About(passes[name]) for name in ("model", "values")]
    one = path.points[3].refreshed()
    still = replace(one, end=one.end._replace(model=one.end.model._replace(spread=0.0)), plain=0.0)
    assert (still.correlation, still.share) == (0.0, 0.0)
    inside = one.within()
    soft = one.inverse()
    sizes = [np.abs(part).sum() for part in (inside.model.J, soft.cross, soft.corner)]
    golden([calls, points, About(path.n_iter), sizes], relative=1e-4)


@pytest.mark.parametrize("price", [0.0, 0.7, 30.0])
def test_prices(golden, price):
    Z, y, X = data(family("binomial"), seed=5)
    prepared = prepare(Problem(Z, y, X, family("binomial")))
    end = solve_sqp(prepared.objective, None, Settings())
    inverse = invert(prepared.objective, end.model)
    soft = budget.soften(inverse, price)
    root = soft.root.reshape(-1, soft.root.shape[2])
    plain = inverse.root.reshape(-1, inverse.root.shape[2])
    same = budget.soften(inverse, np.inf) is inverse
    traces = [np.trace(root @ root.T), np.trace(plain @ plain.T)]
    golden([traces, np.abs(soft.corner).sum(), np.linalg.norm(soft.cross), same, level_of(prepared, end)])


def test_cheapest_targets(golden):
    corner = -np.array([[2.0, 0.3], [0.3, 0.5]])
    found = [cheapest_target(np.array(free), corner, r) for free in ([3.0, 4.0], [0.1, 0.0]) for r in (0.2, 1.0, 50.0)]
    none = cheapest_target(np.zeros(2), corner, 1.0)
    bent = cheapest_target(np.array([1.0, 2.0]), np.diag([0.5, -1.0]), 1.0)

    class P:
        def __init__(self, r: float) -> None:
            self.radius, self.theta, self.lam = r, np.array([r**2, 1.0]), np.array([3.0 * r])

    between = _extrapolate([P(0.1), P(0.4), P(0.5)], 0.8)
    golden([found, none, bent, between], relative=1e-5)


def test_bounds_on_new_rows(golden):
    rng = np.random.default_rng(2)
    A = rng.normal(size=(3, 3))
    V = A @ A.T
    b = rng.normal(size=3)
    cases = [(s, t, c) for s in (0.0, 1.0, 60.0) for t in (0.0, 1.0) for c in (0.8, 0.95)]
    lengths = [new_rows_bound.length_quantile(s * b, t * V, c) for s, t, c in cases]
    absolute = new_rows_bound.absolute_quantile(np.array([-2.0, 0.0, 0.5]), np.array([0.0, 1.0, 0.2]), 0.9)
    errors = [new_rows_bound.sampling_error(*one) for one in ((0, 100), (2, 100), (2, 100, 0.75))]
    limits = [new_rows_bound.new_rows_limit(n) for n in (0, 1, 400)]
    skewed = new_rows_bound.length_quantile(np.array([1.0, 0.0]), np.diag([1.0, 1e-9]), 0.95)
    golden([lengths, absolute, errors, limits, skewed])


def new_rows(**values: Any) -> new_rows_bound.NewRows:
    """What is known about new rows for an ordinary fit, with some values of its own."""
    found = solve(Problem(*data(family("gaussian")), family("gaussian")), orthogonal_on="new rows")
    return replace(found.certificate.new_rows, **values)


def test_what_is_said_about_new_rows(golden):
    one = new_rows()
    near = 0.999 * new_rows_bound.CLOSE * new_rows_bound.new_rows_limit(one.n_units)
    states = [
        new_rows(steered=near, correlation=near, upper=0.5).is_zero,
        new_rows(steered=1.01 * near, correlation=near, upper=0.5).is_zero,
        new_rows(steered=near, correlation=near, upper=1.0).is_zero,
        new_rows(steered=None, correlation=near, upper=0.5).is_zero,
        new_rows(steered=near, correlation=0.9, upper=0.95).is_zero,
    ]
    assert states == [True, False, False, False, False]
    rows = [one.rows_for(limit) for limit in (0.0, one.correlation, 0.05, 0.3, 0.9)]
    golden([one.noise, one.limit, one.inflated(3.0, [2.0, 9.0]), rows, new_rows(n_steered=1).noise])


@pytest.mark.parametrize("h", [EXP, SIGMOID], ids=str)
def test_first_steps(golden, h):
    mean, slope = float(h(np.array(0.3))), float(h.evaluate(np.array([0.3]))[2][0])
    x = np.array([-2.0, -0.3, 0.1, 0.4, 1.9])
    found = []
    for size in (1e-9, 0.4, 1.1, 2.0, 50.0):
        line = first_step.Line(h, mean, slope * size**2, 0.01, size * first_step.NODES, first_step.SHARES)
        few = line._replace(x=size * x, shares=np.arange(1.0, 6.0) / 15.0)
        found += [line.solve(0.3, 1.0), few.solve(0.3, 1.0), few.is_met(0.3, 1.0), few.is_met(-1.0, 0.2)]
    golden(found)


@pytest.mark.parametrize("glm", [*GLMS, VECTOR], ids=str)
def test_intercepts(golden, glm):
    average = np.array([0.2, 0.3, 0.5]) if glm.is_vector else np.array([0.4])
    k = 2 if glm.is_vector else 1
    moved = [intercept.first_intercept(glm, average, 0.1, top) for top in (-5.0, 0.2, 3.0)]
    rng = np.random.default_rng(0)
    y, w = (rng.random((9, k)) < 0.5) * 0.5 + 0.1, np.arange(1.0, 10.0) / 45.0
    block = Block(np.zeros((9, 1)), y, np.zeros((9, 0)), w, 0.1 * rng.normal(size=(9, k)))
    at = link = intercept.link_of(glm, average)
    sums = intercept.intercept_sums(glm, at - 0.5, block)
    golden([link, moved, intercept.steepness_at(glm, average), sums, intercept.point_of(sums)])


def test_aliased_columns(golden):
    rng = np.random.default_rng(1)
    A = rng.normal(size=(50, 5)) + 3.0
    A = np.column_stack([A, A[:, 0] + A[:, 1], np.full(50, 2.0), A[:, 2] + 1e-5 * A[:, 3]])
    D = np.column_stack([np.ones(50), A - A.mean(0)])
    gram, spread = aliasing.correlations(D.T @ D / 50, A.mean(0))
    kept = [aliasing.independent(gram, limit) for limit in (1e-8, 1e-12)]
    found = [aliasing.are_independent(gram[:5, :5], 1e-6), aliasing.are_independent(gram, 1e-6)]
    sizes = [aliasing.rounding(1e-16, A.mean(0), D.T @ D / 50) * 1e16, aliasing.precision(A)]
    golden([gram, spread, kept, found, sizes, aliasing.as_double(A.astype(np.float32)).dtype.name])


def test_krylov(golden):
    rng = np.random.default_rng(4)
    B = rng.normal(size=(12, 12))
    A = B @ B.T + np.eye(12)
    left_out, start, b = np.eye(12)[:, :2], rng.normal(size=12), rng.normal(size=12)

    def apply(v: np.ndarray) -> np.ndarray:
        return A @ v

    runs = [krylov.conjugate_gradients(apply, lambda v: v, b, 1e-9, most) for most in (0, 3, 60)]
    bent = krylov.conjugate_gradients(lambda v: np.diag([1.0, -2.0]) @ v, lambda v: v, np.array([1.0, 2.0]), 1e-9, 9)
    flat = krylov.conjugate_gradients(lambda v: np.diag([1.0, 0.0]) @ v, lambda v: v, np.array([0.0, 2.0]), 1e-9, 9)
    few, many = (krylov.lanczos(apply, start, left_out, most) for most in (4, 40))
    ritz = [[r.value, r.largest, r.n_steps, r.n_dimensions, r.n_nonzero, r.is_exact] for r in (few, many)]
    ritz += [few.lower_bound(), many.lower_bound()]
    wide = krylov.Ritz(1.0, start, 9.0, 30, 500, 30, False)
    scaled = krylov.Metric.diagonal(np.array([4.0, 1.0, 1e-30]), 2.0)
    nystrom = krylov.Metric.nystrom(lambda P: A[:5, :5] @ P, 5, 3, 2.0, np.random.default_rng(0))
    nothing = krylov.Metric.nystrom(lambda P: 0.0 * P, 5, 3, 2.0, np.random.default_rng(0))
    mapped = [scaled(np.arange(8.0)), nystrom(np.arange(12.0)), nystrom(np.ones((6, 2))), nothing(np.arange(6.0))]
    golden([runs, bent, flat, ritz, wide.lower_bound(), wide.lower_bound(0.5), mapped, nystrom.tail], relative=1e-5)


def test_reduced_systems(golden):
    rng = np.random.default_rng(6)
    B = rng.normal(size=(4, 4))
    systems = [B @ B.T, B + B.T, np.diag([1.0, 1.0, 0.0, 0.0]), np.zeros((0, 0))]
    solved = [sqp.solve_reduced(A, np.ones(len(A))) for A in systems]
    roots = [_inverse_root(A) @ _inverse_root(A).T for A in (systems[0], systems[0] - 0.5 * np.eye(4), systems[3])]
    golden([solved, roots])


@pytest.mark.parametrize("name", ["binomial", "gamma", "multinomial"])
def test_points_of_objectives(golden, name):
    glm = family(name)
    Z, y, X = data(glm, seed=7)
    objective = prepare(Problem(Z, y, X, glm, weight=weights(), offset=offset(glm), l2=0.1)).objective
    theta, lam = objective.start.theta + 0.1, np.linspace(-0.2, 0.3, objective.n_constraints)
    model, values = objective.model(theta, lam), objective.values(theta)
    frame = sqp.frame_of(model)
    null = sqp.null_space(frame)
    curved = sqp.lowest_curvature_of(model)
    reduced, _ = sqp.reduced_hessian(model)
    sizes = [np.linalg.norm(part) for part in (model.g, model.J, frame.pinv)]
    spectrum = [np.trace(np.asarray(model.H)), np.linalg.eigvalsh(reduced)[0], np.trace(null @ null.T), curved]
    aimed = objective.aimed(0.1 * np.ones(objective.n_constraints)).values(theta)
    start = [objective.start.slope, objective.start.curvature, objective.edge, objective.ridge(theta)]
    free = objective.unconstrained().values(theta)
    parts = [model.loss, model.spread, model.steepness, values.loss, values.spread, np.abs(values.c).sum(), free.loss]
    left = sqp.kkt_residual(objective, model, lam)
    golden([sizes, spectrum, np.abs(aimed.c).sum(), start, parts, left], relative=1e-5)


def test_barriers_of_objectives(golden):
    glm = family("binomial", "log")
    Z, y, X = data(glm, seed=2)
    objective = prepare(Problem(Z, y, X, glm)).objective
    theta = objective.start.theta
    fences = [objective.fenced(s) for s in (0.0, 0.01, 0.3)]
    values = [[f.values(theta).loss, f.model(theta, None).loss, np.linalg.norm(f.model(theta, None).g)] for f in fences]
    ends = [domain_edge.follow(objective, solve_sqp, None, Settings(max_iter=most)) for most in (0, 9, 60)]
    found = [[len(r.end.trace), r.end.trace[-1].iteration, r.end.model.loss, r.objective.barrier] for r in ends]
    reached = domain_edge.reach(objective, solve_sqp, None, Settings())
    golden([values, [About(one[0]) for one in found], [one[1:] for one in found[:1]], found[-1][2:], len(reached)])


def test_feasible_points(golden):
    Z, y, X = data(family("poisson"), seed=9)
    objective = prepare(Problem(Z, y, X, family("poisson"), offset=offset(family("poisson")))).objective
    points = [objective.values(theta) for theta in feasibility.feasible_points(objective, Settings())]
    golden([len(points), [[p.loss, p.spread, float(np.abs(p.c).max()) < 1e-9] for p in points]], relative=1e-4)


def test_tallies(golden):
    rng = np.random.default_rng(8)
    gap, x, w, y = rng.normal(size=(300, 2)) ** 3, rng.normal(size=(300, 3)), rng.random(300), rng.normal(size=(300, 2))
    whole = influence.Tally.of(gap, x, w, y)
    halves = influence.Tally.of(gap[:9], x[:9], w[:9], y[:9]) + influence.Tally.of(gap[9:], x[9:], w[9:], y[9:])
    floor = influence.Floor(0.1, 0.01)
    found = [one.correlations(np.ones(3), floor) for one in (whole, halves)]
    few = [whole.without_few(found[0], n) for n in (2, 3, 99, 100, 200, 300, 5000)]
    flat = influence.Tally.of(0.0 * gap, x, w, y).correlations(np.ones(3), influence.Floor(0.0, 0.0))
    constant = influence.Tally.of(gap, 0.0 * x, w, y).correlations(np.ones(3), floor)
    golden([whole, found, few, flat, constant, halves.prediction, halves.outcome])


def test_summaries_of_outcomes(golden):
    y, w = np.arange(12.0) % 5, np.arange(12) % 4 / 3.0
    one, two = OutcomeSummary.of(y[:5], w[:5], y[:5]), OutcomeSummary.of(y[5:], w[5:], 2.0 * y[5:])
    empty = OutcomeSummary.of(y[:4], 0.0 * w[:4])
    shares = OutcomeSummary.of(np.column_stack([y, 4.0 - y]) / 4.0, w)
    merged = [one.merge(two), OutcomeSummary.of(y).merge(one), empty.merge(empty)]
    classes, spread = one.of_classes(np.array([1.0, 3.0])), spread_of(np.ones(1), np.array([3.0]))
    golden([one, merged, shares, classes, one.spread, spread])


@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "multinomial"])
def test_functions_of_outcomes(golden, name):
    Z, y, X = data(family(name), 300, seed=6)
    problem = Problem(Z, y, X, family(name), weight=weights(300))
    basis = given.outcome_basis(problem.rows, problem.outcomes, problem.family)
    values = basis(problem.rows.y[:20])
    golden([basis.knots, basis.n_classes, basis.names, values])


@pytest.mark.parametrize("clusters", [False, True])
def test_missing_protected_values(golden, clusters):
    Z, y, X = data(family("binomial"), 200, p=3)
    X[::5, 1:] = np.nan
    X[np.flatnonzero(Z[:, 0] > 1.0), 0] = np.nan
    X = np.column_stack([X, np.arange(200) % 2])
    cluster = np.arange(200) // 4 if clusters else None
    parts = [slice(0, 1), slice(1, 3), slice(3, 4)]
    known = np.column_stack([Z, missing_protected.known_outcome(y, family("binomial")), np.ones(200)])
    found = missing_protected.complete_protected(X, parts, known, weights(200), cluster)
    classes = missing_protected.known_outcome(np.arange(9) % 3.0, VECTOR)
    hinges = missing_protected.known_numbers(Z[:, 0])
    folds = missing_protected.draw_folds(~np.isnan(X[:, 0]), cluster)
    rare = missing_protected.standardised(np.column_stack([Z, np.full(200, 3.0)]), weights(200))
    S, made = np.diag([1.0, 1e-9]), np.diag([4.0, 1.0])
    golden([found, classes, hinges, folds, rare, missing_protected._inflation(S, made)], relative=1e-4)


def test_freedom(golden):
    rng = np.random.default_rng(3)
    S = np.diag([1.0, 2.0, 1e-30])
    S[0, 1] = S[1, 0] = 0.5
    T = freedom._orthonormal(S, np.ones(3))
    unclear = freedom._orthonormal(np.array([[1.0, 1.0 - 1e-10], [1.0 - 1e-10, 1.0]]), np.zeros(2))
    nothing = freedom._orthonormal(1e-30 * np.eye(2), np.ones(2))
    sizes = ((100, 5, 49), (100, 5, 50), (50, 5, 50), (51, 5, 50), (100, 60, 59), (100, 60, 60))
    early = [freedom.is_early(*one) for one in sizes]
    X = rng.normal(size=(300, 60))
    with pytest.raises(SetsquareError, match="Only a constant prediction is orthogonal to the 60 protected"):
        freedom.refuse_early(Problem(X[:, :5] + X[:, 5:10], X[:, 0], X))
    basis = np.linalg.qr(np.column_stack([np.ones(300), X]))[0]
    free = rng.normal(size=300)
    free -= basis @ (basis.T @ free)
    freedom.refuse_early(Problem(np.column_stack([X[:, 0], free]), X[:, 1], X))  # one direction is left
    golden([T.T @ S @ T, unclear is None, nothing.shape, early, freedom.mixing(60, 4)])


@pytest.mark.parametrize("size", [np.inf, 0.0])
def test_features_whose_squares_are_no_numbers(golden, size):
    Z, y, X = data(family("gaussian"))
    problem = Problem(Z, y, X)
    squares = np.array([1.0, np.float64(size), 1.0, np.float64(size)])
    with pytest.raises(SetsquareError) as caught:
        check_squares(problem, squares)
    golden(str(caught.value))


@pytest.mark.parametrize("scale", [1e-8, 1e8])
@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson"])
def test_units_of_features_do_not_matter(golden, name, scale):
    Z, y, X = draw_data(family(name), 150, 5, 11)
    factors = np.array([1.0, scale, 1.0, scale, 1.0])
    found = solve(Problem(scale * Z + 3.0 * scale, y, X * scale, family(name)), orthogonal_on="new rows")
    other = solve(Problem(Z * factors, y, X, family(name)), "large")
    c = found.certificate
    golden([found.coef * scale, c.loss, c.cost, c.rank_features, other.coef * factors], relative=1e-3)
