"""Dask collections: blocks are reduced where they live, and a worker that is lost in mid-fit is survived."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from setsquare import LinearOrthogonalizer, OrthogonalGLMClassifier, OrthogonalGLMRegressor, Stream
from setsquare.errors import InputError
from setsquare.rows import RowsInParts

dask = pytest.importorskip("dask", reason="dask is not installed: pip install 'setsquare[dask]'")
distributed = pytest.importorskip("distributed", reason="dask is not installed: pip install 'setsquare[dask]'")
import dask.array as da  # noqa: E402
import dask.dataframe as dd  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of dask's own code, by a newer pandas
#: Same steps, sums in another order.
SAME = 1e-10
PROTECTED = ["sex", "age"]
#: One process imports what workers need, and workers are its forks, where libraries survive a fork.
METHOD = "forkserver" if sys.platform == "linux" else "spawn"


def draw_table(n: int = 4000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"sex": rng.choice(["f", "m"], n), "age": rng.normal(40.0, 10.0, n).astype(np.float32)})
    for j in range(5):
        table[f"z{j}"] = (rng.normal(size=n) + 0.4 * (table.sex == "f") + 0.02 * j * table.age).astype(np.float32)
    table["job"] = rng.choice(["a", "b", "c"], n)
    signal_ = 0.6 * table.z0 - 0.4 * table.z1 + 0.5 * (table.job == "b")
    table["income"] = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-signal_)), "high", "low")
    return table


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    table = draw_table()
    for i in range(8):
        table.iloc[500 * i : 500 * (i + 1)].to_parquet(folder / f"part{i}.parquet", index=False)
    return folder


@pytest.fixture(scope="module")
def expected() -> OrthogonalGLMClassifier:
    table = draw_table()
    return OrthogonalGLMClassifier(protected=PROTECTED).fit(table.drop(columns="income"), table.income)


@pytest.fixture(scope="module", autouse=True)
def _imported_once() -> None:
    if METHOD == "forkserver":
        from multiprocessing import forkserver

        get_context(METHOD).set_forkserver_preload(["distributed", "dask.dataframe", "setsquare.estimators.stream"])
        forkserver.ensure_running()


@pytest.fixture(scope="module")
def client():
    settings = {
        "distributed.scheduler.allowed-failures": 10,
        "distributed.logging.distributed": "critical",
        "distributed.worker.multiprocessing-method": METHOD,
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def check(model: OrthogonalGLMClassifier, expected: OrthogonalGLMClassifier) -> None:
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=SAME, atol=SAME)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=SAME, atol=SAME)
    assert model.solution_.certificate.max_correlation <= 1e-8
    assert list(model.classes_) == list(expected.classes_)


def test_threads_give_the_model_of_the_table_in_memory(files: Path, expected: OrthogonalGLMClassifier) -> None:
    table = draw_table()
    with dask.config.set(scheduler="threads"):
        model = OrthogonalGLMClassifier(protected=PROTECTED).fit(dd.read_parquet(files), y="income")
        check(model, expected)
        np.testing.assert_allclose(
            model.predict_proba(dd.read_parquet(files)), expected.predict_proba(table.drop(columns="income")), rtol=1e-9
        )


def test_processes_give_the_model_of_the_table_in_memory(files: Path, expected: OrthogonalGLMClassifier) -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context(METHOD)) as pool,
        dask.config.set(scheduler="processes", pool=pool),
    ):
        check(OrthogonalGLMClassifier(protected=PROTECTED).fit(dd.read_parquet(files), y="income"), expected)


def test_a_cluster_gives_the_model_of_the_table_in_memory(client, files: Path, expected) -> None:
    model = OrthogonalGLMClassifier(protected=PROTECTED).fit(dd.read_parquet(files), y="income")
    check(model, expected)


def test_only_sums_travel_to_the_caller(client, files: Path) -> None:
    from setsquare.estimators.stream import assign, learn_stream, stream_problem
    from setsquare.estimators.stream_outcome import Classes
    from setsquare.glm.preparation import prepare
    from setsquare.tables.roles import Columns

    stream, columns = Stream(dd.read_parquet(files)), Columns(PROTECTED)
    roles = assign(stream, "income", None, None, None, columns)
    learned = learn_stream(stream, roles, columns, Classes())
    family, outcomes, outcome, _ = Classes().settle(learned.outcome)
    prepared = prepare(stream_problem(stream, roles, learned, outcome, outcomes, family, 0.0))
    # A kernel that goes to its block takes the objective along, but none of the rows.
    assert len(pickle.dumps(prepared.objective)) < 20_000 < 8 * 4000 * 8
    prepared.objective.values(prepared.objective.start.theta)
    held = sum(client.run(lambda dask_worker: dask_worker.data.fast.total_weight).values())
    assert held > 8 * 4000 * 8  # the blocks stay with the workers


@pytest.mark.parametrize("when", ["between passes", "in a pass"])
def test_a_worker_that_is_killed_in_mid_fit_is_survived(when: str, client, files: Path, expected, monkeypatch) -> None:
    n_passes, killed, reduce = 0, [], RowsInParts.reduce

    def kill() -> None:
        killed.extend(list(client.run(os.getpid).values())[:1])
        os.kill(killed[0], signal.SIGKILL)

    def reduce_and_kill(self, kernel, *merge):
        nonlocal n_passes
        n_passes += 1
        if n_passes == 3 and when == "between passes":
            kill()
        if n_passes == 3 and when == "in a pass":
            threading.Timer(0.1, kill).start()
            return reduce(self, lambda block: (time.sleep(0.1), kernel(block))[1], *merge)
        return reduce(self, kernel, *merge)

    monkeypatch.setattr(RowsInParts, "reduce", reduce_and_kill)
    model = OrthogonalGLMClassifier(protected=PROTECTED).fit(dd.read_parquet(files), y="income")
    check(model, expected)
    assert n_passes > 4 and len(killed) == 1
    for _ in range(100):
        if len(alive := client.run(os.getpid)) == 2:
            break
        time.sleep(0.1)
    assert killed[0] not in alive.values()


@pytest.mark.parametrize("chunks", [1000, (1500, 1500, 1000)])
def test_arrays_of_the_same_rows_give_the_model_of_the_arrays_in_memory(chunks) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 2))
    Z = X @ rng.normal(size=(2, 6)) + rng.normal(size=(4000, 6))
    y, w = rng.poisson(np.exp(0.3 * Z[:, 0])).astype(float), rng.random(4000)
    memory = OrthogonalGLMRegressor("poisson").fit(Z, y, protected=X, sample_weight=w)
    arrays = [da.from_array(a, chunks=(chunks, 3) if a.ndim == 2 else 800) for a in (Z, y, X, w)]
    with dask.config.set(scheduler="threads"):
        model = OrthogonalGLMRegressor("poisson").fit(
            arrays[0], arrays[1], protected=arrays[2], sample_weight=arrays[3]
        )
        np.testing.assert_allclose(model.coef_, memory.coef_, rtol=SAME, atol=SAME)
        np.testing.assert_allclose(model.predict(arrays[0]), memory.predict(Z), rtol=1e-9)
    np.testing.assert_allclose(model.predict(Z), memory.predict(Z), rtol=1e-9)


def test_a_linear_correction_of_a_dataframe_and_of_empty_partitions() -> None:
    table = draw_table()[["sex", "age", "z0", "z1"]]
    frame = dd.from_pandas(table, npartitions=5)
    with dask.config.set(scheduler="threads"):
        found = LinearOrthogonalizer(protected=PROTECTED).fit(frame[frame.age > 35.0])
    kept = table[table.age > 35.0]
    expected = LinearOrthogonalizer(protected=PROTECTED).fit(kept)
    np.testing.assert_allclose(found.transform(kept), expected.transform(kept), rtol=1e-10, atol=1e-10)
    by_age = dd.from_pandas(table.sort_values("age").reset_index(drop=True), npartitions=5)
    with dask.config.set(scheduler="threads"):
        other = LinearOrthogonalizer(protected=PROTECTED).fit(by_age[by_age.age > 45.0])  # some have no row left
        with pytest.raises(InputError, match="no rows"):
            LinearOrthogonalizer(protected=PROTECTED).fit(frame[frame.age > 1e6])
    assert other.moments_.weight == (table.age > 45.0).sum()


def test_an_error_names_the_partition_and_arrays_must_go_together() -> None:
    table = draw_table(400)
    table.loc[350, "z0"] = np.inf
    with dask.config.set(scheduler="threads"):
        with pytest.raises(InputError, match=r"Column 'z0' has 1 infinite value.*partition 3"):
            OrthogonalGLMClassifier(protected=PROTECTED).fit(dd.from_pandas(table, npartitions=4), y="income")
        Z = da.zeros((100, 3), chunks=50)
        with pytest.raises(InputError, match="outcome is a ndarray: pass dask arrays"):
            OrthogonalGLMRegressor().fit(Z, np.zeros(100), protected=Z)
        with pytest.raises(InputError, match="protected has 90 rows but the features have 100"):
            OrthogonalGLMRegressor().fit(Z, Z[:, 0], protected=Z[:90])
        with pytest.raises(InputError, match="is not a table"):
            Stream(Z[:, 0])
