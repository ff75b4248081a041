"""Audits of rows with equal protected columns give the numbers of all rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.auditing import cells
from setsquare.auditing.cells import Cells
from setsquare.auditing.protected import Protected

N = 20_000


def protected() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    race = rng.choice(list("abcd"), N, p=[0.15, 0.2, 0.05, 0.6])
    return pd.DataFrame({"sex": rng.choice(["f", "m"], N), "race": race, "age": rng.integers(18, 90, N)})


def predictions(kind: str, X: pd.DataFrame) -> np.ndarray:
    rng = np.random.default_rng(2)
    eta = (-0.5 + 0.1 * (X["sex"] == "m") + 0.005 * (X["age"] - 50)).to_numpy()
    if kind == "probabilities":
        return 1.0 / (1.0 + np.exp(-eta - rng.normal(size=N)))
    if kind == "labels":
        return (rng.random(N) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    if kind == "a group of ones":
        return np.where(X["race"] == "c", 1.0, rng.random(N) < 0.3).astype(float)
    if kind == "hardly any residuals":
        return eta + 1e-4 * rng.normal(size=N)
    return eta + rng.standard_t(3, size=N)


#: Relative and absolute differences. With residuals of 1e-4 of the predictions, sums of squares have eight digits. In a
#: group of ones the loss is flat, and a fit ends within 1e-8 of its minimum: how far out depends on the first step,
#: which some rows decide, or some cells.
DIGITS = {"hardly any residuals": (1e-6, 1e-12), "a group of ones": (1e-5, 1e-6)}


def flatten(found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(found, dict | list | tuple):
        for key, part in found.items() if isinstance(found, dict) else enumerate(found):
            yield from flatten(part, f"{name}/{key}")
    else:
        yield name, found


@pytest.mark.parametrize("vcov", ["HC3", "HC0"])
@pytest.mark.parametrize(
    "kind", ["probabilities", "labels", "a group of ones", "hardly any residuals", "numbers with heavy tails"]
)
def test_cells_have_the_numbers_of_all_rows(kind: str, vcov: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = protected()
    y, found = predictions(kind, X), []
    for fewest in (N, N + 1):
        monkeypatch.setattr(cells, "FEWEST_ROWS", fewest)
        found.append(dict(flatten(sq.audit(y, X, vcov=vcov).to_dict())))
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        if isinstance(value, float):
            near, close = DIGITS.get(kind, (1e-8, 1e-12))
            assert value == pytest.approx(found[1][name], rel=near, abs=close, nan_ok=True), name
        else:
            assert value == found[1][name], name


def columns(X: np.ndarray, **more: Any) -> Protected:
    names = tuple(f"x{j}" for j in range(X.shape[1]))
    return Protected(X, names, names, **more)


def test_cells_are_formed_of_whole_numbers_with_many_rows_each() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(-3, 3, N), rng.integers(2, size=N)]).astype(float)
    found = columns(X).cells
    assert isinstance(found, Cells)
    np.testing.assert_array_equal(found.values[found.codes], X)
    np.testing.assert_array_equal(found.counts, np.bincount(found.codes))
    assert columns(X[1:]).cells is None
    assert columns(X + 0.5).cells is None
    assert columns(np.column_stack([X, np.arange(N)])).cells is None
    assert columns(X, weight=rng.random(N)).cells is None
    assert columns(X, cluster=np.arange(N) // 2).cells is None


def test_many_dummies_are_numbered_as_they_occur() -> None:
    X = np.eye(40)[np.arange(N) % 40]
    found = columns(X[:, 1:]).cells
    assert found is not None
    assert len(found.counts) == 40
    np.testing.assert_array_equal(found.values[found.codes], X[:, 1:])


def test_pairs_keep_sums_of_squares_and_powers_keep_the_others() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.integers(2, size=(N, 2)).astype(float), rng.random(N)
    found = columns(X).cells
    assert found is not None
    rows = found.pairs(y)
    for sums in (lambda Z, y: Z.T @ y, lambda Z, y: Z.T @ (y * y), lambda Z, y: Z.sum(axis=0)):
        weighted = sums(rows.Z * rows.weight[:, None] * N, rows.y[:, 0])
        np.testing.assert_allclose(weighted, sums(X, y), rtol=1e-12)
    np.testing.assert_allclose(found.powers(y).sum(axis=1), [np.sum(y**k) for k in range(7)], rtol=1e-12)
