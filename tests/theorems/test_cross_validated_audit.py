"""Audits of folds: models that cannot leak are not called leaks, however closely the outcome follows the columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse, stats
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import KFold, LeaveOneOut

import setsquare as sq
from setsquare._typing import Array
from setsquare.auditing.audit_models import predict_held_out
from setsquare.auditing.fold_bounds import scale_error
from setsquare.auditing.fold_dependence import corrected_p, mutual_scores, variances
from setsquare.auditing.held_out import as_numbers, determines
from setsquare.auditing.protected import Protected

N, N_SAMPLES = 200, 50
#: More false alarms than this happen in one of a thousand runs where 5 % are promised.
MOST = stats.binom.ppf(0.999, N_SAMPLES, 0.05)


def draw(seed: int, correlation: float, n: int = N) -> tuple[Array, Array, Array]:
    """Features that know nothing, an outcome that follows x, and x."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = correlation * x + np.sqrt(1.0 - correlation**2) * rng.normal(size=n)
    return rng.normal(size=(n, 5)), y, x


# ---------------------------------------------------------------------------------------------------------- size
@pytest.mark.parametrize(
    "model",
    [LinearRegression(), pytest.param(Lasso(0.1), marks=pytest.mark.slow)],
    ids=lambda model: type(model).__name__,
)
def test_models_that_know_nothing_are_seldom_called_a_leak(model: object) -> None:
    alarms = 0
    for seed in range(N_SAMPLES):
        alarms += sq.audit_model(model, *draw(seed, 1.0), random_state=seed).is_leak
    assert alarms <= MOST


