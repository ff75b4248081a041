"""`setsquare audit` on a file of a million rows, beside pandas and statsmodels on the same file.

    python -m benchmarks.bench_audit_csv            # about 2 minutes

Each runs in a process of its own, in turn. Of setsquare the whole process counts, from the start of Python to the exit
code; of the others only `pandas.read_csv`, the dummies and one `statsmodels` GLM, without their imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks.frame import Ratio, main, plain, steps

QUICK = {"rows": 20_000, "rounds": 2}
THEIRS = """
import pandas as pd, statsmodels.api as sm, sys, time
start, cpu = time.perf_counter(), time.process_time()
table = pd.read_csv(sys.argv[1])
print(time.perf_counter() - start, time.process_time() - cpu)
X = pd.get_dummies(table[["sex", "race", "age"]], columns=["sex", "race"], drop_first=True, dtype=float)
sm.GLM(table["score"], sm.add_constant(X), family=sm.families.Binomial()).fit(cov_type="HC3")
print(time.perf_counter() - start, time.process_time() - cpu)
"""


class Cost(NamedTuple):
    """Seconds, seconds of all cores, and peak memory in megabytes."""

    seconds: float
    cpu: float
    memory: float


def write(folder: Path, n: int) -> tuple[Path, Path]:
    """Scores, three protected columns, and four other columns, as CSV and Parquet."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "id": np.arange(n),
            "sex": rng.choice(["female", "male"], n),
            "race": rng.choice(["Asian", "Black", "Other", "White"], n, p=[0.15, 0.2, 0.05, 0.6]),
            "age": rng.integers(18, 90, n),
            "x": rng.normal(size=n),
            "note": rng.choice(["first visit", "follow-up", "emergency"], n),
            "y": rng.integers(2, size=n),
        }
    )
    eta = -0.5 + 0.1 * (table["sex"] == "male") + 0.005 * (table["age"] - 50) + table["x"]
    table["score"] = 1.0 / (1.0 + np.exp(-eta))
    table.to_csv(folder / "table.csv", index=False)
    table.to_parquet(folder / "table.parquet")
    return folder / "table.csv", folder / "table.parquet"


def launch(*command: str) -> tuple[Cost, str]:
    """What a process took, and what it printed."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(time.perf_counter() - start, cpu, usage.ru_maxrss / 1024.0), printed


def measure(n: int, rounds: int) -> dict[str, list[Cost]]:
    """Every process once a round, so that a busy moment of the machine hits all of them alike."""
    audit = ("-m", "setsquare", "audit", "--predictions", "score", "--protected", "sex,race,age")
    costs: dict[str, list[Cost]] = {"audit, CSV": [], "audit, Parquet": [], "read_csv": [], "read_csv + GLM": []}
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), n)
        for _ in steps(range(rounds), "audits of files"):
            for name, path in zip(costs, paths, strict=False):
                costs[name].append(launch(*audit, str(path))[0])
            whole, printed = launch("-c", THEIRS, str(paths[0]))
            read, cpu_read, both, cpu_both = map(float, printed.split())
            costs["read_csv"].append(Cost(read, cpu_read, np.nan))
            costs["read_csv + GLM"].append(Cost(both, cpu_both, whole.memory))
    return costs


def run(rows: int = 1_000_000, rounds: int = 5) -> dict[str, Any]:
    costs = measure(rows, rounds)
    seconds = {name: [cost.seconds for cost in each] for name, each in costs.items()}
    cpu = {name: [cost.cpu for cost in each] for name, each in costs.items()}
    peer, package = "read_csv + GLM", "statsmodels"
    what = "command line audit, {}, " + f"{rows} rows x 8 columns"
    ratios = [
        Ratio.over(what.format("CSV"), ("audit", seconds["audit, CSV"]), (peer, seconds[peer]), package, 2.0),
        Ratio.over(what.format("CSV"), ("audit", cpu["audit, CSV"]), (peer, cpu[peer]), package, 2.0, "processor time"),
        Ratio.over(what.format("Parquet"), ("audit", seconds["audit, Parquet"]), (peer, seconds[peer]), package),
    ]
    medians = {name: np.median(each, axis=0) for name, each in costs.items()}
    return plain({"ratios": ratios, "rows": rows, "rounds": rounds, "medians": medians, "seconds": seconds})


def show(result: dict[str, Any]) -> None:
    title = f"{result['rows']} rows, medians of {result['rounds']} rounds"
    table = Table("", "seconds", "CPU seconds", "peak MB", title=title)
    for name, (seconds, cpu, memory) in result["medians"].items():
        table.add_row(name, f"{seconds:.2f}", f"{cpu:.2f}", "" if memory is None else f"{memory:.0f}")
    console = Console()
    console.print(table)
    time_, work, _ = (ratio["median"] for ratio in result["ratios"])
    console.print(f"audit / (read_csv + GLM): {time_:.2f} in time, {work:.2f} in CPU time; at most 2 is the aim")


if __name__ == "__main__":
    main(run, show, QUICK)
