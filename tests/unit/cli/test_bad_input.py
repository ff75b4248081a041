"""Bad input on the command line: exit code 2, one sentence, no traceback, no file left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from setsquare.cli.arguments import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with good and bad files, as the current one."""
    rng = np.random.default_rng(0)
    n = 60
    table = pd.DataFrame(
        {"sex": rng.choice(["F", "M"], n), "age": rng.integers(20, 60, n), "score": rng.random(n), "x": rng.random(n)}
    ).assign(y=rng.integers(2, size=n))
    table.to_csv(tmp_path / "good.csv", index=False)
    table.to_parquet(tmp_path / "good.parquet")
    table.assign(age=np.where(table.index < 2, np.nan, table.age)).to_csv(tmp_path / "holes.csv", index=False)
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "header.csv").write_text("sex,age,score,x,y\n")
    (tmp_path / "one.csv").write_text("sex,age,score,x,y\nF,30,0.5,1,0\n")
    (tmp_path / "rubbish.csv").write_bytes(rng.bytes(4000))
    (tmp_path / "rubbish.parquet").write_bytes(b"PAR1" + rng.bytes(4000))
    (tmp_path / "rubbish.feather").write_bytes(b"ARROW1" + rng.bytes(4000))
    (tmp_path / "sheet.csv").write_bytes(b"PK\x03\x04 a workbook")
    (tmp_path / "ragged.csv").write_text("sex,age,score,x,y\nF,30\nM,31,0.1,2,1,7,8\n")
    (tmp_path / "twice.csv").write_text("sex,age,sex,score,x,y\nF,30,M,0.5,1,0\n")
    (tmp_path / "model.setsquare").write_bytes(b"PK\x03\x04" + rng.bytes(400))
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


AUDIT = "audit {} --predictions score --protected sex,age --json out.json"
COMPARE = "compare {} --predictions score,x --outcome y --protected sex,age --json out.json"
CORRECT = "correct {} --outcome y --features x,score,age --protected sex --model out.setsquare --json out.json"
APPLY = "apply {} --model model.setsquare --write-predictions out.csv"

FILES = (
    "missing.csv",
    "folder",
    "empty.csv",
    "header.csv",
    "one.csv",
    "rubbish.csv",
    "rubbish.parquet",
    "rubbish.feather",
    "sheet.csv",
    "ragged.csv",
    "twice.csv",
    "holes.csv",
)


