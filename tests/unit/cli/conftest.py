"""The command line, called in a folder with a table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from setsquare.cli.arguments import main


@pytest.fixture
def call(tmp_path: Path, table: pd.DataFrame, monkeypatch, capsys):
    """Call the command line in a folder with the table of a test: exit code, standard output, standard error."""
    table.to_csv(tmp_path / "table.csv", index=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["setsquare", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run
