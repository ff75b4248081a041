"""Tables from a real database file, and from others that speak Arrow's stream interface."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adbc_driver_sqlite.dbapi as adbc
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import setsquare as sq
from setsquare.errors import InputError
from setsquare.estimators.unconstrained import PlainGLMClassifier
from setsquare.rows.arrow_streams import Query

N = 3000
OPEN: list[Any] = []


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    rng = np.random.default_rng(0)
    sex = rng.choice(["female", "male"], N)
    income = rng.normal(size=N) + 0.8 * (sex == "male")
    debt = rng.normal(size=N)
    score = 1.0 / (1.0 + np.exp(-income + 0.3 * debt))
    y = (rng.uniform(size=N) < score).astype(int)
    return pa.table({"income": income, "debt": debt, "sex": sex, "score": score, "y": y})


@pytest.fixture(scope="module")
def database(rows: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("database") / "bank.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.register("given", rows)
        connection.execute("create table customers as select * from given")
    with duckdb.connect(str(path), read_only=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def plain(rows: pa.Table) -> sq.OrthogonalGLMClassifier:
    return sq.OrthogonalGLMClassifier(protected=["sex"]).fit(
        rows.select(["income", "debt", "sex"]), rows["y"].to_numpy()
    )


def unread(kind: str, database: Any, columns: str, tmp_path: Path, rows: pa.Table) -> Any:
    names = columns.split(", ")
    if kind == "duckdb":
        return database.sql(f"select {columns} from customers where income is not null")
    if kind == "polars":
        return pl.from_arrow(rows).lazy().select(names)
    if kind == "reader":
        return rows.select(names).to_reader(500)
    connection = adbc.connect(str(tmp_path / f"{len(OPEN)}.sqlite"))
    cursor = connection.cursor()
    cursor.adbc_ingest("customers", rows, mode="replace")
    connection.commit()
    cursor.execute(f"select {columns} from customers")
    OPEN.extend((connection, cursor))  # a result can be read as long as its cursor is open
    return cursor.fetch_arrow()


@pytest.fixture(autouse=True)
def close_connections() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


KINDS = ("duckdb", "polars", "reader", "adbc")


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_reads_them_as_they_are(kind: str, database: Any, rows: pa.Table, tmp_path: Path) -> None:
    known = sq.audit(rows["score"].to_numpy(), rows.select(["sex"]))
    found = sq.audit(unread(kind, database, "score", tmp_path, rows), unread(kind, database, "sex", tmp_path, rows))
    assert found.is_leak
    assert found.certificate.correlation == pytest.approx(known.certificate.correlation, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_gives_the_fit_of_the_table(
    kind: str, database: Any, rows: pa.Table, plain: Any, tmp_path: Path
) -> None:
    stream = sq.Stream(unread(kind, database, "income, debt, sex, y", tmp_path, rows), memory="1MB")
    model = sq.OrthogonalGLMClassifier(protected=["sex"]).fit(stream, "y")
    np.testing.assert_allclose(model.coef_, plain.coef_, rtol=1e-6)
    np.testing.assert_allclose(
        model.predict_proba(stream), plain.predict_proba(rows.select(["income", "debt"])), rtol=1e-6
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_estimator_reads_them_with_outcomes_by_name_or_as_an_array(
    kind: str, database: Any, rows: pa.Table, plain: Any, tmp_path: Path
) -> None:
    by_name = sq.OrthogonalGLMClassifier(protected=["sex"])
    by_name.fit(unread(kind, database, "income, debt, sex, y", tmp_path, rows), "y")
    beside = sq.OrthogonalGLMClassifier(protected=["sex"])
    beside.fit(unread(kind, database, "income, debt, sex", tmp_path, rows), rows["y"].to_numpy())
    np.testing.assert_allclose(by_name.coef_, plain.coef_, rtol=1e-6)
    np.testing.assert_allclose(beside.coef_, plain.coef_, rtol=1e-12)
    predicted = beside.predict_proba(unread(kind, database, "income, debt", tmp_path, rows))
    np.testing.assert_allclose(predicted, plain.predict_proba(rows.select(["income", "debt"])), rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_corrections_read_them(kind: str, database: Any, rows: pa.Table, tmp_path: Path) -> None:
    def features() -> Any:
        return unread(kind, database, "income, debt", tmp_path, rows)

    def sex() -> Any:
        return unread(kind, database, "sex", tmp_path, rows)

    linear = sq.LinearOrthogonalizer().fit(features(), protected=sex())
    corrected = linear.transform(rows.select(["income", "debt"]), protected=rows.select(["sex"]))
    male = np.asarray(rows["sex"].to_pylist()) == "male"
    assert np.abs(np.corrcoef(corrected[:, 0], male)[0, 1]) < 1e-10
    around = sq.PredictionOrthogonalizer(PlainGLMClassifier()).fit(features(), rows["y"].to_numpy(), protected=sex())
    p = around.predict_proba(features(), protected=sex())[:, 1]
    assert np.abs(np.corrcoef(p, male)[0, 1]) < 0.03 < np.abs(np.corrcoef(rows["score"].to_numpy(), male)[0, 1])


def test_a_query_runs_for_the_columns_in_use_and_leaves_the_connection_free(database: Any) -> None:
    stream = sq.Stream(database.table("customers"), columns=["score", "sex"])
    assert isinstance(stream.data, Query) and stream.columns == ("score", "sex")
    first = next(iter(stream))
    assert first.column_names == ["score", "sex"]
    del first
    gc.collect()
    assert database.sql("select count(*) from customers").fetchall() == [(N,)]
    found = sq.audit(stream["score"], stream[["sex"]])
    assert found.is_leak and found.n == N


def test_a_reader_is_kept_in_a_temporary_file_that_goes_with_the_stream(rows: pa.Table, tmp_path: Path) -> None:
    stream = sq.Stream(rows.to_reader(100), scratch=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    assert [sum(table.num_rows for table in stream) for _ in range(2)] == [N, N]
    del stream
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_reader_that_was_read_before_has_no_rows(rows: pa.Table) -> None:
    reader = rows.to_reader()
    reader.read_all()
    with pytest.raises(InputError, match=r"empty|no rows"):
        sq.OrthogonalGLMClassifier(protected=["sex"]).fit(reader, "y")


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_protected_columns_of_two_queries_are_corrected(
    kind: str, database: Any, rows: pa.Table, tmp_path: Path
) -> None:
    expected = sq.LinearOrthogonalizer().fit_transform(rows.select(["income", "debt"]), protected=rows.select(["sex"]))
    both = [unread(kind, database, names, tmp_path, rows) for names in ("income, debt", "sex")]
    np.testing.assert_allclose(
        sq.LinearOrthogonalizer().fit_transform(both[0], protected=both[1]), expected, atol=1e-12
    )
    fitted = sq.LinearOrthogonalizer().fit(rows.select(["income", "debt"]), protected=rows.select(["sex"]))
    again = [unread(kind, database, names, tmp_path, rows) for names in ("income, debt", "sex")]
    np.testing.assert_allclose(fitted.transform(again[0], protected=again[1]), expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_reads_rows_once(kind: str, database: Any, rows: pa.Table, plain: Any, tmp_path: Path) -> None:
    y = rows["y"].to_numpy()
    found = plain.score(unread(kind, database, "income, debt, sex", tmp_path, rows), y)
    assert found == plain.score(rows.select(["income", "debt", "sex"]), y)


def test_a_stream_that_breaks_off_is_refused_in_one_sentence(rows: pa.Table) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows.select(["score"]).to_batches(1000)
        raise OSError("the server hung up")

    reader = pa.RecordBatchReader.from_batches(rows.select(["score"]).schema, broken())
    with pytest.raises(InputError, match=r"cannot be read .*the server hung up.* run the query again"):
        sq.audit(reader, rows.select(["sex"]))


def test_a_closed_connection_is_refused_in_one_sentence(rows: pa.Table) -> None:
    with duckdb.connect() as connection:
        connection.register("given", rows)
        relation = connection.sql("select score, sex from given")
    with pytest.raises(InputError, match="cannot be read"):
        sq.audit(relation, rows.select(["sex"]))


def test_types_of_databases_are_read(database: Any) -> None:
    relation = database.sql("select score::decimal(9, 6) as score, sex::enum('female', 'male') as sex from customers")
    assert sq.audit(relation.select("score"), relation.select("sex")).is_leak
