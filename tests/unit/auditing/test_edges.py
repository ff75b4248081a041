"""Rare branches of audits: what is refused, what a note says, and groups that come and go."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import setsquare as sq
from setsquare.auditing.comparison.predicted_rows import align
from setsquare.auditing.documents.group_sections import MOST_CLASSES, _responses
from setsquare.auditing.evaluations.gcm import (
    cross_fitted_residuals,
    effective_units,
    evaluate_gcm,
    smooth_features,
)
from setsquare.auditing.evaluations.score import answer, questions_of, sample_of
from setsquare.auditing.predictions import Raw, open_predictions
from setsquare.auditing.protected import Protected
from setsquare.auditing.tradeoffs.budget_path import MOST_BUDGETS, read_budgets
from setsquare.errors import InputError, MissingValuesError
from setsquare.families import family
from setsquare.glm.mdmm import Descent

RNG = np.random.default_rng


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = RNG(0)
    sex = np.tile(["f", "m"], 60)
    p = 1.0 / (1.0 + np.exp(-rng.normal(size=120) - 0.5 * (sex == "m")))
    return pd.DataFrame({"sex": sex, "p": p, "one": "a", "age": rng.normal(size=120), "y": rng.random(120) < p}).assign(
        flat=3.0
    )


def codes(result: Any) -> dict[str, str]:
    return {note.code: str(note) for note in result.notes}


def test_a_permutation_test_says_that_it_ignores_weights_and_clusters(people: pd.DataFrame) -> None:
    options: dict[str, Any] = {"evaluation": ["glm", "independence"], "n_permutations": 99}
    plain = codes(sq.audit(people["p"], people["sex"], **options))
    assert "weights-ignored" not in plain and "clusters-ignored" not in plain
    weighted = codes(sq.audit(people["p"], people["sex"], sample_weight=np.full(120, 2.0), **options))
    assert weighted["weights-ignored"] == "The permutation test(s) of independence ignore the weights."
    assert "clusters-ignored" not in weighted
    clustered = codes(sq.audit(people["p"], people["sex"], cluster=np.arange(120) // 2, **options))
    assert clustered["clusters-ignored"] == "The permutation test(s) of independence ignore the clusters."
    assert "weights-ignored" not in clustered


@pytest.mark.parametrize("number", [19, 99])
def test_too_few_permutations_are_noted_exactly_where_no_p_value_can_be_small_enough(
    people: pd.DataFrame, number: int
) -> None:
    found = sq.audit(people["p"], people["sex"], evaluation=["glm", "independence"], n_permutations=number)
    # the smallest p-value is 1 / (n + 1), and three permutation tests and two evaluation models are adjusted for
    assert ("few-permutations" in codes(found)) is (3 * 2 / (number + 1) > 0.05)


@pytest.mark.parametrize(
    ("given", "outcome", "sentence"),
    [
        ("one", None, "Nothing is given: one are constant"),
        ("outcome", 1.0, "Every outcome is the same"),
    ],
)
def test_controls_that_say_nothing_are_refused(people: pd.DataFrame, given: str, outcome: Any, sentence: str) -> None:
    controls = given if given == "outcome" else people[[given]]
    truth = None if outcome is None else np.full(120, outcome)
    with pytest.raises(InputError, match=sentence):
        sq.audit(people["p"], people["sex"], given=controls, outcome=truth)


def test_controls_need_one_prediction_per_row(people: pd.DataFrame) -> None:
    shares = np.column_stack([people["p"], 1.0 - people["p"], np.ones(120)]) / 2.0
    with pytest.raises(InputError, match="one prediction per row"):
        sq.audit(shares, people["sex"], given=people[["age"]])


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_missing_controls_name_what_helps(people: pd.DataFrame, missing: str) -> None:
    given = people[["age"]].where(people["age"] > -1.0)
    with pytest.raises(MissingValuesError, match=r"in column 'age'.* among those given: .* \(missing='level'\)"):
        sq.audit(people["p"], people["sex"], given=given, missing=missing)


def test_an_outcome_of_words_is_a_control_like_its_numbers(people: pd.DataFrame) -> None:
    words = np.where(people["y"], "yes", "no")
    by_word = sq.audit(
        people["p"], people["sex"], given="outcome", outcome=words, evaluation=["linear"], positive="yes"
    )
    by_number = sq.audit(people["p"], people["sex"], given="outcome", outcome=people["y"] * 1.0, evaluation=["linear"])
    assert by_word.p_value == pytest.approx(by_number.p_value, rel=1e-9)


def test_the_covariance_measure_sums_over_clusters(people: pd.DataFrame) -> None:
    y, C, cluster = people["p"].to_numpy(), people[["age"]].to_numpy(), np.arange(120) // 3
    X = (people["sex"] == "m").to_numpy(float)[:, None]
    columns = Protected(X, ("sex[m]",), ("sex",), cluster=cluster)
    found = evaluate_gcm(y, X, C, columns, confidence=0.95, seed=0)
    left = cross_fitted_residuals(np.column_stack([y, X]), C, columns, 0)
    product = left[:, 0] * left[:, 1]
    sums = [sum(product[k] - product.mean() for k in np.flatnonzero(cluster == c)) for c in range(40)]
    statistic = product.sum() / math.sqrt(sum(one**2 for one in sums))
    equal = answer(sample_of(left[:, 0], replace(columns, values=left[:, 1:])), questions_of(("sex[m]",), ("sex",)))[0]
    p = 2.0 * stats.t.sf(abs(statistic), 39.0)
    assert found.effects[0].statistic == pytest.approx(statistic, rel=1e-9)
    assert found.effects[0].p_value == pytest.approx(p, rel=1e-9)
    assert found.joint.p_value == pytest.approx(max(p, equal.pooled.p_value), rel=1e-9)
    assert found.effects[0].estimate == pytest.approx(product.mean() / math.sqrt(np.prod((left**2).mean(0))), rel=1e-9)


@pytest.mark.parametrize(("n_clusters", "n_levels"), [(10, 12), (12, 12), (3, 2)])
def test_the_covariance_measure_of_more_columns_than_clusters_is_not_certain(n_clusters: int, n_levels: int) -> None:
    rng = np.random.default_rng(0)
    levels = np.arange(240) % n_levels
    given, cluster = pd.DataFrame({"c": rng.normal(size=240)}), np.arange(240) * n_clusters // 240
    found = sq.audit(rng.normal(size=240), levels.astype(str), given=given, cluster=cluster, evaluation="gcm")
    assert found.evaluation("gcm").joint.p_value > 0.05


def test_knots_of_the_covariance_measure_follow_weights_and_clusters() -> None:
    x, weight = np.arange(400.0)[:, None], np.ones(400)
    weight[:40] = 1e6
    rows = {"weighted": {"weight": weight}, "clustered": {"cluster": np.arange(400) // 10}}
    units = {name: effective_units(Protected(x, ("x",), ("x",), **own)) for name, own in rows.items()}
    assert units == pytest.approx({"weighted": 40.0, "clustered": 40.0}, rel=1e-3)
    assert smooth_features(x, 40.0).shape[1] == 7 < smooth_features(x).shape[1]


@pytest.mark.parametrize("values", [np.array([1j, 2.0]), np.array(["2026-01-01", "2026-01-02"], dtype="M8[D]")])
def test_predictions_that_are_no_numbers(values: np.ndarray) -> None:
    with pytest.raises(InputError, match="cannot be audited: pass numbers or class labels"):
        open_predictions(values)


def test_classes_name_each_column_of_predictions() -> None:
    with pytest.raises(InputError, match=r"There are 3 classes for predictions of shape \(4, 2\)"):
        open_predictions(np.full((4, 2), 0.5), ["a", "b", "c"])
    with pytest.raises(InputError, match=r"There are 4 classes for predictions of shape \(4,\)"):
        open_predictions(np.full(4, 0.5), ["a", "b", "c", "d"])
    assert open_predictions(np.full((4, 2), 0.5), ["a", "b"]).names == ("a", "b")


def test_tensors_are_not_compared() -> None:
    raw = Raw(np.zeros((3, 2, 2)), (), np.zeros(3, dtype=bool))
    with pytest.raises(InputError, match="Tensors and embeddings have no outcome"):
        align(raw, family("gaussian"), ())


def test_budgets_up_to_their_number() -> None:
    assert len(read_budgets(list(np.linspace(0.0, 1.0, MOST_BUDGETS)))) == MOST_BUDGETS
    assert read_budgets(2) == (0.0, 1.0) and read_budgets([0.5, 0.0, 0.5]) == (0.0, 0.5)
    with pytest.raises(InputError, match="not 1001"):
        read_budgets(list(np.linspace(0.0, 1.0, MOST_BUDGETS + 1)))


def test_the_most_frequent_classes_are_shown_in_their_order() -> None:
    mean = np.r_[np.linspace(0.05, 0.06, MOST_CLASSES), 0.04, 0.2]
    rows = SimpleNamespace(
        family=family("multinomial"),
        classes=tuple(f"c{k}" for k in range(MOST_CLASSES + 2)),
        values={"before": np.tile(mean, (3, 1)), "after": np.tile(mean[::-1], (3, 1))},
    )
    notes: list[Any] = []
    found = _responses(rows, notes)  # type: ignore[arg-type]
    assert [name for name, _ in found] == [*(f"c{k}" for k in range(1, MOST_CLASSES)), f"c{MOST_CLASSES + 1}"]
    np.testing.assert_array_equal(found[-1][1]["after"], np.full(3, mean[0]))
    assert [str(note) for note in notes] == [
        f"The {MOST_CLASSES} most frequent of {MOST_CLASSES + 2} classes are shown."
    ]
    assert [name for name, _ in _responses(rows, [])] == [name for name, _ in found]


def test_the_largest_of_many_correlations_needs_columns_that_vary(people: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="all equal"):
        sq.maximum_test(np.ones(120), people[["age"]])
    with pytest.raises(InputError, match="constant"):
        sq.maximum_test(people["p"], people[["flat"]])
    both = sq.maximum_test(people["p"], people[["flat", "age"]], n_draws=99)
    assert both.p_value == sq.maximum_test(people["p"], people[["age"]], n_draws=99).p_value


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"rate": 0.0}, "learning rate"),
        ({"rate": math.inf}, "learning rate"),
        ({"damping": -1e-9}, "damping"),
        ({"damping": math.nan}, "damping"),
    ],
)
def test_steps_of_a_descent_are_positive(options: dict[str, float], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Descent(**options)
    assert Descent(rate=1e-3, damping=0.0).damping == 0.0


def test_a_stream_is_audited_by_its_own_columns(people: pd.DataFrame) -> None:
    stream, other = (sq.Stream(lambda: iter([people[["sex", "p", "age"]]])) for _ in range(2))
    with pytest.raises(InputError, match="one stream, or both in memory"):
        sq.audit(stream["p"], people["sex"])
    with pytest.raises(InputError, match="one of its columns"):
        sq.audit(stream["p"], other[["sex"]])
    with pytest.raises(InputError, match="sample_weight must be the name"):
        sq.audit(stream["p"], stream[["sex"]], sample_weight=np.ones(120))
    with pytest.raises(InputError, match="without clusters or classes"):
        sq.audit(stream["p"], stream[["sex"]], evaluation=["glm", "forest"])
    with pytest.raises(InputError, match="in memory, not a stream"):
        sq.audit(stream["p"], stream[["sex"]], missing="model")
