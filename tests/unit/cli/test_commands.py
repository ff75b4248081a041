"""The commands of the command line: what they say, what they write, and how they end."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.feather
import pytest

import setsquare as sq
from setsquare.cli.terminal import Screen

N = 800


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Scores of which one follows sex, and features of an outcome."""
    rng = np.random.default_rng(1)
    sex, site = rng.choice(["F", "M"], N), rng.integers(1, 5, N)
    x = rng.normal(size=(N, 3)) + 0.8 * (sex == "M")[:, None]
    signal = x @ [1.0, 0.5, 0.0]
    return pd.DataFrame(
        {
            "id": np.arange(N),
            "sex": sex,
            "site": site,
            "age": rng.integers(18, 80, N),
            "leaky": 1 / (1 + np.exp(-signal)),
            "clean": rng.random(N),
            "x0": x[:, 0],
            "x1": x[:, 1],
            "x2": x[:, 2],
            "region": rng.choice(["north", "south", "west"], N),
            "y": np.where(rng.random(N) < 1 / (1 + np.exp(-signal)), "yes", "no"),
            "visits": rng.poisson(np.exp(0.3 * x[:, 0])),
        }
    )


def audited(name: str = "table.csv", *more: str) -> list[str]:
    return ["audit", name, "--predictions", "leaky", "--protected", "sex,age", *more]


def test_the_audit_gives_the_verdict_first_and_the_numbers_of_the_library(call, table):
    code, out, err = call(*audited())
    expected = sq.audit(table["leaky"], table[["sex", "age"]])
    assert (code, err) == (0, "") and out.startswith("LEAK. ")
    assert f"{expected.certificate.correlation:.3f}" in out and "sex: M" in out and "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 88


def test_a_leak_fails_the_build_only_where_that_was_asked_for(call):
    assert call(*audited("table.csv", "--quiet"))[0] == 0
    assert call(*audited("table.csv", "--fail-on-leak", "--quiet"))[0] == 1
    clean = ("audit", "table.csv", "--predictions", "clean", "--protected", "sex", "--fail-on-leak", "--quiet")
    code, out, _ = call(*clean)
    assert code == 0 and out.startswith("NO LEAK FOUND.") and len(out.splitlines()) <= 2


def test_every_format_gives_the_same_audit_whatever_its_suffix(call, table, monkeypatch):
    expected = call(*audited())[1]
    table.to_parquet("table.txt")
    pyarrow.feather.write_feather(table, "table.csv.feather")
    Path("packed.bin").write_bytes(gzip.compress(Path("table.csv").read_bytes()))
    table.to_csv("semicolons.csv", sep=";", index=False)
    for name in ("table.txt", "table.csv.feather", "packed.bin", "semicolons.csv"):
        assert call(*audited(name))[1] == expected, name
    for name in ("table.csv", "table.txt"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(name).read_bytes())))
        assert call(*audited("-"))[1] == expected


def test_json_and_html_hold_the_verdict_the_command_and_the_checksum(call, table):
    call(*audited("table.csv", "--outcome", "y", "--json", "out.json", "--html", "out.html", "--quiet"))
    found = json.loads(Path("out.json").read_text())
    assert found["verdict"] == "leak" and found["command"].startswith("setsquare audit table.csv")
    assert found["data"]["sha256"] == hashlib.sha256(Path("table.csv").read_bytes()).hexdigest()
    auc = {score["metric"]: score["value"]["estimate"] for score in found["models"][0]["scores"]}["auc"]
    y, p = table["y"] == "yes", table["leaky"]
    pairs = p[y].to_numpy()[:, None] - p[~y].to_numpy()
    np.testing.assert_allclose(auc, np.mean(pairs > 0) + 0.5 * np.mean(pairs == 0), rtol=1e-12)
    page = Path("out.html").read_text()
    assert found["data"]["sha256"] in page and "setsquare audit table.csv" in page
    assert sorted(path.name for path in Path().iterdir()) == ["out.html", "out.json", "table.csv"]


def test_numbers_that_may_stand_for_groups_are_named_and_can_be_taken_for_groups(call):
    command = ("audit", "table.csv", "--predictions", "leaky", "--protected", "site,sex")
    assert "pass --categorical site" in call(*command)[1].replace("\n  ", " ")
    assert "site: 2" in call(*command, "--categorical", "site")[1]
    cells = call(*command, "--group-cells")[1]
    assert "site:sex: 1,M" in cells and "whole numbers of 'site' were read as groups" in cells


