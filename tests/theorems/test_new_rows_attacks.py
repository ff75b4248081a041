"""Designs that once got a false certificate for new rows: rare groups, many features, few clusters."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import expit

from setsquare import OrthogonalGLMClassifier
from setsquare.errors import NotOrthogonalError
from setsquare.glm import Problem, solve
from setsquare.glm.new_rows_bound import bound_new_rows
from setsquare.glm.solution import Status


def draw(rng, n, q, kind="plain"):
    """Features, outcome and one protected column; five features are shifted by it."""
    x = (rng.random(n) < (0.04 if kind == "rare" else 0.5)).astype(float)
    Z = rng.normal(size=(n, q))
    Z[:, :5] += 0.8 * x[:, None]
    y = (rng.random(n) < 1 / (1 + np.exp(1.0 - 0.4 * Z[:, :10].sum(axis=1)))).astype(float)
    return Z, y, x[:, None]


def on_new_rows(solution, seed, q, kind):
    Z, _, X = draw(np.random.default_rng(10**6 + seed), 10_000, q, kind)
    p = expit(Z @ solution.coef[0] + solution.intercept[0])
    return float(np.corrcoef(p, X[:, 0])[0, 1])


@pytest.mark.parametrize(("kind", "n", "q"), [("rare", 150, 15), ("plain", 400, 100)])
def test_the_bound_holds_for_a_rare_group_and_for_many_features(kind, n, q):
    """It held in 80 % with six rows in the group, and in 85 % with a quarter as many features as rows."""
    held = []
    for seed in range(40):
        rng = np.random.default_rng([seed, n])
        Z, y, X = draw(rng, n, q, kind)
        if X.std() == 0.0:
            continue
        certificate = (solution := solve(Problem(Z, y, X, "binomial"), orthogonal_on="new rows")).certificate
        if certificate.is_orthogonal:
            held.append(abs(on_new_rows(solution, seed, q, kind)) <= certificate.new_rows.upper)
    assert len(held) >= 30
    assert np.mean(held) >= 0.88  # of 40, with 95 %: 35 or fewer in one of 100 runs


def test_half_as_many_features_as_rows_are_refused_for_a_link_with_curvature():
    """Of these fits a third were certified, with a correlation of 0.12 on new rows."""
    for seed in range(6):
        problem = Problem(*draw(np.random.default_rng([seed, 200]), 200, 100), "binomial")
        solution = solve(problem, orthogonal_on="new rows")
        assert solution.status is Status.NO_INFORMATION
        assert not solution.certificate.is_orthogonal
        assert solve(problem).certificate.new_rows is None


def test_features_for_which_there_are_too_few_clusters_are_refused():
    rng = np.random.default_rng(0)
    cluster = np.arange(500) // 10
    Z, y, X = draw(rng, 500, 40)
    assert solve(Problem(Z, y, X, "binomial"), orthogonal_on="new rows").certificate.is_orthogonal
    solution = solve(Problem(Z, y, X, "binomial", cluster=cluster), orthogonal_on="new rows")
    assert solution.status is Status.NO_INFORMATION


def test_leaving_out_rows_of_clusters_that_share_effects_is_not_enough():
    """Rows of a patient predict each other: only whole clusters left out show what holds for the next patient."""
    found = {True: [], False: []}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        cluster = np.arange(600) // 10

        def shared(rng, n):
            units = n // 10
            group = np.arange(n) // 10
            x = (rng.random(units) < 0.5).astype(float)[group]
            Z = np.sqrt(0.5) * (rng.normal(size=(n, 12)) + rng.normal(size=(units, 12))[group])
            Z[:, :5] += 0.8 * x[:, None]
            eta = 0.4 * Z[:, :10].sum(axis=1) - 1.0 + rng.normal(size=units)[group]
            return Z, (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float), x[:, None]

        Z, y, X = shared(rng, 600)
        Z_new, _, X_new = shared(np.random.default_rng(10**6 + seed), 20_000)
        for whole, values in found.items():
            problem = Problem(Z, y, X, "binomial", cluster=cluster if whole else None)
            solution = solve(problem, orthogonal_on="new rows")
            if solution.certificate.is_orthogonal:
                p = expit(Z_new @ solution.coef[0] + solution.intercept[0])
                values.append(np.corrcoef(p, X_new[:, 0])[0, 1])
    error = np.std(found[True], ddof=1) / np.sqrt(len(found[True]))
    assert len(found[True]) >= 8
    assert abs(np.mean(found[True])) < 3.0 * error
    assert np.mean(found[False]) > np.mean(found[True]) + 0.02


def test_separated_levels_do_not_narrow_the_bound():
    """Their curvature is zero up to rounding error, so the sum of the leverages can be anything.

    It was 2.9 here for 11 parameters. On a sample of the bank data it was -3893, and the bound a fifth of its size.
    """
    rng, n = np.random.default_rng(36), 300
    x = (rng.random(n) < 0.5).astype(float)
    Z = rng.normal(size=(n, 4)) + 0.8 * x[:, None]
    level = rng.choice(8, size=n, p=[0.4, 0.3, 0.2, 0.04, 0.02, 0.02, 0.01, 0.01])
    dummies = (level[:, None] == np.arange(1, 8)).astype(float)
    y = (rng.random(n) < expit(0.8 * Z[:, 0] - 2.0)).astype(float)
    y[level >= 3] = 0.0
    found = solve(Problem(np.hstack([Z, dummies]), y, x, "binomial"), orthogonal_on="new rows").certificate.new_rows
    assert found.n_parameters == 11
    assert found.upper > 1.96 / np.sqrt(n)


def test_a_fit_whose_bound_is_one_is_refused():
    """Forty rows, four of them in the group: the certificate said "orthogonal on new rows", and at most 1."""
    rng, n = np.random.default_rng(4), 40
    X = np.column_stack([rng.random(n) < 0.1, rng.normal(size=(n, 3)).T[0], rng.normal(size=n), rng.normal(size=n)])
    Z = rng.normal(size=(n, 16))
    Z[:, :8] += X[:, :1]
    y = (rng.random(n) < expit(Z[:, 0])).astype(float)
    certificate = solve(Problem(Z, y, X, "binomial"), orthogonal_on="new rows").certificate
    assert certificate.new_rows.upper == 1.0
    assert certificate.new_rows.correlation <= certificate.new_rows.limit
    assert not certificate.is_orthogonal
    with pytest.raises(NotOrthogonalError, match="40 rows are too few for 16 features"):
        OrthogonalGLMClassifier(orthogonal_on="new rows").fit(Z, y, protected=X)


def test_a_direction_that_rests_on_three_rows_has_two_of_them_left_for_its_spread():
    """Bounds for a group of three rows of 300 held in 91 % of 223 fits, and with this in 93 %."""
    rng, n = np.random.default_rng(0), 300
    Z, y, _ = draw(rng, n, 6)
    uppers = []
    for x in (np.arange(n) < 3, np.arange(n) < 150):
        found = solve(Problem(Z, y, x.astype(float)[:, None], "binomial")).certificate.new_rows
        uppers.append((found.upper - found.correlation) * np.sqrt(n))
    sums = SimpleNamespace(c=np.zeros((1, 1)), total=np.zeros(1), moments=np.diag([1.0 / n, 1.0 / n, 1.0 / n]))
    sums.fourth, sums.columns, sums.spread = np.full(1, 3.0 / n**3), np.ones((1, 1)), 1.0
    wide, usual = (
        bound_new_rows(sums, ("x",), 0.95, n, 0.0, 0.0, False).upper
        for sums.concentration in (np.full(1, 1.0 / 3.0), np.full(1, 1.0 / n))
    )
    assert wide / usual == pytest.approx(np.sqrt((1.0 - 1.0 / n) / (1.0 - 1.0 / 3.0)), rel=1e-9)
    assert uppers[0] > 1.2 * uppers[1]
