"""The limits of files and of what they may hold: just inside is taken, just outside is refused."""

from __future__ import annotations

import copy
import io
import os
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.storage.test_checks import content
from tests.unit.storage.test_hostile_files import array

import setsquare as sq
from setsquare.errors import InputError
from setsquare.storage import files, models
from setsquare.storage.checks import LARGEST, MAX_LABELS, check_design
from setsquare.storage.container import DIGEST, MAGIC, _check_members, _read_array, pack, unpack
from setsquare.storage.files import check_memory, check_targets, read_bounded, write_files
from setsquare.storage.states import read_state
from setsquare.tables.design import Design
from setsquare.tables.learned_terms import LearnedTerms


def read(name: str, place: str, value: Any) -> Any:
    """A model with another value in one place of its state; a place that ends in ``!`` is taken out."""
    state = copy.deepcopy(unpack(content(name))["model"])
    node: Any = state
    *path, last = place.split(".")
    for key in path:
        node = node[int(key) if isinstance(node, list) else key]
    if last.endswith("!"):
        del node[last[:-1]]
    else:
        node[int(last) if isinstance(node, list) else last] = value
    return read_state(unpack(pack({"model": state}))["model"])


CODER = "reader.features.coders"
CELLS = "reader.protected.coders.0"
PAIRS = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
TAKEN = [
    ("classifier", f"{CODER}.2.fill", -LARGEST),
    ("classifier", f"{CODER}.2.fill", 3),
    ("classifier", f"{CODER}.2.fill", None),
    ("classifier", f"{CODER}.2.indicator", True),
    ("classifier", f"{CODER}.1.levels", ["north", None, 3]),
    ("classifier", f"{CODER}.1.levels", ["north", "south", 2.5]),
    ("classifier", "has_offset", True),
    ("classifier", "reader.features.missing", "error"),
    ("classifier", "reader.features.missing", "drop"),
    ("classifier", "reader.features.unseen", "pool"),
    ("multinomial", f"{CELLS}.cells", PAIRS),
    ("features", "n_features_in", None),
    ("transport", "reader.given!", None),
    ("transport", "controls!", None),
    ("generalized", "boundary", [0.1, 0]),
    ("features_alone", "feature_names_in", None),
]
REFUSED = [
    ("classifier", f"{CODER}.2.fill", 1.01 * LARGEST, "fill of 'income'"),
    ("classifier", f"{CODER}.2.fill", float("inf"), "fill of 'income'"),
    ("classifier", f"{CODER}.2.fill", True, "fill of 'income'"),
    ("classifier", f"{CODER}.2.indicator", 1, "indicator of 'income'"),
    ("classifier", f"{CODER}.1.levels", ["north", "north", "west"], "levels of 'region'"),
    ("classifier", f"{CODER}.1.levels", [], "levels of 'region'"),
    ("classifier", "reader.features.missing", "pool", "rules of columns"),
    ("classifier", "reader.features.unseen", "drop", "rules of columns"),
    ("classifier", "reader.protected.unseen", "drop", "rules of columns"),
    ("classifier", "reader.protected.coders.1.levels", ["a", "a"], "levels of 'race'"),
    ("classifier", "reader.use_protected", 0, "protected columns"),
    ("classifier", "reader.inside", ["sex", 2], "protected columns"),
    ("classifier", "reader.inside", ["sex", "rice"], "names of features"),
    ("classifier", "n_features_in", -1, "number of features"),
    ("classifier", "n_features_in", True, "number of features"),
    ("classifier", "n_features_in", 10.0, "number of features"),
    ("classifier", "n_features_in", 9, "names of features"),
    ("classifier", "feature_names_in.0", 3, "names of features"),
    ("classifier", "feature_names_in.3", "regions", "names of features"),
    ("classifier", "has_offset", 1, "offset"),
    ("classifier", "classes.values", ["yes"], "coefficients"),
    ("classifier", "classes.values", [], "classes"),
    ("classifier", "classes.values", ["a", "b", "c"], "coefficients"),
    ("classifier", "family!", None, "family"),
    ("classifier", "solution!", None, "solution"),
    ("classifier", "reader!", None, ""),
    ("classifier", "has_offset!", None, "has_offset"),
    ("classifier", "n_dropped!", None, "n_dropped"),
    ("classifier", "classes", None, "classes"),
    ("regressor", "n_dropped!", None, "n_dropped"),
    ("multinomial", f"{CELLS}.cells", [], "cells"),
    ("multinomial", f"{CELLS}.cells", PAIRS[::-1], "cells"),
    ("multinomial", f"{CELLS}.cells", [*PAIRS, [1, 2]], "cells"),
    ("multinomial", f"{CELLS}.cells", [[-1, 0], *PAIRS], "cells"),
    ("multinomial", f"{CELLS}.cells", [[0, 3], *PAIRS[3:]], "cells"),
    ("multinomial", f"{CELLS}.cells", [[2, 0]], "cells"),
    ("multinomial", f"{CELLS}.cells", [[0]], "cells"),
    ("multinomial", f"{CELLS}.cells", [[0, 0, 0]], "cells"),
    ("multinomial", f"{CELLS}.cells", [*PAIRS, [1, 3]], ""),
    ("multinomial", f"{CELLS}.cells", [*PAIRS, [2, 0]], ""),
    ("multinomial", f"{CELLS}.cells", [*PAIRS, [1]], ""),
    ("multinomial", f"{CELLS}.cells", [[False, 0], *PAIRS[1:]], "cells"),
    ("multinomial", f"{CELLS}.levels", [["female", "male"]], ""),
    ("multinomial", CELLS, {"kind": "cells", "columns": ["sex", "race"], "levels": [["a"]], "cells": [[0]]}, "cells"),
    ("multinomial", CELLS, {"kind": "cells", "columns": [], "levels": [], "cells": [[]]}, "cells"),
    ("multinomial", f"{CELLS}.levels.1", ["a", "a", "b"], "levels of 'race'"),
    ("generalized", "boundary", [0.1, float("inf")], "boundary"),
    ("generalized", "boundary", [], "boundary"),
    ("generalized", "boundary!", None, "boundary"),
    ("generalized", "activation!", None, "activation"),
    ("generalized", "activation", "identity", "projector"),
    ("generalized", "projector!", None, "projector"),
    ("generalized", "estimator!", None, "estimator"),
    ("generalized", "estimator.design!", None, "design"),
    ("generalized", "estimator.coef!", None, "coef"),
    ("generalized", "estimator.classes.values", ["no", "on"], "classes"),
    ("generalized", "estimator.design.coders.1.levels", [], "levels of 'region'"),
    ("generalized", "parameters.method", "linear", "projector"),
    ("generalized", "parameters.method", "other", "method"),
    ("linear", "parameters.method", "generalized", ""),
    ("features", "parameters.using", "features", "projector"),
    ("features_alone", "parameters.using", "protected", "projector"),
    ("features_alone", "parameters.using", "both", "parameter using"),
    ("transport", "parameters.moments", 1, "projector"),
    ("transport", "transport.cells.codes", np.zeros((2, 2), int), "cells"),
    ("transport", "transport.cells.codes", np.zeros((3, 1), int), "cells"),
    ("transport", "transport.cells.thresholds", [], "cells"),
    ("transport", "transport.cells.thresholds", [np.zeros(1), np.zeros(1)], "cells"),
    ("transport", "transport.cells.thresholds", [np.zeros((1, 1))], "cells"),
    ("transport", "transport.maps", np.zeros((2, 2, 3)), "maps of cells"),
    ("transport", "transport.centres", np.zeros((3, 3)), "maps of cells"),
    ("transport", "transport.transform", np.zeros((4, 3)), "directions"),
]


