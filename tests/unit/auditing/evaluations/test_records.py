"""Numbers of an audit: Wald and score tests, adjusted p-values, bounds on associations, and the rules of a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

import setsquare as sq
from setsquare.auditing.bounds import association
from setsquare.auditing.certificate import Certificate
from setsquare.auditing.evaluations.records import (
    Effect,
    Evaluation,
    Test,
    benjamini_hochberg,
    critical_value,
    holm,
    two_sided,
    wald,
    z_effect,
)
from setsquare.auditing.evaluations.score import answer, largest_score, questions_of, sample_of, signed
from setsquare.auditing.evaluations.tensor import unit_correlations
from setsquare.auditing.protected import Protected
from setsquare.auditing.verdict import Limits, judge

N = 150


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


# ------------------------------------------------------------------------------------------------------- Wald
def random_covariance(rng: np.random.Generator, q: int) -> np.ndarray:
    A = rng.normal(size=(q, q)) * 10.0 ** rng.uniform(-4.0, 4.0, q)[:, None]
    return A @ A.T


@pytest.mark.parametrize("df", [math.inf, 30.0])
@pytest.mark.parametrize("q", [1, 2, 5])
def test_wald_is_the_quadratic_form(rng: np.random.Generator, q: int, df: float) -> None:
    V = random_covariance(rng, q)
    b = np.linalg.cholesky(V) @ rng.normal(size=q)
    found = wald("x", b, V, df)
    W = float(b @ np.linalg.solve(V, b))
    assert found.statistic == pytest.approx(W, rel=1e-6) and found.df == q
    wanted = stats.chi2.sf(W, q) if math.isinf(df) else stats.f.sf(W / q, q, df)
    assert found.p_value == pytest.approx(wanted, rel=1e-6)


def test_wald_of_one_effect_is_its_t_test() -> None:
    effect = z_effect("x", "x", -0.7, 0.2, 12.0, 0.9)
    joint = wald("x", np.array([-0.7]), np.array([[0.04]]), 12.0)
    assert joint.statistic == pytest.approx(effect.statistic**2) and joint.p_value == pytest.approx(effect.p_value)
    half = stats.t.ppf(0.95, 12.0) * 0.2
    assert (effect.ci_low, effect.ci_high) == (pytest.approx(-0.7 - half), pytest.approx(-0.7 + half))
    assert effect.p_value == pytest.approx(stats.t.sf(3.5, 12.0) * 2.0)


def test_tails_reach_beyond_what_a_difference_from_one_can() -> None:
    assert two_sided(37.0, math.inf) == pytest.approx(2.0 * stats.norm.sf(37.0)) and two_sided(37.0, math.inf) > 0.0
    assert wald("x", np.array([36.0]), np.eye(1), math.inf).p_value == pytest.approx(two_sided(36.0, math.inf))
    assert critical_value(math.inf, 0.95) == pytest.approx(1.959964, abs=1e-6)


def test_wald_where_there_is_no_error() -> None:
    certain, nothing = (wald("x", np.array([b]), np.zeros((1, 1)), 10.0) for b in (0.3, 0.0))
    assert (certain.statistic, certain.p_value) == (math.inf, 0.0)
    assert (nothing.statistic, nothing.p_value) == (0.0, 1.0)
    assert z_effect("x", "x", -0.3, 0.0, 10.0, 0.95).statistic == -math.inf
    assert z_effect("x", "x", 0.0, 0.0, 10.0, 0.95).p_value == 1.0


def test_wald_where_there_is_nothing_to_test() -> None:
    assert math.isnan(wald("x", np.zeros(0), np.zeros((0, 0)), 10.0).p_value)
    assert math.isnan(wald("x", np.ones(1), np.full((1, 1), np.nan), 10.0).p_value)
    assert math.isnan(z_effect("x", "x", 1.0, math.nan, 10.0, 0.95).p_value)


def test_wald_counts_the_directions_that_vary() -> None:
    """The same effect twice is one effect."""
    twice = wald("x", np.array([2.0, 2.0]), np.ones((2, 2)), math.inf)
    assert twice.df == 1.0 and twice.p_value == pytest.approx(two_sided(2.0, math.inf))


def test_an_effect_without_error_does_not_hide_the_others() -> None:
    assert wald("x", np.array([0.0, 10.0]), np.diag([0.0, 1.0]), math.inf).p_value < 1e-20


def test_a_direction_without_error_is_certain() -> None:
    assert wald("x", np.array([1.0, -1.0]), np.ones((2, 2)), math.inf).p_value == 0.0


def test_the_method_names_the_degrees_of_freedom_that_were_used() -> None:
    assert "F(1, 9)" in wald("x", np.array([2.0, 2.0]), np.ones((2, 2)), 9.0).method


# ------------------------------------------------------------------------------------------ adjusted p-values
def brute_holm(p: np.ndarray) -> list[float]:
    """Smallest level at which the step-down procedure rejects each."""
    m = len(p)
    order = sorted(range(m), key=lambda i: p[i])
    return [min(1.0, max((m - k) * p[j] for k, j in enumerate(order[: order.index(i) + 1]))) for i in range(m)]


def brute_bh(p: np.ndarray) -> list[float]:
    m = len(p)
    ranked = sorted(p)
    return [min(1.0, min(m * ranked[k] / (k + 1) for k in range(ranked.index(x), m))) for x in p]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("method", "brute"), [(holm, brute_holm), (benjamini_hochberg, brute_bh)])
def test_missing_p_values_are_neither_adjusted_nor_counted(
    seed: int, method: Callable[[np.ndarray], np.ndarray], brute: Callable[[np.ndarray], list[float]]
) -> None:
    rng = np.random.default_rng(seed)
    p = rng.random(9) ** 2
    lost = rng.permutation(9)[: seed + 1]
    with_gaps = p.copy()
    with_gaps[lost] = np.nan
    found = method(with_gaps)
    assert np.isnan(found[lost]).all()
    np.testing.assert_allclose(np.delete(found, lost), brute(np.delete(p, lost)), rtol=1e-12)


@pytest.mark.parametrize("method", [holm, benjamini_hochberg])
def test_adjusting_keeps_what_needs_no_adjusting(method: Callable[[list[float]], np.ndarray]) -> None:
    assert method([]).shape == (0,)
    assert np.isnan(method([math.nan])).all()
    np.testing.assert_allclose(method([0.03]), [0.03])
    np.testing.assert_allclose(method([0.9, 1.0, 0.95]), 1.0)
    np.testing.assert_allclose(method([0.0, 0.0]), 0.0)


# ----------------------------------------------------------------------------------------------- score tests
def brute_score(Y: np.ndarray, X: np.ndarray, chosen: list[int], weight: np.ndarray, cluster: np.ndarray) -> float:
    """Weighted least squares on the other columns, then the sums of scores of each cluster one by one."""
    others = np.column_stack([np.ones(len(X)), np.delete(X, chosen, axis=1)])
    root = np.sqrt(weight)[:, None]

    def rest(A: np.ndarray) -> np.ndarray:
        return A - others @ np.linalg.lstsq(others * root, A * root, rcond=None)[0]

    E, T = rest(Y), rest(X[:, chosen])
    scores = np.array([np.kron(t, e) * w for t, e, w in zip(T, E, weight, strict=True)])
    sums = np.array([scores[cluster == c].sum(axis=0) for c in np.unique(cluster)])
    total = sums.sum(axis=0)
    return float(total @ np.linalg.pinv(sums.T @ sums, rcond=1e-11, hermitian=True) @ total)


def score_tests(y: np.ndarray, columns: Protected, *, pooled: bool = False) -> tuple[Test, list[Test], list[Test]]:
    found = answer(sample_of(y, columns), questions_of(columns.names, columns.sources))
    p = len(columns.names)
    joint, *by_source = (one.pooled if pooled else one.robust for one in found[:-p])
    return joint, by_source, [one.pooled if pooled else one.robust for one in found[-p:]]


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [1, 2])
def test_score_tests_against_brute_force(rng: np.random.Generator, clustered: bool, weighted: bool, k: int) -> None:
    group = rng.integers(3, size=N)
    X = np.column_stack([group == 1, group == 2, rng.normal(40.0, 9.0, N)]).astype(float)
    Y = rng.random((N, k)) + 0.1 * X[:, :1]
    cluster = rng.integers(40, size=N) if clustered else np.arange(N)
    weight = rng.uniform(0.3, 3.0, N) if weighted else np.ones(N)
    columns = Protected(
        X,
        ("g[1]", "g[2]", "age"),
        ("g", "g", "age"),
        weight if weighted else None,
        np.unique(cluster, return_inverse=True)[1] if clustered else None,
    )
    joint, by_source, single = score_tests(Y[:, 0] if k == 1 else Y, columns)
    assert joint.df == 3 * k and [t.name for t in by_source] == ["g", "age"] and len(single) == 3
    for test, chosen in zip((joint, *by_source, *single), ([0, 1, 2], [0, 1], [2], [0], [1], [2]), strict=True):
        wanted = brute_score(Y, X, chosen, weight, cluster)
        assert test.statistic == pytest.approx(wanted, rel=1e-7)
        assert test.p_value == pytest.approx(stats.chi2.sf(wanted, len(chosen) * k), rel=1e-6)


def test_a_score_test_of_one_column_has_the_sign_of_the_effect(rng: np.random.Generator) -> None:
    x = rng.normal(size=N)
    columns = Protected(x[:, None], ("x",), ("x",))
    samples = [sample_of(s * x + rng.normal(size=N), columns) for s in (1, -1)]
    up, down = (signed(answer(sample, questions_of(("x",), ("x",)))[-1]) for sample in samples)
    assert up.statistic > 3.0 and down.statistic < -3.0


def test_one_spread_for_all_rows_is_the_f_test_of_a_linear_model(rng: np.random.Generator) -> None:
    group = rng.integers(3, size=N)
    X = np.column_stack([group == 1, group == 2, rng.normal(size=N)]).astype(float)
    y = rng.normal(size=N) + 0.3 * X[:, 0]
    columns = Protected(X, ("g[1]", "g[2]", "age"), ("g", "g", "age"))
    joint, by_source, _ = score_tests(y, columns, pooled=True)

    def rss(A: np.ndarray) -> float:
        A = np.column_stack([np.ones(N), A])
        return float(np.sum((y - A @ np.linalg.lstsq(A, y, rcond=None)[0]) ** 2))

    for test, others in zip((joint, *by_source), (X[:, :0], X[:, 2:], X[:, :2]), strict=True):
        q = 3 - others.shape[1]
        F = (rss(others) - rss(X)) / q / (rss(X) / (N - 4))
        assert test.statistic / q == pytest.approx(F, rel=1e-8)
        assert test.p_value == pytest.approx(stats.f.sf(F, q, N - 4), rel=1e-8)


def test_clusters_that_share_a_part_widen_the_pooled_test() -> None:
    """A column and predictions that are constant in clusters: the clusters are what there is to count."""
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(40), 10)
    rejected = []
    for _ in range(300):
        x, y = rng.normal(size=40)[cluster], rng.normal(size=40)[cluster] + 0.1 * rng.normal(size=400)
        columns = Protected(x[:, None], ("x",), ("x",), cluster=cluster)
        rejected.append(score_tests(y, columns, pooled=True)[0].p_value < 0.05)
    assert np.mean(rejected) < 0.09


def test_a_joint_score_statistic_is_chi_squared(rng: np.random.Generator) -> None:
    x = rng.normal(size=N)
    joint = score_tests(rng.normal(size=N) - x, Protected(x[:, None], ("x",), ("x",)))[0]
    assert joint.p_value == pytest.approx(stats.chi2.sf(joint.statistic, joint.df))


def test_score_tests_skip_what_the_other_columns_determine(rng: np.random.Generator) -> None:
    x = rng.normal(size=N)
    columns = Protected(np.column_stack([x, 2.0 * x, np.ones(N)]), ("a", "b", "c"), ("a", "b", "c"))
    joint, _, single = score_tests(x + rng.normal(size=N), columns)
    assert joint.df == 1.0 and all(math.isnan(test.p_value) for test in single)


def test_a_score_test_of_few_rows_is_calibrated_where_wald_is_not() -> None:
    """Two rows in a group: their residuals say nothing of their error, those of all rows do."""
    rng, n = np.random.default_rng(0), 60
    x = (np.arange(n) < 2).astype(float)
    columns = Protected(x[:, None], ("x",), ("x",))
    p = [score_tests(rng.normal(size=n), columns)[0].p_value for _ in range(400)]
    assert np.mean(np.array(p) < 0.05) < 0.09


# --------------------------------------------------------------------------------------------- associations
def test_estimates_are_multiple_correlations(rng: np.random.Generator) -> None:
    X = np.column_stack([rng.normal(size=N), rng.random(N) < 0.2, 1e-6 * rng.normal(size=N)]).astype(float)
    y, w = X[:, 0] + rng.normal(size=N), rng.uniform(0.2, 2.0, N)
    whole, single = association(y, X, weight=w)
    share = w / w.sum()
    C = np.cov(np.column_stack([y, X]), rowvar=False, aweights=share)
    R2 = C[0, 1:] @ np.linalg.solve(C[1:, 1:], C[1:, 0]) / C[0, 0]
    assert whole.sample == pytest.approx(math.sqrt(R2), rel=1e-8) and whole.rank == 3
    scale = np.sqrt(np.diag(C))
    np.testing.assert_allclose([s.estimate for s in single], np.abs(C[0, 1:]) / scale[0] / scale[1:], rtol=1e-8)
    assert unit_correlations(y[:, None], X, w)[0] == pytest.approx(whole.sample, rel=1e-8)


def test_bounds_are_in_order(rng: np.random.Generator) -> None:
    X = rng.normal(size=(N, 1))
    for slope in (0.0, 0.1, 1.0, 30.0):
        y = slope * X[:, 0] + rng.normal(size=N)
        low, high = (association(y, X, confidence=c)[0] for c in (0.9, 0.99))
        assert low.estimate <= low.upper <= high.upper <= 1.0
        assert association(y, X)[1][0].upper == pytest.approx(association(y, X)[0].upper)
        assert association(-3.0 * y + 7.0, 1e5 * X - 2.0)[0].upper == pytest.approx(association(y, X)[0].upper, 1e-6)
        assert association(y, X, weight=np.full(N, 4.0))[0].upper == pytest.approx(association(y, X)[0].upper, 1e-9)
        each_row = association(y, X, cluster=np.arange(N))[0]
        assert each_row.upper == pytest.approx(association(y, X)[0].upper, rel=1e-9)


def test_a_sample_that_lies_at_zero_does_not_prove_zero() -> None:
    x = np.tile([-1.0, 1.0], 200)
    found = association(np.repeat([-1.0, 1.0], 200), x[:, None])[0]
    error = 398**-0.5 / (1.0 - 1.0 / 400.0)  # each row has a leverage of 1/400
    assert found.estimate == 0.0 and found.upper == pytest.approx(stats.t.ppf(0.95, 398) * error, rel=1e-9)


def test_bounds_of_many_rows_do_not_depend_on_their_blocks() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 4))
    y = 0.1 * X[:, 0] + rng.normal(size=60_000)
    whole, single = association(y, X)
    clustered = association(y, X, cluster=np.arange(60_000))  # one block
    assert whole.upper == pytest.approx(clustered[0].upper, rel=1e-9)
    np.testing.assert_allclose([s.upper for s in single], [s.upper for s in clustered[1]], rtol=1e-9)


def test_constants_are_bounded_by_nothing(rng: np.random.Generator) -> None:
    X = np.column_stack([rng.normal(size=N), np.ones(N)])
    whole, (_, constant) = association(rng.normal(size=N), X)
    assert whole.rank == 1 and math.isnan(constant.upper)
    assert association(np.full(N, 0.3), X)[0].upper == 0.0


def test_predictions_that_hardly_vary_are_constant_or_they_are_not(rng: np.random.Generator) -> None:
    found = sq.audit(0.3 + 1e-13 * rng.normal(size=N), rng.choice(["a", "b"], N))
    assert not found.evaluations or found.certificate.correlation_upper > 0.05


def coverage(n: int, p: int, R: float, draws: int, seed: int = 0) -> float:
    rng = np.random.default_rng(seed)
    covered = 0
    for _ in range(draws):
        X = rng.normal(size=(n, p))
        y = R * X[:, 0] + math.sqrt(1.0 - R * R) * rng.normal(size=n)
        covered += association(y, X)[0].upper >= R
    return covered / draws


@pytest.mark.parametrize("R", [0.1, 0.3, 0.6])
def test_bounds_cover(R: float) -> None:
    assert coverage(200, 3, R, 300) >= 0.92


@pytest.mark.parametrize(("n", "p", "R"), [(200, 50, 0.3), (100, 10, 0.3)])
def test_bounds_cover_with_many_columns(n: int, p: int, R: float) -> None:
    assert coverage(n, p, R, 3000 // p) >= 0.92


# --------------------------------------------------------------------------------------------- certificate
def test_bounds_of_effects_are_those_of_the_fit(rng: np.random.Generator) -> None:
    sex, age = rng.integers(2, size=500), rng.normal(50.0, 10.0, 500)
    p = 1.0 / (1.0 + np.exp(-rng.normal(size=500) - 0.3 * sex))
    found = sq.audit(p, np.column_stack([sex, age]))
    z = critical_value(497.0, 0.9)  # one side of 95 %
    for effect, bound, unit in zip(
        found.evaluations[0].effects, found.certificate.columns, (1.0, age.std()), strict=True
    ):
        assert bound.effect == pytest.approx(math.exp(abs(effect.estimate) * unit), rel=1e-9)
        wanted = math.exp((abs(effect.estimate) + z * effect.std_error) * unit)
        assert bound.effect_upper == pytest.approx(wanted, rel=1e-9)
    assert [c.n_group for c in found.certificate.columns] == [sex.sum(), None]
    assert found.certificate.effect_kind == "odds ratio" and (found.certificate.n, found.certificate.p) == (500, 2)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("gaussian", "difference (sd of predictions)"), ("poisson", "rate ratio"), ("binomial", "odds ratio")],
)
def test_effects_are_named_by_their_family(rng: np.random.Generator, family: str, kind: str) -> None:
    found = sq.audit(rng.uniform(0.1, 0.9, 300), rng.normal(size=300), family).certificate
    assert found.effect_kind == kind and kind in str(found) and "n = 300, p = 1" in str(found)
    assert math.isfinite(found.columns[0].effect_upper)


def test_paper_mode_still_has_robust_bounds(rng: np.random.Generator) -> None:
    p, x = rng.uniform(0.1, 0.9, 300), rng.normal(size=300)
    paper, robust = (sq.audit(p, x, vcov=vcov) for vcov in ("model", "HC3"))
    assert paper.certificate == robust.certificate
    assert paper.evaluations[0].effects[0].std_error > 1.5 * robust.evaluations[0].effects[0].std_error


def test_units_of_weighted_audits_are_weighted(rng: np.random.Generator) -> None:
    x, y, weight = rng.normal(size=200) ** 3, rng.normal(size=200), rng.integers(1, 6, 200)
    weighted = sq.audit(y, x, sample_weight=weight.astype(float)).certificate.columns[0]
    repeated = sq.audit(np.repeat(y, weight), np.repeat(x, weight)).certificate.columns[0]
    assert weighted.effect == pytest.approx(repeated.effect, rel=1e-9)


# ------------------------------------------------------------------------------------------------- verdict
def evaluation(p: float, name: str = "glm", **by_source: float) -> Evaluation:
    tests = tuple(Test(source, 1.0, 1.0, value, "Wald") for source, value in by_source.items())
    return Evaluation(
        name, f"{name} model", (Effect("x", "x", 1, 1, 1, p, 0, 2),), Test("all", 1.0, 1.0, p, "Wald"), tests
    )


def certificate(upper: float, n: int = 1000, estimate: float = 0.01) -> Certificate:
    return Certificate(n, 2, 0.95, estimate, upper, "odds ratio", ())


def verdict(
    *evaluations: Evaluation, upper: float = 0.05, confidence: float = 0.95, tolerance: float = 0.0
) -> tuple[str, str]:
    found = judge(evaluations, certificate(upper), confidence=confidence, limits=Limits(tolerance))
    return str(found.verdict), f"{found.reason} {found.statistics}"


def test_verdicts() -> None:
    assert verdict(evaluation(0.01))[0] == "leak"
    assert verdict(evaluation(0.2))[0] == "no leak found"
    assert verdict(evaluation(0.2), upper=0.11)[0] == "inconclusive: n too small"
    assert verdict(evaluation(math.nan))[0] == "inconclusive: n too small"


def test_the_level_decides() -> None:
    assert verdict(evaluation(0.03))[0] == "leak" and verdict(evaluation(0.03), confidence=0.99)[0] == "no leak found"


def test_a_p_value_on_the_line_is_judged_alike_at_every_level() -> None:
    assert verdict(evaluation(0.05), confidence=0.95)[0] == verdict(evaluation(0.1), confidence=0.9)[0]


def test_several_models_share_the_error_rate() -> None:
    assert verdict(evaluation(0.03), evaluation(0.5, "forest"))[0] == "no leak found"
    assert verdict(evaluation(0.02), evaluation(0.5, "forest"))[0] == "leak"
    assert verdict(evaluation(0.03), evaluation(math.nan, "forest"))[0] == "leak"


def test_what_is_certainly_small_is_a_trace() -> None:
    assert verdict(evaluation(1e-9), upper=0.03, tolerance=0.05)[0] == "trace"
    assert verdict(evaluation(1e-9), upper=0.06, tolerance=0.05)[0] == "leak"
    assert verdict(evaluation(1e-9, "forest"), upper=0.03, tolerance=0.05)[0] == "leak"
    assert verdict(evaluation(0.5), upper=0.2, tolerance=0.25)[0] == "no leak found"


def test_a_trace_does_not_hide_a_leak() -> None:
    both = (evaluation(1e-9), evaluation(0.005, "forest"))
    assert verdict(*both, upper=0.03, tolerance=0.05)[0] == "leak"


def test_reasons_have_the_numbers() -> None:
    leak = verdict(evaluation(3e-8, sex=1e-9, race=0.4))[1]
    assert leak.startswith("The predictions depend on sex. Effects on means: p < 0.001.") and "at most 0.050" in leak
    short = verdict(evaluation(0.2), upper=0.2)[1]
    assert "1000 rows" in short and "about 4000" in short  # (0.2 / 0.1)^2 times as many


def test_a_leak_names_what_was_tested_where_no_column_stands_out() -> None:
    assert (
        "depend on sex and race taken together; no single column stands out. Effects on means: p = 0.021."
        in verdict(evaluation(0.02, sex=0.06, race=0.07))[1]
    )


def test_a_column_that_stands_out_counts_where_the_joint_test_does_not() -> None:
    found, reason = verdict(evaluation(0.2, a=1e-5, b=0.4, c=0.9, d=0.8))
    assert found == "leak" and "depend on a. " in reason


def test_small_groups_are_named() -> None:
    rng = np.random.default_rng(0)
    group = np.where(np.arange(3000) < 20, "rare", np.where(np.arange(3000) % 2 > 0, "a", "b"))
    found = sq.audit(rng.normal(size=3000), group)
    assert found.verdict == "no leak found" and "x0: rare (20 rows)" in found.reason


@pytest.mark.parametrize("row", [0, 7])
def test_an_extreme_row_is_seen_among_many(rng: np.random.Generator, row: int) -> None:
    """Also where it is one of the rows that are looked at first."""
    x = np.tile([0.0, 1.0], 100_000)
    y = rng.normal(size=200_000)
    columns = Protected(x[:, None], ("x",), ("x",))
    assert largest_score(y, columns) < 0.2
    y[row] = 1e5
    assert largest_score(y, columns) > 0.99
