"""One worker of a dask cluster against two, each with one thread, and the same coefficients as in memory.

    python -m benchmarks.bench_dask                 # about 4 minutes

Parquet files are written to a temporary folder, clusters of one and of two workers are started in turn, and the same
model is fitted on each; then once more on two, of which one is killed in mid-fit. The processor time of the busiest
worker stands beside the time on the clock, because other programs on the machine leave it alone.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

from benchmarks.bench_out_of_core import write_rows
from benchmarks.frame import Bound, Ratio, main, plain, steps
from setsquare import OrthogonalGLMClassifier

QUICK = {"rows": 50_000, "features": 10, "rounds": 1}


def fit(folder: Path, p: int) -> tuple[OrthogonalGLMClassifier, float]:
    frame = dd.read_parquet(folder, split_row_groups=True)
    start = time.perf_counter()
    model = OrthogonalGLMClassifier(protected=[f"x{j}" for j in range(p)]).fit(frame, y="y")
    return model, time.perf_counter() - start


def cluster(n_workers: int) -> LocalCluster:
    return LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None)


def run(rows: int = 2_000_000, features: int = 50, protected: int = 5, rounds: int = 3) -> dict[str, Any]:
    seconds: dict[int, list[float]] = {1: [], 2: []}
    busiest: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as temporary, dask.config.set({"distributed.worker.memory.terminate": False}):
        folder = Path(temporary)
        write_rows(folder, rows, features, protected)
        reference, worst = fit_in_memory(folder, protected), 0.0
        for n_workers in steps((1, 2) * rounds, "clusters"):
            with cluster(n_workers) as local, Client(local) as client:
                fit(folder, protected)  # imports, and files into the system's cache
                before = client.run(time.process_time)
                model, elapsed = fit(folder, protected)
                after = client.run(time.process_time)
            seconds[n_workers].append(elapsed)
            busiest[n_workers].append(max(after[worker] - before[worker] for worker in after))
            worst = max(worst, float(np.abs(model.coef_ - reference).max()))
        with cluster(2) as local, Client(local) as client:
            pids = list(client.run(os.getpid).values())
            threading.Timer(0.4 * float(np.median(seconds[2])), os.kill, (pids[0], signal.SIGKILL)).start()
            killed, elapsed = fit(folder, protected)
    gap = float(np.abs(killed.coef_ - reference).max())
    what, names = f"dask, corrected binomial fit, {rows} x {features}", ("2 workers", "1 worker")
    times, work = (list(zip(names, (each[2], each[1]), strict=True)) for each in (seconds, busiest))
    return plain(
        {
            "ratios": [
                Ratio.over(what, *times, "distributed", 1 / 1.5),
                Ratio.over(f"{what}, busiest worker", *work, "distributed", of="processor time"),
            ],
            "bounds": [
                Bound("dask: largest distance of a coefficient from the fit in memory", worst, 1e-10),
                Bound("dask: the same with a worker killed in mid-fit", gap, 1e-10),
            ],
            "rows": rows,
            "seconds": seconds,
            "busiest": busiest,
            "killed_seconds": elapsed,
        }
    )


def fit_in_memory(folder: Path, p: int) -> np.ndarray:
    table = pq.read_table(folder).to_pandas()
    model = OrthogonalGLMClassifier(protected=[f"x{j}" for j in range(p)])
    return model.fit(table.drop(columns="y"), table.y).coef_


def show(result: dict[str, Any]) -> None:
    one, two = (np.median(result["seconds"][key]) for key in ("1", "2"))
    up, work = ({key: 1 / ratio[key] for key in ("low", "median", "high")} for ratio in result["ratios"])
    worst, gap = (bound["value"] for bound in result["bounds"])
    print("| rows | 1 worker | 2 workers | speed-up | of the busiest worker | largest gap to memory | one killed |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| {result['rows']} | {one:.2f} s | {two:.2f} s | {up['median']:.2f} ({up['high']:.2f} to {up['low']:.2f}) | "
        f"{work['median']:.2f} | {worst:.1e} | {result['killed_seconds']:.2f} s, gap {gap:.1e} |"
    )


if __name__ == "__main__":
    main(run, show, QUICK)
