"""What holds for every table: rows go their own way, cells saturate, nothing is lost on the way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from setsquare import tables

MAKERS = st.sampled_from([pd.DataFrame, pl.DataFrame, pa.table])
MISSING = st.sampled_from(["drop", "level"])
CODING = st.sampled_from(["linear", "cells", "spline"])
LEVELS = st.sampled_from(["a", "b", "c d", "é", ""])


@st.composite
def drawn_tables(draw: st.DrawFn, holes: bool = True) -> dict[str, list[Any]]:
    """Two text columns, a boolean and a number; the first row is complete."""
    n = draw(st.integers(1, 25))
    parts = {"p": LEVELS, "q": LEVELS, "flag": st.booleans(), "age": st.floats(-1e6, 1e6)}
    hole = st.none() if holes else st.nothing()
    return {k: [draw(s), *draw(st.lists(s | hole, min_size=n, max_size=n))] for k, s in parts.items()}


def rows(table: dict[str, list[Any]], order: Any) -> dict[str, list[Any]]:
    return {name: [values[i] for i in order] for name, values in table.items()}


@given(drawn_tables(), MAKERS, MISSING, CODING, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=30)
def test_permuted_rows_give_permuted_rows(table: Any, make: Any, missing: Any, coding: Any, random: Any) -> None:
    order = list(range(len(table["p"])))
    random.shuffle(order)
    learned = tables.learn(make(table), missing=missing, basis=coding)
    permuted = make(rows(table, order))
    again = tables.learn(permuted, missing=missing, basis=coding)
    assert again.names == learned.names
    one, two = learned.apply(make(table)), learned.apply(permuted)
    keep = np.ones(len(order), bool) if one.keep is None else one.keep
    kept = np.full(len(order), -1)
    kept[keep] = np.arange(keep.sum())
    np.testing.assert_array_equal(two.values, one.values[kept[order][kept[order] >= 0]])


@given(drawn_tables(), MISSING, CODING)
@settings(deadline=None, max_examples=30)
def test_all_libraries_agree(table: Any, missing: Any, coding: Any) -> None:
    matrices = []
    for make in (pd.DataFrame, pl.DataFrame, pa.table):
        learned = tables.learn(make(table), missing=missing, basis=coding)
        encoded = learned.apply(make(table))
        matrices.append((encoded.names, encoded.values.tolist()))
    assert matrices[0] == matrices[1] == matrices[2]


@given(drawn_tables(), MAKERS)
@settings(deadline=None, max_examples=30)
def test_cells_saturate(table: Any, make: Any) -> None:
    columns = ["p", "q", "flag"]
    encoded = tables.learn(make(table), columns, basis="cells", missing="level").apply(make(table))
    combinations = list(zip(*(table[name] for name in columns), strict=True))
    assert len(encoded.names) == len(set(combinations)) - 1
    # With the reference as one column more, every row is in exactly one cell, and equal rows share it.
    reference = 1 - encoded.values.sum(axis=1)
    assert set(np.unique(reference)) <= {0.0, 1.0} and reference.any()
    coded = [tuple(row) for row in encoded.values.tolist()]
    assert len(set(zip(coded, combinations, strict=True))) == len(set(coded)) == len(set(combinations))


@given(drawn_tables(), MAKERS)
@settings(deadline=None, max_examples=30)
def test_dummies_undo_to_the_levels(table: Any, make: Any) -> None:
    learned = tables.learn(make(table), "p", missing="level")
    encoded = learned.apply(make(table))
    coder = learned.coders[0]
    assert isinstance(coder, tables.Categorical)
    position = encoded.values @ np.arange(1, len(coder.levels))
    assert [coder.levels[int(i)] for i in position] == table["p"]


@given(drawn_tables(), MAKERS, MISSING, CODING)
@settings(deadline=None, max_examples=30)
def test_plain_data_carry_the_whole_design(table: Any, make: Any, missing: Any, coding: Any) -> None:
    learned = tables.learn(make(table), missing=missing, basis=coding)
    again = tables.Design.from_dict(json.loads(json.dumps(learned.to_dict())))
    assert again == learned
    np.testing.assert_array_equal(again.apply(make(table)).values, learned.apply(make(table)).values)


@given(drawn_tables(), MAKERS, CODING)
@settings(deadline=None, max_examples=30)
def test_drop_is_learning_on_the_complete_rows(table: Any, make: Any, coding: Any) -> None:
    dropped = tables.learn(make(table), missing="drop", basis=coding)
    complete = [i for i in range(len(table["p"])) if all(values[i] is not None for values in table.values())]
    expected = tables.learn(make(rows(table, complete)), basis=coding)
    assert dropped.coders == expected.coders
    encoded = dropped.apply(make(table))
    np.testing.assert_array_equal(encoded.values, expected.apply(make(rows(table, complete))).values)
    assert (encoded.keep is None) == (len(complete) == len(table["p"]))


@given(drawn_tables(holes=False), drawn_tables(holes=False), MAKERS, CODING)
@settings(deadline=None, max_examples=30)
def test_pooled_rows_are_counted_exactly(train: Any, later: Any, make: Any, coding: Any) -> None:
    columns = ["p", "q"]
    learned = tables.learn(make(train), columns, basis=coding, unseen="pool")
    encoded = learned.apply(make(later))
    if coding == "cells":
        seen = set(zip(train["p"], train["q"], strict=True))
        expected = {"p:q": sum(cell not in seen for cell in zip(later["p"], later["q"], strict=True))}
    else:
        expected = {name: sum(value not in train[name] for value in later[name]) for name in columns}
    assert encoded.n_pooled == {name: count for name, count in expected.items() if count}
