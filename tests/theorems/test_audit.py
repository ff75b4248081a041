"""What an audit claims: zero covariance is zero effect in every family, and what must not change its answer."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare import tables
from setsquare.auditing.bounds import association
from setsquare.auditing.evaluations.glm import fit_glm
from setsquare.auditing.protected import Protected
from setsquare.families import Family, family

N = 300


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.fixture
def table(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"race": rng.choice(["a", "b", "c", "d"], N), "age": rng.normal(50.0, 12.0, N)})


@pytest.fixture
def score(rng: np.random.Generator, table: pd.DataFrame) -> np.ndarray:
    return rng.normal(size=N) + 0.4 * (table["race"] == "b").to_numpy() + 0.02 * (table["age"] - 50.0).to_numpy()


def centred(table: pd.DataFrame, weight: np.ndarray | None = None) -> np.ndarray:
    X = np.column_stack([table["race"] == level for level in "bcd"] + [table["age"]]).astype(float)
    return X - np.average(X, axis=0, weights=weight)


def project(y: np.ndarray, X: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Lemma 3: take the linear part of the protected columns out, and keep the mean."""
    root = np.ones((len(X), 1)) if weight is None else np.sqrt(weight)[:, None]
    flat = y.reshape(len(y), -1)
    return (flat - X @ np.linalg.lstsq(root * X, root * flat, rcond=None)[0]).reshape(y.shape)


def estimates(found: sq.AuditResult) -> np.ndarray:
    return np.array([effect.estimate for effect in found.evaluations[0].effects])


def in_range(glm: Family, score: np.ndarray) -> np.ndarray:
    """Means that the family can have, far from the edges, so that a correction stays in range on the average."""
    if glm.name == "gaussian" and glm.link == "canonical":
        return score
    return 0.3 + 0.2 / (1.0 + np.exp(-score)) if glm.name == "binomial" else 2.0 + 1.0 / (1.0 + np.exp(-score))


# ------------------------------------------------------------------- zero covariance is zero effect, in every family
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_zero_covariance_is_zero_effect_in_every_family(
    glm: Family, weighted: bool, rng: np.random.Generator, table: pd.DataFrame, score: np.ndarray
) -> None:
    weight = rng.uniform(0.3, 3.0, N) if weighted else None
    X, mu = centred(table, weight), in_range(glm, score)
    before = sq.audit(mu, table, glm, sample_weight=weight)
    after = sq.audit(project(mu, X, weight), table, glm, sample_weight=weight)
    assert before.verdict == "leak" and np.abs(estimates(before)[:3]).max() > 1e-3
    assert np.abs(estimates(after)).max() < 1e-10 * np.abs(estimates(before)).max()
    assert after.p_value > 1.0 - 1e-9 and after.certificate.correlation < 1e-10
    assert any("corrected on these same rows" in note for note in after.notes)
    assert not any("corrected on these same rows" in note for note in before.notes)


def test_zero_covariance_is_zero_effect_for_classes(table: pd.DataFrame, rng: np.random.Generator) -> None:
    scores = rng.normal(size=(N, 3)) + np.column_stack([np.zeros((N, 2)), table["race"] == "b"])
    P = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    before, after = sq.audit(P, table), sq.audit(project(P, centred(table)), table)
    assert before.verdict == "leak" and np.abs(estimates(before)).max() > 0.1
    assert np.abs(estimates(after)).max() < 1e-10 and after.p_value > 1.0 - 1e-9


def test_zero_covariance_is_zero_effect_for_units(table: pd.DataFrame, rng: np.random.Generator) -> None:
    Y = rng.normal(size=(N, 2, 3)) + 0.5 * (table["race"] == "b").to_numpy()[:, None, None]
    before = sq.audit(Y, table, n_permutations=99)
    after = sq.audit(project(Y, centred(table)), table, n_permutations=99)
    assert before.p_value <= 0.02 and after.p_value == 1.0
    assert np.abs(before.effect_map.estimate).max() > 0.3 and np.abs(after.effect_map.estimate).max() < 1e-12
    assert np.nanmin(after.effect_map.p_value) > 1.0 - 1e-9


@pytest.mark.parametrize("only", [0, 1, 2, 3])
def test_a_single_covariance_is_a_single_effect(only: int, glm: Family, table: pd.DataFrame, score: np.ndarray) -> None:
    """The converse: predictions that covary with one column have an effect."""
    X = centred(table)
    mu = project(in_range(glm, score), X)
    direction = project(X[:, only], np.delete(X, only, axis=1))  # covaries with this column alone
    mu = mu + 0.05 * mu.std() * direction / direction.std()
    found = estimates(sq.audit(mu, table, glm))
    assert np.abs(found * X.std(axis=0))[only] > 1e-4
    assert np.abs(X.T @ mu / N / X.std(axis=0))[only] > 1e-4


