"""A corrected fit to Parquet files that are larger than the memory it may use, beside the same fit in memory.

    python -m benchmarks.bench_out_of_core          # about 3 minutes

10 million × 50 rows in float32 (2.1 GB) are written to a temporary folder. A logistic model that is orthogonal to 5
protected columns is fitted to them in a process of its own, and then to the rows that fit easily into memory both ways,
in turn. Memory is that of the whole process, as the system counts it. The rows are read from the files twice; later
passes take them from a temporary file of numbers.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.frame import Bound, Ratio, main, plain, steps
from benchmarks.measure import in_child, peak_mb
from setsquare import OrthogonalGLMClassifier, Problem, Solution, Stream, solve
from setsquare.rows import LocalParts

QUICK = {"rows": 100_000, "features": 10, "rounds": 1}
CHUNK = 250_000


def write_rows(folder: Path, n: int, q: int, p: int, seed: int = 0) -> None:
    """Write files of a million rows: q features that know the p protected columns, and an outcome."""
    rng = np.random.default_rng(seed)
    mixing, slope = 0.3 * rng.normal(size=(p, q)), rng.normal(size=q) / np.sqrt(q)
    names = [*(f"z{j}" for j in range(q)), *(f"x{j}" for j in range(p))]
    for file in range(-(-n // 1_000_000)):
        rows = min(1_000_000, n - 1_000_000 * file)
        writer = None
        for start in range(0, rows, CHUNK):
            m = min(CHUNK, rows - start)
            X = rng.normal(size=(m, p)).astype(np.float32)
            Z = (X @ mixing + rng.normal(size=(m, q))).astype(np.float32)
            y = (rng.random(m) < 1.0 / (1.0 + np.exp(-(Z @ slope) - 0.3 * X[:, 0]))).astype(np.int8)
            table = pa.table([*(column for column in Z.T), *(column for column in X.T), y], names=[*names, "y"])
            # A dictionary of numbers that hardly ever occur twice makes files larger and slower to read.
            writer = writer or pq.ParquetWriter(folder / f"rows{file:03}.parquet", table.schema, use_dictionary=False)
            writer.write_table(table)
        assert writer is not None
        writer.close()


def fit_stream(folder: str, p: int, memory: str, limit: int) -> dict[str, float]:
    """Fit to the files, and say what it took."""
    passes = 0
    iterate = LocalParts.__iter__

    def counted(self: LocalParts[Any]) -> Iterator[Any]:
        nonlocal passes
        passes += 1
        return iterate(self)

    LocalParts.__iter__ = counted  # type: ignore[method-assign]
    files = _first(folder, limit)
    start, before = time.perf_counter(), time.process_time()
    model = OrthogonalGLMClassifier(protected=[f"x{j}" for j in range(p)]).fit(Stream(files, memory=memory), y="y")
    seconds, cpu = time.perf_counter() - start, time.process_time() - before
    return _summary(model.solution_, seconds, cpu, sum(pq.read_metadata(f).num_rows for f in files)) | {
        "passes": passes
    }


def fit_memory(folder: str, p: int, limit: int) -> dict[str, float]:
    """Fit to the first rows in memory; reading them is not counted."""
    table = pq.read_table(_first(folder, limit))
    names = table.column_names
    q = len(names) - p - 1
    Z = np.empty((table.num_rows, q), dtype=np.float32)
    for j in range(q):
        Z[:, j] = table.column(j)
    X = np.column_stack([table.column(q + j) for j in range(p)])
    y = np.asarray(table.column("y"), dtype=np.float64)
    del table
    start, before = time.perf_counter(), time.process_time()
    solution = solve(Problem(Z, y, X, family="binomial"))
    return _summary(solution, time.perf_counter() - start, time.process_time() - before, len(y))


def _first(folder: str, n: int) -> list[Path]:
    """Files with the first rows, in whole millions."""
    return sorted(Path(folder).glob("*.parquet"))[: -(-n // 1_000_000)]


def _summary(solution: Solution, seconds: float, cpu: float, n: int) -> dict[str, float]:
    certificate, n_iter = solution.certificate, solution.n_iter
    return {
        "rows": n,
        "seconds": seconds,
        "cpu": cpu,
        "n_iter": n_iter,
        "us_per_row_and_iteration": 1e6 * seconds / n / n_iter,
        "cpu_us_per_row_and_iteration": 1e6 * cpu / n / n_iter,
        "correlation": certificate.max_correlation,
        "kkt": certificate.kkt_residual,
        "loss": certificate.loss,
        "peak_mb": peak_mb(),
    }


def run(
    rows: int = 10_000_000,
    features: int = 50,
    protected: int = 5,
    memory: str = "256MB",
    limit: int = 2_000_000,
    rounds: int = 3,
    folder: str = "",
) -> dict[str, Any]:
    """Fit to all rows, and compare on ``limit`` rows; files in ``folder`` are kept and used again."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(folder or temporary)
        home.mkdir(exist_ok=True)
        if not list(home.glob("*.parquet")):
            write_rows(home, rows, features, protected)
        size = sum(file.stat().st_size for file in home.glob("*.parquet")) / 1e6
        whole = in_child(fit_stream, str(home), protected, memory, rows)
        limit = min(limit, rows)
        pairs = [
            (
                in_child(fit_stream, str(home), protected, memory, limit),
                in_child(fit_memory, str(home), protected, limit),
            )
            for _ in steps(range(rounds), "fits in passes and in memory")
        ]
    stream, held = ([pair[side] for pair in pairs] for side in (0, 1))
    what = f"corrected binomial fit out of core, {pairs[0][0]['rows']} x {features} Parquet"

    def ratio(key: str, bound: float | None, of: str) -> Ratio:
        ours, peer = ([each[key] for each in side] for side in (stream, held))
        return Ratio.over(
            f"{what}, per row and iteration", ("stream", ours), ("in memory", peer), "setsquare", bound, of
        )

    text = f"{whole['rows']} x {features} out of core"
    return plain(
        {
            "ratios": [
                ratio("us_per_row_and_iteration", 2.0, "time"),
                ratio("cpu_us_per_row_and_iteration", None, "processor time"),
            ],
            "bounds": [
                Bound(f"{text}: peak memory of the process", whole["peak_mb"], 2000.0, "MB"),
                Bound(f"{text}: largest abs. correlation left", whole["correlation"], 1e-8),
            ],
            "whole": whole,
            "stream": stream,
            "memory": held,
            "files_mb": size,
        }
    )


def show(result: dict[str, Any]) -> None:
    whole, (time_, work) = result["whole"], result["ratios"]
    print(f"files: {result['files_mb'] / 1e3:.2f} GB")
    for name, fits in (("whole", [whole]), ("stream", result["stream"]), ("memory", result["memory"])):
        for fit in fits:
            print(name, "  ".join(f"{key} {value:.4g}" for key, value in fit.items()))
    print("\n| rows | peak memory | seconds | passes | largest abs. corr | stream / memory, per row and iteration |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {whole['rows']} | {whole['peak_mb']:.0f} MB | {whole['seconds']:.0f} | {whole['passes']} | "
        f"{whole['correlation']:.1e} | {time_['median']:.2f} ({time_['low']:.2f} to {time_['high']:.2f}; processor "
        f"time {work['median']:.2f}) on {result['memory'][0]['rows']} rows |"
    )


if __name__ == "__main__":
    main(run, show, QUICK)