@pytest.mark.parametrize(("name", "place", "value"), TAKEN)
def test_what_is_unusual_but_possible_is_read(name: str, place: str, value: Any) -> None:
    assert type(read(name, place, value)).__name__ == unpack(content(name))["model"]["class"]


@pytest.mark.parametrize(("name", "place", "value", "what"), REFUSED)
def test_what_is_refused_is_named(name: str, place: str, value: Any, what: str) -> None:
    if not what:  # refused before the checks, and phrased by load
        with pytest.raises((InputError, LookupError, AttributeError, ValueError)):
            read(name, place, value)
        return
    with pytest.raises(InputError, match=rf"\(its parts do not fit together: {what}\)"):
        read(name, place, value)


def test_numbers_are_refused_from_the_limit_on() -> None:
    for place in ("solution.coef", "solution.intercept"):
        now = np.asarray(unpack(content("classifier"))["model"]["solution"][place.partition(".")[2]])
        read("classifier", place, np.full_like(now, LARGEST))
        with pytest.raises(InputError, match=r"that are not finite or above 1e\+150: save the model again"):
            read("classifier", place, np.full_like(now, np.nextafter(LARGEST, np.inf)))
    assert LARGEST == 1e150 and MAX_LABELS == 64 * 2**20


# ------------------------------------------------------------------------------------------------------- container
def test_values_of_every_kind_come_back() -> None:
    tree = {
        "deep": [{"a": np.arange(6.0).reshape(2, 3)}, [np.array([1, 2]), [np.array([True])]]],
        "a": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "numbers": [np.float64(0.5), np.int64(3), np.bool_(True), float("-inf"), float("inf"), True, None, 2, "ü"],
        "pair": (1, 2.5),
        "empty": np.zeros((0, 3)),
        "single": np.array(2.0),
        "small": np.array([1, 2], dtype=np.uint8),
    }
    again = unpack(pack(tree))
    np.testing.assert_array_equal(again["deep"][0]["a"], tree["deep"][0]["a"])
    np.testing.assert_array_equal(again["deep"][1][0], [1, 2])
    assert again["deep"][1][1][0].dtype == bool and again["deep"][1][1][0].tolist() == [True]
    np.testing.assert_array_equal(again["a"], tree["a"])
    assert again["a"].flags.f_contiguous and again["deep"][0]["a"].flags.c_contiguous and again["a"].flags.writeable
    assert again["numbers"] == [0.5, 3, True, -np.inf, np.inf, True, None, 2, "ü"]
    assert [type(value) for value in again["numbers"][:3]] == [float, int, bool]
    assert again["pair"] == [1, 2.5] and again["empty"].shape == (0, 3) and again["single"].shape == ()
    assert again["small"].dtype == np.uint8
    assert np.isnan(unpack(pack({"a": float("nan")}))["a"])
    with pytest.raises(InputError, match=r"^a\.b\.1 is of type set, which cannot be saved"):
        pack({"a": {"b": [1, {2}]}})


