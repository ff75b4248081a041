"""The linear correction of features as a transformer."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fairlearn.preprocessing import CorrelationRemover
from scipy import sparse
from sklearn import config_context
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import setsquare as sq
from setsquare.errors import InputError

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(50, 10, size=300), rng.random(300) < 0.02])
    Z = 0.1 * X[:, :1] + 2.0 * X[:, 1:] + rng.normal(size=(300, 4))
    return Z, X


def correlation(X, Z) -> float:
    return float(np.abs(np.corrcoef(X.T, Z.T)[: X.shape[1], X.shape[1] :]).max())


def test_no_feature_is_correlated_afterwards_and_all_were_before(data):
    Z, X = data
    corrected = sq.LinearOrthogonalizer().fit_transform(Z, protected=X)
    assert correlation(X, Z) > 0.3
    assert correlation(X, corrected) < 1e-12
    np.testing.assert_allclose(corrected.mean(axis=0), Z.mean(axis=0), rtol=1e-12)


def test_it_agrees_with_fairlearn_up_to_its_centring(data):
    Z, X = data
    table = np.column_stack([X, Z])
    theirs = CorrelationRemover(sensitive_feature_ids=[0, 1]).fit_transform(table)
    ours = sq.LinearOrthogonalizer(protected=[0, 1]).fit_transform(table)
    np.testing.assert_allclose(theirs - theirs.mean(axis=0), ours - ours.mean(axis=0), atol=1e-9)


def test_new_rows_are_corrected_with_the_effects_of_the_training_rows(data):
    Z, X = data
    fitted = sq.LinearOrthogonalizer().fit(Z[:200], protected=X[:200])
    design = np.column_stack([np.ones(200), X[:200]])
    effects = np.linalg.lstsq(design, Z[:200], rcond=None)[0][1:]
    expected = Z[200:] - (X[200:] - X[:200].mean(axis=0)) @ effects
    np.testing.assert_allclose(fitted.transform(Z[200:], protected=X[200:]), expected, rtol=1e-10)


def test_names_and_output_container_follow_scikit_learn(data):
    Z, X = data
    table = pd.DataFrame(np.column_stack([X, Z]), columns=["age", "rare", "a", "b", "c", "d"])
    table["kind"] = np.where(Z[:, 0] > np.median(Z[:, 0]), "high", "low")
    transformer = sq.LinearOrthogonalizer(protected=["age", "rare"]).set_output(transform="pandas")
    corrected = transformer.fit_transform(table)
    assert list(corrected.columns) == ["a", "b", "c", "d", "kind[low]"]
    assert correlation(X, corrected.to_numpy()) < 1e-12


def test_without_protected_columns_nothing_is_transformed(data):
    Z, X = data
    fitted = sq.LinearOrthogonalizer().fit(Z, protected=X)
    with pytest.raises(sq.errors.InputError, match="pass protected="):
        fitted.transform(Z)
    with pytest.raises(sq.errors.InputError, match="same rows"):
        fitted.transform(Z, protected=X[:10])
    with pytest.raises(sq.errors.InputError, match="Nothing is protected"):
        sq.LinearOrthogonalizer().fit(Z)


def test_single_precision_stays_single_and_is_still_orthogonal(data):
    Z, X = data
    single = Z.astype(np.float32)
    for using in ("protected", "features"):
        corrected = sq.LinearOrthogonalizer(using=using).fit_transform(single, protected=X)
        exact = sq.LinearOrthogonalizer(using=using).fit_transform(single.astype(np.float64), protected=X)
        assert corrected.dtype == np.float32
        # What is subtracted is rounded to float32, and the result once more.
        np.testing.assert_array_max_ulp(corrected, exact.astype(np.float32), maxulp=1)
        assert correlation(X, single) > 0.3 and correlation(X, corrected.astype(np.float64)) < 1e-7


MEANT = {
    "check_sample_weight_equivalence_on_dense_data": "29 features of 27 rows are refused",
    "check_sample_weight_equivalence_on_sparse_data": "29 features of 27 rows are refused",
    "check_estimators_nan_inf": "transform does not look at the protected column, which is what has the NaN",
}


@pytest.mark.filterwarnings("ignore::setsquare.errors.SetsquareWarning")
@parametrize_with_checks(
    [sq.LinearOrthogonalizer(protected=[0], using="features")], expected_failed_checks=lambda _: MEANT
)
def test_scikit_learn_check_without_protected_columns(estimator, check):
    check(estimator)


def test_new_rows_need_no_protected_columns_where_the_features_stand_for_them(data):
    Z, X = data
    table = pd.DataFrame(np.column_stack([X, Z]), columns=["age", "rare", "a", "b", "c", "d"])
    fitted = sq.LinearOrthogonalizer(protected=["age", "rare"], using="features").fit(table)
    corrected = fitted.transform(table)
    assert correlation(X, Z) > 0.3
    assert correlation(X, corrected) < 1e-12
    np.testing.assert_array_equal(fitted.transform(table.drop(columns=["age", "rare"])), corrected)
    beside = sq.LinearOrthogonalizer(using="features").fit(Z, protected=X)
    np.testing.assert_allclose(beside.transform(Z), corrected, rtol=1e-13)
    np.testing.assert_array_equal(beside.transform(Z, protected=X), beside.transform(Z))
    assert list(fitted.get_feature_names_out()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("kind", [np.float16, sparse.csr_matrix], ids=["float16", "sparse"])
def test_half_precision_and_sparse_features_are_corrected_in_double(data, kind):
    Z, X = data
    given = sparse.csr_matrix(Z) if kind is sparse.csr_matrix else Z.astype(kind)
    values = given.toarray() if kind is sparse.csr_matrix else given.astype(np.float64)
    corrected = sq.LinearOrthogonalizer(using="features").fit_transform(given, protected=X)
    assert corrected.dtype == np.float64
    np.testing.assert_allclose(
        corrected, sq.LinearOrthogonalizer(using="features").fit_transform(values, protected=X), rtol=1e-12
    )
    assert correlation(X, values) > 0.3 and correlation(X, corrected) < 1e-12


def test_a_pipeline_predicts_without_protected_columns(data):
    Z, X = data
    y = Z @ np.arange(4.0) + X[:, 0]
    with config_context(enable_metadata_routing=True):
        eraser = sq.LinearOrthogonalizer(using="features")
        eraser.set_fit_request(protected=True).set_transform_request(protected=True)  # the two must agree
        model = make_pipeline(eraser, LinearRegression()).fit(Z, y, protected=X)
        assert correlation(X, model.predict(Z)[:, None]) < 1e-12
    assert correlation(X, LinearRegression().fit(Z, y).predict(Z)[:, None]) > 0.3


def test_what_cannot_be_corrected_without_protected_columns_is_refused_in_one_sentence(data):
    Z, X = data
    eraser = sq.LinearOrthogonalizer(using="features")
    with pytest.raises(sq.errors.InputError, match=r"Too few rows \(n_samples = 4\) to correct 4 features"):
        eraser.fit(Z[:4], protected=X[:4, :1])
    with pytest.raises(sq.errors.InputError, match="Every feature is constant"):
        eraser.fit(np.ones((300, 2)), protected=X)
    holed = np.where(np.arange(4) == 2, np.nan, Z[:5])
    with pytest.raises(sq.errors.InputError, match="x2"):
        eraser.fit(Z, protected=X).transform(holed)
    with pytest.raises(sq.errors.InputError, match="using='both' is not one of"):
        sq.LinearOrthogonalizer(using="both").fit(Z, protected=X)


@pytest.mark.parametrize("inside", [[0, 1], [4, 5], [1, 4], [4]])
def test_protected_columns_stand_anywhere_in_an_array(data, inside):
    Z, X = data
    X = X[:, : len(inside)]
    table = np.insert(Z, [j - i for i, j in enumerate(inside)], X, axis=1)
    np.testing.assert_array_equal(table[:, inside], X)
    for using in ("protected", "features"):
        corrected = sq.LinearOrthogonalizer(inside, using=using).fit_transform(table)
        expected = sq.LinearOrthogonalizer(using=using).fit_transform(Z, protected=X)
        np.testing.assert_allclose(corrected, expected, rtol=1e-12)


# --------------------------------------------------------------------------------------------- copies and memory
@pytest.mark.parametrize("using", ["protected", "features"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_without_a_copy_the_array_itself_is_corrected(data, using, order, dtype):
    Z, X = data
    given = np.array(Z, dtype=dtype, order=order)
    kept = sq.LinearOrthogonalizer(using=using).fit_transform(given, protected=X)
    np.testing.assert_array_equal(given, Z.astype(dtype))
    assert kept.dtype == dtype and correlation(X, given) > 0.3
    changed = sq.LinearOrthogonalizer(using=using, copy=False).fit_transform(given, protected=X)
    assert np.shares_memory(changed, given)
    np.testing.assert_array_equal(given, kept)


def test_without_a_copy_what_cannot_be_overwritten_is_left_alone(data):
    Z, X = data
    locked, strided = Z.copy(), np.repeat(Z, 2, axis=1)[:, ::2]
    locked.flags.writeable = False
    table = pd.DataFrame(Z, columns=list("abcd"))
    expected = sq.LinearOrthogonalizer().fit_transform(Z, protected=X)
    whole = np.hstack([X, Z])
    for given in (locked, strided, table, np.round(Z).astype(int)):
        before = np.array(given)
        values = sq.LinearOrthogonalizer(copy=False).fit_transform(given, protected=X)
        np.testing.assert_array_equal(np.asarray(given), before)
        if before.dtype.kind == "f":
            np.testing.assert_allclose(values, expected, rtol=1e-12)
    np.testing.assert_allclose(sq.LinearOrthogonalizer([0, 1], copy=False).fit_transform(whole), expected, rtol=1e-12)
    np.testing.assert_array_equal(whole, np.hstack([X, Z]))


@pytest.fixture(scope="module")
def large() -> tuple[np.ndarray, np.ndarray]:
    """Protected columns and 64 MB of features."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200_000, 2))
    return X, X @ rng.normal(size=(2, 40)) + rng.normal(size=(200_000, 40))


