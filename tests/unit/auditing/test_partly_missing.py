"""Audit with protected columns that are partly missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare._typing import Array
from setsquare.errors import InputError


def _draw(seed: int, n: int = 3000, leak: float = 0.0) -> tuple[Array, Array, Array]:
    """Predictions, protected column with 80 % missing, and outcome, which follows the column.

    Rows whose prediction and outcome agree have the column more often, so that it follows the predictions in them.
    """
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2, n)
    p = 1.0 / (1.0 + np.exp(-rng.normal(size=n) - leak * x))
    y = (rng.random(n) < 0.25 + 0.5 * x).astype(int)
    known = rng.random(n) < np.where(y == (p > 0.5), 0.35, 0.05)
    return p, np.where(known, x, np.nan), y


def test_rows_that_have_the_column_stand_for_all_rows() -> None:
    rejected = dict.fromkeys(("drop", "model"), 0)
    for seed in range(20):
        p, x, y = _draw(seed)
        for rule in rejected:
            rejected[rule] += sq.audit(p, x, missing=rule, outcome=y).table()["p_value"][0] < 0.05
    assert rejected["drop"] == 20
    assert rejected["model"] <= 4  # 1 expected at the nominal 5 %


def test_a_leak_is_found_and_the_assumption_stated() -> None:
    p, x, y = _draw(0, leak=1.0)
    result = sq.audit(p, x, missing="model", outcome=y)
    assert result.is_leak
    (note,) = [note for note in result.notes if note.code == "missing-modelled"]
    assert str(note).endswith("missing at random given the predictions, the outcome.")
    assert f"{int(np.isnan(x).sum())} of 3000 rows" in str(note)


def test_complete_columns_are_known_and_nothing_changes_without_gaps() -> None:
    p, x, _ = _draw(0)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": x, "sex": rng.choice(["f", "m"], size=len(x))})
    result = sq.audit(p, table, missing="model")
    assert str(result.notes[0]).endswith("given the predictions, sex.")
    plain, same = (sq.audit(p, table[["sex"]], missing=rule) for rule in ("error", "model"))
    assert plain.table().equals(same.table()) and plain.notes == same.notes


def test_labels_and_classes() -> None:
    p, x, y = _draw(0)
    labels = np.where(p > 0.5, "yes", "no")
    shares = np.column_stack([p / 2.0, p / 2.0, 1.0 - p])
    assert sq.audit(labels, x, missing="model", outcome=np.where(y, "yes", "no")).n == np.isfinite(x).sum()
    assert sq.audit(shares, x, missing="model").n == np.isfinite(x).sum()


def test_what_cannot_be_weighted_is_refused() -> None:
    p, x, _ = _draw(0)
    with pytest.raises(InputError, match="missing in every row"):
        sq.audit(p, np.full(len(p), np.nan), missing="model")
    with pytest.raises(InputError, match="too few"):
        sq.audit(p, np.where(np.arange(len(p)) < 40, 1.0 * (p > 0.5), np.nan), missing="model")
    with pytest.raises(InputError, match="predictions"):
        sq.audit(np.where(p > 0.9, np.nan, p), x, missing="model")
