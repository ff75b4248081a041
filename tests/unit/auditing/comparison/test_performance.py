"""Metrics, their errors, and calibration: against scikit-learn, statsmodels, brute force and the bootstrap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn import metrics as reference

from setsquare.auditing.comparison.calibration import calibration
from setsquare.auditing.comparison.metric import Metric, difference, interval
from setsquare.auditing.comparison.performance import performance
from setsquare.errors import InputError, MissingValuesError
from setsquare.families import family


def named(y: np.ndarray, prediction: np.ndarray, glm: str, weight: np.ndarray | None = None) -> dict[str, Metric]:
    return {metric.name: metric for metric in performance(y, prediction, glm, weight)}


def draw_binary(n: int = 300, seed: int = 0, digits: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Outcome, two predictions with ties, weights."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n)
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-score))).astype(float)
    a, b = (1.0 / (1.0 + np.exp(-score - noise * rng.normal(size=n))) for noise in (0.3, 1.0))
    return y, a.round(digits).clip(0.01, 0.99), b.round(digits).clip(0.01, 0.99), rng.uniform(0.2, 3.0, n)


# ------------------------------------------------------------------------------------------------------ values
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_binomial_metrics_are_those_of_scikit_learn(weighted: bool) -> None:
    y, p, _, w = draw_binary()
    weight = w if weighted else None
    found = named(y, p, "binomial", weight)
    options = {"sample_weight": weight}
    assert found["accuracy"].value == pytest.approx(reference.accuracy_score(y, p > 0.5, **options), abs=1e-14)
    assert found["auc"].value == pytest.approx(reference.roc_auc_score(y, p, **options), abs=1e-13)
    assert found["brier"].value == pytest.approx(reference.brier_score_loss(y, p, **options), abs=1e-14)
    assert found["deviance"].value == pytest.approx(2.0 * reference.log_loss(y, p, **options), rel=1e-13)


@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_multinomial_metrics_are_those_of_scikit_learn(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    y, P = rng.integers(0, 4, 200), rng.dirichlet(np.ones(4), 200)
    weight = rng.uniform(0.2, 3.0, 200) if weighted else None
    found = named(y.astype(float), P, "multinomial", weight)
    auc = reference.roc_auc_score(np.eye(4)[y], P, average="macro", sample_weight=weight)
    assert found["accuracy"].value == pytest.approx(
        reference.accuracy_score(y, P.argmax(1), sample_weight=weight), abs=1e-14
    )
    assert found["auc"].value == pytest.approx(auc, abs=1e-13)
    assert found["deviance"].value == pytest.approx(2.0 * reference.log_loss(y, P, sample_weight=weight), rel=1e-13)
    one_hot = named(np.eye(4)[y], P, "multinomial", weight)
    assert all(one_hot[name].value == metric.value for name, metric in found.items())


@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_metrics_of_numbers_are_those_of_scikit_learn(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    mu = rng.gamma(3.0, 1.0, 200)
    y, weight = rng.gamma(2.0, mu / 2.0), rng.uniform(0.2, 3.0, 200) if weighted else None
    for glm in ("gaussian", "gamma", "tweedie", "poisson", "negative_binomial"):
        found = named(y, mu, glm, weight)
        assert found["rmse"].value == pytest.approx(
            reference.root_mean_squared_error(y, mu, sample_weight=weight), rel=1e-13
        )
        assert ("r2" in found) == (glm == "gaussian")
    assert named(y, mu, "gaussian", weight)["r2"].value == pytest.approx(
        reference.r2_score(y, mu, sample_weight=weight), abs=1e-13
    )
    for glm, power in (("gamma", 2.0), ("tweedie", 1.5), ("poisson", 1.0)):
        expected = reference.mean_tweedie_deviance(y, mu, power=power, sample_weight=weight)
        assert named(y, mu, glm, weight)["deviance"].value == pytest.approx(expected, rel=1e-12)


# ------------------------------------------------------------------------------------------------------ errors
def delong(y: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Areas (m,) and their covariance (m, m) as DeLong et al. (1988) write them: every pair, n x n of them."""
    up, down = scores[y == 1], scores[y == 0]
    kernel = (up[:, None] > down[None]) + 0.5 * (up[:, None] == down[None])
    v10, v01 = kernel.mean(axis=1), kernel.mean(axis=0)
    return kernel.mean(axis=(0, 1)), np.cov(v10.T) / len(up) + np.cov(v01.T) / len(down)