@pytest.mark.parametrize("using", ["protected", "features"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("copy", [False, True])
def test_no_more_memory_is_needed_than_for_the_result(large, using, order, dtype, copy):
    X, Z = large[0], np.array(large[1], dtype=dtype, order=order)
    transformer = sq.LinearOrthogonalizer(using=using, copy=copy)
    tracemalloc.start()
    try:
        corrected = transformer.fit_transform(Z, protected=X)
        peak = tracemalloc.get_traced_memory()[1] / Z.nbytes
    finally:
        tracemalloc.stop()
    # 32 and 64 MB of features; each thread has blocks of a few MB, and threads do not always meet at their peaks
    assert peak < (1.35 if copy else 0.35) if dtype == np.float32 else peak < (1.15 if copy else 0.15)
    assert correlation(X, corrected[:, :5].astype(np.float64)) < (1e-7 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("using", ["protected", "features"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_number_that_is_not_finite_is_named_and_nothing_is_overwritten(data, bad, using, dtype):
    Z, X = data
    fitted = sq.LinearOrthogonalizer(using=using, copy=False).fit(Z, protected=X)
    holed = Z.astype(dtype)
    holed[7, 2] = bad
    before = holed.copy()
    for call in (fitted.fit, fitted.transform, fitted.fit_transform):
        with pytest.raises(sq.errors.InputError, match="'x2'"):
            call(holed, protected=X)
    np.testing.assert_array_equal(holed, before)


def test_the_setting_is_saved_and_files_without_it_are_read(data, tmp_path):
    Z, X = data
    fitted = sq.LinearOrthogonalizer(copy=False).fit(Z, protected=X)
    sq.save(fitted, tmp_path / "model")
    again = sq.load(tmp_path / "model")
    assert again.get_params() == fitted.get_params() and again.copy is False
    np.testing.assert_array_equal(again.transform(Z.copy(), protected=X), fitted.transform(Z.copy(), protected=X))
    assert sq.load(FIXTURES / "model-v1-features.setsquare").copy is True


def test_thousands_of_levels_beside_a_few_features_are_refused_or_corrected_at_once():
    rng = np.random.default_rng(0)
    Z, place = rng.normal(size=(4000, 5)), pd.DataFrame({"place": [f"p{i % 1500}" for i in range(4000)]})
    with pytest.raises(InputError, match=r"1499 protected columns would leave nothing of 5 features: merge rare"):
        sq.LinearOrthogonalizer(using="features").fit(Z, protected=place)
    corrected = sq.LinearOrthogonalizer().fit(Z, protected=place).transform(Z, protected=place)
    means = pd.DataFrame(corrected).groupby(place["place"]).mean()
    np.testing.assert_allclose(means, np.broadcast_to(Z.mean(axis=0), means.shape), atol=1e-10)
