"""Sequential bets, metrics and permutation tests of audits against brute force, with their limits from both sides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from setsquare.auditing.comparison.calibration import calibration
from setsquare.auditing.comparison.metric import (
    Metric,
    difference,
    interval,
    link_scale,
    mean_metric,
    midranks,
    read_pair,
)
from setsquare.auditing.evaluations.agreement import _rank
from setsquare.auditing.evaluations.gcm import smooth_features
from setsquare.auditing.evaluations.maximum import largest_covariance
from setsquare.auditing.evaluations.permutation import (
    columns_by_source,
    paired_arrays,
    permutation_test,
    row_blocks,
    sample_rows,
)
from setsquare.auditing.fold_bounds import _widen
from setsquare.auditing.monitoring.betting import STAKE, place_bets, start_bets, wealth_path
from setsquare.auditing.monitoring.pairing import LEARN, MOST, WAITING, pair_rows, start_pairing
from setsquare.errors import InputError
from setsquare.families import family

RNG = np.random.default_rng


# -------------------------------------------------------------------------------------------------------------- betting
def wealth_by_hand(D: np.ndarray, m: float) -> np.ndarray:
    """Log wealth after each row, with half of it bet on each side."""
    up = down = 1.0
    total = squares = 0.0
    found = []
    for t, d in enumerate(D):
        mean, variance = total / (t + 1.0), (1.0 + squares) / (t + 1.0)
        bet = (mean - m) / (variance + (mean - m) ** 2)
        up *= 1.0 + min(max(bet, 0.0), STAKE / (1.0 + m)) * (d - m)
        down *= 1.0 + max(min(bet, 0.0), -STAKE / (1.0 - m)) * (d - m)
        total += d
        squares += (d - total / (t + 2.0)) ** 2
        found.append(math.log(0.5 * (up + down)))
    return np.array(found)


def test_wealth_grows_as_by_hand_and_does_not_depend_on_calls() -> None:
    D = np.clip(RNG(0).normal(0.25, 0.3, 1300), -1, 1)
    path = wealth_path(D)
    np.testing.assert_allclose(path, wealth_by_hand(D, 0.0), rtol=1e-9)
    whole, parts = place_bets(start_bets(), D, 0.05), start_bets()
    for cut in np.split(D, [1, 7, 500]):
        parts = place_bets(parts, cut, 0.05)
    assert whole.alarm == parts.alarm == int(np.flatnonzero(path >= math.log(20))[0]) + 1
    assert (whole.low, whole.high) == pytest.approx((parts.low, parts.high)) and whole.n == 1300
    assert whole.log_wealth == pytest.approx(path[-1], rel=1e-9) and whole.mean == pytest.approx(D.mean())
    assert whole.low < D.mean() < whole.high and whole.low > 0.0 and whole.is_constant
    ruled_out = wealth_by_hand(D, round(whole.low - 0.01, 4)).max()
    assert ruled_out >= math.log(20) > wealth_by_hand(D, round(D.mean(), 2)).max()
    strict = place_bets(start_bets(), D, 0.001)
    assert strict.alarm > whole.alarm and strict.low < whole.low and strict.high > whole.high


def test_before_the_first_row_nothing_is_known() -> None:
    bets = start_bets()
    assert (
        math.isnan(bets.mean) and bets.is_constant and bets.log_wealth == 0.0 and (bets.low, bets.high) == (-1.0, 1.0)
    )
    assert place_bets(bets, np.zeros(0), 0.05) is bets
    assert bets.grid[0] == -1.0 and bets.grid[-1] == 1.0 and 0.0 in bets.grid
    turned = place_bets(place_bets(bets, np.full(400, 0.9), 0.05), np.full(4000, -0.9), 0.05)
    assert not turned.is_constant


@pytest.mark.parametrize(
    ("share", "blocks"),
    [(0.5, (1, 1)), (0.2, (1, 3)), (0.8, (3, 1)), (0.02, (1, MOST)), (0.0, (1, MOST)), (0.44, (1, 1))],
)
def test_blocks_of_pairs_follow_the_first_rows(share: float, blocks: tuple[int, int]) -> None:
    is_first = np.arange(LEARN) < share * LEARN
    state, none = pair_rows(start_pairing(), np.zeros(LEARN - 1), is_first[:-1])
    assert state.blocks == (0, 0) and len(none) == 0
    state, _ = pair_rows(state, np.zeros(1), is_first[-1:])
    assert state.blocks == blocks and (state.n_first, state.n_second) == (is_first.sum(), (~is_first).sum())


def test_pairs_are_differences_of_means_in_order() -> None:
    rng = RNG(0)
    is_first, scores = rng.random(1000) < 0.25, rng.random(1000)
    state, found = pair_rows(start_pairing(), scores, is_first)
    a, b = state.blocks
    first, second = scores[is_first], scores[~is_first]
    n = min(len(first) // a, len(second) // b)
    wanted = [first[k * a : (k + 1) * a].mean() - second[k * b : (k + 1) * b].mean() for k in range(n)]
    np.testing.assert_allclose(found, wanted)
    assert len(state.first) == len(first) - n * a and len(state.second) == len(second) - n * b and state.dropped == 0
    late, _ = pair_rows(state, np.zeros(WAITING + 100), np.zeros(WAITING + 100, dtype=bool))
    assert len(late.second) <= WAITING and late.dropped > 0


# -------------------------------------------------------------------------------------------------------------- metrics
@pytest.mark.parametrize("clustered", [False, True])
def test_intervals_of_a_mean_are_students(clustered: bool) -> None:
    x = RNG(0).normal(3.0, 1.0, 30)
    cluster = np.arange(30) // 2 if clustered else None
    metric = mean_metric("mean", x, np.full(30, 1 / 30))
    found = interval(metric, 0.9, cluster)
    units = x - x.mean() if cluster is None else (x - x.mean()).reshape(15, 2).sum(1)
    n = len(units)
    error = math.sqrt((units**2).sum() / 900 * n / (n - 1))
    half = stats.t.ppf(0.95, n - 1) * error
    assert found.estimate == pytest.approx(x.mean()) and found.std_error == pytest.approx(error)
    assert (found.ci_low, found.ci_high) == pytest.approx((x.mean() - half, x.mean() + half))


def test_scales_keep_intervals_in_range() -> None:
    x = (RNG(0).random(40) < 0.9).astype(float)
    w = np.full(40, 1 / 40)
    p = x.mean()
    for scale, there, slope, back in (
        ("logit", lambda v: math.log(v / (1 - v)), 1 / (p * (1 - p)), lambda t: 1 / (1 + math.exp(-t))),
        ("log", math.log, 1 / p, math.exp),
        ("log rest", lambda v: math.log(1 - v), 1 / (p - 1), lambda t: 1 - math.exp(t)),
    ):
        found = interval(mean_metric("m", x, w, None, scale))
        half = stats.t.ppf(0.975, 39) * found.std_error * slope
        ends = sorted((back(there(p) - half), back(there(p) + half)))
        assert (found.ci_low, found.ci_high) == pytest.approx(tuple(ends)), scale
    assert math.isnan(interval(mean_metric("m", np.ones(40), w, None, "logit")).ci_low)
    assert math.isnan(interval(mean_metric("m", np.ones(1), np.ones(1))).std_error)
    assert [link_scale(family(name)) for name in ("binomial", "gaussian", "poisson")] == ["logit", "identity", "log"]


def test_paired_differences() -> None:
    a, b = RNG(0).normal(size=(2, 25))
    w = np.full(25, 1 / 25)
    found = difference(mean_metric("m", a, w), mean_metric("m", b, w))
    theirs = stats.ttest_rel(a, b)
    assert found.p_value == pytest.approx(theirs.pvalue)
    assert (found.ci_low, found.ci_high) == pytest.approx(tuple(theirs.confidence_interval()))
    same = difference(mean_metric("m", a, w), mean_metric("m", a, w))
    assert same.estimate == 0.0 and same.p_value == 1.0
    shifted = difference(mean_metric("m", a + 1.0, w), mean_metric("m", a, w))
    assert shifted.p_value < 1e-9
    with pytest.raises(InputError, match="m and k are not paired"):
        difference(mean_metric("m", a, w), mean_metric("k", b, w))
    with pytest.raises(InputError, match="are not paired"):
        difference(mean_metric("m", a, w), mean_metric("m", b[:-1], w[:-1]))
    assert math.isnan(difference(Metric("m", np.inf, a), Metric("m", 0.0, b)).p_value)
    score, weight = np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert midranks(score, weight)[0].tolist() == [9.5, 1.0, 5.5, 5.5]


def test_outcomes_and_predictions_are_read_together() -> None:
    y, mu, w = read_pair(np.array([0, 2, 1]), np.full((3, 3), 1 / 3), family("multinomial"), None)
    assert y.tolist() == np.eye(3)[[0, 2, 1]].tolist() and w.sum() == pytest.approx(1.0) and mu.shape == (3, 3)
    for outcome, prediction, name, what in (
        (np.zeros(3), np.zeros(2), "gaussian", r"shape \(3,\) and the prediction \(2,\)"),
        (np.zeros((3, 1)), np.zeros((3, 1)), "gaussian", "one column"),
        (np.zeros(0), np.zeros(0), "gaussian", "for the same rows"),
        (np.array([0.0, 3.0]), np.full((2, 3), 1 / 3), "multinomial", "Number the classes 0 to 2"),
        (np.array([0.0, np.nan]), np.zeros(2), "gaussian", "The outcome has 1 NaN"),
        (np.array([0.0, 1.0]), np.array([0.0, np.inf]), "gaussian", "The prediction has 1"),
        (np.array([0.0, 2.0]), np.array([0.1, 0.2]), "binomial", "between 0 and 1"),
    ):
        with pytest.raises(InputError, match=what):
            read_pair(outcome, prediction, family(name), None)


def test_bins_and_slope_of_calibrated_predictions() -> None:
    rng = RNG(0)
    mu = rng.random(2000)
    y = (rng.random(2000) < mu).astype(float)
    found = calibration(y, mu, "binomial", n_bins=5)
    assert found.in_the_large.value == pytest.approx((y - mu).mean()) and abs(found.slope.value - 1.0) < 0.15
    assert [one.count for one in found.bins] == [400] * 5
    order = np.argsort(mu)
    for k, one in enumerate(found.bins):
        rows = order[400 * k : 400 * (k + 1)]
        assert one.prediction == pytest.approx(mu[rows].mean()) and one.outcome.estimate == pytest.approx(
            y[rows].mean()
        )
        assert one.outcome.ci_low < one.outcome.estimate < one.outcome.ci_high
    assert len(calibration(y, mu, "binomial").bins) == 10
    steep = calibration(y, 1 / (1 + np.exp(-3 * np.log(mu / (1 - mu)))), "binomial")
    assert steep.slope.value == pytest.approx(found.slope.value / 3, rel=1e-4)


# --------------------------------------------------------------------------------------------------------- permutations
def test_a_permutation_p_value_counts_ties_against_the_observed() -> None:
    null = np.array([0.1, 0.5, 0.5 - 1e-12, 0.7, np.nan])
    found = permutation_test(0.5, null[:4], n_rows=9)
    assert found.p_value == pytest.approx(4 / 5) and found.null_mean == pytest.approx(null[:4].mean())
    assert (found.n_permutations, found.n_rows, found.n_blocks, found.null_sd) == (
        4,
        9,
        1,
        pytest.approx(null[:4].std()),
    )
    assert permutation_test(0.5, null, n_rows=9).p_value == pytest.approx(5 / 6)
    assert permutation_test(9.0, null[:4], n_rows=9).p_value == pytest.approx(1 / 5)


def test_rows_are_drawn_without_replacement_in_equal_blocks() -> None:
    rng = RNG(0)
    for n, most, size, shape in (
        (100, 1000, 30, (4, 25)),
        (100, 60, 30, (2, 30)),
        (100, 61, 30, (3, 20)),
        (8, 8, 8, (1, 8)),
    ):
        blocks = row_blocks(n, rng, max_rows=most, block_rows=size)
        assert blocks.shape == shape and len(np.unique(blocks)) == blocks.size and blocks.max() < n
    for most, size in ((7, 100), (100, 7)):
        with pytest.raises(InputError, match="at least 8 rows per block"):
            row_blocks(100, rng, max_rows=most, block_rows=size)
    assert sample_rows(5, 5, rng).tolist() == [0, 1, 2, 3, 4]
    some = sample_rows(50, 5, rng)
    assert len(np.unique(some)) == 5 and (np.diff(some) > 0).all()
    y, _ = paired_arrays(np.zeros(8), np.zeros((8, 1)), 1)
    assert y.shape == (8, 1)
    for outcome, columns, count, what in (
        (np.zeros(7), np.zeros((7, 1)), 9, "7 rows are too few for a permutation test: at least 8"),
        (np.zeros(8), np.zeros((8, 1)), 0, "n_permutations=0 gives no p-value"),
        (np.zeros(8), np.zeros(8), 9, "do not belong together"),
        (np.zeros((8, 1, 1)), np.zeros((8, 1)), 9, "do not belong together"),
        (np.zeros(9), np.zeros((8, 1)), 9, "do not belong together"),
    ):
        with pytest.raises(InputError, match=what):
            paired_arrays(outcome, columns, count)
    assert columns_by_source(["a", "b", "a"], 3) == {"a": [0, 2], "b": [1]}
    for sources, n_columns in ((["a"], 2), ([], 0)):
        with pytest.raises(InputError, match="give one per column"):
            columns_by_source(sources, n_columns)


@pytest.mark.parametrize("clustered", [False, True])
def test_the_largest_covariance_is_studentised(clustered: bool) -> None:
    rng = RNG(0)
    X = rng.normal(size=(80, 5))
    y, w = 0.8 * X[:, 3] + rng.normal(size=80), rng.uniform(0.5, 2.0, 80)
    cluster = np.arange(80) // 2 if clustered else None
    found = largest_covariance(y, X, w, cluster, rng=RNG(1), n_draws=199)
    share = w / w.sum()
    yc, Xc = y - share @ y, X - share @ X
    sy, sx = math.sqrt(share @ yc**2), np.sqrt(share @ Xc**2)
    r = (share * yc) @ Xc / sy / sx
    units = share[:, None] * yc[:, None] * Xc / sy / sx
    units = units if cluster is None else units.reshape(40, 2, 5).sum(1)
    error = np.sqrt((units**2).sum(0))
    np.testing.assert_allclose(found.correlation, r, rtol=1e-10)
    np.testing.assert_allclose(found.std_error_null, error, rtol=1e-10)
    assert found.column == 3 == int(np.argmax(np.abs(r) / error)) and found.statistic == pytest.approx(
        (np.abs(r) / error).max()
    )
    np.testing.assert_allclose(found.statistics, r / error)
    assert found.p_value == (1 + np.count_nonzero(found.largest >= found.statistic)) / 200 <= 0.05
    assert found.adjusted[3] == pytest.approx(found.p_value) and found.adjusted.min() == found.adjusted[3]
    top = np.quantile(found.largest, 0.95)
    assert found.upper(0.95) == pytest.approx(min(1.0, (np.abs(r) + top * found.std_error).max()))


def test_features_of_controls() -> None:
    rng = RNG(0)
    levels = (np.arange(64) % 10).astype(float)[:, None]
    assert smooth_features(levels).shape == (64, 9)
    eleven = (np.arange(66) % 11).astype(float)[:, None]
    assert not set(np.unique(smooth_features(eleven))) <= {0.0, 1.0}
    two = np.column_stack([rng.normal(size=64), rng.normal(size=64)])
    scaled = (two - two.mean(0)) / two.std(0)
    np.testing.assert_allclose(smooth_features(two)[:, -1], scaled[:, 0] * scaled[:, 1])
    alone = smooth_features(two[:, :1])
    assert alone.shape[1] == 8 + 2 - 1  # 64 / 8 knots, cubic, without the constant


def test_ranks_count_the_observed_statistic_and_double_the_nearer_tail() -> None:
    assert _rank(3.0, np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(3 / 5)  # squares: one tail
    assert _rank(9.0, np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(1 / 5)
    signed = np.array([-2.0, -1.0, 1.0, 2.0])
    assert _rank(9.0, signed) == _rank(-9.0, signed) == pytest.approx(2 / 5)
    assert _rank(2.0, signed) == _rank(-2.0, signed) == pytest.approx(4 / 5) and _rank(0.0, signed) == 1.0


def test_a_bound_without_error_stays_and_others_are_widened() -> None:
    assert _widen(0.1, 0.2, 0.0, 1, 0.95) == _widen(0.1, 0.2, math.nan, 1, 0.95) == 0.2
    wide = _widen(0.1, 0.2, 0.1, 1, 0.95)
    assert wide == pytest.approx(0.1 * math.sqrt(stats.ncx2.ppf(0.95, 1, 1.0)), rel=1e-6)
    assert _widen(0.1, 0.9, 0.1, 1, 0.95) == 0.9
