"""The table of coefficients, in every format, and when it cannot be had."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import setsquare as sq
from setsquare.errors import InputError
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
    assert list(frame.columns) == [*numbers, "few_rows"] and not frame.few_rows.any() and "star" not in str(found)
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


def test_coefficients_that_rest_on_few_rows_have_a_star(rows, tmp_path):
    table, y = rows
    few = np.zeros(500)
    few[:3] = 1.0
    model = sq.OrthogonalGLMClassifier("sex").fit(table.assign(d=table.a + few), y)
    found = model.summary()
    assert list(found.table().query("few_rows").term) == ["a", "d"]
    assert "d * " in str(found) and "b * " not in str(found)
    assert "star rest on few rows" in str(found) and "Use bootstrap(X, y, ...)" in str(found)
    again = model.bootstrap(table.assign(d=table.a + few), y, n_samples=5)
    assert not again.few_rows.any() and "star" not in str(again)
    sq.save(model, tmp_path / "model.setsquare")
    np.testing.assert_array_equal(sq.load(tmp_path / "model.setsquare").solution_.few_rows, found.few_rows)
    clusters = sq.OrthogonalGLMClassifier("sex").fit(table.assign(d=table.a + few), y, cluster=np.arange(500) // 2)
    assert list(clusters.summary().table().query("few_rows").term) == ["a", "d"]
    assert "rest on few clusters" in str(clusters.summary())


def test_files_from_before_the_star_still_load(rows):
    model = sq.OrthogonalGLMClassifier("sex").fit(*rows)
    state = _write_solution(model.solution_)
    del state["few_rows"]
    old = _read_solution(state)
    np.testing.assert_array_equal(old.std_error, model.solution_.std_error)
    assert old.few_rows.shape == old.std_error.shape and not old.few_rows.any()
    assert _read_solution(state | {"errors": None}).few_rows is None


def test_classes_and_clusters_are_named(rows):
    table, _ = rows
    three = sq.OrthogonalGLMClassifier("sex").fit(table, np.digitize(table.b, [0.0, 1.0]), cluster=np.arange(500) // 2)
    found = three.summary()
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
