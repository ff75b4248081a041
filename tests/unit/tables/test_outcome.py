"""One guess of a family, and a positive class that is named and never taken from the alphabet."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, RidgeClassifier

import setsquare as sq
from setsquare.errors import InputError
from setsquare.tables.outcome import Values, guess_family, positive_class, read_family

RNG = np.random.default_rng(0)
N = 600
GROUP = RNG.choice(["f", "m"], N)
SIGNAL = RNG.normal(size=N)
P = 1 / (1 + np.exp(-2 * SIGNAL))
GOOD = RNG.random(N) < P
DECISION = np.where(GOOD, "approved", "denied")


@pytest.mark.parametrize(
    ("outcome", "family"),
    [
        ([0, 1, 1], "binomial"),
        ([1, 2, 2], "binomial"),
        (["a", "b", "b"], "binomial"),
        ([True, False, True], "binomial"),
        (["a", "b", "c"], "multinomial"),
        ([0, 3, 1], "poisson"),
        ([0.0, 3.0, 1.0], "poisson"),
        ([1, 3, 2], "gaussian"),
        ([-1, 0, 4], "gaussian"),
        ([0.0, 0.5, 2.0], "gaussian"),
    ],
)
def test_the_guess_of_a_family(outcome: list, family: str) -> None:
    guess = read_family(np.array(outcome))
    assert guess.family.name == family and f"family is {family}" in guess.reason
    assert guess.is_classes == (family in ("binomial", "multinomial"))


def test_columns_of_probabilities_and_negative_predictions_are_heeded() -> None:
    counts = np.array([0, 1, 2, 2])
    assert read_family(counts, n_columns=3).family.name == "multinomial"
    assert read_family(counts, lowest_prediction=-0.1).family.name == "gaussian"
    assert guess_family(Values(0.0, 1.5), "predictions")[0] == "gaussian"


def test_an_outcome_that_is_numeric_but_for_a_few_values_is_no_class() -> None:
    outcome = np.array(["3", "1", "7", "4", "."], dtype=object)
    with pytest.raises(InputError, match=r"The outcome 'cost' holds numbers but for '\.'"):
        read_family(outcome, name="cost")
    assert read_family(outcome, is_category=True).family.name == "multinomial"


@pytest.mark.parametrize(
    ("classes", "columns", "wanted"),
    [
        (("0", "1"), (), "1"),
        (("-1", "1"), (), "1"),
        (("False", "True"), (), "True"),
        (("FALSE", "TRUE"), (), "TRUE"),
        (("No", "Yes"), (), "Yes"),
        (("YES", "no"), (), "YES"),
        (("approved", "denied"), ("approved",), "approved"),
        (("approved", "denied"), ("P(Approved)",), "approved"),
        (("approved", "denied"), ("probability[denied]",), "denied"),
        (("not approved", "approved"), ("p_not_approved",), "not approved"),
        (("1", "2"), ("p_2",), "2"),
    ],
)
def test_what_counts_as_positive(classes: tuple, columns: tuple, wanted: str) -> None:
    assert positive_class(classes, None, columns) == wanted
    assert positive_class(classes[::-1], None, columns) == wanted


@pytest.mark.parametrize(
    ("classes", "columns"),
    [
        (("approved", "denied"), ("score",)),
        (("approved", "denied"), ("not approved",)),
        (("1", "2"), ()),
        (("a", "b"), ("p",)),
    ],
)
def test_what_says_nothing_is_refused(classes: tuple, columns: tuple) -> None:
    with pytest.raises(InputError, match="It is unclear which of the classes"):
        positive_class(classes, None, columns)


def test_predictions_of_both_classes_are_not_compared() -> None:
    with pytest.raises(InputError, match="some after 'denied': give the probability of one class in all"):
        sq.compare({"approved": P, "denied": 1 - P}, DECISION, GROUP)


def auc(comparison: sq.Comparison) -> float:
    return float(comparison.table()["auc"][0])


def test_a_score_is_not_turned_round_by_the_alphabet() -> None:
    with pytest.raises(InputError, match="positive='approved' or positive='denied'"):
        sq.compare({"score": P}, DECISION, GROUP)
    named = sq.compare({"score": P}, DECISION, GROUP, positive="approved")
    assert auc(named) > 0.8 and named.positive == "approved"
    assert "positive class: approved" in str(named).split("Side by side")[0]
    assert "positive class: approved" in named._repr_html_().split("<table>")[0]
    assert auc(sq.compare({"approved": P}, DECISION, GROUP)) == auc(named)
    assert auc(sq.compare({"score": pd.Series(P, name="approved")}, DECISION, GROUP)) == auc(named)
    assert auc(sq.compare({"score": P}, DECISION, GROUP, positive="denied")) == pytest.approx(1 - auc(named))
    assert auc(sq.compare({"score": P}, GOOD, GROUP)) == pytest.approx(auc(named))
    assert sq.compare({"score": P}, GOOD.astype(int), GROUP).positive == "1"


@pytest.mark.parametrize("positive", ["approved", "denied"])
def test_columns_of_probabilities_mean_the_same_whichever_class_is_positive(positive: str) -> None:
    two = np.column_stack([P, 1 - P])  # in the order of predict_proba: approved, denied
    table = pd.DataFrame({"denied": 1 - P, "approved": P})
    for given in (two, table):
        found = sq.compare({"model": given}, DECISION, GROUP, positive=positive)
        assert auc(found) > 0.8 and found.positive == positive
    assert sq.compare({"model": two}, DECISION, GROUP).positive == "denied"  # the second, as in scikit-learn


def test_labels_are_compared_by_their_names() -> None:
    predicted = np.where(P > 0.5, "approved", "denied")
    for positive in ("approved", "denied"):
        found = sq.compare({"rule": predicted}, DECISION, GROUP, positive=positive)
        assert found.table()["accuracy"][0] == pytest.approx(np.mean(predicted == DECISION))
    codes = sq.compare({"rule": np.where(P > 0.5, 1, 2)}, np.where(GOOD, 1, 2), GROUP, positive=1)
    assert codes.table()["accuracy"][0] == pytest.approx(np.mean((P > 0.5) == GOOD)) and codes.positive == "1"


def test_the_classes_of_a_model_decide() -> None:
    Z = np.column_stack([SIGNAL, RNG.normal(size=N)])
    for model in (LogisticRegression(), RidgeClassifier()):
        assert sq.audit_model(model, Z, DECISION, GROUP).positive == "denied"
        assert sq.audit_model(model, Z, DECISION, GROUP, positive="approved").positive == "approved"


def test_a_page_has_the_scores_of_the_comparison() -> None:
    compared = sq.compare({"score": P, "other": P**2}, DECISION, GROUP, positive="approved", cluster=np.arange(N) // 9)
    page = sq.report.build(
        compared, predictions={"score": P, "other": P**2}, protected=GROUP, outcome=DECISION, cluster=np.arange(N) // 9
    )
    rows = page.section("performance")["tables"][0]["rows"]
    shown = {(row[0], row[1]): row[2:5] for row in rows}
    for side in compared.sides:
        value = side.scores[1].value
        assert shown["AUC", side.name] == [value.estimate, value.ci_low, value.ci_high]
    assert "positive class: approved" in page.section("summary")["text"][0]


def test_a_report_on_several_models_names_each_verdict() -> None:
    group = np.tile(["f", "m"], N // 2)
    clean = P - np.where(group == "m", P[group == "m"].mean() - P[group == "f"].mean(), 0.0)
    compared = sq.compare(
        {"leaky": clean + 0.2 * (group == "m"), "clean": clean}, GOOD.astype(float), group, "gaussian"
    )
    report = sq.report.build(compared)
    assert [each.model for each in report.verdicts] == ["leaky", "clean"]
    for text in (report.to_text(), report.to_markdown(), report.to_html()):
        head = re.sub("<[^>]+>", "", text.split("In short")[0]).lower()
        assert re.search(r"leaky:\W+(leak|dependence found)", head) and re.search(r"clean:\W+\w", head)
    assert any(text.startswith("leaky: The predictions depend on") for text in report.section("meaning")["text"])
    assert sq.report.Report.from_dict(report.to_dict()) == report


def test_columns_of_probabilities_are_taken_by_the_classes_that_they_are_named_after() -> None:
    turned = pd.DataFrame({"probability[denied]": 1 - P, "probability[approved]": P})  # as `setsquare apply` names them
    assert auc(sq.compare({"model": turned}, DECISION, GROUP)) > 0.8
    assert sq.compare({"model": turned}, DECISION, GROUP).positive == "approved"
    numbers = pd.DataFrame({"p1": P, "p0": 1 - P})
    assert auc(sq.compare({"model": numbers}, GOOD.astype(int), GROUP)) > 0.8
    three = np.where(P > 0.9, "high", DECISION)
    shares = {f"p_{name}": (three == name) * 0.8 + 0.2 / 3 for name in ("denied", "high", "approved")}
    found = sq.compare({"model": pd.DataFrame(shares)}, three, GROUP)
    assert found.table()["accuracy"][0] == pytest.approx(1.0) and found.positive == ""


def test_columns_that_name_no_class_are_refused() -> None:
    table = pd.DataFrame({"first": 1 - P, "second": P})
    with pytest.raises(InputError, match="columns first, second do not say which of the classes"):
        sq.compare({"model": table}, DECISION, GROUP)
    bare = pd.DataFrame(np.column_stack([P, 1 - P]))  # numbered by pandas: the order of predict_proba
    assert auc(sq.compare({"model": bare}, DECISION, GROUP)) > 0.8


def test_a_report_on_labels_takes_the_positive_class_of_the_audit() -> None:
    labels = np.where(P > 0.5, "approved", "denied")
    for positive in ("approved", "denied"):
        audit = sq.audit(labels, GROUP, positive=positive)
        report = sq.report.build(audit, predictions=labels, protected=GROUP)
        rate = report.section("numbers")["tables"][0]["rows"][0][2][0]
        assert rate == pytest.approx(np.mean(labels[GROUP == "f"] == positive))
    two = np.column_stack([P, 1 - P])
    assert sq.report.build(sq.audit(two, GROUP), predictions=two, protected=GROUP).section("levels")
    assert sq.report.build(sq.audit(two, GROUP), predictions=two, protected=GROUP, outcome=DECISION).section("levels")


@pytest.mark.parametrize(("classes", "positive"), [(["N", "Y"], "Y"), (["f", "t"], "t"), (["F ", "T"], "T")])
def test_single_letters_mean_yes_where_the_other_means_no(classes: list[str], positive: str) -> None:
    assert positive_class(classes) == positive


def test_single_letters_alone_mean_nothing() -> None:
    for classes in (["X", "Y"], ["S", "T"]):
        with pytest.raises(InputError, match="It is unclear which"):
            positive_class(classes)
