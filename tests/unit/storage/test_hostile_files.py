"""Sealed model files that ask for much memory, or whose parts contradict each other: one short sentence."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.storage.test_models import FIXTURES, sealed

import setsquare as sq
from setsquare.errors import InputError
from setsquare.storage import models
from setsquare.storage.checks import check_design
from setsquare.storage.container import DIGEST, TREE, _check_members, _read_array, pack, unpack
from setsquare.tables.design import Design
from setsquare.tables.learned_terms import LearnedTerms


def archive(members: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] = lambda _: None) -> bytes:
    """A sealed file of these members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
        for info in target.infolist():
            change(info)
        target.comment = b"0" * DIGEST
    return sealed(stream.getvalue())


def array(shape: tuple[int, ...], dtype: str, content: bytes = b"") -> bytes:
    """An .npy member that declares what it does not hold."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"shape": shape, "fortran_order": False, "descr": dtype})
    return stream.getvalue() + content


def refused(content: bytes, folder: Path) -> str:
    """The sentence with which a file is refused, using little memory."""
    path = folder / "model"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as error:
            sq.load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30e6 + 20 * len(content)
    sentence = str(error.value)
    assert sentence.startswith(f"The file {path} ") and "\n" not in sentence and len(sentence) < 400 + len(str(path))
    return sentence


TREES = {
    "one text of 2 GB": ({"a": {"$array": "a"}}, {"a.npy": array((1,), "|S2000000000")}),
    "a long array": ({"a": {"$array": "a"}}, {"a.npy": array((1 << 40,), "<f8")}),
    "empty and endless": ({"a": {"$array": "a"}}, {"a.npy": array((1 << 62, 0), "<f8")}),
    "no bytes per value": ({"a": {"$array": "a"}}, {"a.npy": array((1 << 40,), "|S0")}),
    "objects": ({"a": {"$array": "a"}}, {"a.npy": array((1,), "|O", b"12345678")}),
    "records": ({"a": {"$array": "a"}}, {"a.npy": array((1,), "<f8,<f8", bytes(16))}),
    "many references": (
        {"a": [{"$array": "a"}] * 400},
        {"a.npy": array((10000,), "<f8", bytes(80000))},
    ),
    "a number that is none": ({"a": {"$number": "much"}}, {}),
    "an array that is not there": ({"a": {"$array": "b"}}, {}),
    "an array without a name": ({"a": {"$array": [1]}}, {}),
}


@pytest.mark.parametrize("name", TREES)
def test_what_is_declared_is_bounded_by_what_is_there(name: str, tmp_path: Path):
    tree, members = TREES[name]
    content = archive({TREE: json.dumps(tree).encode(), **members})
    assert "is not a saved model" in refused(content, tmp_path)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a": NaN}', b'{"a": ' + b"9" * 5000 + b"}", b"\xff", b"[1]", b""])
def test_a_tree_that_is_none(text: bytes, tmp_path: Path):
    assert "is not a saved model" in refused(archive({TREE: text}), tmp_path)


def test_odd_zip_flags(tmp_path: Path):
    def flag(bits: int) -> Callable[[zipfile.ZipInfo], None]:
        return lambda info: setattr(info, "flag_bits", info.flag_bits | bits)

    for bits in (1, 8, 32, 64, 1 << 13):
        content = archive({TREE: b'{"format": "setsquare model"}'}, flag(bits))
        assert "is not a saved model" in refused(content, tmp_path)

    def grow(info: zipfile.ZipInfo) -> None:
        info.file_size = info.compress_size = 1 << 31

    assert "is not a saved model" in refused(archive({TREE: b"{}"}, grow), tmp_path)


def replaced(name: str, place: str, value: Any) -> bytes:
    """A fixture with another value in one place."""
    tree = unpack((FIXTURES / f"model-v1-{name}.setsquare").read_bytes())
    *path, last = place.split(".")
    node: Any = tree["model"]
    for key in path:
        node = node[int(key) if isinstance(node, list) else key]
    node[int(last) if isinstance(node, list) else last] = value
    return pack(tree)


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("classifier", "classes.dtype", "<U500000000"),
        ("classifier", "classes.dtype", "|S2000000000"),
        ("classifier", "classes.dtype", "f8,f8"),
        ("classifier", "classes.dtype", LONG),
        ("classifier", "classes.values", []),
        ("classifier", "classes.values", [[1], [2]]),
        ("classifier", "class", LONG),
        ("classifier", "solution.coef", np.full((1, 10), np.nan)),
        ("classifier", "solution.coef", np.full((1, 10), np.inf)),
        ("classifier", "solution.coef", np.full((1, 10), 1e300)),
        ("classifier", "solution.coef", np.zeros((1, 9))),
        ("classifier", "solution.coef", np.zeros((3, 10))),
        ("classifier", "solution.coef", [[1.0] * 10]),
        ("classifier", "solution.intercept", np.zeros(2)),
        ("classifier", "solution.intercept", np.array([np.nan])),
        ("classifier", "solution.status", LONG),
        ("classifier", "reader.features.coders.0.levels", []),
        ("classifier", "reader.features.coders.0.levels", ["a", "a"]),
        ("classifier", "reader.features.coders.0.levels", 3),
        ("classifier", "reader.features.coders.0.name", 3),
        ("classifier", "reader.features.coders.0.kind", LONG),
        ("classifier", "reader.features.coders.2.fill", float("nan")),
        ("classifier", "reader.features.coders.2.fill", "much"),
        ("classifier", "reader.features.missing", "ignore"),
        ("classifier", "reader.inside", 3),
        ("classifier", "reader.inside", [3]),
        ("classifier", "reader.use_protected", "yes"),
        ("classifier", "reader.use_protected", None),
        ("classifier", "reader", None),
        ("classifier", "feature_names_in", ["a"]),
        ("classifier", "feature_names_in.7", LONG),
        ("classifier", "n_features_in", "many"),
        ("classifier", "family.name", LONG),
        ("classifier", "parameters.nothing", LONG),
        ("multinomial", "reader.protected.coders.0.cells", [[0, 7]]),
        ("multinomial", "reader.protected.coders.0.cells", [[10**9, 10**9]]),
        ("generalized", "projector.basis.transform", np.zeros((2, 3))),
        ("generalized", "projector.coefficients", np.full((4, 1), np.nan)),
        ("generalized", "projector.activation", LONG),
        ("generalized", "estimator.coef", np.full((1, 10), -np.inf)),
        ("generalized", "boundary", ["a", "b"]),
        ("linear", "projector.coefficients", np.zeros((9, 1))),
        ("features_alone", "eraser.directions", np.zeros((10, 2))),
        ("features_alone", "eraser.mean", np.full(10, np.inf)),
        ("features_alone", "parameters.using", "protected"),
        ("features_alone", "reader.use_protected", True),
        ("features", "parameters.using", []),
        ("features", "projector", None),
        ("classifier", "has_offset", None),
        ("classifier", "has_offset", "no"),
        ("classifier", "classes", None),
        ("generalized", "classes", None),
        ("generalized", "classes.values", ["a", "b"]),
        ("generalized", "activation", None),
        ("generalized", "parameters.method", ""),
        ("generalized", "estimator", None),
        ("generalized", "feature_names_in.7", LONG),
    ],
)
def test_a_model_whose_parts_do_not_fit_is_refused(name: str, place: str, value: Any, tmp_path: Path):
    refused(replaced(name, place, value), tmp_path)


@pytest.mark.parametrize("name", ["classifier", "features_alone", "generalized"])
def test_columns_that_no_design_knows_are_refused(name: str, tmp_path: Path):
    tree = unpack((FIXTURES / f"model-v1-{name}.setsquare").read_bytes())
    model = tree["model"]
    model["reader"]["inside"][0] = model["feature_names_in"][0] = "another"  # in both places, in place of "sex"
    assert "do not fit together: protected columns)" in refused(pack(tree), tmp_path)


@pytest.mark.parametrize("name", ["classifier", "features_alone", "generalized"])
@pytest.mark.parametrize("count", [9, 11, 10**30])
def test_a_number_of_features_without_names_is_that_of_the_designs(name: str, count: int, tmp_path: Path):
    tree = unpack((FIXTURES / f"model-v1-{name}.setsquare").read_bytes())
    tree["model"]["feature_names_in"] = None
    (tmp_path / "whole").write_bytes(pack(tree))
    assert sq.load(tmp_path / "whole").n_features_in_ == 10
    tree["model"]["n_features_in"] = count
    assert "do not fit together: number of features)" in refused(pack(tree), tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "MAX_BYTES", 1000)
    assert "which no saved model is" in refused((FIXTURES / "model-v1-classifier.setsquare").read_bytes(), tmp_path)


@pytest.mark.parametrize("dtype", ["<f8,<f8", "|S8", "<c16", "<f16", "<M8[s]"])
def test_only_arrays_of_plain_numbers_are_read(dtype: str):
    assert _read_array(array((2,), "<f8", bytes(16))).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="not an array of numbers"):
        _read_array(array((1,), dtype, bytes(np.dtype(dtype).itemsize)))
    with pytest.raises(ValueError, match="not an array of numbers"):
        _read_array(array((3,), "<f8", bytes(16)))


@pytest.mark.parametrize(("sizes", "stored"), [((6, 6), (6, 6)), ((5,), (4,)), ((4,), (5,))])
def test_members_that_are_larger_than_the_file_are_refused(sizes: tuple[int, ...], stored: tuple[int, ...]):
    members = [
        SimpleNamespace(compress_type=0, flag_bits=0, file_size=a, compress_size=b)
        for a, b in zip(sizes, stored, strict=True)
    ]
    with pytest.raises(ValueError, match="larger than the file"):
        _check_members(members, 10)  # type: ignore[arg-type]


def test_a_formula_that_names_a_variable_twice_is_refused():
    age, program = ("age", None, False), ((("log", ("column", "age")),),)
    check_design(Design((LearnedTerms("~ log(age)", (age,), program, ("log(age)",), ("age",), ()),), "error", "error"))
    for variables in ((age, age), (("age",),)):
        terms = LearnedTerms("~ log(age)", variables, program, ("log(age)",), ("age",), ())
        with pytest.raises(InputError, match="formula"):
            check_design(Design((terms,), "error", "error"))
