"""Simultaneous intervals hold with few rows per group, few positives and rare events, where simpler ones do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, ndtri
from scipy.stats import binom

import setsquare as sq
from setsquare._typing import Array
from setsquare.auditing.groups import auc_variance
from setsquare.auditing.groups.intervals import Estimates, ends, single
from setsquare.auditing.groups.partitions import partition_rows
from setsquare.auditing.groups.rates import Rows, count_numbers
from setsquare.auditing.groups.rates_with_intervals import _log, measure_numbers

K = 20
CRITICAL = float(-ndtri(0.5 * (1.0 - 0.95 ** (1.0 / K))))
#: Rates of the benchmark's rare design, 20 groups: selection, false and true positives.
SELECTED, FALSE, TRUE = np.linspace(0.029, 0.115, K), np.linspace(0.014, 0.061, K), np.linspace(0.102, 0.263, K)


def held(found: tuple[Array, Array], truth: float) -> bool:
    low, high = found
    return bool((((low <= truth) & (truth <= high)) | np.isnan(low)).all())


def groups(n: int) -> Array:
    return np.repeat([f"g{k:02d}" for k in range(K)], n)


def covered(draw: Callable[[np.random.Generator], Array], truth: float, rows: int, samples: int) -> tuple[int, int]:
    """Samples in which all means are covered, with the shape that groups share and with Student's interval alone."""
    parts, with_it, without = partition_rows(groups(rows), min_group=1), 0, 0
    for seed in range(samples):
        score = draw(np.random.default_rng(seed))
        mean = count_numbers(Rows(score), parts)["mean"].estimates
        own = np.array([score[part].var(ddof=1) / rows for part in np.split(np.arange(len(score)), K)])
        with_it += held(single(mean, CRITICAL), truth)
        without += held(single(replace(mean, is_rate=False, skewness=None, covariance=np.diag(own)), CRITICAL), truth)
    return with_it, without


