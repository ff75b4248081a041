"""Rows without weight, tests without columns, and controls that are not finite."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.auditing.evaluations.records import wald
from setsquare.auditing.groups.partitions import partition_rows
from setsquare.errors import InputError


def people(n: int = 150) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"sex": np.tile(["f", "m", "m"], n // 3), "age": rng.normal(40.0, 9.0, n)})
    return table.assign(p=1.0 / (1.0 + np.exp(-rng.normal(size=n) - 0.02 * table["age"])), w=rng.choice([1.0, 2.0], n))


def test_a_row_without_weight_is_no_row_of_an_audit() -> None:
    table = people()
    extra = table[:40].assign(w=0.0, p=0.999, age=99.0)
    both = pd.concat([table, extra], ignore_index=True)
    kept, more = (sq.audit(t["p"], t[["sex", "age"]], sample_weight=t["w"]) for t in (table, both))
    for one, other in zip(kept.evaluations, more.evaluations, strict=True):
        assert one.joint.p_value == pytest.approx(other.joint.p_value, rel=1e-6)
        assert [t.p_value for t in one.by_source] == pytest.approx([t.p_value for t in other.by_source], rel=1e-6)
    assert kept.p_value == pytest.approx(more.p_value, rel=1e-6)


def test_a_test_of_no_column_has_no_degrees_of_freedom() -> None:
    found = wald("x", np.zeros(0), np.zeros((0, 0)), math.inf)
    assert found.df == 0.0 and math.isnan(found.p_value) and found.method == "nothing to test"


def test_controls_are_finite() -> None:
    table = people()
    with pytest.raises(InputError, match="age"):
        sq.audit(table["p"], table["sex"], given=table[["age"]].mask(table["age"] > 50.0, np.inf))


def test_a_reference_group_belongs_to_a_column() -> None:
    with pytest.raises(InputError, match="names the column 'race'"):
        partition_rows(people()[["sex"]], reference={"race": "a"})
    (found,) = partition_rows(people()[["sex"]], reference={"sex": "f"})
    assert found.labels == ("f", "m")
