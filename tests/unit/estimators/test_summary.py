"""The table of coefficients, in every format, and when it cannot be had."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.exceptions import NotFittedError

import setsquare as sq
from setsquare.errors import InputError, NotOrthogonalError
from setsquare.estimators import refits
from setsquare.estimators.summary import Coefficients
from setsquare.glm import bootstrap
from setsquare.storage.states import _read_solution, _write_solution


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    sex = rng.choice(["F", "M"], 500)
    table = pd.DataFrame(rng.normal(size=(500, 3)) + (sex == "M")[:, None], columns=["a", "b", "c"]).assign(sex=sex)
    return table, (table.a + rng.normal(size=500) > 0).astype(int)


def test_it_prints_in_every_format(rows, tmp_path):
    model = sq.OrthogonalGLMClassifier("sex").fit(*rows)
    found = model.summary()
    frame = found.table()
    numbers = ["term", "estimate", "std_error", "statistic", "p_value", "ci_low", "ci_high"]
    assert list(frame.columns) == [*numbers, "few_rows", "source"] and set(frame.source) == {"sandwich"}
    assert not frame.few_rows.any() and "star" not in str(found)
    assert list(frame.term) == ["intercept", "a", "b", "c"]
    np.testing.assert_allclose(frame.estimate[1:], model.coef_[0])
    np.testing.assert_allclose(frame.ci_high - frame.estimate, 1.959964 * frame.std_error, rtol=1e-6)
    np.testing.assert_allclose(frame.statistic, frame.estimate / frame.std_error)
    assert "std. error" in str(found) and "sandwich" in str(found)
    assert "\\begin{tabular}" in found.to_latex() and "<table" in found._repr_html_()
    assert "std. error" in found.to_html()
    assert found.to_dict()["coefficients"][1]["term"] == "a"
    narrow = model.summary(confidence=0.5).table()
    assert (narrow.ci_high < frame.ci_high).all()
    with pytest.raises(InputError, match="confidence"):
        model.summary(confidence=1.5)


def test_a_saved_model_keeps_it(rows, tmp_path):
    model = sq.OrthogonalGLMClassifier("sex").fit(*rows)
    sq.save(model, tmp_path / "model.setsquare")
    again = sq.load(tmp_path / "model.setsquare")
    pd.testing.assert_frame_equal(again.summary().table(), model.summary().table())


@pytest.fixture(scope="module")
def few(rows):
    """Rows of which three alone tell the columns a and d apart."""
    table, y = rows
    return table.assign(d=table.a + (np.arange(500) < 3)), y


def test_coefficients_that_rest_on_few_rows_have_a_star(few, tmp_path):
    model = sq.OrthogonalGLMClassifier("sex").fit(*few)
    found = model.summary(refits=0)
    assert list(found.table().query("few_rows").term) == ["a", "d"] and not found.by_refits.any()
    assert "d * " in str(found) and "b * " not in str(found)
    assert "star rest on few rows" in str(found) and "Use bootstrap(X, y, ...)" in str(found)
    again = model.bootstrap(*few, n_samples=5)
    assert not again.few_rows.any() and "star" not in str(again) and set(again.table().source) == {"refits"}
    sq.save(model, tmp_path / "model.setsquare")
    loaded = sq.load(tmp_path / "model.setsquare")
    np.testing.assert_array_equal(loaded.solution_.few_rows, found.few_rows)
    assert str(loaded.summary()) == str(found)  # saving makes no refits
    with pytest.raises(InputError, match="no longer has the rows"):
        loaded.summary(refits=50)
    clusters = sq.OrthogonalGLMClassifier("sex").fit(*few, cluster=np.arange(500) // 2)
    assert list(clusters.summary(refits=0).table().query("few_rows").term) == ["a", "d"]
    assert "rest on few clusters" in str(clusters.summary(refits=0))


def test_their_standard_errors_are_from_refits(few, tmp_path, monkeypatch):
    monkeypatch.setattr(refits, "MOST", 120)
    model = sq.OrthogonalGLMClassifier("sex").fit(*few)
    found, sandwich, other = model.summary(), model.summary(refits=0), model.bootstrap(*few, n_samples=120)
    assert list(found.table().query("source == 'refits'").term) == ["a", "d"]
    star = found.by_refits
    np.testing.assert_array_equal(found.std_error[~star], sandwich.std_error[~star])
    np.testing.assert_allclose(found.std_error[star], other.std_error[star], rtol=1e-6)
    assert np.abs(sandwich.std_error / found.std_error - 1.0)[star].min() > 0.01
    assert "star are from 120 refits" in str(found) and "d * " in str(found) and "few rows (their own" in str(found)
    same = sq.OrthogonalGLMClassifier("sex").fit(*few)
    assert str(same.summary()) == str(found)  # the same draws
    sq.save(model, tmp_path / "model.setsquare")
    kept = [sq.load(tmp_path / "model.setsquare"), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    assert [str(each.summary()) for each in kept] == [str(found)] * 3


@pytest.mark.parametrize("n_fits", [0, 1])
def test_a_model_whose_resamples_have_no_fit_is_saved_with_their_number(few, tmp_path, monkeypatch, n_fits):
    model = sq.OrthogonalGLMClassifier("sex").fit(*few)
    settle, done = model._settle, []

    def fail(problem, start):
        if start is not None and len(done) == n_fits:
            raise NotOrthogonalError("no fit")
        if start is not None:
            done.append(problem)
        return settle(problem, start=start)

    monkeypatch.setattr(model, "_settle", fail)
    found = model.summary(refits=3)
    assert f"{3 - n_fits} of 3 resamples have no corrected fit" in str(found) and not found.by_refits.any()
    monkeypatch.undo()
    sq.save(model, tmp_path / "model.setsquare")
    assert str(sq.load(tmp_path / "model.setsquare").summary(refits=3)) == str(found)


def test_refits_of_a_file_that_do_not_fit_are_refused(few):
    model = sq.OrthogonalGLMClassifier("sex").fit(*few)
    model.summary(refits=20)
    state = _write_solution(model.solution_)
    assert _read_solution(state).refits.found.n_refits == 20
    for bad in ({"std_error": np.zeros((1, 2))}, {"precision": "no"}, {"n_refits": "5"}, {"n_failed": -1}):
        with pytest.raises(InputError, match="refits that do not belong to its coefficients"):
            _read_solution(state | {"refits": state["refits"] | bad})


def test_a_fit_for_new_rows_has_refits_too():
    rng = np.random.default_rng(5)
    sex = rng.choice(["F", "M"], 1300)
    table = pd.DataFrame(rng.normal(size=(1300, 4)) + (sex == "M")[:, None], columns=list("abcd"))
    table = table.assign(e=table.a + (np.arange(1300) < 3), sex=sex)
    y = (table.a + rng.normal(size=1300) > 0).astype(int)
    model = sq.OrthogonalGLMClassifier("sex", orthogonal_on="new rows").fit(table, y)
    assert model.summary(refits=5).by_refits.any()


def test_a_table_makes_no_more_refits_than_it_needs(few, monkeypatch):
    monkeypatch.setattr(bootstrap, "PRECISE", 0.5)
    model = sq.OrthogonalGLMClassifier("sex").fit(*few)
    assert "star are from 100 refits" in str(model.summary())


def test_refits_follow_clusters_weights_and_the_number_that_is_asked_for(few):
    table, y = few
    twice, labels, cluster = pd.concat([table, table]), np.tile(y, 2), np.tile(np.arange(500), 2)
    single = sq.OrthogonalGLMClassifier("sex").fit(table, y).summary(refits=40)
    clusters = sq.OrthogonalGLMClassifier("sex").fit(twice, labels, cluster=cluster).summary(refits=40)
    assert "40 refits to resampled clusters" in str(clusters)
    weight = np.full(500, 3.0)
    weighted = sq.OrthogonalGLMClassifier("sex").fit(table, y, sample_weight=weight).summary(refits=40)
    for other in (clusters, weighted):
        np.testing.assert_allclose(other.std_error[other.by_refits], single.std_error[single.by_refits], rtol=1e-4)
    for number in (1, -3, 2.5, "all"):
        with pytest.raises(InputError, match="refits must be 0, an integer of at least 2, or None"):
            sq.OrthogonalGLMClassifier("sex").fit(table, y).summary(refits=number)


def test_no_refits_where_they_take_minutes_or_the_rows_have_changed(few, monkeypatch):
    table, y = few
    model = sq.OrthogonalGLMClassifier("sex").fit(table, y)
    monkeypatch.setattr(refits, "LONGEST", 1.0)
    assert "would take minutes: summary(refits=2000) makes them" in model.summary().about[-1]
    assert not model.summary().by_refits.any() and model.summary(refits=20).by_refits.any()
    monkeypatch.undo()
    model = sq.OrthogonalGLMClassifier("sex").fit(table, y)
    assert model.summary(refits=0).few_rows.any()  # read before the change
    model.solution_.refits.problem.features[:, 1] *= -2.0
    assert "Use bootstrap" in model.summary().about[-1] and not model.summary().by_refits.any()


def test_resamples_without_a_fit_leave_the_star(few, monkeypatch):
    model = sq.OrthogonalGLMClassifier("sex").fit(*few)
    settle, calls = model._settle, []

    def rarely(problem, start):
        calls.append(1)
        if len(calls) > 1 and len(calls) % 3:
            raise NotOrthogonalError("no")
        return settle(problem, start)

    monkeypatch.setattr(model, "_settle", rarely)
    found = model.summary(refits=12)
    assert not found.by_refits.any() and "8 of 12 resamples have no corrected fit" in found.about[-1]


def test_files_from_before_the_star_still_load(rows):
    model = sq.OrthogonalGLMClassifier("sex").fit(*rows)
    state = _write_solution(model.solution_)
    del state["few_rows"], state["refits"]
    old = _read_solution(state)
    np.testing.assert_array_equal(old.std_error, model.solution_.std_error)
    assert old.few_rows.shape == old.std_error.shape and not old.few_rows.any()
    assert _read_solution(state | {"errors": None}).few_rows is None


def test_classes_and_clusters_are_named(rows):
    table, _ = rows
    three = sq.OrthogonalGLMClassifier("sex").fit(table, np.digitize(table.b, [0.0, 1.0]), cluster=np.arange(500) // 2)
    found = three.summary(refits=0)
    assert list(dict.fromkeys(found.table()["class"])) == ["0", "1", "2"] and "cluster-robust" in str(found)


def test_it_is_refused_where_it_is_not_known(rows):
    table, y = rows
    model = sq.OrthogonalGLMClassifier("sex", solver="large").fit(table, y)
    with pytest.raises(InputError, match='solver="sqp"'):
        model.summary()


@pytest.mark.parametrize(
    "options", [{}, {"l2": 0.01}, {"budget": 0.3}, {"given": "outcome"}, {"orthogonal_on": "new rows"}]
)
def test_refits_give_about_the_same_errors(rows, options, tmp_path):
    table, y = rows
    model = sq.OrthogonalGLMClassifier("sex", **options).fit(table, y)
    found = model.bootstrap(table, y, n_samples=60)
    assert "60 refits" in str(found) and list(found.table().term) == ["intercept", "a", "b", "c"]
    np.testing.assert_allclose(found.table().estimate[1:], model.coef_[0])
    # Two constraints leave one of four coefficients free with given="outcome": the sandwich is twice too large there.
    if options.keys() <= {"l2", "orthogonal_on"}:
        ratio = found.table().std_error / model.summary().table().std_error
        assert ratio.between(0.7, 1.4).all()
    if not options:
        sq.save(model, tmp_path / "model.setsquare")
        again = sq.load(tmp_path / "model.setsquare").bootstrap(table, y, n_samples=60)
        pd.testing.assert_frame_equal(again.table(), found.table())


def test_refits_with_a_threshold_where_the_sandwich_is_refused(rows):
    table, y = rows
    model = sq.OrthogonalGLMClassifier("sex", threshold=0.5).fit(table, y)
    with pytest.raises(InputError, match="bootstrap"):
        model.summary()
    assert (model.bootstrap(table, y, n_samples=5).std_error > 0.0).all()


def test_clusters_are_resampled_as_a_whole(rows):
    table, y = rows
    twice, cluster = pd.concat([table, table]), np.tile(np.arange(500), 2)
    model = sq.OrthogonalGLMClassifier("sex").fit(twice, np.tile(y, 2), cluster=cluster)
    own = model.bootstrap(twice, np.tile(y, 2), cluster=cluster, n_samples=60)
    naive = model.bootstrap(twice, np.tile(y, 2), n_samples=60)
    ratio = own.std_error / naive.std_error
    assert 1.2 < np.median(ratio) < 1.7  # the root of two
    assert "resampled clusters" in str(own)


def test_refits_are_refused_for_other_rows_and_options(rows):
    table, y = rows
    model = sq.OrthogonalGLMClassifier("sex").fit(table, y)
    with pytest.raises(InputError, match="are not those of the fit"):
        model.bootstrap(table[:400], y[:400], n_samples=5)
    with pytest.raises(InputError, match="n_samples"):
        model.bootstrap(table, y, n_samples=1)
    box = sq.OrthogonalGLMClassifier("sex", relax="box").fit(table, y)
    with pytest.raises(InputError, match="relax="):
        box.bootstrap(table, y, n_samples=5)
    with pytest.raises(InputError, match="relax="):
        box.summary()


def test_a_model_that_was_not_fitted_has_no_bootstrap():
    with pytest.raises(NotFittedError):
        sq.OrthogonalGLMRegressor(protected=["x"]).bootstrap(pd.DataFrame({"x": [1.0], "z": [2.0]}), [1.0])


def test_a_coefficient_that_the_data_do_not_determine_has_no_standard_error():
    """Where an outcome never varies, the coefficient grows until the loss stays the same; its sandwich is near zero."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=200), "rare": (np.arange(200) < 4).astype(float)})
    y = (rng.random(200) < 0.5).astype(int)
    y[:4] = 0
    with pytest.warns(sq.errors.SeparationWarning):
        model = sq.OrthogonalGLMClassifier().fit(table, y, protected=rng.normal(size=(200, 1)))
    found = model.summary(refits=0)
    error = dict(zip(found.table()["term"], found.table()["std_error"], strict=True))
    assert np.isnan(error["rare"]) and 0.05 < error["a"] < 0.5
    assert "The data hardly determine rare (quasi-separation), so no standard error is given there." in str(found)


