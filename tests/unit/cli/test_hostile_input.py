"""Damaged and endless files, closed streams, extreme values: exit code 2, one sentence, bounded time and memory."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet
from tests.unit.cli.test_bad_input import refused

from setsquare.cli import audit as audit_command
from setsquare.cli import contents

AUDIT = "audit {} --predictions score --protected sex,age"
COMMANDS = (
    AUDIT + " --outcome y --json out.json",
    "compare {} --predictions score,x --outcome y --protected sex,age --json out.json",
    "correct {} --outcome y --features x,score,age --protected sex --model out.setsquare",
    "monitor {} --predictions score --protected sex,age --state state.json",
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """A table, in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 200
    table = pd.DataFrame(
        {"sex": rng.choice(["F", "M"], n), "age": rng.integers(20, 60, n), "score": rng.random(n), "x": rng.random(n)}
    ).assign(y=rng.integers(2, size=n))
    table.to_csv("good.csv", index=False)
    return table


DAMAGED = """
import sys
from setsquare.cli.arguments import run
for name in sys.argv[1:]:
    sys.argv = ["setsquare", *"audit {} --predictions score --protected sex,age --quiet".format(name).split()]
    print(name, run(), flush=True)
"""


def test_damaged_files_end_in_an_answer_or_a_sentence(table: pd.DataFrame):
    names = []
    for kind in ("feather", "lz4", "parquet"):
        if kind == "parquet":
            parquet.write_table(pa.Table.from_pandas(table), "whole")
        else:
            feather.write_feather(table, "whole", compression="lz4" if kind == "lz4" else "uncompressed")
        content, rng = Path("whole").read_bytes(), np.random.default_rng(0)
        for i in range(12):
            changed = bytearray(content)
            for place in rng.integers(len(content), size=4):
                changed[place] ^= 1 << int(rng.integers(8))
            names.append(f"damaged{i}.{kind}.file")  # the kind is told by the content
            Path(names[-1]).write_bytes(changed)
    command = [sys.executable, "-c", DAMAGED, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr  # a segmentation fault is negative
    codes = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("damaged")]
    assert len(codes) == 36 and set(codes) <= {"0", "2"}, done.stderr


def test_integers_beyond_the_exact_floats_are_read(table: pd.DataFrame, monkeypatch, capsys):
    feather.write_feather(table.assign(age=table.age.astype(np.int64) * (2**55 + 1)), "large.feather")
    monkeypatch.setattr("sys.argv", ["setsquare", *AUDIT.format("large.feather").split()])
    from setsquare.cli.arguments import run

    assert run() == 0, capsys.readouterr().err


@pytest.mark.usefixtures("table")
def test_endless_input_is_bounded(monkeypatch, capsys):
    assert "is not a CSV" in refused(AUDIT.format("/dev/zero"), monkeypatch, capsys)
    monkeypatch.setattr(contents, "MAX_PIPED", 1 << 20)

    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray) -> int:
            buffer[:] = (b"1,2\n" * len(buffer))[: len(buffer)]
            return len(buffer)

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert "standard input is longer than 1 MB" in refused(AUDIT.format("-"), monkeypatch, capsys)
    Path("bomb.csv.gz").write_bytes(gzip.compress(b"sex,age,score\n" + b"F,1,0.5\n" * 400_000))
    assert "longer than 1 MB when decompressed" in refused(AUDIT.format("bomb.csv.gz"), monkeypatch, capsys)


@pytest.mark.usefixtures("table")
def test_what_the_machine_cannot_hold_is_refused_before_it_is_read(monkeypatch, capsys):
    rows = pa.table({"sex": pa.array(["F"] * 1000), "age": [1.0] * 1000, "score": [0.5] * 1000})
    parquet.write_table(rows, "rows.parquet")
    real = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 1 if name == "SC_PHYS_PAGES" else real(name))
    assert "of memory: use fewer rows or columns" in refused(AUDIT.format("rows.parquet"), monkeypatch, capsys)


