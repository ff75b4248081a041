"""Aggregates of a report against pandas, and against the library's own calibration."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.auditing.comparison.by_group import (
    QUANTILES,
    Sample,
    group_rows,
    histogram_edges,
    reliabilities,
    spreads,
)
from setsquare.auditing.comparison.calibration import calibration
from setsquare.auditing.comparison.metric import interval
from setsquare.document.svg import Scale, make_scale
from setsquare.families import family

N = 3000


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def table(rng: np.random.Generator) -> pd.DataFrame:
    city = rng.choice([*"abcdefghijklmnop"], N, p=np.r_[np.full(4, 0.2), np.full(12, 0.2 / 12)])
    age, score = rng.normal(40.0, 10.0, N), rng.integers(3, size=N).astype(float)
    age[:7], score[:5] = np.nan, np.nan
    frame = pd.DataFrame({"city": city, "age": age, "score": score})
    frame.loc[:9, "city"] = None
    return frame


def test_every_row_is_in_one_group(table: pd.DataFrame) -> None:
    city, age, score = group_rows(table)
    for groups in (city, age, score):
        np.testing.assert_array_equal(np.sort(np.concatenate(groups.rows)), np.arange(N))
        assert all(len(rows) for rows in groups.rows) and groups.labels[-1] == "missing"
    counts = table["city"].value_counts()
    assert sorted(counts[list(city.labels[:11])]) == sorted(counts.iloc[:11]) and city.labels[11] == "5 other levels"
    for label, rows in zip(city.labels[:11], city.rows, strict=False):
        assert (table["city"].to_numpy()[rows] == label).all() and len(rows) == counts[label]
    assert score.labels == ("0", "1", "2", "missing") and score.centres == ()


def test_slices_are_in_order_and_of_about_equal_size(table: pd.DataFrame) -> None:
    age = group_rows(table)[1]
    x = table["age"].to_numpy()
    assert len(age.rows) == 11 and np.isnan(age.centres[-1]) and len(age.rows[-1]) == 7
    assert all(abs(len(rows) - N / 10) < 5 for rows in age.rows[:-1])
    assert all(x[low].max() < x[high].min() for low, high in zip(age.rows[:-2], age.rows[1:-1], strict=True))
    np.testing.assert_allclose(age.centres[:-1], [x[rows].mean() for rows in age.rows[:-1]])


def test_tied_numbers_stay_together() -> None:
    x = np.repeat(np.arange(20.0), [500, *[10] * 19])
    (groups,) = group_rows(x[:, None])
    seen = [set(x[rows]) for rows in groups.rows]
    assert sum(map(len, seen)) == 20 and len(groups.rows) > 1


def test_rows_that_do_not_take_part_are_not_in_a_group(table: pd.DataFrame) -> None:
    keep = np.arange(N) % 2 == 0
    for part, whole in zip(group_rows(table, keep), group_rows(table[keep].reset_index(drop=True)), strict=True):
        assert part.labels == whole.labels
        for rows, wanted in zip(part.rows, whole.rows, strict=True):
            np.testing.assert_array_equal(rows, wanted)


def test_means_and_quantiles_are_those_of_pandas(table: pd.DataFrame, rng: np.random.Generator) -> None:
    values = rng.gamma(2.0, size=N)
    groups = group_rows(table)[2]
    edges, beyond = histogram_edges((values,))
    assert beyond == np.sum((values < edges[0]) | (values > edges[-1])) > 0
    codes = table["score"].map(lambda v: "missing" if np.isnan(v) else f"{v:g}")
    by = pd.Series(values).groupby(codes)
    for label, one in zip(groups.labels, spreads(values, groups, edges, Sample()), strict=True):
        own = by.get_group(label)
        assert one.n == len(own) and one.mean.estimate == pytest.approx(own.mean(), rel=1e-12)
        assert one.mean.std_error == pytest.approx(own.sem(), rel=1e-10)
        wanted = np.quantile(own, QUANTILES, method="inverted_cdf")
        np.testing.assert_allclose(one.quantiles, wanted)
        assert sum(one.histogram) == pytest.approx(1.0)


def test_weights_are_repetitions(table: pd.DataFrame, rng: np.random.Generator) -> None:
    values, weight = rng.random(N), rng.integers(1, 4, N)
    y = (rng.random(N) < values).astype(float)
    edges = np.linspace(0.0, 1.0, 11)
    again = np.repeat(np.arange(N), weight)
    weighted, repeated = group_rows(table)[2], group_rows(table.iloc[again].reset_index(drop=True))[2]
    sample, glm = Sample(weight.astype(float)), family("binomial")
    for one, two in zip(
        spreads(values, weighted, edges, sample), spreads(values[again], repeated, edges, Sample()), strict=True
    ):
        assert one.mean.estimate == pytest.approx(two.mean.estimate) and one.quantiles == two.quantiles
        np.testing.assert_allclose(one.histogram, two.histogram, atol=1e-12)
    for a, b in zip(
        reliabilities(y, values, weighted, glm, sample),
        reliabilities(y[again], values[again], repeated, glm, Sample()),
        strict=True,
    ):
        assert (a.outcome, a.prediction) == pytest.approx((b.outcome, b.prediction))


@pytest.mark.parametrize("name", ["binomial", "gaussian", "poisson"])
@pytest.mark.parametrize("clustered", [False, True])
def test_calibration_of_a_group_is_that_of_its_rows(name: str, clustered: bool, rng: np.random.Generator) -> None:
    group = rng.integers(2, size=N)
    values = rng.random(N) if name == "binomial" else rng.gamma(3.0, size=N)
    y = (rng.random(N) < values).astype(float) if name == "binomial" else rng.poisson(values).astype(float)
    cluster = np.arange(N) // 3 if clustered else None
    glm, (groups,) = family(name), group_rows(group[:, None])
    for found, rows in zip(reliabilities(y, values, groups, glm, Sample(None, cluster)), groups.rows, strict=True):
        labels = None if cluster is None else cluster[rows]
        wanted = calibration(y[rows], values[rows], glm, cluster=labels)
        large = interval(wanted.in_the_large, cluster=labels)
        assert found.difference.estimate == pytest.approx(large.estimate, abs=1e-12)
        assert found.difference.std_error == pytest.approx(large.std_error, rel=1e-10)
        assert found.outcome - found.prediction == pytest.approx(large.estimate, abs=1e-12)
        assert [one.count for one in found.bins] == [one.count for one in wanted.bins]
        for one, two in zip(found.bins, wanted.bins, strict=True):
            assert one.prediction == pytest.approx(two.prediction)
            assert (one.outcome.ci_low, one.outcome.ci_high) == pytest.approx((two.outcome.ci_low, two.outcome.ci_high))


def test_equal_predictions_share_a_bin() -> None:
    values = np.repeat([0.1, 0.5, 0.9], [700, 200, 100])
    (found,) = reliabilities(values.round(), values, group_rows(np.zeros((1000, 1)))[0], family("binomial"), Sample())
    assert [(one.prediction, one.count) for one in found.bins] == [
        (pytest.approx(0.1), 700),
        (pytest.approx(0.5), 200),
        (pytest.approx(0.9), 100),
    ]


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-3.2e-7, 5e-7), (1e5, 1.0002e5), (-40.0, 0.3)])
def test_ticks_are_round_few_and_inside(ends: tuple[float, float]) -> None:
    for scale in (Scale(*ends, 0.0, 600.0), Scale(*ends, 200.0, 0.0), make_scale(ends, 0.0, 300.0, zero=True)):
        ticks = scale.ticks()
        assert 2 <= len(ticks) <= 12 and ticks == sorted(set(ticks))
        assert scale.low - 1e-9 <= ticks[0] and ticks[-1] <= scale.high + 1e-9


def test_scales_hold_what_is_unknown_infinite_or_constant() -> None:
    for values in ([None, "Infinity", 1.0], [], [2.0, 2.0], [0.0]):
        scale = make_scale(values, 0.0, 100.0)
        assert scale.low < scale.high and scale.ticks()


def test_small_groups_show_no_numbers_of_single_rows() -> None:
    rng = np.random.default_rng(0)
    sizes = {"a": 100, "b": 80, "c": 3, "d": 4}
    race = np.repeat(list(sizes), list(sizes.values()))
    for limit, expected in ((1, ["a", "b", "c", "d"]), (5, ["a", "b", "2 small groups"]), (10, ["a", "b"])):
        (groups,) = group_rows(race, min_group=limit)
        assert list(groups.labels) == expected
        assert bool(groups.masked) == (limit > 1)
        order = np.argsort(rng.random(len(race)))
        for rows, sorted_rows in zip(groups.rows, groups.in_order(order), strict=True):
            assert set(rows) == set(sorted_rows) and len(rows) == len(sorted_rows)


def test_a_page_has_no_numbers_of_small_groups() -> None:
    rng = np.random.default_rng(0)
    race = np.repeat(["a", "b", "rare"], [100, 100, 3])
    score = np.round(rng.random(203), 3)
    score[-3:] = [0.12345, 0.54321, 0.98765]
    outcome = (rng.random(203) < score).astype(float)
    audit = sq.audit(score, pd.DataFrame({"race": race}))
    for more in ({}, {"outcome": outcome}):
        page = sq.report.build(audit, predictions=score, protected=pd.DataFrame({"race": race}), **more)
        parts = [part for part in page.sections if part["id"] in ("levels", "calibration")]
        text = json.dumps(parts)
        assert not any(f"{value:.5f}" in text for value in score[-3:])
        assert "Groups with fewer than 10 rows are pooled or have no numbers: race: rare (3)." in text
        bins = [
            point
            for part in parts
            for figure in part["figures"]
            for panel in figure.get("panels", ())
            for curve in panel["curves"]
            for point in curve["points"]
        ]
        assert bool(bins) == bool(more)
    shown = sq.report.build(audit, predictions=score, protected=pd.DataFrame({"race": race}), min_group=1)
    assert "0.54321" in json.dumps(shown.sections)  # the median, as before