def test_rows_with_missing_values_are_left_out_with_a_count(call, table):
    table.assign(age=table["age"].where(table["id"] > 9), leaky=table["leaky"].where(table["id"] < 790)).to_csv(
        "holes.csv", index=False
    )
    out = call(*audited("holes.csv", "--missing", "drop"))[1]
    assert f"20 of {N} rows have a missing value" in out and "780 predictions" in out


def test_a_comparison_puts_predictions_side_by_side(call):
    command = ("compare", "table.csv", "--predictions", "leaky,clean", "--protected", "sex", "--outcome", "y")
    code, out, _ = call(*command)
    assert code == 0 and out.startswith("leaky: LEAK. ") and "clean: NO LEAK FOUND. " in out and "Side by side" in out
    assert "the family is binomial" in out and "positive class: yes" in out.split("Side by side")[0]
    assert call(*command, "--fail-on-leak", "--quiet")[0] == 1


@pytest.mark.parametrize("method", ["constrained", "generalized", "linear"])
@pytest.mark.parametrize(("target", "family"), [("y", "binomial"), ("visits", "poisson"), ("x2", "gaussian")])
def test_a_corrected_model_is_orthogonal_and_applies_what_it_learned(call, table, method, target, family):
    features = "x0,x1,region" if target == "x2" else "x0,x1,x2,region"
    code, out, err = call(
        *("correct", "table.csv", "--outcome", target, "--protected", "sex", "--features", features),
        *("--method", method, "--model", "m.setsquare", "--apply", "table.csv", "--write-predictions", "p.parquet"),
        *("--folds", "3", "--json", "out.json"),
    )
    assert (code, err) == (0, "") and f"the family is {family}" in out.replace("\n  ", " ")
    p = pd.read_parquet("p.parquet")
    p = p["probability[yes]"] if target == "y" else p["prediction"]
    male = table["sex"] == "M"
    gap, spread = p[male].mean() - p[~male].mean(), p.std()
    # The others learn on cross-fitted predictions, and leave sampling error on the training rows.
    assert abs(gap) < (1e-8 if method == "constrained" else 0.1) * spread
    models = json.loads(Path("out.json").read_text())["models"]
    assert [model["name"] for model in models] == ["as trained", "corrected"]
    assert models[0]["audit"]["verdict"] == "leak" and "effects" in models[0]["audit"]["found"]
    assert "effects" not in models[1]["audit"]["found"]  # the spread of the predictions may still differ


def test_a_constrained_model_needs_no_protected_column_and_any_order_of_the_others(call, table):
    common = (
        "correct",
        "table.csv",
        "--outcome",
        "y",
        "--protected",
        "sex",
        "--features",
        "x0,x1,x2,region",
        "--quiet",
    )
    call(*common, "--model", "m.setsquare", "--folds", "2")
    call("apply", "table.csv", "--model", "m.setsquare", "--write-predictions", "all.csv", "--keep", "id")
    table.iloc[:5][["region", "x2", "x1", "x0"]].to_csv("few.csv", index=False)
    code, out, _ = call("apply", "few.csv", "--model", "m.setsquare")
    few, every = pd.read_csv(io.StringIO(out)), pd.read_csv("all.csv")
    assert code == 0 and list(every) == ["id", "prediction", "probability[no]", "probability[yes]"]
    pd.testing.assert_frame_equal(few, every.iloc[:5].drop(columns="id"), check_exact=False, rtol=1e-12)
    call(*common, "--model", "g.setsquare", "--folds", "2", "--method", "generalized")
    code, _, err = call("apply", "few.csv", "--model", "g.setsquare")
    assert code == 2 and "There is no column 'sex'" in err


def test_groups_of_digits_stay_groups_when_new_rows_have_nothing_else(call, table):
    table = table.assign(region=table["region"].map({"north": "01", "south": "2", "west": "x"}))
    table.to_csv("table.csv", index=False)
    common = ("correct", "table.csv", "--outcome", "y", "--protected", "sex", "--features", "x0,x1,region", "--quiet")
    assert call(*common, "--model", "m.setsquare", "--folds", "2")[0] == 0
    table[table["region"] != "x"].to_csv("digits.csv", index=False)
    call("apply", "table.csv", "--model", "m.setsquare", "--write-predictions", "all.csv")
    assert call("apply", "digits.csv", "--model", "m.setsquare", "--write-predictions", "p.csv")[0] == 0
    every = pd.read_csv("all.csv")[(table["region"] != "x").to_numpy()].reset_index(drop=True)
    pd.testing.assert_frame_equal(pd.read_csv("p.csv"), every, check_exact=False, rtol=1e-12)


