"""Rare branches of fits: Hessians that are never formed, features that are copies, sums of blocks, stuck iterates."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from setsquare.families import family
from setsquare.glm import (
    Problem,
    Settings,
    box,
    certify,
    decisions,
    given,
    krylov,
    large,
    mdmm,
    objective,
    preparation,
    prepare,
    ridge,
    solver,
)
from setsquare.glm.aliasing import Copies, _put_columns, put_residuals
from setsquare.glm.box import solve_box
from setsquare.glm.new_rows_bound import NORMAL, length_quantile
from setsquare.glm.newton import Iterate
from setsquare.glm.solution import Status
from setsquare.glm.wide import prepare_wide
from setsquare.rows.blocks import Block
from setsquare.tables.mixed_matrix import join


def draw(n: int = 60, q: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, q)) * np.arange(1.0, q + 1.0) + 2.0, rng.normal(size=(n, 2))


@pytest.mark.parametrize("kind", ["numbers", "categories", "three classes"])
def test_products_with_a_hessian_are_those_of_the_matrix(kind: str) -> None:
    Z, X = draw()
    y = (Z[:, 0] + X[:, 0] > 3.0).astype(float) if kind != "three classes" else np.arange(60) % 3
    codes = np.arange(60) % 4
    features = join(Z[:, :2], [codes], [4], [False, True, False]) if kind == "categories" else Z
    glm = family("multinomial" if kind == "three classes" else "binomial")
    own = prepare_wide(Problem(features, y, X, glm, weight=np.arange(1.0, 61.0), l2=0.3)).objective
    lam = np.linspace(-0.1, 0.2, own.n_constraints)
    theta = own.start.theta + 0.1 * np.cos(np.arange(own.n_parameters))
    H = own.model(theta, lam).H
    dense, k = H.dense(), own.n_predictors
    m = own.n_parameters // k
    v = np.sin(np.arange(1.0, own.n_parameters + 1.0))
    np.testing.assert_allclose(H @ v, dense @ v, atol=1e-12)
    np.testing.assert_allclose(H.rough(v), dense @ v, rtol=1e-4, atol=1e-4 * np.abs(dense @ v).max())
    np.testing.assert_allclose(dense, dense.T, atol=1e-13)
    # Classes are averaged, so that the sketch of all rows is the mean of the diagonal blocks.
    own_model = own.model(theta, 0.0 * lam).H
    blocks = own_model.dense().reshape(k, m, k, m)[range(k), :, range(k)].mean(axis=0)[1:, 1:]
    probes = np.eye(m - 1)[:, :2]
    np.testing.assert_allclose(own_model.sketch(probes, 1), blocks @ probes, rtol=1e-5, atol=1e-6)
    some = own_model.sketch(probes, 2)
    assert np.abs(some - blocks @ probes).max() > 1e-3 and np.trace(some) > 0.3 * np.trace(blocks @ probes)


def test_diagonals_of_hessians() -> None:
    Z, X = draw()
    features = join(Z[:, :3], [np.arange(60) % 3], [3], [False, True, False, False])
    own = prepare_wide(Problem(features, (Z[:, 0] > 2.0).astype(float), X, "binomial", l2=0.3)).objective
    found = own.model(own.start.theta, np.zeros(own.n_constraints)).H.diagonal() * own.to_raw.divisor**2
    p = (Z[:, 0] > 2.0).mean()
    dense = features.toarray()
    squares = np.where((dense == dense**2).all(axis=0), dense.mean(axis=0), dense.var(axis=0))
    np.testing.assert_allclose(found, p * (1.0 - p) * squares + 0.3, rtol=1e-9)


def test_suspects_are_replaced_by_their_residuals() -> None:
    Z = np.column_stack([np.ones(9), draw(9, 4)[0]])
    copies = Copies(np.array([0, 2]), np.array([1, 3]), np.array([[1.0, 0.5], [2.0, -1.0]]), np.array([0.3, -0.2]))
    expected = Z.copy()
    expected[:, 2] = Z[:, 2] - Z[:, 1] - 2.0 * Z[:, 3] - 0.3
    expected[:, 4] = Z[:, 4] - 0.5 * Z[:, 1] + Z[:, 3] + 0.2
    nothing, w = np.zeros((9, 0)), np.full(9, 1.0 / 9)
    mixed = join(Z, [np.arange(9) % 2], [2], [False] * 5 + [True])
    for features in (Z.copy(), sparse.csr_array(Z), mixed):
        found = put_residuals(copies, Block(features, nothing, nothing, w)).Z
        dense = found.toarray() if hasattr(found, "toarray") else found
        np.testing.assert_allclose(dense[:, :5], expected, atol=1e-12)
    one = _put_columns(sparse.csr_array(np.eye(3)), np.array([0]), np.array([[0.0], [5.0], [0.0]]))
    assert one.nnz == 3 and one.toarray().tolist() == [[0, 0, 0], [5, 1, 0], [0, 0, 1]]


def test_sums_of_blocks() -> None:
    a, b = np.array([1.0, 5.0]), np.array([3.0, 2.0])
    lower, upper = preparation._wider((a, a), (b, b))
    assert lower.tolist() == [1.0, 2.0] and upper.tolist() == [3.0, 5.0]
    count, low, high = given._merge_counts((a, a, a), (b, b, b))
    assert count.tolist() == [4.0, 7.0] and low.tolist() == [1.0, 2.0] and high.tolist() == [3.0, 5.0]
    assert objective._add_some((None,), (a,))[0] is a and objective._add_some((a,), (None,))[0] is a
    assert objective._add_some((a,), (b,))[0].tolist() == [4.0, 7.0]


@pytest.mark.parametrize(("share", "level", "stuck"), [(0.5, 1.0, True), (2.0, 1.0, False), (2.0, 0.0, True)])
def test_iterates_that_cannot_be_improved(share: float, level: float, stuck: bool, monkeypatch) -> None:
    monkeypatch.setattr(certify, "level_of", lambda prepared, end: level)
    c, J = np.array([3.0, 4.0]), share * certify.STUCK * 2.0 * np.array([[5.0, 0.0], [0.0, 0.0]]) / 3.0
    model = SimpleNamespace(c=c, J=J, steepness=2.0)
    assert certify._is_stuck(SimpleNamespace(), SimpleNamespace(model=model)) is stuck


def test_penalties_are_tried_downwards_and_then_upwards() -> None:
    Z, X = draw(80, 6, 3)
    rng = np.random.default_rng(1)
    for signal, larger in ((2.0, False), (0.0, True)):
        y = signal * Z[:, 0] + rng.normal(size=80)
        path = ridge._Path(Problem(Z, y, X, "gaussian"), "sqp", Settings(), "training rows")
        path.descend()
        unit = path.unit(prepare(path.problem))
        assert (path.best > ridge.DOWN[0] * unit) == larger and np.isfinite(path.loss)
        assert path.found is not None and path.best > 0.0


def test_another_penalty_changes_value_slope_and_curvature() -> None:
    Z, X = draw()
    own = prepare(Problem(Z, (Z[:, 0] > 2.0).astype(float), X, "binomial", l2=0.1)).objective
    more, theta, lam = own.penalised(3.0 * own.penalty), own.start.theta + 0.1, np.zeros(own.n_constraints)
    a, b = more.model(theta, lam), own.model(theta, lam)
    step = 2.0 * own.penalty @ theta
    np.testing.assert_allclose([a.loss - b.loss, *(a.g - b.g)], [0.5 * theta @ step, *step], atol=1e-12)
    np.testing.assert_allclose(np.asarray(a.H) - np.asarray(b.H), 2.0 * own.penalty, atol=1e-12)


@pytest.mark.parametrize(
    ("moved", "curvature", "is_open"), [(1.0, 0.0, True), (1.0, 1.0, False), (1e-9, 0.0, False), (0.0, -1.0, False)]
)
def test_directions_along_which_predictions_change(moved: float, curvature: float, is_open: bool) -> None:
    end = SimpleNamespace(model=SimpleNamespace(H=SimpleNamespace(variance=lambda vector: moved)))
    assert large._is_open(end, curvature, np.array([0.6, 0.8])) is is_open


def test_a_prediction_at_the_threshold_is_selected() -> None:
    Z, X = np.arange(8.0)[:, None], np.arange(8.0)[:, None] % 2
    problem = Problem(Z, Z[:, 0] % 2, X, "binomial")
    solution = SimpleNamespace(intercept=np.array([0.0]), coef=np.array([[1.0]]))
    correlation, share = decisions.measure_decisions(problem, solution, 4.0)
    assert share == pytest.approx(0.5) and correlation == pytest.approx(0.0, abs=1e-12)
    correlation, share = decisions.measure_decisions(problem, solution, 7.0)
    assert share == pytest.approx(1.0 / 8.0)
    assert correlation == pytest.approx(np.corrcoef(np.arange(8) == 7, np.arange(8) % 2)[0, 1])


def test_runs_are_repeated_only_if_none_has_met_the_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_is_plain", lambda prepared, end, settings: False)
    monkeypatch.setattr(solver, "_rank", lambda prepared, end: (end.startswith("failed"), False, False, 0.0))
    monkeypatch.setattr(solver, "feasible_points", lambda objective, settings: ["one", "two", "three"])
    prepared = SimpleNamespace(objective=None)

    def search(*ends: str) -> list[str]:
        reached = [SimpleNamespace(end=end) for end in ends]
        attempts = {"one": ["failed"], "two": ["failed", "met"], "three": ["met"]}
        found = solver._search(
            prepared, reached, lambda theta: [SimpleNamespace(end=end) for end in attempts[theta]], Settings()
        )
        return [one.end for one in found]

    assert search("met", "failed") == search("met") == [] and search("failed", "failed") == ["failed", "met"]


def test_steps_of_a_box_are_full_steps() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 1))
    Z = rng.normal(size=(200, 3)) + X
    found = solve_box(Problem(Z, Z.sum(axis=1) + rng.normal(size=200), None, "gaussian"), X, ("a",))
    assert found.trace and {step.length for step in found.trace} == {1.0}


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2, 0.05, 0.01])
def test_conjugate_gradients_end_at_a_curvature_relative_to_the_largest_one_seen(share, monkeypatch):
    rng = np.random.default_rng(1)
    root, metric = rng.normal(size=(9, 9)), rng.uniform(0.2, 5.0, size=9)
    A, target = root @ np.diag(3.0 ** -np.arange(9.0)) @ root.T, rng.normal(size=9)
    curvatures, x, p = [], np.zeros(9), metric * target
    for _ in range(6):
        curvatures.append(p @ A @ p / (p @ (p / metric)))  # in the norm of the preconditioner
        r = target - A @ x
        x = x + (r @ p) / (p @ A @ p) * p
        z = metric * (target - A @ x)
        p = z - (z @ A @ p) / (p @ A @ p) * p
    low = np.array(curvatures) <= share * np.maximum.accumulate(curvatures)
    monkeypatch.setattr(krylov, "NO_CURVATURE", share)
    found = krylov.conjugate_gradients(lambda v: A @ v, lambda v: metric * v, target, 1e-12, 6)
    assert found.negative == low.any() and found.n_products == (low.argmax() + 1 if low.any() else 6)


def test_the_penalty_of_a_box_grows_where_the_violation_falls_too_slowly(monkeypatch) -> None:
    start = SimpleNamespace(curvature=3.0, steepness=2.0, slope=1.0)
    model = SimpleNamespace(g=np.zeros(1), J=np.zeros((2, 1)))
    objective = SimpleNamespace(start=start, model=lambda theta, lam: model)
    violations, penalties = iter([0.4, 0.39, 0.09, 0.02, 0.0]), []

    def newton(objective, theta, lam, rho, bound, tol):
        penalties.append((rho, lam.copy()))
        return theta, np.array([bound + next(violations), -0.1])

    monkeypatch.setattr(box, "_newton", newton)
    found = box._minimise(objective, box._Point(np.zeros(1), np.zeros(2), model, np.inf), 0.5, 1e9)
    first = box.PENALTY * 3.0 / 4.0
    assert [rho for rho, _ in penalties] == pytest.approx([first, first, first * 4.0, first * 4.0, first * 4.0])
    lams = np.array([lam for _, lam in penalties])
    steps = first * np.array([0.4, 0.39, 4.0 * 0.09, 4.0 * 0.02])
    np.testing.assert_allclose(lams[1:, 0], np.cumsum(steps))
    assert not lams[:, 1].any() and found.lam[0] == pytest.approx(steps.sum())


@pytest.mark.parametrize("first", [0.5, 2.0, -3.0])
def test_a_run_has_diverged_above_its_start_and_the_empty_model(first: float) -> None:
    limit = mdmm._limit(SimpleNamespace(start=SimpleNamespace(loss=1.0)), SimpleNamespace(loss=first))
    assert max(first, 1.0) < limit <= max(first, 1.0) + 1e-5


@pytest.mark.parametrize("many", ["degrees of freedom", "shift"])
def test_a_length_with_many_degrees_of_freedom_or_a_large_shift_is_normal(many: str) -> None:
    """Beyond either limit the noncentral chi-squared distribution has no accurate quantile, and is close to normal."""
    size = int(2 * NORMAL)
    V = np.eye(size) / size if many == "degrees of freedom" else np.eye(2)
    b = np.zeros(size) if many == "degrees of freedom" else np.array([60.0, 0.0])
    c1, c2 = V.trace() + b @ b, np.vdot(V, V) + 2.0 * b @ V @ b
    assert length_quantile(b, V, 0.95) == pytest.approx(c1 + 1.6448536 * np.sqrt(2.0 * c2), rel=1e-7)


@pytest.mark.parametrize("given", [True, False])
def test_only_a_given_start_that_fails_is_followed_by_the_default_one(given: bool, monkeypatch) -> None:
    Z, X = draw(80)
    problem = Problem(Z, Z[:, 0] + X[:, 0], X, "gaussian")
    starts, reach = [], solver.reach

    def failing(objective, run, theta, settings):
        starts.append(theta)
        ends = reach(objective, run, theta, settings)
        failed = len(starts) == 1
        return [e._replace(end=Iterate(*e.end)._replace(status=Status.STALLED)) for e in ends] if failed else ends

    monkeypatch.setattr(solver, "reach", failing)
    found = solver.solve(problem, start=(np.zeros(1), np.zeros((1, 4))) if given else None)
    assert [theta is None for theta in starts] == ([False, True] if given else [True])
    assert (found.status is Status.CONVERGED) is given
