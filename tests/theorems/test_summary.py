"""Standard errors of a corrected GLM agree with the jackknife and with the bootstrap."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import setsquare as sq
from setsquare import tables
from setsquare.glm import Problem, solve
from setsquare.glm.bootstrap import _deviation, _regressed, refit_resampled, respond


def draw(n, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.4, rng.normal(size=n)]).astype(float)
    Z = rng.normal(size=(n, 6))
    Z[:, :3] += 0.8 * X[:, :1]
    Z[:, 2:] += 0.8 * X[:, 1:]
    return Z, X, 0.5 * Z[:, :4].sum(axis=1), rng


def outcome(name, eta, rng):
    if name == "gaussian":
        return eta + rng.normal(size=len(eta))
    if name == "poisson":
        return rng.poisson(np.exp(0.4 * eta)).astype(float)
    if name == "multinomial":
        return np.argmax(np.column_stack([-eta, 0 * eta, eta]) + rng.gumbel(size=(len(eta), 3)), axis=1).astype(float)
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)


def estimates(solution):
    return np.column_stack([solution.intercept, solution.coef])


#: Refits of one row each take long; every option and every family is left without these.
LONG = {("multinomial", "weights"), ("multinomial", "ridge"), ("poisson", "given"), ("poisson", "ridge")}
LONG |= {("gaussian", "given"), ("gaussian", "ridge"), ("gaussian", "clusters"), ("binomial", "weights")}
LONG |= {("poisson", "plain"), ("multinomial", "given"), ("multinomial", "clusters"), ("gaussian", "plain")}
LONG |= {("binomial", "plain"), ("poisson", "weights"), ("multinomial", "outcome")}


@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(name, option, marks=pytest.mark.slow if (name, option) in LONG else ())
        for name in ("gaussian", "binomial", "poisson", "multinomial")
        for option in ("plain", "weights", "clusters", "given", "outcome", "ridge")
        # Knots of a numeric outcome move when a row is left out; the sandwich takes them as fixed.
        if option != "outcome" or name in ("binomial", "multinomial")
    ],
)
def test_they_are_those_of_the_jackknife(name, option):
    """Refits without each row, or cluster: an independent estimate of the same covariance, equal to order 1/n."""
    n = 240
    Z, X, eta, rng = draw(n)
    y = outcome(name, eta, rng)
    X = X[:, :1] if option == "outcome" else X
    w = rng.uniform(0.5, 2.0, n) if option == "weights" else np.ones(n)
    cluster = np.arange(n) // 4 if option == "clusters" else np.arange(n)
    given = {"given": Z[:, -1:], "outcome": "outcome"}.get(option)
    l2 = 0.05 if option == "ridge" else 0.0

    def problem(rows):
        own = given[rows] if isinstance(given, np.ndarray) else given
        grouped = cluster[rows] if option == "clusters" else None
        # The ridge keeps its weight relative to the summed loss.
        ridge = l2 * n / len(y[rows])
        return Problem(Z[rows], y[rows], X[rows], name, w[rows], l2=ridge, cluster=grouped, given=own)

    whole = solve(problem(np.arange(n)))
    start = whole.intercept, whole.coef
    without = [estimates(solve(problem(np.flatnonzero(cluster != g)), start=start)) for g in np.unique(cluster)]
    known = np.sqrt(np.sum((np.asarray(without) - estimates(whole)) ** 2, axis=0))
    ratio = whole.std_error / known
    if option == "clusters":  # taken as they are: refits without a cluster overstate by its leverage
        assert 0.93 < np.median(ratio) < 1.0 and ratio.min() > 0.9
        return
    assert 0.99 < np.median(ratio) < 1.03 and ratio.min() > 0.95 and ratio.max() < 1.16


def bootstrap(Z, X, y, name, n_samples, seed=0, **options):
    rng, n = np.random.default_rng(seed), len(y)
    whole = solve(Problem(Z, y, X, name, **options))
    start, drawn = (whole.intercept, whole.coef), []
    while len(drawn) < n_samples:
        rows = rng.integers(0, n, n)
        found = solve(Problem(Z[rows], y[rows], X[rows], name, **options), start=start)
        if not found.certificate.aliased_features:  # a level may be absent from a sample
            drawn.append(estimates(found)[0])
    return whole, np.asarray(drawn)


def test_they_are_those_of_the_bootstrap_in_a_simulation():
    Z, X, eta, rng = draw(2000)
    whole, drawn = bootstrap(Z, X, outcome("binomial", eta, rng), "binomial", 150)
    ratio = whole.std_error[0] / drawn.std(axis=0)  # the bootstrap's own standard error is 6 %
    assert abs(np.mean(ratio) - 1.0) < 0.08 and np.abs(ratio - 1.0).max() < 0.2


@pytest.mark.parametrize("case", ["collinear", "extreme"])
def test_coefficients_whose_errors_are_off_are_marked(case):
    """A column that differs from another in four rows only, and one with an extreme value: refits differ by far."""
    Z, X, eta, rng = draw(600)
    y = outcome("binomial", eta, rng)
    plain, odd = solve(Problem(Z, y, X, "binomial")), np.zeros(600)
    assert not plain.few_rows.any()
    odd[:4] = (3.0, 3.0, -3.0, 3.0)
    column = Z[:, 0] + odd if case == "collinear" else np.where(np.arange(600) == 5, 60.0, rng.normal(size=600))
    whole, drawn = bootstrap(np.column_stack([Z, column]), X, y, "binomial", 150)
    gap = np.abs(whole.std_error[0] / drawn.std(axis=0) - 1.0)  # the bootstrap's own standard error is 6 %
    assert whole.few_rows[0, -1] and gap[-1] > 0.25
    assert gap[~whole.few_rows[0]].max() < 0.2 and (~whole.few_rows).sum() >= (5 if case == "collinear" else 2)


def marked(problem):
    """Coefficients that have a star, or no standard error: three rows can also separate the classes."""
    found = solve(problem)
    return found.few_rows | np.isnan(found.std_error)


@pytest.mark.parametrize("name", ["gaussian", "poisson", "multinomial"])
def test_marks_do_not_depend_on_scale_and_follow_clusters(name):
    Z, X, eta, rng = draw(400)
    y, odd = outcome(name, eta, rng), np.zeros(400)
    odd[:3] = 1.0
    features = np.column_stack([Z, Z[:, 0] + odd])
    found = marked(Problem(features, y, X, name))
    assert found[:, [1, -1]].all() and found[:, 2:-1].mean() < 0.3
    scaled = features * 10.0 ** np.arange(-3, 4) + 5.0
    np.testing.assert_array_equal(marked(Problem(scaled, y, X, name))[:, 1:], found[:, 1:])
    # Pairs of rows are clusters of the same size: what rests on three rows rests on two clusters.
    clusters = marked(Problem(features, y, X, name, cluster=np.arange(400) // 2))
    assert clusters[:, [1, -1]].all() and clusters[:, 2:-1].mean() < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compas", "health_retirement"])
def test_all_of_a_summary_are_those_of_2000_other_refits_on_real_sets(name):
    if not sq.datasets.available(name):
        pytest.skip(f"the data set {name} is not on this machine: set SETSQUARE_DATA")
    data = getattr(sq.datasets, f"load_{name}")()
    model = sq.OrthogonalGLMClassifier() if name == "compas" else sq.OrthogonalGLMRegressor(data.family)
    model.fit(data.features_table(), data.y, data.protected_table())
    Z, X = (tables.learn(table).apply(table) for table in (data.features_table(), data.protected_table()))
    problem = Problem(Z.values, np.asarray(data.y, dtype=float), X.values, data.family, feature_names=Z.names)
    refit = partial(solve, start=(model.solution_.intercept, model.solution_.coef))
    known = refit_resampled(problem, refit, 2000, np.random.default_rng(1))  # a summary has the draws of 0
    gap = np.abs(model.summary().std_error / known.std_error - 1.0)
    assert gap.max() < 0.05 and np.median(known.precision) < 0.01
    # Columns that are nearly collinear (dates of custody in compas) or rest on few rows (net worth in health) are not
    # linear in the weights of the rows at the scale of the bootstrap: the sandwich is off.
    off = np.abs(model.summary(refits=0).std_error / known.std_error - 1.0)
    assert off[~model.solution_.few_rows].max() < 0.05 and off.max() > 0.15


def test_standard_errors_from_refits_say_how_precise_they_are():
    """The spread of many standard deviations, for normal coefficients and for heavy tails."""
    rng = np.random.default_rng(0)
    drawn = np.stack([rng.normal(size=(400, 500)), rng.standard_t(9, size=(400, 500))], axis=2)
    found = [_deviation(one[:, None, :]) for one in drawn]
    errors, said = (np.asarray([pair[j][0] for pair in found]) for j in (0, 1))
    actual = errors.std(axis=0) / errors.mean(axis=0)
    assert actual[1] > 1.1 * actual[0]
    assert np.abs(np.median(said, axis=0) / actual - 1.0).max() < 0.15


def test_a_known_linear_part_makes_errors_from_few_refits_precise():
    """Coefficients with a linear part of known variance: less spread over samples of refits, as much as said."""
    rng = np.random.default_rng(0)
    moved = rng.normal(size=(400, 200, 1))
    drawn = 2.0 * moved + 0.3 * rng.normal(size=moved.shape) + 0.2 * (moved**2 - 1.0)
    known = np.array([0.0, 1.0, 0.0, 3.0])[:, None]
    found = np.asarray([_regressed(e, m, known)[:, 0] for e, m in zip(drawn, moved, strict=True)])
    plain = drawn.std(axis=1, ddof=1)[:, 0]
    assert np.mean(found[:, 0] ** 2) == pytest.approx(4.0 + 0.09 + 0.08, rel=0.01)
    actual = found[:, 0].std() / found[:, 0].mean()
    assert actual < 0.5 * plain.std() / plain.mean() and np.median(found[:, 1]) == pytest.approx(actual, rel=0.15)


@pytest.mark.parametrize("name", ["binomial", "multinomial"])
def test_one_more_copy_of_a_row_moves_the_fit_as_the_linear_response_says(name):
    Z, X, eta, rng = draw(300)
    y, w, cluster = outcome(name, eta, rng), rng.uniform(0.5, 2.0, 300), np.arange(300) // 3
    w[5] = 0.0
    problem = Problem(Z, y, X, name, w, cluster=cluster)
    response = respond(problem, problem.cluster).reshape(100, -1, Z.shape[1] + 1)
    whole = estimates(solve(problem))
    for unit in (1, 60):
        more = w.copy()
        more[cluster == unit] *= 1.0 + 1e-4
        moved = (estimates(solve(Problem(Z, y, X, name, more), tol=1e-12)) - whole) / 1e-4
        np.testing.assert_allclose(moved, response[unit], atol=2e-3 * np.abs(response).max())
    assert respond(Problem(Z, y, X, name), np.arange(300)).shape == (300, response.shape[1] * response.shape[2])


def test_refits_of_a_nearly_linear_fit_need_few_draws():
    Z, X, eta, rng = draw(2000)
    problem = Problem(Z, outcome("gaussian", eta, rng), X)
    known, rng = solve(problem).std_error, np.random.default_rng(1)
    found = refit_resampled(problem, solve, 40, rng)
    assert np.abs(found.drawn_error / known - 1.0).max() > 0.1 and found.precision.max() < 0.04
    assert np.abs(found.std_error / known - 1.0).max() < 0.04


def test_without_protected_columns_the_errors_are_hc3() -> None:
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(80, 3))
    y = Z[:, 0] + rng.normal(size=80) * (1.0 + np.abs(Z[:, 1]))
    known = sm.OLS(y, sm.add_constant(Z)).fit().HC3_se
    np.testing.assert_allclose(solve(Problem(Z, y)).std_error[0], known, rtol=1e-9)
