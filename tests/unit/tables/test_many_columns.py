"""Many short columns are read at once, and mean the same as one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from setsquare.errors import MissingValuesError
from setsquare.tables import column as reading
from setsquare.tables.column import Numbers, read
from setsquare.tables.frame import open_table


def wide(n: int = 7, q: int = reading.MANY_COLUMNS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(n, q)), columns=[f"c{j}" for j in range(q)])
    table.loc[2, "c1"] = np.nan
    return table.assign(c3=range(n), sex=list("fmfmfmf"), c5=table["c5"].astype("float32"))


@pytest.mark.parametrize("kind", [lambda t: t, pa.Table.from_pandas, lambda t: pa.Table.from_pandas(t[::-1])[::-1]])
def test_columns_read_at_once_equal_those_read_by_themselves(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = kind(wide())
    frame = open_table(table)
    together = {name: read(frame, name) for name in frame.names if not name.startswith("__")}
    assert isinstance(together["c0"], Numbers)
    monkeypatch.setattr(reading, "MANY_COLUMNS", 10_000)
    frame = open_table(table)
    for name, column in together.items():
        alone = read(frame, name)
        assert type(alone) is type(column)
        for part in ("values", "codes", "levels"):
            np.testing.assert_array_equal(getattr(alone, part, 0), getattr(column, part, 0))


def test_nothing_is_read_by_itself_but_what_is_no_plain_number(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[str] = []
    own = reading._read
    monkeypatch.setattr(reading, "_read", lambda frame, name: (alone.append(name), own(frame, name))[1])
    frame = open_table(wide())
    for name in frame.names:
        read(frame, name)
    assert alone == ["c3", "c5", "sex"]


def test_an_infinite_column_is_refused_only_where_it_is_read() -> None:
    table = wide()
    table.loc[0, "c9"] = np.inf
    frame = open_table(table)
    read(frame, "c8")
    with pytest.raises(MissingValuesError, match="Column 'c9' has 1 infinite value"):
        read(frame, "c9")
