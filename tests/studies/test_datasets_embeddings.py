"""Faces and chest X-rays: small files in the published formats, wrong ones, and the real ones where they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from setsquare import PrincipalComponents
from setsquare.datasets import Dataset
from setsquare.errors import DataNotFoundError, InputError, MissingValuesError
from studies import datasets
from studies.datasets.embeddings import MappedRows, map_file, read_npz

ROWS = {"train": 50, "test": 20}
#: What MIMIC-IV writes for race, and the paper's level, None for the others.
MIMIC_RACES = {
    "WHITE": "White",
    "WHITE - RUSSIAN": "White",
    "BLACK/AFRICAN AMERICAN": "Black",
    "BLACK/CAPE VERDEAN": "Black",
    "ASIAN": "Asian",
    "ASIAN - SOUTH EAST ASIAN": "Asian",
    "HISPANIC/LATINO - PUERTO RICAN": None,
    "PORTUGUESE": None,
    "UNKNOWN": None,
    "": None,
}


def draw_meta(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """A table in the words of MIMIC: labels of CheXpert, free text for race, several images of a patient."""
    return pd.DataFrame(
        {
            "subject_id": 10_000_000 + np.sort(rng.integers(0, n // 2, n)),
            "study_id": rng.choice(10**9, n, replace=False),
            "ViewPosition": rng.choice(["PA", "AP"], n),
            "age": rng.integers(18, 91, n).astype(float),
            "sex": rng.choice(["F", "M"], n),
            "race": np.resize(list(MIMIC_RACES), n),
            "Pleural Effusion": rng.choice([1.0, 0.0, -1.0, np.nan], n),
        }
    )


def write_mimic(folder: Path, tables: dict[str, pd.DataFrame], arrays: dict[str, np.ndarray]) -> None:
    (folder / "mimic").mkdir(exist_ok=True)
    for split, table in tables.items():
        table.to_csv(folder / f"mimic/mimic_cfm_{split}_meta.csv", index=False)
        np.save(folder / f"mimic/mimic_cfm_{split}_emb.npy", arrays[split])


@pytest.fixture
def mimic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, pd.DataFrame], dict[str, np.ndarray]]:
    """Small files in the format of MIMIC's: tables and embeddings of 7 columns."""
    monkeypatch.setenv("SETSQUARE_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    tables = {split: draw_meta(rng, n) for split, n in ROWS.items()}
    tables["test"].loc[0, ["age", "race"]] = (np.nan, "WHITE")
    tables["train"].loc[0, ["sex", "race"]] = ("?", "WHITE")
    arrays = {split: rng.normal(size=(n, 7)).astype(np.float32) for split, n in ROWS.items()}
    write_mimic(tmp_path, tables, arrays)
    return tables, arrays


# --- MIMIC --------------------------------------------------------------------------------------------------------


def test_mimic_rows_are_those_of_the_files(mimic: Any) -> None:
    tables, arrays = mimic
    data = datasets.load_mimic_chest_xrays()
    whole = pd.concat(tables.values(), ignore_index=True)
    race = whole["race"].map(MIMIC_RACES)
    kept = np.flatnonzero(race.notna() & whole["age"].notna() & whole["sex"].isin(("F", "M")))
    assert data.dropped == {"sex unknown": 1, "age unknown": 1, "race unknown or none of Asian, Black, White": 28}
    assert sum(data.dropped.values()) + data.n_rows == len(whole)
    np.testing.assert_array_equal(data.arrays["embedding"], np.concatenate(list(arrays.values()))[kept])
    assert data.table["study_id"].tolist() == whole["study_id"][kept].tolist()
    assert data.table["race"].tolist() == race[kept].tolist()
    assert data.table["split"].value_counts().to_dict() == {"train": sum(kept < 50), "test": sum(kept >= 50)}
    assert [list(data.table[name].cat.categories) for name in ("sex", "race")] == [
        ["Female", "Male"],
        ["Asian", "Black", "White"],
    ]
    assert (data.outcome, data.protected, data.cluster) == ("Pleural Effusion", ("sex", "age", "race"), "subject_id")
    assert set(data.table["sex"][whole["sex"][kept].eq("F").to_numpy()]) == {"Female"}
    np.testing.assert_array_equal(data.y, whole["Pleural Effusion"][kept] == 1.0)


@pytest.mark.parametrize(
    ("options", "ones", "kept"),
    [
        ({}, (1.0,), None),
        ({"uncertain": "positive"}, (1.0, -1.0), None),
        ({"uncertain": "drop"}, (1.0,), lambda label: label != -1.0),
        ({"not_mentioned": "drop"}, (1.0,), lambda label: label.notna()),
        ({"uncertain": "drop", "not_mentioned": "drop"}, (1.0,), lambda label: label.isin((0.0, 1.0))),
    ],
)
def test_what_a_report_leaves_open_is_decided_and_counted(
    mimic: Any, options: dict[str, Any], ones: tuple[float, ...], kept: Callable[[pd.Series], pd.Series] | None
) -> None:
    label = pd.concat(mimic[0].values()).set_index("study_id")["Pleural Effusion"]
    data = datasets.load_mimic_chest_xrays(**options)
    if kept is None:
        assert data.n_rows == 40 and "uncertain or not mentioned" not in data.dropped
    else:
        assert data.dropped["uncertain or not mentioned"] == int((~kept(label)).sum()) > 0
        assert kept(label[data.table["study_id"]]).all()
    np.testing.assert_array_equal(data.y, label[data.table["study_id"]].isin(ones))


def test_plain_words_and_missing_patients_will_do(mimic: Any, tmp_path: Path) -> None:
    tables, arrays = mimic
    before = datasets.load_mimic_chest_xrays()
    plain = {
        split: table.drop(columns=["subject_id", "study_id"]).assign(
            race=table["race"].map(MIMIC_RACES).fillna("Other"),
            sex=table["sex"].map({"F": "Female", "M": "Male", "?": "unknown"}),
        )
        for split, table in tables.items()
    }
    write_mimic(tmp_path, plain, arrays)
    after = datasets.load_mimic_chest_xrays()
    assert after.cluster is None and after.dropped == before.dropped
    pd.testing.assert_frame_equal(after.table, before.table.drop(columns=["subject_id", "study_id"]))


def test_nothing_is_read_before_it_is_asked_for(mimic: Any, tmp_path: Path) -> None:
    tables, arrays = mimic
    clean = {split: table.assign(race="White", age=50.0, sex="F") for split, table in tables.items()}
    write_mimic(tmp_path, clean, arrays)
    data = datasets.load_mimic_chest_xrays()
    assert not data.dropped
    train, test = (data.take(data.table["split"] == split) for split in ROWS)
    for part, array in ((train, arrays["train"]), (test, arrays["test"])):
        assert isinstance(part.arrays["embedding"], np.memmap)
        np.testing.assert_array_equal(part.arrays["embedding"], array)
    reduced = PrincipalComponents(3).fit(train.arrays["embedding"])
    mixed = data.take(np.arange(69, -1, -1)).arrays["embedding"]  # not in the order of the file
    assert isinstance(mixed, MappedRows)
    expected = reduced.transform(np.concatenate(list(arrays.values()))[::-1])
    np.testing.assert_allclose(reduced.transform(mixed), expected, rtol=1e-6)


BAD_TABLES: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "no race": (lambda t: t.drop(columns="race"), r"lacks the column\(s\) race"),
    "text for age": (lambda t: t.assign(age="old"), "column age .* holds text"),
    "a label of 2": (lambda t: t.assign(**{"Pleural Effusion": 2}), "holds 2: labels are 1, 0, -1"),
    "sex in numbers": (lambda t: t.assign(sex=1), "column sex .* holds none of Female, Male: its first value is '1'"),
    "fewer rows": (lambda t: t.iloc[1:], "has 50 rows, its table 49"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_wrong_tables_get_one_sentence(name: str, mimic: Any, tmp_path: Path) -> None:
    tables, arrays = mimic
    change, sentence = BAD_TABLES[name]
    write_mimic(tmp_path, tables | {"train": change(tables["train"])}, arrays)
    with pytest.raises(InputError, match=sentence):
        datasets.load_mimic_chest_xrays()


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((50, 7), dtype=np.int64), r"holds int64 of shape \(50, 7\)"),
        (np.zeros((50, 7, 2)), r"holds float64 of shape \(50, 7, 2\)"),
        (np.zeros((49, 7)), "has 49 rows, its table 50"),
        (np.zeros((50, 6)), "has 6 columns and .* 7: both must be of the same network"),
        (np.array([["a", None]] * 50, dtype=object), "not a whole npy file of numbers"),
    ],
)
def test_wrong_embeddings_get_one_sentence(array: np.ndarray, sentence: str, mimic: Any, tmp_path: Path) -> None:
    write_mimic(tmp_path, mimic[0], mimic[1] | {"train": array})
    with pytest.raises(InputError, match=sentence):
        datasets.load_mimic_chest_xrays()


