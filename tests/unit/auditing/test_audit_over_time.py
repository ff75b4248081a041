"""Audits in which earlier rows predict later ones."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import setsquare as sq
from setsquare.errors import InputError, MissingValuesError
from setsquare.estimators.folds import split_by_time


def drifting(n=1200, seed=0):
    """A feature that tells nothing about the group before the year 2 and nearly everything after it."""
    rng = np.random.default_rng(seed)
    year = np.sort(rng.uniform(0, 4, n))
    group = rng.integers(0, 2, n)
    Z = rng.normal(size=(n, 3))
    Z[:, 0] += np.where(year > 2, 2.0 * (group - 0.5), 0.0)
    y = (rng.random(n) < 1 / (1 + np.exp(-Z.sum(axis=1) + np.where(year > 2, 2.0 * (group - 0.5), 0.0)))).astype(int)
    return pd.DataFrame(Z, columns=list("abc")), y, pd.DataFrame({"group": group.astype(str)}), year


def test_only_earlier_rows_are_trained_on():
    rng = np.random.default_rng(1)
    time, cluster = rng.integers(0, 40, 300), rng.integers(0, 60, 300)
    for folds, when in (
        (split_by_time(time, 4, 300, None), time),
        (split_by_time(time, 4, 300, cluster), np.array([time[cluster == c].min() for c in cluster])),
    ):
        for train, test in folds:
            assert when[train].max() < when[test].min()
        tested = np.concatenate([test for _, test in folds])
        assert len(np.unique(tested)) == len(tested) and 150 < len(tested) < 290
    for train, test in split_by_time(time, 4, 300, cluster):
        assert not np.intersect1d(cluster[train], cluster[test]).size


def test_a_change_over_time_is_found_where_shuffled_folds_hide_it():
    Z, y, group, year = drifting()
    early = year <= 2
    model = LogisticRegression()
    before = sq.audit_model(model, Z[early], y[early], group[early], time=year[early])
    after = sq.audit_model(model, Z, y, group, time=year)
    assert before.verdict != "leak" and after.verdict == "leak"
    assert after.setting == "later rows (5 spans of time)"
    assert any(note.code == "over-time" for note in after.notes)


def test_a_correction_of_the_past_does_not_hold_after_a_change():
    """The promise needs rows like those of the fit: leave-one-out finds nothing, later rows show the leak."""
    Z, y, group, year = drifting(3000)
    shift = year > 3
    Z.loc[shift, "b"] += np.where(group.loc[shift, "group"] == "1", 1.5, 0.0)
    model = sq.OrthogonalGLMClassifier()
    shuffled, later = (sq.audit_model(model, Z, y, group, cv=3, **way) for way in ({}, {"time": year}))
    assert later.certificate.correlation > 2 * shuffled.certificate.correlation


def test_columns_of_the_rows_are_cut_with_them():
    Z, y, group, year = drifting(400)
    weight = np.where(np.arange(400) % 7 == 0, 0.0, 1.0)
    result = sq.audit_model(
        LogisticRegression(),
        Z,
        y,
        group,
        cv=3,
        time=pd.to_datetime("2020-01-01") + pd.to_timedelta(year, "D"),
        sample_weight=weight,
        cluster=np.arange(400) // 2,
        outcome=y,
        threshold=0.5,
        positive=1,
    )
    table = result.groups()
    assert table["n"].max() <= 300 and {"tpr", "selection_rate"} <= set(table.columns)


@pytest.mark.parametrize(
    ("time", "cv", "error", "words"),
    [
        (np.zeros(60), 2, InputError, "2 spans of time cannot be held out of 1 distinct times"),
        (np.arange(60), "prefit", None, ""),
        (np.r_[np.zeros(58), 1, 2], 2, InputError, "Most rows have the same time"),
        (["spring"] * 60, 2, InputError, "'spring' is neither"),
        ([None, *range(59)], 2, MissingValuesError, "time has missing values"),
        (np.arange(59), 2, InputError, "time"),
    ],
)
def test_times_that_cannot_be_used(time, cv, error, words):
    Z, y, group, _ = drifting(60)
    if error is None:
        with pytest.raises(InputError, match="time= needs a number of spans"):
            sq.audit_model(LogisticRegression().fit(Z, y), Z, y, group, cv=cv, time=time)
        return
    with pytest.raises(error, match=words):
        sq.audit_model(LogisticRegression(), Z, y, group, cv=cv, time=time)
