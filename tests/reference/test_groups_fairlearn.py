"""Numbers by group equal fairlearn's on real data."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    demographic_parity_ratio,
    equalized_odds_difference,
    false_positive_rate,
    mean_prediction,
    selection_rate,
    true_positive_rate,
)
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, precision_score, roc_auc_score
from sklearn.preprocessing import StandardScaler

from setsquare import datasets, tables
from setsquare.auditing.groups.audited import number_groups
from setsquare.auditing.groups.partitions import partition_rows
from setsquare.auditing.groups.rates import Rows
from setsquare.auditing.groups.result import GroupNumbers
from setsquare.errors import DataNotFoundError

#: Fairlearn's frames copy row by row.
ROWS = 3000


class Case(NamedTuple):
    """Scores, decisions, outcomes and two categorical protected columns."""

    score: np.ndarray
    decision: np.ndarray
    outcome: np.ndarray
    protected: pd.DataFrame
    weight: np.ndarray


@pytest.fixture(scope="module", params=["adult", "compas"])
def case(request: pytest.FixtureRequest) -> Case:
    try:
        data = {"adult": datasets.load_adult, "compas": datasets.load_compas}[request.param]()
    except DataNotFoundError as error:
        pytest.skip(str(error))
    features, protected = (pd.DataFrame(t)[:ROWS] for t in (data.features_table(), data.protected_table()))
    y = np.asarray(data.y, dtype=float)[:ROWS]
    Z = StandardScaler().fit_transform(tables.learn(features).apply(features).values)
    score = LogisticRegression(max_iter=200).fit(Z, y).predict_proba(Z)[:, 1]
    columns = [name for name in protected.columns if protected[name].nunique() < 10][:2]
    assert columns
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(score))
    return Case(score, (score >= 0.5).astype(float), y, protected[columns], weight)


def numbers(case: Case, weight: np.ndarray | None = None) -> GroupNumbers:
    rows = Rows(case.score, case.decision, case.outcome, weight)
    return number_groups(rows, partition_rows(case.protected, min_group=1))


@pytest.fixture(scope="module", params=[False, True], ids=["equal weights", "weighted"])
def counted(request: pytest.FixtureRequest, case: Case) -> tuple[np.ndarray | None, GroupNumbers]:
    """Weights or none, and our numbers with them."""
    weight = case.weight if request.param else None
    return weight, numbers(case, weight)


def test_numbers_equal_those_of_metric_frame(case: Case, counted: tuple[np.ndarray | None, GroupNumbers]) -> None:
    weight, found = counted
    weighted = weight is not None
    functions = {
        "selection_rate": selection_rate,
        "tpr": true_positive_rate,
        "fpr": false_positive_rate,
        "ppv": precision_score,
        "accuracy": accuracy_score,
    }
    given = {key: {"sample_weight": weight} for key in functions} if weighted else {}
    scores = {"mean": mean_prediction, "auc": roc_auc_score}
    for part in found.partitions:
        columns = case.protected[list(part.parts) or [part.source]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            by_decision = MetricFrame(
                metrics=functions,
                y_true=case.outcome,
                y_pred=case.decision,
                sensitive_features=columns,
                sample_params=given,
            )
            by_score = MetricFrame(
                metrics=scores,
                y_true=case.outcome,
                y_pred=case.score,
                sensitive_features=columns,
                sample_params={key: {"sample_weight": weight} for key in scores} if weighted else {},
            )
        for name in (*functions, *scores):
            theirs = (by_decision if name in functions else by_score).by_group[name].dropna()
            labels = [", ".join(map(str, key if isinstance(key, tuple) else (key,))) for key in theirs.index]
            ours = dict(zip(part.labels, own(found, name, part.source), strict=True))
            compared = 0
            for label, value in zip(labels, theirs, strict=True):
                if np.isfinite(ours[label]):  # fairlearn calls 0/0 a rate of 0
                    assert ours[label] == pytest.approx(value, rel=0.0, abs=1e-12)
                    compared += 1
            assert compared > 1, (name, part.source)


def test_summaries_equal_those_of_fairlearn(case: Case, counted: tuple[np.ndarray | None, GroupNumbers]) -> None:
    weight, found = counted
    functions = {
        "demographic_parity_difference": demographic_parity_difference,
        "demographic_parity_ratio": demographic_parity_ratio,
        "equalized_odds_difference": equalized_odds_difference,
    }
    for summary in found.measures.summaries:
        part = next(one for one in found.partitions if one.source == summary.source)
        if summary.name not in functions:
            continue
        if not np.isfinite(own(found, "tpr", part.source) + own(found, "fpr", part.source)).all():
            continue  # fairlearn calls 0/0 a rate of 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = functions[summary.name](
                case.outcome,
                case.decision,
                sensitive_features=case.protected[list(part.parts) or [part.source]],
                sample_weight=weight,
            )
        assert summary.value == pytest.approx(theirs, abs=1e-12)
        assert summary.low <= summary.value <= summary.high


def own(found: GroupNumbers, name: str, source: str) -> np.ndarray:
    """Estimates of the groups of one partition."""
    here = [k for k, group in enumerate(found.groups) if group.source == source]
    return found.numbers[name].estimates.value[here]
