"""Numbers from sums over joint cells equal those from the influence of each row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from setsquare.auditing.groups import joint_cells
from setsquare.auditing.groups.joint_cells import JointCells
from setsquare.auditing.groups.partitions import partition_rows
from setsquare.auditing.groups.rates import Rows, count_numbers

N = 400


def people(rng: np.random.Generator) -> pd.DataFrame:
    frame = pd.DataFrame({"race": rng.choice(["Asian", "Black", "White"], N, p=[0.05, 0.25, 0.7]).astype(object)})
    frame["sex"], frame["age"] = rng.choice(["f", "m"], N), rng.normal(50.0, 10.0, N)
    frame.loc[rng.random(N) < 0.1, "race"] = None
    return frame


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scores", ["shares", "far from 0", "constant in a group", "decisions"])
def test_cells_give_the_numbers_of_the_rows(monkeypatch: pytest.MonkeyPatch, scores: str, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    frame, share = people(rng), rng.random(N)
    decision, outcome = (rng.random(N) < 0.02).astype(float), (rng.random(N) < 0.3).astype(float)
    known = {"shares": share, "far from 0": 1e6 + share, "decisions": decision}
    score = known.get(scores, np.where(frame["sex"] == "f", 0.3, share))
    rows = Rows(score, decision, outcome, 0.1 + rng.random(N) if weighted else None)
    partitions = partition_rows(frame, min_group=1)
    found = count_numbers(rows, partitions)
    monkeypatch.setattr(joint_cells, "MOST", 1)  # every partition has more cells than this
    assert JointCells.of(partitions) is None
    for name, one in count_numbers(rows, partitions).items():
        ours, theirs = found[name].estimates, one.estimates
        np.testing.assert_allclose(ours.value, theirs.value, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(ours.size, theirs.size, rtol=1e-12)
        size = np.sqrt(np.outer(theirs.error, theirs.error))
        assert np.all(np.abs(ours.covariance - theirs.covariance) <= 1e-9 * size), name


def test_many_columns_have_too_many_cells() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(2000, 12)))
    partitions = partition_rows(frame)
    assert JointCells.of(partitions[:3]) is not None
    assert (
        len(partitions) == 12 and count_numbers(Rows(rng.random(2000)), partitions)["mean"].estimates.value.size == 48
    )