def test_the_influence_of_the_auc_gives_delongs_covariance_exactly() -> None:
    y, a, b, _ = draw_binary(n=150)
    value, covariance = delong(y, np.column_stack([a, b]))
    found = [named(y, p, "binomial")["auc"] for p in (a, b)]
    psi = np.column_stack([metric.influence for metric in found])
    m, k = int(y.sum()), int((1.0 - y).sum())
    parts = [psi[y == c].T @ psi[y == c] * count / (count - 1.0) for c, count in ((1, m), (0, k))]
    np.testing.assert_allclose([metric.value for metric in found], value, atol=1e-14)
    np.testing.assert_allclose(parts[0] + parts[1], covariance, rtol=1e-11)
    se = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1])
    assert difference(*found).std_error == pytest.approx(se, rel=1.0 / min(m, k))


def draw_numbers(glm: str, n: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outcome and two predictions that err together."""
    rng = np.random.default_rng(3)
    if glm == "gaussian":
        x = rng.normal(size=n)
        return x + rng.normal(size=n), x, 0.7 * x + 0.3 * rng.normal(size=n)
    mu = rng.gamma(3.0, 1.0, n)
    return rng.poisson(mu).astype(float), mu, 0.7 * mu + 0.5


CASES = {
    "binomial": draw_binary(200, digits=3)[:3],
    "gaussian": draw_numbers("gaussian"),
    "poisson": draw_numbers("poisson"),
}


@pytest.mark.parametrize("glm", CASES)
def test_errors_and_those_of_paired_differences_are_the_bootstraps(glm: str) -> None:
    y, a, b = CASES[glm]
    pick = np.random.default_rng(1)
    rows = [pick.integers(0, len(y), len(y)) for _ in range(800)]
    draws = np.array([[[m.value for m in performance(y[i], p[i], glm)] for p in (a, b)] for i in rows])
    one, two = performance(y, a, glm), performance(y, b, glm)
    np.testing.assert_allclose([interval(m).std_error for m in one], draws[:, 0].std(axis=0), rtol=0.12)
    gaps = draws[:, 0] - draws[:, 1]
    np.testing.assert_allclose(
        [difference(*pair).std_error for pair in zip(one, two, strict=True)], gaps.std(axis=0), rtol=0.12
    )
    unpaired = np.hypot(draws[:, 0].std(axis=0), draws[:, 1].std(axis=0))
    assert (gaps.std(axis=0) < 0.9 * unpaired).all()  # so that pairing is seen to matter


def test_the_influence_of_every_metric_is_the_derivative_in_the_weights() -> None:
    """An influence is by definition the slope of the value as a row gains weight."""
    for glm, (y, p, _) in CASES.items():
        w = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
        slopes = [*performance(y, p, glm, w), calibration(y, p, glm, w).slope]
        for i in (0, 7, 100):
            sides = []
            for step in (1e-4, -1e-4):
                moved = w.copy()
                moved[i] *= 1.0 + step
                sides.append([*performance(y, p, glm, moved), calibration(y, p, glm, moved).slope])
            for metric, up, down in zip(slopes, *sides, strict=True):
                assert metric.influence[i] == pytest.approx((up.value - down.value) / 2e-4, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("glm", CASES)
def test_duplicated_rows_in_clusters_have_the_error_of_the_original_rows(glm: str) -> None:
    y, a, b = CASES[glm]
    rows = np.repeat(np.arange(len(y)), 3)
    for once, other, many, others in zip(
        *(performance(y[i], p[i], glm) for i in (slice(None), rows) for p in (a, b)), strict=True
    ):
        plain, clustered = interval(once), interval(many, cluster=rows)
        assert clustered.std_error == pytest.approx(plain.std_error, rel=1e-11)
        assert (clustered.ci_low, clustered.ci_high) == pytest.approx((plain.ci_low, plain.ci_high), rel=1e-11)
        assert interval(many).std_error < 0.6 * plain.std_error  # what ignoring the clusters would claim
        expected, found = difference(once, other), difference(many, others, cluster=rows.astype(str))
        assert found.p_value == pytest.approx(expected.p_value, rel=1e-8)


def test_the_scale_of_the_weights_does_not_matter_and_rows_without_weight_say_nothing() -> None:
    y, p, _, w = draw_binary()
    for once, scaled in zip(performance(y, p, "binomial", w), performance(y, p, "binomial", 7.0 * w), strict=True):
        np.testing.assert_allclose(once.influence, scaled.influence, rtol=1e-10, atol=1e-17)
    held = np.arange(300) < 200
    some = performance(y, np.where(held, p, 0.0), "binomial", w * held)
    for part, whole in zip(performance(y[held], p[held], "binomial", w[held]), some, strict=True):
        assert part.value == pytest.approx(whole.value, rel=1e-12)
        np.testing.assert_allclose(whole.influence[~held], 0.0)


def test_intervals_cover_at_their_level() -> None:
    """400 samples: the limits are 4 binomial standard errors about 95 %."""
    truth = named(*draw_binary(400_000, seed=9, digits=9)[:2], "binomial")
    hits = []
    for seed in range(400):
        y, p, _, _ = draw_binary(120, seed=1000 + seed, digits=9)
        found = {name: interval(metric) for name, metric in named(y, p, "binomial").items()}
        hits.append([found[name].ci_low <= truth[name].value <= found[name].ci_high for name in truth])
    coverage = np.mean(hits, axis=0)
    assert (coverage > 0.906).all() and (coverage < 0.994).all()


# ---------------------------------------------------------------------------------------------- edges, bad input
def test_values_on_an_edge_have_no_interval() -> None:
    y = np.array([0.0, 0, 1, 1, 1])
    found = named(y, np.array([0.1, 0.2, 0.7, 0.8, 0.9]), "binomial", np.array([0.1, 0.2, 0.3, 0.7, 0.3]))
    for name in ("accuracy", "auc"):
        assert found[name].value == pytest.approx(1.0, abs=1e-14)
        assert np.isnan(interval(found[name]).std_error) and np.isnan(interval(found[name]).ci_low)
        assert np.isnan(difference(found[name], found[name]).p_value)
    exact = named(y, y, "gaussian")
    assert (exact["rmse"].value, exact["r2"].value) == (0.0, 1.0)
    assert all(np.isnan(interval(metric).ci_high) for metric in exact.values())


def test_one_class_and_a_constant_outcome_have_no_auc_and_no_r2() -> None:
    ones, p = np.ones(4), np.array([0.2, 0.6, 0.7, 0.9])
    assert np.isnan(named(ones, p, "binomial")["auc"].value)
    assert np.isnan(interval(named(ones, p, "binomial")["auc"]).std_error)
    assert not np.isfinite(named(ones, p, "gaussian")["r2"].value)
    assert np.isnan(interval(named(ones, p, "gaussian")["r2"]).ci_low)
    assert np.isnan(named(np.zeros(4), np.full((4, 3), 1 / 3), "multinomial")["auc"].value)
    assert np.isnan(calibration(ones, p, "binomial").slope.value)


def test_one_row_has_values_without_errors() -> None:
    for metric in performance(np.array([1.0]), np.array([0.8]), "binomial"):
        assert np.isnan(interval(metric).std_error)


def test_equal_predictions_do_not_differ() -> None:
    y, p, _, _ = draw_binary()
    for metric in performance(y, p, "binomial"):
        found = difference(metric, metric)
        assert (found.estimate, found.std_error, found.ci_low, found.p_value) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("glm", "y", "wrong", "right"),
    [
        ("binomial", [1.0, 0.0, 1.0], [0.0, 0.4, 1.2], [1.0, 0.0, 0.5]),
        ("poisson", [1.0, 0.0, 2.0], [0.0, 1.0, -0.1], [1.0, 0.0, 1.0]),
        ("gamma", [1.0, 2.0, 2.0], [0.0, 1.0, -0.1], [1.0, 1.0, 1.0]),
        ("tweedie", [1.0, 0.0, 2.0], [0.0, 1.0, -0.1], [1.0, 0.0, 1.0]),
        ("negative_binomial", [1.0, 0.0, 2.0], [0.0, 1.0, -0.1], [1.0, 0.0, 1.0]),
    ],
)
def test_impossible_predictions_are_counted_and_certain_ones_that_are_right_are_not(
    glm: str, y: list[float], wrong: list[float], right: list[float]
) -> None:
    found = named(np.array(y), np.array(wrong), glm)["deviance"]
    assert (found.value, found.n_infinite) == (np.inf, 2)
    assert np.isnan(interval(found).std_error) and interval(found).estimate == np.inf
    finite = named(np.array(y), np.array(right), glm)["deviance"]
    assert np.isfinite(finite.value) and finite.n_infinite == 0 and interval(finite).std_error > 0.0
    assert np.isnan(difference(found, finite).p_value)


def test_a_certain_class_counts_by_its_own_probability_whatever_is_left_for_the_others() -> None:
    y, P = np.array([0.0, 1.0, 2.0]), np.array([[1.0, 1e-20, 0.0], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    found = named(y, P, "multinomial")["deviance"]
    assert (found.value, found.n_infinite) == (pytest.approx(-2.0 * np.log([1.0, 0.5, 0.6]).mean()), 0)
    wrong = named(np.array([1.0, 1.0, 2.0]), P, "multinomial")["deviance"]
    assert wrong.value == pytest.approx(-2.0 * np.log([1e-20, 0.5, 0.6]).mean())


def test_intervals_stay_in_range() -> None:
    y, p, _, _ = draw_binary(25)
    for metric in performance(y, p, "binomial"):
        found = interval(metric, confidence=0.9999)
        assert 0.0 < found.ci_low < found.estimate < found.ci_high
        assert found.ci_high < 1.0 or metric.name == "deviance"
    r2 = named(*CASES["gaussian"][:2], "gaussian")["r2"]
    assert interval(r2, confidence=0.999999).ci_high < 1.0


@pytest.mark.parametrize(
    ("y", "prediction", "glm", "said"),
    [
        ([0.0, 1.0], [0.5], "binomial", "same rows"),
        ([0.0, 1.0], [[0.5, 0.5], [0.2, 0.8]], "binomial", "one column"),
        ([], [], "gaussian", "same rows"),
        ([0.0, 3.0], [[0.5, 0.5], [0.2, 0.8]], "multinomial", "Number the classes 0 to 1"),
        ([0.0, 2.0], [0.5, 0.5], "binomial", "between 0 and 1"),
        ([0.0, 1.0], [0.5, 0.5], "probit", "Unknown family"),
    ],
)
def test_bad_input_gets_a_sentence(y: list, prediction: list, glm: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        performance(np.array(y), np.array(prediction), glm)


def test_missing_values_weights_clusters_and_pairs_get_a_sentence() -> None:
    y, p, _, _ = draw_binary(20)
    with pytest.raises(MissingValuesError, match="prediction has 1 NaN"):
        performance(y, np.where(np.arange(20) == 3, np.nan, p), "binomial")
    with pytest.raises(InputError, match="not negative"):
        performance(y, p, "binomial", -np.ones(20))
    accuracy, auc, *_ = performance(y, p, "binomial")
    with pytest.raises(InputError, match=r"cluster has the shape \(3,\) but there are 20 rows"):
        interval(auc, cluster=np.arange(3))
    with pytest.raises(InputError, match=r"cluster has the shape \(3,\) but there are 20 rows"):
        calibration(y, p, "binomial", cluster=np.arange(3))
    with pytest.raises(InputError, match="not paired"):
        difference(accuracy, auc)


# ------------------------------------------------------------------------------------------------- calibration
@pytest.mark.parametrize(
    ("glm", "peer", "link"),
    [
        ("binomial", sm.families.Binomial(), lambda p: np.log(p / (1.0 - p))),
        ("poisson", sm.families.Poisson(), np.log),
        ("gaussian", sm.families.Gaussian(), np.positive),
    ],
)
@pytest.mark.parametrize("clustered", [False, True], ids=["rows", "clusters"])
def test_the_slope_and_its_robust_error_are_those_of_statsmodels(
    glm: str, peer: sm.families.Family, link: Callable[[np.ndarray], np.ndarray], clustered: bool
) -> None:
    y, p = CASES[glm][:2]
    groups = np.arange(len(y)) // 4
    options = (
        {"cov_type": "cluster", "cov_kwds": {"groups": groups, "use_correction": False}}
        if clustered
        else {"cov_type": "HC0"}
    )
    fit = sm.GLM(y, sm.add_constant(link(p)), peer).fit(tol=1e-14, **options)
    slope = calibration(y, p, glm).slope
    found = interval(slope, cluster=groups if clustered else None)
    count = len(np.unique(groups)) if clustered else len(y)
    assert slope.value == pytest.approx(fit.params[1], rel=1e-9)
    assert found.std_error == pytest.approx(fit.bse[1] * np.sqrt(count / (count - 1.0)), rel=1e-8)


@pytest.mark.parametrize("glm", ["gamma", "tweedie", "negative_binomial"])
def test_the_slope_finds_the_power_by_which_predictions_are_too_extreme(glm: str) -> None:
    rng = np.random.default_rng(0)
    mu = rng.gamma(3.0, 1.0, 5000)
    y = rng.poisson(mu).astype(float) if glm == "negative_binomial" else rng.gamma(2.0, mu / 2.0)
    fair, extreme = (calibration(y, mu**power, family(glm, "canonical")) for power in (1.0, 2.0))
    assert interval(fair.slope).ci_low < 1.0 < interval(fair.slope).ci_high
    assert extreme.slope.value == pytest.approx(0.5 * fair.slope.value, rel=1e-8)
    assert abs(interval(fair.in_the_large).estimate) < 0.1 < abs(interval(extreme.in_the_large).estimate)


def test_a_logistic_regression_is_calibrated_on_its_own_rows() -> None:
    y, p, _, w = draw_binary()
    design = sm.add_constant(np.log(p / (1.0 - p)))
    fitted = sm.GLM(y, design, sm.families.Binomial(), freq_weights=w).fit(tol=1e-14).predict()
    before, after = calibration(y, p**2, "binomial", w), calibration(y, fitted, "binomial", w)
    assert abs(before.in_the_large.value) > 0.05 and abs(before.slope.value - 1.0) > 0.05
    assert after.in_the_large.value == pytest.approx(0.0, abs=1e-10)
    assert after.slope.value == pytest.approx(1.0, abs=1e-8)


def test_a_slope_that_is_not_determined_is_nan_and_certain_rows_are_counted() -> None:
    y, p, _, _ = draw_binary()
    assert np.isnan(calibration(y, np.full(300, 0.3), "binomial").slope.value)
    assert np.isnan(calibration(y, np.where(y == 1, 0.5 + p / 2, p / 2), "binomial").slope.value)
    certain = np.arange(300) < 5
    some = calibration(y, np.where(certain, y, p), "binomial").slope
    assert some.n_infinite == 5 and some.value == pytest.approx(calibration(y[5:], p[5:], "binomial").slope.value)
    all_certain = calibration(y, y, "binomial").slope
    assert np.isnan(all_certain.value) and all_certain.n_infinite == 300


def test_bins_hold_every_row_once_and_add_up() -> None:
    y, p, _, w = draw_binary(digits=1)
    for weight in (None, w):
        bins = calibration(y, p, "binomial", weight, n_bins=5).bins
        assert sum(one.count for one in bins) == 300 and len(bins) <= 5
        assert (np.diff([one.prediction for one in bins]) > 0.0).all()
        assert all(one.outcome.ci_low <= one.outcome.estimate <= one.outcome.ci_high for one in bins)
    apart = calibration(y, np.arange(300.0) / 300.0, "binomial", n_bins=10).bins
    assert [one.count for one in apart] == [30] * 10
    np.testing.assert_allclose([one.outcome.estimate for one in apart], y.reshape(10, 30).mean(axis=1))
    doubled = calibration(*(np.repeat(part, 2) for part in (y, p)), "binomial", cluster=np.repeat(np.arange(300), 2))
    for once, twice in zip(calibration(y, p, "binomial").bins, doubled.bins, strict=True):
        assert twice.outcome.std_error == pytest.approx(once.outcome.std_error, rel=1e-10)


def test_of_several_classes_the_predicted_one_is_calibrated() -> None:
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), 5000)
    y = (rng.random((5000, 1)) > P.cumsum(axis=1)).sum(axis=1).astype(float)
    sharp = P**3 / (P**3).sum(axis=1, keepdims=True)
    fair, bold = calibration(y, P, "multinomial"), calibration(y, sharp, "multinomial")
    for metric, target in ((fair.in_the_large, 0.0), (fair.slope, 1.0)):
        assert interval(metric, 0.999).ci_low < target < interval(metric, 0.999).ci_high
    assert interval(bold.in_the_large).ci_high < 0.0 and interval(bold.slope).ci_high < 1.0
