"""Streams: whatever the rows are read from, all of them come, in order, a few at a time; designs learned in batches."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from setsquare import Stream, tables
from setsquare.errors import DataNotFoundError, InputError, MissingValuesError
from setsquare.projection import protected_basis
from setsquare.rows import LocalParts, as_stream
from setsquare.rows.parallel import n_cores
from setsquare.rows.passes import Piece


def draw_table(n: int = 1000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(40.0, 10.0, n).astype(np.float32),
            "sex": rng.choice(["m", "f"], n),
            "grade": pd.Categorical(rng.choice(["low", "mid", "high"], n), categories=["low", "mid", "high", "top"]),
            "count": rng.integers(0, 1000, n),
            "member": rng.random(n) < 0.5,
        }
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    table = draw_table()
    for i, rows in enumerate((slice(0, 300), slice(300, 301), slice(301, 1000))):
        table.iloc[rows].to_parquet(tmp_path / f"part{i}.parquet", row_group_size=130, index=False)
    return tmp_path


def read_all(stream: Stream) -> pd.DataFrame:
    tables = [table if isinstance(table, pd.DataFrame) else table.to_pandas() for table in stream]
    return pd.concat(tables, ignore_index=True)


def check_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert list(found.columns) == list(expected.columns)
    for name in expected:
        assert found[name].astype(str).tolist() == expected[name].astype(str).tolist()


@pytest.mark.parametrize("kind", ["path", "folder", "pattern", "list", "dataset", "filtered", "feather"])
def test_files_of_every_kind_give_all_rows_in_order(kind: str, files: Path) -> None:
    table = draw_table()
    paths = sorted(files.glob("*.parquet"))
    if kind == "path":
        table.to_parquet(files / "whole.parquet", index=False)
    if kind == "feather":
        pyarrow.feather.write_feather(pa.Table.from_pandas(table), files / "whole.feather")
    source = {
        "path": files / "whole.parquet",
        "folder": str(files),
        "pattern": str(files / "part*.parquet"),
        "list": paths,
        "dataset": pads.dataset([str(path) for path in paths]),
        "filtered": pads.dataset([str(path) for path in paths]).filter(pads.field("member")),
        "feather": str(files / "whole.feather"),
    }[kind]
    expected = table[table.member].reset_index(drop=True) if kind == "filtered" else table
    stream = Stream(source)
    assert stream.n_rows == len(expected)
    check_same(read_all(stream), expected)
    check_same(read_all(stream), expected)  # and again
    check_same(read_all(stream[["sex", "age"]]), expected[["sex", "age"]])


def test_keys_in_the_paths_of_files_are_columns(tmp_path: Path) -> None:
    table = draw_table(200)
    pq.write_to_dataset(pa.Table.from_pandas(table), tmp_path / "by_sex", partition_cols=["sex"])
    found = read_all(Stream(tmp_path / "by_sex"))
    assert sorted(found["sex"].astype(str)) == sorted(table["sex"]) and len(found.columns) == 5


@pytest.mark.parametrize(
    "make", [lambda t: t, pl.from_pandas, pa.Table.from_pandas], ids=["pandas", "polars", "pyarrow"]
)
@pytest.mark.parametrize("kind", ["sequence", "loaders", "function"])
def test_batches_of_every_kind_give_all_rows_in_order(kind: str, make) -> None:
    table = draw_table()
    cuts = [make(table.iloc[i : i + 170].reset_index(drop=True)) for i in range(0, 1000, 170)]
    batches = {
        "sequence": cuts,
        "loaders": [lambda cut=cut: cut for cut in cuts],
        "function": lambda: iter(cuts),
    }[kind]
    stream = Stream(batches)
    found = [t if isinstance(t, pd.DataFrame) else t.to_pandas() for t in stream.select(["count", "age"])]
    np.testing.assert_array_equal(pd.concat(found)["count"], table["count"])
    assert stream.columns == tuple(table.columns) and list(found[0].columns) == ["count", "age"]


def test_columns_of_arrays_go_by_their_positions() -> None:
    A = np.arange(12.0).reshape(4, 3)
    (found,) = Stream([A]).select(["x2", "x0"])
    np.testing.assert_array_equal(found, A[:, [2, 0]])
    (whole,) = Stream([A])["x1"].parts()  # inside, columns keep the names that they have in the whole array
    np.testing.assert_array_equal(whole, A)


def test_memory_bounds_the_rows_of_a_batch(files: Path) -> None:
    table = np.zeros((200_000, 10))
    most = [max(len(batch) for batch in Stream([table], memory=memory)) for memory in ("100kB", "1MB", "1GB")]
    threads = n_cores() + 1
    assert most[0] < most[1] < most[2] < len(table)
    assert most[0] * 10 * 8 * 4 * threads <= 100 * 2**10
    assert max(batch.num_rows for batch in Stream(files, memory="20kB")) < 130  # less than a row group
    with pytest.raises(InputError, match="is too small for a few rows of 10 columns"):
        list(Stream([table], memory=100))
    with pytest.raises(InputError, match="write it like '256MB'"):
        Stream([table], memory="much")


def test_only_a_few_batches_are_in_memory_at_a_time() -> None:
    alive, most, lock = 0, 0, threading.Lock()

    def change(by: int) -> None:
        nonlocal alive, most
        with lock:
            alive += by
            most = max(most, alive)

    def read():
        for i in range(50):
            change(1)
            yield Piece(i, 1, "")

    total = LocalParts(read).map(lambda i: (change(-1), i)[1]).reduce(float, lambda a, b: a + b)
    assert total == sum(range(50)) and most <= 2 * n_cores() + 2


def test_results_come_in_order_whatever_takes_longer() -> None:
    import time

    def read():
        return (Piece(i, 1, "") for i in range(12))

    slow_first = LocalParts(read).map(lambda i: (time.sleep(0.02 if i % 4 == 0 else 0.0), i)[1])
    assert list(slow_first) == list(range(12))
    assert slow_first.reduce(str, lambda a, b: a + b) == "".join(map(str, range(12)))


def test_progress_counts_the_rows_of_each_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    shown = Stream(files, progress=True)
    assert sum(batch.num_rows for batch in shown) == 1000
    assert "1000/1000" in capsys.readouterr().err
    list(Stream(files))
    assert capsys.readouterr().err == ""


def test_sources_that_cannot_be_read_are_refused_in_one_sentence(tmp_path: Path, files: Path) -> None:
    (tmp_path / "rubbish.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(InputError, match=r"rubbish\.parquet cannot be read as Parquet"):
        Stream(tmp_path / "rubbish.parquet")
    with pytest.raises(DataNotFoundError, match=r"There is no file .*nothing\*"):
        Stream(str(tmp_path / "nothing*.parquet"))
    with pytest.raises(InputError, match="can be read only once"):
        Stream(iter([np.zeros((2, 2))]))
    once = iter([np.zeros((2, 2))] * 5)
    with pytest.raises(InputError, match="the same iterator twice"):
        Stream(lambda: once)
    with pytest.raises(InputError, match="no batches"):
        Stream([])
    with pytest.raises(InputError, match="Cannot read batches from"):
        Stream(3.0)
    with pytest.raises(InputError, match="no column 'aged'; did you mean 'age'"):
        Stream(files / "part0.parquet", columns=["aged"])
    with pytest.raises(InputError, match="no rows"):
        Stream([np.zeros((0, 2))]).parts().reduce(len, lambda a, b: a + b)


def test_a_file_that_lacks_a_column_is_named(files: Path) -> None:
    pd.DataFrame({"age": [1.0]}).to_parquet(files / "part9.parquet", index=False)
    with pytest.raises(InputError, match=r"part9\.parquet has no column 'sex'"):
        list(Stream(str(files / "part*.parquet")))


def test_an_error_in_a_batch_names_the_file(files: Path) -> None:
    broken = draw_table(10)
    broken.loc[3, "age"] = np.inf
    broken.to_parquet(files / "part5.parquet", index=False)
    parts = Stream(str(files / "part*.parquet")).parts().map(lambda t: tables.observe(t, ["age"], missing="error"))
    with pytest.raises(MissingValuesError, match=r"Column 'age' has 1 infinite value; .* \(in .*part5\.parquet\)"):
        list(parts)


def test_tables_in_memory_are_no_streams(files: Path) -> None:
    table = draw_table(10)
    assert as_stream(table) is None and as_stream(np.zeros((3, 2))) is None and as_stream([[1.0]]) is None
    assert as_stream(pa.Table.from_pandas(table)) is None
    assert as_stream(str(files)) is not None and as_stream(pads.dataset(files)) is not None


@pytest.mark.parametrize(
    "make", [lambda t: t, pl.from_pandas, pa.Table.from_pandas], ids=["pandas", "polars", "pyarrow"]
)
@pytest.mark.parametrize("missing", ["error", "drop", "level"])
@pytest.mark.parametrize("basis", ["linear", "cells"])
def test_a_design_learned_in_batches_is_that_of_the_whole_table(basis: str, missing: str, make) -> None:
    table = draw_table()
    if missing != "error":
        rng = np.random.default_rng(1)
        for name in ("age", "sex", "grade"):
            table.loc[rng.random(1000) < 0.1, name] = None
        table.loc[:99, "sex"] = None  # a whole batch without a value
    options = {"basis": basis, "missing": missing, "reference": {"sex": "m"}}
    whole = tables.learn(make(table), **options)
    cells = list(table.columns) if basis == "cells" else ()
    batches = [make(table.iloc[i : i + 100].reset_index(drop=True)) for i in range(0, 1000, 100)]
    seen = [tables.observe(batch, table.columns, missing=missing, cells=cells) for batch in batches]
    merged = seen[0]
    for other in seen[1:]:
        merged = merged.merge(other)
    found = tables.settle(merged, tuple(table.columns), **options)
    assert found.names == whole.names and found.sources == whole.sources
    encoded = whole.apply(make(table))
    np.testing.assert_allclose(found.apply(make(table)).values, encoded.values, rtol=1e-13)
    if missing == "drop":
        assert merged.n_kept == encoded.keep.sum() and merged.n_rows == 1000


def test_declared_levels_keep_their_order_whichever_batch_has_them() -> None:
    table = draw_table()
    by_level = [table[table.grade == level] for level in ("high", "low", "mid")]
    merged = tables.observe(by_level[0], ["grade"], missing="error")
    for other in by_level[1:]:
        merged = merged.merge(tables.observe(other, ["grade"], missing="error"))
    assert tables.settle(merged, ["grade"]).coders[0].levels == ("low", "mid", "high")


def test_what_only_all_batches_can_tell_is_refused_with_counts_of_all() -> None:
    table = draw_table()
    table.loc[[5, 700, 900], "age"] = np.nan
    halves = [table.iloc[:500], table.iloc[500:]]

    def learn(columns: list[str], batches=halves, cells=(), **options) -> tables.Design:
        first, second = (
            tables.observe(b, columns, missing=options.get("missing", "error"), cells=cells) for b in batches
        )
        return tables.settle(first.merge(second), columns, **options)

    with pytest.raises(MissingValuesError, match=r"'age' \(3\)"):
        learn(["age", "sex"])
    with pytest.raises(InputError, match="numeric in some batches"):
        learn(["age"], [table, table.assign(age="old")], missing="drop")
    coded = table.assign(group=np.arange(1000) % 3)
    with pytest.raises(InputError, match="would take no part in the cells"):
        learn(["sex", "group"], [coded.iloc[:500], coded.iloc[500:]], cells=["sex", "group"], basis="cells")
    with pytest.raises(InputError, match="as an identifier has"):
        learn(["name"], [pd.DataFrame({"name": [f"{k}{i}" for i in range(40)]}) for k in "ab"])
    with pytest.raises(MissingValuesError, match="missing values only"):
        learn(["age"], [table.assign(age=np.nan), table.assign(age=np.nan)], missing="level")


def test_a_basis_in_parts_tells_nearly_collinear_columns_from_collinear_ones() -> None:
    from setsquare.projection.basis import settle_basis, stack_factors

    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 1))
    X = np.hstack([x, x + 1e-7 * rng.normal(size=(3000, 1)), 2.0 * x])
    whole = protected_basis(X)
    parts = [(X[i : i + 500] - whole.mean) / np.sqrt(3000) for i in range(0, 3000, 500)]
    R = stack_factors(stack_factors(parts[0], parts[1]), np.vstack(parts[2:]))
    found = settle_basis(whole.mean, R, whole.names)
    assert found.collinear == whole.collinear == ("x2",)
    Q = found.apply(X)
    np.testing.assert_allclose(Q.T @ Q / 3000, np.eye(2), atol=1e-7)  # of columns 1e-7 apart