@pytest.mark.parametrize("family", ["binomial", "poisson", "gaussian"])
def test_corrected_models_pass_where_plain_ones_do_not(family: str) -> None:
    """In-sample both ways; and the result says that the second is a tautology."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"sex": rng.choice(["f", "m"], 800), "age": rng.normal(size=800)})
    Z = rng.normal(size=(800, 4)) + 0.7 * np.column_stack([X["sex"] == "m", X["age"], X["age"], X["sex"] == "m"])
    eta = Z @ [0.5, 0.3, 0.0, 0.2]
    y = {"binomial": rng.random(800) < 1 / (1 + np.exp(-eta)), "poisson": rng.poisson(np.exp(eta)), "gaussian": eta}
    kind = sq.OrthogonalGLMClassifier if family == "binomial" else sq.OrthogonalGLMRegressor
    model = kind() if family == "binomial" else kind(family=family)
    model.fit(Z, y[family] + (0.0 if family == "gaussian" else 0), protected=X)
    predict = model.predict_proba if family == "binomial" else model.predict
    corrected = sq.audit(predict(Z), X, family)
    plain = sq.audit({"binomial": 1 / (1 + np.exp(-eta)), "poisson": np.exp(eta), "gaussian": eta}[family], X, family)
    assert plain.verdict == "leak" and corrected.verdict == "no leak found"
    assert corrected.p_value > 1.0 - 1e-6 and corrected.certificate.correlation < 1e-7


def test_a_chance_orthogonality_is_no_tautology(rng: np.random.Generator) -> None:
    """Held-out predictions of a corrected model are near zero, never at it."""
    for _ in range(20):
        found = sq.audit(rng.random(N), rng.normal(size=N))
        assert not any("rounding" in note for note in found.notes)


# -------------------------------------------------------------------------------------------------- invariance
def test_scale_and_origin_of_protected_columns(table: pd.DataFrame, score: np.ndarray) -> None:
    before = sq.audit(score, table)
    after = sq.audit(score, table.assign(age=1e4 - 1e3 * table["age"]))
    assert after.p_value == pytest.approx(before.p_value, rel=1e-8)
    np.testing.assert_allclose(estimates(after)[:3], estimates(before)[:3], rtol=1e-8)
    assert estimates(after)[3] == pytest.approx(-1e-3 * estimates(before)[3], rel=1e-8)
    for a, b in zip(before.certificate.columns, after.certificate.columns, strict=True):
        assert (a.correlation_upper, a.effect_upper) == pytest.approx((b.correlation_upper, b.effect_upper), rel=1e-8)


@pytest.mark.parametrize("kind", ["means", "classes", "units"])
def test_any_coding_of_the_same_span_has_the_same_joint_test(
    kind: str, rng: np.random.Generator, table: pd.DataFrame, score: np.ndarray
) -> None:
    p = 1.0 / (1.0 + np.exp(-score))
    given = {
        "means": p,
        "classes": np.column_stack([p, (1 - p) * 0.3, (1 - p) * 0.7]) * 0.9 + rng.dirichlet(np.ones(3), N) * 0.1,
        "units": np.column_stack([score, rng.normal(size=N)]),
    }[kind]
    X = centred(table)
    mixed = X @ rng.normal(size=(4, 4)) + rng.normal(size=4)
    one, other = (sq.audit(given, columns, n_permutations=99) for columns in (X, mixed))
    assert other.p_value == pytest.approx(one.p_value, rel=1e-6)
    assert other.certificate.correlation_upper == pytest.approx(one.certificate.correlation_upper, rel=1e-6)
    assert one.p_value < 0.05 and not np.allclose(estimates(one), estimates(other))


@pytest.mark.parametrize("level", list("bcd"))
@pytest.mark.parametrize("vcov", ["HC0", "HC3", "model", "cluster"])
def test_the_reference_level_changes_no_joint_test(
    level: str, vcov: str, table: pd.DataFrame, score: np.ndarray
) -> None:
    p, options = (
        1.0 / (1.0 + np.exp(-score)),
        {"vcov": vcov, "cluster": np.arange(N) // 2 if vcov == "cluster" else None},
    )
    one, other = (sq.audit(p, table, reference={"race": ref}, **options) for ref in ("a", level))
    for a, b in zip(
        (one.evaluations[0].joint, *one.evaluations[0].by_source),
        (other.evaluations[0].joint, *other.evaluations[0].by_source),
        strict=True,
    ):
        assert b.p_value == pytest.approx(a.p_value, rel=1e-6) and b.statistic == pytest.approx(a.statistic, rel=1e-6)
    assert other.certificate.correlation_upper == pytest.approx(one.certificate.correlation_upper, rel=1e-9)
    assert estimates(one)[0] != pytest.approx(estimates(other)[0])


def test_the_reference_level_changes_no_score_test(table: pd.DataFrame, score: np.ndarray) -> None:
    label = np.where(table["race"] == "b", True, score > 0.0)  # separated
    one, other = (sq.audit(label, table, reference={"race": ref}) for ref in "ad")
    assert other.p_value == pytest.approx(one.p_value, rel=1e-6)
    assert any("score tests" in note for note in one.evaluations[0].notes)


def test_rows_can_change_places(rng: np.random.Generator, table: pd.DataFrame, score: np.ndarray) -> None:
    order = rng.permutation(N)
    one, other = sq.audit(score, table), sq.audit(score[order], table.iloc[order].reset_index(drop=True))
    assert other.p_value == pytest.approx(one.p_value, rel=1e-10)
    assert other.certificate.correlation_upper == pytest.approx(one.certificate.correlation_upper, rel=1e-10)


def test_cells_are_the_interaction(rng: np.random.Generator, score: np.ndarray) -> None:
    """Equal means of each level, but not of each cell: dummies see nothing, cells see it."""
    a, b = np.tile(["x", "y"], N // 2), np.tile(["u", "u", "v", "v"], N // 4)
    crossed = np.where((a == "x") == (b == "u"), 1.0, -1.0)
    y = rng.normal(size=N) + crossed
    table = pd.DataFrame({"a": a, "b": b})
    dummies, cells = (sq.audit(y, table, basis=basis) for basis in ("linear", "cells"))
    assert dummies.p_value > 1e-3 and cells.p_value < 1e-20 and cells.n_protected == 3


# ---------------------------------------------------------------------------------------------- weights and clusters
def test_only_the_proportions_of_weights_count(
    rng: np.random.Generator, table: pd.DataFrame, score: np.ndarray
) -> None:
    weight = rng.uniform(0.2, 3.0, N)
    one, other = (sq.audit(score, table, sample_weight=w) for w in (weight, 1e6 * weight))
    assert other.p_value == pytest.approx(one.p_value, rel=1e-9)
    assert other.certificate.correlation_upper == pytest.approx(one.certificate.correlation_upper, rel=1e-9)
    unweighted = sq.audit(score, table)
    assert sq.audit(score, table, sample_weight=np.full(N, 2.5)).p_value == pytest.approx(unweighted.p_value, rel=1e-9)
    assert one.p_value != pytest.approx(unweighted.p_value, rel=1e-3)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_weights_are_probability_weights(
    family: str, rng: np.random.Generator, table: pd.DataFrame, score: np.ndarray
) -> None:
    """The estimate of rows repeated as often as their weight says; the error of rows that are repeated, not new."""
    mu, times = np.exp(0.3 * score), rng.integers(1, 5, N)
    again = np.repeat(np.arange(N), times)
    weighted = sq.audit(mu, table, family, "HC0", sample_weight=times.astype(float))
    copies = sq.audit(mu[again], table.iloc[again].reset_index(drop=True), family, "HC0")
    clustered = sq.audit(mu[again], table.iloc[again].reset_index(drop=True), family, cluster=again)
    np.testing.assert_allclose(estimates(copies), estimates(weighted), rtol=1e-7)
    error, naive, robust = (
        np.array([e.std_error for e in found.evaluations[0].effects]) for found in (weighted, copies, clustered)
    )
    n, total, k = N, len(again), 5
    np.testing.assert_allclose(robust, error * math.sqrt(n / (n - 1) * (total - 1) / (total - k)), rtol=1e-7)
    assert (naive < 0.8 * error).all()


def test_a_survey_with_weights_finds_the_population(rng: np.random.Generator) -> None:
    """Rows kept by a rule that leaks: the plain audit sees a leak that the population does not have."""
    n = 6000
    sex, score = rng.integers(2, size=n), rng.normal(size=n)
    chance = np.where(sex == 1, 1.0 / (1.0 + np.exp(-score)), 0.5)
    kept = rng.random(n) < chance
    plain = sq.audit(score[kept], sex[kept])
    weighted = sq.audit(score[kept], sex[kept], sample_weight=1.0 / chance[kept])
    assert plain.verdict == "leak" and weighted.p_value > 0.001 and abs(estimates(weighted)[0]) < 0.15


@pytest.mark.parametrize("times", [2, 5])
def test_repeated_rows_in_clusters_are_one_row(times: int, table: pd.DataFrame, score: np.ndarray) -> None:
    again = np.repeat(np.arange(N), times)
    rows = table.iloc[again].reset_index(drop=True)
    one = sq.audit(score, table, cluster=np.arange(N))
    clustered, copies = sq.audit(score[again], rows, cluster=again), sq.audit(score[again], rows)
    found, wanted = (r.evaluations[0].joint for r in (clustered, one))
    assert found.statistic == pytest.approx(wanted.statistic, rel=1e-8)
    assert copies.p_value < one.p_value**1.5
    assert clustered.certificate.correlation_upper == pytest.approx(one.certificate.correlation_upper, rel=0.03)
    assert copies.certificate.correlation_upper < one.certificate.correlation_upper - 0.01


def test_repeated_rows_in_clusters_have_the_bound_of_one_row() -> None:
    """A sample whose rows happen to be quiet: the bound rests on the least error."""
    x, y = np.tile([-1.0, 1.0, 0.0, 0.0], 50), np.tile([0.0, 0.0, -1.0, 1.0], 50)
    again = np.repeat(np.arange(200), 4)
    one = association(y, x[:, None])[0]
    clustered = association(y[again], x[again, None], cluster=again)[0]
    assert clustered.upper == pytest.approx(one.upper, rel=1e-9)


def test_a_cluster_for_each_row_is_hc1(table: pd.DataFrame, score: np.ndarray) -> None:
    each, hc1 = sq.audit(score, table, cluster=np.arange(N)), sq.audit(score, table, vcov="HC1")
    np.testing.assert_allclose(
        [e.std_error for e in each.evaluations[0].effects], [e.std_error for e in hc1.evaluations[0].effects], rtol=1e-9
    )


def rejections(draw: object, n_draws: int, seed: int = 0) -> float:
    rng = np.random.default_rng(seed)
    return float(np.mean([draw(rng) < 0.05 for _ in range(n_draws)]))  # type: ignore[operator]


def test_clusters_are_calibrated_where_rows_are_not() -> None:
    cluster = np.repeat(np.arange(50), 4)

    def draw(rng: np.random.Generator, **options: object) -> float:
        y, x = (rng.normal(size=50)[cluster] + 0.5 * rng.normal(size=200) for _ in range(2))
        return sq.audit(y, x, "gaussian", **options).p_value

    assert rejections(lambda rng: draw(rng, cluster=cluster), 120) < 0.12
    assert rejections(draw, 40) > 0.2


def test_a_level_within_one_cluster_is_no_leak() -> None:
    cluster = np.arange(200) // 4
    group = np.where(cluster == 0, "rare", np.where(np.arange(200) % 2 > 0, "a", "b"))
    assert rejections(lambda rng: sq.audit(rng.normal(size=200), group, cluster=cluster).p_value, 60) < 0.2


@pytest.mark.parametrize("levels", [1, 3])
def test_levels_of_two_rows_raise_no_false_alarm(levels: int) -> None:
    group = np.array(["a", "b"])[np.arange(120) % 2].astype("U2")
    for level in range(levels):
        group[2 * level : 2 * level + 2] = f"r{level}"
    assert rejections(lambda rng: sq.audit(rng.normal(size=120), group).p_value, 80) < 0.1


# ------------------------------------------------------------------------------------------------------- tensors
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_the_map_of_units_is_an_audit_of_each(weighted: bool, rng: np.random.Generator, table: pd.DataFrame) -> None:
    Y = rng.normal(size=(N, 3, 2)) * [[1.0, 1e6], [1e-6, 1.0], [5.0, 1.0]]
    Y[:, 1, 1] += 0.8 * (table["race"] == "c").to_numpy()
    weight = rng.uniform(0.3, 3.0, N) if weighted else None
    units = sq.audit(Y, table, sample_weight=weight, n_permutations=19).effect_map
    for unit in np.ndindex(3, 2):
        alone = sq.audit(Y[(..., *unit)], table, "gaussian", sample_weight=weight)
        encoded = tables.learn(table).apply(table)
        columns = Protected(encoded.values, encoded.names, encoded.sources, weight)
        joint = fit_glm(Y[(..., *unit)], columns, family("gaussian")).all
        at = (slice(None), *unit)
        np.testing.assert_allclose(units.estimate[at], estimates(alone), rtol=1e-8)
        errors = [effect.std_error for effect in alone.evaluations[0].effects]
        np.testing.assert_allclose(units.std_error[at], errors, rtol=1e-8)
        assert units.p_value[unit] == pytest.approx(joint.p_value, rel=1e-8)
        assert units.correlation[unit] == pytest.approx(alone.certificate.correlation_sample, rel=1e-8)
    assert units.p_value[1, 1] < 0.001 and units.p_adjusted[1, 1] == pytest.approx(6 * units.p_value[1, 1])


def test_a_constant_unit_and_a_lost_column_have_no_numbers(rng: np.random.Generator, table: pd.DataFrame) -> None:
    Y = rng.normal(size=(N, 3))
    Y[:, 0] = 4.0
    found = sq.audit(Y, table.assign(months=12.0 * table["age"]), n_permutations=19)
    plain = sq.audit(Y[:, 1:], table, n_permutations=19)
    assert math.isnan(found.effect_map.p_value[0]) and np.isnan(found.effect_map.estimate[4]).all()
    np.testing.assert_allclose(found.effect_map.p_adjusted[1:], plain.effect_map.p_adjusted, rtol=1e-8)
    assert found.p_value == plain.p_value


def test_a_constant_column_has_no_p_value_in_an_audit_of_units(rng: np.random.Generator, table: pd.DataFrame) -> None:
    found = sq.audit(rng.normal(size=(N, 3)), table.assign(one=1.0), n_permutations=19)
    assert math.isnan(found.evaluations[0].effects[4].p_value)


def test_the_joint_test_of_dependent_units_is_calibrated() -> None:
    """Forty units that are nearly one: a test that took them for independent would reject far too often."""
    x = np.repeat([0.0, 1.0], 25)

    def draw(rng: np.random.Generator) -> float:
        Y = rng.normal(size=(50, 1)) + 0.1 * rng.normal(size=(50, 40))
        return sq.audit(Y, x, n_permutations=39).p_value - 1e-9  # at 0.05 the test rejects

    assert rejections(draw, 150) <= 0.1


@pytest.mark.parametrize("kind", ["a level of five rows", "skewed units"])
def test_the_joint_test_of_units_is_calibrated_for_small_groups(kind: str) -> None:
    few, skewed = (5, False) if kind == "a level of five rows" else (20, True)
    x = (np.arange(150) < few).astype(float)

    def draw(rng: np.random.Generator) -> float:
        Y = rng.normal(size=(150, 200))
        return sq.audit(np.exp(Y) if skewed else Y, x, n_permutations=39).p_value

    assert rejections(draw, 30) < 0.2


def test_the_joint_test_of_units_finds_what_is_spread_over_them(rng: np.random.Generator) -> None:
    x = np.repeat([0.0, 1.0], 150)
    Y = rng.normal(size=(300, 60))
    assert sq.audit(Y, x, n_permutations=99).p_value > 0.05
    assert sq.audit(Y + 0.12 * x[:, None], x, n_permutations=99).p_value <= 0.05


# ----------------------------------------------------------------------------------------- what the paper's mode misses
def test_model_based_errors_are_blind_where_robust_ones_are_not() -> None:
    """A leak of 0.2 on the logit, as in the simulation that the default rests on."""

    def draw(rng: np.random.Generator, vcov: str) -> float:
        sex = rng.integers(2, size=1000)
        p = 1.0 / (1.0 + np.exp(-0.6 * rng.normal(size=1000) - 0.2 * sex))
        return sq.audit(p, sex, vcov=vcov).p_value

    assert rejections(lambda rng: draw(rng, "HC3"), 40) >= 0.9
    assert rejections(lambda rng: draw(rng, "model"), 40) <= 0.1


def test_one_extreme_prediction_is_no_leak(rng: np.random.Generator) -> None:
    """A group whose mean rests on a single row: its effect is large, and says nothing of the group."""
    x = np.tile([0.0, 1.0], 1000)
    y = np.exp(0.5 * rng.normal(size=2000))
    assert sq.audit(y, x, "poisson").verdict == "no leak found"
    y[7] = 1e5
    found = sq.audit(y, x, "poisson")
    columns = Protected(x[:, None], ("x",), ("x",))
    assert fit_glm(y, columns, family("poisson")).all.p_value < 1e-3  # what a Wald test makes of it
    assert found.verdict == "no leak found" and found.p_value > 0.1
    assert any("so extreme" in note for note in found.evaluations[0].notes)
