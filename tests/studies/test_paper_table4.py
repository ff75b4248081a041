"""Table 4 of the paper: faces, corrected on the training rows and still so on the test rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from rich.progress import Progress

from setsquare import PrincipalComponents
from setsquare.auditing.comparison.metric import interval
from studies import datasets
from studies.paper import embeddings, table4
from studies.paper.catalogue import targets
from studies.paper.cells import Cells
from studies.paper.embeddings import METHODS, Part
from studies.paper.names import CLASSICAL, CONSTRAINED, GENERALISED, WITHOUT
from studies.paper.record import Record


def need(name: str) -> None:
    if not datasets.available(name):
        pytest.skip(f"the data set {name} is not on this machine: set SETSQUARE_DATA")


@pytest.fixture(scope="module")
def cells() -> Cells:
    return Cells()


@pytest.fixture(scope="module")
def record(cells: Cells) -> Record:
    need("utkface")
    return table4.run(quick=True, cells=cells, progress=Progress(disable=True))


@pytest.fixture(scope="module")
def parts() -> tuple[Part, Part]:
    """Made-up images of patients, several of each, whose embedding knows age and sex."""
    rng = np.random.default_rng(0)
    patient = rng.integers(0, 400, 1500)
    age, male = rng.normal(60.0, 12.0, 400)[patient], rng.integers(0, 2, 400)[patient]
    signal = rng.normal(size=1500)
    Z = np.column_stack([signal, (age - 60.0) / 12.0, male]) @ rng.normal(size=(3, 20)) + rng.normal(size=(1500, 20))
    y = (signal + (age - 60.0) / 12.0 + rng.logistic(size=1500) > 1.0).astype(float)
    table = pd.DataFrame({"age": age, "sex": pd.Categorical(np.where(male == 1, "M", "F"))})
    new = patient >= 300
    train, test = (
        Part(Z[rows].astype(np.float32), y[rows], table[rows].reset_index(drop=True), patient[rows])
        for rows in (~new, new)
    )
    return train, test


# --- the path -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_pipeline_from_the_embedding_is_the_same_as_components_first(name: str, parts: tuple[Part, Part]) -> None:
    train, test = parts
    whole = embeddings.fit(name, train, PrincipalComponents(8, center=False))(test)
    reduced, new = embeddings.reduce(PrincipalComponents(8, center=False), train, test)
    np.testing.assert_allclose(whole, embeddings.fit(name, reduced)(new), rtol=1e-6)
    only = replace(test, protected=test.protected.iloc[::-1].reset_index(drop=True))
    same = np.array_equal(embeddings.fit(name, reduced)(new), embeddings.fit(name, reduced)(replace(only, Z=new.Z)))
    assert same != METHODS[name].predicts, "protected columns of new rows matter where they are said to"


def test_the_uncorrected_model_is_that_of_statsmodels(parts: tuple[Part, Part]) -> None:
    train, _ = parts
    fit = sm.Logit(train.y, sm.add_constant(train.Z.astype(float))).fit(disp=False, tol=1e-12)
    np.testing.assert_allclose(embeddings.fit(WITHOUT, train)(train), fit.predict(), atol=1e-5)


def test_errors_know_of_clusters(parts: tuple[Part, Part]) -> None:
    train, test = parts
    predictions = embeddings.fit(WITHOUT, train)(test)
    found, alone = (embeddings.measure(predictions, part) for part in (test, replace(test, cluster=None)))
    X = sm.add_constant(np.column_stack([test.protected["age"], test.protected["sex"] == "M"]).astype(float))
    model = sm.GLM(predictions, X, family=sm.families.Binomial())
    codes = np.unique(test.cluster, return_inverse=True)[1]
    robust = model.fit(cov_type="cluster", cov_kwds={"groups": codes}, tol=1e-14)
    errors = [found["effects"][term]["std_error"] for term in ("age", "sex[M]")]
    np.testing.assert_allclose(errors, robust.bse[1:], rtol=1e-5)
    paper = [found["effects"][term]["p_model"] for term in ("age", "sex[M]")]
    np.testing.assert_allclose(paper, model.fit(tol=1e-14).pvalues[1:], rtol=1e-6)
    assert found["correlations"]["age"]["estimate"] == pytest.approx(
        np.corrcoef(test.protected["age"], predictions)[0, 1], abs=1e-14
    )
    for key in ("auc", "correlations"):
        wide, narrow = (one[key].get("age", one[key])["std_error"] for one in (found, alone))
        assert wide > 1.05 * narrow


def test_the_error_of_a_correlation_is_that_of_the_bootstrap() -> None:
    rng = np.random.default_rng(1)
    x = rng.exponential(size=1000)  # not normal, where a formula from a book would do
    y = 0.5 * x * rng.normal(1.0, 1.0, 1000)
    found = interval(embeddings.correlation(x, y))
    draws = [np.corrcoef(x[rows], y[rows])[0, 1] for rows in rng.integers(0, 1000, (2000, 1000))]
    assert found.std_error == pytest.approx(np.std(draws), rel=0.1)
    assert abs(found.std_error - (1 - found.estimate**2) / np.sqrt(1000)) > 0.2 * found.std_error


def test_clusters_and_splits_of_the_chest_xrays_arrive() -> None:
    need("nih_chest_xrays")
    train, test = embeddings.split(datasets.load_nih_chest_xrays())
    assert (len(train.y), len(test.y)) == (5852, 1208) and not set(train.cluster) & set(test.cluster)
    assert train.Z.dtype == np.float16 and list(train.protected) == ["age", "sex"]


# --- the table ----------------------------------------------------------------------------------------------------


def at(record: Record, name: str, method: str) -> tuple[dict, dict]:
    found = record.data["methods"][name]["32"][method]
    return found["train"], found["test"]


@pytest.mark.parametrize(
    ("name", "auc", "age", "before"), [("recognition", 0.975, 0.02, 0.17), ("imagenet", 0.88, 0.03, 0.3)]
)
def test_the_correction_holds_on_faces_that_were_not_fitted(
    record: Record, name: str, auc: float, age: float, before: float
) -> None:
    assert abs(at(record, name, WITHOUT)[1]["correlations"]["age"]["estimate"]) > before
    assert at(record, name, WITHOUT)[1]["p_value"] < 1e-25
    for method in (CONSTRAINED, GENERALISED):
        train, test = at(record, name, method)
        assert embeddings.largest(train["correlations"]) < 1e-8
        assert max(abs(effect["estimate"]) for effect in train["effects"].values()) < 1e-7
        assert test["auc"]["estimate"] > auc and test["p_value"] > 0.05
        assert abs(test["correlations"]["age"]["estimate"]) < age
    train, test = at(record, name, CLASSICAL)  # orthogonal features, not probabilities
    assert embeddings.largest(train["correlations"]) > 0.05 and test["p_value"] < 0.01


def test_the_printed_effects_are_those_of_the_recorded_sex(record: Record) -> None:
    printed = targets()["table4_utkface"]["without"]
    for term, one in record.data["label"].items():
        assert abs(printed[table4._term(term)][0] - one["estimate"]) < 2 * one["sd"]
    data = datasets.load_utkface()
    train = data.take(data.table["split"] == "train")
    X = pd.get_dummies(train.protected_table(), drop_first=True).astype(float)
    fit = sm.GLM(1.0 - train.y, sm.add_constant(X), family=sm.families.Binomial()).fit()
    np.testing.assert_allclose([one["estimate"] for one in record.data["label"].values()], fit.params[1:], rtol=1e-6)
    np.testing.assert_allclose([one["p_model"] for one in record.data["label"].values()], fit.pvalues[1:], rtol=1e-4)


def test_the_transposed_block_is_that_of_the_authors_code(record: Record) -> None:
    train, test = table4.read("recognition")
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (20, 128))[0]
    E, new = (np.asarray(part.Z, dtype=float) for part in (train, test))
    V = np.linalg.svd(E, full_matrices=False)[2].T
    # The same vectors with the signs of the first draw: the largest entry of each is positive before it is flipped.
    V *= np.sign(V[np.abs(V).argmax(axis=0), np.arange(128)]) * signs
    model = embeddings.fit(WITHOUT, replace(train, Z=E @ V[:, :32]))
    right, wrong = (
        embeddings.auc(test.y, model(replace(test, Z=new @ block))).value for block in (V[:, :32], V[:32].T)
    )
    found = table4.transposed("recognition", 32, 1)[WITHOUT]
    assert right == pytest.approx(found["auc"], abs=1e-6)
    assert wrong == pytest.approx(found["auc_transposed"]["median"], abs=1e-5)
    spread = record.data["transposed"]["recognition"][WITHOUT]["auc_transposed"]
    assert spread["low"] < 0.3 and 0.7 < spread["high"] < 0.9 < right


def test_a_run_goes_on_where_it_was(record: Record, cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("measure", "transposed", "label"):
        monkeypatch.setattr(table4, name, lambda *_: pytest.fail("this cell is known"))
    assert table4.run(quick=True, cells=cells, progress=Progress(disable=True)) == record


def test_it_is_shown_and_drawn(record: Record, tmp_path: Path) -> None:
    assert [len(table.rows) for table in record.tables] == [45, 40, 8, 4]
    page = record.to_markdown()
    assert "| face recognition | without | race[Indian] | -0.620 | -0.637 | <2e-16 |" in page
    assert "| none: recorded sex | without | age | -0.017 | -0.016 |" in page
    assert table4.draw(record, tmp_path / "table4.png").stat().st_size > 10_000
