"""Solvers: agreement with references, invariances, statuses, certificates."""

from __future__ import annotations

import json
import warnings
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
import statsmodels.api as sm
from scipy import sparse
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

import setsquare as sq
from setsquare.errors import InputError
from setsquare.families import Family, family
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Solution, Status, solve

NAMES = ("binomial", "poisson", "multinomial")


def eta_of(solution: Solution, Z: np.ndarray) -> np.ndarray:
    return np.asarray(solution.intercept + Z @ solution.coef.T)


def reference(glm: Family):
    links, log = sm.families.links, glm.link == "log"
    return {
        "gaussian": lambda: sm.families.Gaussian(links.Log() if log else links.Identity()),
        "binomial": lambda: sm.families.Binomial(links.Log() if log else links.Logit()),
        "poisson": sm.families.Poisson,
        "gamma": lambda: sm.families.Gamma(links.Log() if log else links.InversePower()),
        "tweedie": lambda: sm.families.Tweedie(links.Log() if log else links.Power(-0.5), var_power=1.5),
        "negative_binomial": lambda: sm.families.NegativeBinomial(
            links.Log() if log else links.NegativeBinomial(0.5), alpha=0.5
        ),
    }[glm.name]()


# --------------------------------------------------------------------------------- without a constraint: references
@pytest.mark.parametrize("extra", ["plain", "weight", "offset"])
def test_without_protected_columns_the_fit_is_that_of_statsmodels(glm: Family, extra: str, draw) -> None:
    Z, y, _ = draw(glm)
    rng = np.random.default_rng(1)
    weight = rng.uniform(0.5, 2.0, len(y)) if extra == "weight" else None
    offset = -0.2 * rng.random(len(y)) if extra == "offset" else None
    ours = solve(Problem(Z, y, family=glm, weight=weight, offset=offset), tol=1e-12)
    assert ours.status is Status.CONVERGED and ours.certificate.is_optimal
    D, theirs = sm.add_constant(Z), reference(glm)
    mu = glm.activation(eta_of(ours, Z)[:, 0] + (0.0 if offset is None else offset))
    score = D.T @ ((mu - y) / theirs.variance(mu) / theirs.link.deriv(mu) * (1.0 if weight is None else weight))
    np.testing.assert_allclose(score / len(y), 0.0, atol=1e-10)
    if glm.activation.domain[1] < np.inf and (glm.name in ("gamma", "binomial") or extra == "offset"):
        return  # statsmodels leaves the domain here, or has the other sign of the linear predictor: the score must do
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some canonical links leave the domain, statsmodels remarks
        model = sm.GLM(y, D, theirs, var_weights=weight, offset=offset)
        fit = model.fit(tol=1e-13, maxiter=300, tol_criterion="params")
    np.testing.assert_allclose(mu, np.asarray(fit.fittedvalues), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("protected", [False, True], ids=["free", "constrained"])
def test_a_solution_that_converged_meets_the_tolerance(glm: Family, protected: bool, draw) -> None:
    """``tol`` is documented as the relative gradient of the Lagrangian at which a solution counts as optimal."""
    Z, y, X = draw(glm)
    found = solve(Problem(Z, y, X if protected else None, family=glm), tol=1e-8)
    assert found.status is Status.CONVERGED
    assert found.certificate.kkt_residual <= 1e-8


@pytest.mark.parametrize("classes", [3, 4])
def test_without_protected_columns_several_classes_are_those_of_statsmodels(classes: int, draw) -> None:
    Z, y, _ = draw(family("multinomial"), classes=classes)
    fit = sm.MNLogit(y, sm.add_constant(Z)).fit(method="newton", disp=0, tol=1e-14)
    ours = solve(Problem(Z, y, family="multinomial"), tol=1e-12)
    raw = np.column_stack([ours.intercept, ours.coef])
    np.testing.assert_allclose((raw[1:] - raw[0]).T, fit.params, atol=1e-8)
    np.testing.assert_allclose(raw.sum(axis=0), 0.0, atol=1e-12)
    assert ours.certificate.loss == pytest.approx(-fit.llf / len(y), rel=1e-12)


@pytest.mark.parametrize("l2", [1e-3, 0.1, 10.0])
def test_the_ridge_of_least_squares_is_that_of_sklearn(l2: float, draw) -> None:
    Z, y, _ = draw(family("gaussian"))
    theirs = Ridge(alpha=len(y) * l2, tol=1e-14, solver="cholesky").fit(Z, y)
    ours = solve(Problem(Z, y, l2=l2))
    np.testing.assert_allclose(ours.coef[0], theirs.coef_, atol=1e-11)
    np.testing.assert_allclose(ours.intercept, theirs.intercept_, atol=1e-11)


@pytest.mark.parametrize("l2", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("name", ["binomial", "multinomial"])
def test_the_ridge_of_logistic_regression_is_that_of_sklearn(name: str, l2: float, draw) -> None:
    Z, y, _ = draw(family(name))
    theirs = LogisticRegression(C=1.0 / (len(y) * l2), tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(Z, y)
    ours = solve(Problem(Z, y, family=name, l2=l2), tol=1e-12)
    np.testing.assert_allclose(ours.coef, theirs.coef_, atol=1e-7)
    np.testing.assert_allclose(ours.intercept, theirs.intercept_, atol=1e-7)


def test_the_ridge_of_counts_is_that_of_sklearn_with_weights(draw) -> None:
    Z, y, _ = draw(family("poisson"))
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    theirs = PoissonRegressor(alpha=0.2, tol=1e-12, solver="newton-cholesky").fit(Z, y, sample_weight=weight)
    ours = solve(Problem(Z, y, family="poisson", l2=0.2, weight=weight), tol=1e-12)
    np.testing.assert_allclose(ours.coef[0], theirs.coef_, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_a_ridge_shrinks_and_keeps_the_constraint(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    found = [solve(Problem(Z, y, X, family=name, l2=l2)) for l2 in (0.0, 1e-2, 0.1, 1.0, 1e3)]
    sizes = [np.linalg.norm(s.coef) for s in found]
    assert all(a > b for a, b in pairwise(sizes)) and sizes[-1] < 1e-2 * sizes[0]
    assert all(s.certificate.is_orthogonal and s.certificate.is_optimal for s in found)


# ------------------------------------------------------------------------------------------------------ invariances
@pytest.mark.parametrize("protected", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("name", ["gaussian", *NAMES])
@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_the_scale_of_a_feature_does_not_matter(name: str, factor: float, protected: bool, draw) -> None:
    Z, y, X = draw(family(name))
    scaled = Z * np.array([1.0, factor, 1.0, 1.0, 1.0, 1.0])
    a, b = (solve(Problem(features, y, X if protected else None, family=name)) for features in (Z, scaled))
    np.testing.assert_allclose(eta_of(b, scaled), eta_of(a, Z), atol=1e-8)
    np.testing.assert_allclose(b.coef[:, 1] * factor, a.coef[:, 1], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_place_of_a_feature_does_not_matter(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    moved = Z + np.array([0.0, 1e4, 0.0, -300.0, 0.0, 0.0])
    a, b = (solve(Problem(features, y, X, family=name)) for features in (Z, moved))
    np.testing.assert_allclose(b.coef, a.coef, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_rows_does_not_matter(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    order = np.random.default_rng(2).permutation(len(y))
    a, b = solve(Problem(Z, y, X, family=name)), solve(Problem(Z[order], y[order], X[order], family=name))
    np.testing.assert_allclose(b.coef, a.coef, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_features_does_not_matter(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    order = np.array([3, 1, 5, 0, 2, 4])
    a, b = solve(Problem(Z, y, X, family=name)), solve(Problem(Z[:, order], y, X, family=name))
    np.testing.assert_allclose(b.coef, a.coef[:, order], atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_the_coding_of_protected_columns_does_not_matter(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    mixed = X @ np.array([[1.0, 2.0, 0.0], [0.0, 0.1, 1.0], [0.0, 0.0, 500.0]]) - 7.0
    a, b = solve(Problem(Z, y, X, family=name)), solve(Problem(Z, y, mixed, family=name))
    np.testing.assert_allclose(b.coef, a.coef, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_repetitions(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    times = np.random.default_rng(3).integers(1, 4, len(y))
    a = solve(Problem(Z, y, X, family=name, weight=times.astype(float)))
    b = solve(Problem(*(np.repeat(part, times, axis=0) for part in (Z, y, X)), family=name))
    np.testing.assert_allclose(b.coef, a.coef, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_sparse_features_are_dense_features(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    Z = Z * (np.random.default_rng(4).random(Z.shape) < 0.4)
    a, b = solve(Problem(Z, y, X, family=name)), solve(Problem(sparse.csr_array(Z), y, X, family=name))
    np.testing.assert_allclose(b.coef, a.coef, atol=1e-8)
    assert b.certificate.is_orthogonal


def test_protected_columns_among_the_features_are_allowed(draw) -> None:
    Z, y, X = draw(family("binomial"))
    both = np.column_stack([Z, X])
    with_them, without = solve(Problem(both, y, X, family="binomial")), solve(Problem(Z, y, X, family="binomial"))
    assert with_them.certificate.is_orthogonal
    assert with_them.certificate.loss < without.certificate.loss  # they help to take their own effect out


# ---------------------------------------------------------------------------------------------------------- starts
@pytest.mark.parametrize("protected", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("name", ["gaussian", *NAMES])
def test_a_warm_start_is_nearly_done(name: str, protected: bool, draw) -> None:
    Z, y, X = draw(family(name))
    problem = Problem(Z, y, X if protected else None, family=name)
    cold = solve(problem)
    warm = solve(problem, start=(cold.intercept, cold.coef))
    assert warm.n_iter <= 2
    np.testing.assert_allclose(warm.coef, cold.coef, atol=1e-8)


def test_restarts_are_reproducible_and_never_worse(draw) -> None:
    Z, y, X = draw(family("binomial"), n=200, q=5, seed=4)
    problem = Problem(Z, y, X, family="binomial")
    once = solve(problem)
    first, again = (solve(problem, n_restarts=5, random_state=0) for _ in range(2))
    np.testing.assert_array_equal(first.coef, again.coef)
    assert first.certificate.loss <= once.certificate.loss + 1e-12
    assert first.certificate.is_orthogonal


@pytest.mark.parametrize("seed", range(4))
def test_far_starts_end_at_feasible_stationary_points(seed: int, draw) -> None:
    Z, y, X = draw(family("binomial"), n=200, q=5, seed=4)
    rng = np.random.default_rng(seed)
    found = solve(Problem(Z, y, X, family="binomial"), start=(rng.normal(size=1), 2.0 * rng.normal(size=(1, 5))))
    assert found.certificate.is_orthogonal and found.certificate.is_optimal


def test_a_saddle_is_left_behind() -> None:
    """Every row has its mirror image and an even outcome, so the intercept-only model is stationary: a saddle.

    With a log link the loss bends down there: ``E[z^2 mu (2 mu - y)] < 0`` at ``mu = E[y]``.
    """
    z = np.linspace(-2.0, 2.0, 41)
    y = np.cosh(4.0 * z) / np.cosh(4.0 * z).mean()
    assert np.mean(z**2 * (2.0 - y)) < -0.1 and abs(np.mean(z * (1.0 - y))) < 1e-14
    found = solve(Problem(z[:, None], y, family=family("gaussian", "log")))
    assert found.certificate.min_curvature >= -1e-8 and found.certificate.is_optimal
    assert abs(found.coef[0, 0]) > 0.1
    assert found.certificate.loss < found.certificate.loss_null * (1.0 - 1e-3)


def test_a_saddle_of_the_constrained_problem_is_left_behind() -> None:
    z, u = (part.ravel() for part in np.meshgrid(np.linspace(-2.0, 2.0, 21), np.linspace(-1.0, 1.0, 11)))
    y = np.cosh(4.0 * z) / np.cosh(4.0 * z).mean()
    X = u[:, None]
    found = solve(Problem(np.column_stack([z, u]), y, X, family=family("gaussian", "log")))
    assert found.certificate.is_orthogonal and found.certificate.is_optimal
    assert abs(found.coef[0, 0]) > 0.1
    assert found.certificate.loss < found.certificate.loss_null * (1.0 - 1e-3)


# ---------------------------------------------------------------------------------------------------- hard problems
@pytest.mark.parametrize("name", ["gaussian", *NAMES])
def test_collinear_features_are_named_and_change_nothing(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    more = np.column_stack([Z, Z[:, 0], Z[:, 1] - 2.0 * Z[:, 2] + 3.0, np.full(len(y), 4.0)])
    names = ("a", "b", "c", "d", "e", "f", "copy", "mix", "constant")
    plain = solve(Problem(Z, y, X, family=name))
    found = solve(Problem(more, y, X, family=name, feature_names=names))
    assert set(found.certificate.aliased_features) == {"copy", "mix", "constant"}
    assert found.certificate.rank_features == 6 and found.certificate.n_features == 9
    np.testing.assert_allclose(eta_of(found, more), eta_of(plain, Z), atol=1e-8)
    assert found.certificate.is_orthogonal and found.status is Status.CONVERGED


@pytest.mark.parametrize("protected", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("name", ["binomial", "poisson"])
def test_quasi_separation_is_flat_and_names_the_culprit(name: str, protected: bool, draw) -> None:
    """A level whose outcome is always 0: its coefficient runs away while the loss stands still."""
    Z, y, X = draw(family(name))
    level = (np.arange(len(y)) % 20 == 0).astype(float)
    y = np.where(level == 1.0, 0.0, y)
    names = ("a", "b", "c", "d", "e", "f", "level")
    problem = Problem(np.column_stack([Z, level]), y, X if protected else None, family=name, feature_names=names)
    found = solve(problem)
    assert found.status is Status.FLAT
    assert found.certificate.flat_features == ("level",)
    assert np.isfinite(found.certificate.loss) and np.isfinite(found.coef).all()
    assert found.coef[0, 6] < -3.0
    assert found.certificate.is_orthogonal and found.certificate.is_optimal
    rest = level == 0.0
    if not protected:  # the rest of the rows are fitted as if those were not there
        without = solve(Problem(Z[rest], y[rest], family=name))
        np.testing.assert_allclose(found.coef[0, :6], without.coef[0], atol=1e-4)
    ridge = solve(Problem(problem.features, y, problem.protected, family=name, feature_names=names, l2=1e-3))
    assert ridge.status is Status.CONVERGED and ridge.certificate.flat_features == ()


def test_complete_separation_ends_with_a_finite_loss() -> None:
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(200, 3))
    found = solve(Problem(Z, (Z[:, 0] > 0.0).astype(float), family="binomial"))
    assert found.status is not Status.CONVERGED
    assert 0.0 <= found.certificate.loss < 1e-4 and np.isfinite(found.coef).all()


@pytest.mark.parametrize("name", ["poisson", "gamma", "negative_binomial"])
@pytest.mark.parametrize("protected", [False, True], ids=["free", "constrained"])
def test_a_step_that_overflows_is_taken_back_in_silence(name: str, protected: bool) -> None:
    """A rare level with very large counts: the first full step has a mean of exp(1000)."""
    rng = np.random.default_rng(1)
    Z = rng.normal(size=(4000, 3))
    Z[:, 2] = np.arange(4000) < 2
    X = Z[:, [1]] + rng.normal(size=(4000, 1))
    y = rng.poisson(np.exp(0.3 * Z[:, 0] - 1.0)) + 0.01
    y[:2] = 20_000.0
    found = solve(Problem(Z, y, X if protected else None, family=name))
    assert found.status in (Status.CONVERGED, Status.FLAT)
    assert found.certificate.is_orthogonal and found.certificate.is_optimal


def test_features_that_are_orthogonal_already_cost_nothing(draw) -> None:
    """The constraint holds for every coefficient, so rounding in its Jacobian must not take a direction away."""
    Z, y, X = draw(family("gaussian"))
    D = np.column_stack([np.ones(len(X)), X])
    Z = Z - D @ np.linalg.lstsq(D, Z, rcond=None)[0]
    free, held = solve(Problem(Z, y)), solve(Problem(Z, y, X))
    np.testing.assert_allclose(held.coef, free.coef, atol=1e-8)
    assert held.certificate.is_orthogonal and held.certificate.cost == pytest.approx(0.0, abs=1e-10)


def test_the_loss_without_the_constraint_is_that_of_the_free_fit(glm: Family, draw) -> None:
    Z, y, X = draw(glm)
    free, held = solve(Problem(Z, y, family=glm)).certificate, solve(Problem(Z, y, X, family=glm)).certificate
    assert held.loss_unconstrained == pytest.approx(free.loss, abs=1e-3 * (held.loss - free.loss))


def draw_at_the_edge() -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Log-binomial data whose best fit has a probability of one for some row, and the loss that scipy reaches."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 1))
    Z = 0.5 * X + rng.normal(size=(600, 3))
    y = (rng.random(600) < np.exp(np.minimum(0.6 * Z[:, 0] + 0.3 * X[:, 0] - 0.9, -0.02))).astype(float)
    D = np.column_stack([np.ones(600), Z])

    def loss(b: np.ndarray) -> tuple[float, np.ndarray]:
        eta = np.minimum(D @ b, -1e-10)
        value = np.mean(-y * eta - (1.0 - y) * np.log(-np.expm1(eta)))
        return float(value), D.T @ ((1.0 - y) / np.expm1(-eta) - y) / 600.0

    inside = {"type": "ineq", "fun": lambda b: -1e-9 - D @ b, "jac": lambda b: -D}
    start = np.array([np.log(y.mean()), 0.0, 0.0, 0.0])
    found = minimize(loss, start, jac=True, method="SLSQP", constraints=[inside], options={"maxiter": 1000})
    assert (D @ found.x).max() < 0.0
    return Z, y, X, float(found.fun)


@pytest.mark.parametrize("solver", ["sqp", "large"])
def test_an_optimum_on_the_edge_of_the_domain_is_reached(solver: str) -> None:
    """Log-binomial models often have it there, with no stationary point inside; some row has a probability of one."""
    Z, y, X, reached = draw_at_the_edge()
    for protected in (None, X):
        found = solve(Problem(Z, y, protected, family=family("binomial", "log")), solver)
        assert found.certificate.is_orthogonal
        assert found.certificate.is_optimal or (solver == "large" and found.status is Status.STALLED)  # the last digits
        assert -1e-5 < (Z @ found.coef[0] + found.intercept[0]).max() < 0.0
        if protected is None:
            assert found.certificate.loss == pytest.approx(reached, abs=2e-7)
        else:
            exact = solve(Problem(Z, y, X, family=family("binomial", "log")), "sqp").certificate
            assert found.certificate.loss == pytest.approx(exact.loss, abs=1e-7) and exact.is_optimal
        assert found.certificate.loss_unconstrained == pytest.approx(reached, abs=1e-5)


def test_a_stream_reaches_the_edge_of_the_domain_as_well() -> None:
    Z, y, X, _ = draw_at_the_edge()
    glm = family("binomial", "log")
    table = pa.table({"a": Z[:, 0], "b": Z[:, 1], "c": Z[:, 2], "x": X[:, 0], "y": y})
    stream = sq.Stream(pyarrow.dataset.dataset(table.to_batches(max_chunksize=250)))
    model = sq.OrthogonalGLMRegressor(glm, protected=["x"]).fit(stream, "y")
    held = solve(Problem(Z, y, X, family=glm))
    assert model.solution_.certificate.loss == pytest.approx(held.certificate.loss, abs=1e-9)


# --------------------------------------------------------------------------------------- statuses and certificates
def test_too_few_iterations_are_said(draw) -> None:
    Z, y, X = draw(family("binomial"))
    found = solve(Problem(Z, y, X, family="binomial"), max_iter=2)
    assert found.status is Status.MAX_ITER and found.n_iter == 2
    assert not found.certificate.is_optimal
    assert "stopped" in str(found)


def test_zero_iterations_are_none(draw) -> None:
    Z, y, X = draw(family("binomial"))
    found = solve(Problem(Z, y, X, family="binomial"), max_iter=0)
    assert found.n_iter == 0 and found.status is Status.MAX_ITER


@pytest.mark.parametrize("name", ["gaussian", *NAMES])
def test_the_trace_leads_from_the_null_model_to_the_solution(name: str, draw) -> None:
    Z, y, X = draw(family(name))
    found = solve(Problem(Z, y, X, family=name))
    assert len(found.trace) == found.n_iter + 1 <= 21
    assert [step.iteration for step in found.trace] == list(range(found.n_iter + 1))
    assert found.trace[0].loss == pytest.approx(found.certificate.loss_null, rel=1e-12)
    assert found.trace[-1].loss == pytest.approx(found.certificate.loss, rel=1e-6)
    assert found.trace[-1].kkt <= 1e-6
    assert found.solver == "sqp"


@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson"])
def test_multipliers_balance_the_gradients(name: str, draw) -> None:
    """They balance the gradient of the loss against the constraint's, computed here from scratch."""
    Z, y, X = draw(family(name))
    found = solve(Problem(Z, y, X, family=name), tol=1e-12)
    assert found.multipliers.shape == (3, 1)
    D = np.column_stack([np.ones(len(Z)), Z])
    eta = eta_of(found, Z)[:, 0]
    _, mu, slope, _ = family(name).activation.evaluate(eta)
    upper = np.linalg.cholesky(np.cov(X.T, bias=True)).T
    Q = np.linalg.solve(upper.T, (X - X.mean(0)).T).T  # same order of columns, so the same basis up to signs
    J = (Q * slope[:, None]).T @ D / len(D)
    gradient = D.T @ (mu - y) / len(D)
    lam = np.linalg.lstsq(J.T, -gradient, rcond=None)[0]
    np.testing.assert_allclose(np.abs(found.multipliers[:, 0]), np.abs(lam), atol=1e-7)
    np.testing.assert_allclose(gradient + J.T @ lam, 0.0, atol=1e-7)


def test_the_certificate_says_all_it_knows(draw) -> None:
    Z, y, X = draw(family("binomial"))
    more = np.column_stack([Z, Z[:, 0]])
    protected = np.column_stack([X, np.ones(len(y)), 2.0 * X[:, 0]])
    problem = Problem(
        more,
        y,
        protected,
        family="binomial",
        feature_names=("a", "b", "c", "d", "e", "f", "copy"),
        protected_names=("sex", "age", "score", "one", "twice"),
    )
    found = solve(problem)
    c = found.certificate
    assert (c.rank_protected, c.n_protected, c.rank_features, c.n_features) == (3, 5, 6, 7)
    assert (c.constant_protected, c.collinear_protected, c.aliased_features) == (("one",), ("twice",), ("copy",))
    text = str(c)
    for part in ("Orthogonal to the protected columns", "yes", "Local optimum", "KKT", "Loss", "3 of 5", "6 of 7"):
        assert part in text
    for name in ("one", "twice", "copy", "Cost: share", "Outcome explained by the protected columns"):
        assert name in text
    assert "NO" not in text and f"{c.loss:.4f}"[:5] in text
    assert str(found).startswith("sqp, ") and text in str(found)
    plain = c.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["is_orthogonal"] is True and plain["is_optimal"] is True
    assert plain["cost"] == c.cost and plain["collinear_protected"] == ["twice"]
    assert 0.0 < c.cost < 1.0 and 0.0 < c.label_share < 1.0
    assert set(plain) >= {"constraint_residual", "max_correlation", "kkt_residual", "min_curvature", "loss_null"}


def test_a_certificate_that_does_not_hold_says_so(draw) -> None:
    Z, y, X = draw(family("binomial"))
    certificate = solve(Problem(Z, y, X, family="binomial"), "mdmm", max_iter=50).certificate
    assert not certificate.is_orthogonal and not certificate.is_optimal
    assert str(certificate).count(" NO") == 2
    assert certificate.to_dict()["is_orthogonal"] is False


def test_mdmm_leaves_out_features_that_are_combinations_of_others(draw) -> None:
    Z, y, X = draw(family("binomial"))
    found = solve(Problem(np.column_stack([Z, Z[:, 0] + Z[:, 1]]), y, X, family="binomial"), "mdmm", max_iter=50)
    alone = solve(Problem(Z, y, X, family="binomial"), "mdmm", max_iter=50)
    assert not found.coef[:, -1].any()
    np.testing.assert_allclose(found.coef[:, :-1], alone.coef, rtol=1e-8)


def test_without_protected_columns_the_certificate_claims_nothing_about_them(draw) -> None:
    Z, y, _ = draw(family("binomial"))
    c = solve(Problem(Z, y, family="binomial")).certificate
    assert c.rank_protected == c.n_protected == 0 and c.max_correlation == 0.0 and c.cost == 0.0


def test_the_certificate_measures_the_columns_themselves(draw) -> None:
    """max_correlation is what a user would compute, dropped columns included."""
    Z, y, X = draw(family("poisson"))
    X = np.column_stack([X, X[:, 0] + X[:, 1]])
    found = solve(Problem(Z, y, X, family="poisson"), max_iter=1)
    yhat = np.exp(eta_of(found, Z)[:, 0])
    largest = max(abs(np.corrcoef(x, yhat)[0, 1]) for x in X.T)
    assert found.certificate.max_correlation == pytest.approx(largest, rel=1e-6, abs=1e-12)
    loose = solve(Problem(Z, y, X, family="poisson"), "mdmm", max_iter=20)
    yhat = np.exp(eta_of(loose, Z)[:, 0])
    largest = max(abs(np.corrcoef(x, yhat)[0, 1]) for x in X.T)
    assert largest > 1e-3 and loose.certificate.max_correlation == pytest.approx(largest, rel=1e-8)


def test_solutions_are_the_same_each_time(draw) -> None:
    Z, y, X = draw(family("multinomial"))
    problem = Problem(Z, y, X, family="multinomial")
    np.testing.assert_array_equal(solve(problem).coef, solve(problem).coef)


def test_a_tighter_tolerance_is_met(draw) -> None:
    Z, y, X = draw(family("binomial"))
    problem = Problem(Z, y, X, family="binomial")
    loose, tight = solve(problem, tol=1e-2), solve(problem, tol=1e-12)
    assert loose.n_iter < tight.n_iter
    assert tight.certificate.kkt_residual <= 1e-12 < loose.certificate.kkt_residual <= 1e-2
    assert loose.certificate.is_orthogonal  # the guarantee does not depend on it


def test_a_start_of_the_wrong_size_is_one_clear_sentence(draw) -> None:
    Z, y, X = draw(family("binomial"))
    with pytest.raises(InputError, match="start"):
        solve(Problem(Z, y, X, family="binomial"), start=(np.zeros(1), np.zeros((1, 4))))