def test_a_file_is_a_zip_with_fixed_dates_and_a_readable_tree() -> None:
    saved = pack({"name": "ü", "array": np.zeros(2)})
    assert saved == pack({"name": "ü", "array": np.zeros(2)}) and saved.startswith(MAGIC)
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.namelist() == ["model.json", "array.npy"] and len(archive.comment) == DIGEST == 64
        assert archive.read("model.json").decode() == '{\n "name": "ü",\n "array": {\n  "$array": "array"\n }\n}'


def test_members_may_fill_the_file_but_no_more() -> None:
    def member(size: int, stored: int, flags: int = 0, kind: int = 0) -> SimpleNamespace:
        return SimpleNamespace(compress_type=kind, flag_bits=flags, file_size=size, compress_size=stored)

    _check_members([member(6, 6), member(4, 4, 0x800)], 10)  # type: ignore[list-item]
    for members in ([member(6, 6), member(5, 5)], [member(3, 4)], [member(3, 3, 1)], [member(3, 3, kind=8)]):
        with pytest.raises(ValueError, match=r"larger than the file|compressed or encrypted"):
            _check_members([member(1, 1), *members], 10)  # type: ignore[list-item]


def test_shapes_and_types_of_arrays() -> None:
    assert _read_array(array((0, 1 << 20), "<f8")).shape == (0, 1 << 20)
    with pytest.raises(ValueError, match="no sensible shape"):
        _read_array(array((0, (1 << 20) + 1), "<f8"))
    long = (1 << 20) + 1
    assert len(_read_array(array((long,), "|u1", bytes(long)))) == long
    assert _read_array(array((2, 1), "<i4", bytes(8))).shape == (2, 1)
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(3.0), version=(2, 0))
    assert _read_array(stream.getvalue()).tolist() == [0.0, 1.0, 2.0]
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(3.0), version=(3, 0))
    with pytest.raises(KeyError):
        _read_array(stream.getvalue())


# ----------------------------------------------------------------------------------------------------------- files
class TooLongError(Exception):
    pass


def refuse() -> Any:
    raise TooLongError


def test_a_pipe_is_read_up_to_its_limit() -> None:
    mega = 1 << 20
    for length, limit in ((3, 3), (2 * mega + 5, 2 * mega + 5), (0, 0)):
        assert read_bounded(io.BytesIO(b"a" * length), limit, refuse) == b"a" * length
        with pytest.raises(TooLongError):
            read_bounded(io.BytesIO(b"a" * (length + 1)), limit, refuse)


