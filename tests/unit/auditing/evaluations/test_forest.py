from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import r2_score

from setsquare.auditing.evaluations.forest import _smoother, forest_importances, forest_r2
from setsquare.errors import InputError

NAMES = ["race[1]", "race[2]", "race[3]", "age", "pay"]
SOURCES = ["race"] * 3 + ["age", "pay"]


def draw(n: int = 400, leak: float = 1.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that know the race but neither age nor pay; dummies of four races."""
    rng = np.random.default_rng(seed)
    race = rng.choice(4, size=n, p=[0.5, 0.2, 0.2, 0.1])
    X = np.column_stack([race[:, None] == np.arange(1, 4), rng.normal(40, 12, n), rng.exponential(size=n)])
    return 1 / (1 + np.exp(-rng.normal(size=n) - leak * (race == 2))), X.astype(float)


def r2(y: np.ndarray, X: np.ndarray, **options: object):
    return forest_r2(y, X, **({"rng": np.random.default_rng(0), "n_permutations": 99} | options))


def importances(y: np.ndarray, X: np.ndarray, **options: object):
    options = {"rng": np.random.default_rng(0), "n_permutations": 19, "n_trees": 20} | options
    return forest_importances(y, X, **({"names": NAMES, "sources": SOURCES} | options))


# ------------------------------------------------------------------------------------------- totally random trees
def test_the_smoother_takes_means_of_other_rows() -> None:
    X = draw(120)[1]
    fill, read = _smoother(X, np.random.default_rng(0), 30)
    S = (read @ fill).toarray()
    assert np.all(np.diag(S) == 0.0)  # out of bag: no row predicts itself
    assert np.all(S >= 0.0)
    assert S.sum(axis=1).max() <= 1.0 + 1e-12
    assert S.sum(axis=1).mean() > 0.99  # less than 1 where a leaf has no row in its bag


def test_r2_is_that_of_the_smoother() -> None:
    y, X = draw(120)
    found = r2(y, X, n_trees=30)
    rng = np.random.default_rng(0)
    rows = rng.choice(120, size=120, replace=False)
    fill, read = _smoother(X[rows], rng, 30)
    y = y[rows] - y.mean()
    assert found.statistic == pytest.approx(r2_score(y, read @ (fill @ y)), rel=1e-10)


def test_r2_of_a_function_of_the_protected_columns() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(2000, 1))
    assert r2(x[:, 0] ** 2, x).statistic > 0.95
    assert abs(r2(rng.permutation(x[:, 0] ** 2), x).statistic) < 0.05


def test_permutations_in_slices_are_the_same_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    y, X = draw()
    whole = r2(y, X, n_trees=20)
    monkeypatch.setattr("setsquare.auditing.evaluations.forest.LEAF_VALUES", 10_000)
    assert r2(y, X, n_trees=20).null_sd == pytest.approx(whole.null_sd, rel=1e-10)


# ------------------------------------------------------------------------------------------------- importances
def test_the_leaking_source_is_named() -> None:
    y, X = draw(600)
    found = importances(y, X)
    assert {name: test.p_value == 0.05 for name, test in found.by_source.items()} == {
        "race": True,
        "age": False,
        "pay": False,
    }
    assert max(found.by_column, key=lambda name: found.by_column[name].statistic) == "race[2]"
    assert found.by_column["age"] is found.by_source["age"]  # a source of one column is tested once
    assert abs(found.by_source["age"].null_mean) < 0.01  # many values do not make a column important


def test_a_strong_column_does_not_hide_a_weak_one() -> None:
    y, X = draw(1000)
    age = (X[:, 3] - 40) / 12
    found = importances(6 * age + 2 * (X[:, 4] > 1) + y, X)
    assert found.by_source["age"].statistic > 0.5 > found.by_source["pay"].statistic
    assert found.by_source["age"].p_value == found.by_source["pay"].p_value == 0.05


# -------------------------------------------------------------------------------------------------------- both
def test_classes_are_summed_up() -> None:
    y, X = draw()
    both = np.column_stack([1 - y, y])
    assert r2(both, X).statistic == pytest.approx(r2(y, X).statistic, rel=1e-10)
    one, two = (importances(part, X, n_permutations=1).by_source["race"].statistic for part in (y, both))
    assert one == pytest.approx(two, rel=1e-6)


def test_without_a_leak_nothing_is_found() -> None:
    y, X = draw(leak=0.0, seed=1)
    assert r2(y, X).p_value > 0.05
    assert r2(*draw(seed=1)).p_value == 0.01
    assert min(test.p_value for test in importances(y, X).by_source.values()) > 0.05


def test_the_same_generator_gives_the_same_result() -> None:
    y, X = draw(100)
    assert r2(y, X) == r2(y, X) != r2(y, X, rng=np.random.default_rng(1))
    assert importances(y, X, n_permutations=2) == importances(y, X, n_permutations=2)


def test_only_the_rows_that_were_asked_for() -> None:
    y, X = draw(500)
    assert r2(y, X, max_rows=100).n_rows == 100
    assert importances(y, X, max_rows=100, n_permutations=1).by_source["age"].n_rows == 100


def test_constant_predictions() -> None:
    X = draw(100)[1]
    assert (r2(np.full(100, 0.25), X).statistic, r2(np.full(100, 0.25), X).p_value) == (0.0, 1.0)
    assert all(test.p_value == 1.0 for test in importances(np.full(100, 0.25), X, n_permutations=3).by_source.values())


def test_bad_input() -> None:
    y, X = draw(100)
    with pytest.raises(InputError, match="same name"):
        importances(y, X, names=["a", "b", "c", "d", "d"])
    with pytest.raises(InputError, match="same rows"):
        r2(y[1:], X)
