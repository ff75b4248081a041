"""Bases and projectors: ranks, names, new rows, weights, messages."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from setsquare.errors import InputError, MissingValuesError
from setsquare.families import contrasts, family
from setsquare.projection import GeneralizedProjector, Projector, Transport, isotropic, project_out, protected_basis
from setsquare.projection.controls import fit_controls


def draw(n: int = 300, p: int = 3, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * 10.0 ** np.arange(p) + 5.0
    return (X / X.std(0)) @ rng.normal(size=(p, d)) + rng.normal(size=(n, d)), X


# ------------------------------------------------------------------------------------------------------- basis
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_basis_is_centred_and_orthonormal_in_the_weights(weighted: bool, scale: float) -> None:
    _, X = draw()
    weight = np.random.default_rng(1).uniform(0.0, 5.0, len(X)) if weighted else None
    basis = protected_basis(X * scale, weight)
    Q = basis.apply(X * scale)
    w = np.full(len(X), 1.0 / len(X)) if weight is None else weight / weight.sum()
    np.testing.assert_allclose(w @ Q, 0.0, atol=1e-13)
    np.testing.assert_allclose((Q * w[:, None]).T @ Q, np.eye(3), atol=1e-12)
    Xc = X - w @ X
    back = Q @ np.linalg.lstsq(Q, Xc, rcond=None)[0]
    np.testing.assert_allclose(back / X.std(0), Xc / X.std(0), atol=1e-11)  # it spans the columns


def test_rank_of_dummies_with_all_levels_is_one_less() -> None:
    levels = np.eye(4)[np.random.default_rng(0).integers(0, 4, 200)]
    basis = protected_basis(levels, names=("a", "b", "c", "d"))
    assert (basis.rank, basis.collinear, basis.constant) == (3, ("d",), ())
    assert basis.names == ("a", "b", "c", "d")


@pytest.mark.parametrize("distance", [1e-3, 1e-6])
def test_a_nearly_collinear_column_keeps_its_direction(distance: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 500))
    X = np.column_stack([a, a + distance * b])
    basis = protected_basis(X)
    assert basis.rank == 2
    y = b + rng.normal(size=500)
    assert abs(np.corrcoef(project_out(y, X), b)[0, 1]) < 1e-5
    assert abs(np.corrcoef(y, b)[0, 1]) > 0.5


def test_a_column_that_is_collinear_up_to_rounding_has_no_direction() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 500))
    basis = protected_basis(np.column_stack([a, b, (0.1 * a + 0.7 * b) * 1e5]))
    assert basis.rank == 2 and basis.collinear == ("x2",)


def test_rounding_in_a_shifted_copy_is_no_direction() -> None:
    """A copy far from zero differs from its original by the rounding of its digits, which must not be removed too."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    X, y = np.column_stack([x, 3.0 * x - 1e8]), x + rng.normal(size=200)
    assert protected_basis(X).rank == 1
    once = project_out(y, X)
    np.testing.assert_allclose(once, project_out(y, X[:, :1]), atol=1e-9)
    np.testing.assert_allclose(project_out(once, X), once, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e9])
def test_constant_columns_are_named(value: float) -> None:
    rng = np.random.default_rng(0)
    basis = protected_basis(np.column_stack([np.full(300, value), rng.normal(size=300)]), names=("c", "x"))
    assert basis.rank == 1 and basis.constant == ("c",) and basis.dropped == ("c",)


def test_constant_protected_columns_alone_are_an_error_that_names_them() -> None:
    with pytest.raises(InputError, match="sex, race") as caught:
        protected_basis(np.ones((10, 2)), names=("sex", "race"))
    assert "constant" in str(caught.value) and "\n" not in str(caught.value)


def test_a_large_mean_costs_no_digits_that_matter() -> None:
    """A year of birth: the mean is a hundred times the spread."""
    rng = np.random.default_rng(0)
    year = 1960.0 + np.round(15.0 * rng.normal(size=1000))
    y = 0.01 * year + rng.normal(size=1000)
    assert abs(np.corrcoef(project_out(y, year[:, None]), year)[0, 1]) < 1e-14
    assert abs(np.corrcoef(y, year)[0, 1]) > 0.1


def test_many_rows_in_blocks_equal_one_least_squares_fit() -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(300_000, 2)) + 3.0, rng.normal(size=(300_000, 3))
    Y += X @ rng.normal(size=(2, 3))
    effect = np.linalg.lstsq(X - X.mean(0), Y - Y.mean(0), rcond=None)[0]
    np.testing.assert_allclose(project_out(Y, X), Y - (X - X.mean(0)) @ effect, atol=1e-11)


# --------------------------------------------------------------------------------------------------- projectors
def test_new_rows_lose_the_effects_that_were_estimated() -> None:
    Y, X = draw()
    new_Y, new_X = draw(n=50, seed=1)
    effect = np.linalg.lstsq(np.column_stack([np.ones(len(X)), X]), Y, rcond=None)[0][1:]
    expected = new_Y - (new_X - X.mean(0)) @ effect
    np.testing.assert_allclose(Projector.fit(Y, X).apply(new_Y, new_X), expected, atol=1e-11)


