"""Times of the comparators: beside R on COMPAS, and Berk's individual fairness as the rows grow.

python -m benchmarks.bench_comparators
"""

from __future__ import annotations

import time
import tracemalloc

import numpy as np

from benchmarks.measure import interleave
from setsquare import datasets, design
from setsquare.comparators import COMPARATORS, available
from setsquare.problem import Problem
from setsquare.solvers import solve

#: Seconds of fairml 0.8 on COMPAS.
R_SECONDS = {"komiyama-sp": 0.83, "komiyama-eo": 2.162, "berk-if": 117.368}
SIZES = (20_000, 100_000, 500_000)


def beside_r() -> None:
    data = datasets.load_compas()
    features = data.table[[column for column in data.features if column not in data.protected]]
    Z, X = (design.learn(table).apply(table).values for table in (features, data.protected_table()))
    calls = {name: lambda name=name: COMPARATORS[name]().fit(Z, data.y, X) for name in available("binomial")}
    print(f"COMPAS, {len(Z)} rows: seconds, median of 5")
    for name, timed in interleave(calls, 5).items():
        r = f"R {R_SECONDS[name]:7.2f}, {R_SECONDS[name] / timed.median:6.0f} times" if name in R_SECONDS else ""
        print(f"  {name:<20} {timed.median:7.3f}  {r}")


def berk_as_the_rows_grow() -> None:
    rng = np.random.default_rng(0)
    print("Berk's individual fairness, continuous outcome and counts, 10 features, 3 protected columns")
    for n in SIZES:
        X = rng.normal(size=(n, 3))
        Z = X @ rng.normal(size=(3, 10)) * 0.3 + rng.normal(size=(n, 10))
        eta = 0.3 * Z[:, 0] + 0.3 * X[:, 0]
        for family, y in (("gaussian", eta + rng.normal(size=n)), ("poisson", rng.poisson(np.exp(eta)).astype(float))):
            start = time.perf_counter()
            model = COMPARATORS["berk-if"](family=family).fit(Z, y, X)
            seconds = time.perf_counter() - start
            start = time.perf_counter()
            solve(Problem(np.hstack([Z, X]), y, family=family))
            ordinary = time.perf_counter() - start
            peak = _peak(family, Z, y, X)
            print(
                f"  {family:<9} n = {n:>7}  {seconds:6.2f} s, {1e6 * seconds / n:5.2f} s a million rows, "
                f"{seconds / ordinary:4.1f} ordinary fits; memory {peak / Z.nbytes:.1f} times the features; "
                f"unfairness {model.fairness_:.9f}"
            )


def _peak(family: str, Z: np.ndarray, y: np.ndarray, X: np.ndarray) -> float:
    tracemalloc.start()
    COMPARATORS["berk-if"](family=family).fit(Z, y, X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(peak)


if __name__ == "__main__":
    beside_r()
    berk_as_the_rows_grow()