@pytest.mark.parametrize("turned", [False, True], ids=["right", "left"])
def test_means_of_skewed_scores_are_covered_with_50_rows_per_group(turned: bool) -> None:
    """Scores expit(-4 + 1.5 z), or one minus these: samples of 50 rows often miss the long tail."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    truth = float(np.sum(weights * expit(-4.0 + 1.5 * nodes)) / weights.sum())

    def draw(rng: np.random.Generator) -> Array:
        score = expit(-4.0 + 1.5 * rng.normal(size=50 * K))
        return 1.0 - score if turned else score

    with_it, without = covered(draw, 1.0 - truth if turned else truth, 50, 100)
    assert with_it >= 100 * 0.95 - 2.6 * np.sqrt(100 * 0.05 * 0.95)
    assert without < 60


def test_a_few_large_scores_that_some_groups_have_widen_the_others() -> None:
    """Of scores near 0.05, 3 % are near 0.8: about every fifth group of 50 rows has none of them."""
    truth = 0.97 * 0.05 + 0.03 * 0.8

    def draw(rng: np.random.Generator) -> Array:
        n = 50 * K
        return np.where(rng.random(n) < 0.03, rng.beta(6.4, 1.6, n), rng.beta(1.0, 19.0, n))

    with_it, without = covered(draw, truth, 50, 60)
    assert with_it >= 60 * 0.95 - 2.6 * np.sqrt(60 * 0.05 * 0.95)
    assert without < 15


def test_ordinary_scores_have_hardly_wider_intervals() -> None:
    rng = np.random.default_rng(0)
    for rows, most in ((50, 1.04), (250, 1.015)):
        score = expit(rng.normal(size=rows * K) - 0.3)
        mean = count_numbers(Rows(score), partition_rows(groups(rows), min_group=1))["mean"].estimates
        own = np.array([score[part].var(ddof=1) / rows for part in np.split(np.arange(len(score)), K)])
        low, high = single(mean, CRITICAL)
        below, above = single(replace(mean, is_rate=False, skewness=None, covariance=np.diag(own)), CRITICAL)
        assert np.mean(high - low) < most * np.mean(above - below)


def test_means_of_symmetric_values_keep_the_interval_of_student() -> None:
    values = np.tile(np.linspace(-1.0, 1.0, 200), K)
    mean = count_numbers(Rows(values), partition_rows(groups(200)))["mean"].estimates
    skewed, plain = single(mean, CRITICAL), single(replace(mean, skewness=None), CRITICAL)
    np.testing.assert_allclose(skewed, plain, atol=1e-3)
    mirrored = single(replace(mean, skewness=np.full((2, K), -1.0)), CRITICAL)
    lower = single(replace(mean, skewness=np.full((2, K), 1.0)), CRITICAL)
    np.testing.assert_allclose(mirrored[0], -lower[1], atol=1e-9)
    assert (lower[1] > plain[1]).all() and (lower[0] > plain[0]).all()


def test_an_auc_with_five_positives_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, parts = 0.76025, partition_rows(groups(50), min_group=1)
    y = np.tile(np.arange(50) < 5, K).astype(float)
    samples = [np.random.default_rng(seed).normal(size=50 * K) + y for seed in range(80)]

    def count() -> int:
        found = (count_numbers(Rows(score, outcome=y), parts)["auc"].estimates for score in samples)
        return sum(held(single(one, CRITICAL), truth) for one in found)

    assert count() >= 80 * 0.95 - 2.6 * np.sqrt(80 * 0.05 * 0.95)
    monkeypatch.setattr(auc_variance, "WEIGHT", 1e-9)
    monkeypatch.setattr(auc_variance, "FREEDOM", 0.0)
    assert count() < 65


def test_a_perfect_auc_is_not_certain() -> None:
    y = np.arange(50) < 5
    found = count_numbers(Rows(y + 0.0, outcome=y + 0.0), partition_rows(np.repeat(["a", "b"], 25), min_group=1))
    assert np.isnan(found["auc"].estimates.value[1])  # no positive
    low, high = single(found["auc"].estimates, 1.96)
    assert 0.3 < low[0] < 0.9 and high[0] == 1.0


def coverage(rates: Array, n: int, interval: Callable[[Estimates, float], tuple[Array, Array]]) -> float:
    """Probability that the intervals of all groups of n rows hold, by enumeration of their counts."""
    x = np.arange(n + 1)
    known = Estimates(x / n, np.zeros((n + 1, n + 1)), True, np.full(n + 1, float(n)), np.full(n + 1, np.inf))
    low, high = interval(known, CRITICAL)
    return float(np.prod([binom.pmf(x, n, p)[(low <= p) & (p <= high)].sum() for p in rates]))


def least_coverage(rates: Array, n: int) -> float:
    """Smallest coverage of any interval that guarantees its level at every rate (Sterne 1954): the fewest counts."""
    found = 1.0
    for p in rates:
        likely = np.sort(binom.pmf(np.arange(n + 1), n, p))[::-1].cumsum()
        found *= likely[np.searchsorted(likely, 0.95 ** (1.0 / K))]
    return float(found)


@pytest.mark.parametrize(("rates", "n"), [(SELECTED, 50), (FALSE, 40), (TRUE, 11), (SELECTED, 250)])
def test_rates_of_rare_events_are_covered_neither_too_seldom_nor_too_often(rates: Array, n: int) -> None:
    sizes = range(n - 2, n + 3)
    assert 0.94 < np.mean([coverage(rates, size, single) for size in sizes]) < 0.965
    if n < 100:
        assert np.mean([coverage(rates, size, ends) for size in sizes]) > 0.966


def test_no_interval_covers_a_rate_of_a_few_rows_in_less_than_97_percent() -> None:
    """Precision (PPV) with one to six positive decisions per group: any count is too likely to be ruled out."""
    for n in range(1, 7):
        assert least_coverage(np.full(K, 0.6), n) > 0.97
        assert coverage(np.full(K, 0.6), n, single) >= 0.95
    assert least_coverage(np.full(K, 0.6), 50) < 0.97


def test_a_reference_that_is_small_by_chance_does_not_make_ratios_alike() -> None:
    """The estimated correlation of all ratios grows as the rate of the reference falls; the raised one grows less."""
    rate = np.array([0.012, *np.linspace(0.03, 0.115, K - 1)])
    numbers = Estimates(rate, np.diag(rate / 250.0), True, np.full(K, 250.0), np.full(K, np.inf))
    plain, raised = (np.diag(_log(numbers, to))[0] for to in (None, np.zeros(K, dtype=np.int64)))
    assert raised < 0.5 * plain
    np.testing.assert_array_equal(np.diag(_log(numbers))[1:], np.diag(_log(numbers, np.zeros(K, dtype=np.int64)))[1:])


def test_impact_ratios_of_rare_selections_are_covered_with_one_small_reference() -> None:
    parts, good = partition_rows(groups(250), reference={"x0": "g00"}, min_group=1), 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        d = (rng.random(250 * K) < np.repeat(SELECTED, 250)).astype(float)
        numbers = {
            "mean": count_numbers(Rows(d), parts)["mean"],
            "selection_rate": count_numbers(Rows(d, d), parts)["selection_rate"],
        }
        found = measure_numbers(numbers, parts, rng=rng).columns["impact_ratio"]
        truth = SELECTED / SELECTED[0]
        good += bool(((found.low - 1e-12 <= truth) & (truth <= found.high + 1e-12)).all())
    assert good >= 60 * 0.95 - 2.6 * np.sqrt(60 * 0.05 * 0.95)


def test_means_on_which_a_few_rows_decide_are_named() -> None:
    """Lognormal values with sigma 2.5: intervals of 50 rows do not hold, and the result says so."""
    rng = np.random.default_rng(1)
    group = np.repeat(["a", "b"], 50)
    values = {"heavy": np.exp(2.5 * rng.normal(size=100)), "plain": rng.normal(size=100), "scores": rng.random(100)}
    codes = {name: [note.code for note in sq.audit(one, group).all_notes] for name, one in values.items()}
    assert {name: found.count("few-rows-decide") for name, found in codes.items()} == {
        "heavy": 1,
        "plain": 0,
        "scores": 0,
    }
    page = str(sq.audit(values["heavy"], group, threshold=5.0))
    assert (
        page.count("A few extreme rows decide the mean prediction of all groups: its intervals can be too short.") == 1
    )


def test_intervals_of_lognormal_values_that_do_not_hold_come_with_a_note() -> None:
    parts, missed, noted = partition_rows(np.repeat(["a", "b"], 50), min_group=1), 0, 0
    for seed in range(100):
        mean = count_numbers(Rows(np.exp(2.5 * np.random.default_rng(seed).normal(size=100))), parts)["mean"].estimates
        assert mean.is_doubtful is not None
        missed += not held(single(mean, 2.24), float(np.exp(3.125)))
        noted += bool(mean.is_doubtful.any())
    assert missed > 20 and noted > 90
