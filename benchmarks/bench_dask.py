"""One worker of a dask cluster against two, each with one thread, and the same coefficients as in memory.

``python -m benchmarks.bench_dask`` writes Parquet files to a temporary folder, starts clusters of one and of two
workers in turn, and fits the same model on each; then once more on two, of which one is killed in mid-fit.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

from benchmarks.bench_out_of_core import write_rows
from setsquare import OrthogonalGLMClassifier


def fit(folder: Path, p: int) -> tuple[OrthogonalGLMClassifier, float]:
    frame = dd.read_parquet(folder, split_row_groups=True)
    start = time.perf_counter()
    model = OrthogonalGLMClassifier(protected=[f"x{j}" for j in range(p)]).fit(frame, y="y")
    return model, time.perf_counter() - start


def cluster(n_workers: int) -> LocalCluster:
    return LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--protected", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, dask.config.set({"distributed.worker.memory.terminate": False}):
        folder = Path(temporary)
        write_rows(folder, given.rows, given.features, given.protected)
        table = pq.read_table(folder).to_pandas()
        memory = OrthogonalGLMClassifier(protected=[f"x{j}" for j in range(given.protected)])
        memory.fit(table.drop(columns="y"), table.y)
        del table
        seconds: dict[int, list[float]] = {1: [], 2: []}
        busiest: dict[int, list[float]] = {
            1: [],
            2: [],
        }  # processor time, which other programs on the machine leave alone
        worst = 0.0
        for _ in range(given.rounds):
            for n_workers in (1, 2):
                with cluster(n_workers) as local, Client(local) as client:
                    fit(folder, given.protected)  # imports, and files into the system's cache
                    before = client.run(time.process_time)
                    model, elapsed = fit(folder, given.protected)
                    after = client.run(time.process_time)
                seconds[n_workers].append(elapsed)
                busiest[n_workers].append(max(after[worker] - before[worker] for worker in after))
                worst = max(worst, float(np.abs(model.coef_ - memory.coef_).max()))
                print(f"{n_workers} worker(s): {elapsed:.2f} s, busiest {busiest[n_workers][-1]:.2f} s", flush=True)
        with cluster(2) as local, Client(local) as client:
            pids = list(client.run(os.getpid).values())
            threading.Timer(0.4 * float(np.median(seconds[2])), os.kill, (pids[0], signal.SIGKILL)).start()
            killed, elapsed = fit(folder, given.protected)
        after_loss = float(np.abs(killed.coef_ - memory.coef_).max())
    ratios = np.divide(seconds[1], seconds[2])
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    work = np.median(np.divide(busiest[1], busiest[2]))
    print("\n| rows | 1 worker | 2 workers | speed-up | of the busiest worker | largest gap to memory | one killed |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| {given.rows} | {np.median(seconds[1]):.2f} s | {np.median(seconds[2]):.2f} s | {middle:.2f} ({low:.2f} to "
        f"{high:.2f}) | {work:.2f} | {worst:.1e} | {elapsed:.2f} s, gap {after_loss:.1e} |"
    )


if __name__ == "__main__":
    main()