def test_rubbish_cut_files_and_options(mimic: Any, tmp_path: Path) -> None:
    path = tmp_path / "mimic/mimic_cfm_test_emb.npy"
    whole = path.read_bytes()
    for content in (b"", b"rubbish", whole[:-4]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a whole npy file"):
            datasets.load_mimic_chest_xrays()
    table = tmp_path / "mimic/mimic_cfm_train_meta.csv"
    for content in (b"", b"\xff\xfe\x00\x01"):
        table.write_bytes(content)
        with pytest.raises(InputError, match=re.escape(str(table))):
            datasets.load_mimic_chest_xrays()
    path.unlink()
    assert not datasets.available("mimic_chest_xrays")
    with pytest.raises(DataNotFoundError, match="credentialed access"):
        datasets.load_mimic_chest_xrays()
    with pytest.raises(InputError, match="uncertain must be 'negative' or 'positive' or 'drop', not 'zero'"):
        datasets.load_mimic_chest_xrays(uncertain="zero")
    with pytest.raises(InputError, match="not_mentioned must be"):
        datasets.load_mimic_chest_xrays(not_mentioned="positive")


# --- arrays and records -------------------------------------------------------------------------------------------


def test_mapped_rows_are_the_stacked_array(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=(n, 3)).astype(np.float16) for n in (4, 1, 6)]
    for k, part in enumerate(parts):
        np.save(tmp_path / f"{k}.npy", part)
    mapped = MappedRows.stack([map_file(tmp_path / f"{k}.npy", len(part)) for k, part in enumerate(parts)])
    array = np.concatenate(parts)
    assert (mapped.shape, mapped.ndim, mapped.dtype, len(mapped)) == ((11, 3), 2, np.float16, 11)
    chosen = rng.permutation(11)[:7]
    for rows in (slice(None), slice(2, 9, 3), chosen, array[:, 0] > 0, 5, -1, []):
        rows = np.asarray(rows, dtype=int) if isinstance(rows, list) else rows
        np.testing.assert_array_equal(mapped[rows], array[rows])
    np.testing.assert_array_equal(mapped.take(chosen).take([3, 0]), array[chosen][[3, 0]])
    assert mapped.take([]).shape == (0, 3)
    assert isinstance(mapped.take([3, 4]), MappedRows)  # of two files
    assert isinstance(mapped.take([5, 6]), np.memmap) and isinstance(mapped.take([6, 5]), MappedRows)
    np.testing.assert_array_equal(mapped.take([5, 6]), array[5:7])
    assert np.asarray(mapped, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(mapped, copy=False)
    with pytest.raises(InputError, match="axis must be 0"):
        mapped.take([0], axis=1)


def test_wrong_npz_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, emb=np.zeros((3, 2)), other=np.zeros(3))
    assert read_npz(path, 3).shape == (3, 2)
    with pytest.raises(InputError, match="has 3 rows, its table 4"):
        read_npz(path, 4)
    with pytest.raises(InputError, match="lacks the array nothing"):
        read_npz(path, 3, "nothing")
    with pytest.raises(InputError, match=r"holds float64 of shape \(3,\)"):
        read_npz(path, 3, "other")
    for content in (b"", b"rubbish", path.read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a whole npz file"):
            read_npz(path, 3)


def test_rows_are_taken_with_their_arrays_and_counted() -> None:
    table = pd.DataFrame({"y": [0, 1, 0, 1], "x": [1, 2, 3, 4], "patient": [7, 7, 8, 9]})
    fields = {"features": ("x",), "family": "binomial", "source": "made up", "licence": "none"}
    array = np.arange(8).reshape(4, 2)
    data = Dataset("d", table, "y", ("x",), arrays={"a": array}, cluster="patient", **fields)
    part = data.take(table["x"] > 2, reason="small").take([1], reason="first")
    assert part.table.to_dict("list") == {"y": [1], "x": [4], "patient": [9]} and part.dropped == {
        "small": 2,
        "first": 1,
    }
    np.testing.assert_array_equal(part.arrays["a"], [[6, 7]])
    assert data.take([2, 0]).y.tolist() == [0.0, 0.0] and not data.take([0]).dropped
    assert "cluster    patient" in str(part) and "dropped    2 rows, small" in str(part)
    with pytest.raises(InputError, match="has no column nurse"):
        Dataset("d", table, "y", ("x",), cluster="nurse", **fields)


# --- the real files -----------------------------------------------------------------------------------------------


def need(name: str) -> None:
    if not datasets.available(name):
        pytest.skip(f"the data set {name} is not on this machine: set SETSQUARE_DATA")


@pytest.mark.parametrize("embedding", ["recognition", "imagenet"])
def test_the_faces_of_the_paper(embedding: Any) -> None:
    need("utkface")
    data = datasets.load_utkface(embedding)
    assert data.n_rows == datasets.REGISTRY["utkface"].n_rows == 20643 and data.table["age"].min() == 10
    assert data.table["split"].value_counts().to_dict() == {"train": 16514, "test": 4129, "excluded": 0}
    assert list(data.table["race"].cat.categories) == ["Asian", "Black", "Indian", "Other", "White"]
    assert (data.outcome, data.protected, data.cluster) == ("sex", ("age", "race"), None)
    np.testing.assert_array_equal(data.y, data.table["sex"] == "Male")
    array = data.arrays["embedding"]
    assert array.shape == (20643, 128) and array.dtype == np.float16 and np.isfinite(array).all()
    # UTKFace writes age, sex (0 is male) and race (White, Black, Asian, Indian, other) into the file names.
    age, sex, race = (data.table["file"].str.split("_").str[k].astype(int) for k in range(3))
    np.testing.assert_array_equal(data.table["age"], age)
    np.testing.assert_array_equal(data.y, 1 - sex)
    assert data.table["race"].tolist() == np.array(["White", "Black", "Asian", "Indian", "Other"])[race].tolist()
    whole = datasets.load_utkface(embedding, in_paper=False)
    assert whole.n_rows == 23707 == data.n_rows + sum(data.dropped.values())
    np.testing.assert_array_equal(whole.arrays["embedding"][whole.table["in_paper"]], array)
    with pytest.raises(MissingValuesError, match="3 missing"):
        _ = whole.y


def test_the_chest_xrays_of_the_nih() -> None:
    need("nih_chest_xrays")
    data = datasets.load_nih_chest_xrays()
    assert data.n_rows == datasets.REGISTRY["nih_chest_xrays"].n_rows == 7060
    assert data.arrays["embedding"].shape == (7060, 256) and data.arrays["embedding"].dtype == np.float16
    assert (data.outcome, data.protected, data.cluster) == ("Effusion", ("age", "sex"), "patient_id")
    patients = data.table.groupby("patient_id")
    assert len(patients) == 1870 and patients["split"].nunique().max() == 1 and patients.size().max() == 76
    assert data.table["split"].value_counts().to_dict() == {"train": 5852, "test": 1208} and set(data.y) == {0.0, 1.0}
    assert int(data.table["image"].iloc[0].split("_")[0]) == data.table["patient_id"].iloc[0]


def test_an_unknown_embedding_gets_the_known_ones() -> None:
    with pytest.raises(InputError, match="embedding must be 'recognition' or 'imagenet', not 'resnet'"):
        datasets.load_utkface("resnet")
