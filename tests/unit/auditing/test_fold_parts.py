"""Parts of the correction for folds, and of the verdict, against their formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import special

from setsquare.auditing.certificate import ColumnBound
from setsquare.auditing.evaluations.records import Effect
from setsquare.auditing.fold_dependence import Mutual, _correct_effect, _largest, _widen
from setsquare.auditing.verdict import _certain


def test_an_interval_grows_by_the_same_share_on_both_sides() -> None:
    effect = Effect("sex[m]", "sex", 0.5, 0.1, 5.0, 1e-4, 0.3, 0.8)
    found = _correct_effect(effect, 0.75)
    assert found.estimate == 0.5 and found.std_error == pytest.approx(0.125) and found.statistic == pytest.approx(4.0)
    assert found.ci_low == pytest.approx(0.25) and found.ci_high == pytest.approx(0.875)
    assert found.p_value > effect.p_value and _correct_effect(effect, 0.0).ci_high == pytest.approx(0.8)


def test_a_term_of_a_class_has_the_singular_value_of_its_longest_name() -> None:
    mutual = Mutual(np.array([0.9]), {}, {"a": 0.1, "a (b": 0.2}, {}, np.array([0.0]))
    assert _largest(mutual, "a") == 0.1 and _largest(mutual, "a (x)") == 0.1
    assert _largest(mutual, "a (b (x)") == 0.2 and _largest(mutual, "ab") == 0.9


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_group_differs_for_certain_beyond_a_quantile_for_all_groups(count: int) -> None:
    z = -special.ndtri(0.05 / (2.0 * max(count, 1)))
    groups: list[Any] = [SimpleNamespace(correlation=0.1 * z * part, error=0.1) for part in (0.99, 1.01)]
    certificate: Any = SimpleNamespace(groups=(None,) * count)
    assert _certain(groups, certificate, 0.05) == groups[1:]
    assert math.isfinite(z)


@dataclass(frozen=True)
class Bounds:
    """The parts of a certificate that grow."""

    correlation: float
    correlation_upper: float
    columns: tuple[ColumnBound, ...]
    references: tuple[ColumnBound, ...]
    is_ratio: bool


@pytest.mark.parametrize("ratio", [False, True])
def test_bounds_grow_with_the_errors_of_their_columns_and_a_reference_by_the_most(ratio: bool) -> None:
    mutual = Mutual(np.array([0.75]), {}, {"sex[m]": 0.75}, {"sex[m]": math.sqrt(0.44)}, np.array([0.0]))
    both = [ColumnBound(term, "sex", 0.3, 0.4, "group", 1.5, 2.0, 10, 0.05) for term in ("sex[m]", "sex[f]")]
    given: Any = Bounds(0.3, 0.4, (both[0],), (both[1],), ratio)
    found = _widen(given, mutual)
    assert found.correlation_upper == pytest.approx(0.3 + 0.1 * 1.25)
    for one, alone, own in ((found.columns[0], 1.2, 1.25), (found.references[0], math.sqrt(2.0), math.sqrt(2.0))):
        assert one.correlation_upper == pytest.approx(0.3 + 0.1 * alone) and one.error == pytest.approx(0.05 * alone)
        assert one.effect_upper == pytest.approx(1.5 * (2.0 / 1.5) ** own if ratio else 1.5 + 0.5 * own)
