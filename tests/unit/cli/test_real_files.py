"""Files as people have them: workbooks, decimal commas, other encodings, identifiers, dates, formulas."""

from __future__ import annotations

import csv
import datetime
import io
import json
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import setsquare as sq
import setsquare._extras as extras
from setsquare.cli.csv_text import find_delimiter, read_decimal_commas
from setsquare.cli.left_out import find_left_out

N = 300


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sex = rng.choice(["femme", "homme"], N)
    income = rng.normal(size=N) + 0.7 * (sex == "homme")
    debt, age = rng.normal(size=N), rng.integers(18, 80, N)
    score = 1.0 / (1.0 + np.exp(-income - 0.5 * debt))
    return pd.DataFrame(
        {
            "customer_id": 1000 + np.arange(N),
            "since": [datetime.date(2020, 1, 1) + datetime.timedelta(days=int(j % 90)) for j in range(N)],
            "sex": sex,
            "region": rng.choice(["Île-de-France", "Réunion", "Paris"], N),
            "income": income.round(4),
            "debt": debt.round(4),
            "age": age,
            "remark": [f"row {j};\nsecond line" for j in range(N)],
            "empty": np.nan,
            "index": np.arange(N),
            "score": score.round(5),
            "y": (rng.uniform(size=N) < score).astype(int),
        }
    )


