"""The monitor: state in a file, batches, bad input."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from setsquare.auditing.monitoring.monitor import monitor
from setsquare.auditing.monitoring.pairing import WAITING, pair_rows, start_pairing
from setsquare.errors import InputError, MissingValuesError


def rows(n: int, gap: float = 0.0, seed: int = 0) -> tuple[np.ndarray, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    people = pd.DataFrame({"race": rng.choice(["Black", "White", "Other"], n, p=[0.3, 0.6, 0.1])})
    people["age"] = rng.integers(18, 80, n)
    return 0.1 + 0.8 * rng.beta(2, 2, n) - gap * (people["race"] == "Black").to_numpy(), people


def test_batches_through_a_file_equal_one_call(tmp_path: Path) -> None:
    score, people = rows(3000, 0.08)
    path = tmp_path / "state.json"
    starts = [0, 1500, 1501, 1731, 3000]  # the groups are those of the first batch
    for a, b in itertools.pairwise(starts):
        found = monitor(score[a:b], people["race"].iloc[a:b], state=path)
    whole = monitor(score, people["race"])
    pd.testing.assert_frame_equal(found.table(), whole.table(), rtol=1e-9)
    assert found.is_alarm
    assert path.stat().st_size < 100_000
    table = whole.table().set_index("group")
    assert table.loc["Black", "low"] <= -0.08 <= table.loc["Black", "high"] < 0.0
    assert table.loc["Other", "alarm"] == 0


def test_the_reason_names_the_group_first() -> None:
    score, people = rows(3000, 0.08)
    found = monitor(score, people[["race"]])
    assert found.verdict == "alarm"
    assert found.reason.startswith("Mean prediction of race Black is 0.0")
    assert "below that of White" in found.reason
    assert "alarm" in str(found)
    quiet = monitor(*rows(3000))
    assert quiet.verdict == "no alarm"
    assert quiet.reason.startswith("No group differs")


def test_tables_come_in_the_library_of_the_input() -> None:
    score, people = rows(500)
    assert isinstance(monitor(score, pl.from_pandas(people)).table(), pl.DataFrame)


def test_declared_bounds_scale_the_difference() -> None:
    score, people = rows(3000, 0.08)
    race = people["race"]
    plain, scaled = monitor(score, race), monitor(100.0 * score - 50.0, race, bounds=(-50.0, 50.0))
    a, b = plain.table(), scaled.table()
    np.testing.assert_allclose(100.0 * a["difference"], b["difference"], rtol=1e-9)
    np.testing.assert_allclose(a["wealth"], b["wealth"], rtol=1e-6)


def test_new_groups_and_missing_values_are_counted() -> None:
    score, people = rows(400)
    first = monitor(score, people["race"])
    race = people["race"].astype(object).copy()
    race[:5], race[5:7] = "New", None
    second = monitor(score, race, state=first)
    assert {note.code: note.fields["count"] for note in second.notes if "count" in note.fields} == {
        "new-groups": 5,
        "missing-groups": 2,
    }
    assert second.state.n_rows == 800


def test_bands_are_kept() -> None:
    score, people = rows(1000)
    first = monitor(score, people[["age"]])
    second = monitor(score[:10], people[["age"]].iloc[:10], state=first)
    assert second.table()["group"].tolist() == first.table()["group"].tolist()
    assert len(first.table()) == 3


def test_few_rows_are_not_tested() -> None:
    score, people = rows(60)
    found = monitor(score, people["race"])
    assert not found.table()["pairs"].any()
    assert "few-rows" in [note.code for note in found.notes]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protected": "sex"}, r"belongs to another monitor \(protected: race there, sex here\)"),
        ({"bounds": (0.0, 2.0)}, r"belongs to another monitor \(bounds: 0.0, 1.0 there, 0.0, 2.0 here\)"),
        ({"confidence": 0.9}, r"belongs to another monitor \(confidence: 0.95 there, 0.9 here\)"),
        ({"reference": {"race": "Black"}}, r"belongs to another monitor \(reference: race White there, race Black"),
    ],
)
def test_the_state_of_another_monitor_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    score, people = rows(300)
    path = tmp_path / "state.json"
    monitor(score, people["race"], state=path)
    before = path.read_bytes()
    race = people["race"].rename(str(change.pop("protected", "race")))
    with pytest.raises(InputError, match=message):
        monitor(score, race, state=path, **change)
    assert path.read_bytes() == before


def test_a_state_keeps_the_name_of_the_predictions(tmp_path: Path) -> None:
    score, people = rows(300)
    path = tmp_path / "state.json"
    named = pd.Series(np.asarray(score), name="score")
    monitor(score, people["race"], state=path)  # a name that is not known is none
    monitor(named, people["race"], state=path)
    monitor(score, people["race"], state=path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"another monitor \(predictions: score there, rank here\)"):
        monitor(named.rename("rank"), people["race"], state=path)
    assert path.read_bytes() == before
    old = json.loads(before)
    del old["predictions"]  # a file of an earlier version
    path.write_text(json.dumps(old))
    assert monitor(named, people["race"], state=path).state.predictions == "score"


@pytest.mark.parametrize("content", ["", "{}", "[1]", json.dumps({"format": "setsquare monitor", "version": 1})])
def test_a_file_that_is_not_a_state_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    score, people = rows(300)
    with pytest.raises(InputError, match="is not the state of a monitor"):
        monitor(score, people["race"], state=path)


def test_bad_input() -> None:
    score, people = rows(300)
    race = people["race"]
    with pytest.raises(InputError, match=r"3 of 300 predictions lie outside 0 to 1: pass bounds="):
        monitor(np.r_[1.5, 2.0, -1.0, score[3:]], race)
    with pytest.raises(InputError, match="the smaller one first"):
        monitor(score, race, bounds=(1.0, 0.0))
    with pytest.raises(InputError, match="has no group 'Green' for a reference"):
        monitor(score, race, reference={"race": "Green"})
    with pytest.raises(InputError, match="same rows in both"):
        monitor(score[:-1], race)
    with pytest.raises(InputError, match="constant"):
        monitor(score, np.full(300, "a"))
    with pytest.raises(MissingValuesError):
        monitor(np.r_[np.nan, score[1:]], race)
    with pytest.raises(InputError, match="one number per row"):
        monitor(np.column_stack([score, 1 - score]), race)


def test_pairs_do_not_depend_on_batches_and_waiting_rows_are_bounded() -> None:
    rng = np.random.default_rng(0)
    score, first = rng.random(5000), rng.random(5000) < 0.1
    state, whole = pair_rows(start_pairing(), score, first)
    parts, other = [], start_pairing()
    for start in range(0, 5000, 61):
        other, found = pair_rows(other, score[start : start + 61], first[start : start + 61])
        parts.append(found)
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert state.blocks[0] == 1
    assert state.blocks[1] > 3
    lonely, none = pair_rows(start_pairing(), score, np.zeros(5000, dtype=bool))
    assert not len(none)
    assert len(lonely.second) == WAITING
    assert lonely.dropped == 4000
