"""Saved models: the same predictions from a file, for ever; and nothing from a file that is not what it says."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from tests.fixtures.make_models import draw, models, output

import setsquare as sq
from setsquare.errors import InputError, SetsquareWarning
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor
from setsquare.storage import write_files
from setsquare.storage.container import DIGEST, pack, unpack
from setsquare.storage.models import dump

FIXTURES = Path(__file__).parents[2] / "fixtures"
FORMATS = sorted(FIXTURES.glob("model-v*.json"))


@pytest.fixture(scope="module")
def fitted() -> sq.OrthogonalGLMRegressor:
    table, outcomes = draw()
    return sq.OrthogonalGLMRegressor("poisson", ["sex"], missing="level").fit(table, outcomes["count"])


@pytest.mark.parametrize("name", models())
def test_a_model_comes_back_with_the_same_predictions_and_the_same_bytes(name: str, tmp_path: Path):
    table, outcomes = draw()
    model, outcome = models()[name]
    model.fit(table, outcomes[outcome])
    sq.save(model, tmp_path / "model.setsquare")
    again = sq.load(tmp_path / "model.setsquare")
    np.testing.assert_array_equal(output(again, table), output(model, table))
    assert type(again) is type(model) and dump(again) == dump(model)
    if hasattr(model, "solution_"):
        assert again.solution_.certificate == model.solution_.certificate
        assert str(again.family_) == str(model.family_)


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path in FORMATS for name in json.loads(path.read_text())["predictions"]]
)
def test_models_that_earlier_versions_saved_predict_what_they_did(path: Path, name: str):
    content = json.loads(path.read_text())
    rows = pd.DataFrame(content["rows"])
    model = sq.load(path.with_name(f"{path.stem}-{name}.setsquare"))
    np.testing.assert_allclose(output(model, rows), content["predictions"][name], rtol=1e-12, atol=1e-13)


def test_there_are_models_of_every_format():
    assert FORMATS and {path.stem for path in FORMATS} == {f"model-v{v}" for v in range(1, len(FORMATS) + 1)}


def test_every_changed_byte_and_every_shorter_file_is_refused(fitted, tmp_path: Path):
    content, path = dump(fitted), tmp_path / "model.setsquare"
    rng = np.random.default_rng(0)
    for place in rng.choice(len(content), 300, replace=False):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(InputError, match=f"The file {path} "):
            sq.load(path)
    for length in (0, 1, 3, 4, 64, 65, 200, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=f"The file {path} "):
            sq.load(path)
    path.write_bytes(content)
    sq.load(path)


def sealed(content: bytes) -> bytes:
    """Bytes with the checksum that they should have."""
    return content[:-DIGEST] + hashlib.sha256(content[:-DIGEST]).hexdigest().encode()


def changed(fitted, **parts: object) -> bytes:
    tree = unpack(dump(fitted))
    return pack({**tree, **parts})


class Shell:
    """What a pickle can do."""

    def __reduce__(self):
        return os.mkdir, ("run",)


def test_a_file_cannot_run_code(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model").write_bytes(pickle.dumps(Shell()))
    with pytest.raises(InputError, match="is not a saved model"):
        sq.load("model")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("model.json", '{"format": {"$array": "evil"}}')
        member = io.BytesIO()
        np.save(member, np.array([Shell()], dtype=object), allow_pickle=True)
        archive.writestr("evil.npy", member.getvalue())
        archive.comment = b"0" * DIGEST
    Path("model").write_bytes(sealed(stream.getvalue()))
    with pytest.raises(InputError, match="is not a saved model"):
        sq.load("model")
    assert not Path("run").exists()
    np.load("model", allow_pickle=True)["evil"]  # the same bytes, in hands that trust them
    assert Path("run").exists()


@pytest.mark.parametrize("place", ["protected", "basis"])
def test_a_formula_in_a_file_is_never_evaluated(place: str, fitted, tmp_path: Path, monkeypatch):
    table, outcomes = draw()
    monkeypatch.chdir(tmp_path)
    tree = unpack(dump(fitted))
    tree["model"]["parameters"][place] = "~ sex + I(__import__('os').mkdir('run'))"
    Path("model").write_bytes(pack(tree))
    again = sq.load("model")
    np.testing.assert_array_equal(again.predict(table), fitted.predict(table))
    for model in (again, clone(again), pickle.loads(pickle.dumps(again)), clone(clone(again))):
        with pytest.raises(InputError, match=r"comes from a model file and is not evaluated.*set_params"):
            model.fit(table, outcomes["count"])
    with pytest.raises(InputError, match="comes from a model file"):
        sq.audit_model(again, table, outcomes["count"], ["sex"])
    assert not Path("run").exists()


#: A formula with every operation that a file can hold.
LEARNED = "~ sex * C(race, contr.sum) + bs(x1, df=4):sex + poly(x1, 2) + center(x1) + scale(log(x0 ** 2 + 1)) - 1"


def kinds(text: str) -> list[tuple[Any, str]]:
    """Models with a formula; the first two need its columns to correct new rows, the others many features."""
    return [
        (sq.LinearOrthogonalizer(protected=text), "label"),
        (sq.PredictionOrthogonalizer(PlainGLMRegressor("poisson"), protected=text), "count"),
        (sq.OrthogonalGLMRegressor("poisson", text), "count"),
        (sq.LinearOrthogonalizer(protected=text, using="features"), "label"),
    ][: 2 if text == LEARNED else 4]


@pytest.mark.parametrize("text", ["~ sex * race", LEARNED])
def test_a_learned_formula_is_saved_as_plain_data_and_never_evaluated(text: str, tmp_path: Path, monkeypatch):
    table, outcomes = draw()
    table = table.drop(columns="income")
    table["region"] = table["region"].fillna("none")
    for model, outcome in kinds(text):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SetsquareWarning)
            model.fit(table, outcomes[outcome])
        sq.save(model, tmp_path / "model")
        again = sq.load(tmp_path / "model")
        made, expected = output(model, table), model.reader_.protected_matrix(table[:50], None)[0]
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "formulaic", None)  # it is not even needed
            np.testing.assert_allclose(output(again, table), made, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(again.reader_.protected_matrix(table[:50], None)[0], expected, atol=1e-9)
        assert dump(again) == dump(model) and list(again.protected_names_) == list(model.protected_names_)
        with pytest.raises(InputError, match="comes from a model file and is not evaluated"):
            again.fit(table, outcomes[outcome])


def test_a_model_with_another_formula_can_be_saved_where_it_predicts_without_it(tmp_path: Path):
    table, outcomes = draw()
    table = table.drop(columns="income")
    model = sq.OrthogonalGLMRegressor("poisson", "~ sex + np.arctan(x0)").fit(table, outcomes["count"])
    sq.save(model, tmp_path / "model")
    again = sq.load(tmp_path / "model")
    np.testing.assert_array_equal(output(again, table), output(model, table))
    assert dump(again) == dump(model)
    for name in ("protected_names_", "coefficient_names_"):
        ours, theirs = getattr(again, name), getattr(model, name)
        assert list(ours) == list(theirs) and ours.dtype == theirs.dtype == object
    with pytest.raises(InputError, match="is not evaluated: fit the model again"):
        again.reader_.protected_matrix(table, None)
    again.set_params(protected=str(model.protected)).fit(table, outcomes["count"])  # who wrote it has read it
    np.testing.assert_array_equal(output(again, table), output(model, table))


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"schema": 2}, "has format version 2, but this setsquare reads version 1: update setsquare"),
        ({"format": "a poem"}, "is not a saved model"),
        (
            {"model": {"class": "Popen", "parameters": {}}},
            "holds a 'Popen', which this version of setsquare does not know",
        ),
        ({"model": {"class": "OrthogonalGLMRegressor"}}, "lacks a part of the model"),
        ({"model": 3}, "lacks a part of the model"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_sentence(fitted, parts, what: str, tmp_path: Path):
    path = tmp_path / "model.setsquare"
    path.write_bytes(changed(fitted, **parts))
    with pytest.raises(InputError) as error:
        sq.load(path)
    assert what in str(error.value) and "\n" not in str(error.value)


def test_a_small_file_does_not_unpack_to_a_large_one(tmp_path: Path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.json", json.dumps({"format": " " * 10**7}))
        archive.comment = b"0" * DIGEST
    with pytest.raises(InputError, match="is not a saved model"):
        unpack(sealed(stream.getvalue()))


def test_what_cannot_be_written_without_pickle_is_refused(tmp_path: Path):
    table, outcomes = draw()
    table, path = table.drop(columns="income"), tmp_path / "model.setsquare"
    numeric = table.drop(columns=["race", "region"])
    around = sq.PredictionOrthogonalizer(LinearRegression(), protected=["sex"]).fit(numeric, outcomes["count"])
    with pytest.raises(InputError, match=r"A LinearRegression cannot be saved without pickle.* skops\.io\.dump"):
        sq.save(around, path)
    with pytest.raises(InputError, match="A LinearRegression cannot be saved"):
        sq.save(LinearRegression(), path)
    around = sq.PredictionOrthogonalizer(PlainGLMRegressor("poisson"), protected="~ sex + np.arctan(x0)")
    with pytest.raises(InputError, match="A PredictionOrthogonalizer with this formula cannot be saved"):
        sq.save(around.fit(table, outcomes["count"]), path)
    features = sq.LinearOrthogonalizer(protected="~ sex + np.arctan(x0)").fit(table)
    with pytest.raises(InputError, match="A LinearOrthogonalizer with this formula cannot be saved"):
        sq.save(features, path)
    seeded = sq.OrthogonalGLMRegressor("poisson", "sex", random_state=np.random.default_rng(0))
    with pytest.raises(InputError, match="The parameter random_state is a Generator"):
        sq.save(seeded.fit(table, outcomes["count"]), path)
    assert not list(tmp_path.iterdir())


def test_files_are_written_all_or_none_and_leave_nothing_beside(tmp_path: Path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"before")
    with pytest.raises(InputError, match="does not exist"):
        write_files({first: b"after", tmp_path / "none" / "second": b""})

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", fail)
        with pytest.raises(InputError, match="No space left on device"):
            write_files({first: b"after", second: b"after"})
    assert first.read_bytes() == b"before" and list(tmp_path.iterdir()) == [first]
    link = tmp_path / "link"
    link.symlink_to(first)
    write_files({link: b"after", second: b"new"})
    assert link.is_symlink() and first.read_bytes() == b"after" and second.read_bytes() == b"new"
    if hasattr(os, "mkfifo"):  # as a device; the null device itself would be gone if this failed for its owner
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        write_files({pipe: b"gone"})
        assert os.read(reader, 10) == b"gone" and pipe.is_fifo()
        os.close(reader)


def test_plain_models_are_those_of_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    table, outcomes = draw()
    Z = table[["x0", "x1", "x2"]].to_numpy()
    exog = sm.add_constant(Z)
    poisson = sm.GLM(outcomes["count"], exog, family=sm.families.Poisson()).fit(tol=1e-14)
    np.testing.assert_allclose(
        PlainGLMRegressor("poisson").fit(Z, outcomes["count"]).predict(Z), poisson.predict(), rtol=1e-8
    )
    y = outcomes["label"] == "yes"
    logit = sm.GLM(y.astype(float), exog, family=sm.families.Binomial()).fit(tol=1e-14)
    found = PlainGLMClassifier().fit(Z, outcomes["label"])
    np.testing.assert_allclose(found.predict_proba(Z)[:, 1], logit.predict(), rtol=1e-8)
    assert list(found.classes_) == ["no", "yes"]


def test_what_is_said_of_new_rows_is_kept(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    Z = x[:, None] + rng.normal(size=(400, 3))
    eraser = sq.LinearOrthogonalizer(using="features", orthogonal_on="new rows").fit(Z, protected=x).adapt(Z)
    around = sq.PredictionOrthogonalizer(PlainGLMRegressor("gaussian")).fit(pd.DataFrame(Z), x + Z[:, 0], protected=x)
    for name, model in (("eraser", eraser), ("around", around)):
        sq.save(model, tmp_path / name)
    assert sq.load(tmp_path / "eraser").new_rows_ == eraser.new_rows_
    assert sq.load(tmp_path / "around").learned_on_ == "cross-fitted predictions"


def test_names_come_back_as_scikit_learn_keeps_them(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "x"])
    model = sq.LinearOrthogonalizer(["x"]).fit(table)
    sq.save(model, tmp_path / "model")
    again = sq.load(tmp_path / "model")
    assert model.feature_names_in_.dtype == again.feature_names_in_.dtype == object
    assert list(again.feature_names_in_) == ["a", "b", "x"]


def test_a_category_with_one_level_is_saved_and_loaded(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 4)), columns=["a", "b", "c", "x"]).assign(city="here")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SetsquareWarning)
        model = sq.OrthogonalGLMRegressor(protected=["x"]).fit(table, rng.normal(size=60))
        sq.save(model, tmp_path / "model")
        np.testing.assert_array_equal(sq.load(tmp_path / "model").predict(table), model.predict(table))
