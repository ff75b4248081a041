"""THEORY §5: orthogonal pre-activations do not make a ReLU evaluation model vanish; what does, and what cannot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from setsquare import tables
from setsquare.projection import GeneralizedProjector, project_out


def relu(u: np.ndarray) -> np.ndarray:
    return np.maximum(u, 0.0)


def loss(y: np.ndarray, X: np.ndarray, beta: np.ndarray, intercept: float = 0.0) -> float:
    """Squared loss of the ReLU evaluation model."""
    return float(np.sum((y - relu(intercept + X @ beta)) ** 2))


def best_gain(y: np.ndarray, X: np.ndarray, rng: np.random.Generator, n_directions: int = 200) -> float:
    """How far the ReLU evaluation model without intercept falls below its loss at beta = 0, as a share of that.

    Along a direction ``d`` the model is linear in its length, so the best length is known in closed form.
    """
    d = rng.normal(size=(X.shape[1], n_directions))
    out = relu(X @ d)
    lengths = np.maximum(y @ out, 0.0) / np.maximum((out**2).sum(0), 1e-300)
    losses = [loss(y, X, d[:, j] * lengths[j]) for j in range(n_directions)]
    return 1.0 - min(losses) / loss(y, X, np.zeros(X.shape[1]))


# ------------------------------------------------------------------------------- what was published does not hold
def test_the_counter_example() -> None:
    X, pre = np.array([[1.0], [-1.0]]), np.array([1.0, 1.0])
    assert (X.T @ pre).item() == 0.0
    np.testing.assert_array_equal(project_out(pre, X), pre)  # already orthogonal: the correction has nothing to do
    assert loss(relu(pre), X, np.array([0.0])) == 2.0
    assert loss(relu(pre), X, np.array([1.0])) == 1.0


def test_the_optimal_effect_need_not_be_unique() -> None:
    """Appendix E.3 has one optimal beta: with X = (1, 1)' each beta <= 0 switches all rows off, 0 among others."""
    X, outputs = np.ones((2, 1)), relu(np.array([-1.0, -2.0]))
    losses = [loss(outputs, X, np.array([beta])) for beta in (0.0, -0.5, -7.0, 0.1)]
    assert losses[:3] == [0.0] * 3 and losses[3] > 0.0


def test_the_sign_in_the_published_proof() -> None:
    """``ab`` is the sum of four products of positive parts, of which the two mixed ones count negatively."""
    for a, b in itertools.product([-2.0, -1.0, 1.0, 3.0], repeat=2):
        same = relu(a) * relu(b) + relu(-a) * relu(-b)
        mixed = relu(-a) * relu(b) + relu(a) * relu(-b)
        assert same - mixed == a * b
        assert (same + mixed == a * b) == (a * b > 0.0)


def test_orthogonal_pre_activations_fail_in_nearly_every_draw() -> None:
    failures = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(200, 2))
        pre = rng.normal(size=200)
        corrected = pre - X @ np.linalg.lstsq(X, pre, rcond=None)[0]  # as published, without an intercept
        assert np.abs(X.T @ corrected).max() < 1e-12
        failures += best_gain(relu(corrected), X, rng) > 1e-3
    assert failures >= 48


def test_equal_means_with_unequal_spreads_become_unequal_behind_the_relu() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat([0.0, 1.0], 500)
    X = group[:, None]
    pre = project_out(rng.normal(size=1000) * np.where(group == 1.0, 3.0, 1.0), X)
    assert abs(pre[group == 1].mean() - pre[group == 0].mean()) < 1e-14
    assert relu(pre)[group == 1].mean() - relu(pre)[group == 0].mean() > 0.3
    repaired = GeneralizedProjector.fit(pre, X, "relu").predict(pre, X)
    assert abs(repaired[group == 1].mean() - repaired[group == 0].mean()) < 1e-10
    assert repaired.min() >= 0.0 and repaired.std() > 0.1
    assert repaired.mean() == pytest.approx(relu(pre).mean(), rel=1e-12)