def test_new_rows_of_a_generalised_projection_are_shifted_by_the_fitted_effects() -> None:
    Y, X = draw()
    new_Y, new_X = draw(n=50, seed=1)
    projector = GeneralizedProjector.fit(Y, X, "sigmoid")
    shift = Y - projector.apply(Y, X)
    D, new_D = (np.column_stack([np.ones(len(x)), x]) for x in (X, new_X))
    np.testing.assert_allclose(
        new_Y - projector.apply(new_Y, new_X), new_D @ np.linalg.lstsq(D, shift, rcond=None)[0], atol=1e-10
    )


@pytest.mark.parametrize("name", [None, "sigmoid", "relu"])
def test_weights_are_repetitions(name: str | None) -> None:
    Y, X = draw()
    times = np.random.default_rng(2).integers(1, 4, len(X))
    many = [np.repeat(part, times, axis=0) for part in (Y, X)]
    if name is None:
        one, other = Projector.fit(Y, X, times.astype(float)), Projector.fit(*many)
    else:
        one, other = GeneralizedProjector.fit(Y, X, name, times.astype(float)), GeneralizedProjector.fit(*many, name)
    np.testing.assert_allclose(one.apply(Y, X), other.apply(Y, X), atol=1e-9)


@pytest.mark.parametrize("name", [None, "sigmoid", "relu"])
def test_rows_of_weight_zero_do_not_count(name: str | None) -> None:
    Y, X = draw()
    weight = (np.arange(len(X)) >= 30).astype(float)
    X[:30] *= 100.0
    if name is None:
        one, other = Projector.fit(Y, X, weight), Projector.fit(Y[30:], X[30:])
    else:
        one, other = GeneralizedProjector.fit(Y, X, name, weight), GeneralizedProjector.fit(Y[30:], X[30:], name)
    np.testing.assert_allclose(one.apply(Y[30:], X[30:]), other.apply(Y[30:], X[30:]), atol=1e-9)


@pytest.mark.parametrize("make", [Projector.fit, lambda Y, X: GeneralizedProjector.fit(Y, X, "tanh")])
def test_projectors_survive_pickling(make) -> None:
    Y, X = draw()
    projector = make(Y, X)
    again = pickle.loads(pickle.dumps(projector))
    np.testing.assert_array_equal(again.apply(Y, X), projector.apply(Y, X))


@pytest.mark.parametrize(
    "call",
    [
        lambda Y, X: Projector.fit(Y[:-1], X),
        lambda Y, X: Projector.fit(Y, X).apply(Y[:-1], X),
        lambda Y, X: GeneralizedProjector.fit(Y[:-1], X, "relu"),
        lambda Y, X: project_out(Y, X[:-1]),
    ],
)
def test_rows_that_do_not_match_are_one_clear_sentence(call) -> None:
    Y, X = draw()
    with pytest.raises(InputError, match="rows") as caught:
        call(Y, X)
    assert "299" in str(caught.value) and "300" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [Projector.fit, lambda Y, X: GeneralizedProjector.fit(Y, X, "sigmoid")])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["Y", "X"])
def test_missing_and_infinite_values_are_refused(call, bad: float, where: str) -> None:
    """A NaN must not turn the whole output into NaN without a word."""
    Y, X = draw()
    (Y if where == "Y" else X)[7, 1] = bad
    with pytest.raises(InputError):
        call(Y, X)


def test_too_few_iterations_are_reported_and_not_hidden() -> None:
    Y, X = draw()
    hasty = GeneralizedProjector.fit(Y, X, "exp", max_iter=1)
    assert hasty.n_iter == 1 and not hasty.converged.any() and hasty.residual.min() > 1e-6


def test_the_activation_may_be_that_of_a_family() -> None:
    Y, X = draw()
    by_family = GeneralizedProjector.fit(Y, X, "poisson").predict(Y, X)
    np.testing.assert_array_equal(by_family, GeneralizedProjector.fit(Y, X, "exp").predict(Y, X))
    assert GeneralizedProjector.fit(Y, X, family("binomial").activation).activation.name == "sigmoid"


def test_the_log_binomial_activation_keeps_its_range() -> None:
    """Values of exp above 1 are no probabilities; where no correction stays below, it must say so."""
    rng = np.random.default_rng(0)
    X = (rng.random((500, 1)) < 0.5).astype(float)
    eta = -np.abs(rng.normal(size=500)) * np.where(X[:, 0] == 1.0, 0.05, 3.0) - 1e-3
    projector = GeneralizedProjector.fit(eta, X, family("binomial", "log").activation)
    out = projector.predict(eta, X)
    assert out.max() <= 1.0 or not projector.converged.all()


