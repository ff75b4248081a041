"""The ReLU evaluation model: invariances, bounds, methods and bad input."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from setsquare.auditing.evaluations import relu as relu_module
from setsquare.auditing.evaluations.relu import fit_relu
from setsquare.auditing.evaluations.relu_cells import MAX_CELLS, branch_and_bound
from setsquare.auditing.evaluations.relu_descent import Cells, descend, line_search, multi_start, one_column
from setsquare.errors import InputError
from setsquare.rows.parallel import single_threaded_blas


def relu(u: np.ndarray) -> np.ndarray:
    return np.maximum(u, 0.0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_threaded_blas():
        yield


def draw_cells(seed: int, G: int = 12, m: int = 3, intercept: bool = True, shift: float = 0.0) -> Cells:
    """Cells with an orthonormal design and means of either sign."""
    rng = np.random.default_rng(seed)
    w = rng.exponential(size=G) + 0.1
    w /= w.sum()
    A = rng.normal(size=(G, m))
    A[:, 0] = 1.0 if intercept else A[:, 0]
    D = np.linalg.qr(A * np.sqrt(w)[:, None])[0] / np.sqrt(w)[:, None]
    D *= np.sign(D[0])  # the intercept's column is 1
    return Cells(D, rng.normal(size=G) + shift, w, np.eye(m - intercept), intercept)


# ------------------------------------------------------------------------------------------------------ the parts
@pytest.mark.parametrize("intercept", [True, False])
def test_three_ways_agree_in_one_column(intercept: bool) -> None:
    reached = []
    for seed in range(30):
        cells = draw_cells(seed, 8, 1 + intercept, intercept, shift=0.5)
        exact = min(map(cells.loss, one_column(cells.D[:, -1], cells.y, cells.w, intercept)))
        tree = branch_and_bound(cells, np.zeros(1 + intercept))
        many, _ = multi_start(cells, np.zeros(1 + intercept), np.random.default_rng(0), 10)
        reached.append(tree.exact)
        assert tree.bound <= exact * (1.0 + 1e-9)
        np.testing.assert_allclose([cells.loss(tree.theta), cells.loss(many)], exact, rtol=1e-9)
    assert np.mean(reached) > 0.9


@pytest.mark.parametrize("distance", [1e-2, 1e-5])
def test_the_bound_holds_for_steep_units(distance: float) -> None:
    """Cells that nearly coincide, with different means: the optimum has large coefficients."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=5)
        x = np.append(x, x[:3] + distance * rng.normal(size=3))
        D = np.column_stack([np.ones(8), (x - x.mean()) / x.std()])
        cells = Cells(D, relu(rng.normal(size=8)), np.full(8, 1 / 8), np.eye(1), True)
        exact = min(map(cells.loss, one_column(D[:, 1], cells.y, cells.w)))
        tree = branch_and_bound(cells, np.zeros(2))
        assert tree.exact and tree.bound == pytest.approx(exact, rel=1e-9, abs=1e-12)
        assert branch_and_bound(cells, np.zeros(2), 3).bound <= exact * (1.0 + 1e-12) + 1e-12


def test_each_sign_of_one_column_is_the_best_with_that_sign() -> None:
    rng = np.random.default_rng(0)
    slopes = np.abs(rng.normal(size=2000)) * 2.0
    for _ in range(20):
        x, y, w = rng.normal(size=9), rng.normal(size=9), rng.exponential(size=9)
        for ab, sign in zip(one_column(x, y, w), (1.0, -1.0), strict=True):
            assert sign * ab[1] >= 0.0
            others = w @ (y[:, None] - relu(rng.normal(size=2000) + sign * slopes * x[:, None])) ** 2
            assert others.min() >= (1.0 - 1e-12) * (w @ (y - relu(ab[0] + ab[1] * x)) ** 2)


