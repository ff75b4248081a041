"""Tables with more protected columns than an audit can test: refused before they are coded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.auditing.protected import MOST_COLUMNS
from setsquare.errors import InputError


def _peak(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def levels() -> tuple[np.ndarray, pd.DataFrame]:
    rng = np.random.default_rng(0)
    codes = np.arange(30_000) % 3000
    return rng.random(30_000), pd.DataFrame({"site": pd.Categorical(codes.astype(str))})


def test_thousands_of_levels_are_refused_in_the_memory_of_the_codes(levels: tuple[np.ndarray, pd.DataFrame]) -> None:
    y, X = levels
    sq.audit(y[:100], pd.DataFrame({"a": np.arange(100.0)}))  # imports are not counted

    def refused() -> None:
        with pytest.raises(InputError, match=r"'site' has so many levels \(3,000\).*merge rare levels"):
            sq.audit(y, X)

    assert _peak(refused) < 20e6  # the dummies alone would take 720 MB


@pytest.mark.parametrize("missing", ["error", "drop", "level"])
def test_the_refusal_is_the_same_with_each_treatment_of_missing_values(
    levels: tuple[np.ndarray, pd.DataFrame], missing: str
) -> None:
    y, X = levels
    with pytest.raises(InputError, match="merge rare levels"):
        sq.audit(y, X, missing=missing)


def test_a_stream_is_refused_too(levels: tuple[np.ndarray, pd.DataFrame], tmp_path: Any) -> None:
    y, X = levels
    X.astype(str).assign(score=y).to_parquet(tmp_path / "rows.parquet")
    stream = sq.Stream(tmp_path / "rows.parquet")
    with pytest.raises(InputError, match="merge rare levels"):
        sq.audit(stream["score"], stream[["site"]])


@pytest.mark.parametrize("as_frame", [False, True])
def test_very_wide_tables_are_refused_before_their_columns_are_read(as_frame: bool) -> None:
    rng = np.random.default_rng(0)
    for p in (2000, 100_000):
        X: Any = np.broadcast_to(rng.normal(size=(60, 1)), (60, p))
        X = pd.DataFrame(X, columns=[f"c{j}" for j in range(p)]) if as_frame else X
        with pytest.raises(InputError, match=f"There are {p:,} protected columns"):
            sq.audit(rng.random(60), X)


def test_more_columns_than_rows_are_refused_before_groups_are_counted() -> None:
    rng = np.random.default_rng(0)
    assert MOST_COLUMNS >= 900
    with pytest.raises(InputError, match=r"Too few rows \(60\) for 900 protected"):
        sq.audit(rng.random(60), rng.normal(size=(60, 900)))