@pytest.mark.usefixtures("table")
def test_out_of_memory_is_no_defect(monkeypatch, capsys):
    def exhaust(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(audit_command, "_audit", exhaust)
    assert "There is not enough memory" in refused(AUDIT.format("good.csv"), monkeypatch, capsys)


def reads(command: str, column: str) -> bool:
    return column in command.replace("--outcome y", "y").split("{}")[1].replace(",", " ").split()


@pytest.mark.parametrize(
    ("command", "column"),
    [(command, column) for command in COMMANDS for column in ("score", "age", "x", "y") if reads(command, column)],
)
def test_extreme_values_are_refused_by_column(command: str, column: str, table: pd.DataFrame, monkeypatch, capsys):
    for size in (1e200, 1e300):
        table.assign(**{column: table[column] * size / table[column].max()}).to_csv("large.csv", index=False)
        assert f"'{column}' has values as large as {size:.0e}" in refused(
            command.format("large.csv"), monkeypatch, capsys
        )


@pytest.mark.usefixtures("table")
def test_links_that_lead_to_themselves(monkeypatch, capsys):
    Path("one").symlink_to("two")
    Path("two").symlink_to("one")
    for command in (
        AUDIT.format("one"),
        AUDIT.format("good.csv") + " --json one",
        "correct good.csv --outcome y --protected sex --model one",
        "apply good.csv --model one",
        "apply one --model good.csv --write-predictions out.csv",
        "monitor good.csv --predictions score --protected sex --state one",
    ):
        assert "one" in refused(command, monkeypatch, capsys)


@pytest.mark.parametrize(
    "command",
    [
        AUDIT.format("n\udcff.csv"),
        AUDIT.format("good.csv") + " --html o\udcff.html",
        "audit good.csv --protected \udcff",
    ],
)
@pytest.mark.usefixtures("table")
def test_names_that_are_not_utf_8(command: str, monkeypatch, capsys):
    assert r"\udcff" in refused(command, monkeypatch, capsys)


@pytest.mark.usefixtures("table")
def test_a_negative_seed(monkeypatch, capsys):
    command = "correct good.csv --outcome y --protected sex --model m --seed -1"
    assert "--seed -1 is negative" in refused(command, monkeypatch, capsys)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("redirection", "command", "code"),
    [
        ("<&-", AUDIT.format("-"), 2),
        (">&-", AUDIT.format("good.csv"), 2),
        (">/dev/full", AUDIT.format("good.csv"), 2),
        ("2>&-", AUDIT.format("good.csv"), 0),
        ("2>&-", AUDIT.format("none.csv"), 2),
        ("<&- >&- 2>&-", AUDIT.format("good.csv"), 2),
    ],
)
def test_closed_streams(redirection: str, command: str, code: int):
    line = f"{sys.executable} -m setsquare {command} --quiet {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") <= 1


@pytest.mark.usefixtures("table")
def test_absurd_tables_are_refused_before_any_work(monkeypatch, capsys):
    rng = np.random.default_rng(0)
    start, names = "sex,age,score,y,", [f"c{j}" for j in range(20_000)]
    Path("huge.csv").write_text("\n".join([start + ",".join(names), *("F,1,0.5,0," + "1," * 19_999 + "1",) * 3]))
    assert "more than 10000 columns" in refused(AUDIT.format("huge.csv"), monkeypatch, capsys)
    values = pa.array(rng.normal(size=60))
    wide = pa.table({"sex": ["F", "M"] * 30, "y": [0, 1, 1] * 20, **dict.fromkeys(names[:20_000], values)})
    parquet.write_table(wide, "wide.parquet")
    command = "correct wide.parquet --outcome y --protected sex --model m"
    assert "20002 columns of wide.parquet" in refused(command, monkeypatch, capsys)
    protected = ",".join(names[:2000])
    command = f"audit wide.parquet --predictions c2001 --protected {protected}"
    assert "(n_samples = 60) for 2000 protected column(s)" in refused(command, monkeypatch, capsys)
    levels = pd.DataFrame(rng.normal(size=(6000, 5))).rename(columns="z{}".format)
    levels.assign(y=rng.integers(2, size=6000), place=[f"p{i % 3000}" for i in range(6000)]).to_csv("levels.csv")
    command = "correct levels.csv --outcome y --protected place --model m"
    assert "protected column(s), because only" in refused(command, monkeypatch, capsys)
    for method in ("generalized", "linear"):  # this took minutes
        assert "2999 columns" in refused(f"{command} --method {method}", monkeypatch, capsys)


def test_a_column_of_a_wide_table_is_found_without_listing_all(monkeypatch):
    """A table of 2000 columns took 2 ms per column and pass, for 40 passes."""
    import narwhals.stable.v2 as nw

    from setsquare.tables.column import read
    from setsquare.tables.frame import open_table

    frame = open_table(pa.table({f"c{j}": [float(j)] for j in range(50)}))
    monkeypatch.setattr(nw.DataFrame, "columns", property(lambda self: pytest.fail("all columns were listed")))
    assert read(frame, "c7").values.tolist() == [7.0]


@pytest.mark.parametrize(
    "command",
    [
        "audit wide.csv --predictions c0 --protected sex,c1 --family gaussian --quiet",
        pytest.param("correct wide.csv --outcome y --protected sex --model m --folds 2", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("table")
def test_a_table_of_2000_columns_and_60_rows_gets_an_answer(command: str, monkeypatch, capsys):
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2000))).rename(columns="c{}".format)
    rows.assign(sex=["F", "M"] * 30, y=[0, 1, 1] * 20).to_csv("wide.csv", index=False)
    monkeypatch.setattr("sys.argv", ["setsquare", *command.split()])
    from setsquare.cli.arguments import run

    assert run() == 0, capsys.readouterr().err