def test_a_line_search_is_global() -> None:
    rng = np.random.default_rng(1)
    t = np.linspace(0.0, 20.0, 20001)
    for _ in range(50):
        u, v, y, w = rng.normal(size=(4, 7))
        w = w**2
        u[0] = 0.0  # a row at its hinge
        found, row = line_search(u, v, y, w)
        values = w @ (y[:, None] - relu(u[:, None] + v[:, None] * t)) ** 2
        best = w @ (y - relu(u + found * v)) ** 2
        assert best <= values.min() + 1e-12
        assert row == -1 or u[row] + found * v[row] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_descents_from_many_directions_reach_the_optimum_over_cells(shift: float) -> None:
    reached, closed = [], []
    for seed in range(12):
        cells = draw_cells(seed, shift=shift)
        tree = branch_and_bound(cells, np.zeros(3))
        many, _ = multi_start(cells, np.zeros(3), np.random.default_rng(seed), 20)
        closed.append(tree.exact)
        assert cells.loss(many) >= (cells.loss(tree.theta) if tree.exact else tree.bound) * (1.0 - 1e-9)
        reached.append(cells.loss(many) <= cells.loss(tree.theta) * (1.0 + 1e-9))
    assert np.mean(reached) > 0.9
    assert np.mean(closed) > 0.9  # not all: rounding of some BLAS kernels (SkylakeX) ends the search of one draw early


@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_a_descent_ends_at_a_local_optimum(shift: float) -> None:
    """Also at the kinks of negative outcomes, where the loss is not smooth: nothing nearby is better."""
    for seed in range(20):
        cells = draw_cells(seed, 200, 4, shift=shift)
        rng = np.random.default_rng(seed)
        start = rng.normal(size=4)
        end = descend(cells, start)
        assert cells.loss(end) < cells.loss(start)
        for scale in (1e-4, 1e-6):
            near = min(cells.loss(end + scale * rng.normal(size=4)) for _ in range(50))
            assert near >= cells.loss(end) * (1.0 - 1e-10)


