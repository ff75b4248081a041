"""Corrections and components learned in batches, or merged, are those of all rows together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from setsquare import LinearOrthogonalizer, PrincipalComponents, Stream
from setsquare.errors import DroppedColumnWarning, InputError, MissingValuesError, PooledLevelWarning, UnseenLevelError
from setsquare.projection import Projector, basis_of_moments, protected_basis
from setsquare.projection.moments import Moments


def draw(n: int = 2000, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Features, and protected columns of different means and scales."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {"sex": rng.choice(["f", "m"], n), "age": rng.normal(1000.0, 10.0, n), "tiny": 1e-6 * rng.normal(size=n)}
    )
    Z = pd.DataFrame(rng.normal(size=(n, 4)), columns=list("abcd"))
    return Z.add(0.5 * (X.sex == "f"), axis=0).add(0.05 * (X.age - 1000.0), axis=0).add(3e5 * X.tiny, axis=0), X


def largest_correlation(features: np.ndarray, X: pd.DataFrame) -> float:
    coded = np.column_stack([X.sex == "f", X.age, X.tiny]).astype(float)
    return float(np.abs(np.corrcoef(coded.T, features.T)[:3, 3:]).max())


def batches(*tables: pd.DataFrame, size: int = 300):
    for start in range(0, len(tables[0]), size):
        yield tuple(table.iloc[start : start + size] for table in tables)


def test_features_corrected_in_batches_are_uncorrelated_and_were_not_before() -> None:
    Z, X = draw()
    model = LinearOrthogonalizer()
    for z, x in batches(Z, X):
        model.partial_fit(z, protected=x)
    corrected = model.transform(Z, protected=X)
    assert largest_correlation(Z.to_numpy(), X) > 0.2
    assert largest_correlation(corrected, X) < 1e-12
    np.testing.assert_allclose(corrected, LinearOrthogonalizer().fit_transform(Z, protected=X), rtol=1e-11, atol=1e-11)


def test_a_merged_correction_is_that_of_the_rows_of_both() -> None:
    Z, X = draw()
    weight = np.random.default_rng(1).random(len(Z))
    parts = [
        LinearOrthogonalizer().partial_fit(Z[rows], protected=X[rows], sample_weight=weight[rows])
        for rows in (slice(0, 700), slice(700, None))
    ]
    whole = LinearOrthogonalizer().fit(Z, protected=X, sample_weight=weight)
    alone = parts[0].transform(Z, protected=X)
    merged = parts[0].merge(parts[1]).transform(Z, protected=X)
    expected = whole.transform(Z, protected=X)
    assert np.abs(alone - expected).max() > 1e-3
    np.testing.assert_allclose(merged, expected, rtol=1e-11, atol=1e-11)


def test_a_correction_fitted_to_a_stream_is_that_of_the_table() -> None:
    Z, X = draw()
    table = pd.concat([Z, X], axis=1)
    stream = Stream([table.iloc[:900], table.iloc[900:]])
    found = LinearOrthogonalizer(protected=["sex", "age", "tiny"]).fit(stream)
    expected = LinearOrthogonalizer(protected=["sex", "age", "tiny"]).fit(table)
    np.testing.assert_allclose(found.transform(stream), expected.transform(table), rtol=1e-11, atol=1e-11)
    assert list(found.get_feature_names_out()) == list(expected.get_feature_names_out())
    found.partial_fit(table.iloc[:10])  # a stream leaves moments that can grow
    assert found.moments_.weight == 2010.0


def test_levels_of_later_batches_are_refused_or_pooled() -> None:
    Z, X = draw(600)
    later = X.assign(sex="unknown")
    with pytest.raises(UnseenLevelError, match=r"'sex'.*unknown"):
        LinearOrthogonalizer().partial_fit(Z, protected=X).partial_fit(Z, protected=later)
    pooling = LinearOrthogonalizer(unseen="pool").partial_fit(Z, protected=X)
    with pytest.warns(PooledLevelWarning, match=r"sex \(600\)"):
        pooling.partial_fit(Z, protected=later)


def test_what_cannot_be_added_to_is_refused() -> None:
    Z, X = draw(600)
    with pytest.raises(AttributeError, match="partial_fit") as caught:
        LinearOrthogonalizer().fit(Z, protected=X).partial_fit(Z, protected=X)
    assert "start with partial_fit" in str(caught.value.__cause__)
    with pytest.raises(InputError, match="different columns or levels"):
        LinearOrthogonalizer().partial_fit(Z, protected=X).merge(LinearOrthogonalizer().partial_fit(Z, protected=X.sex))
    with pytest.raises(MissingValuesError, match="'b' has 600 infinite"):
        LinearOrthogonalizer().partial_fit(Z.assign(b=np.inf), protected=X.age)
    with pytest.raises(InputError, match="cannot drop rows"):
        LinearOrthogonalizer(missing="drop").partial_fit(Z, protected=X)
    model = LinearOrthogonalizer().partial_fit(Z, protected=X)
    model.fit(Z[:300], protected=X[:300])  # begins anew
    np.testing.assert_array_equal(
        model.transform(Z, protected=X),
        LinearOrthogonalizer().fit(Z[:300], protected=X[:300]).transform(Z, protected=X),
    )


def test_collinear_columns_are_found_in_moments() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(5.0, 1.0, size=(1000, 2))
    X = np.column_stack([x, x @ [1.0, -2.0], np.full(1000, 7.0), x[:, 0] + 1e-4 * rng.normal(size=1000)])
    found, exact = basis_of_moments(Moments.of(X)), protected_basis(X)
    assert found.collinear == exact.collinear == ("x2",) and found.constant == exact.constant == ("x3",)
    Q = found.apply(X)
    np.testing.assert_allclose(Q.T @ Q / 1000, np.eye(3), atol=1e-6)
    with pytest.warns(DroppedColumnWarning, match="x2"):
        LinearOrthogonalizer().partial_fit(rng.normal(size=(1000, 2)), protected=X)


def test_a_projector_of_moments_is_the_projector_of_the_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3)) * [1.0, 100.0, 1e-3]
    Y = X @ rng.normal(size=(3, 5)) + rng.normal(size=(500, 5))
    weight = rng.random(500)
    found = Projector.of_moments(Moments.of(np.hstack([X, Y]), weight), ("a", "b", "c"))
    np.testing.assert_allclose(found.apply(Y, X), Projector.fit(Y, X, weight).apply(Y, X), rtol=1e-10, atol=1e-12)


def test_components_in_batches_merged_and_of_a_stream_are_those_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    Z = (rng.normal(size=(900, 4)) @ rng.normal(size=(4, 7)) + 0.1 * rng.normal(size=(900, 7)) + 3.0).astype(np.float32)
    whole = PrincipalComponents(3).fit(Z)
    grown = PrincipalComponents(3)
    for start in range(0, 900, 200):
        grown.partial_fit(Z[start : start + 200])
    merged = PrincipalComponents(3).fit(Z[:250]).merge(PrincipalComponents(3).fit(Z[250:]))
    stream = Stream([Z[:300], Z[300:]])
    streamed = PrincipalComponents(3).fit(stream)
    assert np.abs(PrincipalComponents(3).fit(Z[:200]).components_ - whole.components_).max() > 1e-3
    for found in (grown, merged, streamed):
        np.testing.assert_allclose(found.components_, whole.components_, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(found.mean_, whole.mean_, rtol=1e-12)
        assert found.n_samples_seen_ == 900
    np.testing.assert_allclose(streamed.transform(stream), whole.transform(Z), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="7 columns and the other 3"):
        grown.merge(PrincipalComponents(1).fit(Z[:, :3]))
    with pytest.raises(MissingValuesError, match=r"Column\(s\) 2 have missing \(NaN\)"):
        PrincipalComponents(1).fit(Stream([np.where(np.arange(21).reshape(3, 7) == 9, np.nan, 1.0)]))
