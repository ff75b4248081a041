"""`setsquare audit` on a file of a million rows, beside pandas and statsmodels on the same file.

    python -m benchmarks.bench_audit_csv            # about 2 minutes

Each runs in a process of its own, in turn. Of setsquare the whole process counts, from the start of Python to the exit
code; of the others only `pandas.read_csv`, the dummies and one `statsmodels` GLM, without their imports. All have
compiled modules, as an installed package has: a first round, which does not count, makes them. One audit is asked for
selection rates of all groups as well, with intervals. Sex, race and age in years have 576 different rows, which an
audit sums up first (`auditing/cells.py`); the table without such repetitions has an age in days.

The fastest round of each counts. The peer needs 1 GB of fresh memory and took 2.1 to 7.6 seconds on one idle virtual
machine, as memory was at hand or not; medians would compare that.
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
#: Audits with the limits of their ratios.
AUDITS = {
    "audit, CSV": 1.0,
    "audit, Parquet": 1.0,
    "audit, CSV, groups and intervals": 1.0,
    "audit, CSV, age in days": None,
}
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
            "days": rng.integers(18 * 365, 90 * 365, n) + 0.5,
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


def launch(compiled: Path, *command: str) -> tuple[Cost, str]:
    """What a process took that keeps compiled modules in a folder, and what it printed."""
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    surroundings |= {"PYTHONPYCACHEPREFIX": str(compiled)}
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "env": surroundings}
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, *command], **pipe) as process:
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
    audit = ("-m", "setsquare", "audit", "--predictions", "score")
    plain_columns, many = ("--protected", "sex,race,age"), ("--protected", "sex,race,days")
    costs: dict[str, list[Cost]] = {name: [] for name in (*AUDITS, "read_csv", "read_csv + GLM")}
    with tempfile.TemporaryDirectory() as folder:
        compiled, (csv, parquet) = Path(folder) / "compiled", write(Path(folder), n)
        asked = [
            (*plain_columns, str(csv)),
            (*plain_columns, str(parquet)),
            (*plain_columns, "--threshold", "0.5", str(csv)),
            (*many, str(csv)),
        ]
        for turn in steps(range(rounds + 1), "audits of files"):
            for name, options in zip(AUDITS, asked, strict=True):
                costs[name].append(launch(compiled, *audit, *options)[0])
            whole, printed = launch(compiled, "-c", THEIRS, str(csv))
            read, cpu_read, both, cpu_both = map(float, printed.split())
            costs["read_csv"].append(Cost(read, cpu_read, np.nan))
            costs["read_csv + GLM"].append(Cost(both, cpu_both, whole.memory))
            if not turn:
                costs = {name: [] for name in costs}
    return costs


def run(rows: int = 1_000_000, rounds: int = 5) -> dict[str, Any]:
    costs = measure(rows, rounds)
    seconds = {name: [cost.seconds for cost in each] for name, each in costs.items()}
    cpu = {name: [cost.cpu for cost in each] for name, each in costs.items()}
    peer, package = "read_csv + GLM", "statsmodels"
    what = "command line audit, {}, " + f"{rows} rows x 9 columns"
    ratios = [
        Ratio.over(
            what.format(kind), ("audit", [min(each[f"audit, {kind}"])]), (peer, [min(each[peer])]), package, limit, of
        )
        for kind, limit in ((name.removeprefix("audit, "), limit) for name, limit in AUDITS.items())
        for of, each in (("time", seconds), ("processor time", cpu))
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
    for ratio in result["ratios"]:
        asked = "" if ratio["limit"] is None else f"; at most {ratio['limit']:g} is the aim"
        console.print(f"{ratio['what']}: {ratio['median']:.2f} of {ratio['peer']} in {ratio['of']}{asked}")


if __name__ == "__main__":
    main(run, show, QUICK)
