"""Audit of a million rows, beside statsmodels' GLM with HC3: time and memory.

    python -m benchmarks.bench_audit                # about 1 minute

statsmodels returns the effects with HC0 errors under the name of HC3; the audit returns effects with HC3 errors, joint
tests, bounds and a verdict. Memory is the peak of a process of its own, data and imports included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import statsmodels.api as sm
from rich.console import Console
from rich.table import Table

import setsquare as sq
from benchmarks.frame import Ratio, main, plain
from benchmarks.measure import in_child, interleave, peak_mb

QUICK = {"rows": 20_000, "rounds": 2}


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


METHODS = {"setsquare": ours, "statsmodels": theirs}


def memory(name: str, n: int) -> float:
    METHODS[name](*draw(n))
    return peak_mb()


def run(rows: int = 1_000_000, rounds: int = 5) -> dict[str, Any]:
    megabytes = {name: in_child(memory, name, rows) for name in METHODS}
    y, X = draw(rows)
    for call in METHODS.values():
        call(y[:1000], X[:1000])  # what is imported on the way is no part of the work
    timed = interleave({name: lambda call=call: call(y, X) for name, call in METHODS.items()}, rounds)
    what = f"audit, {rows} rows x 10 protected columns"
    peaks = [(name, [megabytes[name]]) for name in METHODS]
    return plain(
        {
            "ratios": [
                Ratio.over(what, *timed.items()),
                Ratio.over(what, *peaks, of="memory"),
            ],
            "rows": rows,
            "data": (y.nbytes + X.nbytes) / 1e6,
            "seconds": {name: each.seconds for name, each in timed.items()},
            "megabytes": megabytes,
        }
    )


def show(result: dict[str, Any]) -> None:
    table = Table("", "seconds (median)", "quartiles", "peak memory, MB", title=f"{result['rows']} rows x 10 columns")
    for name, seconds in result["seconds"].items():
        low, median, high = np.percentile(seconds, [25, 50, 75])
        table.add_row(name, f"{median:.2f}", f"{low:.2f} to {high:.2f}", f"{result['megabytes'][name]:.0f}")
    console = Console()
    console.print(table)
    console.print(f"data {result['data']:.0f} MB; setsquare / statsmodels = {result['ratios'][0]['median']:.2f}")


if __name__ == "__main__":
    main(run, show, QUICK)
