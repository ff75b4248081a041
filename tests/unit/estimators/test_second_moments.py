"""Options, refusals, files and shapes of corrections that go beyond means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.errors import InputError, PooledLevelWarning
from setsquare.projection.cells import find_cells


def people(n: int = 600) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    race = rng.choice(["a", "b", "c"], n)
    protected = pd.DataFrame({"race": race, "age": rng.integers(20, 80, n)})
    spread = np.exp(rng.normal(size=(3, 12)))[np.searchsorted(["a", "b", "c"], race)]
    Z = pd.DataFrame(rng.normal(size=(n, 12)) * spread, columns=[f"z{j}" for j in range(12)])
    return Z, protected, rng.integers(0, 2, n)


@pytest.mark.parametrize("using", ["protected", "features"])
def test_a_saved_correction_gives_the_same_rows(using: str, tmp_path: Path):
    Z, protected, y = people()
    model = sq.LinearOrthogonalizer(using=using, moments=2, preserve="outcome" if using == "features" else None)
    model.fit(Z[:500], y[:500], protected=protected[:500])
    sq.save(model, tmp_path / "model.setsquare")
    loaded = sq.load(tmp_path / "model.setsquare")
    given = {"protected": protected[500:]} if using == "protected" else {}
    np.testing.assert_array_equal(loaded.transform(Z[500:], **given), model.transform(Z[500:], **given))
    assert loaded.moments == 2


def test_single_precision_stays():
    Z, protected, _ = people()
    single = Z.to_numpy(np.float32)
    assert sq.LinearOrthogonalizer(moments=2).fit_transform(single, protected=protected).dtype == np.float32


def test_protected_columns_inside_the_table_and_a_pipeline_of_new_rows():
    Z, protected, _ = people()
    table = pd.concat([Z, protected], axis=1)
    inside = sq.LinearOrthogonalizer(["race", "age"], moments=2).fit(table[:500])
    beside = sq.LinearOrthogonalizer(moments=2).fit(Z[:500], protected=protected[:500])
    np.testing.assert_allclose(inside.transform(table[500:]), beside.transform(Z[500:], protected=protected[500:]))


def test_rows_of_a_combination_without_training_rows_get_the_linear_correction():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (400, 2)).astype(float)
    X = X[~((X[:, 0] == 1) & (X[:, 1] == 1))]
    Z = rng.normal(size=(len(X), 3)) * (1 + X[:, :1]) + X @ rng.normal(size=(2, 3))
    model = sq.LinearOrthogonalizer(moments=2).fit(Z, protected=X)
    with pytest.warns(PooledLevelWarning, match="1 of 2 rows have a combination"):
        moved = model.transform(Z[:2], protected=np.array([[1.0, 1.0], [0.0, 0.0]]))
    first, last = model.transport_.first, model.transport_.last
    both = last.apply(first.apply(Z[:1], np.ones((1, 2))), np.ones((1, 2)))
    np.testing.assert_allclose(moved[:1], both)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moments": 3}, "moments must be 1"),
        ({"moments": True}, "moments must be 1"),
        ({"preserve": "outcome"}, 'preserve= is for erasure: pass using="features"'),
        ({"using": "features", "orthogonal_on": "new rows", "preserve": "outcome"}, "exact on the training rows"),
        ({"using": "features", "orthogonal_on": "new rows", "moments": 2}, "exact on the training rows"),
        ({"moments": 2, "basis": "spline"}, "makes cells of the protected columns themselves"),
        ({"moments": 2, "shrinkage": 1.5}, "shrinkage must be"),
        ({"moments": 2, "shrinkage": "none"}, "shrinkage must be"),
        ({"moments": 2, "shrinkage": 0.0}, "cells of the protected columns have no more rows than the features"),
    ],
)
def test_options_that_do_not_go_together(options: dict, message: str):
    Z, protected, y = people(60)
    with pytest.raises(InputError, match=message):
        sq.LinearOrthogonalizer(**options).fit(Z, y, protected=protected)


def test_preserving_the_outcome_needs_it_and_a_named_column_must_exist():
    Z, protected, _ = people()
    with pytest.raises(InputError, match="requires y"):
        sq.LinearOrthogonalizer(using="features", preserve="outcome").fit(Z, protected=protected)
    with pytest.raises(InputError, match="wrong"):
        sq.LinearOrthogonalizer(using="features", preserve=["wrong"]).fit(Z, protected=protected)


def test_few_rows_and_batches_are_refused():
    Z, protected, _ = people(10)
    for using in ("protected", "features"):
        with pytest.raises(InputError, match="Too few rows"):
            sq.LinearOrthogonalizer(using=using, moments=2).fit(Z, protected=protected)
    with pytest.raises((InputError, AttributeError)):
        sq.LinearOrthogonalizer(moments=2).partial_fit(Z, protected=protected)


def test_new_rows_are_left_to_the_probe():
    Z, protected, y = people()
    model = sq.LinearOrthogonalizer(using="features", moments=2, preserve="outcome").fit(Z, y, protected=protected)
    with pytest.raises(AttributeError, match=r"setsquare\.probe"):
        _ = model.new_rows_


def test_a_constant_table_is_refused():
    _, protected, _ = people()
    with pytest.raises(InputError, match="Every feature is constant"):
        sq.LinearOrthogonalizer(moments=2).fit(np.ones((600, 3)), protected=protected)


def test_cells_of_few_and_of_many_values():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 3, 1000), rng.normal(size=1000)]).astype(float)
    cells = find_cells(X, n_features=10)
    assert [len(cuts) for cuts in cells.thresholds] == [2, 9]
    assert find_cells(X, n_features=100).thresholds[1].shape == (1,)
    place = cells.of(X)
    assert place.min() == 0 and len(np.unique(place)) == len(cells.codes) == 30
    assert (np.sort(np.unique(X[place == 4, 0])) == X[place == 4, 0][0]).all()


@pytest.mark.parametrize("options", [{"moments": 2}, {"preserve": "outcome"}, {"moments": 2, "preserve": "outcome"}])
def test_what_is_exact_on_the_training_rows_is_not_promised_on_new_rows(options: dict):
    Z, protected, y = people()
    model = sq.LinearOrthogonalizer(using="features", orthogonal_on="new rows", **options)
    with pytest.raises(InputError, match="are exact on the training rows"):
        model.fit(Z, y, protected=protected)
