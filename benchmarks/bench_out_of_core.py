"""A corrected fit to Parquet files that are larger than the memory it may use, beside the same fit in memory.

``python -m benchmarks.bench_out_of_core`` writes 10 million × 50 rows in float32 (2.1 GB) to a temporary folder, fits a
logistic model that is orthogonal to 5 protected columns in a process of its own, and then the rows that fit easily into
memory both ways, in turn. Memory is that of the whole process, as the system counts it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from setsquare import OrthogonalGLMClassifier, Problem, Stream, solve
from setsquare.sources.arrow import ArrowFiles

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


def fit_stream(folder: Path, p: int, memory: str, limit: int | None) -> dict[str, float]:
    """Fit to the files, and say what it took."""
    passes = 0
    read = ArrowFiles._read

    def counted(self: ArrowFiles, *arguments: object) -> object:
        nonlocal passes
        passes += 1
        return read(self, *arguments)  # type: ignore[arg-type]

    ArrowFiles._read = counted  # type: ignore[method-assign, assignment]
    files = sorted(folder.glob("*.parquet"))[: None if limit is None else -(-limit // 1_000_000)]
    start, before = time.perf_counter(), time.process_time()
    model = OrthogonalGLMClassifier(protected=[f"x{j}" for j in range(p)]).fit(Stream(files, memory=memory), y="y")
    seconds, cpu = time.perf_counter() - start, time.process_time() - before
    return _summary(model.solution_, seconds, cpu, sum(pq.read_metadata(f).num_rows for f in files)) | {
        "passes": passes
    }


def fit_memory(folder: Path, p: int, limit: int) -> dict[str, float]:
    """Fit to the first rows in memory; reading them is not counted."""
    table = pq.read_table(sorted(folder.glob("*.parquet"))[: -(-limit // 1_000_000)])
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


def _summary(solution: object, seconds: float, cpu: float, n: int) -> dict[str, float]:
    certificate = solution.certificate  # type: ignore[attr-defined]
    n_iter = solution.n_iter  # type: ignore[attr-defined]
    return {
        "rows": n,
        "seconds": seconds,
        "cpu": cpu,
        "n_iter": n_iter,
        "us_per_row_and_iteration": 1e6 * seconds / n / n_iter,
        "correlation": certificate.max_correlation,
        "kkt": certificate.kkt_residual,
        "loss": certificate.loss,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    """Largest resident memory of this process; the system's own count also has that of the parent before the start."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _child(kind: str, folder: Path, p: int, memory: str, limit: int | None) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bench_out_of_core", "--child", kind, "--folder", str(folder)]
    command += ["--protected", str(p), "--memory", memory] + ([] if limit is None else ["--limit", str(limit)])
    answer: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(kind, "  ".join(f"{key} {value:.4g}" for key, value in answer.items()), flush=True)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--protected", type=int, default=5)
    parser.add_argument("--memory", default="256MB")
    parser.add_argument("--limit", type=int, default=None, help="rows that are compared with a fit in memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="keep the files here")
    parser.add_argument("--child", choices=["stream", "memory"], default=None)
    given = parser.parse_args()
    if given.child:
        answer = (
            fit_stream(given.folder, given.protected, given.memory, given.limit)
            if given.child == "stream"
            else fit_memory(given.folder, given.protected, given.limit)
        )
        print(json.dumps(answer))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        if not list(folder.glob("*.parquet")):
            write_rows(folder, given.rows, given.features, given.protected)
        print(f"files: {sum(f.stat().st_size for f in folder.glob('*.parquet')) / 2**30:.2f} GB")
        whole = _child("stream", folder, given.protected, given.memory, None)
        limit = given.limit or min(given.rows, 2_000_000)
        rounds = [
            (
                _child("stream", folder, given.protected, given.memory, limit),
                _child("memory", folder, given.protected, given.memory, limit),
            )
            for _ in range(given.rounds)
        ]
    ratios = [stream["seconds"] / memory["seconds"] for stream, memory in rounds]  # of the same rows and iterations
    work = np.median([stream["cpu"] / memory["cpu"] for stream, memory in rounds])
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    print("\n| rows | peak memory | seconds | passes | largest abs. corr | stream / memory, per row and iteration |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {whole['rows']:.0f} | {whole['peak_mb']:.0f} MB | {whole['seconds']:.0f} | {whole['passes']:.0f} | "
        f"{whole['correlation']:.1e} | {middle:.2f} ({low:.2f} to {high:.2f}; processor time {work:.2f}) on "
        f"{limit} rows |"
    )


if __name__ == "__main__":
    main()
