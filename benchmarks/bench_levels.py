"""Protected columns of thousands of levels, and tables with thousands of columns: CPU seconds and peak memory.

    python -m benchmarks.bench_levels               # about 1 minute

An audit of such columns is refused before they are coded; the linear correction looks their effects up by level; a fit
beside few features is refused. Each runs once in a process of its own, after a small call that loads the libraries.
Memory is what numpy and Python hold at most, the drawn rows included.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import setsquare as sq
from benchmarks.frame import Bound, main, plain, steps
from benchmarks.measure import in_child, peak_bytes

QUICK = {"rows": 5000, "levels": 500}
#: Largest number of seconds for an answer or a refusal.
SECONDS = 10.0


def rows_of(n: int, levels: int) -> tuple[np.ndarray, np.ndarray, pd.DataFrame]:
    """Five features, predictions, and one protected column of so many levels."""
    rng = np.random.default_rng(0)
    site = rng.permutation(np.arange(n) % levels)
    Z = rng.normal(size=(n, 5)) + rng.normal(size=levels)[site][:, None]
    return Z, rng.random(n), pd.DataFrame({"site": pd.Categorical(site.astype(str))})


def audit(n: int, levels: int) -> None:
    _, y, X = rows_of(n, levels)
    sq.audit(y, X)


def correct(n: int, levels: int) -> None:
    Z, _, X = rows_of(n, levels)
    sq.LinearOrthogonalizer().fit_transform(Z, protected=X)


def fit(n: int, levels: int) -> None:
    Z, y, X = rows_of(n, levels)
    sq.OrthogonalGLMClassifier().fit(Z, (y < 0.5).astype(int), protected=X)


def audit_wide(n: int, levels: int) -> None:
    rng = np.random.default_rng(0)
    sq.audit(rng.random(60), pd.DataFrame(np.broadcast_to(rng.normal(size=(60, 1)), (60, levels))))


CALLS: dict[str, Callable[[int, int], None]] = {
    "audit": audit,
    "linear correction": correct,
    "fit beside 5 features": fit,
    "audit of 60 rows with as many columns": audit_wide,
}


def look(name: str, n: int, levels: int) -> dict[str, Any]:
    """CPU seconds, bytes and the outcome of a call, without the drawing of its rows."""
    warnings.simplefilter("ignore")
    call, refusal = CALLS[name], ""

    def run(size: int, count: int) -> None:
        nonlocal refusal
        try:
            call(size, count)
        except sq.errors.InputError as error:
            refusal = str(error)

    run(1000, 20)
    refusal, own = "", time.process_time()
    rows_of(n, levels)
    start = time.process_time()
    run(n, levels)
    seconds = time.process_time() - start - (start - own)
    return {"seconds": max(seconds, 0.0), "bytes": peak_bytes(lambda: run(n, levels)), "refusal": refusal}


def run(rows: int = 30_000, levels: int = 3000) -> dict[str, Any]:
    found = {name: in_child(look, name, rows, levels) for name in steps(CALLS, "levels")}
    what = f"{levels} levels, {rows} rows"
    bounds = [Bound(f"{name}, {what}: CPU seconds", each["seconds"], SECONDS, "s") for name, each in found.items()]
    return plain({"ratios": [], "bounds": bounds, "rows": rows, "levels": levels, "found": found})


def show(result: dict[str, Any]) -> None:
    print(f"{result['levels']} levels, {result['rows']} rows\n")
    print("| call | CPU seconds | MB | outcome |\n" + "|---" * 4 + "|")
    for name, each in result["found"].items():
        print(f"| {name} | {each['seconds']:.2f} | {each['bytes'] / 1e6:.0f} | {each['refusal'] or 'answered'} |")


if __name__ == "__main__":
    main(run, show, QUICK)
