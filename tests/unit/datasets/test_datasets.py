"""Registry, look-up, checksum, download and records of `setsquare.datasets`; no file from outside is needed."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pooch
import pytest

from setsquare import datasets
from setsquare.datasets import DataFile, loaders, registry
from setsquare.datasets.files import find, locate
from setsquare.datasets.loaders import ADULT_COLUMNS, read_adult_text
from setsquare.datasets.record import Dataset
from setsquare.errors import DataNotFoundError, InputError, MissingDependencyError, MissingValuesError

CONTENT = b"39, State-gov\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The user's folder and the cache, both empty."""
    own, cache = tmp_path / "own", tmp_path / "cache"
    own.mkdir()
    monkeypatch.setenv("SETSQUARE_DATA", str(own))
    monkeypatch.setattr(pooch, "os_cache", lambda project: cache / project)
    return own, cache / "setsquare"


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server that has one file, /good.data."""

    class Handler(BaseHTTPRequestHandler):
        pages: ClassVar[dict[str, bytes]] = {"/good.data": CONTENT, "/bad.data": b"something else"}

        def do_GET(self) -> None:
            page = self.pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Length", str(len(page or b"")))
            self.end_headers()
            self.wfile.write(page or b"")

        def log_message(self, *arguments: Any) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def put(folder: Path, file: DataFile, content: bytes = CONTENT) -> Path:
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


FILE = DataFile("some/raw.data", SHA256, "it is made up")
PAIR = DataFile("some/nice.parquet", "0" * 64, "it is made up, too", alternatives=(FILE,))


# --- import -----------------------------------------------------------------------------------------------------


def test_importing_the_package_is_cheap() -> None:
    heavy = ["pandas", "pyarrow", "pooch", "requests", "sklearn.datasets", "torch"]
    code = f"import setsquare.datasets, sys; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# --- registry --------------------------------------------------------------------------------------------------


def test_every_entry_has_a_loader_and_is_well_formed() -> None:
    assert loaders.LOADERS.keys() == registry.REGISTRY.keys()
    for name, info in registry.REGISTRY.items():
        assert info.name == name and info.protected and info.source and info.licence
        for file in (candidate for needed in info.files for candidate in needed.candidates):
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert not Path(file.path).is_absolute() and ".." not in Path(file.path).parts
            assert all(url.startswith("https://") for url in file.urls)


def test_names_are_sorted_and_described() -> None:
    assert list(datasets.names()) == sorted(datasets.names())
    info = datasets.describe("health_retirement")
    assert info.protected == ("age", "gender", "marriage", "race")
    assert "never pass the data on" in str(info)
    assert info.to_dict()["files"] == ["fairml/health.retirement.parquet"]


@pytest.mark.parametrize("name", ["health.retirement", "Health-Retirement", " HEALTH_RETIREMENT "])
def test_names_forgive_case_and_punctuation(name: str) -> None:
    assert datasets.describe(name).name == "health_retirement"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("aduld", "did you mean adult"),
        ("diabetis", "did you mean diabetes?"),
        ("xyzzy", "choose one of acs_income, adult, "),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(name: str, hint: str) -> None:
    for function in (datasets.describe, datasets.load, datasets.available):
        with pytest.raises(InputError, match=re.escape(hint)):
            function(name)


# --- look-up ------------------------------------------------------------------------------------------------------


def test_the_users_folder_comes_before_the_cache(folders: tuple[Path, Path]) -> None:
    own, cache = folders
    assert find(FILE) is None
    cached = put(cache, FILE)
    assert locate(FILE) == cached
    mine = put(own, FILE)
    assert locate(FILE) == mine


def test_an_alternative_will_do(folders: tuple[Path, Path]) -> None:
    own, _ = folders
    raw = put(own, FILE)
    assert locate(PAIR) == raw
    put(own, PAIR)  # preferred, but its checksum is wrong
    with pytest.raises(InputError, match=r"nice\.parquet"):
        locate(PAIR)


def test_a_wrong_checksum_names_file_expected_and_got(folders: tuple[Path, Path]) -> None:
    path = put(folders[0], FILE, b"tampered")
    with pytest.raises(InputError) as caught:
        locate(FILE)
    message = str(caught.value)
    for part in (str(path), SHA256, hashlib.sha256(b"tampered").hexdigest(), "verify=False"):
        assert part in message
    assert locate(FILE, verify=False) == path


def test_a_folder_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETSQUARE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"SETSQUARE_DATA is set to .*nowhere, which is not a folder"):
        locate(FILE)


@pytest.mark.parametrize("name", ["adult", "bank", "compas", "health_retirement"])
def test_a_missing_file_says_what_it_is_and_where_it_goes(name: str, folders: tuple[Path, Path]) -> None:
    assert not datasets.available(name)
    table = name.replace("_", ".")
    with pytest.raises(DataNotFoundError) as caught:
        datasets.load(name)
    message = str(caught.value)
    assert f"$SETSQUARE_DATA/fairml/{table}.parquet" in message
    assert "fairml 0.8" in message and "no public address" in message and "\n" not in message
    assert isinstance(caught.value, FileNotFoundError)


def test_a_missing_file_without_the_variable_says_so(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SETSQUARE_DATA")
    with pytest.raises(DataNotFoundError, match="SETSQUARE_DATA is not set"):
        locate(FILE)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setsquare._extras.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pandas: pip install pandas"):
        datasets.load_diabetes()


# --- download -----------------------------------------------------------------------------------------------------


def test_a_download_lands_in_the_cache_and_is_taken_from_there(folders: tuple[Path, Path], server: str) -> None:
    urls = (f"{server}/none.data", f"{server}/bad.data", f"{server}/good.data")
    file = DataFile("some/raw.data", SHA256, "made up", urls=urls)
    path = locate(DataFile("some/nice.parquet", "0" * 64, "made up", alternatives=(file,)))
    assert path == folders[1] / "some" / "raw.data"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["raw.data"]  # nothing left of the failed attempts
    assert locate(FILE) == path  # without any address


@pytest.mark.parametrize(("page", "reason"), [("bad", "does not match the known hash"), ("none", "404")])
def test_a_failed_download_gives_its_reason(page: str, reason: str, folders: tuple[Path, Path], server: str) -> None:
    file = DataFile("some/raw.data", SHA256, "it is made up", urls=(f"{server}/{page}.data",))
    with pytest.raises(DataNotFoundError, match=reason) as caught:
        locate(file)
    assert f"{server}/{page}.data failed" in str(caught.value) and "it is made up" in str(caught.value)
    assert not (folders[1] / "some" / "raw.data").exists()


def test_a_server_that_does_not_answer_is_named_in_short(folders: tuple[Path, Path]) -> None:
    file = DataFile("some/raw.data", SHA256, "it is made up", urls=("http://127.0.0.1:1/raw.data",))
    with pytest.raises(DataNotFoundError, match=r"raw\.data failed \(ConnectionError\): it is made up; put it at"):
        locate(file)


# --- loaders ------------------------------------------------------------------------------------------------------


def test_diabetes_is_in_original_units() -> None:
    data = datasets.load("diabetes")
    assert (data.n_rows, data.outcome, data.protected) == (442, "progression", ("age", "sex"))
    assert data.features == ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
    assert list(data.table["sex"].cat.categories) == ["1", "2"]
    assert data.table["sex"].value_counts().to_dict() == {"1": 235, "2": 207}
    # The first patient of the file published with "Least Angle Regression".
    first = data.table.iloc[0]
    assert (first["age"], first["sex"], first["bmi"], first["bp"]) == (59, "2", 32.1, 101)
    assert data.y[0] == 151 and data.y.dtype == np.float64
    assert datasets.available("diabetes")


def test_a_users_own_conversion_is_read_unverified(folders: tuple[Path, Path]) -> None:
    """As `arrow::write_parquet` saves it: other bytes, the same columns and levels."""
    file = registry.REGISTRY["health_retirement"].files[0]
    put(folders[0], file)
    levels = {"gender": ["Male", "Female"], "marriage": ["Not Married", "x"], "race": ["White", "Black"]}
    table = pd.DataFrame(
        {"age": [70.0, 80.0, 90.0], "bmi": [20.0, None, 30.0], "score": [0, 3, 12]}
        | {name: pd.Categorical([have[0]] * 3, categories=have) for name, have in levels.items()}
        | {"race.ethnicity": ["NHW", None, None]},
        index=pd.Index([1, 2, 3], name="r_row_name"),
    )
    table.to_parquet(folders[0] / file.path)
    with pytest.raises(InputError, match="wrong checksum"):
        datasets.load_health_retirement()
    data = datasets.load("health.retirement", verify=False)
    assert data.y.tolist() == [0.0, 12.0] and "race.ethnicity" not in data.table
    assert {name: list(data.table[name].cat.categories) for name in levels} == levels
    assert datasets.load_health_retirement(complete=False, verify=False).n_rows == 3


@pytest.mark.parametrize("option", [{"table2": True}, {"united_states_only": True}])
def test_the_options_of_the_raw_adult_need_it(option: dict[str, bool]) -> None:
    with pytest.raises(InputError, match='version="uci"'):
        datasets.load_adult(**option)


def test_an_unknown_version_of_adult_is_refused() -> None:
    with pytest.raises(InputError, match='"fairml" or "uci", not \'openml\''):
        datasets.load_adult("openml")  # type: ignore[arg-type]


def test_raw_adult_text_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "adult.data"
    path.write_text(
        "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40,"
        " United-States, <=50K\n"
        "54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, Male, 0, 0, 60,"
        " South, >50K\n\n"
    )
    table = read_adult_text(path)
    assert list(table.columns) == list(ADULT_COLUMNS) and len(table) == 2
    assert table["hours_per_week"].tolist() == [40, 60] and table["age"].dtype == "int64"
    assert list(table["workclass"].cat.categories) == ["?", "State-gov"]
    assert table["workclass"].tolist() == ["State-gov", "?"]
    assert list(table["income"].cat.categories) == ["<=50K", ">50K"]


def test_text_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "adult.data"
    path.write_text("1, 2, 3\n4, 5, 6\n")
    with pytest.raises(InputError, match=r"adult.data has 3 columns; UCI's adult.data has 15"):
        read_adult_text(path)


# --- record -------------------------------------------------------------------------------------------------------


def record(**changes: Any) -> Dataset:
    table = pd.DataFrame(
        {
            "won": pd.Categorical(["yes", "no", "yes"], categories=["no", "yes"]),
            "side": pd.Categorical(["l", "l", "r"], categories=["r", "l", "none"]),
            "size": [1.0, 2.0, 3.0],
        }
    )
    fields: dict[str, Any] = {
        "name": "toy",
        "table": table,
        "outcome": "won",
        "protected": ("side",),
        "features": ("side", "size"),
        "family": "binomial",
        "source": "here",
        "licence": "none",
    }
    return Dataset(**(fields | changes))


def test_a_record_shows_its_parts() -> None:
    data = record(arrays={"embedding": np.zeros((3, 7))})
    assert data.y.tolist() == [1.0, 0.0, 1.0]
    assert list(data.features_table().columns) == ["side", "size"]
    assert list(data.protected_table()["side"].cat.categories) == ["r", "l", "none"]
    assert repr(data) == "<Dataset toy: 3 rows, won (binomial) from 2 features, protected side>"
    for part in ("toy: 3 rows", "side, size", "here", "none", "embedding, shape (3, 7)"):
        assert part in str(data)
    with pytest.raises(AttributeError):
        data.name = "other"  # type: ignore[misc]


def test_tables_from_a_record_are_copies() -> None:
    data = record()
    features = data.features_table()
    features["size"] = 0.0
    assert data.table["size"].tolist() == [1.0, 2.0, 3.0]


def test_a_record_refuses_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="no column colour"):
        record(protected=("colour",))
    with pytest.raises(InputError, match="embedding of the data set toy has 2 rows, the table 3"):
        record(arrays={"embedding": np.zeros((2, 7))})
    with pytest.raises(InputError, match="side has 3 levels"):
        _ = record(outcome="side").y
    holes = pd.DataFrame({"won": [1.0, np.nan], "side": ["l", "r"], "size": [1.0, 2.0]})
    with pytest.raises(MissingValuesError, match="won has 1 missing value"):
        _ = record(table=holes).y


def test_arrests_are_complete_and_have_white_people_as_reference() -> None:
    data = datasets.load("arrests")
    assert data.table["colour"].value_counts().to_dict() == {"White": 3938, "Black": 1288}
    assert data.y.sum() == 4334
    assert not data.table.isna().any().any()
    assert data.features == ("colour", "year", "age", "sex", "employed", "citizen", "checks")


def test_data_of_a_package_that_is_not_installed_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("setsquare._extras", "setsquare.datasets.files"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None if name == "sklego" else True)
    assert not datasets.available("arrests")
    with pytest.raises(MissingDependencyError, match=r"scikit-lego: pip install scikit-lego"):
        datasets.load_arrests()
