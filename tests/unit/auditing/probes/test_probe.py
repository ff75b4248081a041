"""Probes: what they take, what they say, and what they refuse."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression

import setsquare as sq
from setsquare.auditing.probes import models as probe_models
from setsquare.auditing.probes.models import read_attributes, recover, split_rows

QUICK = {"probes": ("logistic",)}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(20, 80, 600), "sex": rng.choice(["f", "m"], 600)})
    Z = rng.normal(size=(600, 3)) + 0.03 * table.age.to_numpy()[:, None]
    Z[:, 0] += table.sex == "f"
    return Z, table


def test_the_result_is_a_table_a_dictionary_and_a_text(data, capsys):
    Z, table = data
    found = sq.probe({"before": Z, "pca": PCA(2)}, table, features=Z, probes=("linear", "logistic"))
    rows = found.table()
    assert list(rows.columns[:8]) == [
        "representation", "attribute", "probe", "score", "ci_low", "ci_high", "chance", "measure",
    ]  # fmt: skip
    assert len(rows) == 8 and set(rows.verdict) <= {"recovered", "trace", "not found"}
    assert rows.measure.tolist()[:4] == ["r2", "auc above median", "auc", "auc"]
    assert rows.chance.tolist()[:4] == [0.0, 0.5, 0.5, 0.5]
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["scores"][0]["score"] == found.scores[0].score and plain["reason"] == found.reason
    found.show()
    printed = capsys.readouterr().out
    assert "before: age recovered (linear, logistic); sex recovered (linear, logistic)." in printed
    assert "Corrections were fitted on 240 rows, probes on 240 others" in printed
    assert repr(found) == f"ProbeResult({found.reason})"
    assert isinstance(sq.probe(Z, pl.from_pandas(table), **QUICK).table(), pl.DataFrame)
    with pytest.raises(sq.errors.InputError, match="no mlp probe of age from 'before'"):
        found.score("before", "age", "mlp")


def test_the_same_seed_gives_the_same_result_and_representations_do_not_touch_each_other(data):
    Z, table = data
    table, options = table[["sex"]], {"probes": ("logistic", "boosting"), "max_rows": 100, "cv": 3}
    one, two = (sq.probe({"before": Z, "half": Z[:, :1]}, table, **options) for _ in range(2))
    assert one == two
    assert sq.probe({"half": Z[:, :1]}, table, **options).scores == one.scores[2:]
    assert (one.scores[0].n_train, one.scores[1].n_train) == (200, 100)
    assert any("Fitted on 100 of these rows only: boosting." in note for note in one.notes)
    assert sq.probe({"before": Z}, table, **options, random_state=1).scores != one.scores[:2]


def test_it_takes_any_table_and_precision(data):
    Z, table = data
    expected = sq.probe(Z.astype(np.float32), table, **QUICK).scores
    for same in (pd.DataFrame(Z.astype(np.float32)), sparse.csr_matrix(Z.astype(np.float32)), Z.tolist()):
        found = sq.probe(same, table, **QUICK).scores
        np.testing.assert_allclose([s.score for s in found], [s.score for s in expected], atol=1e-4)
    half = sq.probe(Z.astype(np.float16), table, **QUICK).scores
    np.testing.assert_allclose([s.score for s in half], [s.score for s in expected], atol=5e-3)
    frame = sq.LinearOrthogonalizer(protected=["age", "sex"])
    inside = sq.probe({"C^l": frame}, table, features=table.assign(a=Z[:, 0], b=Z[:, 1]), **QUICK)
    assert inside.score("C^l", "age", "logistic").score < 0.6


def test_numbers_of_two_values_are_levels_and_rare_levels_are_left_out_with_a_count():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"sex": rng.integers(2, size=300), "race": rng.choice(["a", "b", "c"], 300, p=[0.5, 0.48, 0.02])}
    )
    attributes, notes = read_attributes(table, np.arange(300), 5)
    assert [a.n_levels for a in attributes] == [2, 2] and attributes[0].measure == "auc"
    rare = (table.race == "c").to_numpy()
    np.testing.assert_array_equal(attributes[1].known, ~rare)
    assert notes == (f"race: {rare.sum()} row(s) of level(s) that are too rare for 5 folds were left out (c).",)
    assert np.isfinite(sq.probe(rng.normal(size=(300, 2)), table, **QUICK).scores[1].score)


@pytest.mark.parametrize("kind", ["mlp", "boosting"])
def test_a_level_with_a_single_row_among_those_that_fit_a_probe_does_no_harm(kind):
    rng = np.random.default_rng(0)
    level = np.r_[2.0, rng.integers(2, size=99)]
    scores, _ = recover(kind, rng.normal(size=(100, 2)), level, 3, rng.normal(size=(5, 2)), 0, np.arange(100))
    np.testing.assert_allclose(scores.sum(axis=1), 1.0)


def test_a_number_that_is_mostly_its_largest_value_is_still_halved():
    values = np.r_[np.full(60, 5.0), np.arange(40.0) / 10.0]
    (attribute,), _ = read_attributes(values, np.arange(100), 3)
    assert attribute.halved().values.sum() == 60 and attribute.n_levels == 0


def test_folds_keep_clusters_together_and_never_change_places():
    rng = np.random.default_rng(0)
    units = rng.integers(100, size=800)
    level = np.array(["a", "b"])[units % 2]
    attributes, _ = read_attributes(level, units, 5)
    splits = split_rows(attributes, units, 5, 1000, rng)
    for split in splits:
        parts = [set(units[rows]) for rows in (split.fit, split.train, split.test)]
        assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
        assert abs((level[split.test] == "a").mean() - 0.5) < 0.12
    scored = {(j, k) for j, a in enumerate(splits) for k, b in enumerate(splits) if set(b.test) <= set(a.train)}
    assert len(scored) == 10 and not {(k, j) for j, k in scored} & scored


def test_fits_that_do_not_converge_are_counted(data, monkeypatch):
    Z, table = data
    original = probe_models._model

    def impatient(*settings):
        return original(*settings).set_params(logisticregression__max_iter=1)

    monkeypatch.setattr(probe_models, "_model", impatient)
    found = sq.probe(Z, table, **QUICK)
    assert [s.n_not_converged for s in found.scores] == [5, 5]
    assert found.notes == ("10 fit(s) of the logistic probe did not converge.",)


def test_other_warnings_of_a_fit_are_passed_on(monkeypatch):
    class Loud(LinearRegression):
        def fit(self, X, y):
            warnings.warn("something else", RuntimeWarning, stacklevel=2)
            return super().fit(X, y)

    monkeypatch.setattr(probe_models, "_model", lambda *_: Loud())
    Z = np.arange(20.0).reshape(10, 2)
    with pytest.warns(RuntimeWarning, match="something else") as seen, warnings.catch_warnings(action="default"):
        assert recover("linear", Z, Z[:, 0], 0, Z, 0, np.arange(10))[1] == 0
    assert len(seen) == 1


def test_what_was_corrected_on_these_very_rows_is_noticed(data):
    Z, table = data
    corrected = sq.LinearOrthogonalizer().fit_transform(Z, protected=table)
    notes = sq.probe({"before": Z, "after": corrected}, table, **QUICK).notes
    assert len(notes) == 1 and notes[0].startswith("after is orthogonal to the protected columns up to rounding")


def test_progress_counts_every_fit(data):
    Z, table = data
    calls = []
    sq.probe({"a": Z, "b": Z}, table, **QUICK, cv=3, progress=lambda *call: calls.append(call))
    assert calls == [(j, 12) for j in range(1, 13)]


@pytest.mark.parametrize(
    ("representations", "options", "message"),
    [
        ({"a": None}, {}, "a is computed from the features: pass them as features="),
        ({"a": PCA()}, {}, "a is computed from the features"),
        ({}, {}, "no representation"),
        ({"a": np.zeros((5, 2))}, {}, "a has 5 rows but the protected columns have 600"),
        ({"a": np.full((600, 2), np.nan)}, {}, r"Column a\[0\] has 600 NaN"),
        ({"a": np.zeros((600, 2))}, {"cv": 2}, "use 3 or more"),
        ({"a": np.zeros((600, 2))}, {"probes": ("forest",)}, "name one or more of linear, logistic, mlp, boosting"),
        ({"a": np.zeros((600, 2))}, {"max_rows": 5}, "100 or more"),
        ({"a": np.zeros((600, 2))}, {"confidence": 95}, "between 0.5 and 1"),
        ({"a": np.zeros((600, 2))}, {"cluster": np.arange(600) % 7}, "7 rows or clusters are too few for 5 folds"),
        ({"a": np.zeros((600, 2))}, {"cluster": np.arange(5)}, "give one value per row"),
    ],
)
def test_bad_input_gets_one_sentence(data, representations, options, message):
    with pytest.raises(sq.errors.InputError, match=message):
        sq.probe(representations, data[1], **options)


def test_protected_columns_that_cannot_be_recovered_are_refused():
    Z = np.random.default_rng(0).normal(size=(100, 2))
    with pytest.raises(sq.errors.InputError, match="Protected column x0 is constant"):
        sq.probe(Z, np.full(100, "a"))
    with pytest.raises(sq.errors.InputError, match="too few rows in all levels but one"):
        sq.probe(Z, np.where(np.arange(100) < 3, "a", "b"))


def test_a_representation_that_says_nothing_is_at_chance_exactly(data):
    found = sq.probe(np.ones((600, 2)), data[1], probes=("linear", "logistic", "boosting"), cv=3)
    for score in found.scores:
        assert score.verdict == "not found" and score.score == pytest.approx(score.chance, abs=0.02)


@pytest.mark.parametrize("n_levels", [0, 2])
def test_the_network_is_small_and_regularised(n_levels: int) -> None:
    found = probe_models._model("network", n_levels, np.arange(50), 3, can_stop=True)[-1].get_params()
    wanted = {"hidden_layer_sizes": (64,), "alpha": 1.0, "max_iter": 200, "random_state": 3, "early_stopping": True}
    assert {name: found[name] for name in wanted} == wanted
