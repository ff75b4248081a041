"""Rare branches of the estimators: streams without an outcome or with rows of no weight, columns that are dropped."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.exceptions import NotFittedError

import setsquare as sq
from setsquare.errors import DroppedColumnWarning, InputError


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    noise = rng.normal(size=(3, 120))
    columns = {"x": x, "z": x + noise[0], "more": noise[1], "y": x + noise.sum(axis=0), "w": np.arange(120) % 3}
    return pd.DataFrame(columns)


def test_a_stream_needs_the_name_of_its_outcome() -> None:
    rows = pa.Table.from_pandas(table(), preserve_index=False)
    with pytest.raises(InputError, match="The estimator requires y to be passed: name the column of the stream"):
        sq.OrthogonalGLMRegressor(protected=["x"]).fit(sq.Stream(rows.to_batches()), None)


def test_rows_without_weight_do_not_enter_a_stream() -> None:
    known = table()
    odd = known.assign(z=np.where(known["w"] == 0, 1e300, known["z"]))
    fits = []
    for data in (known[known["w"] > 0], odd):
        rows = pa.Table.from_pandas(data, preserve_index=False)
        model = sq.OrthogonalGLMRegressor(protected=["x"])
        fits.append(model.fit(sq.Stream(rows.to_batches(max_chunksize=50)), "y", sample_weight="w"))
    np.testing.assert_allclose(fits[0].coef_, fits[1].coef_, rtol=1e-8)


def test_protected_columns_that_are_dropped_are_named() -> None:
    data = table().assign(twice=lambda t: 2.0 * t["x"])
    with pytest.warns(DroppedColumnWarning, match="linear combinations of others: twice"):
        sq.LinearOrthogonalizer(["x", "twice"]).fit(data[["x", "twice", "z"]])


def test_thresholds_that_are_not_fitted_have_no_table() -> None:
    with pytest.raises(NotFittedError):
        sq.GroupThresholds(0.3).table()
