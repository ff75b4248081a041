"""Options of the estimators just inside and just outside, and their rules against brute force."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold
from sklearn.svm import LinearSVC

import setsquare as sq
from setsquare.errors import BoundaryWarning, BrokenPromiseError, InputError, SetsquareWarning, UnseenLevelError
from setsquare.estimators import PrincipalComponents
from setsquare.estimators.classifier import _two_classes
from setsquare.estimators.feature_table import validate_features
from setsquare.estimators.folds import pools_unseen, split_by_time, split_rows
from setsquare.estimators.group_thresholds import GroupThreshold, find_threshold
from setsquare.estimators.odds_thresholds import Mixture, hull_of, meet, mix
from setsquare.estimators.promise import check_promise, keep_promise
from setsquare.estimators.relaxed import read_relax
from setsquare.estimators.second_moments import check_erasure, read_preserved
from setsquare.estimators.summary import Coefficients

RNG = np.random.default_rng


def draw(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = RNG(seed)
    x = rng.normal(size=n)
    Z = 0.6 * x[:, None] + rng.normal(size=(n, 3))
    return Z, (Z[:, 0] + x + rng.logistic(size=n) > 0).astype(int), x


# --------------------------------------------------------------------------------------------- thresholds by group
def test_a_threshold_selects_the_rate_with_ties_shared() -> None:
    rng = RNG(0)
    for trial in range(30):
        s, w = rng.integers(0, 6, 25) / 5.0, rng.uniform(0.1, 2.0, 25)
        rate = float(rng.uniform(0.02, 0.98))
        t, share = find_threshold(s, w, rate)
        assert 0.0 <= share <= 1.0
        selected = w @ GroupThreshold("a", 25, t, share).probability(s)
        assert selected == pytest.approx(rate * w.sum(), rel=1e-12), trial
    assert find_threshold(np.array([1.0, 2.0]), np.ones(2), 0.5) == (2.0, 1.0)


def test_a_hull_is_the_least_concave_curve_above_the_roc() -> None:
    rng = RNG(1)
    s, w = rng.integers(0, 12, 80) / 11.0, rng.uniform(0.2, 2.0, 80)
    y = (rng.random(80) < s).astype(float)
    hull = hull_of(s, y, w)
    for t in np.unique(s):
        tpr, fpr = (w * y) @ (s >= t) / (w @ y), (w * (1 - y)) @ (s >= t) / (w @ (1 - y))
        assert np.interp(fpr, hull.fpr, hull.tpr) >= tpr - 1e-12
    slopes = np.diff(hull.tpr) / np.maximum(np.diff(hull.fpr), 1e-300)
    assert (np.diff(slopes) < 0).all()
    for x, z, t in zip(hull.fpr[1:], hull.tpr[1:], hull.threshold[1:], strict=True):  # each corner is a threshold
        assert x == pytest.approx((w * (1 - y)) @ (s >= t) / (w @ (1 - y)))
        assert z == pytest.approx((w * y) @ (s >= t) / (w @ y))
    assert (hull.fpr[0], hull.tpr[0], hull.threshold[0]) == (0.0, 0.0, np.inf)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8])
def test_equalised_odds_are_the_cheapest_that_all_groups_reach(threshold: float) -> None:
    rng = RNG(2)
    groups = []
    for strength in (1.0, 2.5, 4.0):
        s = rng.random(60)
        groups.append((s, (rng.random(60) < special.expit(strength * (2 * s - 1))).astype(float), np.ones(60)))
    hulls = [hull_of(*group) for group in groups]
    fpr, tpr = meet(hulls, 0.4, threshold)
    x = np.linspace(0.0, 1.0, 20001)
    y = np.min([np.interp(x, hull.fpr, hull.tpr) for hull in hulls], axis=0)
    cost = threshold * 0.6 * x + (1 - threshold) * 0.4 * (1 - y)
    assert threshold * 0.6 * fpr + (1 - threshold) * 0.4 * (1 - tpr) == pytest.approx(cost.min(), abs=2e-4)
    for hull, (s, outcome, _) in zip(hulls, groups, strict=True):
        p = mix("a", 60, hull, fpr, tpr).probability(s)
        assert p @ outcome / outcome.sum() == pytest.approx(tpr, abs=1e-9)
        assert p @ (1 - outcome) / (1 - outcome).sum() == pytest.approx(fpr, abs=1e-9)


def test_a_mixture_by_hand() -> None:
    rule = Mixture("a", 5, 0.3, 0.6, 0.25, 0.2, 0.5)
    np.testing.assert_allclose(rule.probability(np.array([0.2, 0.3, 0.5, 0.6, 0.9])), [0.1, 0.3, 0.3, 0.9, 0.9])
    sharp = GroupThreshold("a", 5, 0.5, 0.25)
    assert sharp.probability(np.array([0.4, 0.5, 0.6])).tolist() == [0.0, 0.25, 1.0]


def test_decisions_have_the_rates_that_were_asked_for() -> None:
    rng = RNG(3)
    group = np.repeat(["a", "b"], 500)
    s = np.round(rng.random(1000) * np.where(group == "a", 1.0, 0.6), 2)
    rule = sq.GroupThresholds(rate=0.3).fit(s, group)
    chosen = rule.decide(s, group)
    for name in ("a", "b"):
        assert abs(chosen[group == name].sum() - 150) <= 1
    np.testing.assert_array_equal(chosen, rule.decide(s, group))
    assert (chosen != sq.GroupThresholds(rate=0.3, random_state=1).fit(s, group).decide(s, group)).any()
    own = sq.GroupThresholds(threshold=0.5).fit(s, group)
    assert own.rate_ == pytest.approx((s >= 0.5).mean())
    both = sq.GroupThresholds(rate=0.5).fit(s, pd.DataFrame({"g": group, "h": np.arange(1000) % 2}))
    assert [one.group for one in both.thresholds_] == ["a, 0", "a, 1", "b, 0", "b, 1"]
    assert list(rule.table().columns) == ["group", "n", "threshold", "at_threshold"]
    assert rule.table()["n"].tolist() == [500, 500]


def test_groups_and_rates_that_do_not_exist_are_refused() -> None:
    s, group = np.linspace(0.1, 0.9, 20), np.array(["a", "b"] * 10)
    y = (np.arange(20) % 4 < 2).astype(int)
    for options, arguments, what in (
        ({"rate": 0.0}, (), "rate must be above 0 and below 1, not 0.0"),
        ({"rate": 1.0}, (), "rate must be above 0 and below 1"),
        ({"rate": True}, (), "rate must be above 0"),
        ({"threshold": 0.95}, (), "selects nobody: it is above all scores, which go from 0.1 to 0.9"),
        ({"threshold": 0.1}, (), "selects everybody: it is at or below all scores"),
        ({"equalize": "odds", "rate": 0.5}, (None, y), "rate= is for equal selection rates"),
        ({"equalize": "odds", "threshold": 0.0}, (None, y), "threshold must be above 0 and below 1"),
        ({"equalize": "odds", "threshold": 1.0}, (None, y), "threshold must be above 0 and below 1"),
        ({"equalize": "odds"}, (), "needs the outcome of the rows"),
        ({"equalize": "odds"}, (None, np.arange(20)), "two classes, not of 20"),
        ({"equalize": "odds"}, (None, y[:-1]), "The outcome has 19 rows but the scores have 20"),
        ({"equalize": "odds"}, (None, (group == "a") * 1), "'a' has rows of one outcome class only"),
        ({}, (None, y), "outcome= is used with equalize="),
        ({}, (np.where(group == "b", 0.0, 1.0),), "The group 'b' has no row of positive weight"),
        ({"equalize": "none"}, (), "equalize='none' is not one of"),
    ):
        with pytest.raises(InputError, match=what):
            sq.GroupThresholds(**options).fit(s, group, *arguments)
    for values in (12, 13):
        column = np.resize(np.arange(values), 26)
        fitted = sq.GroupThresholds(rate=0.5)
        if values == 12:
            assert len(fitted.fit(np.linspace(0, 1, 26), column).thresholds_) == 12
        else:
            with pytest.raises(InputError, match="'x0' has 13 different numbers, which are no groups"):
                fitted.fit(np.linspace(0, 1, 26), column)
    with pytest.raises(UnseenLevelError, match="The group 'c' was not among the rows of the fit"):
        sq.GroupThresholds(rate=0.5).fit(s, group).decide([0.5], ["c"])


# --------------------------------------------------------------------------------------------------------- classifier
def test_two_classes_are_found_without_sorting() -> None:
    for y in (np.array([0, 1, 1]), np.array([2.0, 5.0]), np.array([True, False])):
        classes, codes = _two_classes(y)  # type: ignore[misc]
        wanted, places = np.unique(y, return_inverse=True)
        np.testing.assert_array_equal(classes, wanted)
        np.testing.assert_array_equal(codes.astype(int), places)
    for y in (np.array([0, 1, 2]), np.array([1, 1]), np.array([0.5, 1.0]), np.array(["a", "b"]), np.zeros(0), [0, 1]):
        assert _two_classes(y) is None


def test_classes_are_predicted_from_the_threshold_on() -> None:
    Z, y, x = draw()
    model = sq.OrthogonalGLMClassifier().fit(Z, y, protected=x)
    p, eta = model.predict_proba(Z), model.decision_function(Z)
    np.testing.assert_allclose(p[:, 1], special.expit(eta), rtol=1e-14)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(model.predict_log_proba(Z), np.log(p))
    np.testing.assert_array_equal(model.predict(Z), (eta > 0).astype(int))
    assert model.score(Z, y) == accuracy_score(y, model.predict(Z))
    w = RNG(1).random(300)
    assert model.score(Z, y, w) == pytest.approx(accuracy_score(y, model.predict(Z), sample_weight=w))
    three = sq.OrthogonalGLMClassifier().fit(Z, np.digitize(Z[:, 1], [-0.5, 0.5]), protected=x)
    assert three.decision_function(Z).shape == (300, 3)
    np.testing.assert_array_equal(three.predict(Z), three.predict_proba(Z).argmax(axis=1))
    shift = np.full(300, 3.0)
    moved = sq.OrthogonalGLMClassifier().fit(Z, y, protected=x, offset=np.zeros(300))
    np.testing.assert_allclose(moved.decision_function(Z, offset=shift) - eta, 3.0, atol=1e-6)


def test_regressions_are_scored_and_made_of_numbers() -> None:
    Z, y, x = draw()
    model = sq.OrthogonalGLMRegressor().fit(Z, Z[:, 1], protected=x)
    w = RNG(1).random(300)
    assert model.score(Z, Z[:, 1], w) == pytest.approx(r2_score(Z[:, 1], model.predict(Z), sample_weight=w))
    assert isinstance(model.intercept_, float) and model.coef_.shape == (3,)
    with pytest.raises(InputError, match="The multinomial family is for classes"):
        sq.OrthogonalGLMRegressor("multinomial").fit(Z, y, protected=x)
    for family, positive in (("poisson", True), ("gaussian", False), ("gamma", True)):
        assert sq.OrthogonalGLMRegressor(family).__sklearn_tags__().target_tags.positive_only is positive


def test_a_second_fit_starts_where_the_first_ended_only_if_asked() -> None:
    Z, y, x = draw()
    warm = sq.OrthogonalGLMClassifier(warm_start=True).fit(Z, y, protected=x)
    first = warm.n_iter_
    assert warm.fit(Z, y, protected=x).n_iter_ < first
    cold = sq.OrthogonalGLMClassifier().fit(Z, y, protected=x)
    assert cold.fit(Z, y, protected=x).n_iter_ == first
    warm.fit(Z[:, :2], y, protected=x)  # other columns: it starts anew
    assert warm.coef_.shape == (1, 2)
    assert (cold.n_dropped_, cold.has_offset_, cold.has_weight_, cold.l2_) == (0, False, False, 0.0)
    weighted = sq.OrthogonalGLMClassifier(l2=0.5).fit(Z, y, protected=x, sample_weight=np.ones(300))
    assert weighted.has_weight_ and weighted.l2_ == 0.5 and weighted.ball_ is None
    for l2 in ("much", -1.0):
        with pytest.raises(InputError, match="l2 must be a number of 0 or more"):
            sq.OrthogonalGLMClassifier(l2=l2).fit(Z, y, protected=x)


@pytest.mark.parametrize(("relax", "factor"), [(None, None), ("box", 1.0), ({"box": 2}, 2.0), ({"box": 0.5}, 0.5)])
def test_factors_of_a_box(relax: Any, factor: float | None) -> None:
    assert read_relax(sq.OrthogonalGLMClassifier(relax=relax)) == factor


@pytest.mark.parametrize(
    "relax", ["bag", {"box": 0.0}, {"box": -1}, {"box": np.inf}, {"box": True}, {"bag": 1.0}, {"box": 1, "a": 1}, {}]
)
def test_no_box(relax: Any) -> None:
    with pytest.raises(InputError, match="with a positive factor"):
        read_relax(sq.OrthogonalGLMClassifier(relax=relax))


def test_a_box_of_twice_the_size_lets_more_through() -> None:
    Z, y, x = draw()
    left = []
    for relax in ("box", {"box": 1}, {"box": 2}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SetsquareWarning)
            model = sq.OrthogonalGLMClassifier(relax=relax).fit(Z, y, protected=x)
        left.append(abs(np.corrcoef(model.predict_proba(Z)[:, 1], x)[0, 1]))
    assert left[0] == pytest.approx(left[1], rel=1e-6) and left[2] == pytest.approx(2.0 * left[0], rel=0.2)


def certificate(upper: float, **more: Any) -> Any:
    found = SimpleNamespace(
        upper=upper, confidence=0.95, correlation=0.05, by_cluster=False, n_units=100, n_parameters=5.0, n_directions=1
    )
    found.rows_for = lambda limit: more.get("needed")
    vars(found).update(more)
    asked = SimpleNamespace(
        new_rows=found, budget=more.get("budget", 0.0), orthogonal_on=more.get("orthogonal_on", "new rows")
    )
    return SimpleNamespace(certificate=asked, solver="sqp", status="converged")


def test_promises_are_kept_up_to_the_limit() -> None:
    for limit in (None, 0.01, 0.99):
        check_promise(limit)
    for limit in (0.0, 1.0, -0.1, 1.5):
        with pytest.raises(InputError, match="max_correlation must be above 0 and below 1"):
            check_promise(limit)
    keep_promise(certificate(0.1), 0.1)
    keep_promise(certificate(0.9), None)
    for solution, options, what in (
        (certificate(0.2), {}, "may not help; l2='auto' may (5 parameters are in use). A Prediction"),
        (
            certificate(0.2),
            {},
            "at most 0.200 (with 95% confidence; leave-one-out estimate 0.050), more than max_correl",
        ),
        (certificate(0.2, needed=700), {}, "About 700 rows like these 100 would keep it; so may l2='auto' (5 par"),
        (certificate(0.2, needed=700), {"automatic": True}, "would keep it. A Prediction"),
        (certificate(0.2, needed=9, by_cluster=True), {}, "About 9 clusters like these 100"),
        (certificate(0.2, n_directions=3), {}, "or fewer protected columns (now 3 directions)"),
        (certificate(0.2, orthogonal_on="training rows"), {}, "Fit with orthogonal_on='new rows'. The estimate"),
        (certificate(0.2, budget=0.5), {}, "Lower the budget (now 0.5): it is the share of the covariance"),
        (certificate(0.2, needed=4_500_000), {}, "About 4,500,000 rows like these 100"),
        (
            certificate(0.2, needed=10**18),
            {},
            "No table has the 1e+18 rows that would keep it: promise a larger correl",
        ),
    ):
        with pytest.raises(BrokenPromiseError) as caught:
            keep_promise(solution, 0.1, **options)
        assert what in str(caught.value)
    unknown = certificate(0.2)
    unknown.certificate.new_rows = None
    with pytest.raises(BrokenPromiseError, match=r"cannot be promised.* \(sqp: converged\)"):
        keep_promise(unknown, 0.1)


# ------------------------------------------------------------------------------------------------------------- folds
def test_spans_of_time_hold_out_later_rows() -> None:
    time = np.array([3, 1, 2, 4, 5, 0])
    folds = split_by_time(time, 2, 6, None)
    assert [(sorted(time[a]), sorted(time[b])) for a, b in folds] == [([0, 1], [2, 3]), ([0, 1, 2, 3], [4, 5])]
    first = split_by_time(time, 2, 6, np.array([0, 0, 1, 1, 2, 2]))  # a cluster counts by its first row
    for train, test in first:
        assert not set(np.array([0, 0, 1, 1, 2, 2])[train]) & set(np.array([0, 0, 1, 1, 2, 2])[test])
    split_by_time(time, 5, 6, None)
    for cv in (0, 6, True, 2.0, "2"):
        with pytest.raises(InputError, match="of 6 distinct times: give a number from 1 to 5"):
            split_by_time(time, cv, 6, None)
    with pytest.raises(InputError, match="Most rows have the same time"):
        split_by_time([0] * 50 + [1, 2, 3], 3, 53, None)


def test_folds_hold_out_each_row_once() -> None:
    y = np.arange(12) % 2
    for cv, cluster in ((2, None), (12, None), (3, np.arange(12) // 4), (KFold(4), None)):
        classifier = cv == 2
        folds = split_rows(cv, y, cluster, classifier, 0)
        assert sorted(np.concatenate([test for _, test in folds])) == list(range(12))
        assert all(sorted([*train, *test]) == list(range(12)) for train, test in folds)
    for cv, cluster, what in (
        (1, None, "folds of the rows"),
        (13, None, "folds of the rows"),
        (4, np.arange(12) // 4, "folds of 3 clusters are not possible: give 2 to 3"),
        (1, np.arange(12) // 4, "folds of 3 clusters"),
        ("two", None, "cv must be a number of folds"),
        ([(np.arange(6), np.arange(6, 12))], None, "hold out each row exactly once"),
        ([(np.arange(12), np.arange(12))], None, "A fold trains on rows that it tests"),
        (KFold(3, shuffle=True, random_state=0), np.arange(12) // 4, "trains on some rows of a cluster"),
    ):
        with pytest.raises(InputError, match=what):
            split_rows(cv, y, cluster, False, 0)
    assert pools_unseen(sq.OrthogonalGLMClassifier()) == {"unseen": "pool"}
    assert pools_unseen(sq.OrthogonalGLMClassifier(unseen="pool")) == pools_unseen(LinearRegression()) == {}


# -------------------------------------------------------------------------------------------------------- corrections
def test_predictions_outside_the_range_of_an_activation_are_refused() -> None:
    Z, y, x = draw()
    for activation, outcome, what in (
        ("exp", Z[:, 0], r"\d+ prediction\(s\) lie outside the range of .* exp"),
        ("relu", y, "relu"),
    ):
        with pytest.raises(InputError, match=what):
            sq.PredictionOrthogonalizer(LinearRegression(), activation=activation).fit(Z, outcome, protected=x)
    for options, what in (
        ({"method": "none"}, "method='none' is not one of 'generalized', 'linear'"),
        ({"prefit": "seen"}, "prefit='seen' is not one of 'held out'"),
        ({"cv": "rows"}, "cv='rows' is not a number of folds, a splitter, None or 'training rows'"),
        ({"missing": "drop"}, "none can be dropped"),
        ({"given": "outcome"}, "would need the outcome of the rows to be corrected"),
    ):
        with pytest.raises(InputError, match=what):
            sq.PredictionOrthogonalizer(LinearRegression(), **options).fit(Z, y, protected=x)
    with pytest.raises(InputError, match="LinearSVC has no predict_proba"):
        sq.PredictionOrthogonalizer(LinearSVC()).fit(Z, y, protected=x)


@pytest.mark.parametrize("method", ["generalized", "linear"])
def test_a_corrected_classifier_is_scored_with_weights(method: str) -> None:
    Z, y, x = draw()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SetsquareWarning)
        model = sq.PredictionOrthogonalizer(LogisticRegression(), method).fit(Z, y, protected=x)
    w, p = RNG(1).random(300), model.predict_proba(Z, x)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.predict(Z, x), p.argmax(axis=1))
    assert model.score(Z, y, x, w) == pytest.approx(accuracy_score(y, p.argmax(axis=1), sample_weight=w))
    assert model.learned_on_ == "cross-fitted predictions"
    assert (
        model.n_outside_ == (0 if method == "generalized" else int(((p < 0) | (p > 1)).any(axis=1).sum()))
        or method == "linear"
    )


def test_erasure_and_its_options() -> None:
    def options(**changed: Any) -> Any:
        return clone(sq.LinearOrthogonalizer()).set_params(**changed)

    for good in (
        {},
        {"using": "features", "orthogonal_on": "new rows"},
        {"moments": 2, "shrinkage": 0},
        {"moments": 2, "shrinkage": 1},
        {"using": "features", "moments": 2, "preserve": "outcome"},
        {"moments": 2, "basis": "cells"},
    ):
        check_erasure(options(**good))
    for bad, what in (
        ({"using": "both"}, "using='both' is not one of"),
        ({"orthogonal_on": "all rows", "using": "features"}, "orthogonal_on='all rows' is not one of"),
        ({"moments": 3}, "moments must be 1"),
        ({"orthogonal_on": "new rows"}, 'pass using="features"'),
        ({"orthogonal_on": "new rows", "using": "features", "moments": 2}, "exact on the training rows"),
        ({"orthogonal_on": "new rows", "using": "features", "preserve": "a"}, "exact on the training rows"),
        ({"preserve": "a"}, "preserve= is for erasure"),
        ({"moments": 2, "given": ["a"]}, "leave out given="),
        ({"moments": 2, "basis": "spline"}, 'pass basis="linear"'),
        ({"moments": 2, "shrinkage": 1.1}, "shrinkage must be"),
        ({"moments": 2, "shrinkage": -0.1}, "shrinkage must be"),
        ({"moments": 2, "shrinkage": "much"}, "shrinkage must be"),
    ):
        with pytest.raises(InputError, match=what):
            check_erasure(options(**bad))
    Z = np.zeros((4, 2))
    assert read_preserved(None, None, None, Z, None) is None  # type: ignore[arg-type]
    read_y = lambda y: read_preserved("outcome", None, None, Z, y)  # type: ignore[arg-type, return-value]  # noqa: E731
    np.testing.assert_array_equal(read_y(np.array([1.5, 2.5, 3.5, 1.5])), [[1.5], [2.5], [3.5], [1.5]])
    np.testing.assert_array_equal(read_y(np.array([3, 7, 7, 3])), [[0], [1], [1], [0]])
    np.testing.assert_array_equal(read_y(np.array(["a", "b", "c", "a"])), [[0, 0], [1, 0], [0, 1], [0, 0]])


def test_thousands_of_protected_columns_leave_nothing() -> None:
    from setsquare.estimators.linear import _refuse_nothing_left

    for n_features, n_protected in ((5, 1000), (1002, 1001)):
        _refuse_nothing_left(n_features, n_protected)
    with pytest.raises(InputError, match="1001 protected columns would leave nothing of 1001 features"):
        _refuse_nothing_left(1001, 1001)


def test_an_eraser_is_adapted_with_more_rows_than_features() -> None:
    Z, _, x = draw()
    eraser = sq.LinearOrthogonalizer(using="features", orthogonal_on="new rows").fit(Z, protected=x)
    clone_of = eraser.eraser_
    assert eraser.adapt(Z[:4]).eraser_ is not clone_of
    with pytest.raises(InputError, match=r"n_samples = 3\) to adapt the correction of 3 features"):
        eraser.adapt(Z[:3])
    for other in (sq.LinearOrthogonalizer(using="features"), sq.LinearOrthogonalizer()):
        with pytest.raises(InputError, match="can be adapted to other rows"):
            other.fit(Z, protected=x).adapt(Z)
    with pytest.raises(NotFittedError, match="not fitted"):
        sq.LinearOrthogonalizer().transform(Z)


# ------------------------------------------------------------------------------------------------------- components
def test_the_number_of_components() -> None:
    rng = RNG(0)
    Z = rng.normal(size=(50, 4)) * [4.0, 2.0, 1.0, 0.5] + 3.0
    share = np.linalg.svd(Z - Z.mean(0), compute_uv=False) ** 2
    share = np.cumsum(share / share.sum())
    for asked, count in (
        (None, 4),
        (2, 2),
        (1.0, 4),
        (float(share[1]), 2),
        (float(share[1]) + 1e-6, 3),
        (1e-9, 1),
        (4, 4),
    ):
        assert PrincipalComponents(asked).fit(Z).n_components_ == count
    for asked in (0, 5, 0.0, 1.01, -0.5):
        with pytest.raises(InputError, match="n_components"):
            PrincipalComponents(asked).fit(Z)
    assert PrincipalComponents(None).fit(Z[:3]).n_components_ == 3
    flat = PrincipalComponents().fit(np.ones((5, 2)))
    assert flat.n_components_ == 1 or flat.n_components_ == 2
    for scale in (1e-6, 1e6):
        assert PrincipalComponents(0.9).fit(scale * Z).n_components_ == PrincipalComponents(0.9).fit(Z).n_components_
    found = PrincipalComponents(None).fit(Z)
    top = found.components_[np.arange(4), np.abs(found.components_).argmax(axis=1)]
    assert (top > 0.0).all()
    np.testing.assert_allclose(found.transform(Z), (Z - Z.mean(0)) @ found.components_.T, atol=1e-12)
    raw = PrincipalComponents(None, center=False).fit(Z)
    np.testing.assert_allclose(raw.transform(Z), Z @ raw.components_.T, atol=1e-12)
    assert found.transform(Z.astype(np.float32)).dtype == np.float32
    with pytest.raises(InputError, match="One has 4 columns and the other 3"):
        found.merge(PrincipalComponents().fit(Z[:, :3]))
    bad = pd.DataFrame(Z, columns=list("abcd"))
    bad.loc[3, "b"] = np.nan
    with pytest.raises(InputError, match=r"Column\(s\) b have"):
        PrincipalComponents().fit(bad)


# ---------------------------------------------------------------------------------------------------- coefficients
def test_intervals_and_p_values_of_coefficients() -> None:
    few = np.array([[True, False]])
    table = Coefficients(("a", "b"), (), np.array([[1.0, 2.0]]), np.array([[0.5, 0.0]]), 0.9, (), few, few)
    first, second = table.rows()
    assert first["statistic"] == 2.0 and first["p_value"] == pytest.approx(2 * stats.norm.sf(2.0))
    half = stats.norm.ppf(0.95) * 0.5
    assert (first["ci_low"], first["ci_high"]) == pytest.approx((1 - half, 1 + half))
    assert np.isnan(second["statistic"]) and np.isnan(second["p_value"]) and second["ci_low"] == 2.0
    none = np.zeros((2, 1), dtype=bool)
    classes = Coefficients(
        ("a",), ("u", "v"), np.array([[1.0], [-1.0]]), np.ones((2, 1)), 0.95, (), np.array([[False], [True]]), none
    )
    assert [(row["class"], row["estimate"]) for row in classes.rows()] == [("u", 1.0), ("v", -1.0)]
    columns = ["term", "estimate", "std_error", "statistic", "p_value", "ci_low", "ci_high", "few_rows", "source"]
    assert list(table.table().columns) == columns and list(table.table().few_rows) == [True, False]
    assert list(table.table().source) == ["refits", "sandwich"]
    assert (
        "a * " in str(table) and "b * " not in str(table) and "v: a *" in str(classes) and "u: a *" not in str(classes)
    )


def test_features_are_checked_as_scikit_learn_does() -> None:
    model = sq.LinearOrthogonalizer()
    Z = np.zeros((3, 2))
    assert validate_features(model, Z, reset=True) is Z and model.n_features_in_ == 2
    with pytest.raises(ValueError, match="2 features"):
        validate_features(model, np.zeros((3, 3)), reset=False)
    for flat in (np.zeros(3), np.zeros((3, 1, 1))):
        with pytest.raises(ValueError, match=r"Expected 2D array|dim"):
            validate_features(sq.LinearOrthogonalizer(), flat, reset=True)
    for empty in (np.zeros((0, 2)), np.zeros((3, 0)), pd.DataFrame({"a": []})):
        with pytest.raises(ValueError, match=r"0 sample|0 feature|empty|minimum"):
            validate_features(sq.LinearOrthogonalizer(), empty, reset=True)
    assert validate_features(sq.LinearOrthogonalizer(), np.array([["a", 1]], dtype=object), reset=True).dtype == object
    assert validate_features(sq.LinearOrthogonalizer(), np.array([[1, 2]]), reset=True).dtype == np.float64


def test_signs_of_training_rows() -> None:
    Z, y, x = draw(200)
    forest = RandomForestClassifier(20, random_state=0).fit(Z, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sq.PredictionOrthogonalizer(forest, prefit=True).fit(Z, y, protected=x)
    assert any("look like the rows that the model was fitted on" in str(one.message) for one in caught)
    other = draw(190, seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", BoundaryWarning)
        sq.PredictionOrthogonalizer(forest, prefit="held out").fit(other[0], other[1], protected=other[2])
