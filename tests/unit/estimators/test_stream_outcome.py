"""Classes and numbers of a stream's outcome are those of the rows in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import setsquare as sq
from setsquare.errors import InputError, MissingValuesError

N = 240
KINDS: dict[str, Any] = {
    "text": np.array(["no", "yes"])[np.arange(N) % 2],
    "three texts": np.array(["c", "a", "b"])[np.arange(N) % 3],
    "whole numbers": (np.arange(N) % 2) + 1,
    "whole floats": (np.arange(N) % 2) + 3.0,
    "truth values": np.arange(N) % 2 == 0,
}


def table(outcome: Any, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=N)
    return pd.DataFrame({"x": x, "z": x + rng.normal(size=N), "u": rng.normal(size=N), "y": outcome})


def batches(rows: pd.DataFrame) -> sq.Stream:
    """In parts that do not hold all classes each."""
    order = rows.sort_values("y", kind="stable", ascending=False)  # the last class is met first
    return sq.Stream([order.iloc[:50], order.iloc[50:130], order.iloc[130:]])


@pytest.mark.parametrize("name", KINDS)
def test_streamed_classes_are_those_in_memory(name: str) -> None:
    rows = table(KINDS[name])
    held = sq.OrthogonalGLMClassifier(protected=["x"]).fit(rows[["x", "z", "u"]], rows["y"])
    read = sq.OrthogonalGLMClassifier(protected=["x"]).fit(batches(rows), "y")
    assert list(read.classes_) == list(held.classes_) == sorted(set(KINDS[name]))
    assert read.classes_.dtype.kind in ("i" if "whole" in name else "b" if "truth" in name else "UO")
    np.testing.assert_allclose(
        read.predict_proba(rows[["x", "z", "u"]]), held.predict_proba(rows[["x", "z", "u"]]), atol=1e-8
    )
    assert list(read.predict(rows[["x", "z", "u"]])) == list(held.predict(rows[["x", "z", "u"]]))


def test_outcomes_that_a_stream_cannot_use_are_refused() -> None:
    with pytest.raises(InputError, match="must be numbers, not text"):
        sq.OrthogonalGLMRegressor(protected=["x"]).fit(batches(table(KINDS["text"])), "y")
    with pytest.raises(MissingValuesError):
        sq.OrthogonalGLMRegressor(protected=["x"]).fit(batches(table(np.where(np.arange(N) == 7, np.nan, 1.0))), "y")
    with pytest.raises(InputError, match="class"):
        sq.OrthogonalGLMClassifier(protected=["x"]).fit(batches(table(np.full(N, "a"))), "y")


def test_an_outcome_that_is_lost_between_two_passes_is_refused() -> None:
    """As a class it would be the last one."""
    rows = table(KINDS["text"])
    passes = list[pd.DataFrame]()

    def fit(n_whole: int) -> None:
        def read() -> Iterator[pd.DataFrame]:
            passes.append(rows if len(passes) < n_whole else rows.assign(y=rows["y"].where(np.arange(N) != 7)))
            return iter(passes[-1:])

        passes.clear()
        sq.OrthogonalGLMClassifier(protected=["x"]).fit(sq.Stream(read), "y")

    fit(1000)
    for n_whole in range(len(passes)):
        with pytest.raises(MissingValuesError, match="The outcome has 1 missing"):
            fit(n_whole)


def test_a_stream_takes_reference_levels_and_refuses_constant_protected_columns() -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(90, 3)), columns=["a", "b", "c"])
    rows = rows.assign(race=np.array(["u", "v", "w"])[np.arange(90) % 3], y=rows.a + rng.normal(size=90))
    for reference in ({}, {"race": "w"}):
        make = sq.OrthogonalGLMRegressor(protected=["race"], reference=reference)
        whole = clone(make).fit(rows.drop(columns="y"), rows.y)
        streamed = clone(make).fit(sq.Stream([rows[:40], rows[40:]]), "y")
        names = streamed.reader_.protected.names
        assert names == whole.reader_.protected.names
        assert all(("w" in name) != bool(reference) for name in names[-1:])
    with pytest.raises(InputError, match="constant"):
        sq.OrthogonalGLMRegressor(protected=["race"]).fit(sq.Stream([rows.assign(race="u")]), "y")
