"""Small workloads of fixed seeds, for a comparison of two commits: each is set up once and called many times.

They use public names alone. One that a commit does not have yet is named, and left out of the comparison.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Workload = Callable[[], Any]


def draw(n: int, q: int, p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features that know the protected columns, a linear score, protected columns."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(n) < 0.3, rng.normal(size=(n, p - 1))]).astype(float)
    Z = 0.3 * X @ rng.normal(size=(p, q)) + rng.normal(size=(n, q))
    return Z, Z @ rng.normal(size=q) / np.sqrt(q) + 0.3 * X[:, 0], X


def binomial_fit() -> Workload:
    import setsquare as sq

    Z, eta, X = draw(20_000, 30, 4)
    problem = sq.Problem(
        Z, (np.random.default_rng(1).logistic(size=len(eta)) < eta).astype(float), X, family="binomial"
    )
    return lambda: sq.solve(problem)


def poisson_fit() -> Workload:
    import setsquare as sq

    Z, eta, X = draw(20_000, 20, 4)
    problem = sq.Problem(Z, np.random.default_rng(1).poisson(np.exp(0.5 * eta)).astype(float), X, family="poisson")
    return lambda: sq.solve(problem)


def many_features() -> Workload:
    import setsquare as sq

    Z, eta, X = draw(4000, 400, 3)
    y = (np.random.default_rng(1).logistic(size=len(eta)) < eta).astype(float)
    problem = sq.Problem(Z.astype(np.float32), y, X, family="binomial")
    return lambda: sq.solve(problem, "large")


def sparse_fit() -> Workload:
    from scipy import sparse

    import setsquare as sq

    rng = np.random.default_rng(0)
    n, levels = 20_000, 20
    codes = rng.integers(levels, size=(n, 5)) + levels * np.arange(5)
    Z = sparse.csr_array((np.ones(codes.size), codes.ravel(), np.arange(0, codes.size + 1, 5)), shape=(n, 5 * levels))
    X = np.column_stack([codes[:, 0] % 2, rng.normal(size=n)]).astype(float)
    signal = Z @ rng.normal(size=Z.shape[1]) * 0.3 + 0.3 * X[:, 0]
    problem = sq.Problem(Z, (rng.logistic(size=n) < signal).astype(float), X, family="binomial")
    return lambda: sq.solve(problem)


def linear_correction() -> Workload:
    import setsquare as sq

    Z, _, X = draw(100_000, 30, 4)
    return lambda: sq.LinearOrthogonalizer().fit(Z, protected=X).transform(Z, protected=X)


def projection() -> Workload:
    from setsquare.projection import GeneralizedProjector

    _, eta, X = draw(100_000, 5, 6)
    return lambda: GeneralizedProjector.fit(eta, X, "sigmoid").predict(eta, X)


def audit() -> Workload:
    import setsquare as sq

    _, eta, X = draw(50_000, 5, 6)
    probability = 1.0 / (1.0 + np.exp(-eta))
    return lambda: sq.audit(probability, X, family="binomial")


def stream() -> Workload:
    import pandas as pd

    import setsquare as sq

    Z, eta, X = draw(20_000, 10, 2)
    folder = tempfile.TemporaryDirectory()
    columns = {f"z{j}": Z[:, j] for j in range(10)} | {"x0": X[:, 0], "x1": X[:, 1]}
    y = (np.random.default_rng(1).logistic(size=len(eta)) < eta).astype(int)
    pd.DataFrame(columns | {"y": y}).to_parquet(Path(folder.name) / "rows.parquet")

    def fit(folder: Any = folder) -> Any:  # the files stay as long as the workload does
        return sq.OrthogonalGLMClassifier(protected=["x0", "x1"]).fit(sq.Stream(f"{folder.name}/*.parquet"), "y")

    return fit


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "corrected binomial fit, 20 000 x 30": binomial_fit,
    "corrected Poisson fit, 20 000 x 20": poisson_fit,
    "corrected fit by large, 4000 x 400": many_features,
    "corrected fit, sparse 20 000 x 100": sparse_fit,
    "corrected fit to Parquet, 20 000 x 10": stream,
    "linear correction, 100 000 x 30": linear_correction,
    "generalised projection, 100 000 x 6": projection,
    "audit, 50 000 x 6": audit,
}


def serve() -> None:
    """Say where setsquare is from; then read names of workloads, and answer each with seconds or with the reason."""
    import setsquare

    print(setsquare.__file__, flush=True)
    ready: dict[str, Workload] = {}
    for line in sys.stdin:
        name = line.strip()
        try:
            if name not in ready:
                ready[name] = WORKLOADS[name]()
                ready[name]()  # imports and caches
            start = time.perf_counter()
            ready[name]()
            print(time.perf_counter() - start, flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}".splitlines()[0], flush=True)


if __name__ == "__main__":
    serve()