@pytest.mark.parametrize("n_clusters", [1, 2, 3, 4])
def test_clusters_leave_one_degree_of_freedom_less(n_clusters):
    one, yes = np.ones((1, 1)), np.zeros((1, 1), dtype=bool)
    found = Coefficients(("a",), (), one, one, 0.95, (), yes, yes, n_clusters).rows()[0]
    df = max(n_clusters - 1, 1)
    assert found["ci_high"] == pytest.approx(1.0 + stats.t.ppf(0.975, df))
    assert found["p_value"] == pytest.approx(2.0 * stats.t.sf(1.0, df))


@pytest.mark.parametrize("model", [sq.estimators.PlainGLMClassifier, sq.estimators.PlainGLMRegressor])
def test_an_unconstrained_model_keeps_its_options(model):
    given = {"l2": 0.5, "missing": "drop", "unseen": "reference"}
    found = model(**given).get_params()
    assert {name: found[name] for name in given} == given


def test_a_file_without_few_rows_has_none(rows):
    solution = sq.OrthogonalGLMClassifier("sex").fit(*rows).solution_
    state = _write_solution(solution)
    state["few_rows"] = None
    found = _read_solution(state).few_rows
    assert found.dtype == bool and found.shape == solution.std_error.shape and not found.any()


@pytest.mark.parametrize(("loss", "spread"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_fit_is_unchanged_relative_to_its_loss_or_the_spread_of_the_outcome(loss, spread):
    def solution(off):
        certificate = SimpleNamespace(loss=loss + off * refits.CHANGED)
        return SimpleNamespace(
            certificate=certificate, intercept=np.zeros(1), coef=np.zeros((1, 1)), std_error=np.ones((1, 2))
        )

    problem = SimpleNamespace(outcomes=SimpleNamespace(spread=spread))
    for off, unchanged in ((0.5, True), (2.0, False)):
        model = SimpleNamespace(solution_=solution(0.0), _settle=lambda problem, start, off=off: solution(off))
        assert refits._is_unchanged(model, problem) is unchanged