def test_what_is_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 3 << 18, "SC_PAGE_SIZE": 4096}.__getitem__)
    check_memory(3 << 30, "The file")
    with pytest.raises(InputError, match=r"^The file declares 4 GB of columns, but this machine has 3 GB of memory"):
        check_memory(4 << 30, "The file")
    with pytest.raises(InputError):
        check_memory((3 << 30) + 1, "The file")

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    check_memory(1 << 60, "The file")


def test_targets_are_files_in_folders_that_exist_each_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"")
    check_targets([one, two], [tmp_path / "three"])
    check_targets([Path(os.devnull), one])
    for paths, inputs, what in (
        ([tmp_path / "none" / "one"], [], "The folder .*none does not exist"),
        ([tmp_path], [], "is a folder: pass the name of a file"),
        ([two, one], [one], "one is read as well: choose another output file"),
        ([one, two, tmp_path / "." / "one"], [], "one would be written twice"),
    ):
        with pytest.raises(InputError, match=what):
            check_targets(paths, inputs)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(InputError, match="leads back to itself"):
        check_targets([loop])


def test_a_folder_that_is_closed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[Path, int]]()
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((Path(path), mode)))
    with pytest.raises(InputError, match=f"The folder {tmp_path} cannot be written to"):
        check_targets([tmp_path / "one"])
    with pytest.raises(InputError, match="cannot be written to"):
        check_targets([Path(os.devnull)])
    assert asked == [(tmp_path, os.W_OK), (Path(os.devnull), os.W_OK)]


def test_names_of_any_length_and_odd_signs(tmp_path: Path) -> None:
    for name in ("a" * 240, "a.b[1]+(c)", ".hidden"):
        write_files({tmp_path / name: b"after"})
        write_files({tmp_path / name: b"again"})
        assert (tmp_path / name).read_bytes() == b"again"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_file_that_fails_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=rf"The file {tmp_path / 'b'} could not be written \(No space left on device"):
        write_files({tmp_path / "b": b""})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("strange")))
    with pytest.raises(InputError, match=r"could not be written \(strange"):
        write_files({tmp_path / "b": b""})
    assert list(tmp_path.iterdir()) == []


def test_which_processes_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert files._is_running(os.getpid()) and not files._is_running(1 << 70)

    def forbid(process: int, number: int) -> None:
        assert number == 0
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbid)
    assert files._is_running(1)


def test_a_model_is_read_from_a_pipe_of_limited_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, pipe = content("features"), tmp_path / "pipe"
    os.mkfifo(pipe)

    def piped() -> Any:
        writer = threading.Thread(target=pipe.write_bytes, args=(saved,))
        writer.start()
        try:
            return sq.load(pipe)
        finally:
            writer.join()

    assert isinstance(piped(), sq.LinearOrthogonalizer)
    monkeypatch.setattr(models, "MAX_PIPED", len(saved) - len(MAGIC))
    assert isinstance(piped(), sq.LinearOrthogonalizer)
    monkeypatch.setattr(models, "MAX_PIPED", len(saved) - len(MAGIC) - 1)
    with pytest.raises(InputError, match="is larger than 0 MB, which no saved model is"):
        piped()


def test_a_model_file_of_the_largest_size_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, path = content("features"), tmp_path / "model"
    path.write_bytes(saved)
    assert models.MAX_BYTES == 4 * 2**30 and models.MAX_PIPED == 2**28
    monkeypatch.setattr(models, "MAX_BYTES", len(saved))
    sq.load(path)
    monkeypatch.setattr(models, "MAX_BYTES", len(saved) - 1)
    with pytest.raises(InputError, match=f"The file {path} is larger than 0 MB"):
        sq.load(path)
    with pytest.raises(InputError, match=r"The model file .*none cannot be read \(No such file"):
        sq.load(tmp_path / "none")


def test_a_formula_has_as_many_columns_as_names() -> None:
    age, program = ("age", None, False), ((("log", ("column", "age")),),)
    for names in (("log(age)", "more"), ()):
        terms = LearnedTerms("~ log(age)", (age,), program, names, ("age",) * len(names), ())
        with pytest.raises(InputError, match="formula"):
            check_design(Design((terms,), "error", "error"))
    filled = LearnedTerms("~ log(age)", (("age", 3.0, True),), program, ("log(age)", "age[missing]"), ("age",) * 2, ())
    check_design(Design((filled,), "level", "error"))
