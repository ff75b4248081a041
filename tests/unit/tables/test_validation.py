"""The shared checks: what they refuse, and that no sentence stands twice in the package."""

from __future__ import annotations

import ast
import re
from collections import Counter
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.errors import InputError, MissingValuesError
from setsquare.tables.validation import (
    check_choice,
    check_roles,
    check_same_rows,
    read_cluster,
    read_offset,
    read_weight,
)

SOURCE = Path(sq.__file__).parent


def sentences(path: Path) -> list[str]:
    """Messages that a file raises, with a gap for each value in them."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = node.exc.args[0]
            parts = message.values if isinstance(message, ast.JoinedStr) else [message]
            texts = [part.value if isinstance(part, ast.Constant) else "{}" for part in parts]
            found.append("".join(map(str, texts)))
    return found


def test_every_sentence_is_raised_in_one_place():
    every = Counter(text for path in SOURCE.rglob("*.py") for text in sentences(path) if len(text) > 30)
    assert len(every) > 200
    assert [text for text, count in every.items() if count > 1] == []


@pytest.mark.parametrize(
    "phrase", ["the same rows in both", "Every protected column is constant", "Sample weights must"]
)
def test_shared_checks_are_written_in_one_file(phrase: str):
    assert [path.name for path in SOURCE.rglob("*.py") if phrase in path.read_text()] == ["validation.py"]


def test_lengths_name_both_inputs():
    with pytest.raises(
        InputError, match=r"^The outcome has 3 rows but the features have 4: pass the same rows in both\.$"
    ):
        check_same_rows("The outcome has", 3, "the features have", 4)


def test_weights():
    np.testing.assert_array_equal(read_weight(2, 3), [2.0, 2.0, 2.0])
    assert read_weight(None, 3) is None
    for weight, words in (
        ([1.0, 2.0], "one value per row"),
        (["a", "b", "c"], "must be numbers"),
        ([1.0, -1.0, 1.0], "not negative"),
        ([1.0, np.inf, 1.0], "finite"),
        ([0.0, 0.0, 0.0], "at least one non-zero"),
    ):
        with pytest.raises(InputError, match=words):
            read_weight(weight, 3)


def test_offsets_may_have_a_column_for_each_class():
    offset = read_offset(np.zeros((3, 2)), 3)
    assert offset is not None and offset.shape == (3, 2)
    with pytest.raises(InputError, match=r"offset has the shape \(2,\) but there are 3 rows"):
        read_offset([0.0, 1.0], 3)


@pytest.mark.parametrize(
    "cluster",
    [
        [3, 1, 3],
        ["b", "a", "b"],
        np.array([3, 1.0, 3.0], dtype=object),
        pd.Series([3, 1, 3], dtype="Int64"),
        pd.Series(pd.to_datetime(["2021-01-03", "2021-01-01", "2021-01-03"])),
        np.array([date(2021, 1, 3), date(2021, 1, 1), date(2021, 1, 3)], dtype=object),
    ],
    ids=["int", "text", "objects", "Int64", "dates", "date objects"],
)
def test_clusters_of_every_kind_are_numbered(cluster: object):
    np.testing.assert_array_equal(read_cluster(cluster, 3), [1, 0, 1])


@pytest.mark.parametrize("cluster", [[1.0, np.nan], ["a", None], pd.Series([1, None], dtype="Int64")], ids=str)
def test_a_row_without_a_cluster_is_refused(cluster: object):
    with pytest.raises(MissingValuesError, match="cluster has missing values"):
        read_cluster(cluster, 2)


def test_options_and_roles():
    with pytest.raises(InputError, match=re.escape("vcov='HC9' is not one of 'HC3', 'model'.")):
        check_choice("vcov", "HC9", ("HC3", "model"))
    with pytest.raises(InputError, match=r"'sex' has two roles \(protected and outcome\)"):
        check_roles({"protected": ["sex", "age"], "outcome": ["sex"]})
