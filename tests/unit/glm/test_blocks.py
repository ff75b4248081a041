"""Results do not depend on the blocks that the rows are cut into: sums, and what is no sum (largest values, orders)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from setsquare import OrthogonalGLMClassifier, OrthogonalGLMRegressor
from setsquare.rows import blocks

N = 460


def table(seed: int = 0) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=N)
    Z = rng.normal(size=(N, 4)) + 0.4 * x[:, None]
    Z[330] *= 12.0  # one row in a block of its own on which errors rest
    return pd.DataFrame(Z, columns=list("abcd")).assign(x=x), rng


def fitted(name: str, **options: Any) -> Any:
    data, rng = table()
    eta = 0.5 * data["a"] - 0.2
    if name == "binomial":
        return OrthogonalGLMClassifier(protected="x").fit(data, (rng.logistic(size=N) < eta).astype(int), **options)
    if name == "three classes":
        y = np.argmax(rng.gumbel(size=(N, 3)) + np.outer(eta, [0.0, 1.0, -1.0]), axis=1)
        return OrthogonalGLMClassifier(protected="x").fit(data, y, **options)
    return OrthogonalGLMRegressor("gaussian", protected="x").fit(data, eta + rng.normal(size=N), **options)


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("name", ["gaussian", "binomial", "three classes"])
def test_fits_and_their_errors(name: str, clustered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"cluster": np.arange(N) // 4} if clustered else {}
    whole = fitted(name, **options)
    monkeypatch.setattr(blocks, "HELD_BYTES", 800)
    parts = fitted(name, **options)
    assert parts.solution_.certificate.n_rows == whole.solution_.certificate.n_rows == N
    ours, theirs = parts.solution_, whole.solution_
    np.testing.assert_allclose(ours.coef, theirs.coef, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.std_error, theirs.std_error, rtol=1e-6)
    np.testing.assert_array_equal(ours.few_rows, theirs.few_rows)
    assert theirs.few_rows.any()
    assert ours.certificate.loss == pytest.approx(theirs.certificate.loss, rel=1e-9)
