"""Values at the ends of float64, and rows that do not count: a right answer or one plain sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from setsquare import OrthogonalGLMClassifier, OrthogonalGLMRegressor, Stream
from setsquare.errors import InputError, MissingValuesError, NotOrthogonalError
from setsquare.glm.bootstrap import _deviation
from setsquare.glm.freedom import check_varies
from setsquare.glm.influence import _largest
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Status
from setsquare.glm.solver import fit_path, solve
from setsquare.projection import GeneralizedProjector, protected_basis
from setsquare.rows.blocks import mean_weight

SOLVERS = ("sqp", "large")


def draw(seed: int = 4, n: int = 500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 1))
    Z = rng.normal(size=(n, 4)) + 0.5 * X
    return Z, rng.poisson(np.exp(0.4 * Z[:, 0] - 0.3)).astype(float), X


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", ["poisson", "gamma", "negative_binomial", "binomial"])
def test_rows_of_weight_zero_do_not_steer_a_fit(name: str, solver: str) -> None:
    Z, y, X = draw()
    y = {"gamma": y + 0.5, "binomial": np.minimum(y, 1.0)}.get(name, y)
    weight = np.ones(len(y))
    weight[:5], Z[:5] = 0.0, 1e5 * np.random.default_rng(0).normal(size=(5, 4))
    found = solve(Problem(Z, y, X, name, weight), solver)
    expected = solve(Problem(Z[5:], y[5:], X[5:], name), solver)
    np.testing.assert_allclose(found.coef, expected.coef, rtol=1e-7, atol=1e-9)
    assert found.status is expected.status and found.certificate.n_rows == 495


def test_rows_of_weight_zero_do_not_steer_a_stream_or_sparse_rows() -> None:
    Z, y, X = draw()
    weight = np.ones(len(y))
    weight[[0, 1, 499]], Z[[0, 1, 499]] = 0.0, 1e6
    thin = solve(Problem(sparse.csr_array(Z), y, X, "poisson", weight), "sqp")
    table = pd.DataFrame(Z, columns=list("abcd")).assign(g=X[:, 0], y=y, w=weight)
    parts = Stream([table.iloc[:2], table.iloc[2:300], table.iloc[300:]])  # the first has no row that counts
    found = OrthogonalGLMRegressor("poisson", protected="g").fit(parts, y="y", sample_weight="w")
    rows = weight > 0.0
    expected = solve(Problem(Z[rows], y[rows], X[rows], "poisson"))
    np.testing.assert_allclose(thin.coef, expected.coef, rtol=1e-6)
    np.testing.assert_allclose(found.coef_, expected.coef[0], rtol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("factor", "sentence"), [(1e308, "squares exceed"), (1e170, "squares exceed"), (1e-170, "vanish")]
)
def test_features_whose_squares_leave_float64_are_named(factor: float, sentence: str, solver: str) -> None:
    Z, y, X = draw()
    Z[:, 1] = factor * np.tanh(Z[:, 1])
    with pytest.raises(InputError, match=rf"Feature\(s\) wide have .*{sentence}.*rescale"):
        solve(Problem(Z, y, X, "poisson", feature_names=("a", "wide", "c", "d")), solver)


def test_a_stream_names_them_too() -> None:
    Z, y, X = draw()
    Z[3, 2] = 1e200
    table = pd.DataFrame(Z, columns=list("abcd")).assign(g=X[:, 0], y=y)
    with pytest.raises(InputError, match=r"Feature\(s\) c have values so large"):
        OrthogonalGLMRegressor("poisson", protected="g").fit(Stream([table]), y="y")


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_offset_beyond_the_exponential_is_a_plain_error_or_no_matter(solver: str) -> None:
    Z, y, X = draw()
    offset = np.zeros(len(y))
    everywhere = solve(Problem(Z, y, X, "poisson", offset=offset + 800.0), solver)
    np.testing.assert_allclose(everywhere.coef, solve(Problem(Z, y, X, "poisson"), solver).coef, rtol=1e-6, atol=1e-9)
    everywhere = solve(Problem(Z, y, X, "poisson", offset=offset - 900.0), solver)
    assert everywhere.certificate.is_orthogonal and everywhere.certificate.is_optimal
    offset[0] = 800.0
    with pytest.raises(NotOrthogonalError, match="With this offset"):
        OrthogonalGLMRegressor("poisson", solver=solver).fit(Z, y, protected=X, offset=offset)


def test_a_classifier_is_refused_an_offset_that_leaves_no_solution() -> None:
    g, a = np.tile([0.0, 1.0], 200), np.tile([0.0, 0.0, 1.0, 1.0], 100)
    b = np.tile(np.repeat([0.0, 1.0], 4), 50)
    y = (np.random.default_rng(0).random(400) < 0.3).astype(int)
    with pytest.raises(NotOrthogonalError, match="With this offset"):
        OrthogonalGLMClassifier().fit(
            np.column_stack([a, b]), y, protected=g, offset=np.column_stack([0.0 * g, g])[:, 1]
        )


def test_steps_of_a_path_that_overflow_are_rejected_without_a_warning() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 1))
    Z = X + 100.0 * rng.standard_cauchy(size=(60, 3))
    y = rng.exponential(np.exp(0.3 * X[:, 0])) + 0.1
    y[0] = 1e6
    orthogonal, half = fit_path(Problem(Z, y, X, "gamma"), [0.0, 0.5]).points
    assert orthogonal.share < 1e-8 and half.share == pytest.approx(0.5)
    assert {orthogonal.end.status, half.end.status} == {Status.CONVERGED}
    assert half.end.model.loss < orthogonal.end.model.loss


@pytest.mark.parametrize("solver", SOLVERS)
def test_weights_of_any_size_count_by_their_ratio(solver: str) -> None:
    Z, y, X = draw()
    found = solve(Problem(Z, y, X, "poisson", np.full(len(y), 1e308)), solver)
    np.testing.assert_allclose(found.coef, solve(Problem(Z, y, X, "poisson"), solver).coef, rtol=1e-8)
    assert mean_weight(3, np.array([1e308, 1e308, 0.0])).tolist() == [0.5, 0.5, 0.0]
    lone = np.ones(len(y))
    lone[0] = 1e308
    with pytest.raises(InputError, match=r"One sample weight \(1e\+308\) exceeds all others.*check the weights"):
        Problem(Z, y, X, "poisson", lone)


def test_streamed_weights_that_add_up_beyond_float64_are_refused() -> None:
    Z, y, X = draw()
    table = pd.DataFrame(Z, columns=list("abcd")).assign(g=X[:, 0], y=y, w=1e308)
    with pytest.raises(InputError, match="divide them by the largest"):
        OrthogonalGLMRegressor("poisson", protected="g").fit(Stream([table]), y="y", sample_weight="w")
    assert OutcomeSummary.of(y).weight == len(y)


def test_outcomes_and_protected_columns_whose_squares_overflow_are_refused() -> None:
    Z, y, X = draw()
    with pytest.raises(InputError, match=r"outcome has values as large as .*e\+307.*rescale"):
        Problem(Z, 1e307 * y, X, "poisson")
    with pytest.raises(MissingValuesError, match=r"x0 .*squares exceed float64.*rescale"):
        solve(Problem(Z, y, 1e200 * X, "poisson"))


@pytest.mark.parametrize("level", [0.0, 360.0, 450.0, 600.0, 704.0, -400.0, -600.0])
def test_a_generalised_projection_of_exponentials_is_the_same_at_any_level(level: float) -> None:
    """Squares of what is beyond 1e154 are infinite, and a spread of infinity makes any covariance look small."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 2))
    eta = X[:, 0] + 0.5 * rng.normal(size=300)
    found = GeneralizedProjector.fit(eta + level, X, "exp")
    assert found.converged.all() and found.n_iter > 2
    mu = np.exp(found.apply(eta + level, X) - level)
    assert max(abs(np.corrcoef(mu, x)[0, 1]) for x in X.T) < 1e-10
    np.testing.assert_allclose(found.coefficients, GeneralizedProjector.fit(eta, X, "exp").coefficients, atol=1e-9)


