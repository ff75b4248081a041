"""A stream of pyarrow's record batches, all columns of which have a role."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

import setsquare as sq


def test_record_batches_give_the_fit_of_their_table() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(80) % 2.0
    table = pd.DataFrame({"z": rng.normal(size=80) + x, "u": rng.normal(size=80), "x": x})
    table["y"] = table["z"] + rng.normal(size=80)
    batches = pa.Table.from_pandas(table, preserve_index=False).to_batches(max_chunksize=30)
    assert isinstance(batches[0], pa.RecordBatch) and len(batches) == 3
    streamed = sq.OrthogonalGLMRegressor(protected=["x"]).fit(sq.Stream(batches), "y")
    whole = sq.OrthogonalGLMRegressor(protected=["x"]).fit(table[["z", "u", "x"]], table["y"])
    np.testing.assert_allclose(streamed.coef_, whole.coef_, rtol=1e-8)
    new = table[["z", "u", "x"]]
    np.testing.assert_allclose(streamed.predict(new), whole.predict(new), rtol=1e-8)