def test_a_group_of_one_row_does_not_end_the_audit_in_folds(call, table):
    table.assign(region=table["region"].where(table["id"] != 7, "east")).to_csv("rare.csv", index=False)
    common = (
        "correct",
        "rare.csv",
        "--outcome",
        "y",
        "--protected",
        "sex",
        "--features",
        "x0,x1,region",
        "--l2",
        "1e-3",
    )
    code, out, err = call(*common, "--model", "m.setsquare", "--folds", "2")
    assert (code, err) == (0, "") and "a level that the other folds do not have" in out.replace("\n  ", " ")
    assert sq.load("m.setsquare").unseen == "error"
    table.assign(region="centre").to_csv("new.csv", index=False)
    code, _, err = call("apply", "new.csv", "--model", "m.setsquare")
    assert code == 2 and "'centre' (800)" in err and "--unseen pool" in err


def test_a_table_that_is_too_wide_goes_on_below_and_breaks_no_word(capsys):
    screen = Screen()
    screen.width = 50
    names = [f"model_{j}" for j in range(5)]
    screen.grid([["", *names], ["accuracy", *["0.812 [0.800, 0.823]"] * 5], ["a" * 60, *["1"] * 5]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 50 and sum(line.count("[0.800, 0.823]") for line in lines) == 5
    assert all(any(name in line.split() for line in lines) for name in names)


def test_names_from_a_file_are_harmless_text(call, table):
    evil = {"sex": "[red]<script>alert(1)</script>", "age": "a\x1b[31m\nge", "leaky": "{{ 7 * 7 }}"}
    table.assign(sex=table["sex"].map({"F": '"; DROP', "M": "\x1b]0;title\x07[/bold]"})).rename(columns=evil).to_csv(
        "evil.csv", index=False
    )
    protected = ["--protected", evil["sex"], "--protected", evil["age"]]
    outputs = ["--html", "out.html", "--json", "out.json"]
    code, out, err = call("audit", "evil.csv", "--predictions", evil["leaky"], *protected, *outputs)
    assert (code, err) == (0, "")
    assert "\x1b" not in out and "\x07" not in out and "\\x1b[31m\\nge" in out and "[red]<script>" in out
    page = Path("out.html").read_text()
    assert "<script>alert(1)" not in page and "\x1b" not in page and "{{ 7 * 7 }}" in page
    assert json.loads(Path("out.json").read_text())["evaluations"][0]["effects"][0]["source"] == evil["sex"]
    code, _, err = call("audit", "evil.csv", "--predictions", "\x1b[2J", "--protected", "x0")
    assert code == 2 and "\x1b" not in err


def test_an_interrupt_ends_without_a_traceback(call, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("setsquare.cli.files.open_source", interrupt)
    assert call(*audited()) == (130, "", "")


def test_a_defect_is_no_leak(call, monkeypatch):
    monkeypatch.setattr("setsquare.cli.files.open_source", lambda *_: 1 / 0)
    code, _, err = call(*audited())
    assert code == 3 and "ZeroDivisionError" in err


def test_data_sets_are_listed_shown_and_written(call):
    out = call("data", "list")[1]
    assert "diabetes" in out and "progression (gaussian)" in out
    assert "age, sex" in call("data", "show", "diabetes")[1]
    assert call("data", "fetch", "diabetes", "--output", "d.csv")[0] == 0
    assert len(pd.read_csv("d.csv")) == 442


def test_a_new_process_predicts_the_same_and_bears_a_reader_that_leaves(call, table):
    call(
        *("correct", "table.csv", "--outcome", "y", "--protected", "sex", "--features", "x0,x1,x2,region", "--quiet"),
        *("--model", "m.setsquare", "--apply", "table.csv", "--write-predictions", "p.parquet", "--folds", "2"),
    )
    pd.concat([table] * 40).drop(columns="sex").to_csv("long.csv", index=False)
    command = [sys.executable, "-m", "setsquare", "apply", "long.csv", "--model", "m.setsquare"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        head = b"".join(process.stdout.readline() for _ in range(N + 1))
        process.stdout.close()
        assert (process.wait(100), process.stderr.read()) == (141, b"")
    found, expected = pd.read_csv(io.BytesIO(head)), pd.read_parquet("p.parquet")
    np.testing.assert_allclose(found["probability[yes]"], expected["probability[yes]"], rtol=1e-12, atol=0.0)


def test_a_column_that_is_numeric_but_for_a_point_is_refused_unless_it_is_declared(call, table):
    table.assign(age=np.where(table.index == 3, ".", table["age"].astype(str))).to_csv("table.csv", index=False)
    code, out, err = call(*audited())
    assert code == 2 and "Column 'age' holds numbers but for '.' (1 row)" in err and "--categorical" in err
    correcting = ("correct", "table.csv", "--outcome", "y", "--protected", "sex", "--features", "x0,age", "--quiet")
    code, out, err = call(*correcting, "--model", "m.setsquare")
    assert code == 2 and "Column 'age' holds numbers but for '.'" in err and not Path("m.setsquare").exists()
    code, out, _ = call(*audited("table.csv", "--categorical", "age"))
    assert code == 0 and "age: 23" in out
    assert call(*correcting, "--model", "m.setsquare", "--categorical", "age", "--unseen", "pool")[0] == 0
    assert call("apply", "table.csv", "--model", "m.setsquare", "--quiet")[1].count("\n") == N + 1


@pytest.fixture
def clustered(table: pd.DataFrame) -> pd.DataFrame:
    """Forty patients of twenty rows each that share most of outcome and prediction."""
    rng = np.random.default_rng(7)
    patient = np.repeat(np.arange(40), N // 40)
    shared = rng.normal(size=40)[patient]
    score = 1 / (1 + np.exp(-1.5 * shared - 0.2 * rng.normal(size=N)))
    ill = np.where(rng.random(N) < 1 / (1 + np.exp(-2.0 * shared)), "yes", "no")
    return table.assign(patient=patient, score=score, other=score**2, ill=ill, visits=rng.poisson(np.exp(shared)))


@pytest.mark.parametrize("command", ["audit", "compare", "correct"])
def test_the_page_shows_the_cluster_robust_intervals_of_terminal_and_json(call, clustered, command):
    clustered.to_csv("table.csv", index=False)
    columns = {
        "audit": ("--predictions", "score", "--outcome", "ill"),
        "compare": ("--predictions", "score,other", "--outcome", "ill"),
        "correct": ("--outcome", "ill", "--features", "score,x0,x1", "--model", "m.setsquare"),
    }[command]
    common = (command, "table.csv", *columns, "--protected", "sex", "--cluster", "patient")
    code, out, err = call(*common, "--html", "page.html", "--json", "out.json")
    assert (code, err) == (0, "")
    page, found = Path("page.html").read_text(encoding="utf-8"), json.loads(Path("out.json").read_text())
    for model in found["models"]:
        for score in model["scores"]:
            low, high = score["value"]["ci_low"], score["value"]["ci_high"]
            assert f"[{low:.3f}, {high:.3f}]" in page
            assert f"{low:.3f}" in out
    accuracy = next(s for s in found["models"][-1]["scores"] if s["metric"] == "accuracy")["value"]
    independent = np.sqrt(accuracy["estimate"] * (1 - accuracy["estimate"]) / N)
    assert accuracy["std_error"] > 1.3 * independent


def test_means_by_group_on_the_page_are_cluster_robust_too(call, clustered):
    clustered.to_csv("table.csv", index=False)
    common = ("audit", "table.csv", "--predictions", "score", "--protected", "sex", "--html", "page.html", "--quiet")
    assert call(*common, "--cluster", "patient")[0] == 0
    rows = clustered[["score", "sex", "patient"]]
    audit = sq.audit(rows["score"], rows["sex"], cluster=rows["patient"])
    same = {"predictions": rows["score"], "protected": rows[["sex"]]}
    wanted = sq.report.build(audit, cluster=rows["patient"], **same).section("levels")["tables"][0]["rows"][0]
    assert f'data-value="{wanted[3]}"' in Path("page.html").read_text(encoding="utf-8")
    with pytest.raises(sq.errors.InputError, match="pass cluster="):
        sq.report.build(audit, **same)


def test_counts_have_one_family_at_every_door(call, clustered):
    clustered.to_csv("table.csv", index=False)
    common = ("compare", "table.csv", "--predictions", "score", "--protected", "sex", "--outcome", "visits")
    assert call(*common, "--json", "out.json", "--quiet")[0] == 0
    compared = sq.compare({"score": clustered["score"]}, clustered["visits"], clustered["sex"])
    assert json.loads(Path("out.json").read_text())["family"] == compared.family == "poisson"
    assert "The outcome 'visits' is a count (whole numbers from 0), so the family is poisson" in compared.notes[0]
    assert "so the family is poisson" in str(compared)
    # A count has no negative mean: predictions of a linear model are compared as numbers, at both doors.
    clustered.assign(score=clustered["score"] - 0.5).to_csv("table.csv", index=False)
    assert call(*common, "--json", "out.json", "--quiet")[0] == 0
    compared = sq.compare({"score": clustered["score"] - 0.5}, clustered["visits"], clustered["sex"])
    assert json.loads(Path("out.json").read_text())["family"] == compared.family == "gaussian"


@pytest.fixture
def decided(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(decision=np.where(table["y"] == "yes", "approved", "denied"), p_approved=table["leaky"])


@pytest.mark.parametrize("command", ["audit", "compare"])
def test_the_positive_class_is_named_or_asked_for_and_never_alphabetical(call, decided, command):
    decided.to_csv("table.csv", index=False)
    common = (command, "table.csv", "--protected", "sex", "--outcome", "decision", "--json", "out.json")
    code, out, err = call(*common, "--predictions", "leaky")
    assert code == 2 and "which of the classes 'approved' and 'denied' is the positive one" in err
    assert "--positive approved or --positive denied" in err

    def auc() -> float:
        found = json.loads(Path("out.json").read_text())
        return next(s for s in found["models"][0]["scores"] if s["metric"] == "auc")["value"]["estimate"]

    code, out, _ = call(*common, "--predictions", "leaky", "--positive", "approved")
    assert code == 0 and "positive class: approved" in " ".join(out.split("\n")[:10]) and auc() > 0.7
    code, out, _ = call(*common, "--predictions", "p_approved", "--html", "page.html")
    assert code == 0 and "positive class: approved" in " ".join(out.split("\n")[:10]) and auc() > 0.7
    assert json.loads(Path("out.json").read_text())["positive"] == "approved"
    assert "positive class: approved" in Path("page.html").read_text(encoding="utf-8")
    assert call(*common, "--predictions", "leaky", "--positive", "denied")[0] == 0 and auc() < 0.3
    code, _, err = call(*common, "--predictions", "leaky", "--positive", "maybe")
    assert code == 2 and "--positive maybe is not one of the classes" in err


def test_a_corrected_model_says_which_class_is_positive(call, decided):
    decided.to_csv("table.csv", index=False)
    common = ("correct", "table.csv", "--outcome", "decision", "--protected", "sex", "--features", "x0,x1,x2")
    code, out, err = call(*common, "--model", "m.setsquare")
    assert (code, err) == (0, "") and "positive class: denied" in out.split("Held out")[0]  # its classes_ decide
    code, out, _ = call(*common, "--model", "m.setsquare", "--positive", "approved", "--html", "page.html")
    assert code == 0 and "positive class: approved" in out.split("Held out")[0]
    page = Path("page.html").read_text(encoding="utf-8")
    assert 'as trained:</span> <strong class="leak">dependence found' in page and "corrected:</span>" in page
    code, _, err = call(*common, "--model", "m.setsquare", "--positive", "maybe")
    assert code == 2 and "--positive maybe" in err


def test_levels_of_one_and_two_rows_are_reported(call, tmp_path: Path, table: pd.DataFrame) -> None:
    race = np.where(np.arange(N) % 2 == 0, "a", "b").astype(object)
    race[:3] = ["c", "d", "d"]
    table.assign(race=race).to_csv(tmp_path / "table.csv", index=False)
    options = ("--protected", "race", "--outcome", "y", "--html", "page.html")
    code, _, err = call("audit", "table.csv", "--predictions", "leaky", "--positive", "yes", *options)
    assert code in (0, 1), err
    assert (tmp_path / "page.html").exists()
    model = ("--features", "x0,x1,x2,age,region", "--model", "m.setsquare", "--folds", "2")
    code, _, err = call("correct", "table.csv", *options, *model)
    assert code == 0, err
    assert (tmp_path / "m.setsquare").exists()


def test_features_are_widened_for_the_constrained_method_only(call):
    asked = (
        *("correct", "table.csv", "--outcome", "y", "--protected", "sex", "--features", "x0,x1,x2,region"),
        *("--model", "wide.setsquare", "--expand", "auto", "--folds", "2"),
    )
    code, _, error = call(*asked)
    assert code == 0, error
    names = list(sq.load("wide.setsquare").coefficient_names_)
    assert any(name.startswith("x0>") for name in names) and any(":" in name for name in names)
    code, _, error = call(*asked, "--method", "generalized")
    assert code == 2 and "--expand widens the features of the constrained method" in error