def test_a_tree_that_is_cut_short_has_a_bound_that_holds() -> None:
    for seed in range(5):
        cells = draw_cells(seed, 14, 4)
        full = branch_and_bound(cells, branch_and_bound(cells, np.zeros(4)).theta)
        assert full.exact
        bounds = []
        for nodes in (1, full.n_nodes // 2, full.n_nodes - 1):
            tree = branch_and_bound(cells, full.theta, nodes)
            assert not tree.exact and tree.n_nodes == nodes
            bounds.append(tree.bound)
        assert bounds == sorted(bounds) and bounds[0] < bounds[-1] <= cells.loss(full.theta)


# --------------------------------------------------------------------------------------------------- invariances
def sample(seed: int = 0, n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, size=(n, 2)).astype(float)
    return relu(X @ [0.8, -0.6] + rng.normal(size=n)), X, rng.integers(0, 4, size=n).astype(float)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("p", [1, 2])
def test_weights_are_repetitions_and_scales_do_not_matter(p: int, intercept: bool) -> None:
    y, X, w = sample()
    X = X[:, :p]
    options = {"intercept": intercept, "rng": np.random.default_rng(0)}
    fit = fit_relu(y, X, weight=w, **options)
    times = w.astype(int)
    repeated = fit_relu(np.repeat(y, times), np.repeat(X, times, axis=0), **options)
    scaled = fit_relu(1e3 * y, X * [1e-6, 1e4][:p], weight=7.0 * w, **options)
    assert 0.01 < fit.gain < 1.0 and fit.exact
    assert repeated.gain == pytest.approx(fit.gain, rel=1e-10) and scaled.gain == pytest.approx(fit.gain, rel=1e-9)
    np.testing.assert_allclose(repeated.coef, fit.coef, rtol=1e-6)
    np.testing.assert_allclose(scaled.coef * [1e-6, 1e4][:p] / 1e3, fit.coef, rtol=1e-6)


def test_collinear_and_constant_columns_add_nothing() -> None:
    y, X, _ = sample()
    more = np.column_stack([X, X[:, 0] - X[:, 1], np.full(len(X), 3.0)])
    one, two = (fit_relu(y, columns, rng=np.random.default_rng(0)) for columns in (X, more))
    assert two.loss == pytest.approx(one.loss, rel=1e-10)
    copies = fit_relu(y, X[:, [0, 0]], intercept=False, rng=np.random.default_rng(0))
    assert copies.method == "one column"
    assert copies.loss == pytest.approx(fit_relu(y, X[:, :1], intercept=False, rng=np.random.default_rng(0)).loss)


def test_far_from_zero_it_is_the_linear_model() -> None:
    """Predictions of a million with a spread of one: no digits are lost, and the columns' own offsets do no harm."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=500) + 1e4
    y = 1e6 + 0.5 * x + rng.normal(size=500)
    fit = fit_relu(y, x[:, None], rng=rng)
    assert fit.gain == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2, rel=1e-8)
    assert fit.coef[0] == pytest.approx(np.polyfit(x - 1e4, y - 1e6, 1)[0], rel=1e-8)


def test_constant_predictions_leak_nothing() -> None:
    rng = np.random.default_rng(0)
    for y in (np.full(50, 0.1), np.zeros(50), np.full(50, -2.0)):
        fit = fit_relu(y, rng.normal(size=(50, 2)), rng=rng)
        assert fit.gain == fit.gain_bound == 0.0 and fit.exact and not fit.coef.any()


# ------------------------------------------------------------------------------------------------------ the methods
def test_saturated_cells_take_the_positive_part_of_their_means() -> None:
    y, X, _ = sample()
    cell = X @ [3, 1]
    y = y - 0.8
    dummies = (cell[:, None] == np.unique(cell)[1:]).astype(float)
    fit = fit_relu(y, dummies, rng=np.random.default_rng(0))
    means = np.array([y[cell == c].mean() for c in cell])
    assert (fit.method, fit.n_patterns, fit.exact) == ("cells", 1, True) and means.min() < 0.0
    assert fit.loss == pytest.approx(np.mean((y - relu(means)) ** 2), rel=1e-12)


@pytest.mark.parametrize("intercept", [True, False])
def test_all_patterns_of_one_column_are_solved(intercept: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=9), rng.normal(size=9) + 1.0
    ends = np.sort(x)
    hinges = np.concatenate([[ends[0] - 1.0], 0.5 * (ends[1:] + ends[:-1]), [ends[-1] + 1.0]]) if intercept else [0.0]
    patterns = {tuple(sign * (x - at) > 0.0) for at in hinges for sign in (1.0, -1.0)}
    fit = fit_relu(y, x[:, None], intercept=intercept, rng=rng)
    assert (fit.method, fit.exact, fit.n_patterns) == ("one column", True, len(patterns))


def test_two_continuous_columns_are_found_again() -> None:
    """Built from a known unit; the bound is what nobody can explain, here the squares of negative predictions."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    noise = 1e-3 * rng.normal(size=2000)
    y = relu(0.5 + X @ [1.0, -2.0]) + noise
    fit = fit_relu(y, X, rng=rng)
    assert (fit.method, fit.exact, len(y) > MAX_CELLS) == ("multi-start", False, True)
    np.testing.assert_allclose([fit.intercept, *fit.coef], [0.5, 1.0, -2.0], atol=1e-3)
    assert fit.gain > 0.999 and fit.loss_bound == pytest.approx(np.mean(np.minimum(y, 0.0) ** 2))
    assert fit.loss <= np.mean(noise**2) and fit.gain_bound > fit.gain


def test_running_out_of_nodes_leaves_an_honest_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relu_module, "branch_and_bound", partial(branch_and_bound, max_nodes=40))
    rng = np.random.default_rng(0)
    X = np.array(list(itertools.product([0.0, 1.0], repeat=6)))
    fit = fit_relu(relu(rng.normal(size=64)), X, rng=rng)
    assert (fit.method, fit.exact) == ("multi-start", False)
    assert 0.0 < fit.loss_bound < fit.loss < fit.loss_null and fit.gain < fit.gain_bound < 1.0


def test_the_same_generator_gives_the_same_record() -> None:
    y, X, _ = sample()
    first, second = (fit_relu(y, X, rng=np.random.default_rng(5)) for _ in range(2))
    assert first.loss == second.loss and np.array_equal(first.coef, second.coef)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.loss = 0.0  # type: ignore[misc]


# -------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.ones(3)}, "for the same rows"),
        ({"X": np.ones(60)}, "for the same rows"),
        ({"y": np.full(60, np.nan)}, "missing .* or infinite"),
        ({"weight": -np.ones(60)}, "Sample weights must be"),
        ({"weight": np.zeros(60)}, "Sample weights must contain"),
        ({"weight": np.ones(3)}, "one value per row"),
        ({"X": np.ones((60, 1))}, "constant"),
        ({"X": np.zeros((60, 2)), "intercept": False}, "is zero"),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    y, X, _ = sample()
    with pytest.raises(InputError, match=message):
        fit_relu(**{"y": y, "X": X, "rng": np.random.default_rng(0), **change})  # type: ignore[arg-type]
