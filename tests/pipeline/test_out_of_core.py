"""Corrected models fitted to files and batches are those fitted in memory, with the same guarantee."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from setsquare import OrthogonalGLMClassifier, OrthogonalGLMRegressor, Stream
from setsquare.errors import (
    DroppedColumnWarning,
    InputError,
    MissingValuesError,
    OutcomeRangeError,
    PooledLevelWarning,
)

#: Same steps, sums in another order.
SAME = 1e-10


def draw_table(n: int = 3000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"sex": rng.choice(["f", "m"], n), "race": rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])})
    table["age"] = rng.normal(40.0, 10.0, n).astype(np.float32)
    for j in range(5):
        table[f"z{j}"] = (rng.normal(size=n) + 0.4 * (table.sex == "f") + 0.02 * j * table.age).astype(np.float32)
    table["job"] = pd.Categorical(rng.choice(["low", "mid", "high"], n), categories=["low", "mid", "high"])
    signal = 0.6 * table.z0 - 0.4 * table.z1 + 0.5 * (table.job == "high") - 0.3
    table["income"] = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-signal)), "high", "low")
    table["visits"] = rng.poisson(np.exp(0.3 * signal))
    table["cost"] = rng.gamma(2.0, np.exp(0.3 * signal) / 2.0)
    table["grade"] = np.stack(
        [rng.gumbel(size=n), signal + rng.gumbel(size=n), 0.5 * table.z2 + rng.gumbel(size=n)]
    ).argmax(0)
    table["weight"] = rng.random(n) * (rng.random(n) < 0.9)
    table["exposure"] = np.log(0.5 + rng.random(n))
    return table


OTHERS = ["income", "visits", "cost", "grade", "weight", "exposure"]
PROTECTED = ["sex", "race", "age"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    table = draw_table()
    for i in range(3):
        table.iloc[1000 * i : 1000 * (i + 1)].to_parquet(folder / f"part{i}.parquet", row_group_size=400, index=False)
    return folder


def only(*names: str) -> list[str]:
    """Every feature and protected column, and these."""
    return [name for name in draw_table(10).columns if name not in OTHERS or name in names]


CASES = {
    "binomial": (OrthogonalGLMClassifier, {}, "income", None, None),
    "weighted binomial": (OrthogonalGLMClassifier, {}, "income", "weight", None),
    "classes": (OrthogonalGLMClassifier, {}, "grade", None, None),
    "weighted classes": (OrthogonalGLMClassifier, {}, "grade", "weight", None),
    "gaussian": (OrthogonalGLMRegressor, {}, "cost", None, None),
    "poisson with offset": (OrthogonalGLMRegressor, {"family": "poisson"}, "visits", "weight", "exposure"),
    "gamma, log link": (OrthogonalGLMRegressor, {"family": "gamma"}, "cost", None, None),
    "ridge": (OrthogonalGLMClassifier, {"l2": 0.1}, "income", None, None),
    "cells": (OrthogonalGLMClassifier, {"basis": "cells"}, "income", None, None),
    "by products": (OrthogonalGLMClassifier, {"solver": "large", "tol": 1e-11}, "income", "weight", None),
    "poisson with offset by products": (
        OrthogonalGLMRegressor,
        {"family": "poisson", "solver": "large", "tol": 1e-11},
        "visits",
        "weight",
        "exposure",
    ),
    "protected used": (OrthogonalGLMClassifier, {"use_protected": True}, "income", None, None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fit_to_files_is_the_fit_in_memory(case: str, files: Path) -> None:
    kind, options, y, weight, offset = CASES[case]
    table = draw_table()
    features = table[only()]
    columns = [name for name in (y, weight, offset) if name is not None]
    inside = {
        "sample_weight": None if weight is None else table[weight],
        "offset": None if offset is None else table[offset],
    }
    expected = kind(protected=PROTECTED, **options).fit(features, table[y], **inside)
    stream = Stream(files, columns=only(*columns), memory="1MB")
    found = kind(protected=PROTECTED, **options).fit(stream, y=y, sample_weight=weight, offset=offset)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=SAME, atol=SAME)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, rtol=SAME, atol=SAME)
    assert found.n_iter_ == expected.n_iter_ and list(found.coefficient_names_) == list(expected.coefficient_names_)
    assert list(found.feature_names_in_) == list(expected.feature_names_in_)
    ours, theirs = found.solution_.certificate, expected.solution_.certificate
    assert ours.is_orthogonal and ours.is_optimal and ours.max_correlation <= 1e-8
    for name in ("loss", "loss_unconstrained", "loss_null", "min_curvature", "label_share"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-6), name
    predict = "predict_proba" if kind is OrthogonalGLMClassifier else "predict"
    given = {"offset": offset} if offset else {}
    streamed = getattr(found, predict)(stream, **given)
    np.testing.assert_allclose(
        streamed, getattr(expected, predict)(features, offset=inside["offset"]), rtol=1e-9, atol=1e-12
    )
    assert found.predict(stream, **given).shape == (len(table),)
    assert found.score(stream, y, **given) == pytest.approx(expected.score(features, table[y], offset=inside["offset"]))


def test_predictions_are_orthogonal_and_those_of_the_plain_model_are_not(files: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    table = draw_table()
    X = np.column_stack([table.sex == "f", table.race == "b", table.race == "c", table.age]).astype(float)
    Z = table[[f"z{j}" for j in range(5)]]
    before = LogisticRegression(C=np.inf).fit(Z, table.income).predict_proba(Z)[:, 1]
    model = OrthogonalGLMClassifier(protected=PROTECTED).fit(Stream(files, columns=only("income")), y="income")
    after = model.predict_proba(files)[:, 1]  # columns that the model does not use are not even read
    correlation = np.abs([[np.corrcoef(x, p)[0, 1] for x in X.T] for p in (before, after)])
    assert correlation[0].max() > 0.1 and correlation[1].max() < 1e-8


def test_every_kind_of_source_gives_the_same_model(files: Path) -> None:
    table = draw_table()[only("income")]
    cuts = [table.iloc[i : i + 450] for i in range(0, 3000, 450)]
    # What has other columns names those that it uses.
    sources = {
        "dataset": Stream(pads.dataset(files), columns=list(table.columns)),
        "pattern": Stream(str(files / "*.parquet"), columns=list(table.columns)),
        "sequence": Stream(cuts),
        "function": Stream(lambda: (pa.Table.from_pandas(cut) for cut in cuts)),
    }
    coefs = {
        name: OrthogonalGLMClassifier(protected=PROTECTED).fit(source, y="income").coef_
        for name, source in sources.items()
    }
    for coef in coefs.values():
        np.testing.assert_allclose(coef, coefs["dataset"], rtol=SAME, atol=SAME)


def test_a_path_and_a_dataset_are_taken_as_they_are(tmp_path: Path) -> None:
    table = draw_table()[only("income")]
    table.to_parquet(tmp_path / "rows.parquet", index=False)
    fits = [
        OrthogonalGLMClassifier(protected=PROTECTED).fit(source, y="income")
        for source in (str(tmp_path / "rows.parquet"), tmp_path, pads.dataset(tmp_path / "rows.parquet"))
    ]
    assert all(np.array_equal(fit.coef_, fits[0].coef_) for fit in fits)
    again = OrthogonalGLMClassifier().fit(tmp_path, "income", protected=PROTECTED)
    np.testing.assert_array_equal(again.coef_, fits[0].coef_)


def test_batches_of_arrays_are_refused_because_positions_shift_when_columns_are_taken_out() -> None:
    stream = Stream([np.random.default_rng(0).normal(size=(50, 4))])
    with pytest.raises(InputError, match="have no column names"):
        OrthogonalGLMRegressor(protected=[0]).fit(stream, y="x3")


@pytest.mark.parametrize("missing", ["drop", "level"])
def test_missing_values_are_dropped_or_coded_as_in_memory(missing: str, tmp_path: Path) -> None:
    table = draw_table()[only("income")]
    rng = np.random.default_rng(3)
    for name in ("age", "z1", "job", "race"):
        table.loc[rng.random(len(table)) < 0.05, name] = None
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=300, index=False)
    expected = OrthogonalGLMClassifier(protected=PROTECTED, missing=missing).fit(
        table.drop(columns="income"), table.income
    )
    found = OrthogonalGLMClassifier(protected=PROTECTED, missing=missing).fit(tmp_path, y="income")
    assert found.n_dropped_ == expected.n_dropped_ and (missing == "level" or found.n_dropped_ > 100)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9, atol=1e-9)


def test_nearly_collinear_protected_columns_take_a_pass_of_their_own() -> None:
    table = draw_table()[only("income")].assign(
        older=lambda t: t.age.astype(float) + 1e-6 * np.random.default_rng(5).normal(size=len(t)),
        months=lambda t: 12.0 * t.age.astype(float),
    )
    protected = [*PROTECTED, "older", "months"]
    cuts = [table.iloc[i : i + 500] for i in range(0, 3000, 500)]
    with pytest.warns(DroppedColumnWarning, match="months"):
        found = OrthogonalGLMClassifier(protected=protected).fit(Stream(cuts), y="income")
    assert found.solution_.certificate.rank_protected == 5
    assert found.solution_.certificate.max_correlation <= 1e-8


def test_levels_that_new_batches_bring_are_pooled_and_counted_once(files: Path) -> None:
    table = draw_table()
    model = OrthogonalGLMClassifier(protected=PROTECTED, unseen="pool")
    model.fit(Stream(files, columns=only("income")), y="income")
    new = table.assign(job=table.job.astype(str).where(np.arange(3000) % 100 > 0, "other"))
    with pytest.warns(PooledLevelWarning, match=r"job \(30\)") as caught:
        model.predict(Stream([new.iloc[:1000], new.iloc[1000:]]))
    assert len(caught) == 1


def test_a_warm_start_takes_fewer_passes(files: Path) -> None:
    stream = Stream(files, columns=only("income"))
    model = OrthogonalGLMClassifier(protected=PROTECTED, warm_start=True).fit(stream, y="income")
    first, coef = model.n_iter_, model.coef_
    assert model.fit(stream, y="income").n_iter_ < first
    np.testing.assert_allclose(model.coef_, coef, rtol=1e-6, atol=1e-8)


def test_one_pass_a_step_and_few_beside() -> None:
    table = draw_table()[only("income")]
    n_passes = 0

    def read():
        nonlocal n_passes
        n_passes += 1
        return iter([table.iloc[:1500], table.iloc[1500:]])

    stream = Stream(read)
    opened = n_passes
    model = OrthogonalGLMClassifier(protected=PROTECTED).fit(stream, y="income")
    # Levels, a first look, moments, the correlations of the certificate; the model without constraint takes the rest.
    assert n_passes - opened <= model.n_iter_ + 4 + 6


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    peaks = []
    for n in (20_000, 80_000):
        Z = rng.normal(size=(n, 12)).astype(np.float32)
        columns = {f"z{j}": Z[:, j] for j in range(12)} | {
            "x": Z[:, 0] + rng.normal(size=n),
            "y": Z[:, 1] > 0.5 * Z[:, 2],
        }
        pq.write_table(
            pa.table(columns | {"y": (Z[:, 1] + rng.normal(size=n) > 0).astype(int)}), tmp_path / f"{n}.parquet"
        )
        stream = Stream(tmp_path / f"{n}.parquet", memory="4MB")
        tracemalloc.start()
        OrthogonalGLMClassifier(protected="x").fit(stream, y="y")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 2**20
    assert peaks[1] < 8 * 80_000 * 14 / 2  # half of what the rows take in memory


def test_mistakes_are_one_sentence_that_names_column_and_file(files: Path, tmp_path: Path) -> None:
    stream = Stream(files, columns=only("income", "visits"))
    classify, count = OrthogonalGLMClassifier(protected=PROTECTED), OrthogonalGLMRegressor("poisson", PROTECTED)
    with pytest.raises(InputError, match="There is no column 'incom'; did you mean 'income'"):
        classify.fit(stream, y="incom")
    with pytest.raises(InputError, match="y must be the name of a column"):
        classify.fit(stream, y=np.zeros(3000))
    with pytest.raises(InputError, match="y to be passed"):
        classify.fit(stream, None)
    with pytest.raises(InputError, match="Name the protected columns of a stream once"):
        OrthogonalGLMClassifier().fit(stream, y="income")
    with pytest.raises(InputError, match="Name the protected columns of a stream once"):
        classify.fit(stream, y="income", protected=["sex"])
    with pytest.raises(InputError, match="no column 'gender'"):
        OrthogonalGLMClassifier(protected=["gender"]).fit(stream, y="income")
    with pytest.raises(InputError, match="A formula needs the rows in memory"):
        OrthogonalGLMClassifier(protected="~ sex * race").fit(stream, y="income")
    with pytest.raises(InputError, match="'income' has two roles"):
        OrthogonalGLMClassifier(protected=["income"]).fit(stream, y="income")
    with pytest.raises(InputError, match='needs the rows in memory: use solver="sqp" or "large"'):
        OrthogonalGLMClassifier(protected=PROTECTED, solver="mdmm").fit(stream, y="income")
    with pytest.raises(InputError, match="must be numbers"):
        count.fit(stream, y="income")
    with pytest.raises(InputError, match="The weight column 'job' must be numbers"):
        count.fit(stream, y="visits", sample_weight="job")
    with pytest.raises(InputError, match="offset must be the name of a column"):
        classify.fit(stream.select(only("income")), y="income").predict(stream, offset=np.zeros(3000))
    bad = draw_table(50)[only("visits")]
    bad.assign(visits=-1.0).to_parquet(tmp_path / "a.parquet", index=False)
    with pytest.raises(OutcomeRangeError, match=r"50 value\(s\) .*\(in .*a\.parquet\)"):
        count.fit(tmp_path / "a.parquet", y="visits")
    bad.assign(visits=np.where(np.arange(50) == 7, np.nan, 1.0)).to_parquet(tmp_path / "b.parquet", index=False)
    with pytest.raises(MissingValuesError, match=r"outcome has 1 missing .*\(in .*b\.parquet\)"):
        count.fit(tmp_path / "b.parquet", y="visits")
    bad.assign(visits=2.0).to_parquet(tmp_path / "c.parquet", index=False)
    with pytest.raises(InputError, match="Every outcome is 2"):
        count.fit(tmp_path / "c.parquet", y="visits")
    bad.assign(visits=1.0 + np.arange(50) % 3, z0=np.where(np.arange(50) == 7, np.nan, 1.0)).to_parquet(
        tmp_path / "d.parquet", index=False
    )
    with pytest.raises(MissingValuesError, match=r"Missing \(NaN\) values in column 'z0' \(1\)"):
        count.fit(tmp_path / "d.parquet", y="visits")
