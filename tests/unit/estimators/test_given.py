"""given= on the estimators, in files, streams, saved models and audits; and bad input."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier

import setsquare as sq
from setsquare.cli import arguments as arguments_of_the_command_line
from setsquare.errors import DroppedColumnWarning, InputError

N = 600


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    code = rng.integers(0, 2, N)
    edu = code + rng.normal(size=N)
    parts = {f"x{j}": rng.normal(size=N) + (j % 2) * code for j in range(5)}
    eta = 0.8 * edu + parts["x1"] - parts["x2"] - 1.0
    y = (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(int)
    return pd.DataFrame({"sex": np.where(code, "F", "M"), "edu": edu, **parts, "y": y})


def effect(p, table, controls):
    A = np.column_stack([np.ones(N), table.sex == "F", controls]).astype(float)
    return abs(np.linalg.lstsq(A, p, rcond=None)[0][1])


def test_a_model_given_columns_predicts_the_same_from_a_file_and_when_saved(table, tmp_path):
    model = sq.OrthogonalGLMClassifier("sex", given="edu").fit(table.drop(columns="y"), table.y)
    p = model.predict_proba(table.drop(columns=["y", "sex"]))[:, 1]
    assert effect(p, table, table.edu) < 1e-9 < 0.01 < effect(p, table, np.zeros((N, 0)))
    assert model.solution_.certificate.given == ("edu",) and "Given" in str(model.solution_.certificate)
    table.to_parquet(tmp_path / "rows.parquet")
    streamed = sq.OrthogonalGLMClassifier("sex", given=["edu"]).fit(str(tmp_path / "rows.parquet"), "y")
    np.testing.assert_allclose(streamed.coef_, model.coef_, atol=1e-6)
    sq.save(model, tmp_path / "model.setsquare")
    again = sq.load(tmp_path / "model.setsquare")
    assert again.solution_.certificate.given == ("edu",) and again.given == "edu"
    np.testing.assert_array_equal(again.predict_proba(table.drop(columns="y"))[:, 1], p)


def test_a_stream_given_the_outcome_is_the_same_fit(table, tmp_path):
    table.to_parquet(tmp_path / "rows.parquet")
    here = sq.OrthogonalGLMClassifier("sex", given="outcome").fit(table.drop(columns="y"), table.y)
    there = sq.OrthogonalGLMClassifier("sex", given="outcome").fit(str(tmp_path / "rows.parquet"), "y")
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-6)
    p = here.predict_proba(table.drop(columns=["y", "sex"]))[:, 1]
    for k in (0, 1):
        means = [p[(table.y == k) & (table.sex == s)].mean() for s in ("F", "M")]
        assert abs(means[0] - means[1]) < 1e-9


@pytest.mark.parametrize("method", ["generalized", "linear"])
def test_corrected_predictions_have_no_effect_given_columns(table, method, tmp_path):
    forest = RandomForestClassifier(20, max_depth=3, random_state=0)
    options = {"protected": "sex", "given": "edu", "cv": "training rows"}
    rows = table.drop(columns="y")
    p = sq.PredictionOrthogonalizer(forest, method, **options).fit(rows, table.y).predict_proba(rows)[:, 1]
    before = forest.fit(rows.drop(columns="sex"), table.y).predict_proba(rows.drop(columns="sex"))[:, 1]
    assert effect(p, table, table.edu) < 1e-9 < 0.01 < effect(before, table, table.edu)


@pytest.mark.parametrize("using", ["protected", "features"])
def test_corrected_features_have_no_effect_given_columns(table, using, tmp_path):
    rows = table.drop(columns="y")
    model = sq.LinearOrthogonalizer("sex", given="edu", using=using).fit(rows)
    out = model.transform(rows)
    assert max(effect(column, table, table.edu) for column in out.T) < 1e-9
    assert max(effect(column, table, np.zeros((N, 0))) for column in out.T) > 0.5
    sq.save(model, tmp_path / "model.setsquare")
    np.testing.assert_array_equal(sq.load(tmp_path / "model.setsquare").transform(rows), out)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda t: sq.LinearOrthogonalizer("sex", given="outcome").fit(t), "would need the outcome"),
        (
            lambda t: sq.PredictionOrthogonalizer(RandomForestClassifier(), protected="sex", given="outcome").fit(
                t, t.y
            ),
            "would need the outcome",
        ),
        (lambda t: sq.OrthogonalGLMClassifier("sex", given="sex").fit(t, t.y), "two roles"),
        (lambda t: sq.OrthogonalGLMClassifier("sex", given="school").fit(t, t.y), "no column 'school'"),
        (
            lambda t: sq.OrthogonalGLMClassifier("sex", given="code").fit(t.assign(code=t.sex), t.y),
            "nothing of the protected columns",
        ),
        (
            lambda t: sq.OrthogonalGLMClassifier("sex", given="edu", orthogonal_on="new rows").fit(
                t, t.y, cluster=np.arange(N) // 2
            ),
            "without cluster",
        ),
        (lambda t: sq.LinearOrthogonalizer("sex", given="edu").partial_fit(t), "all rows at once"),
        (lambda t: sq.audit(t.x1, t.sex, given="outcome"), "pass outcome="),
        (lambda t: sq.audit(t.x1, t.sex, given="edu"), "must be a table"),
        (lambda t: sq.audit(t.x1, t.sex, given=t[["edu"]], evaluation="forest"), "no evaluation model 'forest'"),
        (lambda t: sq.audit(t.x1, t.sex, evaluation="gcm"), "needs controls"),
        (lambda t: sq.audit(t.x1, t.sex, given=t[["edu"]][:10]), "given has"),
        (lambda t: sq.audit(t.x1, t.sex, given=t.sex), "nothing of the protected columns"),
    ],
)
def test_bad_controls_are_refused(table, make, match):
    with pytest.raises(InputError, match=match):
        make(table.rename(columns={}))


def test_new_rows_and_an_automatic_ridge_work_given_controls(table):
    rows = table.drop(columns="y")
    model = sq.OrthogonalGLMClassifier("sex", given="edu", orthogonal_on="new rows", l2="auto").fit(rows, table.y)
    assert model.solution_.certificate.is_orthogonal and model.solution_.certificate.new_rows.correlation < 0.02


def test_an_audit_given_columns_finds_the_effects_of_a_regression_on_both(table):
    import statsmodels.api as sm

    p = 0.3 * table.edu + 0.2 * (table.sex == "F") + table.x0
    found = sq.audit(p, table.sex, given=table[["edu"]]).table()
    A = sm.add_constant(np.column_stack([table.sex == "M", table.edu]).astype(float))
    known = sm.OLS(p, A).fit(cov_type="HC3")
    np.testing.assert_allclose(found.estimate[0], known.params.iloc[1], rtol=1e-10)
    np.testing.assert_allclose(found.std_error[0], known.bse.iloc[1], rtol=0.01)
    assert sq.audit(0.3 * table.edu, table[["sex"]]).is_leak
    assert not sq.audit(0.3 * table.edu + 0.01 * table.x0, table.sex, given=table[["edu"]]).is_leak


def test_the_covariance_measure_sees_through_curved_controls():
    """The prediction depends on the control along a curve: the linear regression errs, the measure does not."""
    rng = np.random.default_rng(0)
    control = rng.normal(size=3000)
    protected = control**2 + rng.normal(size=3000)
    prediction = control**2 + 0.5 * rng.normal(size=3000)
    found = sq.audit(prediction, protected, given=control[:, None], evaluation=("linear", "gcm"))
    assert found.evaluation("linear").joint.p_value < 1e-6
    assert found.evaluation("gcm").joint.p_value > 0.01
    leaking = sq.audit(prediction + 0.1 * protected, protected, given=control[:, None], evaluation="gcm")
    assert leaking.evaluation("gcm").joint.p_value < 1e-3 and leaking.evaluation("gcm").joint.upper > 0.1


def test_models_and_comparisons_are_audited_given_the_outcome(table):
    rows = table.drop(columns="y")
    model = sq.OrthogonalGLMClassifier("sex", given="outcome")
    found = sq.audit_model(model, rows, table.y, "sex", given="outcome")
    assert not found.is_leak and {"sex[M] at outcome 0", "sex[M] at outcome 1"} == set(found.table().term)
    plain = 1 / (1 + np.exp(-table.x1 - 2 * (table.sex == "F")))
    both = sq.compare({"plain": plain, "fair": model.fit(rows, table.y).predict_proba(rows)[:, 1]}, table.y, table.sex,
                      given="outcome")  # fmt: skip
    assert both["plain"].audit.is_leak and not both["fair"].audit.is_leak


def test_the_command_line_takes_what_is_given(table, tmp_path, capsys, monkeypatch):
    def main(arguments):
        monkeypatch.setattr("sys.argv", ["setsquare", *arguments])
        with pytest.raises(SystemExit) as end:
            arguments_of_the_command_line.main()
        return end.value.code

    file, out = tmp_path / "rows.csv", tmp_path / "out.json"
    table.assign(score=0.3 * table.edu + 0.1 * table.x0).to_csv(file, index=False)
    audit = ["audit", str(file), "--predictions", "score", "--protected", "sex", "--json", str(out)]
    assert main([*audit, "--fail-on-leak"]) == 1
    assert main([*audit, "--fail-on-leak", "--given", "edu"]) == 0
    assert main([*audit, "--given", "outcome"]) == 2
    assert "--outcome" in capsys.readouterr().err
    saved = tmp_path / "model.setsquare"
    fit = ["correct", str(file), "--outcome", "y", "--protected", "sex", "--features", "edu,x0,x1,x2,x3"]
    for given in ("outcome", "edu"):
        assert main([*fit, "--given", given, "--model", str(saved), "--json", str(out)]) == 0
        assert sq.load(saved).given == (given if given == "outcome" else ["edu"])
        assert json.loads(out.read_text())["largest_correlation_in_training"] < 1e-8
    assert main([*fit, "--given", "x4", "--model", str(saved)]) == 2


def test_a_protected_column_that_the_given_ones_determine_is_named(table):
    Z, protected = table.drop(columns=["y", "sex"]), table[["sex", "edu"]]
    with pytest.warns(DroppedColumnWarning, match="Nothing of edu is left to protect"):
        model = sq.OrthogonalGLMClassifier(given="edu").fit(Z, table.y, protected=protected)
    assert model.solution_.certificate.determined_protected == ("edu",)
    result = sq.audit(model.predict_proba(Z)[:, 1], protected, given=table[["edu"]])
    assert "Nothing of edu is left" in next(str(note) for note in result.notes if note.code == "determined")
    other = sq.audit(model.predict_proba(Z)[:, 1], table[["sex"]], given=table[["edu"]])
    assert all(note.code != "determined" for note in other.notes)
