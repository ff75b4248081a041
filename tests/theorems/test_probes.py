"""Probes: what a linear correction takes from them, what it leaves, and that they find nothing where nothing is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import r2_score, roc_auc_score

import setsquare as sq
from setsquare.errors import NewRowsWarning

CORRECTIONS = {
    "before": None,
    "C^l": sq.LinearOrthogonalizer(),
    "erased": sq.LinearOrthogonalizer(using="features"),
}


def shifted(n: int, q: int = 4, seed: int = 0) -> tuple[np.ndarray, pd.DataFrame]:
    """Means depend on an age and a group, nothing else does."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"age": rng.normal(50.0, 10.0, n), "group": rng.choice(["a", "b", "c"], n)})
    effect = 0.05 * (table.age.to_numpy()[:, None] - 50.0) + (table.group == "b").to_numpy()[:, None]
    return rng.normal(size=(n, q)) @ rng.normal(size=(q, q)) + effect, table


def spread(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Equal means, but one group varies more than the other."""
    rng = np.random.default_rng(seed)
    group = rng.choice(["a", "b"], n)
    return rng.normal(size=(n, 3)) * np.where(group == "a", 1.0, 2.5)[:, None], group


def test_after_a_linear_correction_a_linear_probe_finds_no_more_than_sampling_error_and_did_before():
    """Of q = 4 features and 2 x 1200 rows of five folds, a squared correlation of q/n = 0.0017 may be left."""
    Z, table = shifted(6000)
    found = sq.probe(CORRECTIONS, table, features=Z, probes=("linear", "logistic"))
    for attribute in ("age", "group"):
        for kind in ("linear", "logistic"):
            before = found.score("before", attribute, kind)
            assert before.verdict == "recovered" and before.score > before.chance + 0.1
            for name in ("C^l", "erased"):
                after = found.score(name, attribute, kind)
                assert after.verdict in ("not found", "trace")
                assert abs(after.score - after.chance) < (0.005 if after.measure == "r2" else 0.03)
                assert after.ci_high < before.ci_low


def test_what_linear_probes_cannot_see_is_recovered_by_the_others_and_is_said():
    Z, group = spread(1500)
    found = sq.probe({"before": None, "erased": CORRECTIONS["erased"]}, group, features=Z)
    for name in ("before", "erased"):
        for kind in ("linear", "logistic"):
            assert found.score(name, "x0", kind).verdict == "not found"
        for kind in ("mlp", "boosting"):
            assert found.score(name, "x0", kind).verdict == "recovered"
            assert found.score(name, "x0", kind).score > 0.8
    assert "erased: x0 recovered (mlp, boosting)." in found.reason
    lines = [line.split() for line in str(found).splitlines() if line.strip().startswith("erased ")]
    assert [(line[1], line[-1]) for line in lines if line[1] in ("mlp", "boosting")] == [
        ("mlp", "recovered"),
        ("boosting", "recovered"),
    ]


def test_with_few_rows_for_many_features_a_correction_leaves_what_a_probe_finds_on_new_rows():
    """On the rows of the correction a linear probe is blind by construction; on others q/n is left, here 60/600."""
    Z, table = shifted(1500, q=60, seed=3)
    age = table[["age"]]
    with pytest.warns(NewRowsWarning, match="remains on new rows"):
        found = sq.probe({"erased": CORRECTIONS["erased"]}, age, features=Z, probes=("logistic",)).scores[0]
    assert found.verdict == "recovered" and 0.54 < found.score < 0.62
    with pytest.warns(NewRowsWarning, match="remains on new rows"):
        fitted = sq.LinearOrthogonalizer(using="features").fit(Z[:600], protected=age[:600])
    blind = LinearRegression().fit(fitted.transform(Z[:600]), age[:600])
    assert np.ptp(blind.predict(fitted.transform(Z[600:]))) < 1e-8


@pytest.mark.parametrize("kind", ["linear", "logistic"])
def test_scores_are_those_of_the_same_models_written_out(kind):
    """Five folds by hand: two fit the correction, two the probe, one scores."""
    Z, table = shifted(1500)
    y = (table.group == "b").to_numpy() if kind == "logistic" else table.age.to_numpy()
    seen = []

    class Spy(TransformerMixin, BaseEstimator):
        """The correction, and a note of the rows that it met."""

        def fit(self, X, y=None, protected=None):
            self.inner_ = sq.LinearOrthogonalizer().fit(X[:, 1:], protected=protected)
            seen.append([X[:, 0].astype(int)])
            return self

        def transform(self, X, protected=None):
            seen[-1].append(X[:, 0].astype(int))
            return self.inner_.transform(X[:, 1:], protected=protected)

    numbered = np.column_stack([np.arange(1500.0), Z])
    protected = table.age.to_numpy() if kind == "linear" else np.where(y, "b", "other")
    score = sq.probe({"spy": Spy()}, protected, features=numbered, probes=(kind,)).scores[0].score
    held_out, parts = np.empty(1500), []
    for fit, train, test in seen:
        assert len(fit) == len(train) == 2 * len(test) == 600 and len({*fit, *train, *test}) == 1500
        x = protected if kind == "linear" else (protected == "other").astype(float)
        line = LinearRegression().fit(x[fit, None], Z[fit])
        residual = Z - line.predict(x[:, None])
        if kind == "linear":
            held_out[test] = LinearRegression().fit(residual[train], y[train]).predict(residual[test])
        else:
            standard = (residual - residual[train].mean(0)) / residual[train].std(0)
            model = LogisticRegression().fit(standard[train], y[train])
            parts.append(roc_auc_score(y[test], model.predict_proba(standard[test])[:, 1]))
    assert sorted(np.concatenate([test for *_, test in seen])) == list(range(1500))
    if kind == "linear":  # ridge has a penalty of its own choice
        assert score == pytest.approx(r2_score(y, held_out), abs=0.01)
    else:  # ranks across folds, not within each
        assert score == pytest.approx(np.mean(parts), abs=0.003)


def test_where_there_is_nothing_five_percent_of_the_p_values_are_below_five_percent():
    """60 samples with 2 scores each: 6 are expected below, and with a chance of 0.3 % none or more than 15."""
    p_values, any_found = [], 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 5])
        table = pd.DataFrame({"age": rng.exponential(size=200), "group": rng.choice(["a", "b", "c"], 200)})
        found = sq.probe(rng.normal(size=(200, 4)), table, probes=("logistic",), random_state=seed)
        p_values += [score.p_value for score in found.scores]
        any_found += any(score.verdict != "not found" for score in found.scores)
    assert binom.sf(15, 120, 0.05) + binom.cdf(0, 120, 0.05) < 0.003 and binom.sf(9, 60, 0.05) < 0.001
    assert 0 < np.sum(np.array(p_values) < 0.05) <= 15
    assert any_found <= 9


def test_clusters_make_intervals_wider_and_stay_in_one_fold():
    """Rows repeated four times bring no news: with clusters the interval is that of the rows alone."""
    Z, table = shifted(500)
    table = table[["group"]]
    alone = sq.probe(Z, table, probes=("logistic",)).scores[0]
    repeated, groups = np.repeat(Z, 4, axis=0), table.loc[np.repeat(np.arange(500), 4)].reset_index(drop=True)
    clustered = sq.probe(repeated, groups, probes=("logistic",), cluster=np.repeat(np.arange(500), 4)).scores[0]
    naive = sq.probe(repeated, groups, probes=("logistic",)).scores[0]
    assert clustered.score == pytest.approx(alone.score, abs=0.01)
    width = [one.ci_high - one.ci_low for one in (alone, clustered, naive)]
    assert width[1] == pytest.approx(width[0], rel=0.03) and width[2] < 0.6 * width[0]
