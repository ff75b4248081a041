"""``--basis`` and ``--relax`` on the command line."""

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
    n = 600
    age = rng.uniform(20.0, 70.0, n)
    Z = rng.normal(size=(n, 12)) + 0.02 * (age[:, None] - 45.0)
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-0.4 * Z.sum(axis=1)))
    score = 1.0 / (1.0 + np.exp(-(((age - 45.0) / 15.0) ** 2) - rng.normal(size=n)))
    site = np.array([f"s{j % 20:02d}" for j in range(n)])
    table = pd.DataFrame(Z, columns=[f"z{j}" for j in range(12)])
    return table.assign(age=age, y=np.where(y, "yes", "no"), score=score, site=site)


FEATURES = ",".join(f"z{j}" for j in range(12))


def test_an_audit_by_splines_is_that_of_python(call, table) -> None:
    asked = ("audit", "table.csv", "--predictions", "score", "--protected", "age", "--json", "out.json")
    assert call(*asked, "--basis", "spline")[0] == 0
    found = json.loads(Path("out.json").read_text())
    python = sq.audit(table["score"], table[["age"]], basis="spline")
    assert found["n_protected"] == len(python.table()) > 1
    assert found["verdict"] == str(python.verdict) == "leak"


def test_a_fit_by_splines_is_that_of_python(call, table) -> None:
    asked = ("correct", "table.csv", "--outcome", "y", "--protected", "age", "--features", FEATURES)
    assert call(*asked, "--basis", "spline", "--model", "m.setsquare")[0] == 0
    model = sq.OrthogonalGLMClassifier(protected="age", basis="spline")
    model.fit(table[[*FEATURES.split(","), "age"]], table["y"])
    np.testing.assert_allclose(sq.load("m.setsquare").coef_, model.coef_, atol=1e-9)


def test_group_cells_and_another_basis_are_refused(call) -> None:
    asked = ("audit", "table.csv", "--predictions", "score", "--protected", "age", "--group-cells")
    code, _, err = call(*asked, "--basis", "spline")
    assert code == 2 and "--group-cells is --basis cells" in err


def test_a_relaxed_fit_is_not_called_orthogonal(call) -> None:
    asked = ("correct", "table.csv", "--outcome", "y", "--protected", "site", "--features", "z0,z1,z2,z3")
    code, _, err = call(*asked, "--model", "m.setsquare")
    assert code == 2 and "Only a constant prediction is orthogonal" in err
    code, out, err = call(*asked, "--relax", "box", "--model", "m.setsquare", "--json", "out.json")
    assert (code, err) == (0, "") and "so it is not orthogonal to them" in " ".join(out.split())
    found = json.loads(Path("out.json").read_text())["certificate"]
    assert not found["is_orthogonal"] and found["max_correlation"] <= found["box"] * (1.0 + 1e-9)
    code, _, err = call(*asked, "--relax", "box", "--method", "linear", "--model", "m.setsquare")
    assert code == 2 and "leave out --method" in err
