"""Principal components by moments: against scikit-learn, in little memory, from files."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from sklearn import config_context
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline

import setsquare as sq
from setsquare.errors import InputError, MissingValuesError
from setsquare.projection.moments import Moments
from studies.datasets.embeddings import MappedRows


def _rows(n=3000, q=40, seed=0):
    rng = np.random.default_rng(seed)
    return 3.0 + rng.normal(size=(n, q)) * 0.8 ** np.arange(q) @ rng.normal(size=(q, q))


def test_components_are_those_of_scikit_learn():
    Z = _rows()
    ours, theirs = sq.PrincipalComponents(12).fit(Z), PCA(12, svd_solver="full").fit(Z)
    np.testing.assert_allclose(np.abs(np.sum(ours.components_ * theirs.components_, axis=1)), 1.0, rtol=1e-10)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-10)
    np.testing.assert_allclose(ours.mean_, Z.mean(0), rtol=1e-13)


def test_without_centring_it_is_the_singular_value_decomposition():
    Z = _rows()
    found = sq.PrincipalComponents(5, center=False).fit(Z)
    _, s, Vt = np.linalg.svd(Z, full_matrices=False)
    np.testing.assert_allclose(np.abs(np.sum(found.components_ * Vt[:5], axis=1)), 1.0, rtol=1e-10)
    np.testing.assert_allclose(found.explained_variance_ratio_, s[:5] ** 2 / np.sum(s**2), rtol=1e-10)
    np.testing.assert_allclose(np.abs(found.transform(Z)), np.abs(Z @ Vt[:5].T), atol=1e-9)


@pytest.mark.parametrize("explained", [0.5, 0.95, 0.98, 1.0])
def test_as_few_components_as_explain_the_share(explained):
    Z = _rows()
    share = np.cumsum(PCA(svd_solver="full").fit(Z).explained_variance_ratio_)
    k = sq.PrincipalComponents(n_components=explained).fit(Z).n_components_
    assert share[k - 1] >= explained - 1e-9
    assert k == 1 or share[k - 2] < explained


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_stored_precision_changes_no_sum(dtype):
    """Sums of float16 rows in float16 would overflow at once; here they are those of the same values in float64."""
    Z = _rows(20_000).astype(dtype)
    ours, exact = sq.PrincipalComponents(8).fit(Z), sq.PrincipalComponents(8).fit(Z.astype(np.float64))
    np.testing.assert_array_equal(ours.components_, exact.components_)
    reduced = ours.transform(Z)
    assert reduced.dtype == (np.float64 if dtype == "float64" else np.float32)
    np.testing.assert_allclose(reduced, exact.transform(Z.astype(np.float64)), rtol=1e-5, atol=1e-4)


def test_weights_count_rows_several_times():
    Z = _rows(200)
    times = np.random.default_rng(1).integers(0, 4, size=len(Z))
    weighted = sq.PrincipalComponents(6).fit(Z, sample_weight=times)
    repeated = sq.PrincipalComponents(6).fit(np.repeat(Z, times, axis=0))
    np.testing.assert_allclose(weighted.components_, repeated.components_, atol=1e-9)
    np.testing.assert_allclose(weighted.mean_, repeated.mean_, rtol=1e-12)


def test_a_file_is_read_in_blocks(tmp_path):
    """A file of 100 MB, fitted and transformed in a fraction of that, with the components of the rows in memory."""
    path = tmp_path / "embedding.npy"
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(100_000, 250))
    file[:] = np.random.default_rng(0).normal(size=(1000, 250)).astype(np.float32)[np.arange(100_000) % 1000]
    file.flush()
    mapped = np.load(path, mmap_mode="r")
    chosen = MappedRows.stack([mapped]).take(np.arange(0, 100_000, 2))
    for rows in (mapped, chosen):
        tracemalloc.start()
        reduced = sq.PrincipalComponents(10).fit_transform(rows)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < len(rows) * 10 * 4 + 105e6  # a few blocks of 34 MB; the file is as large as the sum of these
        np.testing.assert_allclose(reduced, sq.PrincipalComponents(10).fit_transform(rows[:]), rtol=1e-4, atol=1e-4)


def test_fitted_on_training_rows_only_in_a_pipeline():
    rng = np.random.default_rng(3)
    Z, x = _rows(600), rng.normal(size=600)
    y = (Z[:, 0] + x + rng.normal(size=600) > 3).astype(int)
    with config_context(enable_metadata_routing=True):
        pipe = make_pipeline(
            sq.PrincipalComponents(n_components=0.95), sq.OrthogonalGLMClassifier().set_fit_request(protected=True)
        ).fit(Z[:400], y[:400], protected=x[:400])
    p = pipe.predict_proba(Z[:400])[:, 1]
    assert abs(np.corrcoef(p, x[:400])[0, 1]) < 1e-8
    np.testing.assert_allclose(pipe[0].mean_, Z[:400].mean(0), rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"n_components": 41}, "1 to 40"), ({"n_components": 0}, "1 to 40"), ({"n_components": 98.0}, "such as 0.98")],
)
def test_settings_out_of_range(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        sq.PrincipalComponents(**settings).fit(_rows(100))


def test_missing_values_are_named():
    import pandas as pd

    Z = _rows(50, 3)
    Z[4, 1] = np.nan
    with pytest.raises(MissingValuesError, match=r"Column\(s\) b "):
        sq.PrincipalComponents(2).fit(pd.DataFrame(Z, columns=list("abc")))
    fitted = sq.PrincipalComponents(2).fit(_rows(50, 3))
    with pytest.raises(MissingValuesError, match="missing"):
        fitted.transform(Z)


def test_moments_far_from_zero_and_merged():
    rng = np.random.default_rng(5)
    A = 1e8 + rng.normal(size=(5000, 4))
    exact = np.cov((A - 1e8).T, bias=True) * len(A)
    for found in (Moments.of(A), Moments.of(A[:7]).merge(Moments.of(A[7:]))):
        np.testing.assert_allclose(found.scatter, exact, rtol=1e-7, atol=1e-5)
        np.testing.assert_allclose(found.mean, 1e8 + (A - 1e8).mean(0), rtol=1e-15)
