"""Damaged tables, resealed model files, formulas and command lines: each case ends in an answer or in one sentence.

    python -m benchmarks.fuzz --seconds 300
    python -m benchmarks.fuzz --target models --first 1234 --cases 1    # one case again

A case is a target and a seed, so that every finding can be repeated. Cases run in a child process with limited memory:
a crash, a hang, a traceback or an exit code other than 0, 1 and 2 is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import feather, parquet

#: Longest CPU time and longest time of a case in seconds, and largest address space in bytes.
SLOW, HANG, MEMORY = 60, 900, 6 << 30
FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
NAMES = ("sex", "age", "score", "x", "y")
ODD_CELLS = ("", "NaN", "inf", "-1e308", "1e200", "=1+1", '"', "\0", "é", "1,5", "9" * 400, "true", " ", "2026-01-01")
ODD_VALUES: tuple[Any, ...] = (None, True, -1, 0, 10**30, 1e308, float("nan"), "", "~ x", "a" * 10_000, [], {}, [[]])
PIECES = ("age", "sex", "race", "`my col`", "I(", "(", ")", "+", "*", ":", "**", "-", "/", ".", ",", "2", "99", "0")
PIECES += ("bs(", "df=3", "np.log(", "C(", "poly(", "'a'", '"', "`", "{", "}", "~", "|", "[0]", "%in%", "lambda: 0")
PIECES += ("__import__('os')",)
WORDS = ("--predictions", "--protected", "--outcome", "--model", "--json", "--html", "--seed", "--folds", "--l2")
WORDS += ("--family", "--confidence", "--min-group", "--threshold", "--quiet", "--missing", "--reference")
WORDS += ("--group-cells", "--standard", "--basis", "--budget", "--given", "--method", "--orthogonal-on", "--keep")
WORDS += (
    "--decisions",
    "--cluster",
    "--weight",
    "--positive",
    "--write-predictions",
    "--features",
    "--unseen",
    "--relax",
)
WORDS += ("--max-correlation", "--fail-on-leak", "--raw-text", "--nothing")
VALUES = ("score", "sex", "age", "x", "y", "-1", "0", "1e999", "nan", "drop", "out", "m", "table", "", "=", "a,b")
VALUES += ("\n", "é", "10" * 40, "spline", "cells", "new-rows", "linear", "0.5", "level", "outcome", "F", "box", "3")


def rows(rng: np.random.Generator) -> pd.DataFrame:
    """A small ordinary table."""
    n = int(rng.integers(20, 80))
    table = pd.DataFrame({"sex": rng.choice(["F", "M"], n), "age": rng.integers(20, 60, n), "score": rng.random(n)})
    return table.assign(x=rng.normal(size=n), y=rng.integers(2, size=n))


def command(*words: str) -> str:
    """Run the command line; anything but an answer or a sentence is a finding."""
    from setsquare.cli.arguments import run

    sys.argv = ["setsquare", *words]
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()  # predictions are written as bytes
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run()
    said = err.getvalue()
    if code not in (0, 1, 2) or "Traceback" in said or (code == 2 and said.count("\n") != 1):
        return f"exit code {code}: {said[-600:]}"
    return ""


def tables(rng: np.random.Generator) -> str:
    """A damaged table."""
    table, kind = rows(rng), int(rng.integers(4))
    if kind < 2:
        cells = table.astype(object).to_numpy()
        for _ in range(int(rng.integers(1, 8))):
            cells[rng.integers(len(cells)), rng.integers(5)] = str(rng.choice(ODD_CELLS))
        content = bytearray("\n".join([",".join(NAMES), *(",".join(map(str, row)) for row in cells)]).encode())
    elif kind == 2:
        sink = io.BytesIO()
        parquet.write_table(pa.Table.from_pandas(table), sink)
        content = bytearray(sink.getvalue())
    else:
        sink = io.BytesIO()
        feather.write_feather(table, sink, compression=str(rng.choice(["lz4", "uncompressed"])))
        content = bytearray(sink.getvalue())
    for _ in range(int(rng.integers(0, 6)) if kind else 0):
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
    Path("table").write_bytes(content[: int(rng.integers(len(content)))] if rng.random() < 0.1 else content)
    if rng.random() < 0.3:
        return command("correct", "table", "--outcome", "y", "--protected", "sex", "--model", "m", "--quiet")
    return command("audit", "table", "--predictions", "score", "--protected", "sex,age", "--quiet")


def models(rng: np.random.Generator) -> str:
    """A saved model with other values in a few places, sealed again."""
    from setsquare.storage.container import pack, unpack

    known = [*sorted(FIXTURES.glob("*.setsquare")), *sorted(Path().glob("formula*.setsquare"))]
    tree = unpack(known[int(rng.integers(len(known)))].read_bytes())
    for _ in range(int(rng.integers(1, 4))):
        node: Any = tree["model"]
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = keys[int(rng.integers(len(keys)))]
            if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
                node = node[key]
                continue
            value = node[key]
            if isinstance(value, np.ndarray) and value.size and rng.random() < 0.7:
                value = value.copy()
                value.flat[int(rng.integers(value.size))] = rng.choice([np.nan, np.inf, 1e300, 0.0, -1.0])
                node[key] = value if rng.random() < 0.7 else value.reshape(-1)[1:]
            elif isinstance(node, dict) and rng.random() < 0.2:
                del node[key]
            else:
                node[key] = copy.deepcopy(ODD_VALUES[int(rng.integers(len(ODD_VALUES)))])
            break
    Path("model").write_bytes(pack(tree))
    return command("apply", "rows.csv", "--model", "model", "--write-predictions", "out.csv", "--quiet")


def save_formulas() -> None:
    """Save models with formulas, to be damaged."""
    import setsquare as sq
    from setsquare.estimators.unconstrained import PlainGLMRegressor

    rng, n = np.random.default_rng(0), 300
    table = pd.DataFrame(rng.normal(size=(n, 5)), columns=[f"x{j}" for j in range(5)])
    table = table.assign(sex=rng.choice(["female", "male"], n), race=rng.choice(["a", "b", "ü"], n))
    text = "~ sex * C(race, contr.sum) + poly(x1, 2):sex + scale(log(x0 ** 2 + 1))"
    around = sq.PredictionOrthogonalizer(PlainGLMRegressor("poisson"), protected=text)
    sq.save(around.fit(table, rng.poisson(1.0, n).astype(float)), "formula-prediction.setsquare")
    sq.save(sq.LinearOrthogonalizer(text).fit(table), "formula-linear.setsquare")


def formulas(rng: np.random.Generator) -> str:
    """A random formula."""
    from setsquare import tables as reading
    from setsquare.errors import SetsquareError

    text = "~ " + " ".join(rng.choice(PIECES, int(rng.integers(1, 9))))
    n = 40
    table = pd.DataFrame({"age": rng.uniform(20, 80, n), "my col": rng.normal(size=n)})
    try:
        reading.learn(table.assign(sex=rng.choice(["f", "m"], n), race=rng.choice(["a", "b"], n)), text)
    except SetsquareError as error:
        return "" if "\n" not in str(error) and len(str(error)) < 1000 else f"{text!r}: {str(error)[:300]}"
    except Exception as error:
        return f"{text!r}: {type(error).__name__}: {error}"
    return ""


def commands(rng: np.random.Generator) -> str:
    """A random command line."""
    name = str(rng.choice(["audit", "compare", "correct", "apply", "monitor", "tradeoff", "data", "demo2", ""]))
    words = [name, "good.csv"]
    if rng.random() < 0.8:  # most are a whole command with something odd in it
        words += ["--protected", "sex"] if name != "apply" else ["--model", "good.setsquare"]
        words += ["--predictions", "score"] if name in ("audit", "compare", "monitor") else []
        words += ["--outcome", "y"] if name in ("compare", "correct", "tradeoff") else []
        words += ["--model", "m"] if name == "correct" else []
    for _ in range(int(rng.integers(0, 3))):
        words += [str(rng.choice(WORDS)), str(rng.choice(VALUES))]
    return command(*words)


TARGETS = {"tables": tables, "models": models, "formulas": formulas, "commands": commands}


def work(target: str, first: int, cases: int) -> None:
    """Run cases in this process, naming each before it starts."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        rows(np.random.default_rng(0)).to_csv("good.csv", index=False)
        pd.DataFrame(json.loads((FIXTURES / "model-v1.json").read_text())["rows"]).to_csv("rows.csv", index=False)
        if target == "models":
            save_formulas()
        if target == "commands":
            command(
                "correct", "good.csv", "--protected", "sex", "--outcome", "y", "--model", "good.setsquare", "--quiet"
            )
        for seed in range(first, first + cases):
            print("case", seed, flush=True)
            # The signal ends the process. A busy machine is no hang, so the limit of a clock on the wall is far away.
            signal.setitimer(signal.ITIMER_PROF, SLOW)
            faulthandler.dump_traceback_later(HANG, exit=True)
            found = TARGETS[target](np.random.default_rng(seed))
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_PROF, 0)
            if found:
                print("finding", target, seed, found.replace("\n", " | "), flush=True)
        os.chdir("/")


