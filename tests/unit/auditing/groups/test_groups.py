"""Numbers by group: partitions, masks, weights and clusters, undefined numbers, bad input, standards."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

import setsquare as sq
from setsquare.auditing.groups.audited import number_groups
from setsquare.auditing.groups.critical_values import critical_value
from setsquare.auditing.groups.intervals import single
from setsquare.auditing.groups.partitions import Partition, partition_rows
from setsquare.auditing.groups.rates import Rows, _midranks
from setsquare.auditing.groups.rates_with_intervals import _log
from setsquare.auditing.groups.result import GroupNumbers
from setsquare.errors import InputError, MissingValuesError


def people(n: int = 600, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"race": rng.choice(["Black", "White", "Other"], n, p=[0.3, 0.6, 0.1])})
    frame["sex"] = rng.choice(["f", "m"], n)
    score = np.round(0.1 + 0.8 * rng.beta(2, 2, n) - 0.1 * (frame["race"] == "Black").to_numpy(), 2)
    return frame, score, (rng.random(n) < score).astype(float)


def numbers(rows: Rows, frame: pd.DataFrame, **options: object) -> GroupNumbers:
    return number_groups(rows, partition_rows(frame, min_group=1, **options))


def test_the_largest_group_is_the_reference_unless_one_is_named() -> None:
    frame, score, _ = people()
    table = sq.audit(score, frame).groups()
    race = table[table["source"] == "race"].set_index("group")
    assert race.loc["White", "difference"] == 0.0
    assert race.loc["Black", "difference"] == pytest.approx(race.loc["Black", "mean"] - race.loc["White", "mean"])
    other = sq.audit(score, frame, reference={"race": "Black"}).groups().set_index(["source", "group"])
    assert other.loc[("race", "Black"), "ratio"] == 1.0
    assert set(table["source"]) == {"race", "sex", "race:sex"}


def test_the_table_comes_in_the_library_of_the_input() -> None:
    frame, score, _ = people()
    assert isinstance(sq.audit(score, pl.from_pandas(frame)).groups(), pl.DataFrame)


def test_summary_numbers_are_the_largest_differences_and_the_smallest_ratio() -> None:
    frame, score, _ = people()
    found = sq.audit(score, frame["race"], threshold=0.5).group_summary().set_index("number")
    mean, rate = (pd.Series(x).groupby(frame["race"]).mean() for x in (score, score >= 0.5))
    assert found.loc["mean_difference", "value"] == pytest.approx(mean.max() - mean.min(), abs=1e-12)
    assert found.loc["demographic_parity_ratio", "value"] == pytest.approx(rate.min() / rate.max(), abs=1e-12)
    assert (found["low"] < found["value"]).all() and (found["value"] < found["high"]).all()


def test_bands_have_readable_names() -> None:
    age = np.random.default_rng(0).integers(18, 80, 1000)
    labels = partition_rows(pd.DataFrame({"age": age}))[0].labels
    assert len(labels) == 4
    assert labels[0].startswith("18-")
    assert labels[-1].endswith("-79")


def test_integer_weights_are_repetitions() -> None:
    frame, score, y = people(200)
    times = np.random.default_rng(1).integers(1, 4, 200)
    d = (score >= 0.5).astype(float)
    again = np.repeat(np.arange(200), times)
    a = numbers(Rows(score, d, y, times.astype(float)), frame).numbers
    b = numbers(Rows(score[again], d[again], y[again]), frame.iloc[again]).numbers
    for name in a:
        np.testing.assert_allclose(a[name].estimates.value, b[name].estimates.value, atol=1e-12)


def test_rows_doubled_in_clusters_change_no_interval() -> None:
    frame, score, y = people(300)
    twice = np.repeat(np.arange(300), 2)
    plain = numbers(Rows(score, None, y, None, np.arange(300)), frame).numbers
    double = numbers(Rows(score[twice], None, y[twice], None, twice), frame.iloc[twice]).numbers
    wrong = numbers(Rows(score[twice], None, y[twice]), frame.iloc[twice]).numbers
    for name in ("mean", "auc", "calibration"):
        a, b, c = (found[name].estimates for found in (plain, double, wrong))
        for one, other in zip(single(a, 2.5), single(b, 2.5), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9)
        assert c.error.mean() < 0.8 * a.error.mean()


def test_an_auc_of_one_has_one_interval_however_the_weights_are_rounded() -> None:
    frame = pd.DataFrame({"group": ["a"] * 9 + ["b"] * 9})
    y = np.tile(np.repeat([0.0, 1.0], [4, 5]), 2)
    score = np.where(frame["group"] == "a", y + np.tile(np.linspace(0.0, 0.5, 9), 2), np.tile([0.1, 0.8, 0.3], 6))
    rows = [Rows(score, outcome=y, weight=np.random.default_rng(k).random(18) + 0.1) for k in range(30)]
    thirds = [replace(one, weight=one.weight / 3.0) for one in rows if one.weight is not None]
    for one, third in zip(rows, thirds, strict=True):
        parts = [numbers(each, frame).numbers["auc"].estimates for each in (one, third)]
        assert parts[0].value[0] == 1.0 and parts[0].covariance[0, 0] == 0.0
        for name in ("covariance", "size", "df"):
            np.testing.assert_allclose(getattr(parts[0], name), getattr(parts[1], name), rtol=1e-9)


def test_auc_of_each_group_with_ties_and_weights() -> None:
    frame, score, y = people(400)
    weight = np.random.default_rng(2).uniform(0.5, 2.0, 400)
    found = numbers(Rows(score, None, y, weight), frame)
    for k, group in enumerate(found.groups):
        if group.source == "race":
            own = (frame["race"] == group.name).to_numpy()
            value = found.numbers["auc"].estimates.value[k]
            assert value == pytest.approx(roc_auc_score(y[own], score[own], sample_weight=weight[own]), abs=1e-12)


def test_small_groups_are_named_and_masked() -> None:
    frame, score, _ = people()
    frame.loc[:3, "race"], frame.loc[4:6, "race"] = "Tiny", "Few"
    result = sq.audit(score, frame["race"])
    row = result.groups().set_index("group").loc["Tiny"]
    assert row["n"] == 4
    assert np.isnan(row["mean"])
    (note,) = [note for note in result.numbers.notes if note.code == "small-groups"]
    assert "race: Tiny (4)" in note and note.severity == "caution"


def test_undefined_numbers_are_nan_with_a_note_and_rates_of_zero_are_uncertain() -> None:
    group = np.repeat(["a", "b", "c"], 50)
    rng = np.random.default_rng(0)
    score = rng.random(150)
    y = (rng.random(150) < 0.5).astype(float)
    y[:50] = 0.0  # no positives, one class
    decision = (score > 0.5).astype(float)
    decision[50:100] = 0.0  # nobody selected
    result = sq.audit(score, group, decisions=decision, outcome=y, reference={"x0": "b"})
    table = result.groups().set_index("group")
    assert np.isnan(table.loc["a", ["tpr", "tpr_low", "auc", "auc_high"]].astype(float)).all()
    assert np.isnan(table.loc["b", "ppv"])
    assert table.loc["b", "selection_rate"] == 0.0
    assert table.loc["b", "selection_rate_high"] > 0.05
    assert np.isnan(table["impact_ratio"]).all()
    assert table.loc["b", "impact_ratio_highest"] == 0.0
    assert table.loc["b", "impact_ratio_highest_high"] > 0.05
    assert table.loc["a", "calibration_high"] - table.loc["a", "calibration_low"] > 0.05
    codes = [note.code for note in result.numbers.measures.notes]
    assert {"undefined-number", "undefined-ratio"} <= set(codes)
    said = " ".join(result.numbers.measures.notes)
    assert "TPR is undefined in groups with no positive outcome: x0: a." in said
    assert "The impact ratio is undefined where the reference group has a rate of 0 or too few rows: x0: a" in said


def test_a_ratio_to_the_highest_rate_needs_two_groups_and_a_rate_above_zero() -> None:
    frame, score, y = people()
    rare = np.where(np.arange(len(y)) < 3, "few", "many")
    for selected, decisions in ((True, score > 0.5), (False, np.zeros_like(y))):
        found = sq.audit(score, frame[["race"]].assign(rare=rare), decisions=decisions, min_group=10).group_summary()
        ratio = found[found["number"] == "demographic_parity_ratio"].set_index("source")[["value", "low", "high"]]
        assert ratio.loc["race"].notna().tolist() == [selected] * 3
        assert ratio.loc["rare"].isna().all()


def test_a_class_that_is_not_there_is_named_unless_the_positive_one_is_plain() -> None:
    frame, score, _ = people()
    words = np.where(score > 0.5, "ja", "nein")
    with pytest.raises(InputError, match="decisions has the classes 'ja' and 'nein', and positive='oui' is neither"):
        sq.audit(score, frame, decisions=words, positive="oui")
    plain = sq.audit(score, frame, decisions=np.where(score > 0.5, "yes", "no"), positive="oui").groups()
    assert plain["selection_rate"].equals(sq.audit(score, frame, threshold=0.5 + 1e-9).groups()["selection_rate"])


def test_labels_need_the_positive_class_once() -> None:
    frame, score, y = people()
    words = np.where(y == 1, "good", "bad")
    with pytest.raises(InputError, match="positive"):
        sq.audit(score, frame, threshold=0.5, outcome=words)
    a = sq.audit(score, frame, threshold=0.5, outcome=words, positive="good").groups()
    b = sq.audit(score, frame, decisions=score >= 0.5, outcome=y).groups()
    pd.testing.assert_frame_equal(a, b)


def test_decisions_that_are_all_the_same_are_said_to_show_nothing() -> None:
    frame, score, y = people()
    largest, smallest = float(score.max()), float(score.min())

    def same(**options: object) -> list[str]:
        notes = sq.audit(score, frame, **options).numbers.notes  # type: ignore[union-attr]
        return [str(note) for note in notes if note.code == "same-decision" and note.severity == "warning"]

    (none,) = same(threshold=1.5)
    assert none.startswith(f"No row is selected: the largest prediction, {largest:.4g}, is below the threshold of 1.5.")
    assert none.endswith("0 % in every group do not show equal treatment: choose a lower threshold.")
    (every,) = same(threshold=smallest)
    assert every.startswith("Every row is selected: the smallest prediction")
    assert every.endswith("100 % in every group do not show equal treatment: choose a higher threshold.")
    assert same(decisions=np.zeros_like(y)) == [
        "No row is selected. Rates that are 0 % in every group do not show equal treatment."
    ]
    assert not same(threshold=0.5)
    assert not same(threshold=largest)  # the largest prediction is selected
    assert not same()


def test_bad_input() -> None:
    frame, score, y = people()
    with pytest.raises(InputError, match="decisions must be 0 and 1, or two classes of which positive= names one"):
        sq.audit(score, frame, decisions=np.arange(600) % 3)
    with pytest.raises(InputError, match="Both a threshold and decisions"):
        sq.audit(score, frame, decisions=y, threshold=0.5)
    with pytest.raises(InputError, match="has no level 'Green' for a reference"):
        sq.audit(score, frame, reference={"race": "Green"})
    with pytest.raises(InputError, match=r"decisions has the shape \(599,\) but there are 600 rows"):
        sq.audit(score, frame, decisions=y[1:])
    with pytest.raises(MissingValuesError, match="outcome has 1 missing"):
        sq.audit(score, frame, outcome=np.r_[np.nan, y[1:]])
    with pytest.raises(InputError, match="four-fifths rule compares selection rates"):
        sq.audit(score, frame, standard="four-fifths")
    with pytest.raises(InputError, match="need one prediction per row"):
        sq.audit(np.column_stack([score / 2, score / 2, 1 - score]), frame, threshold=0.5)
    with pytest.raises(InputError, match="no numbers by group"):
        sq.audit(np.column_stack([score / 2, score / 2, 1 - score]), frame).groups()


def test_verdicts_name_small_groups_with_their_rows_and_equal_groups_once() -> None:
    frame, score, _ = people()
    reason = sq.audit(score, frame, threshold=0.5).reason
    assert f" of Other (lowest; {int((frame['race'] == 'Other').sum())} rows of data), " in reason or (
        f" of Other (highest; {int((frame['race'] == 'Other').sum())} rows of data). " in reason
    )
    assert "Share selected, by race: 0.0 % in every group." in sq.audit(score, frame, threshold=2.0).reason


def test_verdicts_name_the_most_different_groups() -> None:
    frame, score, _ = people(3000)
    reason = sq.audit(score, frame).reason
    assert "Mean prediction by race: Black 0.39 (lowest), " in reason and reason.endswith(" (highest).")
    decided = sq.audit(score, frame, threshold=0.5)
    rates = decided.groups().set_index("group")["selection_rate"]
    assert f"Share selected, by race: {100 * rates['Black']:.1f} % of Black (lowest), " in decided.reason
    ratio = rates[["White", "Black"]].min() / rates.loc[frame["race"].unique()].max()
    assert f" (highest). The lowest share is {ratio:.2f} times the highest." in decided.reason


def test_of_two_groups_none_is_called_lowest() -> None:
    frame, score, _ = people(3000)
    white = frame["race"] == "White"
    reason = sq.audit(score, np.where(white, "White", "other"), threshold=0.5).reason
    low, high = sorted(100 * (score[rows] >= 0.5).mean() for rows in (white, ~white))
    assert f": {low:.1f} % of " in reason and f", {high:.1f} % of " in reason and "(lowest" not in reason
    assert reason.endswith(f"The lower share is {low / high:.2f} times the higher.")


def test_local_law_144_counts_unknowns_and_leaves_out_small_groups() -> None:
    frame, score, _ = people(1000)
    frame["race"] = frame["race"].astype(object)
    frame.loc[:9, "race"], frame.loc[10:24, "race"] = None, "Rare"
    filed = sq.audit(score, frame, standard="ll144", missing="level").numbers.standard
    assert dict(filed.n_unknown) == {"race": 10, "sex": 0}
    table = filed.table().set_index(["source", "group"])
    assert np.isnan(table.loc[("race", "Rare"), "impact_ratio"])
    rates = table.loc["race", "scoring_rate"].drop("Rare")
    np.testing.assert_allclose(table.loc["race", "impact_ratio"].drop("Rare"), rates / rates.max())
    above = (score > np.median(score)) & (frame["race"] == "Black").to_numpy()
    assert table.loc[("race", "Black"), "above_median"] == above.sum()
    assert any("not legal advice" in note for note in filed.notes)


@pytest.mark.parametrize("standard", ["four-fifths", "ll144"])
def test_a_standard_does_not_show_what_is_masked(standard: str) -> None:
    frame, score, _ = people(1000)
    frame.loc[:2, "race"] = "Few"
    result = sq.audit(score, frame["race"], standard=standard, threshold=0.5)
    row = next(row for row in result.to_dict()["groups"]["standard"]["rows"] if row["group"] == "Few")
    assert row["n"] == 3 and row["selected"] is None and np.isnan(row["selection_rate"])
    shown = " ".join([*result.numbers.standard.notes, *result.numbers.notes])
    assert "race: Few (3)" in shown and "rate 0." not in shown
    assert ("pass min_group=1" in shown) == (standard == "ll144")  # the law asks for them
    stated = sq.audit(score, frame["race"], standard=standard, threshold=0.5, min_group=1).numbers.standard.table()
    assert stated.set_index("group").loc["Few", "selected"] == (score[:3] >= 0.5).sum()


def test_tables_of_a_standard_are_filed_by_column() -> None:
    frame, score, _ = people(1000)
    section = sq.audit(score, frame, standard="ll144").document().section("numbers")
    filed = [table for table in section["tables"] if table["caption"].startswith("Local Law 144")]
    heads = ["applicants", "above the median", "scoring rate", "impact ratio"]
    assert [[column["name"] for column in table["columns"]] for table in filed] == [
        [source, *heads] for source in ("race", "sex", "race and sex")
    ]
    assert [row[0] for row in filed[1]["rows"]] == ["f", "m"]


def test_the_four_fifths_rule_marks_ratios_below_four_fifths() -> None:
    frame, score, _ = people(2000)
    table = sq.audit(score, frame["race"], standard="four-fifths", threshold=0.6).numbers.standard.table()
    assert (table["below_four_fifths"] == (table["impact_ratio"] < 0.8)).all()
    assert table["below_four_fifths"].any()


@pytest.mark.parametrize("value", [0.3, 0.25, 1 / 3])
def test_equal_predictions_have_intervals(value):
    """Their variance can be that of rounding, at which inverses of the beta distribution were NaN or never returned."""
    rng = np.random.default_rng(0)
    people = pd.DataFrame({"race": rng.choice(["a", "b", "c"], 300), "age": rng.normal(size=300)})
    found = sq.audit(np.full(300, value), people).groups()
    ends = found[[name for name in found.columns if name.endswith(("_low", "_high"))]]
    assert ends.notna().all().all()
    assert (found["mean_low"] <= value + 1e-12).all() and (found["mean_high"] >= value - 1e-12).all()


def test_ranks_within_more_groups_than_short_integers_count() -> None:
    codes = np.tile(np.arange(40_000), 2)
    part = Partition("site", tuple(map(str, range(40_000))), codes, np.ones(40_000, dtype=bool))
    score = np.random.default_rng(0).random(80_000)
    (ranks,) = _midranks(score, part, np.argsort(score), np.ones(80_000))
    first = score[:40_000] < score[40_000:]
    np.testing.assert_array_equal(ranks[:40_000], np.where(first, 0.5, 1.5))
    np.testing.assert_array_equal(ranks[40_000:], np.where(first, 1.5, 0.5))


def test_covariances_of_logarithms_are_relative() -> None:
    rates = SimpleNamespace(value=np.array([0.5, 0.25, 0.0]), covariance=np.full((3, 3), 0.01))
    np.testing.assert_allclose(_log(rates), 0.01 * np.outer([2.0, 4.0, 0.0], [2.0, 4.0, 0.0]))  # type: ignore[arg-type]


def test_draws_do_not_depend_on_the_choice_of_eigenvectors(monkeypatch):
    """Eigenvectors of equal values are any rotation of each other, and have any sign: machines differ in both."""
    C = np.kron(np.eye(3), [[1.0, 0.5], [0.5, 2.0]])
    i = np.arange(6)
    found = critical_value(C, i, None, 0.95, np.random.default_rng(0))
    eigh = np.linalg.eigh

    def turned(A):
        values, vectors = eigh(A)
        rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]  # of the three equal values
        return values, np.hstack([-vectors[:, :3] @ rotation, vectors[:, 3:] @ rotation])

    monkeypatch.setattr(np.linalg, "eigh", turned)
    assert abs(critical_value(C, i, None, 0.95, np.random.default_rng(0)) - found) < 1e-5


def test_a_variance_by_rounding_counts_as_none():
    """A number that is constant in its group may have a variance of 0 or, on another machine, of 1e-34."""
    C, i = 0.01 * (np.eye(4) + 0.3), np.arange(4)
    C[3] = C[:, 3] = 0.0
    exact = critical_value(C, i, None, 0.95, np.random.default_rng(0))
    C[3, 3] = 1e-34
    assert critical_value(C, i, None, 0.95, np.random.default_rng(0)) == exact
