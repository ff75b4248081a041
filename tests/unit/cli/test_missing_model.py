"""``--missing model``: protected columns that only some rows have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import setsquare as sq


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 1500
    sex = rng.choice(["F", "M"], n)
    Z = rng.normal(size=(n, 5))
    Z[:, :3] += 0.8 * (sex == "M")[:, None]
    y = rng.random(n) < 1.0 / (1.0 + np.exp(0.5 - 0.5 * Z.sum(axis=1)))
    score = 1.0 / (1.0 + np.exp(-Z[:, 0]))
    known = rng.random(n) < 1.0 / (1.0 + np.exp(1.0 + Z[:, 1]))
    table = pd.DataFrame(Z, columns=[f"z{j}" for j in range(5)])
    return table.assign(sex=np.where(known, sex, None), y=np.where(y, "yes", "no"), score=score)


FIT = ("correct", "table.csv", "--outcome", "y", "--protected", "sex", "--features", "z0,z1,z2,z3,z4")


def test_a_fit_is_that_of_python_and_states_its_assumption(call, table) -> None:
    code, out, err = call(*FIT, "--missing", "model", "--model", "m.setsquare", "--json", "out.json")
    assert (code, err) == (0, "")
    assert "missing at random given the predictions, the outcome, the features." in " ".join(out.split())
    model = sq.OrthogonalGLMClassifier(protected="sex", missing="model")
    model.fit(table[["z0", "z1", "z2", "z3", "z4", "sex"]], table["y"])
    saved = sq.load("m.setsquare")
    np.testing.assert_allclose(saved.coef_, model.coef_, atol=1e-10)
    found = json.loads(Path("out.json").read_text())
    assert found["certificate"]["missing_protected"] == ["sex"]
    assert found["largest_correlation_in_training"] < 1e-8
    before, after = (side["audit"]["verdict"] for side in found["models"])
    assert before == "leak" and after != "leak"


def test_audit_and_compare(call) -> None:
    asked = ("--protected", "sex", "--missing", "model", "--predictions", "score")
    for command in (
        ("audit", "table.csv"),
        ("audit", "table.csv", "--outcome", "y"),
        ("compare", "table.csv", "--outcome", "y"),
    ):
        code, out, err = call(*command, *asked, "--html", "page.html")
        assert (code, err) == (0, "") and "missing at random" in " ".join(out.split())


def test_other_methods_need_the_columns(call) -> None:
    code, _, err = call(*FIT, "--missing", "model", "--model", "m.setsquare", "--method", "generalized")
    assert code == 2 and "--missing model needs --method constrained" in err