@pytest.fixture(scope="module")
def model(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> str:
    fitted = sq.OrthogonalGLMClassifier(protected=["sex"]).fit(table[["sex", "income", "debt", "age"]], table["y"])
    path = tmp_path_factory.mktemp("models") / "m.setsquare"
    sq.save(fitted, path)
    return str(path)


def european(table: pd.DataFrame, encoding: str) -> bytes:
    """Semicolons, decimal commas, dates with points."""
    stream = io.StringIO()
    written = table.assign(since=[day.strftime("%d.%m.%Y") for day in table["since"]])
    written.to_csv(stream, sep=";", decimal=",", index=False, quoting=csv.QUOTE_MINIMAL)
    return stream.getvalue().encode(encoding)


AUDIT = ("--predictions", "score", "--protected", "sex,region")
CORRECT = ("--outcome", "y", "--protected", "sex", "--exclude", "score", "--model", "m.setsquare")


def notes_of(path: str = "out.json") -> str:
    return " ".join(note["text"] for note in json.loads(Path(path).read_text())["notes"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_every_encoding_gives_the_result_of_the_plain_file(call, table: pd.DataFrame, encoding: str) -> None:
    code, known, _ = call("audit", "table.csv", *AUDIT)
    assert code == 0 and "Île-de-France" in known
    Path("other.csv").write_bytes(european(table, encoding))
    code, out, err = call("audit", "other.csv", *AUDIT, "--json", "out.json")
    assert (code, err) == (0, "")
    assert out.split("Notes")[0] == known.split("Notes")[0]
    assert ("other.csv is not UTF-8 and was read as Windows-1252" in notes_of()) == (encoding == "latin-1")
    assert "Numbers in score were read with a decimal comma" in notes_of()


def test_a_letter_that_is_not_utf8_behind_the_first_bytes_changes_the_encoding(call) -> None:
    rows = [f"{j % 10 / 10},{'ab'[j % 2]}{'c' * 300}" for j in range(400)]
    Path("late.csv").write_bytes("\n".join(["score,name", *rows, "0.5,caf\xe9"]).encode("latin-1"))
    code, _, err = call("audit", "late.csv", "--predictions", "score", "--protected", "name", "--json", "out.json")
    assert (code, err) == (0, "")
    assert "Windows-1252" in notes_of()
    code, _, err = call("audit", "late.csv", "--predictions", "score", "--protected", "name", "--categorical", "name")
    assert (code, err) == (0, "")


def test_an_encoding_and_a_decimal_sign_can_be_named(call, table: pd.DataFrame) -> None:
    Path("other.csv").write_bytes(european(table, "latin-1"))
    named = ("--encoding", "cp1252", "--decimal", ",", "--json", "out.json")
    assert call("audit", "other.csv", *AUDIT, *named)[0] == 0
    assert "decimal" not in notes_of() and "Windows" not in notes_of()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--encoding", "klingon"), "--encoding klingon is not known"),
        (("--encoding", "utf-8"), "other.csv is not encoded in utf-8: pass another --encoding, such as cp1252."),
        (("--encoding", "ascii"), "other.csv is not encoded in ascii: pass another --encoding"),
        (("--decimal", "."), "The column of predictions holds numbers as text"),
        (("--sheet", "scores"), "--sheet is for Excel files, and other.csv is not one"),
        (("--decimal", "·"), "--decimal"),
    ],
)
def test_wrong_words_about_a_file_end_in_one_sentence(call, table, arguments: tuple[str, ...], sentence: str) -> None:
    Path("other.csv").write_bytes(european(table, "latin-1"))
    code, out, err = call("audit", "other.csv", *AUDIT, *arguments)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


def test_thousands_are_not_taken_for_decimals() -> None:
    columns = {
        "thousands": ["1,234", "12,345"],
        "decimals": ["0,5", "3"],
        "mixed": ["0,5", "x"],
        "kept": ["0,5", "1,5"],
    }
    table, found = read_decimal_commas(pa.table(columns), ["thousands", "decimals", "mixed"])
    assert found == ["decimals"]
    assert table.column("decimals").to_pylist() == [0.5, 3.0] and table.column("kept").to_pylist() == ["0,5", "1,5"]


def test_signs_inside_quotes_do_not_separate_fields() -> None:
    assert find_delimiter('id;"a, b, c, d"') == ";" and find_delimiter("a\tb,c\td") == "\t"


def workbook(table: pd.DataFrame, *more: str, path: str = "book.xlsx") -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "scores"
    values = table.drop(columns="empty").astype(object)
    for row in (values.columns.tolist(), *values.to_numpy().tolist()):
        sheet.append(row)
    for name in more:
        second = book.create_sheet(name)
        second.append(["score", "sex"])
        second.append([0.5, "femme"])
    book.create_sheet("blank")
    book.save(path)


def test_a_workbook_gives_the_result_of_the_csv(call, table: pd.DataFrame) -> None:
    workbook(table)
    _, known, _ = call("audit", "table.csv", *AUDIT)
    code, out, err = call("audit", "book.xlsx", *AUDIT)
    assert (code, err) == (0, "") and out == known


def test_a_workbook_with_several_sheets_asks_for_one(call, table: pd.DataFrame) -> None:
    workbook(table, "older")
    code, out, err = call("audit", "book.xlsx", *AUDIT)
    assert (code, out) == (2, "")
    assert err == "setsquare: book.xlsx has 2 sheets with rows ('scores', 'older'): name one with --sheet.\n"
    assert call("audit", "book.xlsx", *AUDIT, "--sheet", "scores")[0] == 0
    code, _, err = call("audit", "book.xlsx", *AUDIT, "--sheet", "Scores")
    assert code == 2 and "book.xlsx has no sheet 'Scores': it has 'scores', 'older', 'blank'." in err


@pytest.mark.parametrize("content", [b"PK\x03\x04 no workbook", b"\xd0\xcf\x11\xe0 neither"])
def test_what_only_looks_like_a_workbook_is_refused(call, content: bytes) -> None:
    Path("book.xlsx").write_bytes(content)
    code, out, err = call("audit", "book.xlsx", *AUDIT)
    assert (code, out) == (2, "") and "book.xlsx cannot be read as a workbook" in err and err.count("\n") == 1


def test_an_empty_workbook_is_refused(call) -> None:
    openpyxl.Workbook().save("book.xlsx")
    code, _, err = call("audit", "book.xlsx", *AUDIT)
    assert (code, err) == (2, "setsquare: book.xlsx has no sheet with a header and rows: add them.\n")


def test_without_its_package_a_workbook_names_what_pip_installs(call, table: pd.DataFrame, monkeypatch) -> None:
    workbook(table)
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    code, _, err = call("audit", "book.xlsx", *AUDIT)
    sentence = "setsquare: Excel files need the package python-calamine: pip install python-calamine\n"
    assert (code, err) == (2, sentence)


def test_identifiers_dates_and_empty_columns_are_left_out_of_the_features_with_a_note(call) -> None:
    code, _, err = call("correct", "table.csv", *CORRECT, "--json", "out.json")
    assert (code, err) == (0, "")
    listed = "customer_id (identifier), since (dates), remark (different texts), empty (no values), index (identifier)"
    assert f"Left out of the features: {listed}." in notes_of()


def test_columns_that_are_named_stay(call) -> None:
    named = ("--outcome", "y", "--protected", "sex", "--features", "income,debt,index", "--model", "m.setsquare")
    assert call("correct", "table.csv", *named, "--json", "out.json")[0] == 0
    assert "Left out" not in notes_of()
    code, _, err = call("correct", "table.csv", *named, "--exclude", "debt")
    assert code == 2 and "--exclude is for when all other columns are features" in err


def test_numbers_that_are_all_different_are_features() -> None:
    rng = np.random.default_rng(0)
    columns = {"pay": rng.permutation(10_000)[:500], "paid": rng.normal(size=500), "grid": np.arange(500) % 40}
    assert find_left_out(pa.table(columns), list(columns)) == {}
    assert find_left_out(pa.table({"patientId": np.arange(500) // 2}), ["patientId"]) == {"patientId": "identifier"}


def test_a_formula_stands_for_the_protected_columns(call) -> None:
    formula = "~ sex * bs(age, df=4)"
    code, out, err = call("audit", "table.csv", "--predictions", "score", "--protected", formula)
    assert (code, err) == (0, "") and "sex:age" in out
    options = ("--outcome", "y", "--protected", "~ sex + age", "--exclude", "score", "--model", "m.setsquare")
    code, _, err = call("correct", "table.csv", *options, "--json", "out.json")
    assert (code, err) == (0, "")
    assert json.loads(Path("out.json").read_text())["certificate"]["max_correlation"] < 1e-8
    assert call("apply", "table.csv", "--model", "m.setsquare", "--write-predictions", "p.csv")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--protected", "~ sx"), "There is no column 'sx'; did you mean 'sex'?"),
        (("--protected", "~ sex", "--basis", "spline"), "leave out --basis"),
        (("--protected", "sex", "--evaluation", "glmm"), "'glmm' is not one of 'glm'"),
        (("--protected", "sex", "--reference", "sex=mann"), "has no level 'mann'"),
        (("--protected", "since"), "'since'"),
    ],
)
def test_wrong_protected_columns_end_in_one_sentence(call, arguments: tuple[str, ...], sentence: str) -> None:
    code, out, err = call("audit", "table.csv", "--predictions", "score", *arguments)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


def test_evaluation_models_can_be_chosen(call) -> None:
    models = ("--evaluation", "linear,independence", "--json", "out.json")
    assert call("audit", "table.csv", "--predictions", "score", "--protected", "sex", *models)[0] == 0
    assert [each["name"] for each in json.loads(Path("out.json").read_text())["evaluations"]] == [
        "linear",
        "independence",
    ]


@pytest.mark.parametrize("name", ["p.csv", "p.TSV", "p.csv.gz", "p.parquet", "p.feather"])
def test_predictions_are_written_in_the_format_that_the_name_says(call, model: str, name: str) -> None:
    assert call("apply", "table.csv", "--model", model, "--keep", "age", "--write-predictions", name)[0] == 0
    read = {
        "p.csv": pd.read_csv,
        "p.TSV": lambda path: pd.read_csv(path, sep="\t"),
        "p.csv.gz": pd.read_csv,
        "p.parquet": lambda path: pq.read_table(path).to_pandas(),
        "p.feather": pd.read_feather,
    }[name](name)
    assert list(read.columns) == ["age", "prediction", "probability[0]", "probability[1]"] and len(read) == N


@pytest.mark.parametrize("name", ["p.xlsx", "p.txt", "p"])
def test_a_format_that_cannot_be_written_is_refused_before_any_work(call, name: str) -> None:
    for command in (
        ("correct", "table.csv", *CORRECT, "--apply", "table.csv", "--write-predictions", name),
        ("apply", "table.csv", "--model", "missing.setsquare", "--write-predictions", name),
        ("data", "fetch", "adult", "--output", name),
    ):
        code, out, err = call(*command)
        assert (code, out) == (2, "") and f"Cannot write {name}: use a name that ends in .csv" in err
    assert not Path("m.setsquare").exists()


def test_only_columns_in_use_must_have_one_name(call) -> None:
    rows = "\n".join(f"{j % 7 / 7},{'mf'[j % 2]},{j},{j % 5}" for j in range(100))
    Path("twice.csv").write_text(f"score,sex,x,x\n{rows}\n")
    assert call("audit", "twice.csv", "--predictions", "score", "--protected", "sex")[0] == 0
    code, _, err = call("audit", "twice.csv", "--predictions", "score", "--protected", "x")
    assert (code, err) == (2, "setsquare: twice.csv has more than one column 'x'; rename one of them.\n")


def test_a_monitor_and_a_model_read_the_same_files(call, table: pd.DataFrame, model: str) -> None:
    Path("other.csv").write_bytes(european(table, "latin-1"))
    watch = ("monitor", "other.csv", "--predictions", "score", "--protected", "sex", "--state", "state.json")
    assert call(*watch, "--encoding", "latin-1", "--decimal", ",")[0] == 0
    code, _, err = call("apply", "other.csv", "--model", model, "--write-predictions", "p.csv")
    assert code == 0 and "read as Windows-1252" in err and "decimal comma" in err


def test_the_state_of_another_monitor_is_refused(call) -> None:
    watch = ("monitor", "table.csv", "--predictions", "score", "--state", "state.json")
    assert call(*watch, "--protected", "sex")[0] == 0
    code, out, err = call(*watch, "--protected", "region")
    assert (code, out) == (2, "") and "state.json" in err and err.count("\n") == 1
    Path("state.json").write_text("{}")
    code, out, err = call(*watch, "--protected", "sex")
    assert (code, out) == (2, "") and "state.json" in err and err.count("\n") == 1


@pytest.mark.parametrize("source", ["codes.csv", "-"])
def test_leading_zeros_are_noted_and_kept_in_groups(call, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    rows = "\n".join(f"{j % 7 / 7:.3f};{(j % 4) * 1500 + 1067:05d};{j % 10};Köln" for j in range(N))
    text = f"score;PLZ;digit;ort\n{rows}\n".encode("cp1252")
    Path("codes.csv").write_bytes(text)
    for options, noted in (((), True), (("--categorical", "PLZ"), False)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        asked = ("--predictions", "score", "--protected", "PLZ,digit", "--json", "out.json", *options)
        code, out, err = call("audit", source, *asked)
        assert (code, err) == (0, "")
        assert ("Numbers in PLZ have leading zeros" in notes_of()) == noted
        assert ("PLZ: 02567" in out) != noted


def test_an_error_about_the_only_predictions_does_not_name_them(call) -> None:
    """Before, "score: Missing (NaN) values in column 'sex'" could be read as if the score had them."""
    Path("gaps.csv").write_text("score,y,sex\n" + "\n".join(f"0.{j % 9},{j % 2},{'fm '[j % 3]}" for j in range(90)))
    Path("gaps.csv").write_text(Path("gaps.csv").read_text().replace(", ", ","))
    code, _, err = call("audit", "gaps.csv", "--predictions", "score", "--protected", "sex", "--outcome", "y")
    assert code == 2 and err.startswith("setsquare: Missing (NaN) values in column 'sex' (30)")
