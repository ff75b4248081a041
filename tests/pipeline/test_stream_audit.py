"""An audit of columns of files gives the numbers of the audit in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.auditing.open_stream import open_stream
from setsquare.auditing.protected import Protected
from setsquare.errors import InputError, MissingValuesError
from setsquare.rows.blocks import all_rows


def draw_table(n: int = 4000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"sex": rng.choice(["f", "m"], n), "race": rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])})
    table["age"] = rng.normal(40.0, 10.0, n).astype(np.float32)
    table["rare"] = np.where(np.arange(n) % 400 == 7, "yes", "no")  # ten rows
    signal = rng.normal(size=n)
    table["clean"] = 1.0 / (1.0 + np.exp(-signal))
    table["leaking"] = 1.0 / (1.0 + np.exp(-signal - 0.3 * (table.sex == "f") - 0.01 * table.age))
    table["score"] = signal + 0.1 * (table.race == "b")
    table["count"] = rng.poisson(np.exp(0.3 * signal + 0.1 * (table.race == "c"))).astype(float)
    table["certain"] = np.where(table.rare == "yes", 1.0, table.clean)
    table["extreme"] = np.where(np.arange(n) == 17, 1e4, signal)
    table["same"] = 0.25
    table["weight"] = rng.random(n)
    return table


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> sq.Stream:
    folder = tmp_path_factory.mktemp("predictions")
    table = draw_table()
    for i in range(4):
        table.iloc[1000 * i : 1000 * (i + 1)].to_parquet(folder / f"part{i}.parquet", index=False)
    return sq.Stream(folder, memory="1MB")


CASES = {
    "probabilities": ("leaking", ["sex", "race", "age"], {}),
    "no leak": ("clean", ["sex", "race", "age"], {}),
    "HC0": ("leaking", ["sex", "age"], {"vcov": "HC0"}),
    "HC1": ("leaking", ["sex", "age"], {"vcov": "HC1"}),
    "HC2": ("leaking", ["sex", "age"], {"vcov": "HC2"}),
    "model-based": ("leaking", ["sex", "age"], {"vcov": "model"}),
    "scores": ("score", ["race", "age"], {}),
    "poisson": ("count", ["race", "sex"], {"family": "poisson"}),
    "gamma with log link": ("leaking", ["race", "sex"], {"family": sq.families.family("gamma", "log")}),
    "weights": ("leaking", ["sex", "race"], {"sample_weight": "weight"}),
    "cells": ("leaking", ["sex", "race"], {"basis": "cells"}),
    "reference": ("leaking", ["sex", "race"], {"reference": {"race": "c"}}),
    "a group of few rows": ("leaking", ["rare", "sex"], {}),
    "a group on the edge": ("certain", ["rare", "sex", "age"], {}),
    "one extreme prediction": ("extreme", ["sex", "race"], {}),
    "tolerance": ("leaking", ["sex"], {"tolerance": 0.3, "confidence": 0.9}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_audit_of_files_gives_the_numbers_of_memory(case: str, stream: sq.Stream) -> None:
    predictions, protected, options = CASES[case]
    table = draw_table()
    weight = options.get("sample_weight")
    inside = options | ({"sample_weight": table[weight]} if weight else {})
    expected = sq.audit(table[predictions], table[protected], **inside)
    found = sq.audit(stream[predictions], stream[protected], **options)
    assert found.verdict == expected.verdict and found.family == expected.family and found.n == expected.n
    assert found.notes == expected.notes and found.evaluations[0].notes == expected.evaluations[0].notes
    assert found.evaluations[0].title == expected.evaluations[0].title
    ours, theirs = found.table(), expected.table()
    assert list(ours.term) == list(theirs.term) and list(ours.source) == list(theirs.source)
    numbers = [name for name in theirs.columns if name not in ("term", "source")]
    np.testing.assert_allclose(ours[numbers].astype(float), theirs[numbers].astype(float), rtol=1e-6, atol=1e-9)
    for mine, other in zip(
        (found.evaluations[0].joint, *found.evaluations[0].by_source),
        (expected.evaluations[0].joint, *expected.evaluations[0].by_source),
        strict=True,
    ):
        if not other.method.startswith("permutation"):  # what is read in parts cannot be shuffled
            assert mine.method == other.method and mine.p_value == pytest.approx(other.p_value, rel=1e-5, abs=1e-12)
    for mine, other in zip(found.evaluations[1].further, expected.evaluations[1].further, strict=True):
        assert (mine.name, mine.method, mine.sources) == (other.name, other.method, other.sources)
        assert mine.p_value == pytest.approx(other.p_value, rel=1e-5, abs=1e-12)
        assert mine.upper == pytest.approx(other.upper, rel=1e-6)
    for mine, other in zip(found.certificate.columns, expected.certificate.columns, strict=True):
        assert (mine.unit, mine.n_group) == (other.unit, other.n_group)
        for name in ("correlation", "correlation_upper", "effect", "effect_upper"):
            assert getattr(mine, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-9), name
    assert found.certificate.correlation_upper == pytest.approx(expected.certificate.correlation_upper, rel=1e-6)


def test_a_leak_is_found_and_gone_after_the_correction(stream: sq.Stream) -> None:
    table = draw_table()
    X = table[["sex", "age"]]
    coded = pd.get_dummies(X, drop_first=True).to_numpy(float)
    after = table.assign(fixed=sq.projection.project_out(table.leaking.to_numpy(), coded))
    halves = sq.Stream([after.iloc[:1500], after.iloc[1500:]])
    assert sq.audit(stream["leaking"], stream[["sex", "age"]]).verdict == "leak"
    result = sq.audit(halves["fixed"], halves[["sex", "age"]], family="gaussian", evaluation="glm")
    assert result.verdict == "no leak found" and result.certificate.correlation < 1e-12
    assert any("corrected on these same rows" in note for note in result.notes)


def test_missing_values_and_constant_predictions(tmp_path: Path, stream: sq.Stream) -> None:
    table = draw_table()
    table.loc[::50, "race"] = None
    table.to_parquet(tmp_path / "a.parquet", index=False)
    gaps = sq.Stream(tmp_path / "a.parquet")
    expected = sq.audit(table.leaking, table[["race", "sex"]], missing="drop")
    found = sq.audit(gaps["leaking"], gaps[["race", "sex"]], missing="drop")
    assert found.notes == expected.notes and found.n == expected.n == 3920
    np.testing.assert_allclose(found.table().std_error, expected.table().std_error, rtol=1e-7)
    with pytest.raises(MissingValuesError, match=r"'race' \(80\)"):
        sq.audit(gaps["leaking"], gaps[["race"]])
    assert sq.audit(stream["same"], stream["sex"]).reason == "Every prediction is the same, so nothing can leak."
    table.assign(clean=np.where(np.arange(4000) == 5, np.nan, 0.5)).to_parquet(tmp_path / "b.parquet", index=False)
    broken = sq.Stream(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"'clean' have 1 missing .*b\.parquet"):
        sq.audit(broken["clean"], broken["sex"])


def test_what_cannot_be_streamed_is_refused_in_one_sentence(stream: sq.Stream) -> None:
    table = draw_table()
    for options in ({"evaluation": "forest"}, {"cluster": np.arange(4000)}, {"evaluation": "linear"}):
        with pytest.raises(InputError, match="read the columns into memory for the rest"):
            sq.audit(stream["clean"], stream["sex"], **options)
    with pytest.raises(InputError, match="or both in memory"):
        sq.audit(table.clean, stream["sex"])
    with pytest.raises(InputError, match="one of its columns"):
        sq.audit(stream[["clean", "leaking"]], stream["sex"])
    with pytest.raises(InputError, match="The prediction column 'race' must be numbers"):
        sq.audit(stream["race"], stream["sex"])
    constant = sq.Stream([table.assign(sex="f")])
    with pytest.raises(InputError, match="Every protected column is constant"):
        sq.audit(constant["clean"], constant["sex"])
    lone = sq.Stream([table.assign(sex=np.where(np.arange(4000) == 3, "x", table.sex))])
    with pytest.raises(InputError, match="determines an effect alone"):
        sq.audit(lone["clean"], lone["sex"])


def test_rows_without_weight_are_left_out_as_in_memory() -> None:
    """Also where a whole batch has none, and where a group is coded 1 and 2."""
    table = draw_table()
    table["code"] = 1.0 + (table.sex == "f")
    table["weight"] = np.where(np.arange(4000) < 1000, 0.0, np.where(np.arange(4000) % 7 == 0, 0.0, table.weight))
    parts = sq.Stream([table.iloc[i : i + 500] for i in range(0, 4000, 500)])
    expected = sq.audit(table.leaking, table[["code", "age"]], sample_weight=table.weight)
    found = sq.audit(parts["leaking"], parts[["code", "age"]], sample_weight="weight")
    assert found.n == expected.n and found.notes == expected.notes and found.is_weighted
    assert [bound.n_group for bound in found.certificate.columns] == [
        bound.n_group for bound in expected.certificate.columns
    ]
    np.testing.assert_allclose(found.table().std_error, expected.table().std_error, rtol=1e-7)


def test_what_needs_all_rows_at_once_says_so() -> None:
    table = draw_table()
    stream = sq.Stream([table])
    columns = open_stream(stream["clean"], stream[["sex"]], None, None, "linear", None, "error", True)[1].columns
    assert columns.n_rows == 4000 and columns.rows.in_memory() is None and not len(columns.values)
    with pytest.raises(InputError, match="all rows at once, but they are streamed"):
        all_rows(columns.rows)


def test_nearly_collinear_columns_of_a_stream_are_those_of_memory() -> None:
    """A column of which 1e-7 lies outside the span of the others has a direction of its own, in files as in memory."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(3000, 2)), columns=["a", "b"])
    table["near"], table["score"] = table.a + 1e-7 * rng.normal(size=3000), rng.normal(size=3000)
    stream = sq.Stream([table.iloc[:1700], table.iloc[1700:]])
    protected = stream[["a", "b", "near"]]
    columns = open_stream(stream["score"], protected, None, None, "linear", None, "error", True)[1].columns
    inside = Protected(table[["a", "b", "near"]].to_numpy(), ("a", "b", "near"), ("a", "b", "near"))
    assert columns.basis.rank == inside.basis.rank == 3
    assert columns.group_sizes == inside.group_sizes and columns.max_leverage == pytest.approx(inside.max_leverage)
