"""Both sides of conditions of audits: limits, groups, states of a monitor, sentences and marks of a figure."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.linear_model import LogisticRegression

import setsquare as sq
from setsquare.auditing import Limits
from setsquare.auditing.documents.group_sections import _mark
from setsquare.auditing.documents.sections import certificate
from setsquare.auditing.evaluations import run
from setsquare.auditing.evaluations.independence import _kernel_tests
from setsquare.auditing.evaluations.records import Evaluation, Test
from setsquare.auditing.evaluations.shape import plan_shape
from setsquare.auditing.evaluations.unit_glms import _inverses
from setsquare.auditing.fold_dependence import _correct
from setsquare.auditing.groups.critical_values import _draw_largest
from setsquare.auditing.groups.partitions import partition_column
from setsquare.auditing.held_out import determines
from setsquare.auditing.monitoring import state
from setsquare.auditing.probes import models
from setsquare.auditing.verdict import _nothing_found, _other
from setsquare.errors import InputError
from setsquare.projection.moments import Moments
from setsquare.tables.column import Levels, Numbers


@pytest.mark.parametrize("share", [0.9, -0.9])
def test_one_difference_of_dependent_numbers_has_a_variance_of_one(share):
    D = np.array([[4.0, 2.0 * share], [2.0 * share, 1.0]])
    drawn = _draw_largest(D, np.array([0]), np.array([1]), np.random.default_rng(0), 20_000)
    assert np.mean(drawn**2) == pytest.approx(1.0, rel=0.05)
    assert np.quantile(drawn, 0.95) == pytest.approx(1.96, rel=0.03)


def test_marks_have_five_digits():
    spread = SimpleNamespace(
        mean=SimpleNamespace(estimate=0.1, ci_low=0.0, ci_high=0.2), quantiles=(0.1, 0.2), histogram=(0.1234567, 1.0)
    )
    assert _mark("left", spread) == {
        "side": "left",
        "mean": 0.1,
        "low": 0.0,
        "high": 0.2,
        "quantiles": [0.1, 0.2],
        "histogram": [0.12346, 1.0],
    }


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"correlation": 1.0}, "tolerance is a correlation between 0 and 1, not 1.0"),
        ({"shape": 1.0}, "The limit for the shape is a correlation between 0 and 1, not 1.0"),
        ({"shape": -0.1}, "The limit for the shape is a correlation between 0 and 1, not -0.1"),
        ({"difference": -0.1}, "must be 0 or more standard deviations, not -0.1"),
        ({"difference": np.nan}, "must be 0 or more standard deviations, not nan"),
    ],
)
def test_limits_outside_of_their_range(limits, words):
    y, x = np.linspace(0.1, 0.9, 40), np.arange(40) % 2.0
    with pytest.raises(InputError, match=words):
        sq.audit(y, x, tolerance=Limits(**limits))
    sq.audit(y, x, tolerance=Limits(correlation=0.0, difference=0.0, shape=0.0), evaluation="glm")


def test_groups_of_a_monitor_by_value():
    by_value = state.Grouping("x", ("0", "1"), (), "0")
    assert by_value.codes(Numbers(np.array([0.0, np.nan, 7.0, 1.0]))).tolist() == [0, -1, -2, 1]
    by_band = state.Grouping("x", ("low", "high"), (5.0,), "low")
    assert by_band.codes(Numbers(np.array([0.0, np.nan, 7.0, 5.0]))).tolist() == [0, -1, 1, 1]
    by_level = state.Grouping("x", ("a", "b"), (), "a")
    assert by_level.codes(Levels(np.array([1, 0, -1, 2]), ("b", "a", "c"))).tolist() == [0, 1, -1, -2]


@pytest.mark.parametrize("wrong", [{}, {"format": "another"}, {"version": 0}])
def test_a_state_of_another_kind_or_version_is_refused(tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(state, "_read", lambda tree: "read")
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"format": state.FORMAT, "version": state.VERSION} | wrong))
    if not wrong:
        assert state.load_state(path) == "read"
        return
    with pytest.raises(InputError, match="is not the state of a monitor"):
        state.load_state(path)


def test_levels_without_a_row_make_no_group():
    column = Levels(np.array([0, 2, -1, 0]), ("a", "b", "c"))
    found = partition_column("x", column, 4)
    assert found.labels == ("a", "c") and found.codes.tolist() == [0, 1, -1, 0]
    found = partition_column("x", column, 4, missing_group=True)
    assert found.labels == ("a", "c", "missing") and found.codes.tolist() == [0, 1, 2, 0]


def test_features_do_not_determine_a_constant_column():
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(50, 2))
    assert determines(Z, np.ones((50, 1)), rng) is False
    assert determines(Z, np.column_stack([np.ones(50), Z[:, 0]]), rng) is True


def test_dependences_that_are_not_of_the_means():
    test = SimpleNamespace(name="all", sources=("age",))
    members: Any = [SimpleNamespace(test=test, evaluation=SimpleNamespace(by_source=(), title="random forest"))]
    assert _other("curvature", members) == "they follow age along a curve"
    assert _other("combinations", members) == "they depend on combinations of age"
    assert _other("spread", members) == "their spread differs with age"
    assert _other("forest", members) == "they depend on age (random forest)"


@pytest.mark.parametrize(
    ("vcov", "names", "codes"),
    [
        ("HC1", ("glm", "tensor"), ["effect-map-errors"]),
        ("HC1", ("glm",), []),
        ("HC3", ("glm", "tensor"), []),
        ("model", ("glm", "shape"), ["model-based-errors"]),
    ],
)
def test_what_tests_cannot_show(monkeypatch, vcov, names, codes):
    monkeypatch.setattr(run, "is_tautology", lambda bounds: False)
    evaluations: Any = tuple(SimpleNamespace(name=name) for name in names)
    settings: Any = SimpleNamespace(vcov=vcov, confidence=0.95, n_permutations=999)
    protected: Any = SimpleNamespace(cluster=None, weight=None)
    found = run._cautions(evaluations, protected, None, settings)  # type: ignore[arg-type]
    assert [note.code for note in found] == codes
    assert all("{" not in str(note) for note in found)


def test_one_matrix_that_is_not_finite_has_no_inverse():
    H = np.stack([np.array([[np.nan, 0.0], [0.0, 1.0]]), np.diag([2.0, 4.0]), np.diag([2.0, 0.0])])
    np.testing.assert_allclose(_inverses(H), [np.zeros((2, 2)), np.diag([0.5, 0.25]), np.diag([0.5, 0.0])])


def test_a_certificate_of_decisions_is_not_one_of_probabilities():
    rng = np.random.default_rng(0)
    x = np.arange(300) % 2.0
    Z = rng.normal(size=(300, 4)) + 0.5 * x[:, None]
    y = (Z.sum(axis=1) + rng.normal(size=300) > 1.0).astype(int)
    model = sq.OrthogonalGLMClassifier(threshold=0.5).fit(Z, y, protected=x)
    section = certificate(model.solution_.certificate)
    assert section is not None
    assert "The decisions are orthogonal to the protected columns there, up to smoothing" in str(section)


@pytest.mark.parametrize(
    ("upper", "estimate", "words"),
    [
        (0.3, 0.02, "cannot be ruled out with 100 rows; ruling out 0.1 takes about 900 rows."),
        (0.3, 0.08, "cannot be ruled out with 100 rows."),
        (0.1, 0.02, "a correlation above 0.100 is ruled out with 95 % confidence."),
    ],
)
def test_rows_that_would_rule_out_the_limit_grow_with_its_square(upper, estimate, words):
    found: Any = SimpleNamespace(correlation_upper=upper, correlation=estimate, n=100, confidence=0.95, groups=())
    assert _nothing_found("p = 0.3", found, 0.1)[1].endswith(words)


def test_every_permutation_counts_and_moves_rows_and_columns():
    """Points on a circle have the same distances after a turn, so the p-value is 1."""
    angle = 2.0 * np.pi * np.arange(12) / 12
    turned: Any = SimpleNamespace(permutation=lambda n: np.roll(np.arange(n), 1))
    Y = np.column_stack([np.cos(angle), np.sin(angle)])
    (found,) = _kernel_tests(Y, [Y], 1, pdist, turned, 19)
    assert found.p_value == 1.0 and found.n_permutations == 19


@pytest.mark.parametrize(("counts", "can_stop"), [((10, 12), True), ((9, 12), False)])
def test_a_probe_stops_early_if_every_level_has_ten_rows(monkeypatch, counts, can_stop):
    asked = []

    def model(kind: Any, n_levels: int, units: Any, seed: int, can_stop: bool) -> Any:
        asked.append(can_stop)
        return LogisticRegression()

    monkeypatch.setattr(models, "_model", model)
    target = np.repeat([0.0, 1.0], counts)
    A = np.random.default_rng(0).normal(size=(len(target), 2))
    scores, n_warnings = models.recover("boosting", A, target, 2, A[:3], 0, np.arange(len(target)))  # type: ignore[arg-type]
    assert asked == [can_stop] and scores.shape == (3, 2) and n_warnings == 0


def test_bounds_of_tests_grow_with_the_dependence_of_folds():
    given = Test("x", 1.0, 1.0, 0.5, "robust", upper=0.3)
    mutual: Any = SimpleNamespace(concerning=lambda evaluation, test: np.array([0.75]))
    found = _correct(Evaluation("glm", "", (), given), mutual)
    assert found.joint.upper == pytest.approx(0.375)
    assert _correct(Evaluation("glm", "", (), replace(given, upper=0.9)), mutual).joint.upper == 1.0
    assert _correct(Evaluation("glm", "", (), replace(given, upper=None)), mutual).joint.upper is None


@pytest.mark.parametrize("error", [-1e-14, 0.0, 1e-14])
def test_rounding_does_not_decide_whether_a_combination_of_twenty_rows_is_tested(error):
    """Numbers of rows are computed from moments."""
    X = np.repeat([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [93, 57, 43, 20], axis=0)
    S = np.cov(X.T, bias=True) + error * np.array([[0.0, 1.0], [1.0, 0.0]])
    sample = SimpleNamespace(n_columns=2, n_rows=len(X), moments=Moments(1.0, X.mean(axis=0), S))
    ends, groups, sources = (np.zeros(2), np.ones(2)), (True, True), ("sex", "race")
    assert plan_shape(sample, ends, groups, sources).products == ((0, 1),)
    fewer = SimpleNamespace(n_columns=2, n_rows=len(X) - 1, moments=sample.moments)
    assert plan_shape(fewer, ends, groups, sources).products == ()