def test_input_is_not_changed() -> None:
    Y, X = draw()
    before = Y.copy(), X.copy()
    project_out(Y, X)
    GeneralizedProjector.fit(Y, X, "relu").predict(Y, X)
    np.testing.assert_array_equal(Y, before[0])
    np.testing.assert_array_equal(X, before[1])


@pytest.mark.parametrize("value", [0.1, 1.0 / 3.0, 1e9 + 0.1])
def test_rounding_in_the_mean_of_a_long_constant_column_is_no_variation(value: float) -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([np.full(40_000, value), rng.normal(size=40_000)])
    basis = protected_basis(X, names=("same", "age"))
    assert basis.constant == ("same",) and basis.rank == 1


def test_the_residual_of_a_softmax_is_its_largest_remaining_correlation() -> None:
    eta, X = draw(n=200, d=3)
    softmax, weight = family("multinomial").activation, np.random.default_rng(1).uniform(0.5, 2.0, 200)
    few = GeneralizedProjector.fit(eta, X, softmax, weight, max_iter=1)
    p, w, C = few.predict(eta, X), weight / weight.sum(), contrasts(3)
    Q = few.basis.apply(X)
    target, mean = w @ softmax(eta), p @ C
    gap = np.abs(np.vstack([w @ mean - target @ C, (Q * w[:, None]).T @ mean])).max()
    spread = np.sqrt((w @ (mean - target @ C) ** 2).sum())
    np.testing.assert_allclose(few.residual, gap / spread, rtol=1e-10)
    assert few.residual.shape == (3,) and not few.converged.any() and few.n_iter == 1
    found = GeneralizedProjector.fit(eta, X, softmax, weight)
    assert found.converged.all() and found.residual.max() < 1e-9
    np.testing.assert_allclose(w @ found.predict(eta, X), target, atol=1e-12)


def test_a_projection_with_a_target_has_that_mean() -> None:
    eta, X = draw(n=200, d=2)
    found = GeneralizedProjector.fit(eta, X, "sigmoid", target=np.array([0.2, 0.7]))
    np.testing.assert_allclose(found.predict(eta, X).mean(axis=0), [0.2, 0.7], atol=1e-10)
    assert found.apply(eta, X).shape == eta.shape
    with pytest.raises(InputError, match="where exp has no finite value"):
        GeneralizedProjector.fit(eta + 800.0, X, "exp")
    with pytest.raises(MissingValuesError, match="pre-activations have"):
        GeneralizedProjector.fit(np.where(eta == eta.max(), np.nan, eta), X, "sigmoid")
    weight = np.where(np.arange(200) < 100, 1.0, 0.0)  # rows without weight may be anything
    wild = eta.copy()
    wild[150] = 1e4
    half = GeneralizedProjector.fit(wild, X, "exp", weight)
    np.testing.assert_allclose(half.coefficients, GeneralizedProjector.fit(eta[:100], X[:100], "exp").coefficients)


def test_one_control_is_taken_out_and_constant_ones_are_not_there() -> None:
    rng = np.random.default_rng(0)
    C = rng.normal(size=(100, 1))
    X = C + rng.normal(size=(100, 1))
    found = fit_controls(X, C, None, ("age",))
    assert found.transform.shape == (1, 1) and np.abs(C.T @ found.residual(X, C)).max() < 1e-12
    constant = np.column_stack([np.zeros(100), np.ones(100)])
    none = fit_controls(X, constant, None, ("age",))
    np.testing.assert_allclose(none.residual(X, constant), X - X.mean())


def test_conjugate_gradients_solve_the_system_of_a_step() -> None:
    rng = np.random.default_rng(0)
    H, share = rng.normal(size=(2, 6, 3)), np.array([1.0, 0.25, 1.0])
    target = rng.normal(size=(2, 3, 3))
    target = 1e-3 * (target + np.swapaxes(target, 1, 2))
    found = isotropic._solve(H, share, target, 0.1)
    step = 2.0 * np.einsum("pdk,pkl->dl", H, found) * share
    half = np.swapaxes(H, 1, 2) @ step
    left = half + np.swapaxes(half, 1, 2) + 0.1 * found - target
    assert np.linalg.norm(left) < 1e-3 * np.linalg.norm(target)


def test_cells_that_are_shrunk_altogether_share_one_covariance() -> None:
    rng = np.random.default_rng(0)
    X = np.repeat([[0.0], [1.0]], 200, axis=0)
    Z = rng.normal(size=(400, 2)) * (1.0 + 2.0 * X)
    spreads = []
    for shrinkage in (0.0, 1.0):
        moved = Transport.fit(Z, X, shrinkage=shrinkage).apply(Z, X)
        spreads.append(moved[200:].std(axis=0) / moved[:200].std(axis=0))
    np.testing.assert_allclose(spreads[0], 1.0, atol=1e-6)  # exactly alike
    assert (spreads[1] > 2.5).all()  # only the means are moved
