"""The ridge of a wider feature space is chosen on a sample of many rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from setsquare.errors import NotOrthogonalError
from setsquare.glm import Problem, ridge
from setsquare.glm.ridge import DOWN, UP, choose_ridge


def _problem(n: int, **more: Any) -> Problem:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 1))
    Z = rng.normal(size=(n, 30)) + 0.3 * X
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-Z[:, :5].sum(axis=1)))).astype(float)
    return Problem(Z, y, X, "binomial", **more)


def test_the_penalty_of_a_sample_falls_with_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(2000)
    monkeypatch.setattr(ridge, "SAMPLE", 500)
    sample = ridge._sample(problem)
    assert sample.n_rows == 500
    found = choose_ridge(problem, wide=True)
    monkeypatch.setattr(ridge, "SAMPLE", 10_000)
    alone = choose_ridge(sample, wide=True)
    assert found.l2 == pytest.approx(alone.l2 * 500 / 2000)
    whole = choose_ridge(problem, wide=True)
    assert 1.0 / 50.0 < found.l2 / whole.l2 < 50.0  # of penalties over eight powers of ten
    assert len(DOWN) + len(UP) == 9


def test_what_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "SAMPLE", 100)
    weight = np.where(np.arange(400) < 200, 0.0, 1.0)
    assert ridge._sample(_problem(400, weight=weight)).weight.all()  # rows of weight 0 are never picked
    for more in ({"given": "outcome"}, {"cluster": np.arange(400) // 2}):
        problem = _problem(400, **more)
        assert ridge._sample(problem) is problem


def test_a_refusal_says_that_no_ridge_is_orthogonal_on_new_rows() -> None:
    """The 80 rows determine the predictions of ten features; five unrelated levels cannot be reached with them."""
    rng = np.random.default_rng(3)
    X = (rng.integers(0, 6, 80)[:, None] == np.arange(1, 6)).astype(float)
    Z = rng.normal(size=(80, 10))
    problem = Problem(Z, Z[:, 0] + rng.normal(size=80), X)
    with pytest.raises(NotOrthogonalError, match="make the predictions orthogonal on new rows: the features predict"):
        choose_ridge(problem, orthogonal_on="new rows")
