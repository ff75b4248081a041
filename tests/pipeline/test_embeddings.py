"""One path for embeddings: a file of half precision, reduced, corrected, audited by cluster, all in one pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import config_context
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import setsquare as sq


@pytest.fixture
def patients(tmp_path):
    """Images of 300 patients in a float16 file: the patient's age shows in them, and effusion comes with age."""
    rng = np.random.default_rng(0)
    patient = np.sort(rng.integers(0, 300, size=2000))
    age = rng.normal(size=300)[patient]
    own = rng.normal(size=(300, 8))[patient]
    latent = np.column_stack([own, age[:, None] + rng.normal(size=(2000, 4)), rng.normal(size=(2000, 20))])
    Z = latent @ rng.normal(size=(32, 64)) + 0.1 * rng.normal(size=(2000, 64))
    y = (own[:, 0] + age + rng.normal(size=2000) > 0).astype(int)
    np.save(tmp_path / "images.npy", Z.astype(np.float16))
    return np.load(tmp_path / "images.npy", mmap_mode="r"), y, age[:, None], patient


def _pipeline(last):
    with config_context(enable_metadata_routing=True):
        return make_pipeline(sq.PrincipalComponents(n_components=0.98), last)


def test_head_is_corrected_exactly_behind_the_components(patients):
    Z, y, age, _ = patients
    with config_context(enable_metadata_routing=True):
        plain = _pipeline(LogisticRegression()).fit(Z, y)
        model = _pipeline(sq.OrthogonalGLMClassifier().set_fit_request(protected=True)).fit(Z, y, protected=age)
        around = sq.PredictionOrthogonalizer(LogisticRegression(), cv="training rows")
        around = _pipeline(around.set_fit_request(protected=True).set_predict_proba_request(protected=True))
        around.fit(Z, y, protected=age)
        p = [plain.predict_proba(Z), model.predict_proba(Z), around.predict_proba(Z, protected=age)]
    before, after, projected = (abs(np.corrcoef(one[:, 1], age[:, 0])[0, 1]) for one in p)
    assert before > 0.3 and after < 1e-8 and projected < 1e-8


def test_features_are_corrected_behind_the_components(patients):
    Z, _, age, _ = patients
    with config_context(enable_metadata_routing=True):
        eraser = sq.LinearOrthogonalizer(using="features").set_fit_request(protected=True)
        corrected = _pipeline(eraser).fit(Z, protected=age).transform(Z)
    reduced = sq.PrincipalComponents(n_components=0.98).fit_transform(Z)
    before, after = (np.abs(np.corrcoef(A.T, age[:, 0])[-1, :-1]).max() for A in (reduced, corrected))
    assert before > 0.3 and after < 1e-5  # the components of half precision are single precision


def test_audit_by_patient_knows_that_images_are_not_independent(patients):
    Z, y, age, patient = patients
    with config_context(enable_metadata_routing=True):
        model = _pipeline(sq.OrthogonalGLMClassifier().set_fit_request(protected=True))
        rows, clusters = (sq.audit_model(model, Z, y, age, cluster=c) for c in (None, patient))
    assert clusters.certificate.correlation_upper > 1.3 * rows.certificate.correlation_upper
    error = [found.table()["std_error"].iloc[0] for found in (rows, clusters)]
    assert error[1] > 1.3 * error[0]
