"""``solver="large"`` on many features: embeddings in single precision, sparse one-hot columns, and against ``sqp``.

    python -m benchmarks.bench_wide                 # about 6 minutes

Each case is generated and fitted in a process of its own, whose peak memory (of everything: interpreter, data, fit) is
what the operating system counted. "crossing" fits the same problem with both solvers, one after the other: where
``large`` becomes the cheaper one is what ``setsquare.glm.solver`` is calibrated by. Ten thousand dense features have a
ridge, without which the outcomes of so few rows are separable, and stand beside scikit-learn's unconstrained fit of the
same ridge at its default tolerance. The load of the machine is printed, for nothing else here says how busy it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from benchmarks.frame import Bound, Ratio, main, plain, steps
from benchmarks.measure import in_child, peak_mb
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve

QUICK = {"shrink": 10, "rounds": 1}
#: name -> kind of features, rows, and columns (one-hot: categoricals, levels), and solvers to run
CASES: dict[str, tuple[str, tuple[int, ...], tuple[str, ...]]] = {
    "embeddings": ("embeddings", (200_000, 2048), ("large",)),
    "one-hot": ("one_hot", (500_000, 25, 200), ("large",)),
    "ten thousand features": ("ridged", (30_000, 10_000), ("large", "scikit-learn")),
    **{
        f"crossing {n} x {q}": ("embeddings", (n, q), ("large", "sqp"))
        for n, q in ((5000, 250), (5000, 1000), (20_000, 250), (20_000, 1000))
    },
    **{
        f"crossing one-hot {n} x {25 * levels}": ("one_hot", (n, 25, levels), ("large", "sqp"))
        for n, levels in ((20_000, 4), (20_000, 40))
    },
}
#: Megabytes and seconds that these must not exceed.
LIMITS = {"embeddings": {"seconds": 180.0}, "one-hot": {"peak": 1000.0}, "ten thousand features": {}}


#: Ridge of ten thousand features: scikit-learn's ``C`` is then 1/3, near its default.
RIDGE = 1e-4


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


def ridged(n: int, q: int, rng: np.random.Generator) -> Problem:
    """Like embeddings, but with a ridge, and mixed by four reflections: a rotation of so many features takes longer."""
    X = draw_protected(n, rng)
    Z = rng.standard_normal((n, q), dtype=np.float32)
    Z[:, 2:6] += X
    signal = 0.6 * Z[:, :8] @ rng.normal(size=8)
    Z *= (np.arange(1, q + 1) ** -0.8).astype(np.float32)
    for _ in range(4):
        normal = rng.normal(size=q)
        normal = (normal / np.linalg.norm(normal)).astype(np.float32)
        for start in range(0, n, 4096):
            part = Z[start : start + 4096]
            part -= np.outer(2.0 * (part @ normal), normal)
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-signal))).astype(float)
    return Problem(Z, y, X, family="binomial", l2=RIDGE)


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


MAKERS: dict[str, Callable[..., Problem]] = {"embeddings": embeddings, "one_hot": one_hot, "ridged": ridged}


def fit(kind: str, shape: tuple[int, ...], solver: str) -> dict[str, Any]:
    """Generate and fit, in this process; without a constraint by scikit-learn."""
    problem = MAKERS[kind](*shape, np.random.default_rng(0))
    Z = problem.features
    stored = Z.data.nbytes + Z.indices.nbytes + Z.indptr.nbytes if sparse.issparse(Z) else Z.nbytes
    before = peak_mb()
    start = time.perf_counter()
    if solver == "scikit-learn":
        model = LogisticRegression(C=1.0 / (problem.l2 * len(problem.outcome)), max_iter=1000)
        model.fit(Z, problem.outcome)
        return {"seconds": time.perf_counter() - start, "peak": peak_mb(), "iterations": int(model.n_iter_[0])}
    found = solve(problem, solver)
    seconds = time.perf_counter() - start
    c = found.certificate
    return {
        "seconds": seconds,
        "data": stored / 1e6,
        "before": before,
        "peak": peak_mb(),
        "iterations": found.n_iter,
        "status": found.status.name,
        "correlation": c.max_correlation,
        "kkt": c.kkt_residual,
        "curvature": c.min_curvature,
        "loss": c.loss,
        "free": c.loss_unconstrained,
    }


def run(only: str = "", rounds: int = 3, shrink: int = 1) -> dict[str, Any]:
    """Run all cases, or those whose name begins with ``only``, on rows divided by ``shrink``; crossings in rounds."""
    cases = {name: case for name, case in CASES.items() if name.startswith(only)}
    todo = [
        (name, solver)
        for turn in range(rounds)
        for name, (_, _, solvers) in cases.items()
        for solver in solvers
        if turn == 0 or "sqp" in solvers
    ]
    fits: dict[str, dict[str, list[dict[str, Any]]]] = {name: {key: [] for key in cases[name][2]} for name in cases}
    for name, solver in steps(todo, "many features"):
        kind, (n, *columns), _ = cases[name]
        columns = [max(column // shrink, 10) for column in columns] if shrink > 1 else columns
        fits[name][solver].append(in_child(fit, kind, (n // shrink, *columns), solver))
    ratios, bounds = [], []
    for name, found in fits.items():
        large = found["large"][0]
        for other in found.keys() - {"large"}:
            ours, peer = ((solver, [each["seconds"] for each in found[solver]]) for solver in ("large", other))
            package = "setsquare" if other == "sqp" else other
            ratios.append(Ratio.over(name.replace("crossing", "corrected fit,"), ours, peer, package))
        if name in LIMITS:
            bounds.append(Bound(f"large, {name}: largest abs. correlation left", large["correlation"], 1e-8))
            bounds += [
                Bound(f"large, {name}: {key}", large[key], limit, "s" if key == "seconds" else "MB")
                for key, limit in LIMITS[name].items()
            ]
    return plain({"ratios": ratios, "bounds": bounds, "fits": fits, "load": os.getloadavg()[0]})


def show(result: dict[str, Any]) -> None:
    columns = ("case", "solver", "s", "data MB", "peak MB", "iterations", "abs. corr", "KKT", "curvature", "loss")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name, found in result["fits"].items():
        for solver, fits in found.items():
            r = fits[0] | {"seconds": np.median([each["seconds"] for each in fits])}
            cells = [name, solver, f"{r['seconds']:.1f}", f"{r.get('data', 0):.0f}", f"{r['peak']:.0f}"]
            if "status" not in r:
                print(f"| {' | '.join(cells)} | {r['iterations']} | | | | |")
                continue
            cells += [f"{r['iterations']} ({r['status']})", f"{r['correlation']:.0e}", f"{r['kkt']:.0e}"]
            cells += ["" if r["curvature"] is None else f"{r['curvature']:.1e}", f"{r['loss']:.10f}"]
            print(f"| {' | '.join(cells)} |")
    print(f"\nload {result['load']:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main(run, show, QUICK)