def refused(arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence with which the command line refuses."""
    before = sorted(Path().rglob("*"))
    monkeypatch.setattr("sys.argv", ["setsquare", *arguments.split(" ")])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, ""), err
    assert err.startswith("setsquare: ") and err.count("\n") == 1 and "Traceback" not in err
    assert err.rstrip().endswith((".", "?")) and len(err) < 500
    assert sorted(Path().rglob("*")) == before
    return err


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("command", [AUDIT, COMPARE, CORRECT])
@pytest.mark.usefixtures("folder")
def test_a_bad_file_is_refused_in_one_sentence(command: str, file: str, monkeypatch, capsys):
    sentence = refused(command.format(file), monkeypatch, capsys)
    assert file in sentence or file == "holes.csv"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("audit good.csv --predictions scor --protected sex", "did you mean 'score'?"),
        ("audit good.csv --predictions score --protected sex,aeg", "did you mean 'age'?"),
        ("audit good.csv --predictions score --protected score", "two roles (predictions and protected)"),
        ("audit good.csv --predictions score --protected ,", "names no column"),
        ("audit good.csv --predictions score", "The command audit needs --protected: see setsquare audit --help"),
        ("audit good.csv --predictions score --protected sex --html", "--html needs a value"),
        ("audit --predictions score --protected sex", "needs FILE"),
        ("audit good.csv --predictions score --protected sex --confidenc 0.9", "Did you mean --confidence?"),
        ("audit good.csv --predictions score --protected sex --confidence 7", "between 0.5 and 1"),
        ("audit good.csv --predictions score --protected sex --confidence much", "--confidence"),
        ("audit good.csv --predictions score --protected sex --family gausian", "--family"),
        ("audit good.csv --predictions sex --protected age --family gaussian", "leave --family out"),
        ("audit good.csv other.csv --predictions score --protected sex", "other.csv"),
        ("audit good.csv --predictions score --protected sex --html nowhere/page.html", "nowhere does not exist"),
        ("audit good.csv --predictions score --protected sex --json folder", "is a folder"),
        ("audit good.csv --predictions score --protected sex --json good.csv", "is read as well"),
        ("audit good.csv --predictions score --protected sex --json a --html a", "written twice"),
        ("audit holes.csv --predictions score --protected age", "pass --missing drop"),
        ("compare good.csv --predictions score,x --protected sex", "needs --outcome"),
        ("compare good.csv --predictions score,x --protected sex --outcome sx", "There is no column 'sx'"),
        ("correct good.csv --outcome y --protected sex", "needs --model"),
        ("correct good.csv --outcome y --protected sex --model m --method best", "--method"),
        ("correct good.csv --outcome y --protected sex --model m --apply good.csv", "belong together"),
        ("correct good.csv --outcome y --protected sex --model m --apply no.csv --write-predictions p.csv", "no.csv"),
        ("correct good.csv --outcome y --features x --protected sex --model m", "more features than protected"),
        ("correct good.csv --outcome y --protected sex --model m --folds 1", "--folds 1 "),
        ("correct good.csv --outcome sex --protected age --model m --family gaussian", "is text"),
        ("correct good.csv --outcome score --protected age --model m --family poisson --l2 -1", "l2"),
        ("apply good.csv --model model.setsquare --write-predictions out.csv", "is damaged"),
        ("apply good.csv --model good.csv --write-predictions out.csv", "saved model"),
        ("apply good.csv --model none.setsquare", "none.setsquare cannot be read"),
        ("apply good.csv --model folder", "folder cannot be read"),
        ("audit good.csv --predictions score --protected sex --level 0.9", "no option --level: use --confidence."),
        ("compare good.csv --predictions score --protected sex --target=y", "no option --target: use --outcome."),
        ("correct good.csv --target y --protected sex --model m", "no option --target: use --outcome."),
        ("correct good.csv --outcome y --protected sex --output m", "no option --output: use --model."),
        ("correct good.csv --predictions p.csv", "no option --predictions: use --write-predictions."),
        ("apply good.csv --model m --predictions p.csv", "no option --predictions: use --write-predictions."),
        ("apply m.setsquare good.csv", "name the model by an option, --model m.setsquare."),
        ("data show adlt", "did you mean adult"),
        ("data shw", "Did you mean"),
        ("data fetch diabetes --output nowhere/d.csv", "nowhere does not exist"),
        ("paper", "run python -m studies from a clone"),
        ("paper --quick table2 --output folder", "run python -m studies from a clone"),
        ("adit good.csv", 'Did you mean "audit"?'),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_arguments_are_refused_in_one_sentence(arguments: str, what: str, monkeypatch, capsys):
    assert what in refused(arguments, monkeypatch, capsys)


@pytest.mark.usefixtures("folder")
def test_files_without_permission_are_refused(monkeypatch, capsys):
    with monkeypatch.context() as locked:  # the superuser may read and write everything: the system's answer is played

        def refuse(self: Path, *_: object) -> None:
            raise PermissionError(13, "Permission denied", str(self))

        locked.setattr(Path, "open", refuse)
        assert "good.csv cannot be read (Permission denied)" in refused(AUDIT.format("good.csv"), locked, capsys)
    with monkeypatch.context() as locked:
        locked.setattr("os.access", lambda *_: False)
        assert "cannot be written to" in refused(AUDIT.format("good.csv"), locked, capsys)


@pytest.mark.usefixtures("folder")
def test_the_control_that_nothing_is_wrong_with_the_good_file(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["setsquare", *AUDIT.format("good.csv").split()])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0 and Path("out.json").exists()
    assert capsys.readouterr().err == ""
