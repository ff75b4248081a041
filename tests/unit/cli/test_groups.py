"""Numbers by group, standards and the monitor on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from setsquare.cli.arguments import main

N = 1200


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Scores of applicants that are lower for one group, and decisions made from them."""
    rng = np.random.default_rng(3)
    race, sex = rng.choice(["White", "Black", "Asian"], N, p=[0.6, 0.3, 0.1]), rng.choice(["F", "M"], N)
    score = 1.0 / (1.0 + np.exp(-rng.normal(size=N) + 1.2 * (race == "Black")))
    return pd.DataFrame({"race": race, "sex": sex, "score": score, "hired": np.where(score >= 0.5, "yes", "no")})


@pytest.fixture
def call(tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Call the command line in a folder with the table: exit code, standard output, standard error."""
    table.to_csv(tmp_path / "table.csv", index=False)
    monkeypatch.chdir(tmp_path)

    def run(command: str, *arguments: str, predictions: str = "score") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["setsquare", command, "table.csv", "--predictions", predictions, *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("decided", [("--threshold", "0.5"), ("--decisions", "hired")])
def test_rates_and_ratios_are_those_of_the_table(call, table: pd.DataFrame, decided: tuple[str, str]) -> None:
    code, out, err = call("audit", "--protected", "race", *decided, "--reference", "race=Asian")
    rates = table.assign(hired=table["hired"] == "yes").groupby("race")["hired"].mean()
    assert code == 0, err
    for group, rate in rates.items():
        row = next(line for line in out.splitlines() if line.startswith(f"race: {group} ") and "[" in line)
        assert f"{rate:.3f} [" in row
        assert f" {rate / rates['Asian']:.3f} " in row
    assert f"Share selected, by race: {100 * rates['Black']:.1f} % of Black" in " ".join(out.split())


def test_four_fifths_names_the_groups_below(call, tmp_path: Path, table: pd.DataFrame) -> None:
    options = ("--threshold", "0.5", "--standard", "four-fifths", "--json", "o.json")
    code, out, err = call("audit", "--protected", "race", *options)
    assert code == 0, err
    rates = table.assign(hired=table["hired"] == "yes").groupby("race")["hired"].mean()
    standard = json.loads((tmp_path / "o.json").read_text())["groups"]["standard"]
    assert {row["group"]: row["below_four_fifths"] for row in standard["rows"]} == dict(rates / rates.max() < 0.8)
    assert "This table is not legal advice." in " ".join(out.split())


def test_local_law_144_scores_rows_above_the_median(call, tmp_path: Path, table: pd.DataFrame) -> None:
    code, _, err = call("audit", "--protected", "race,sex", "--standard", "ll144", "--json", "o.json")
    assert code == 0, err
    rows = json.loads((tmp_path / "o.json").read_text())["groups"]["standard"]["rows"]
    above = table.assign(above=table["score"] > table["score"].median())
    for columns in (["race"], ["sex"], ["race", "sex"]):
        rates = above.groupby(columns)["above"].mean()
        found = {r["group"]: r["scoring_rate"] for r in rows if r["source"] == ":".join(columns)}
        expected = {", ".join(k) if isinstance(k, tuple) else k: v for k, v in rates.items()}
        assert found == pytest.approx(expected)


def test_small_groups_have_no_numbers(call) -> None:
    code, out, err = call("audit", "--protected", "race", "--threshold", "0.5", "--min-group", "200")
    assert code == 0, err
    row = next(line for line in out.splitlines() if line.startswith("race") and " Asian " in line and "[" not in line)
    assert "0." not in row


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--threshold", "0.5", "--reference", "race=Green"), ("race", "Green", "White")),
        (("--threshold", "0.5", "--reference", "White"), ("White",)),
        (("--threshold", "0.5", "--decisions", "hired"), ("threshold", "decisions")),
        (("--decisions", "absent"), ("absent",)),
        (("--decisions", "score"), ("score",)),
        (("--standard", "four-fifths"), ("threshold", "decisions")),
        (("--min-group", "-1", "--threshold", "0.5"), ("min-group",)),
    ],
)
def test_bad_options_get_one_sentence(call, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    code, _, err = call("audit", "--protected", "race", *options)
    assert code == 2
    assert "Traceback" not in err
    assert all(word in err for word in words), err


def test_a_monitor_remembers_and_alarms(call, tmp_path: Path, table: pd.DataFrame) -> None:
    options = ("--protected", "race", "--state", "m.state", "--json", "o.json")
    code, out, err = call("monitor", *options)
    assert code == 0, err  # an alarm ends with 1 only if asked for
    assert out.startswith("ALARM. Mean prediction of race Black is ")
    first = json.loads((tmp_path / "o.json").read_text())
    code, _, _ = call("monitor", *options, "--fail-on-alarm")
    assert code == 1
    second = json.loads((tmp_path / "o.json").read_text())
    assert second["n"] == 2 * first["n"] == 2 * N


def test_a_state_belongs_to_one_monitor(call, tmp_path: Path, table: pd.DataFrame) -> None:
    call("monitor", "--protected", "race", "--state", "m.state")
    kept = (tmp_path / "m.state").read_bytes()
    code, _, err = call("monitor", "--protected", "sex", "--state", "m.state")
    assert code == 2
    assert "m.state belongs to another monitor" in err
    table.assign(rank=table["score"]).to_csv(tmp_path / "table.csv", index=False)
    code, _, err = call("monitor", "--protected", "race", "--state", "m.state", predictions="rank")
    assert code == 2
    assert "m.state belongs to another monitor (predictions: score there, rank here)" in err
    assert (tmp_path / "m.state").read_bytes() == kept


def test_predictions_outside_their_bounds_leave_no_state(call, tmp_path: Path) -> None:
    code, _, err = call("monitor", "--protected", "race", "--state", "m.state", "--bounds", "0", "0.5")
    assert code == 2
    assert " of 1200 predictions lie outside 0 to 0.5" in err
    assert "--bounds" in err
    assert not (tmp_path / "m.state").exists()


def test_files_have_no_numbers_of_a_group_of_three_rows(call, tmp_path: Path, table: pd.DataFrame) -> None:
    rare = table.assign(race=np.where(np.arange(N) < 3, "Rare", table["race"]))
    rare.loc[:2, "score"] = [0.123457, 0.543219, 0.987653]
    rare.to_csv(tmp_path / "table.csv", index=False)
    options = ("--protected", "race", "--threshold", "0.5", "--json", "out.json", "--html", "page.html")
    values = ("0.12345", "0.54321", "0.54322", "0.98765", f"{np.mean([0.123457, 0.543219, 0.987653]):.4f}")
    for limit in ((), ("--min-group", "1")):
        code, out, err = call("audit", *options, *limit)
        assert code in (0, 1), err
        written = (tmp_path / "out.json").read_text() + (tmp_path / "page.html").read_text() + out
        assert any(value in written for value in values) == bool(limit)
    assert "Rare" in written


def test_a_table_of_small_groups_only_has_a_page_without_their_figure(
    call, tmp_path: Path, table: pd.DataFrame
) -> None:
    options = ("--protected", "race", "--threshold", "0.5", "--html", "page.html", "--json", "out.json")
    for rows, drawn in ((table, True), (table.groupby("race").head(6), False)):
        rows.to_csv(tmp_path / "table.csv", index=False)
        code, _, err = call("audit", *options)
        assert code in (0, 1), err
        assert ("Share selected by group" in (tmp_path / "page.html").read_text()) == drawn
