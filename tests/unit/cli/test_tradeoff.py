"""Budgets on the command line: correct --budget and tradeoff."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.cli.arguments import main
from setsquare.cli.tradeoff_options import REFUSED

N = 500


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Call the command line in a folder with a table: exit code, standard output, standard error."""
    rng = np.random.default_rng(3)
    sex = rng.choice(["F", "M"], N)
    table = pd.DataFrame({"sex": sex, "a": (sex == "M") + rng.normal(size=N), "b": rng.normal(size=N)})
    table["hired"] = np.where(table["a"] + table["b"] + rng.normal(size=N) > 0.5, "yes", "no")
    table.to_csv(tmp_path / "table.csv", index=False)
    monkeypatch.chdir(tmp_path)

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        shared = ["--outcome", "hired", "--protected", "sex"]
        monkeypatch.setattr("sys.argv", ["setsquare", command, "table.csv", *shared, *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run


def test_tradeoff_prints_writes_and_picks(call, tmp_path: Path) -> None:
    code, out, err = call("tradeoff", "--budgets", "5", "--json", "t.json", "--html", "t.html")
    assert code == 0, err
    found = json.loads((tmp_path / "t.json").read_text())
    assert [point["budget"] for point in found["points"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert found["points"][0]["loss"] > found["points"][-1]["loss"]
    assert f"--budget {found['picked']:.4g}" in " ".join(out.split()) and "new rows: loss" in out
    assert "polyline" in (tmp_path / "t.html").read_text()
    code, out, _ = call("tradeoff", "--budgets", "5", "--max-correlation", "0.2", "--quiet")
    assert code == 0 and "correlation of at most 0.2" in out and "new rows: loss" not in out


def test_correct_takes_a_budget_and_says_what_it_promises(call, tmp_path: Path) -> None:
    code, out, err = call("correct", "--budget", "0.4", "--model", "m.setsquare", "--folds", "2")
    assert code == 0, err
    assert "budget of 0.4" in out and "not orthogonal" in out and "Within the budget" in out
    assert "fitted under the constraint that its predictions are orthogonal" not in out
    model = sq.load(tmp_path / "m.setsquare")
    assert model.budget == 0.4 and model.solution_.certificate.covariance_share == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("correct", ["--budget", "1.5", "--model", "m"], "between 0 (orthogonal) and 1"),
        ("correct", ["--budget", "0.5", "--model", "m", "--method", "linear"], "--budget needs --method constrained"),
        ("correct", ["--budget", "0.5", "--model", "m", "--orthogonal-on", "new-rows"], "use one of them"),
        ("tradeoff", ["--method", "linear"], "needs --method constrained"),
        ("tradeoff", ["--budget", "0.5"], "leave out --budget"),
        ("tradeoff", ["--budgets", "1"], "at least 2"),
        ("tradeoff", ["--max-correlation", "0.0001"], "No budget has an upper bound"),
        ("tradeoff", ["--fail-on-leak"], "leave out --fail-on-leak"),
        ("tradeoff", ["--orthogonal-on", "new-rows"], "training"),
        ("tradeoff", ["--folds", "3"], "leave out --folds"),
        ("tradeoff", ["--group-tolerance", "0.3"], "leave out --group-tolerance"),
    ],
)
def test_bad_input_ends_in_one_sentence(call, command: str, arguments: list[str], message: str) -> None:
    code, _, err = call(command, *arguments)
    text = " ".join(err.split())
    assert code == 2 and message in text and "Traceback" not in text


def test_the_help_of_a_tradeoff_lists_no_option_that_it_refuses(call) -> None:
    _, shown, _ = call("tradeoff", "--help")
    shown = shown[: shown.index("Exit codes")]
    assert "--budgets" in shown and "--max-correlation" in shown
    assert not [name for name in REFUSED if re.search(rf"--{name.replace('_', '-')}(?![-\w])", shown)]
