"""Limits of certificates and options just inside and just outside, and parts of the solver against brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from setsquare.errors import InputError, NotOrthogonalError
from setsquare.families import contrasts, family
from setsquare.glm import Problem, solve
from setsquare.glm.bootstrap import _deviation, refit_resampled, resample, sum_moments
from setsquare.glm.box import box_limit, solve_box
from setsquare.glm.budget import check_budget, check_spending
from setsquare.glm.certificate import FAR, MAX_CORRELATION, MAX_KKT, MIN_CURVATURE, Certificate, rests_on_few
from setsquare.glm.decisions import check_decisions, check_threshold
from setsquare.glm.deferred import Deferred
from setsquare.glm.given import FEW_VALUES, KNOTS, OutcomeBasis, outcome_basis
from setsquare.glm.missing_protected import (
    FOLDS,
    _inflation,
    complete_protected,
    cross_fit_columns,
    doubly_robust,
    draw_folds,
    known_outcome,
    standardised,
)
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.glm.products import choose_columns, curvature_of, fit_pilot, screen

RNG = np.random.default_rng


def draw(n: int = 200, seed: int = 0, classes: int = 2) -> dict[str, Any]:
    rng = RNG(seed)
    X = rng.normal(size=(n, 2))
    Z = 0.5 * X @ rng.normal(size=(2, 4)) + rng.normal(size=(n, 4))
    score = Z[:, 0] + X[:, 0] + rng.logistic(size=n)
    y = (score > 0).astype(float) if classes == 2 else np.digitize(score, np.linspace(-1, 1, classes - 1)).astype(float)
    return {
        "features": Z,
        "outcome": y,
        "protected": X,
        "family": family("binomial" if classes == 2 else "multinomial"),
    }


# ------------------------------------------------------------------------------------------------------- certificates
PLAIN = Certificate(
    constraint_residual=1e-12,
    max_correlation=1e-12,
    kkt_residual=1e-9,
    min_curvature=0.1,
    loss=0.6,
    unconstrained=Deferred(0.5),
    loss_null=0.7,
    rank_protected=1,
    rank_features=3,
    n_protected=1,
    n_features=3,
    n_rows=1000,
)


@pytest.mark.parametrize(
    ("changes", "kept", "optimal"),
    [
        ({}, True, True),
        ({"max_correlation": MAX_CORRELATION}, True, True),
        ({"max_correlation": 1.01 * MAX_CORRELATION}, False, False),
        ({"kkt_residual": MAX_KKT}, True, True),
        ({"kkt_residual": 1.01 * MAX_KKT}, True, False),
        ({"min_curvature": MIN_CURVATURE}, True, True),
        ({"min_curvature": 1.01 * MIN_CURVATURE}, True, False),
        ({"box": 0.1, "max_correlation": 0.1}, True, True),
        ({"box": 0.1, "max_correlation": 0.1001}, False, False),
        ({"budget": 0.5, "max_correlation": 0.3, "covariance_share": 0.5}, True, True),
        ({"budget": 0.5, "max_correlation": 0.3, "covariance_share": 0.50001}, False, False),
        ({"budget": 0.5, "max_correlation": 0.3, "covariance_share": None}, False, False),
        ({"orthogonal_on": "new rows"}, False, False),
        ({"orthogonal_on": "new rows", "n_protected": 0}, True, True),
        ({"threshold": 0.5, "decision_correlation": 0.01, "selection_rate": 0.3}, True, True),
    ],
)
def test_what_a_certificate_allows(changes: dict[str, Any], kept: bool, optimal: bool) -> None:
    certificate = replace(PLAIN, **changes)
    assert (certificate.is_kept, certificate.is_optimal) == (kept, optimal)
    plain = {"box", "budget", "threshold"} & set(changes)
    assert certificate.is_orthogonal == (kept and not plain)
    assert Certificate.of_state(certificate.state()) == certificate
    assert ("yes" if kept else "NO") in str(certificate)


def test_the_cost_is_a_share_of_what_could_be_gained() -> None:
    assert PLAIN.cost == pytest.approx(0.5) and PLAIN.loss_unconstrained == 0.5
    assert replace(PLAIN, loss_null=0.5).cost == 0.0 and replace(PLAIN, loss_null=0.4).cost == 0.0
    assert np.isnan(replace(PLAIN, unconstrained=Deferred(np.nan)).cost)
    assert "not known: the training arrays" in str(replace(PLAIN, unconstrained=Deferred(np.nan)))


@pytest.mark.parametrize(
    ("correlation", "rows", "few"),
    [
        (None, 10, False),
        (0.1, 1000, False),
        (0.101, 1000, True),
        (0.2, 100, False),
        (0.201, 100, True),
        (0.15, 100, False),
    ],
)
def test_a_constraint_rests_on_few_rows(correlation: float | None, rows: int, few: bool) -> None:
    assert rests_on_few(correlation, rows) is few
    certificate = replace(PLAIN, correlation_without=correlation, n_rows=rows)
    assert certificate.rests_on_few_rows is few and ("rests on few rows" in str(certificate)) is few
    assert replace(certificate, reach=FAR).rests_on_few_rows is few
    assert replace(certificate, reach=FAR + 0.01).rests_on_few_rows


def test_tables_say_what_was_asked_for() -> None:
    text = str(replace(PLAIN, budget=0.5, covariance_share=0.25, correlation=0.1))
    assert "Within the budget" in text and "0.25" in text and "at most 0.5" in text
    assert "without 0 extreme" not in text and "without 0 extreme" in str(PLAIN)
    text = str(replace(PLAIN, threshold=0.4, decision_correlation=0.012, selection_rate=0.3))
    assert "Smoothed decisions at 0.4 orthogonal" in text and "1.2e-02" in text and "0.300" in text
    text = str(replace(PLAIN, box=0.1, n_at_limit=2))
    assert "2 of 1" in text and "at most 0.100" in text and "not measured" in text
    text = str(replace(PLAIN, missing_protected=("age",), missing_shares=(0.25,), missing_given=("z0", "z1")))
    assert "age (25%)" in text and "z0, z1" in text and "missing values modelled" in text
    text = str(
        replace(PLAIN, rank_features=None, rank_features_low=2, aliased_features=("z2",), min_curvature_low=0.05)
    )
    assert "not known of 3: 2 at least, 2 at most" in text and "1.0e-01 at most, 5.0e-02 at least (99 %)" in text
    assert "not known of 3" in str(replace(PLAIN, rank_features=None)) and "Aliased features" not in str(PLAIN)
    assert "Given" in str(replace(PLAIN, given=("income",)))


# ------------------------------------------------------------------------------------------------------------ options
@pytest.mark.parametrize("budget", [0, 0.0, 1, 0.5, np.float64(0.3)])
def test_budgets_are_shares(budget: Any) -> None:
    assert check_budget(budget) == float(budget)


@pytest.mark.parametrize("budget", [True, -0.01, 1.01, "half", None, np.nan])
def test_other_budgets_are_refused(budget: Any) -> None:
    with pytest.raises(InputError, match="budget must be between 0"):
        check_budget(budget)


def test_options_that_contradict_each_other() -> None:
    problem, plain = Problem(**draw()), Problem(**draw() | {"protected": None})
    check_spending(problem, "sqp", 0.5, "training rows")
    check_spending(problem, "mdmm", 0.0, "new rows")
    check_spending(plain, "mdmm", 0.5, "new rows")
    with pytest.raises(InputError, match="use one of them"):
        check_spending(problem, "sqp", 0.5, "new rows")
    with pytest.raises(InputError, match='solver="mdmm" is the method of the paper, which has no budget'):
        check_spending(problem, "mdmm", 0.5, "training rows")
    for threshold in (0.01, 0.99, np.float64(0.5)):
        check_decisions(problem, threshold, "training rows", 0.0, None)
    for threshold in (0.0, 1.0, True, "half", -1):
        with pytest.raises(InputError, match="threshold must be a probability above 0 and below 1"):
            check_threshold(threshold)
    three = Problem(**draw(classes=3))
    for one, options, what in (
        (three, ("training rows", 0.0, None), "two classes"),
        (plain, ("training rows", 0.0, None), "needs protected columns"),
        (problem, ("new rows", 0.0, None), 'orthogonal_on="new rows" is about the probabilities'),
        (problem, ("training rows", 0.5, None), "budget= is about the probabilities"),
        (problem, ("training rows", 0.0, 0.1), "max_correlation= is about the probabilities"),
    ):
        with pytest.raises(InputError, match=what):
            check_decisions(one, 0.5, *options)


# ---------------------------------------------------------------------------------------------------------------- box
def test_limits_of_a_box() -> None:
    assert box_limit(800.0, 8) == pytest.approx(np.sqrt(2 * np.log(8) / 800))
    assert box_limit(800.0, 1) == box_limit(800.0, 2) and box_limit(800.0, 8, 3.0) == pytest.approx(
        3 * box_limit(800.0, 8)
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_a_box_is_reached_and_not_exceeded(weighted: bool) -> None:
    rows = draw(300)
    w = RNG(5).uniform(0.5, 2.0, 300) if weighted else None
    X = np.column_stack([rows.pop("protected"), RNG(1).normal(size=(300, 4)), np.full(300, 2.0)])
    names = [f"p{j}" for j in range(7)]
    problem = Problem(**rows, weight=w)
    found = solve_box(problem, X, names)
    share = problem.mean_weight()
    p = 1 / (1 + np.exp(-(rows["features"] @ found.coef[0] + found.intercept[0])))
    pc, Xc = p - share @ p, X[:, :6] - share @ X[:, :6]
    correlations = np.abs(share * pc @ Xc) / np.sqrt(share @ pc**2) / np.sqrt(share @ Xc**2)
    limit = box_limit(1.0 / (share @ share), 6)
    assert found.certificate.box == pytest.approx(limit) and correlations.max() <= limit * (1 + 1e-6)
    assert found.certificate.max_correlation == pytest.approx(correlations.max(), rel=1e-6)
    assert (
        found.certificate.n_at_limit
        == np.count_nonzero(correlations > 0.999 * limit)
        == np.count_nonzero(found.multipliers)
    )
    assert found.certificate.constant_protected == ("p6",) and found.certificate.is_optimal and found.solver == "box"
    free = solve(problem)
    assert found.certificate.loss_unconstrained == pytest.approx(free.certificate.loss, rel=1e-9)
    assert free.certificate.loss < found.certificate.loss
    for bad, factor, what in (
        (X[:-1], 1.0, "protected has 299 rows, and the features have 300"),
        (X, 0.0, "positive number"),
        (X, np.inf, "positive number"),
    ):
        with pytest.raises(InputError, match=what):
            solve_box(problem, bad, names, factor=factor)
    with pytest.raises(InputError, match="Every protected column is constant"):
        solve_box(problem, X[:, 6:], names[6:])
    with pytest.raises(InputError, match="two classes or numbers"):
        solve_box(Problem(**draw(classes=3) | {"protected": None}), X[:200], names)


def test_features_that_are_the_protected_columns_leave_no_box() -> None:
    rng = RNG(0)
    X = rng.normal(size=(200, 1))
    problem = Problem(X + 0.001 * rng.normal(size=(200, 1)), (X[:, 0] > 0).astype(float), family=family("binomial"))
    with pytest.raises(
        NotOrthogonalError, match=r"No predictions other than constant ones .* leave about 1\.00|could not be"
    ):
        solve_box(problem, X, ["x"])


# ---------------------------------------------------------------------------------------------------------- bootstrap
def test_deviations_of_refits_with_gaps() -> None:
    drawn = RNG(0).normal(size=(40, 1, 3))
    drawn[:10, 0, 1], drawn[:, 0, 2] = np.nan, np.nan
    drawn[0, 0, 2] = 1.0
    error, precision = _deviation(drawn)
    assert error[0, 0] == pytest.approx(drawn[:, 0, 0].std(ddof=1)) and error[0, 1] == pytest.approx(
        drawn[10:, 0, 1].std(ddof=1)
    )
    assert np.isnan(error[0, 2])
    x = drawn[:, 0, 0] - drawn[:, 0, 0].mean()
    assert precision[0, 0] == pytest.approx(np.sqrt(((x**4).mean() / x.var(ddof=1) ** 2 - 1) / 160))


def test_rows_and_clusters_are_drawn_with_replacement() -> None:
    rows = draw(60)
    cluster = np.repeat(np.arange(20), 3)[RNG(1).permutation(60)]
    problem = Problem(**rows, weight=np.arange(1.0, 61.0), offset=np.linspace(0, 1, 60), cluster=cluster)
    counts = np.bincount(RNG(2).integers(0, 20, 20), minlength=20)
    again = resample(problem, counts[problem.cluster], copies=True)
    for row in range(60):  # every part comes from the same row
        source = int(again.weight[row]) - 1
        assert again.offset[row] == problem.offset[source] and again.outcome[row] == problem.outcome[source]
        np.testing.assert_array_equal(again.features[row], problem.features[source])
        np.testing.assert_array_equal(again.protected[row], problem.protected[source])
    assert len(np.unique(again.cluster)) == 20 and (np.bincount(again.cluster) == 3).all()
    counts = np.bincount(RNG(3).integers(0, 60, 60), minlength=60)
    alone = resample(Problem(**rows), counts, copies=True)
    assert len(np.unique(alone.features[:, 0])) < 60 == len(alone.outcome) and alone.weight is None
    weighted = resample(Problem(**rows), counts, copies=False)
    np.testing.assert_array_equal(weighted.weight, counts[counts > 0])
    np.testing.assert_allclose(solve(weighted).coef, solve(alone).coef, rtol=1e-7)
    weighted = resample(problem, counts, copies=False)
    np.testing.assert_array_equal(weighted.weight, (counts * np.arange(1.0, 61.0))[counts > 0])


def test_the_linear_response_to_resamples_has_known_moments() -> None:
    response = RNG(0).exponential(size=(7, 2)) ** 2
    counts = RNG(2).multinomial(7, np.full(7, 1 / 7), size=400_000)
    drawn = (counts - 1.0) @ response
    for power, known in enumerate(sum_moments(response), 1):
        spread = (drawn**power).std(axis=0) / 400_000**0.5
        assert (np.abs((drawn**power).mean(axis=0) - known) < 4.0 * spread).all()


def test_refits_that_fail_are_counted() -> None:
    problem, calls = Problem(**draw()), list[int]()

    def refit(one: Problem):
        calls.append(1)
        if len(calls) % 3 == 0:
            raise NotOrthogonalError("no")
        return solve(one)

    found = refit_resampled(problem, refit, 6, RNG(0))
    assert (found.n_refits, found.n_failed) == (4, 2) and found.std_error.shape == (1, 5)
    calls.clear()
    none = refit_resampled(
        problem, lambda one: refit(one) if len(calls) < 1 else (_ for _ in ()).throw(InputError("no")), 4, RNG(0)
    )
    assert none.n_refits == 1 and none.n_failed == 3 and np.isnan(none.std_error).all()


# ------------------------------------------------------------------------------------------------------------ outcomes
def test_functions_of_the_outcome_sum_to_one() -> None:
    classes = OutcomeBasis(np.zeros(0), 3)
    np.testing.assert_allclose(classes(contrasts(3)[[0, 2, 1]]), np.eye(3)[[0, 2, 1]], atol=1e-14)
    assert classes.names == ("0", "1", "2")
    hats = OutcomeBasis(np.array([0.0, 1.0, 3.0]), 0)
    np.testing.assert_allclose(hats(np.array([[0.5], [3.0], [2.0]])), [[0.5, 0.5, 0], [0, 0, 1], [0, 0.5, 0.5]])
    assert hats.names == ("0", "1", "3")


@pytest.mark.parametrize("values", [FEW_VALUES, FEW_VALUES + 1])
def test_few_values_of_an_outcome_are_classes_and_many_have_knots(values: int) -> None:
    y = np.resize(np.arange(values) ** 2.0, 120)
    problem = Problem(RNG(0).normal(size=(120, 3)), y, RNG(1).normal(size=(120, 1)))
    basis = outcome_basis(problem.rows, problem.outcomes, problem.family)
    if values == FEW_VALUES:
        assert basis.knots.tolist() == (np.arange(values) ** 2.0).tolist()
    else:
        assert len(basis.knots) == KNOTS and basis.knots[0] == 0.0 and basis.knots[-1] == (values - 1) ** 2
        np.testing.assert_allclose(basis.knots[1:-1], np.quantile(y, [1 / 3, 2 / 3], method="inverted_cdf"), atol=5.1)


@pytest.mark.parametrize("weighted", [False, True])
def test_summaries_of_outcomes_are_merged(weighted: bool) -> None:
    y, offset = RNG(0).normal(size=30) + 5.0, RNG(1).normal(size=30)
    w = RNG(2).uniform(0.0, 2.0, 30) if weighted else None
    if w is not None:
        w[3], y[3] = 0.0, 99.0
    cut = slice(0, 11), slice(11, None)
    whole = OutcomeSummary.of(y, w, offset)
    a, b = (OutcomeSummary.of(y[c], None if w is None else w[c], offset[c]) for c in cut)
    v = np.ones(30) if w is None else w
    counted = y[v > 0]
    mean = v @ y / v.sum()
    for one in (whole, a.merge(b)):
        assert one.n_rows == len(counted) and one.weight == pytest.approx(v.sum())
        assert one.mean[0] == pytest.approx(mean) and one.scatter == pytest.approx(v @ (y - mean) ** 2)
        assert (one.low, one.high, one.top) == (counted.min(), counted.max(), offset.max())
        assert one.offset[0] == pytest.approx(v @ offset) and one.spread == pytest.approx(
            np.sqrt(v @ (y - mean) ** 2 / v.sum())
        )
    assert OutcomeSummary.of(y).merge(b).offset is None
    classes = whole.of_classes(np.array([0.25, 0.75]) * whole.weight)
    assert classes.scatter == pytest.approx(whole.weight * 0.375) and (classes.low, classes.high) == (0.0, 1.0)


# ------------------------------------------------------------------------------------------------------------ missing
def test_values_in_the_place_of_missing_ones() -> None:
    X = np.array([[1.0], [np.nan], [4.0]])
    made = doubly_robust(X, np.array([[2.0], [3.0], [3.0]]), np.array([0.5, 0.5, 0.25]))
    assert made.ravel().tolist() == [0.0, 3.0, 7.0]
    V = standardised(np.column_stack([RNG(0).normal(size=50) * 5 + 2, np.full(50, 3.0)]), np.ones(50))
    assert V.shape == (50, 1) and V.mean() == pytest.approx(0.0, abs=1e-12) and V.std() == pytest.approx(1.0)
    w = RNG(1).random(50)
    W = standardised(RNG(2).normal(size=(50, 2)), w)
    np.testing.assert_allclose(w @ W, 0.0, atol=1e-12)
    np.testing.assert_allclose(w @ W**2 / w.sum(), 1.0)
    np.testing.assert_array_equal(
        known_outcome(np.array([0.0, 1.0, 2.0]), family("multinomial")), [[0, 0], [1, 0], [0, 1]]
    )
    assert known_outcome(np.array([0.0, 1.0, 1.0]), family("binomial")).shape == (3, 1)


def test_observed_rows_and_clusters_are_spread_over_folds() -> None:
    observed = np.arange(53) < 23
    fold = draw_folds(observed, None)
    counts = np.bincount(fold[observed], minlength=FOLDS)
    assert counts.max() - counts.min() <= 1 and np.bincount(fold).max() - np.bincount(fold).min() <= 1
    cluster = np.arange(53) // 4
    by_cluster = draw_folds(observed, cluster)
    assert all(len(np.unique(by_cluster[cluster == g])) == 1 for g in range(14)) and len(np.unique(by_cluster)) == FOLDS
    np.testing.assert_array_equal(fold, draw_folds(observed, None))


def test_columns_are_predicted_by_ridge_regressions_of_other_folds() -> None:
    rng = RNG(0)
    V, w = standardised(rng.normal(size=(80, 2)), np.ones(80)), rng.uniform(0.5, 2.0, 80)
    X = V @ np.array([[1.0], [2.0]]) + rng.normal(size=(80, 1))
    observed = rng.random(80) < 0.7
    fold = draw_folds(observed, None)
    found = cross_fit_columns(V, X, observed, w, fold)
    losses = {}
    for l2 in (1e-3, 1e-4, 1e-5, 1e-2, 1e-1):
        predicted = np.empty((80, 1))
        for k in range(FOLDS):
            rest, held = observed & (fold != k), fold == k
            s = w[rest] / w[rest].sum()
            D = np.column_stack([np.ones(rest.sum()), V[rest]])
            B = np.linalg.solve((D * s[:, None]).T @ D + l2 * np.diag([0.0, 1.0, 1.0]), (D * s[:, None]).T @ X[rest])
            predicted[held] = np.column_stack([np.ones(held.sum()), V[held]]) @ B
        losses[l2] = (w[observed] @ (X - predicted)[observed] ** 2, predicted)
    assert min(np.abs(found - predicted).max() for _, predicted in losses.values()) < 1e-9
    complete = complete_protected(np.where(observed[:, None], X, np.nan), [slice(0, 1)], V, w)
    assert not np.isnan(complete.X).any() and complete.inflation >= 0.5 and complete.inflations.shape == (1,)
    same = complete_protected(X, [slice(0, 1)], V, w)
    np.testing.assert_array_equal(same.X, X)
    assert same.n_floored == 0


def test_inflation_is_the_largest_ratio_of_deviations() -> None:
    S, made = np.diag([1.0, 4.0]), np.diag([4.0, 4.0])
    largest, each = _inflation(S, made)
    assert largest == pytest.approx(2.0) and each.tolist() == pytest.approx([2.0, 1.0])
    assert _inflation(np.zeros((1, 1)), np.eye(1))[0] == pytest.approx(100.0)


# ------------------------------------------------------------------------------------------------------------ products
def test_products_that_matter_are_chosen() -> None:
    rng = RNG(0)
    rows = draw(600)
    useful = rng.normal(size=600)
    score = rows["features"][:, 0] + 1.5 * useful
    rows["outcome"] = (score + rng.logistic(size=600) > 0).astype(float)
    pilot = fit_pilot(Problem(**rows))
    candidates = np.column_stack([rng.normal(size=(600, 3)), useful, rows["features"][:, 1]])
    assert choose_columns(rows["features"], candidates, pilot, 1).tolist() == [3]
    chosen = choose_columns(rows["features"], candidates, pilot, 5, 50.0)
    assert chosen.tolist() == [3] and 4 not in choose_columns(rows["features"], candidates, pilot, 5)
    pairs = np.array([[0, 1], [2, 3]])
    assert screen(rows["features"], candidates, pairs, pilot, 2).tolist() == [0, 1]
    assert len(screen(rows["features"], candidates, pairs, pilot, 1)) == 1
    mean = rows["outcome"].mean()
    assert curvature_of(Problem(**rows)) == pytest.approx(mean * (1 - mean)) and pilot.price >= 0.0
