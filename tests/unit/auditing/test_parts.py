"""Numbers of audits against brute force, and their limits just inside and just outside."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from setsquare.auditing.bounds import _multiply, _power_sums, association, bound_length, cluster_sums, shared_noise
from setsquare.auditing.cells import FEWEST_ROWS, Cells
from setsquare.auditing.certificate import _find_references
from setsquare.auditing.evaluations.records import (
    ALL,
    Evaluation,
    Test,
    adjust,
    benjamini_hochberg,
    critical_value,
    graphical,
    holm,
    two_sided,
    wald,
    z_effect,
)
from setsquare.auditing.evaluations.shifts import shrink, size_of
from setsquare.auditing.groups.critical_values import covariance
from setsquare.auditing.groups.critical_values import critical_value as simultaneous
from setsquare.auditing.groups.intervals import Estimates, difference, ratio, root, single
from setsquare.auditing.groups.joint_cells import JointCells
from setsquare.auditing.groups.partitions import band_labels, note_masked, partition_rows
from setsquare.auditing.groups.rates import Rows, count_numbers
from setsquare.auditing.groups.rates_with_intervals import measure_numbers
from setsquare.auditing.groups.standards import _median, keep_shares, standard_rows
from setsquare.errors import InputError
from setsquare.projection.moments import Ranges
from setsquare.rows.blocks import Block

RNG = np.random.default_rng


# ---------------------------------------------------------------------------------------------------------- partitions
@pytest.mark.parametrize(("values", "bands"), [(12, 12), (13, 4)])
def test_numbers_of_many_values_are_cut_into_bands(values: int, bands: int) -> None:
    (part,) = partition_rows(pd.DataFrame({"x": np.resize(np.arange(values), 1300)}))
    assert len(part.labels) == bands and (len(part.edges) == 3) is (bands == 4)
    assert part.labels[0] == ("0" if bands == 12 else "0-2")
    assert part.counts.sum() == 1300 and part.shown.all()
    late = np.concatenate(
        [np.zeros(1000), np.repeat(np.arange(13), 400)]
    )  # many values only after the first thousand rows
    assert partition_rows(pd.DataFrame({"x": late}))[0].edges


def test_bands_are_between_quantiles() -> None:
    x = RNG(0).normal(size=1001) * 10
    for n_bands in (2, 4, 5):
        (part,) = partition_rows(pd.DataFrame({"x": x}), n_bands=n_bands)
        assert len(part.labels) == n_bands and part.counts.min() > 0.8 * 1001 / n_bands
        for k, edge in enumerate(part.edges):
            assert x[part.codes <= k].max() < edge <= x[part.codes > k].min()
    assert band_labels(0.0, 9.0, [3.0, 9.0], True) == ("0-2", "3-8", "9")
    assert band_labels(0.5, 9.0, [3.25], False) == ("0.5 to 3.25", "3.25 to 9")
    missing = pd.DataFrame({"x": np.where(np.arange(1001) < 50, np.nan, x)})
    plain, with_group = partition_rows(missing)[0], partition_rows(missing, missing_group=True)[0]
    assert (plain.codes[:50] == -1).all() and with_group.labels[-1] == "missing" and with_group.counts[-1] == 50


def test_ends_of_bands_are_whole_or_short() -> None:
    x = np.arange(7777)
    whole = partition_rows(pd.DataFrame({"x": x}))[0].edges
    assert whole == tuple(np.quantile(x, [0.25, 0.5, 0.75], method="higher").tolist()) == (1944.0, 3888.0, 5832.0)
    assert partition_rows(pd.DataFrame({"x": 10 * x}))[0].edges == (19400.0, 38900.0, 58300.0)
    assert partition_rows(pd.DataFrame({"x": x / 7.0}))[0].edges == (278.0, 555.0, 833.0)


def test_groups_masks_and_references() -> None:
    table = pd.DataFrame({"g": ["a"] * 9 + ["b"] * 10 + ["c"] * 30, "h": ["u", "v"] * 24 + ["u"], "k": ["one"] * 49})
    by_g, by_h, cells = partition_rows(table)
    assert by_g.shown.tolist() == [False, True, True] and by_g.reference == 2 and by_h.labels == ("u", "v")
    assert cells.source == "g:h" and cells.parts == ("g", "h") and len(cells.labels) == 6 and cells.labels[0] == "a, u"
    counts = table.groupby(["g", "h"]).size()
    assert cells.counts.tolist() == counts.tolist()
    assert partition_rows(table, min_group=9)[0].shown.all() and len(partition_rows(table, intersections=False)) == 2
    chosen = partition_rows(table, reference={"g": "a", "h": "v"})
    assert (chosen[0].reference, chosen[1].reference, chosen[2].labels[chosen[2].reference]) == (0, 1, "a, v")
    assert partition_rows(pd.DataFrame({"n": [1, 2] * 20}), reference={"n": 2.0})[0].reference == 1
    (note,) = note_masked([by_g], 10)
    assert "fewer than 10 rows" in str(note) and "g: a (9)" in str(note) and note_masked([by_h], 10) == ()
    nine = partition_rows(pd.DataFrame({"g": [f"l{k}" for k in range(9)] + ["big"] * 20}))
    assert "and 1 more" in str(note_masked(nine, 10)[0])
    for options, what in (
        ({"min_group": 0}, "must be 1 or more"),
        ({"n_bands": 1}, "n_bands=1 must be 2 or more"),
        ({"reference": {"g": "z"}}, "'g' has no group 'z' for a reference; it has 'a', 'b', 'c'"),
    ):
        with pytest.raises(InputError, match=what):
            partition_rows(table, **options)
    disjoint = pd.DataFrame({"g": ["a", "b", None, None], "h": [None, None, "u", "v"]})
    with pytest.raises(InputError, match="No row has a known value in every protected column"):
        partition_rows(disjoint)


# ---------------------------------------------------------------------------------------------------- numbers by group
@pytest.mark.parametrize("weighted", [False, True])
def test_rates_of_groups_by_hand(weighted: bool) -> None:
    rng = RNG(0)
    table = pd.DataFrame({"g": rng.choice(["a", "b", "c"], 400), "h": rng.choice(["u", "v"], 400)})
    s = np.round(rng.random(400), 2)
    d, y = (s > 0.5).astype(float), (rng.random(400) < s).astype(float)
    w = rng.uniform(0.2, 2.0, 400) if weighted else None
    v = np.ones(400) if w is None else w
    parts = partition_rows(table, intersections=False)
    found = count_numbers(Rows(s, d, y, w), parts)
    k = 0
    for part in parts:
        for code in range(len(part.labels)):
            own = part.codes == code
            share = lambda x, kept: np.average(x[own & kept], weights=v[own & kept])  # noqa: B023, E731
            every = np.ones(400, dtype=bool)
            for name, values, kept in (
                ("mean", s, every),
                ("selection_rate", d, every),
                ("tpr", d, y == 1),
                ("fpr", d, y == 0),
                ("ppv", y, d == 1),
                ("npv", 1 - y, d == 0),
                ("accuracy", d == y, every),
                ("outcome", y, every),
                ("calibration", y - s, every),
            ):
                estimates = found[name].estimates
                mean = share(values.astype(float), kept)
                assert estimates.value[k] == pytest.approx(mean), name
                u = np.where(own & kept, v, 0.0)
                rows = np.count_nonzero(u)
                variance = (u**2 @ (values - mean) ** 2) / u.sum() ** 2 * rows / (rows - 1)
                if name in ("mean", "calibration"):  # not 0 and 1: the other groups can only widen them
                    assert variance * (1.0 - 1e-9) <= estimates.covariance[k, k] <= 1.1 * variance, name
                else:
                    assert estimates.covariance[k, k] == pytest.approx(variance, rel=1e-9), name
                assert estimates.size[k] == pytest.approx(u.sum() ** 2 / (u @ u))
            assert found["auc"].estimates.value[k] == pytest.approx(roc_auc_score(y[own], s[own], sample_weight=v[own]))
            k += 1
    assert found["mean"].estimates.is_rate and not found["calibration"].estimates.is_rate
    assert set(count_numbers(Rows(s), parts)) == {"mean"} and "tpr" not in count_numbers(Rows(s, None, y), parts)
    assert not count_numbers(Rows(3.0 * s), parts)["mean"].estimates.is_rate
    assert "auc" not in count_numbers(Rows(s, None, s), parts)


def test_covariances_of_overlapping_groups_and_clusters() -> None:
    rng = RNG(1)
    codes = [rng.integers(-1, 2, 60), rng.integers(0, 3, 60)]
    psi = [np.where(code >= 0, rng.normal(size=60), 0.0) for code in codes]
    psi[0][:3] = 0.0
    A = np.column_stack([np.where(codes[s] == k, psi[s], 0.0) for s, m in ((0, 2), (1, 3)) for k in range(m)])
    units = (A != 0).sum(0)
    factor = np.sqrt(units / (units - 1))
    np.testing.assert_allclose(covariance(psi, codes, [2, 3]), A.T @ A * factor * factor[:, None], atol=1e-12)
    cluster = rng.integers(0, 15, 60)
    sums = np.stack([A[cluster == g].sum(0) for g in range(15)])
    units = (sums != 0).sum(0)
    factor = np.sqrt(units / (units - 1))
    np.testing.assert_allclose(
        covariance(psi, codes, [2, 3], cluster), sums.T @ sums * factor * factor[:, None], atol=1e-12
    )


def test_joint_cells_are_those_of_all_columns() -> None:
    table = pd.DataFrame({"g": list("aabbc"), "h": list("uvuuu")})
    cells = JointCells.of(partition_rows(table, min_group=1, intersections=False))
    assert cells is not None and cells.members.shape == (4, 5)
    assert (
        cells.sums(None).tolist() == [1.0, 1.0, 2.0, 1.0] and cells.sums(np.arange(5.0), np.arange(5) > 1).sum() == 9.0
    )
    np.testing.assert_array_equal(cells.members.sum(1), 2.0)


# ----------------------------------------------------------------------------------------------------------- intervals
def estimates(
    value: list[float], error: list[float], rate: bool = False, size: float = 100.0, df: float = np.inf
) -> Estimates:
    k = len(value)
    return Estimates(np.array(value), np.diag(np.square(error)), rate, np.full(k, size), np.full(k, df))


def test_intervals_of_numbers_and_rates() -> None:
    low, high = single(estimates([1.0, 2.0], [0.5, 0.0]), 1.96)
    assert (low[0], high[0]) == pytest.approx((0.02, 1.98)) and np.isnan([low[1], high[1]]).all()
    t = single(estimates([1.0], [0.5], df=7.0), 1.96)
    half = 0.5 * stats.t.isf(stats.norm.sf(1.96), 7)
    assert (t[0][0], t[1][0]) == pytest.approx((1 - half, 1 + half))
    tail = stats.norm.sf(1.96)
    low, high = single(estimates([0.3, 0.0, 1.0], [0.0458, 0.0, 0.0], True), 1.96)
    assert (low[0], high[0]) == pytest.approx(stats.beta.interval(1 - 2 * tail, 30.5, 70.5), rel=2e-3)
    assert (
        low[1] == 0.0
        and high[1] == pytest.approx(1 - tail**0.01)
        and (low[2], high[2]) == (pytest.approx(tail**0.01), 1.0)
    )
    assert np.isnan(single(estimates([0.3], [0.1], True, size=0.0), 1.96)).all()
    huge = single(estimates([0.5], [1e-6], True, df=50.0), 1.96)
    assert huge[0][0] < 0.5 < huge[1][0] < 0.50001


def test_differences_and_ratios_of_independent_numbers() -> None:
    found = estimates([3.0, 2.0], [0.3, 0.4])
    i, j = np.array([0]), np.array([1])
    assert [float(x[0]) for x in difference(found, 2.0, i, j)] == pytest.approx([1.0, 1.0 - 1.0, 1.0 + 1.0])
    value, low, high = (float(x[0]) for x in ratio(found, 2.0, i, j))
    ends = [(2.4, 3.6), (1.2, 2.8)]
    down = math.hypot(math.log(3 / ends[0][0]), math.log(ends[1][1] / 2))
    up = math.hypot(math.log(ends[0][1] / 3), math.log(2 / ends[1][0]))
    assert (value, low, high) == pytest.approx((1.5, 1.5 * math.exp(-down), 1.5 * math.exp(up)))
    negative = ratio(estimates([-1.0, 2.0], [0.1, 0.1]), 2.0, i, j)
    assert all(np.isnan(part[0]) for part in negative)
    zero = ratio(estimates([0.0, 0.5], [0.0, 0.05], True), 2.0, i, j)
    assert zero[0][0] == 0.0 and zero[1][0] == 0.0 and 0.0 < zero[2][0] < 0.2
    assert root(np.array([3.0]), np.array([4.0]), np.array([0.0]))[0] == 5.0
    assert root(np.array([3.0]), np.array([4.0]), np.array([1.0]))[0] == pytest.approx(1.0)
    assert root(np.array([np.inf]), np.array([1.0]), np.array([0.0]))[0] == np.inf


def test_simultaneous_values_lie_between_one_interval_and_bonferroni() -> None:
    alone, rng = stats.norm.isf(0.025), RNG(0)
    assert simultaneous(np.eye(1), np.array([0]), None, 0.95, rng) == pytest.approx(alone)
    every = np.arange(10)
    independent = simultaneous(np.eye(10), every, None, 0.95, rng, 20000)
    assert independent == pytest.approx(stats.norm.isf((1 - 0.95**0.1) / 2), abs=0.03)
    assert simultaneous(np.ones((10, 10)), every, None, 0.95, rng, 20000) == pytest.approx(alone, abs=0.03)
    many = np.zeros(4001, dtype=np.int64)
    assert simultaneous(np.eye(1), many, None, 0.95, rng) == pytest.approx(stats.norm.isf(0.025 / 4001))
    pair = simultaneous(np.eye(3), np.array([0, 0, 1]), np.array([1, 2, 2]), 0.95, rng, 20000)
    assert pair == pytest.approx(stats.studentized_range.ppf(0.95, 3, np.inf) / math.sqrt(2), abs=0.03)
    assert simultaneous(np.zeros((3, 3)), np.arange(3), None, 0.95, rng) > alone


def test_summaries_are_the_extremes_over_pairs() -> None:
    rng = RNG(0)
    g = np.repeat(["a", "b", "c"], 200)
    s = rng.random(600) * np.repeat([1.0, 0.8, 0.6], 200)
    d, y = (s > 0.4).astype(float), (rng.random(600) < s).astype(float)
    parts = partition_rows(pd.DataFrame({"g": g}))
    numbers = count_numbers(Rows(s, d, y), parts)
    found = measure_numbers(numbers, parts, rng=RNG(1))
    rates = np.array([d[g == k].mean() for k in "abc"])
    summaries = {one.name: one for one in found.summaries}
    assert summaries["demographic_parity_difference"].value == pytest.approx(np.ptp(rates))
    assert summaries["demographic_parity_ratio"].value == pytest.approx(rates.min() / rates.max())
    odds = [np.ptp([d[(g == k) & (y == c)].mean() for k in "abc"]) for c in (0, 1)]
    assert summaries["equalized_odds_difference"].value == pytest.approx(max(odds))
    for one in summaries.values():
        assert one.low <= one.value <= one.high
    columns = found.columns
    np.testing.assert_allclose(columns["difference"].value, [s[g == k].mean() - s[g == "a"].mean() for k in "abc"])
    np.testing.assert_allclose(columns["impact_ratio"].value, rates / rates[0])
    np.testing.assert_allclose(columns["impact_ratio_highest"].value, rates / rates.max())
    assert columns["difference"].low[0] == columns["difference"].high[0] == 0.0 and columns["ratio"].low[0] == 1.0
    without = measure_numbers(numbers, parts, rng=RNG(1), ratios=False).columns
    assert np.isnan(without["ratio"].value).all() and not np.isnan(without["impact_ratio"].value).any()
    wide = measure_numbers(numbers, parts, rng=RNG(1), confidence=0.99).columns["mean"]
    assert (wide.high - wide.low > columns["mean"].high - columns["mean"].low).all()


# ----------------------------------------------------------------------------------------------------------- standards
def test_standards_take_decisions_or_scores_above_the_median() -> None:
    score = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    rows, name = standard_rows(Rows(score), "ll144")
    assert name == "scoring_rate" and rows.decision is not None and rows.decision.tolist() == [0, 0, 0, 1, 1]
    weighted = standard_rows(Rows(score, weight=np.array([1.0, 1.0, 1.0, 1.0, 9.0])), "ll144")[0].decision
    assert weighted is not None and weighted.tolist() == [0, 0, 0, 0, 0]
    assert _median(score, np.ones(5)) == 3.0 and _median(score, None) == 3.0
    assert standard_rows(Rows(score, score > 1), "four-fifths")[1] == "selection_rate"
    with pytest.raises(InputError, match="compares selection rates"):
        standard_rows(Rows(score), "four-fifths")
    for count, kept in ((20, True), (19, False)):
        part = partition_rows(pd.DataFrame({"g": ["a"] * count + ["b"] * (1000 - count)}))
        assert keep_shares(part, "ll144")[0].shown.tolist() == [kept, True]
        assert keep_shares(part, "four-fifths")[0].shown.all()


# ------------------------------------------------------------------------------------------------------------- records
def test_tests_and_intervals_of_one_effect() -> None:
    effect = z_effect("a", "a", 1.0, 0.5, 9.0, 0.9)
    assert effect.statistic == 2.0 and effect.p_value == pytest.approx(2 * stats.t.sf(2.0, 9))
    assert effect.ci_high - 1.0 == 1.0 - effect.ci_low == pytest.approx(0.5 * stats.t.ppf(0.95, 9))
    assert critical_value(math.inf, 0.95) == pytest.approx(stats.norm.ppf(0.975)) and two_sided(
        -2.0, math.inf
    ) == pytest.approx(2 * stats.norm.sf(2))
    assert (
        z_effect("a", "a", -1.0, 0.0, 9.0, 0.9).statistic == -math.inf
        and z_effect("a", "a", 0.0, 0.0, 9.0, 0.9).p_value == 1.0
    )
    assert math.isnan(z_effect("a", "a", 1.0, math.nan, 9.0, 0.9).p_value)


def test_wald_statistics_by_hand() -> None:
    b, C = np.array([1.0, 2.0]), np.array([[2.0, 0.5], [0.5, 1.0]])
    statistic = b @ np.linalg.solve(C, b)
    found = wald("all", b, C, math.inf)
    assert (found.statistic, found.df) == (pytest.approx(statistic), 2.0) and found.p_value == pytest.approx(
        stats.chi2.sf(statistic, 2)
    )
    assert wald("all", b, C, 20.0).p_value == pytest.approx(stats.f.sf(statistic / 2, 2, 20))
    assert "F(2, 20)" in wald("all", b, C, 20.0).method and "chi-squared(2)" in found.method
    assert wald("all", b[:0], C[:0, :0], 9.0).method == "nothing to test"
    assert wald("all", np.array([np.nan, 1.0]), C, 9.0).method == "not estimable"
    assert wald("all", np.zeros(2), np.zeros((2, 2)), 9.0).p_value == 1.0
    assert wald("all", np.array([0.0, 1.0]), np.diag([1.0, 0.0]), 9.0).p_value == 0.0


def test_adjusted_p_values_by_hand() -> None:
    p = [0.01, 0.04, 0.03, math.nan]
    np.testing.assert_allclose(holm(p)[:3], [0.03, 0.06, 0.06])
    np.testing.assert_allclose(benjamini_hochberg(p)[:3], [0.03, 0.04, 0.04])
    assert math.isnan(holm(p)[3]) and holm([0.9, 0.8]).max() == 1.0
    G = (np.ones((3, 3)) - np.eye(3)) / 2
    np.testing.assert_allclose(graphical(np.array(p[:3]), np.full(3, 1 / 3), G), holm(p[:3]))


def evaluation(name: str, joint: float, *sources: float, further: tuple[float, ...] = ()) -> Evaluation:
    def test(label: str, p: float) -> Test:
        return Test(label, 1.0, 1.0, p, "by hand")

    own = tuple(test(f"s{k}", p) for k, p in enumerate(sources))
    return Evaluation(name, name, (), test(ALL, joint), own, tuple(test(f"f{k}", p) for k, p in enumerate(further)))


def test_one_joint_test_needs_no_adjustment_and_further_ones_share_the_error() -> None:
    (only,) = adjust([evaluation("glm", 0.03)])
    assert only.adjusted == pytest.approx(0.03)
    (same,) = adjust([evaluation("glm", 0.03, 0.03)])  # a single source is the joint test
    assert same.adjusted == pytest.approx(0.03)
    found = adjust([evaluation("glm", 0.03, 0.5, 0.6)])
    assert [one.test.name for one in found] == [ALL, "s0", "s1"]
    assert found[0].adjusted == pytest.approx(0.03 / 0.94) and found[1].adjusted >= found[0].adjusted
    lone = adjust([evaluation("glm", 0.9, 1e-6, 0.6)])
    assert lone[1].adjusted == pytest.approx(1e-6 / 0.03) and lone[0].adjusted == 0.9
    two = adjust([evaluation("glm", 0.03), evaluation("forest", 0.9)])
    assert two[0].adjusted == pytest.approx(0.06)
    shape = adjust([evaluation("glm", 0.03), evaluation("shape", math.nan, further=(0.5, 0.7))])
    assert shape[0].adjusted == pytest.approx(0.03 / 0.85) and len(shape) == 3
    alone = adjust([evaluation("shape", math.nan, further=(0.01, 0.7))])
    assert alone[0].adjusted == pytest.approx(0.02)
    assert adjust([evaluation("glm", math.nan)]) == ()


def test_covariances_are_shrunk_up_to_a_third() -> None:
    V, target = np.array([[[2.0, 0.0], [0.0, 1.0]]]), np.array([[[1.0, 0.0], [0.0, 1.0]]])
    np.testing.assert_allclose(shrink(V, target, np.array([1e9]))[0], [[2 - 1 / 3, 0], [0, 1]])
    np.testing.assert_allclose(shrink(V, target, np.array([0.25]))[0], [[1.8, 0], [0, 1]])
    np.testing.assert_allclose(shrink(V, target, np.array([0.0]))[0], V[0], rtol=1e-8)
    assert size_of(10, 2) == 100


# -------------------------------------------------------------------------------------------------------------- bounds
def test_sums_over_clusters_and_powers() -> None:
    values, cluster = np.arange(12.0).reshape(2, 6), np.array([2, 0, 1, 0, 2, 2])
    np.testing.assert_array_equal(cluster_sums(values, cluster), [[4, 2, 9], [16, 8, 27]])
    assert cluster_sums(values, None) is values
    a, b = np.array([[1.0], [2.0]]), np.array([[3.0], [0.0], [1.0]])
    assert _multiply(a, b)[:, 0].tolist() == [3.0, 6.0, 1.0, 2.0]
    z, codes = RNG(0).normal(size=30), RNG(1).integers(0, 3, 30)
    terms = tuple(RNG(2).normal(size=(3, 3)))
    own = np.array([0.5, 1.0, 2.0])
    M = np.stack([np.bincount(codes, z**k, 3) for k in range(7)])
    each = own[codes] * (terms[0][codes] + terms[1][codes] * z + terms[2][codes] * z**2)
    np.testing.assert_allclose(_power_sums(own, terms, M), [(each**2).sum(), (each**3).sum()])


def test_noise_is_shared_within_clusters_as_far_as_residuals_agree() -> None:
    X, w, cluster = RNG(0).normal(size=(40, 2)), np.full(40, 1 / 40), np.arange(40) // 4
    apart = shared_noise(X, np.tile([1.0, -1.0, 1.0, -1.0], 10)[:, None], w, cluster)
    np.testing.assert_allclose(apart, (X * w[:, None] ** 2).T @ X)
    together = shared_noise(X, np.repeat(RNG(1).choice([-1.0, 1.0], 10), 4)[:, None], w, cluster)
    sums = np.stack([(w[:, None] * X)[cluster == g].sum(0) for g in range(10)])
    np.testing.assert_allclose(together, sums.T @ sums)


def test_bounds_are_above_the_estimate_and_grow_with_confidence() -> None:
    rng = RNG(0)
    X = rng.normal(size=(400, 2))
    y = 0.3 * X[:, 0] + rng.normal(size=400)
    whole, single_ = association(y, X)
    r = np.corrcoef(y, X.T)[0, 1:]
    assert single_[0].sample == pytest.approx(abs(r[0])) and single_[0].upper > abs(r[0]) > 0.1
    R2 = 1 - np.linalg.lstsq(np.column_stack([np.ones(400), X]), y, rcond=None)[1][0] / ((y - y.mean()) ** 2).sum()
    assert (
        whole.sample == pytest.approx(math.sqrt(R2))
        and whole.rank == 2
        and whole.estimate <= whole.sample <= whole.upper
    )
    assert association(y, X, confidence=0.99)[0].upper > whole.upper
    assert abs(single_[0].error - 1 / 20) < 0.01
    doubled = association(np.tile(y, 2), np.tile(X, (2, 1)), cluster=np.tile(np.arange(400), 2))[0]
    assert (
        doubled.upper == pytest.approx(whole.upper, rel=0.02)
        and association(np.tile(y, 2), np.tile(X, (2, 1)))[0].upper < whole.upper
    )
    constant = association(np.full(400, 3.0), X)
    assert constant[0].upper == 0.0 and len(constant[1]) == 2


def test_a_bound_on_a_length() -> None:
    V = np.eye(1) * 0.0025
    far = bound_length(0.25, V, 0.0025, 397.0, 0.95)
    assert far == pytest.approx(0.5 + stats.t.ppf(0.95, 397) * 0.05 * math.sqrt(0.75), rel=1e-6)
    near = bound_length(0.0, V, 0.0025, 397.0, 0.95)
    assert near == pytest.approx(stats.t.ppf(0.95, 397) * 0.05, rel=1e-6)
    assert bound_length(0.09, np.zeros((1, 1)), 0.0, 397.0, 0.95) == pytest.approx(0.3)
    assert bound_length(0.98, V * 100, 0.25, 397.0, 0.95) == 1.0


# --------------------------------------------------------------------------------------------------------------- cells
@pytest.mark.parametrize(
    ("n", "step", "formed"), [(FEWEST_ROWS, 1.0, True), (FEWEST_ROWS - 1, 1.0, False), (FEWEST_ROWS, 0.5, False)]
)
def test_rows_with_equal_columns_are_cells(n: int, step: float, formed: bool) -> None:
    rng = RNG(0)
    X = np.column_stack([rng.integers(0, 5, n) * step, rng.integers(0, 2, n)])
    ranges = Ranges.of(Block(X, np.zeros((n, 0)), np.zeros((n, 0)), np.full(n, 1 / n), None))
    cells = Cells.of(X, ranges)
    assert (cells is not None) is formed
    if cells is None:
        return
    np.testing.assert_array_equal(cells.values[cells.codes], X)
    assert len(cells.counts) == 10 and cells.counts.sum() == n
    y = rng.normal(size=n)
    rows = cells.pairs(y)
    assert float(rows.weight.sum()) == pytest.approx(1.0)
    assert float(rows.weight @ rows.y[:, 0]) == pytest.approx(y.mean()) and float(
        rows.weight @ rows.y[:, 0] ** 2
    ) == pytest.approx((y**2).mean())
    np.testing.assert_allclose(cells.powers(y)[3], [(y[cells.codes == k] ** 3).sum() for k in range(10)])
    assert rows.varies_within and not cells.pairs(cells.codes.astype(float)).varies_within
    many = np.column_stack([np.arange(n) // 19, np.zeros(n)]).astype(float)
    ranges = Ranges.of(Block(many, np.zeros((n, 0)), np.zeros((n, 0)), np.full(n, 1 / n), None))
    assert Cells.of(many, ranges) is None  # fewer than 20 rows for each


def test_reference_groups_of_columns_with_several_levels() -> None:
    found = _find_references(np.array([0.2, 0.3, 0.4, 5.0]), ("r", "r", "s", "age"), (20, 30, 40, None))
    assert found.sources == ("r",) and found.share.tolist() == [0.5] and found.members[:, 0].tolist() == [1, 1, 0, 0]
    none: Any = _find_references(np.array([0.5, 0.5]), ("r", "r"), (50, 50))
    assert none.sources == ()
