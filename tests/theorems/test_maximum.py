"""The maximum test holds its size for many columns, finds one of them, and bounds the largest correlation."""

from __future__ import annotations

import numpy as np
import pytest

import setsquare as sq
from setsquare.errors import InputError


@pytest.mark.parametrize("kind", ["normal", "dummies"])
def test_size_and_power_with_more_columns_than_rows(kind: str) -> None:
    n, p, draws = 100, 200, 60
    found: dict[float, int] = {0.0: 0, 0.8: 0}
    covered = 0
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, p)) if kind == "normal" else (rng.random((n, p)) < 0.3).astype(float)
        for effect in found:
            y = effect * X[:, 5] / X[:, 5].std() + rng.normal(size=n)
            result = sq.maximum_test(y, X, n_draws=199, random_state=seed)
            found[effect] += result.p_value <= 0.05
            if effect:
                covered += result.upper >= 0.8 / np.sqrt(1.64)
    # 5 % of 60 draws are 3; 9 or more have a probability below 1 %.
    assert found[0.0] <= 8 and found[0.8] >= 0.9 * draws and covered >= 0.88 * draws


def test_clusters_and_weights_count() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 40)), rng.normal(size=60)
    once = sq.maximum_test(y, X)
    twice = sq.maximum_test(np.tile(y, 2), np.tile(X, (2, 1)), cluster=np.tile(np.arange(60), 2))
    naive = sq.maximum_test(np.tile(y, 2), np.tile(X, (2, 1)))
    weighted = sq.maximum_test(np.append(y, 99.0), np.vstack([X, 9.0 * np.ones(40)]), np.append(np.ones(60), 0.0))
    assert twice.statistic == pytest.approx(once.statistic) and naive.statistic > 1.3 * once.statistic
    assert weighted.statistic == pytest.approx(once.statistic)


def test_it_agrees_with_one_regression_for_one_column() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=2000)
    y = 0.05 * x + rng.normal(size=2000)
    found = sq.maximum_test(y, x[:, None], n_draws=9999)
    audited = sq.audit(y, x[:, None], evaluation="linear")
    assert found.p_value == pytest.approx(audited.table()["p_value"][0], abs=0.02)
    assert found.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert found.statistic / found.found.largest.std() > 1.0


def test_the_result_prints_and_bad_input_is_refused() -> None:
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(50, 80)), rng.normal(size=50)
    found = sq.maximum_test(y, X)
    assert "Maximum test" in str(found) and len(found.table()) == 80 and found.to_dict()["n_columns"] == 80
    assert found.table()["p_value"].min() == pytest.approx(found.p_value)
    with pytest.raises(InputError, match="maximum_test"):
        sq.audit(y, X)
    for match, call in {
        "all equal": lambda: sq.maximum_test(np.ones(50), X),
        "n_draws": lambda: sq.maximum_test(y, X, n_draws=10),
        "confidence": lambda: sq.maximum_test(y, X, confidence=2.0),
        "the predictions have": lambda: sq.maximum_test(y[1:], X),
        "one value per row": lambda: sq.maximum_test(X, X),
        "onstant": lambda: sq.maximum_test(y, np.ones((50, 2))),
    }.items():
        with pytest.raises(InputError, match=match):
            call()
