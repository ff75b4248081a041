"""``solver="large"`` on many features: embeddings in single precision, sparse one-hot columns, and against ``sqp``.

    python -m benchmarks.bench_wide [--quick]

Each case is generated and fitted in a process of its own, whose peak memory (of everything: interpreter, data, fit) is
what the operating system counted. "crossing" fits the same problem with both solvers, one after the other: where
``large`` becomes the cheaper one is what ``setsquare.solvers.choice`` is calibrated by. The load of the machine is
printed before and after, for nothing else here says how busy it was.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from scipy import sparse

from setsquare.problem import Problem
from setsquare.solvers import solve

#: name -> kind of features, rows, and columns (one-hot: categoricals, levels), and solvers to run
CASES: dict[str, tuple[str, tuple[int, ...], tuple[str, ...]]] = {
    "embeddings": ("embeddings", (200_000, 2048), ("large",)),
    "one-hot": ("one_hot", (500_000, 25, 200), ("large",)),
    **{
        f"crossing {n} x {q}": ("embeddings", (n, q), ("large", "sqp"))
        for n, q in ((5000, 250), (5000, 1000), (20_000, 250), (20_000, 1000))
    },
    **{
        f"crossing one-hot {n} x {25 * levels}": ("one_hot", (n, 25, levels), ("large", "sqp"))
        for n, levels in ((20_000, 4), (20_000, 40))
    },
}
QUICK = {"embeddings": (20_000, 512), "one-hot": (50_000, 25, 40)}


def draw_protected(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([rng.random((n, 2)) < (0.3, 0.1), rng.normal(size=(n, 2))]).astype(float)


def embeddings(n: int, q: int, rng: np.random.Generator) -> Problem:
    """Rotated features with singular values k^-0.8, four of which know the protected columns; float32."""
    X = draw_protected(n, rng)
    rotation = np.linalg.qr(rng.normal(size=(q, q)))[0].astype(np.float32)
    sizes = (np.arange(1, q + 1) ** -0.8).astype(np.float32)
    Z, latent = np.empty((n, q), dtype=np.float32), np.empty((n, 8))
    for start in range(0, n, 4096):
        rows = slice(start, start + 4096)
        G = rng.standard_normal((len(X[rows]), q), dtype=np.float32)
        G[:, 2:6] += X[rows]
        latent[rows], Z[rows] = G[:, :8], (G * sizes) @ rotation
    signal = 0.6 * latent @ rng.normal(size=8)
    return Problem(Z, (rng.random(n) < 1.0 / (1.0 + np.exp(-signal))).astype(float), X, family="binomial")


def one_hot(n: int, n_columns: int, levels: int, rng: np.random.Generator) -> Problem:
    """Every level of every categorical, so each block of columns sums to one; four follow the protected columns."""
    X = draw_protected(n, rng)
    share = np.arange(1, levels + 1) ** -0.5
    cumulated, effects = np.cumsum(share) / share.sum(), 0.3 * rng.normal(size=(n_columns, levels))
    columns, signal = np.empty((n, n_columns), dtype=np.int32), np.zeros(n)
    for j in range(n_columns):
        place = rng.random(n) if j >= 4 else (rng.random(n) + 0.3 * (X[:, j] > 0.5)) % 1.0
        level = np.minimum(np.searchsorted(cumulated, place), levels - 1)
        columns[:, j] = j * levels + level
        signal += effects[j, level]
    pointers = np.arange(0, n * n_columns + 1, n_columns, dtype=np.int32)
    Z = sparse.csr_array((np.ones(columns.size), columns.ravel(), pointers), shape=(n, n_columns * levels))
    chance = 1.0 / (1.0 + np.exp(signal.mean() - signal))
    return Problem(Z, (rng.random(n) < chance).astype(float), X, family="binomial")


MAKERS: dict[str, Callable[..., Problem]] = {"embeddings": embeddings, "one_hot": one_hot}


def run(kind: str, shape: tuple[int, ...], solver: str) -> dict[str, object]:
    """Generate and fit, in this process."""
    problem = MAKERS[kind](*shape, np.random.default_rng(0))
    Z = problem.features
    stored = Z.data.nbytes + Z.indices.nbytes + Z.indptr.nbytes if sparse.issparse(Z) else Z.nbytes
    before = _peak()
    start = time.perf_counter()
    found = solve(problem, solver)
    seconds = time.perf_counter() - start
    c = found.certificate
    return {
        "seconds": seconds,
        "data": stored / 1e6,
        "before": before,
        "peak": _peak(),
        "iterations": found.n_iter,
        "status": found.status.name,
        "correlation": c.max_correlation,
        "kkt": c.kkt_residual,
        "curvature": c.min_curvature,
        "loss": c.loss,
        "free": c.loss_unconstrained,
    }


def _peak() -> float:
    """Largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def in_child(kind: str, shape: tuple[int, ...], solver: str) -> dict[str, float]:
    job = json.dumps([kind, shape, solver])
    out = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_wide", "--job", job], check=True, capture_output=True, text=True
    )
    return dict(json.loads(out.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller shapes of the two large cases")
    parser.add_argument("--only", choices=sorted(CASES), help="one case")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        kind, shape, solver = json.loads(options.job)
        print(json.dumps(run(kind, tuple(shape), solver)))
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    columns = ("case", "solver", "s", "data MB", "peak MB", "iterations", "abs. corr", "KKT", "curvature", "loss")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name, (kind, shape, solvers) in CASES.items():
        if options.only not in (None, name):
            continue
        for solver in solvers:
            r = in_child(kind, QUICK.get(name, shape) if options.quick else shape, solver)
            cells = [name, solver, f"{r['seconds']:.1f}", f"{r['data']:.0f}", f"{r['peak']:.0f}"]
            cells += [f"{r['iterations']} ({r['status']})", f"{r['correlation']:.0e}", f"{r['kkt']:.0e}"]
            cells += [f"{r['curvature']:.1e}", f"{r['loss']:.10f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
