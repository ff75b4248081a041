"""Several predictions side by side: what they leak, how good they are, and how they differ."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn import metrics

import setsquare as sq
from setsquare.errors import InputError, MissingValuesError

N = 400
rng = np.random.default_rng(2)
GROUP = rng.choice(["a", "b", "c"], N)
ETA = rng.normal(size=N) + 0.5 * (GROUP == "b")
P, Q = 1.0 / (1.0 + np.exp(-ETA)), 1.0 / (1.0 + np.exp(0.5 * (GROUP == "b") - ETA))
Y = (rng.random(N) < P).astype(int)
CLASSES = np.array(["x", "y", "z"])
SCORES = rng.normal(size=(N, 3)) + np.eye(3)[rng.integers(3, size=N)]
P3 = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
Y3 = (SCORES + rng.gumbel(size=(N, 3))).argmax(axis=1)


def refused(*args: object, **options: object) -> str:
    with pytest.raises(InputError) as error:
        sq.compare(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def accuracy(predictions: object, y: object, **options: object) -> float:
    return sq.compare({"one": predictions}, y, GROUP, **options)["one"].scores[0].value.estimate


@pytest.fixture(scope="module")
def found() -> sq.Comparison:
    return sq.compare({"plain": P, "corrected": Q}, Y, pd.DataFrame({"group": GROUP}))


def test_each_side_is_its_own_audit(found: sq.Comparison) -> None:
    assert [side.name for side in found.sides] == ["plain", "corrected"]
    for side, p in zip(found.sides, (P, Q), strict=True):
        wanted = sq.audit(p, pd.DataFrame({"group": GROUP}), "binomial")
        assert side.audit.p_value == wanted.p_value and side.audit.certificate == wanted.certificate
    assert found["plain"].audit.verdict == "leak" != found["corrected"].audit.verdict


def test_scores_are_those_of_scikit_learn(found: sq.Comparison) -> None:
    for side, p in zip(found.sides, (P, Q), strict=True):
        scores = {score.metric: score.value.estimate for score in side.scores}
        assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(Y, p > 0.5))
        assert scores["auc"] == pytest.approx(metrics.roc_auc_score(Y, p))
        assert scores["brier"] == pytest.approx(metrics.brier_score_loss(Y, p))
        assert scores["deviance"] == pytest.approx(2.0 * metrics.log_loss(Y, p))
        assert side.in_the_large.estimate == pytest.approx(Y.mean() - p.mean())
        assert side.slope.ci_low < side.slope.estimate < side.slope.ci_high


def test_differences_are_paired_and_to_the_first(found: sq.Comparison) -> None:
    for score in found.sides[0].scores:
        assert (score.difference.estimate, score.difference.p_value) == (0.0, 1.0)
    for first, second in zip(found.sides[0].scores, found.sides[1].scores, strict=True):
        assert second.difference.estimate == pytest.approx(second.value.estimate - first.value.estimate)
        independent = math.hypot(first.value.std_error, second.value.std_error)
        assert second.difference.std_error < 0.7 * independent  # the same rows
        assert second.difference.ci_low <= second.difference.estimate <= second.difference.ci_high


@pytest.mark.parametrize(("kind", "frame"), [("pandas", pd.DataFrame), ("polars", pl.DataFrame), ("pyarrow", pa.Table)])
def test_tables_are_of_the_library_that_the_input_came_in(kind: str, frame: type) -> None:
    table = pd.DataFrame({"group": GROUP})
    protected = {"pandas": table, "polars": pl.from_pandas(table), "pyarrow": pa.Table.from_pandas(table)}[kind]
    found = sq.compare({"plain": P, "corrected": Q}, Y, protected)
    for made in (found.table(), found.scores()):
        assert type(made) is frame


def test_tables_have_a_row_a_model_and_a_row_a_score(found: sq.Comparison) -> None:
    table, scores = found.table(), found.scores()
    assert list(table.columns) == [
        *("model", "verdict", "p_value", "correlation", "correlation_upper"),
        *("accuracy", "auc", "brier", "deviance", "calibration_in_the_large", "calibration_slope"),
    ]
    assert list(table["model"]) == ["plain", "corrected"] and len(scores) == 8
    assert table["auc"][1] == scores["estimate"][5]


def test_plain_values_go_through_json(found: sq.Comparison) -> None:
    back = json.loads(json.dumps(found.to_dict()))
    assert [model["name"] for model in back["models"]] == ["plain", "corrected"]
    assert back["models"][1]["scores"][1]["value"]["estimate"] == found["corrected"].scores[1].value.estimate
    assert sum(one["count"] for one in back["models"][0]["calibration"]["bins"]) == N


def test_text_and_html_have_both_models(found: sq.Comparison) -> None:
    for page in (str(found), found._repr_html_()):
        assert all(word in page for word in ("plain", "corrected", "leak", "accuracy", "against plain"))
    assert "Differences" not in str(sq.compare({"plain": P}, Y, GROUP))


def test_comparisons_are_frozen_and_sides_are_found_by_name(found: sq.Comparison) -> None:
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        found.n = 3
    with pytest.raises(KeyError, match="plain, corrected"):
        found["other"]


# -------------------------------------------------------------------------------------------------- outcomes
TWO_CLASSES = {
    "bool": Y.astype(bool),
    "float": Y.astype(float),
    "1 and 2": Y + 1,
    "-1 and 1": 2 * Y - 1,
    "text": np.where(Y, "yes", "no"),
    "categories": pd.Series(np.where(Y, "q", "p"), dtype="category"),
    "polars": pl.Series(Y),
}


@pytest.mark.parametrize("kind", TWO_CLASSES)
def test_two_classes_of_every_kind(kind: str) -> None:
    found = sq.compare({"plain": np.column_stack([1.0 - P, P])}, TWO_CLASSES[kind], GROUP)
    assert found.family == "binomial"
    assert found["plain"].scores[1].value.estimate == pytest.approx(metrics.roc_auc_score(Y, P))


def test_several_classes() -> None:
    for y in (Y3, CLASSES[Y3]):
        assert accuracy(P3, y) == pytest.approx(np.mean(P3.argmax(axis=1) == Y3))
    label = CLASSES[P3.argmax(axis=1)]
    assert accuracy(label, CLASSES[Y3]) == pytest.approx(np.mean(label == CLASSES[Y3]))


def test_labels_of_two_classes_are_scored_as_labels() -> None:
    label = np.where(P > 0.5, "yes", "no")
    assert accuracy(label, np.where(Y, "yes", "no")) == pytest.approx(np.mean((P > 0.5) == Y))
    assert accuracy((P > 0.5).astype(int), Y) == pytest.approx(np.mean((P > 0.5) == Y))


def test_numbers_and_counts() -> None:
    y = ETA + rng.normal(size=N)
    found = sq.compare({"good": ETA, "shifted": ETA + 1.0}, y, GROUP)
    assert found.family == "gaussian" and [s.metric for s in found.sides[0].scores] == ["rmse", "r2"]
    assert found["good"].scores[0].value.estimate == pytest.approx(metrics.root_mean_squared_error(y, ETA))
    assert found["shifted"].scores[1].value.estimate == pytest.approx(metrics.r2_score(y, ETA + 1.0))
    counts = rng.poisson(np.exp(ETA))
    found = sq.compare({"good": np.exp(ETA)}, counts, GROUP, "poisson")
    wanted = metrics.mean_poisson_deviance(counts, np.exp(ETA))
    assert found["good"].scores[1].value.estimate == pytest.approx(wanted)


def test_a_constant_prediction_leaks_nothing_and_ranks_nothing() -> None:
    side = sq.compare({"plain": P, "constant": np.full(N, 0.5)}, Y, GROUP)["constant"]
    assert side.audit.verdict == "no leak found" and side.scores[1].value.estimate == pytest.approx(0.5)
    assert math.isnan(side.slope.estimate)


def test_a_perfect_and_an_impossible_prediction() -> None:
    side = sq.compare({"plain": P, "perfect": Y.astype(float)}, Y, GROUP)["perfect"]
    assert [score.value.estimate for score in side.scores] == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=1e-12)
    wrong = sq.compare({"plain": P, "wrong": np.where(np.arange(N) == 0, 1.0 - Y, P)}, Y, GROUP)
    assert wrong["wrong"].scores[3].value.estimate == math.inf
    assert "inf" in str(wrong) and "nan" not in str(wrong)


def test_a_constant_label_is_the_label_that_it_is() -> None:
    y = np.where(Y, "yes", "no")
    assert accuracy(np.full(N, "no"), y) == pytest.approx(1.0 - Y.mean())
    assert accuracy(np.full(N, "yes"), y) == pytest.approx(Y.mean())


def test_labels_that_the_outcome_does_not_have() -> None:
    label = np.array(["w", "y", "z"])[P3.argmax(axis=1)]
    try:
        found = accuracy(label, CLASSES[Y3])
    except InputError:
        return
    assert found == pytest.approx(np.mean(label == CLASSES[Y3]))


def test_labels_of_another_vocabulary_are_refused() -> None:
    refused({"one": np.where(P > 0.5, "Z", "a")}, np.where(Y, "yes", "no"), GROUP)


@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_a_class_that_is_never_predicted(kind: str) -> None:
    P2 = P3 * [1.0, 0.0, 1.0]
    P2 /= P2.sum(axis=1, keepdims=True)
    given = CLASSES[P2.argmax(axis=1)] if kind == "labels" else P2
    assert accuracy(given, CLASSES[Y3]) == pytest.approx(np.mean(P2.argmax(axis=1) == Y3))


def test_a_class_that_the_outcomes_do_not_have() -> None:
    """A model of classes 0 to 3, and rows of which none is in class 0."""
    P4 = np.column_stack([np.full(N, 0.1), 0.9 * P3])
    try:
        found = accuracy(P4, 1 + Y3)
    except InputError:
        return
    assert found == pytest.approx(np.mean(P4.argmax(axis=1) == 1 + Y3))


def test_probabilities_with_names_are_matched_by_name() -> None:
    turned = pd.DataFrame(P3[:, ::-1], columns=CLASSES[::-1])
    assert accuracy(turned, CLASSES[Y3]) == pytest.approx(np.mean(P3.argmax(axis=1) == Y3))


# ---------------------------------------------------------------------------------------- weights, clusters, options
def test_weights_count_in_every_number() -> None:
    weight = rng.uniform(0.2, 3.0, N)
    side = sq.compare({"plain": P}, Y, GROUP, sample_weight=weight)["plain"]
    assert side.scores[0].value.estimate == pytest.approx(metrics.accuracy_score(Y, P > 0.5, sample_weight=weight))
    assert side.audit.p_value == sq.audit(P, GROUP, "binomial", sample_weight=weight).p_value


def test_repeated_rows_in_clusters_have_the_errors_of_one_row() -> None:
    again = np.repeat(np.arange(N), 3)
    one = sq.compare({"plain": P}, Y, GROUP)["plain"].scores
    clustered = sq.compare({"plain": P[again]}, Y[again], GROUP[again], cluster=again)["plain"].scores
    copies = sq.compare({"plain": P[again]}, Y[again], GROUP[again])["plain"].scores
    for a, b, c in zip(one, clustered, copies, strict=True):
        assert b.value.std_error == pytest.approx(a.value.std_error, rel=1e-9)
        assert c.value.std_error < 0.6 * a.value.std_error


def test_options_go_to_the_audit() -> None:
    found = sq.compare({"plain": P}, Y, GROUP, vcov="HC0", confidence=0.9, evaluation=["glm", "linear"])
    assert found.confidence == found["plain"].audit.confidence == 0.9
    assert [e.name for e in found["plain"].audit.evaluations] == ["glm", "linear"]
    narrow, wide = (sq.compare({"p": P}, Y, GROUP, confidence=v)["p"].scores[0].value for v in (0.8, 0.99))
    assert narrow.ci_high < wide.ci_high


# ------------------------------------------------------------------------------------------------------ bad input
BAD = {
    "no mapping": (([P, Q], Y, GROUP), "mapping"),
    "empty mapping": (({}, Y, GROUP), "mapping"),
    "lengths": (({"one": P[:-1]}, Y, GROUP), f"one: The predictions have {N - 1} rows"),
    "protected lengths": (({"one": P}, Y, GROUP[:-1]), f"protected columns have {N - 1}"),
    "one outcome": (({"one": P}, np.ones(N), GROUP), "every row"),
    "two columns of outcome": (({"one": P}, np.column_stack([Y, Y]), GROUP), "one column"),
    "units": (({"one": rng.normal(size=(N, 4))}, ETA, GROUP), "use audit"),
    "text and a number family": (({"one": P}, np.where(Y, "a", "b"), GROUP, "gaussian"), "text"),
    "outcome out of range": (({"one": P}, 3.0 * Y3, GROUP, "binomial"), "two classes"),
    "missing prediction": (({"one": np.where(np.arange(N) == 0, np.nan, P), "two": P}, Y, GROUP), "one: "),
    "misaligned prediction": (({"one": pd.Series(P)[::-1]}, pd.Series(Y), pd.DataFrame({"g": GROUP})), "order"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_compared_is_refused_and_named(kind: str) -> None:
    args, words = BAD[kind]
    assert words in refused(*args)


@pytest.mark.parametrize(
    "y",
    [np.where(np.arange(N) == 0, np.nan, Y), [None, *Y[1:]], [None, *np.where(Y, "a", "b")[1:]]],
    ids=["NaN", "None", "text"],
)
def test_missing_outcomes_are_refused(y: object) -> None:
    with pytest.raises(MissingValuesError, match="outcome"):
        sq.compare({"one": P}, y, GROUP)


def test_an_outcome_in_another_order_is_refused() -> None:
    refused({"one": pd.Series(P)}, pd.Series(Y)[::-1], pd.DataFrame({"g": GROUP}))


def test_rows_without_a_prediction_can_be_left_out() -> None:
    found = sq.compare({"one": np.where(np.arange(N) == 0, np.nan, P)}, Y, GROUP, missing="drop")
    assert found.n == N - 1


def test_scores_and_audit_are_of_the_same_rows() -> None:
    age = np.where(np.arange(N) < 10, np.nan, rng.normal(size=N))
    found = sq.compare({"one": P}, Y, age, missing="drop")
    assert found.n == found["one"].audit.n


def test_weights_that_are_text() -> None:
    with pytest.raises(InputError):
        sq.compare({"one": P}, Y, GROUP, sample_weight=["heavy"] * N)


def test_text_has_the_notes_of_the_audits() -> None:
    text = " ".join(str(sq.compare({"plain": P, "above": 1.3 * P}, Y, GROUP)).split())
    assert "outside" in text


def test_numbers_as_labels_keep_their_order() -> None:
    """Columns of probabilities follow the numbers, as scikit-learn's do; as text, "10" would come before "9"."""
    rng = np.random.default_rng(0)
    y = rng.choice([9, 10, 11], size=300)
    p = np.full((300, 3), 0.05)
    p[np.arange(300), y - 9] = 0.9
    accuracy = sq.compare({"right": p}, y, rng.normal(size=300)).sides[0].scores[0]
    assert accuracy.metric == "accuracy" and accuracy.value.estimate == pytest.approx(1.0)


def test_three_numbers_are_shares_or_too_many_classes() -> None:
    shares = np.array([0.0, 0.5, 1.0])[np.arange(N) % 3]
    found = sq.compare({"one": P}, shares, GROUP, family="binomial")
    assert {score.metric for score in found["one"].scores} == {
        score.metric for score in sq.compare({"one": P}, np.arange(N) % 4 / 3.0, GROUP, family="binomial")["one"].scores
    }
    with pytest.raises(InputError, match="The outcome has 3 values; the binomial family takes two classes, or shares"):
        sq.compare({"one": P}, 2.0 * shares, GROUP, family="binomial")