def batch(target: str, first: int, cases: int) -> tuple[int, list[str]]:
    """Run cases in a child; how many were run, and what was found."""
    words = ["--target", target, "--first", str(first), "--cases", str(cases), "--child"]
    child = [sys.executable, "-m", "benchmarks.fuzz", *words]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    started = [int(line.split()[1]) for line in lines if line.startswith("case ")]
    found = [line for line in lines if line.startswith("finding ")]
    if done.returncode:
        last = started[-1] if started else first
        found.append(f"finding {target} {last} the process ended with {done.returncode}: {done.stderr[-600:]}")
    return max(len(started), 1), found


def main() -> int:
    """Run batches of all targets in turn until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--child", action="store_true")
    asked = parser.parse_args()
    if asked.child:
        work(asked.target, asked.first, asked.cases)
        return 0
    targets = [asked.target] if asked.target else list(TARGETS)
    counts, findings, end = dict.fromkeys(targets, 0), list[str](), time.monotonic() + asked.seconds
    while time.monotonic() < end:
        for target in targets:
            n, found = batch(target, asked.first + counts[target], asked.cases)
            counts[target] += n
            findings += found
        if asked.cases == 1:
            break
    print("Cases: " + ", ".join(f"{target} {n}" for target, n in counts.items()) + f"; findings: {len(findings)}.")
    for line in findings:
        print(line)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
