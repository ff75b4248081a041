"""Audits of columns as people keep them: variants of one group, percentages, many levels, one column for classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.errors import InputError

N = 300
RNG = np.random.default_rng(0)
SCORE = RNG.random(N)
SEX = np.array(["F", "M", "f", "M "])[np.arange(N) % 4]


def _codes(result: Any) -> list[str]:
    return [note.code for note in result.notes]


def test_groups_that_differ_only_in_capitals_or_blanks_are_noted() -> None:
    result = sq.audit(SCORE, pd.DataFrame({"sex": SEX}))
    (note,) = (note for note in result.notes if getattr(note, "code", "") == "variants-of-groups")
    assert "sex 'F', 'f'; sex 'M', 'M '" in note or "sex 'M', 'M '; sex 'F', 'f'" in note
    assert "variants-of-groups" not in _codes(sq.audit(SCORE, pd.DataFrame({"sex": np.char.strip(np.char.upper(SEX))})))


def test_percentages_are_told_from_other_numbers() -> None:
    with pytest.raises(InputError, match="divide them by 100 if they are percentages, or choose another family"):
        sq.audit(100.0 * SCORE, SEX, family="binomial")
    with pytest.raises(InputError, match=r"cannot have: choose another family"):
        sq.audit(-SCORE, SEX, family="binomial")


def test_a_note_names_at_most_ten_columns() -> None:
    levels = np.where(np.arange(N) < 60, np.arange(N), -1).astype(str)  # 60 levels of a single row
    result = sq.audit(SCORE, pd.DataFrame({"site": np.char.add("site ", levels), "sex": SEX}))
    notes = [note for evaluation in result.evaluations for note in evaluation.notes]
    assert [(note.code, str(note).count("site[site"), "and 50 more" in note) for note in notes] == [
        ("lone-rows", 10, True),
        ("undetermined-columns", 10, True),
    ]


def test_one_column_of_probabilities_does_not_predict_three_classes() -> None:
    outcome = np.array(["low", "medium", "high"])[np.arange(N) % 3]
    with pytest.raises(InputError, match=r"has 3 classes .*one column of probabilities: give a column .* per class"):
        sq.compare({"score": SCORE}, outcome, pd.DataFrame({"sex": SEX}))


def test_the_four_fifths_table_counts_rows_without_a_group() -> None:
    """Before, they were in no table and no note."""
    sex = pd.Series(SEX).where(np.arange(N) >= 40)
    result = sq.audit(SCORE, sex.to_frame("sex"), missing="level", threshold=0.5, standard="four-fifths")
    assert "Rows of unknown category, left out of the table: sex 40." in " ".join(str(result).split())