def test_clusters_keep_the_promise() -> None:
    alarms = 0
    for seed in range(N_SAMPLES):
        Z, y, x = draw(seed, 1.0, N // 4)
        again, rng = np.repeat(np.arange(N // 4), 4), np.random.default_rng(seed)
        rows = Z[again] + 0.3 * rng.normal(size=(N, 5)), y[again] + 0.5 * rng.normal(size=N), x[again]
        alarms += sq.audit_model(LinearRegression(), *rows, cluster=again, random_state=seed).is_leak
    assert alarms <= MOST


@pytest.mark.parametrize("cv", [5, LeaveOneOut(), 2], ids=str)
def test_a_model_without_features_has_nothing_to_leak(cv: object) -> None:
    """Its mean moves against the held-out rows: with one row each, predictions are minus the outcome."""
    Z, y, x = draw(0, 1.0)
    found = sq.audit_model(DummyRegressor(), Z, y, x, cv=cv)
    assert found.verdict == "no leak found" and not found.evaluations


def test_a_leak_between_whole_folds_is_found() -> None:
    """Every fold has one group only: what the features say of it must not be taken off with the means."""
    rng = np.random.default_rng(0)
    group = np.repeat([0.0, 1.0, 2.0, 3.0], 50)
    Z = group[:, None] + rng.normal(size=(N, 1))
    found = sq.audit_model(LinearRegression(), Z, Z[:, 0] + rng.normal(size=N), group, cv=KFold(4))
    assert found.is_leak


def test_pairs_of_rows_inflate_the_variance_as_derived() -> None:
    """Var T = (1 + rho^2) times the sum of squares, for any number of features; also of the residuals' scores."""
    for correlation in (0.0, 0.7, 1.0):
        found = []
        for seed in range(1500):
            Z, y, x = draw(seed, correlation, 60)
            H = Z @ Z.T / 60
            H[np.equal.outer(np.arange(60) % 5, np.arange(60) % 5)] = 0.0  # no row scores its own fold
            predictions = H @ y
            found.append([x @ predictions, np.sum((x * predictions) ** 2)])
        T, squares = np.array(found).T
        assert np.var(T) / squares.mean() == pytest.approx(1.0 + correlation**2, rel=0.15)


# ------------------------------------------------------------------------------------------------------- p-values
@pytest.mark.parametrize(("s", "df"), [([1.0], 1), ([0.9], 2), ([0.8], 6), ([0.7, 0.4], 4), ([0.3], 40)])
def test_corrected_p_values_are_uniform_where_rows_score_each_other(s: list[float], df: int) -> None:
    weights = variances(np.array(s), df)
    statistics = np.random.default_rng(0).normal(size=(300_000, df)) ** 2 @ weights
    for share in (0.3, 0.05, 0.005):
        p = float(stats.chi2.sf(np.quantile(statistics, 1.0 - share), df))
        assert corrected_p(p, df, np.array(s)) == pytest.approx(share, rel=0.12 if len(s) > 1 else 0.06)


def test_corrected_p_values_at_the_ends() -> None:
    for p in (0.0, 1.0, 1e-280, 0.5, 0.999):
        assert corrected_p(p, 5, np.array([0.0])) == pytest.approx(p, rel=1e-9)
        assert p <= corrected_p(p, 5, np.array([0.7])) <= 1.0
    assert np.isnan(corrected_p(np.nan, 3, np.array([0.5])))
    assert corrected_p(0.002, np.nan, np.array([1.0])) == pytest.approx(corrected_p(0.002, 1, np.array([1.0])))


@pytest.mark.parametrize("estimate", [0.0, 0.01, 0.05, 0.1, 0.4])
def test_a_bound_with_a_larger_error_is_that_of_the_error(estimate: float) -> None:
    def bound(error: float) -> float:
        grid = np.linspace(0.0, 1.0, 100_001)
        likely = stats.norm.cdf((estimate - grid) / error) - stats.norm.cdf((-estimate - grid) / error) >= 0.05
        return max(float(grid[likely].max(initial=0.0)), stats.norm.ppf(0.95) * error)

    assert bound(0.065) - 1e-4 <= scale_error(estimate, bound(0.05), 1.3) <= bound(0.065) + 0.012  # at most too large


# -------------------------------------------------------------------------------------------------------- singular
def columns(*values: Array, **rows: Array) -> Protected:
    names = tuple(f"x{j}" for j in range(len(values)))
    return Protected(np.column_stack(values), names, names, **rows)


def test_what_the_predictions_explain_does_not_count() -> None:
    Z, y, x = draw(0, 0.8, 5000)
    nothing = mutual_scores(y[:, None], np.zeros((5000, 1)), columns(x, Z[:, 0]))
    assert nothing.together[0] == pytest.approx(0.8, abs=0.02)
    assert nothing.by_column["x0"] == pytest.approx(0.8, abs=0.02) and nothing.by_column["x1"] < 0.05
    explained = mutual_scores(y[:, None], x[:, None], columns(x, Z[:, 0]))
    assert explained.together[0] < 0.05
    twice = mutual_scores(y[:, None], np.zeros((5000, 1)), columns(x, 2.0 * x, Z[:, 0]))
    assert twice.together[0] == pytest.approx(float(nothing.together[0]), rel=1e-6)
    assert twice.by_column["x0"] == 0.0 and twice.alone["x1"] == pytest.approx(nothing.alone["x0"])


def test_curves_concern_other_tests_than_lines() -> None:
    Z, y, x = draw(0, 0.8, 5000)
    bent = mutual_scores((y * y)[:, None], np.zeros((5000, 1)), columns(x, Z[:, 0]))
    assert bent.beyond[0] == pytest.approx(0.64, abs=0.04) and bent.together[0] < 0.1
    straight = mutual_scores(y[:, None], np.zeros((5000, 1)), columns(x, Z[:, 0]))
    assert straight.beyond[0] < 0.1
    assert bent.concerning("shape", "curvature")[0] > 0.5 > bent.concerning("glm", "x0")[0]
    assert bent.concerning("forest", "all protected columns")[0] > 0.5


def test_copies_in_clusters_and_equal_weights_change_nothing() -> None:
    _, y, x = draw(1, 0.6)
    again = np.repeat(np.arange(N), 3)
    once = mutual_scores(y[:, None], np.zeros((N, 1)), columns(x))
    copies = mutual_scores(y[again, None], np.zeros((3 * N, 1)), columns(x[again], cluster=again))
    weighted = mutual_scores(y[:, None], np.zeros((N, 1)), columns(x, weight=np.full(N, 7.0)))
    assert copies.together[0] == pytest.approx(float(once.together[0])) == pytest.approx(float(weighted.together[0]))


def test_two_classes_are_one_number() -> None:
    _, y, x = draw(2, 0.9)
    outcome = as_numbers(y > 0.0, np.array([False, True]))
    both = mutual_scores(outcome, np.zeros_like(outcome), columns(x))
    one = mutual_scores(outcome[:, 1:], np.zeros((N, 1)), columns(x))
    assert both.together[0] == pytest.approx(float(one.together[0]))


# -------------------------------------------------------------------------------------------- known by value
class Constrained(RegressorMixin, BaseEstimator):
    """A user's own model: least squares on three features, orthogonal to the others on the training rows."""

    def fit(self, Z: Array, y: Array) -> Constrained:
        Z = np.asarray(Z, dtype=float)
        F, X = (part - part.mean(axis=0) for part in (Z[:, :3], Z[:, 3:]))
        X = X[:, :2]
        inverse, C = np.linalg.inv(F.T @ F), F.T @ X
        plain = inverse @ F.T @ (y - y.mean())
        self.coef_ = plain - inverse @ C @ np.linalg.solve(C.T @ inverse @ C, C.T @ plain)
        return self

    def predict(self, Z: Array) -> Array:
        return np.asarray(Z, dtype=float)[:, :3] @ self.coef_


def corrected(seed: int) -> tuple[pd.DataFrame, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 2))
    F = rng.normal(size=(N, 3)) + np.column_stack([X, X[:, 0]])
    return pd.DataFrame(np.column_stack([F, X]), columns=[*"abcde"]), F.sum(axis=1) + rng.normal(size=N)


def test_bounds_are_the_same_whether_columns_are_named_or_given() -> None:
    Z, y = corrected(0)
    named = sq.audit_model(Constrained(), Z, y, ["d", "e"]).certificate
    table = Z[["d", "e"]].rename(columns={"d": "age", "e": "income"})
    given = sq.audit_model(Constrained(), Z, y, table).certificate
    other_units = sq.audit_model(Constrained(), Z, y, table * [10.0, -3.0] + 5.0).certificate
    assert given.correlation_upper == pytest.approx(named.correlation_upper, rel=1e-9)
    assert other_units.correlation_upper == pytest.approx(named.correlation_upper, rel=1e-6)


def test_duplicated_columns_do_not_widen_bounds() -> None:
    Z, y = corrected(1)
    once = sq.audit_model(Constrained(), Z, y, ["d", "e"]).certificate
    Z = Z.assign(again=Z["d"], thrice=3.0 * Z["e"], once_more=-Z["e"])
    more = sq.audit_model(Constrained(), Z, y, ["d", "e", "again", "thrice", "once_more"]).certificate
    assert more.correlation_upper == pytest.approx(once.correlation_upper, rel=1e-6)


def test_features_that_determine_a_column_are_found() -> None:
    rng = np.random.default_rng(0)
    Z, group = rng.normal(size=(N, 4)), rng.choice(["a", "b", "c"], N)
    indicator = (group == "b").astype(float)[:, None]
    frame = pd.DataFrame(Z, columns=list("wxyz"))
    known = {
        "itself": np.column_stack([Z, indicator]),
        "in a combination": np.column_stack([Z[:, :2], Z[:, 2] + 3.0 * indicator[:, 0], Z[:, 2]]),
        "text": frame.assign(group=group),
        "finer groups": frame.assign(cell=np.char.add(group, rng.choice(["1", "2"], N))),
        "sparse": sparse.csr_matrix(np.column_stack([Z, 1.0 - indicator])),
        "single precision": np.column_stack([Z, 70.0 + indicator]).astype(np.float32),
    }
    for name, features in known.items():
        assert determines(features, indicator, rng), name
    unknown = {
        "noise": Z,
        "other groups": frame.assign(group=rng.permutation(group)),
        "an identifier": frame.assign(row=[f"r{i}" for i in range(N)]),
        "nearly": np.column_stack([Z, indicator[:, 0] + 0.01 * rng.normal(size=N)]),
        "many": rng.normal(size=(N, 3 * N)),
        "images": rng.normal(size=(N, 40, 40)),
        "missing": np.where(rng.random((N, 4)) < 0.1, np.nan, Z),
        "texts": [f"text {i}" for i in range(N)],
        "wide and sparse": sparse.random(N, 5000, 0.01, format="csr", random_state=0),
    }
    for name, features in unknown.items():
        assert not determines(features, indicator, rng), name
    assert determines(np.column_stack([rng.normal(size=(N, 3 * N)), -indicator]), indicator, rng)


# -------------------------------------------------------------------------------------------------- any prediction
@pytest.mark.parametrize("n_classes", [2, 3])
def test_labels_are_audited_less_the_shares_of_their_models(n_classes: int) -> None:
    rng = np.random.default_rng(0)
    x, Z = np.sort(rng.normal(size=N)), rng.normal(size=(N, 2))
    y = np.array(["low", "mid", "high"])[np.digitize(x, [0.0] if n_classes == 2 else [-0.5, 0.5])]
    held = predict_held_out(RidgeClassifier(), Z, y, None, KFold(5), None, None, rng)
    assert held.means_differ and held.numbers.shape == (N, n_classes)
    np.testing.assert_allclose(held.means.sum(axis=1), 1.0)
    found = sq.audit_model(RidgeClassifier(), Z, y, x, cv=KFold(5))
    assert found.family == ("binomial" if n_classes == 2 else "multinomial")
    assert any("class" in note for note in found.notes) and not any("outside" in note for note in found.notes)


def test_probabilities_stay_probabilities_where_means_are_taken_off() -> None:
    rng = np.random.default_rng(0)
    x, Z = rng.normal(size=N), 3.0 * rng.normal(size=(N, 2))
    y = Z[:, 0] + 0.3 * rng.normal(size=N) > 2.0
    found = sq.audit_model(LogisticRegression(), Z, y, x, cluster=np.arange(N) // 20)
    assert found.family == "binomial" and not any("outside" in note for note in found.notes)
    assert sum("probabilities" in note for note in found.notes) <= 1
