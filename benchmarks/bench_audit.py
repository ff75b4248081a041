"""Time and memory of an audit of a million rows, beside statsmodels' GLM with HC3 in the same run.

    python -m benchmarks.bench_audit

statsmodels returns the effects with HC0 errors under the name of HC3; the audit returns effects with HC3 errors, joint
tests, bounds and a verdict. Memory is the peak of a process of its own, data and imports included.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from typing import Any

import numpy as np
import statsmodels.api as sm
from rich.console import Console
from rich.table import Table

import setsquare as sq
from benchmarks.measure import interleave


def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and ten protected columns: five groups and five numbers."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random((n, 5)) < 0.3, rng.normal(size=(n, 5))]).astype(float)
    eta = -0.5 + X @ rng.normal(size=10) * 0.05 + rng.normal(size=n)
    return 1.0 / (1.0 + np.exp(-eta)), X


def ours(y: np.ndarray, X: np.ndarray) -> Any:
    return sq.audit(y, X, family="binomial")


def theirs(y: np.ndarray, X: np.ndarray) -> Any:
    fit = sm.GLM(y, sm.add_constant(X), family=sm.families.Binomial()).fit(cov_type="HC3")
    return fit.bse, fit.pvalues


def peak(name: str, n: int) -> float:
    """Peak memory of a process that makes one call, in megabytes."""
    code = f"from benchmarks.bench_audit import memory; print(memory({name!r}, {n}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def memory(name: str, n: int) -> float:
    {"ours": ours, "theirs": theirs}[name](*draw(n))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    megabytes = {key: peak(key, options.rows) for key in ("ours", "theirs")}  # a fork inherits its parent's peak
    y, X = draw(options.rows)
    timed = interleave({"setsquare": lambda: ours(y, X), "statsmodels": lambda: theirs(y, X)}, options.rounds)
    table = Table("", "seconds (median)", "quartiles", "peak memory, MB", title=f"{options.rows} rows x 10 columns")
    for name, key in (("setsquare", "ours"), ("statsmodels", "theirs")):
        low, high = timed[name].spread
        table.add_row(name, f"{timed[name].median:.2f}", f"{low:.2f} to {high:.2f}", f"{megabytes[key]:.0f}")
    console = Console()
    console.print(table)
    ratio = timed["statsmodels"].median / timed["setsquare"].median
    console.print(f"data {(y.nbytes + X.nbytes) / 2**20:.0f} MB; statsmodels / setsquare = {ratio:.1f}")


if __name__ == "__main__":
    main()