# ------------------------------------------------------------------------------------------------ what does hold
def draw_cells(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two factors of 3 and 2 levels coded by all their cells, and pre-activations whose spread depends on the cell."""
    rng = np.random.default_rng(seed)
    factors = np.column_stack([rng.choice(["a", "b", "c"], n), rng.choice(["u", "v"], n)])
    X = tables.learn(factors, basis="cells").apply(factors).values
    cell = X @ np.arange(1, X.shape[1] + 1)
    pre = rng.normal(size=n) * (0.5 + 0.5 * cell) + 0.3 * cell
    return pre, X, cell


def grid_minimum(y: np.ndarray, X: np.ndarray, cell: np.ndarray) -> float:
    """Smallest squared loss over a fine grid of values for each cell: a saturated model can reach any of them."""
    levels = np.unique(np.concatenate([np.linspace(0.0, 2.0 * y.max(), 2001), [y.mean()]]))
    return sum(((y[cell == c][:, None] - levels) ** 2).sum(0).min() for c in np.unique(cell))


def test_equal_cell_means_make_zero_the_global_optimum_of_the_relu_evaluation_model() -> None:
    pre, X, cell = draw_cells()
    before = relu(pre)
    after = GeneralizedProjector.fit(pre, X, "relu").predict(pre, X)
    means = [after[cell == c].mean() for c in np.unique(cell)]
    assert len(means) == 6 and np.ptp(means) < 1e-10
    assert np.ptp([before[cell == c].mean() for c in np.unique(cell)]) > 0.5
    at_zero = {name: float(np.sum((y - y.mean()) ** 2)) for name, y in (("before", before), ("after", after))}
    assert grid_minimum(after, X, cell) >= at_zero["after"] * (1.0 - 1e-12)
    assert grid_minimum(before, X, cell) < 0.99 * at_zero["before"]
    rng = np.random.default_rng(1)
    for _ in range(500):  # random points of the evaluation model itself, near and far
        beta = rng.normal(size=X.shape[1]) * 10.0 ** rng.uniform(-3, 1)
        assert loss(after, X, beta, after.mean() + rng.normal() * rng.random()) > at_zero["after"]


def test_main_effects_alone_are_not_enough_for_cells() -> None:
    """Without the interactions the cell means stay apart, and a model that knows the cells finds them."""
    pre, X, cell = draw_cells()
    main = np.column_stack([cell % 2, cell // 2 == 1, cell // 2 == 2]).astype(float)
    after = GeneralizedProjector.fit(pre, main, "relu").predict(pre, main)
    assert np.ptp([after[cell == c].mean() for c in np.unique(cell)]) > 1e-2
    assert grid_minimum(after, X, cell) < (1.0 - 1e-5) * np.sum((after - after.mean()) ** 2)


@pytest.mark.parametrize("seed", range(5))
def test_zero_is_stationary_for_the_relu_evaluation_model_with_intercept(seed: int) -> None:
    """With continuous columns too: the slopes of the loss in intercept and coefficients vanish at the mean."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 2))
    pre = X @ rng.normal(size=2) + rng.normal(size=300) * np.exp(0.5 * X[:, 0])
    D = np.column_stack([np.ones(300), X])
    for y, stationary in (
        (relu(project_out(pre, X)), False),
        (GeneralizedProjector.fit(pre, X, "relu").predict(pre, X), True),
        (project_out(relu(pre), X), True),
    ):
        gradient = -2.0 * D.T @ (y - y.mean()) / 300.0  # the intercept is positive, so every row is active
        assert (np.abs(gradient).max() < 1e-12) == stationary


def test_where_the_output_stays_positive() -> None:
    """The generalised projection stays at or above 0; projecting the output itself does not."""
    pre, X, _ = draw_cells()
    assert GeneralizedProjector.fit(pre, X, "relu").predict(pre, X).min() >= 0.0
    assert project_out(relu(pre), X).min() < 0.0


def test_one_column_without_intercept_needs_both_of_its_halves() -> None:
    """Projecting out h(x) and h(-x) leaves no direction of descent for one continuous column."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=400)
    halves = np.column_stack([relu(x), relu(-x)])
    y = relu(rng.normal(size=400) + x)
    corrected = (
        y
        - np.column_stack([np.ones(400), halves])
        @ np.linalg.lstsq(np.column_stack([np.ones(400), halves]), y, rcond=None)[0]
    )
    assert best_gain(y, x[:, None], rng) > 0.1
    assert best_gain(corrected, x[:, None], rng) < 1e-15
    np.testing.assert_allclose(project_out(y, halves) - y.mean(), corrected, atol=1e-12)


# ----------------------------------------------------------------------------------------------------- what cannot
@given(
    arrays(float, st.tuples(st.integers(2, 12), st.integers(1, 3)), elements=st.floats(-5, 5)),
    st.data(),
)
@settings(deadline=None, max_examples=100)
def test_without_intercept_no_nonnegative_output_makes_zero_optimal(X: np.ndarray, data: st.DataObject) -> None:
    """If y >= 0 is positive where x is not 0, some direction d has y'ReLU(Xd) > 0 and a short step along it helps."""
    y = data.draw(arrays(float, len(X), elements=st.floats(0, 10)))
    positive = np.flatnonzero((y > 1e-3) & (np.abs(X).max(axis=1) > 1e-3))
    assume(len(positive) > 0)
    d = X[positive[0]]  # x_i itself: its own row has ReLU(x_i'd) = |x_i|^2 > 0, all others are at least 0
    out = relu(X @ d)
    assert y @ out > 0.0
    step = (y @ out) / (out @ out)
    assert loss(y, X, step * d) < loss(y, X, np.zeros(X.shape[1]))


def test_without_intercept_outputs_are_only_safe_where_the_protected_columns_are_zero() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(100, 2)) * (np.arange(100) < 50)[:, None]
    y = relu(rng.normal(size=100))
    assert best_gain(np.where(np.arange(100) < 50, 0.0, y), X, rng) == 0.0
    assert best_gain(y, X, rng) > 0.01
