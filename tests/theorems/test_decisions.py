"""Equal selection rates: thresholds by group, and decisions that are orthogonal without the protected columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.estimators.group_thresholds import find_threshold
from setsquare.glm.decisions import decision_family

N = 4000


def _people(n: int, seed: int) -> tuple[pd.DataFrame, Array, Array]:
    """Features whose spread, too, differs between groups: uncorrelated scores then still select unequal shares."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], n)
    male = sex == "m"
    table = pd.DataFrame({"sex": sex, "a": 0.7 * male + rng.normal(size=n)})
    table["b"] = rng.normal(size=n) * np.where(male, 2.0, 0.4)
    table[["c", "d"]] = rng.normal(size=(n, 2)) + 0.3 * male[:, None]
    eta = table["a"] + table["b"] + 0.5 * table["c"] - 1.2
    return table, (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(int), male


def _difference(decisions: Array, male: Array) -> float:
    return float(decisions[male].mean() - decisions[~male].mean())


def test_thresholds_by_group_equal_the_rates_of_training_rows_within_one_row() -> None:
    rng = np.random.default_rng(0)
    groups = pd.DataFrame(
        {"race": rng.choice(["a", "b", "c"], N, p=[0.7, 0.25, 0.05]), "sex": rng.choice(["f", "m"], N)}
    )
    score = rng.normal(size=N) + (groups["race"] == "b") - 0.5 * (groups["sex"] == "f")
    for scores in (score.to_numpy(), score.round(0).to_numpy()):  # without and with many ties
        before = pd.Series(scores >= 0.5).groupby([groups["race"], groups["sex"]]).mean()
        assert before.max() - before.min() > 0.2
        rule = sq.GroupThresholds(threshold=0.5).fit(scores, groups)
        selected = pd.Series(rule.decide(scores, groups)).groupby([groups["race"], groups["sex"]])
        assert rule.rate_ == pytest.approx(np.mean(scores >= 0.5))
        assert (abs(selected.mean() - rule.rate_) <= 1.0 / selected.size()).all()


def test_rates_on_new_rows_are_equal_within_sampling_error() -> None:
    table, y, _ = _people(N, 0)
    model = sq.OrthogonalGLMClassifier(protected="sex", budget=1.0).fit(table, y)
    rule = sq.GroupThresholds(rate=0.3).fit(model.predict_proba(table)[:, 1], table[["sex"]])
    new, _, male = _people(20_000, 1)
    p = model.predict_proba(new)[:, 1]
    error = np.sqrt(0.21 * 4.0 / 20_000 + 0.21 * 4.0 / N)
    assert abs(_difference(p >= np.quantile(p, 0.7), male)) > 5.0 * error
    assert abs(_difference(rule.decide(p, new[["sex"]]), male)) < 3.0 * error
    ratio = sq.audit(p, new[["sex"]], decisions=rule.decide(p, new[["sex"]])).groups()["impact_ratio"]
    assert ratio.min() > 0.9


def test_order_within_a_group_stays_and_draws_are_seeded() -> None:
    rng = np.random.default_rng(3)
    score, group = rng.integers(0, 5, 500).astype(float), rng.choice(["a", "b"], 500)
    rule = sq.GroupThresholds(rate=0.37, random_state=7).fit(score, group)
    decided = rule.decide(score, group)
    for one in ("a", "b"):
        assert score[(group == one) & (decided == 1)].min() >= score[(group == one) & (decided == 0)].max()
    assert (decided == rule.decide(score, group)).all()
    assert (decided != sq.GroupThresholds(rate=0.37, random_state=8).fit(score, group).decide(score, group)).any()
    assert list(rule.table().columns) == ["group", "n", "threshold", "at_threshold"]


def test_threshold_of_weights_is_that_of_repeated_rows() -> None:
    rng = np.random.default_rng(4)
    score, times = rng.integers(0, 8, 60).astype(float), rng.integers(1, 5, 60)
    assert find_threshold(score, times.astype(float), 0.3) == pytest.approx(
        find_threshold(np.repeat(score, times), np.ones(times.sum()), 0.3)
    )


def test_smoothed_decisions_have_the_derivatives_of_the_indicator_and_the_loss_of_the_logit() -> None:
    family, eta, h = decision_family(0.4, 0.3), np.linspace(-2.0, 2.0, 9), 1e-6
    y, v = np.ones((9, 1)), np.full((9, 1), 0.7)
    terms, up, down = (family.terms(y, (eta + shift)[:, None], v) for shift in (0.0, h, -h))
    assert np.abs(terms.mean[:, 0] - 1.0 / (1.0 + np.exp(-(eta - 0.4) / 0.3))).max() < 1e-12
    assert np.abs(terms.mean_slope[:, 0, 0] - (up.mean - down.mean)[:, 0] / (2 * h)).max() < 1e-8
    assert np.abs(terms.loss - np.log1p(np.exp(-eta))).max() < 1e-12
    lagrangian = [one.slope[:, 0] + 0.7 * one.mean_slope[:, 0, 0] for one in (up, down)]
    assert np.abs(terms.curvature[:, 0, 0] - (lagrangian[0] - lagrangian[1]) / (2 * h)).max() < 1e-6


@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_decisions_are_orthogonal_where_orthogonal_scores_are_not(threshold: float) -> None:
    table, y, male = _people(N, 0)
    scores = sq.OrthogonalGLMClassifier(protected="sex").fit(table, y)
    decided = sq.OrthogonalGLMClassifier(protected="sex", threshold=threshold).fit(table, y)
    before = _difference(scores.predict_proba(table)[:, 1] >= threshold, male)
    after = _difference(decided.predict(table), male)
    assert abs(before) > 0.08 and abs(after) < 0.01
    certificate = decided.solution_.certificate
    assert certificate.threshold == threshold and certificate.is_kept
    assert not certificate.is_orthogonal  # the probabilities are not
    assert certificate.selection_rate == pytest.approx(decided.predict(table).mean())
    correlation = abs(float(np.corrcoef(male, decided.predict(table))[0, 1]))
    assert certificate.decision_correlation == pytest.approx(correlation, abs=1e-9)
    assert "Smoothed decisions at" in str(certificate) and certificate.new_rows is None
    new, _, there = _people(20_000, 5)
    error = np.sqrt(0.25 * 4.0 / 20_000 + 0.25 * 4.0 / N)
    assert abs(_difference(scores.predict_proba(new)[:, 1] >= threshold, there)) > 0.08
    assert abs(_difference(decided.predict(new.drop(columns="sex")), there)) < 3.0 * error


def test_bad_decisions_are_refused() -> None:
    table, y, _ = _people(600, 0)
    for threshold, message in ((0.999999, "selects nobody"), (1e-7, "selects everybody")):
        with pytest.raises(InputError, match=message):
            sq.OrthogonalGLMClassifier(protected="sex", threshold=threshold).fit(table, y)
    for threshold in (0.0, 1.0, "half", np.nan, True):
        with pytest.raises(InputError, match="threshold must be a probability"):
            sq.OrthogonalGLMClassifier(protected="sex", threshold=threshold).fit(table, y)
    for options in ({"orthogonal_on": "new rows"}, {"budget": 0.5}, {"max_correlation": 0.1}):
        with pytest.raises(InputError, match="use one of them"):
            sq.OrthogonalGLMClassifier(protected="sex", threshold=0.5, **options).fit(table, y)
    with pytest.raises(InputError, match="leave out threshold="):
        sq.OrthogonalGLMClassifier(protected="sex", threshold=0.5, relax="box").fit(table, y)
    with pytest.raises(InputError, match="two classes"):
        sq.OrthogonalGLMClassifier(protected="sex", threshold=0.5).fit(table, np.arange(600) % 3)
    with pytest.raises(InputError, match="not available with threshold"):
        sq.OrthogonalGLMClassifier(protected="sex", threshold=0.5).fit(table, y).summary()
    with pytest.raises(InputError, match="about the decisions"):
        sq.tradeoff(sq.OrthogonalGLMClassifier(protected="sex", threshold=0.5), table, y)


@pytest.mark.parametrize(
    ("options", "scores", "message"),
    [
        ({"threshold": 2.0}, None, "selects nobody"),
        ({"threshold": -9.0}, None, "selects everybody"),
        ({"threshold": np.nan}, None, "finite"),
        ({"rate": 0.0}, None, "above 0 and below 1"),
        ({"rate": 1.5}, None, "above 0 and below 1"),
        ({}, ["a"] * 40, "must be numbers"),
        ({}, np.zeros((40, 2)), "one value per row"),
        ({}, np.full(40, np.nan), "40 missing or infinite"),
        ({}, np.zeros(39), "39"),
    ],
)
def test_bad_thresholds_by_group_are_refused(options: dict, scores: object, message: str) -> None:
    group = np.repeat(["a", "b"], 20)
    scores = np.linspace(0.0, 1.0, 40) if scores is None else scores
    with pytest.raises(InputError, match=message):
        sq.GroupThresholds(**options).fit(scores, group)


def test_groups_must_be_known_and_few() -> None:
    score, group = np.linspace(0.0, 1.0, 40), np.repeat(["a", "b"], 20)
    rule = sq.GroupThresholds().fit(score, group)
    with pytest.raises(InputError, match="The group 'c' was not among the rows of the fit"):
        rule.decide(score, np.repeat(["a", "c"], 20))
    with pytest.raises(InputError, match="40 different numbers"):
        sq.GroupThresholds().fit(score, score)
    with pytest.raises(InputError, match="missing"):
        sq.GroupThresholds().fit(score, pd.DataFrame({"g": [None, *group[1:]]}))


def test_saved_models_keep_their_threshold(tmp_path) -> None:
    table, y, _ = _people(1000, 0)
    model = sq.OrthogonalGLMClassifier(protected="sex", threshold=0.3).fit(table, y)
    sq.save(model, tmp_path / "model")
    again = sq.load(tmp_path / "model")
    assert again.threshold == 0.3 and (again.predict(table) == model.predict(table)).all()
    assert again.solution_.certificate.decision_correlation == model.solution_.certificate.decision_correlation