def test_a_generalised_projection_without_a_finite_output_is_refused() -> None:
    X = np.arange(10.0)[:, None]
    with pytest.raises(
        InputError, match=r"range from 800 to 809, where exp has no finite value or decreases: subtract"
    ):
        GeneralizedProjector.fit(800.0 + X[:, 0], X, "exp")


def test_a_generalised_projection_leaves_out_rows_of_weight_zero() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 1))
    eta, weight = X[:, 0] + rng.normal(size=200), np.ones(200)
    eta[:3], weight[:3] = 2000.0, 0.0
    found = GeneralizedProjector.fit(eta, X, "exp", weight)
    assert found.converged.all()
    np.testing.assert_allclose(
        found.coefficients, GeneralizedProjector.fit(eta[3:], X[3:], "exp").coefficients, rtol=1e-9
    )


def test_refits_that_never_change_or_are_not_known_have_no_error_of_their_deviation() -> None:
    drawn = np.array([[2.0, 1.0, np.nan], [2.0, 3.0, np.nan], [2.0, np.nan, np.nan], [2.0, 5.0, 1.0]])
    deviation, error = _deviation(drawn)
    np.testing.assert_allclose(deviation, [0.0, 2.0, np.nan])
    # The kurtosis of three equidistant numbers, relative to the variance with one degree of freedom fewer, is 2/3.
    np.testing.assert_allclose(error, [np.nan, 0.0, np.nan])


def test_rows_of_an_influence_beyond_single_precision_come_first() -> None:
    influence = np.linspace(0.0, 1.0, 40)
    influence[[7, 9]] = 1e200, 1e39
    assert _largest(influence)[:3].tolist() == [7, 9, 39]


def test_outcomes_whose_squares_leave_float64_are_told_apart_from_others_when_parts_are_merged() -> None:
    near, far = (OutcomeSummary.of(np.array([[0.0], [1.0]]) * size, np.ones(2)) for size in (1.0, 1e200))
    for both in (near.merge(far), far.merge(near), far.merge(far)):
        assert not np.isfinite(both.scatter) and both.n_rows == 4


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_fit_is_constant_relative_to_the_outcome(scale: float) -> None:
    basis = protected_basis(np.random.default_rng(0).normal(size=(30, 2)))
    for rank, spread in ((3, 0.0), (2, 2e-6), (1, 1e-5)):
        check_varies(basis, rank, spread * scale, scale)
    check_varies(None, 1, 0.0, scale)
    with pytest.raises(InputError, match="Only a constant prediction"):
        check_varies(basis, 2, 0.9e-6 * scale, scale)


def test_a_feature_that_vanishes_is_named_beside_one_that_is_constant() -> None:
    Z, y, X = draw()
    Z[:, 0], Z[:, 1] = 0.0, 1e-170 * Z[:, 1]
    with pytest.raises(InputError, match=r"Feature\(s\) b have values so small"):
        solve(Problem(Z, y, X, "poisson", feature_names=("a", "b", "c", "d")))
