"""Dependence without linear effects is found, small ones are traces, and innocent predictions are not accused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.auditing import Limits
from setsquare.auditing.verdict import NO_DIFFERENCE, NO_EFFECT

N = 5000


def u_shaped(rng: np.random.Generator) -> tuple[np.ndarray, pd.DataFrame]:
    """Means of .62, .40 and .61 along age."""
    age = rng.uniform(20.0, 80.0, N)
    mean = 0.40 + 0.22 * ((age - 50.0) / 30.0) ** 2 * 1.6
    return np.clip(mean + 0.15 * rng.normal(size=N), 0.0, 1.0), pd.DataFrame({"age": age})


def uneven_spread(rng: np.random.Generator) -> tuple[np.ndarray, pd.DataFrame]:
    """Equal means, but 31 % of one group and 2 % of the other above 0.8."""
    group = rng.choice(["a", "b"], N)
    spread = np.where(group == "a", 0.6, 0.15)
    score = np.clip(0.5 + spread * rng.normal(size=N), 0.0, 1.0)
    return score, pd.DataFrame({"group": group})


def one_cell(rng: np.random.Generator) -> tuple[np.ndarray, pd.DataFrame]:
    """Neither race nor sex has an effect of its own."""
    race, sex = rng.choice(["r", "s"], N), rng.choice(["f", "m"], N)
    crossed = np.where((race == "r") == (sex == "f"), 1.0, -1.0)
    return 0.5 + 0.05 * crossed + 0.2 * rng.normal(size=N), pd.DataFrame({"race": race, "sex": sex})


LEAKS: dict[str, Callable[..., tuple[np.ndarray, pd.DataFrame]]] = {
    "curvature": u_shaped,
    "spread": uneven_spread,
    "combinations": one_cell,
}


@pytest.mark.parametrize("kind", LEAKS)
def test_dependence_without_linear_effects_is_found_and_named(kind: str) -> None:
    rng = np.random.default_rng(0)
    y, protected = LEAKS[kind](rng)
    linear = sq.audit(y, protected, "gaussian", evaluation="glm")
    assert linear.verdict != "leak"  # what the linear effects alone show
    found = sq.audit(y, protected, "gaussian")
    assert found.verdict == "leak" and found.found == (kind,)
    assert NO_DIFFERENCE in found.reason or found.statistics.startswith(NO_EFFECT)


def test_a_rare_group_is_judged_by_its_difference_not_by_its_correlation() -> None:
    """1 % of the rows, selected 18 % against 50 %: a correlation of 0.06."""
    rng = np.random.default_rng(1)
    group = np.where(rng.random(20_000) < 0.01, "rare", "common")
    selected = rng.random(20_000) < np.where(group == "rare", 0.18, 0.5)
    found = sq.audit(selected.astype(float), pd.DataFrame({"group": group}), tolerance=0.1)
    assert found.certificate.correlation_upper < 0.1 and found.verdict == "leak"
    assert "The mean of group: rare is 0.6" in found.statistics


def test_what_is_detectable_and_certainly_small_is_a_trace() -> None:
    rng = np.random.default_rng(2)
    sex = rng.choice(["f", "m"], 400_000)
    score = rng.normal(size=400_000) + 0.04 * (sex == "m")
    found = sq.audit(score, pd.DataFrame({"sex": sex}))
    assert found.verdict == "trace" and "limit 0.05" in found.statistics and found.found == ("effects",)
    assert sq.audit(score, pd.DataFrame({"sex": sex}), tolerance=0.0).verdict == "leak"
    assert sq.audit(score, pd.DataFrame({"sex": sex}), tolerance=Limits(difference=0.01)).verdict == "leak"


@pytest.mark.parametrize("kind", LEAKS)
def test_in_parts_as_in_memory(kind: str) -> None:
    y, protected = LEAKS[kind](np.random.default_rng(0))
    table = protected.assign(score=y)
    stream = sq.Stream([table.iloc[:1700], table.iloc[1700:]])
    whole = sq.audit(y, protected, "gaussian")
    parts = sq.audit(stream["score"], stream[list(protected.columns)], "gaussian")
    assert parts.verdict == whole.verdict and parts.found == whole.found
    for mine, other in zip(parts.evaluation("shape").further, whole.evaluation("shape").further, strict=True):
        assert mine.statistic == pytest.approx(other.statistic, rel=1e-8) and mine.upper == pytest.approx(other.upper)


def test_weights_are_repetitions_and_clusters_of_one_row_are_rows() -> None:
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"sex": rng.choice(["f", "m"], 900), "race": rng.choice(list("abc"), 900)})
    table["age"] = rng.normal(40.0, 9.0, 900)
    y = rng.normal(size=900)
    plain = sq.audit(y, table).evaluation("shape").further
    each = sq.audit(y, table, cluster=np.arange(900)).evaluation("shape").further
    for one, other in zip(plain, each, strict=True):
        assert one.upper == pytest.approx(other.upper, rel=1e-6)
    assert [test.name for test in plain] == ["curvature", "combinations", "spread"]
    assert [test.sources for test in plain] == [("age",), ("sex", "race", "age"), ("sex", "race", "age")]


def test_the_spread_of_skewed_predictions_is_not_called_uneven() -> None:
    """Estimated means move with skewed predictions: without a correction this rejects far too often."""
    rng, rejected = np.random.default_rng(4), []
    for _ in range(300):
        group = rng.random(400) < 0.3
        found = sq.audit(np.exp(rng.normal(size=400)), group.astype(float), evaluation=("glm", "shape"))
        rejected.append(found.evaluation("shape").further[-1].p_value < 0.05)
    assert np.mean(rejected) < 0.08


def test_products_of_few_rows_are_not_tested() -> None:
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"a": np.where(np.arange(300) < 10, "rare", "x"), "b": rng.choice(["u", "v"], 300)})
    found = sq.audit(rng.normal(size=300), table).evaluation("shape")
    assert [test.name for test in found.further] == ["spread"]


def test_only_the_columns_that_stand_out_are_named() -> None:
    rng = np.random.default_rng(6)
    table = pd.DataFrame(rng.normal(size=(N, 3)), columns=["age", "income", "height"])
    found = sq.audit(0.3 * table["age"] ** 2 + rng.normal(size=N), table)
    assert found.found == ("curvature",) and "follow age along a curve" in found.reason


def test_a_slope_that_differs_between_groups_is_a_combination_however_groups_are_coded() -> None:
    rng = np.random.default_rng(7)
    age, sex = rng.normal(size=N), rng.integers(1, 3, size=N)  # coded 1 and 2
    found = sq.audit(0.4 * np.where(sex == 1, age, -age) + rng.normal(size=N), pd.DataFrame({"age": age, "sex": sex}))
    assert "combinations" in found.found and found.certificate.columns[1].n_group == (sex == 2).sum()


def test_labels_have_no_spread_of_their_own() -> None:
    """The spread of a label follows from its mean: a test of it accused a third of innocent labels of six groups."""
    rng, accused = np.random.default_rng(8), 0
    for _ in range(75):
        group = rng.choice(list("abcdef"), 200, p=[0.40, 0.25, 0.15, 0.10, 0.07, 0.03])
        labels = rng.choice(list("stuv"), 200, p=[0.55, 0.3, 0.1, 0.05])
        accused += sq.audit(labels, group, tolerance=Limits(correlation=0.0, shape=0.0)).is_leak
    assert accused <= 10


def test_the_spread_of_labels_does_not_depend_on_the_order_of_the_rows() -> None:
    """Where a group lacks a label its residuals are zero up to rounding, whose signs were counted."""
    rng = np.random.default_rng(5)
    group, label = rng.choice(list("abc"), 300, p=[0.5, 0.4, 0.1]), rng.choice(list("stu"), 300, p=[0.6, 0.3, 0.1])
    label[(group == "c") & (label == "u")] = "s"
    weight, p = rng.exponential(size=300), []
    for order in (np.arange(300), np.argsort(label, kind="stable"), rng.permutation(300)):
        found = sq.audit(label[order], group[order], sample_weight=weight[order], evaluation="shape")
        p.append(found.evaluations[0].further[0].p_value)
    np.testing.assert_allclose(p, p[0], rtol=1e-8)


def test_an_exact_linear_function_has_no_shape() -> None:
    x = np.random.default_rng(9).normal(size=500)
    assert sq.audit(2.0 * x + 1.0, x).found == ("effects",)


@pytest.mark.parametrize("parts", [False, True], ids=["memory", "parts"])
def test_the_reference_group_is_judged_like_any_other(parts: bool) -> None:
    rng = np.random.default_rng(10)
    race = rng.choice(["Amer-Indian", "Black", "White"], 20_000, p=[0.004, 0.3, 0.696])
    reference = {"race": "Amer-Indian"}
    table = pd.DataFrame({"race": race, "score": rng.normal(size=20_000) - 0.5 * (race == "Amer-Indian")})
    if parts:
        stream = sq.Stream([table.iloc[:9000], table.iloc[9000:]])
        found = sq.audit(stream["score"], stream[["race"]], "gaussian", reference=reference)
    else:
        found = sq.audit(table["score"], table[["race"]], "gaussian", reference=reference)
    assert found.verdict == "leak" and "The mean of race: Amer-Indian is 0." in found.statistics
    bound = found.certificate.references[0]
    assert bound.n_group == (race == "Amer-Indian").sum() and 0.3 < bound.difference < 0.7


def test_nothing_is_tolerated_with_a_tolerance_of_zero() -> None:
    rng = np.random.default_rng(11)
    age = rng.normal(size=N)
    assert sq.audit(rng.normal(size=N) + 0.1 * (age**2 - 1.0), age, tolerance=0.0).verdict == "leak"


def test_clusters_cost_only_what_their_rows_share() -> None:
    """A column that varies within clusters is bounded by rows, whatever the clusters share."""
    rng = np.random.default_rng(12)
    cluster, sex = rng.integers(30, size=3000), rng.integers(2, size=3000).astype(float)
    y = 0.2 * rng.normal(size=30)[cluster] + rng.normal(size=3000)
    assert sq.audit(y, sex, cluster=cluster).certificate.correlation_upper < 0.12
