"""Small parts of audits at the ends of their cases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from setsquare.auditing import held_out
from setsquare.auditing.evaluations.tensor import evaluate_tensor
from setsquare.auditing.evaluations.unit_glms import _newton
from setsquare.auditing.protected import Protected
from setsquare.auditing.verdict import _p
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
