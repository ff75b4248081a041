"""Small parts of audits at the ends of their cases."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist

import setsquare as sq
from setsquare.auditing import held_out
from setsquare.auditing.certificate import ColumnBound
from setsquare.auditing.comparison.metric import Interval
from setsquare.auditing.comparison.performance import Score
from setsquare.auditing.documents.sections import performance
from setsquare.auditing.evaluations.independence import _kernel_tests
from setsquare.auditing.evaluations.relu import _whitening
from setsquare.auditing.evaluations.relu_descent import _slope
from setsquare.auditing.evaluations.score import largest_score
from setsquare.auditing.evaluations.tensor import evaluate_tensor
from setsquare.auditing.evaluations.unit_glms import _newton
from setsquare.auditing.protected import Protected
from setsquare.auditing.verdict import _p, _round_up
from setsquare.notes import Note


def test_p_values_have_two_digits_and_two_decimals_from_a_tenth_on() -> None:
    shown = [_p(p) for p in (0.0, 0.00099, 0.001, 0.01234, 0.0999, 0.1, 0.104, 0.5, 1.0)]
    expected = ["p < 0.001", "p < 0.001", "p = 0.001", "p = 0.012", "p = 0.1", "p = 0.10", "p = 0.10", "p = 0.50"]
    assert shown == [*expected, "p = 1.00"]


def test_units_of_constant_columns_have_no_numbers_and_keep_the_notes() -> None:
    note = Note("few", "Few rows.")
    constant = Protected(np.ones((20, 1)), ("x",), ("x",), notes=(note,))
    found, effects = evaluate_tensor(np.arange(40.0).reshape(20, 2), constant, (2,), rng=np.random.default_rng(0))
    assert found.notes == (note,) and np.isnan(found.joint.p_value) and np.isnan(effects.correlation).all()


def test_a_unit_whose_loss_no_step_lowers_stays_where_it_is() -> None:
    Y, D, w = np.array([[1.0, 1.0], [3.0, 3.0]]), np.ones((2, 1)), np.array([0.5, 0.5])

    def row_losses(Y: Any, eta: Any) -> Any:
        gap = eta - Y
        return 0.5 * gap**2, gap * [-1.0, 1.0], np.ones_like(gap)  # the first unit has a wrong slope

    glm: Any = SimpleNamespace(row_losses=row_losses)
    pairs = (np.array([0]), np.array([0]))
    found = _newton(np.array([[5.0, 5.0]]), Y, D, w, glm, np.ones((1, 2)), pairs)
    np.testing.assert_allclose(found, [[5.0, 2.0]], atol=1e-6)
    assert found[0, 0] == 5.0


@pytest.mark.parametrize(("width", "compared"), [(2, 20), (7, 21), (8, 24), (9, 20)])
def test_rows_that_are_compared_are_three_per_feature_unless_there_are_many(
    width: int, compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_out, "COMPARED", 20)
    monkeypatch.setattr(held_out, "WIDE", 8)
    drawn = []

    def choice(n: int, m: int, *, replace: bool) -> Any:
        drawn.append((n, m, replace))
        return np.random.default_rng(0).choice(n, m, replace=replace)

    rng: Any = SimpleNamespace(choice=choice)
    Z = np.random.default_rng(1).normal(size=(100, width))
    x = np.random.default_rng(2).normal(size=(100, 1))
    assert not held_out.determines(Z, x, rng) and drawn == [(100, compared, False)]
    assert held_out.determines(np.column_stack([Z[:, 1:], 3.0 * x]), x, rng)


def test_bounds_on_correlations_are_at_most_one() -> None:
    bound = ColumnBound("x", "x", 0.9, 0.95, "group", 1.0, 2.0, 10, 0.1, 0.5, 0.95)
    found = bound.widened(1.3, 3.0, 2.0)
    assert found.correlation_upper == 1.0 and found.effect_upper == 3.0 and found.error == 0.2
    assert found.difference_upper == pytest.approx(1.0) and bound.widened(0.97, 3.0, 2.0).correlation_upper == 0.97
    apart = replace(bound, correlation_upper=0.0).widened(0.5, 3.0, 2.0)
    assert apart.difference_upper == 0.95 and replace(bound, difference_upper=None).widened(1.0, 1.0, 1.0)


def test_more_columns_than_cells_have_an_orthonormal_basis_without_an_intercept() -> None:
    points = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]])
    weight = np.array([0.25, 0.75])
    mean, T = _whitening(points, points, weight, weight, False)
    assert not mean.any() and T.shape == (3, 2)
    np.testing.assert_allclose((points @ T).T * weight @ (points @ T), np.eye(2), atol=1e-12)


def test_differences_of_performance_are_those_to_the_first_model() -> None:
    def score(value: float, *difference: float) -> Score:
        return Score("auc", Interval(value, 0.01, value - 0.02, value + 0.02), Interval(*difference), True)

    scores = {"plain": [score(0.8, 0.0)], "other": [score(0.7, -0.1, 0.05, -0.2, -0.01, 0.04)]}
    bounds = SimpleNamespace(certificate=SimpleNamespace(correlation=0.1, correlation_upper=0.2))
    audits: Any = {"plain": bounds, "other": bounds}
    found: Any = performance(audits, scores)
    (rows,) = [table["rows"] for table in found["tables"]]
    assert [row[:3] for row in rows] == [["AUC", "plain", 0.8], ["AUC", "other", 0.7]]
    assert rows[0][5:] == [None] * 4 and rows[1][5:] == [-0.1, -0.2, -0.01, 0.04]
    assert performance(audits, {"plain": scores["plain"]}) is None


def test_numbers_of_rows_are_rounded_up_to_two_digits() -> None:
    asked = (1.0, 7.2, 10.0, 99.5, 100.0, 101.0, 995.0, 4321.0, 123_456.0)
    assert [_round_up(n) for n in asked] == [1, 8, 10, 100, 100, 110, 1000, 4400, 130_000]


def test_scores_that_one_group_determines_rest_on_it_alone() -> None:
    rng = np.random.default_rng(5)
    X = np.column_stack([np.arange(90) % 3 == 1, np.arange(90) % 3 == 2, rng.normal(size=90)]).astype(float)
    X[np.arange(90) % 3 == 2, 2] = 0.37
    y = np.where(np.arange(90) % 3 == 2, np.where(np.arange(90) % 2, 1.0, -1.0), 0.0)
    names = ("b", "c", "x")
    assert largest_score(y, Protected(X, names, names)) == 1.0
    assert largest_score(y + rng.normal(size=90), Protected(X, names, names)) < 0.5


def test_a_feature_of_few_rows_is_a_group_only_with_two_levels() -> None:
    columns = {levels: np.arange(20) % levels for levels in (1, 2, 3)}
    found = {levels: next(held_out._columns(c[:, None], 20))[0] is not None for levels, c in columns.items()}
    assert found == {1: False, 2: True, 3: False}


def test_the_distance_correlation_of_a_column_with_itself_is_one() -> None:
    Y = np.random.default_rng(0).normal(scale=1e-3, size=(20, 1))
    found = _kernel_tests(Y, [Y], 2, pdist, np.random.default_rng(1), 5)
    assert found[0].statistic == pytest.approx(1.0, rel=1e-12)


def test_a_separated_coefficient_is_infinite_however_small_it_is_now() -> None:
    y = np.repeat([0.0, 1.0], 30)
    size = 1e4 * (2.0 + np.random.default_rng(2).random((60, 1)))  # the coefficient of such numbers is below 1
    found = sq.audit(y, size * (2.0 * y[:, None] - 1.0), family="binomial")
    assert found.evaluations[0].effects[0].estimate == np.inf


def test_a_unit_that_is_never_active_has_no_slope() -> None:
    y, w = np.array([1.0, 2.0]), np.ones(2)
    assert [_slope(np.array(r), y, w) for r in ([0.0, 0.0], [1.0, 2.0], [-1.0, 0.0])] == [0.0, 1.0, 0.0]
