"""The frame of the experiments: cells that survive a stop, records that survive a file, the page, the command."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from setsquare.errors import InputError
from studies.__main__ import app, main
from studies.paper import catalogue, show
from studies.paper.cells import Cells
from studies.paper.record import Record, Table

RECORD = Record(
    "table2",
    "A title",
    (Table("Effects", ("term", "printed", "ours"), [("sex", 1.066, 1.0655049912345678), ("a|b", None, 2.2e-16)]),),
    ("Because.",),
    {"runs": [1, 2]},
    ("The third digit: not enough printed.",),
)


def _fail() -> None:
    raise RuntimeError("stopped")


def test_a_stopped_experiment_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "cells" / "x.jsonl"
    cells = Cells(path)
    assert cells({"seed": 0}, lambda: {"a": 1.5}) == {"a": 1.5}
    with pytest.raises(RuntimeError, match="stopped"):
        cells({"seed": 1}, _fail)
    again = Cells(path)
    assert {"seed": 0} in again and {"seed": 1} not in again
    assert again({"seed": 0}, _fail) == {"a": 1.5}
    assert again({"seed": 1}, lambda: 2) == 2


def test_a_line_that_was_cut_off_is_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    cells = Cells(path)
    cells({"n": 1}, lambda: 1)
    cells({"n": 2}, lambda: 2)
    path.write_text(path.read_text()[:-5])
    again = Cells(path)
    assert {"n": 1} in again and {"n": 2} not in again
    assert again({"n": 2}, lambda: 3) == 3
    assert Cells(path)({"n": 2}, _fail) == 3


def test_fresh_forgets(tmp_path: Path) -> None:
    Cells(tmp_path / "x")({"n": 1}, lambda: 1)
    assert {"n": 1} not in Cells(tmp_path / "x", fresh=True)


def test_a_record_survives_its_file_with_all_digits(tmp_path: Path) -> None:
    paths = RECORD.write(tmp_path)
    assert [path.name for path in paths] == ["table2.json", "table2.csv"]
    assert Record.read(paths[0]) == RECORD
    rows = list(csv.reader(paths[1].read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["term", "printed", "ours"] and float(rows[1][2]) == 1.0655049912345678


def test_a_record_on_screen_and_on_a_page() -> None:
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as captured:
        RECORD.show(console)
    assert "1.066" in captured.get() and "Not reproduced: The third digit" in captured.get()
    page = RECORD.to_markdown("paper/table2.png")
    assert "![A title](paper/table2.png)" in page
    assert "| a\\|b |  | 2.20e-16 |" in page


def test_every_entry_can_be_run_or_says_why_not() -> None:
    for entry in catalogue.ENTRIES:
        if entry.module is None:
            assert entry.reason
            with pytest.raises(InputError, match="cannot be run"):
                catalogue.run(entry.name, Path())
        else:
            pytest.importorskip("torch")
            module = import_module(f"studies.paper.{entry.module}")
            assert callable(module.run)
    labels = [entry.label for entry in catalogue.ENTRIES]
    assert len(set(labels)) == len(labels)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="'table9': choose from table1, fig1"):
        catalogue.find("table9")


def test_the_page_holds_what_was_found_and_what_was_not(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    with pytest.raises(InputError, match="holds no results"):
        show.page(folder)
    RECORD.write(folder)
    show.page(folder)
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "A title" in page and "`python -m studies table2`" in page
    assert "Not reproduced: The third digit: not enough printed." in page


def test_the_list_names_every_table_and_figure(capsys: pytest.CaptureFixture[str]) -> None:
    app(["--list"], result_action="return_value")
    printed = capsys.readouterr().out
    assert all(entry.name in printed for entry in catalogue.ENTRIES)


def test_bad_input_ends_with_a_sentence_and_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["studies", "table9"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("studies: There is no experiment 'table9': choose from table1")


def test_a_run_writes_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        @staticmethod
        def run(*, quick: bool, cells: Cells, progress: Progress) -> Record:
            assert quick and cells.path is not None and isinstance(progress, Progress)
            return RECORD

        @staticmethod
        def draw(record: Record, path: Path) -> Path:
            path.write_text(record.name)
            return path

    monkeypatch.setattr(catalogue, "import_module", lambda name: Module)
    record, paths = catalogue.run("table2", tmp_path, quick=True)
    assert replace(record, made={}) == RECORD
    assert [path.name for path in paths] == ["table2.json", "table2.csv", "table2.png"]
    assert paths[0].parent == tmp_path / "quick"
    assert json.loads(paths[0].read_text())["missed"] == ["The third digit: not enough printed."]


@pytest.mark.parametrize("text", ["{", "[]", '{"name": 3}', "\xff", '{"key": [1], "result": 1}', "[" * 100_000])
def test_damaged_results_get_one_sentence(text: str, tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / "table2.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"table2.json is damaged: run python -m studies table2 --fresh again"):
        Record.read(path)
    cells = tmp_path / "cells.jsonl"
    cells.write_bytes(b'{"key": {"n": 1}, "result": 1}\n' + text.encode("latin-1") + b"\n")
    with pytest.raises(InputError, match=r"cells.jsonl is damaged in line 2: delete this line, or pass --fresh"):
        Cells(cells)
    monkeypatch.setattr("sys.argv", ["studies", "--page", "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and capsys.readouterr().err.count("\n") == 1
