"""Files of the package that each of a few calls passes, by tracing: ``python -m benchmarks.walks [--files]``.

A file is *passed* if one of its functions runs. It is *entered again* if another file calls it after it has itself
called a file that had not been passed before: then a reader has to go back to it. Where the same file calls the same
function of it as before, this is a loop (the next model takes the road of the first), and is counted apart. Imports are
done before. *Lines* are those of the functions that run, with their docstrings: what a reader of the whole call reads.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv, parquet
from sklearn.linear_model import LogisticRegression

import setsquare as sq
from setsquare.cli.arguments import main

ROOT = str(Path(sq.__file__).parent) + "/"
#: Packages in which no file should be entered again after it has handed on.
ONE_WAY = ("auditing", "document", "report", "cli")


class Walk:
    """Files in order of first entry, and how often each is entered again after it has handed on, or in a loop."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.again: dict[str, int] = {}
        self.looped: dict[str, int] = {}
        self._seen: set[tuple[str, str, str]] = set()
        self._functions: dict[CodeType, int] = {}
        self._handed_on: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call, as a profile function."""
        if event != "call" or frame.f_code.co_name.startswith("<") or not frame.f_code.co_filename.startswith(ROOT):
            return
        file = frame.f_code.co_filename.removeprefix(ROOT)
        caller = _caller(frame.f_back)
        if frame.f_code not in self._functions:
            last = max(line for *_, line in frame.f_code.co_lines() if line is not None)
            self._functions[frame.f_code] = last - frame.f_code.co_firstlineno + 1
        if caller == file:
            return
        road = (caller, file, frame.f_code.co_name)
        if file in self._handed_on:
            counts = self.looped if road in self._seen else self.again
            counts[file] = counts.get(file, 0) + 1
        self._seen.add(road)
        if file not in self.files:
            self.files.append(file)
            if caller:
                self._handed_on.add(caller)

    @property
    def n_lines(self) -> int:
        """Lines of the functions that ran."""
        return sum(self._functions.values())


def _caller(frame: FrameType | None) -> str:
    """The nearest file of the package below a frame."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOT):
            return frame.f_code.co_filename.removeprefix(ROOT)
        frame = frame.f_back
    return ""


def trace(call: Callable[[], Any]) -> Walk:
    """Run a call twice, and trace the second run, in which nothing is imported."""
    call()
    walk = Walk()
    sys.setprofile(walk)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def _command(*arguments: str) -> None:
    with mock.patch.object(sys, "argv", ["setsquare", *arguments]), redirect_stdout(StringIO()):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"setsquare {' '.join(arguments)} ended with {end.code}") from None


def calls(folder: Path) -> dict[str, Callable[[], Any]]:
    """The calls that are traced, on the same small table."""
    rng = np.random.default_rng(0)
    n = 400
    sex, age, z = rng.choice(["f", "m"], n), rng.normal(50.0, 10.0, n), rng.normal(size=(n, 3))
    score = 1.0 / (1.0 + np.exp(-z[:, 0] - 0.3 * (sex == "m")))
    y = (rng.random(n) < score).astype(np.int64)
    table = pa.table({"sex": sex, "age": age, "a": z[:, 0], "b": z[:, 1], "c": z[:, 2], "score": score, "y": y})
    file, parts, page = str(folder / "rows.csv"), str(folder / "rows.parquet"), str(folder / "page.html")
    csv.write_csv(table, file)
    parquet.write_table(table, parts)
    protected, features = table.select(["sex", "age"]), table.select(["sex", "age", "a", "b", "c"])
    stream = sq.Stream(parts)
    columns = ("--protected", "sex,age")
    model = ("--model", str(folder / "model.setsquare"), "--features", "a,b,c")

    def estimator() -> Any:
        return sq.OrthogonalGLMClassifier(protected=["sex", "age"])

    rows = torch.from_numpy(z).float(), torch.from_numpy((sex == "m")[:, None]).float()

    def network() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        blinded = sq.nn.blind(model, layers=["1"], n_protected=1)
        return sq.nn.fit_layer(blinded, [rows])

    return {
        "fit, predict_proba": lambda: estimator().fit(features, y).predict_proba(features),
        "fit of a Parquet file": lambda: estimator().fit(stream[["sex", "age", "a", "b", "c", "y"]], "y"),
        "sq.audit": lambda: sq.audit(score, protected),
        "sq.audit_model": lambda: sq.audit_model(LogisticRegression(), z, y, protected),
        "sq.compare": lambda: sq.compare({"one": score, "two": 1.0 - score}, y, protected),
        "setsquare audit": lambda: _command("audit", file, "--predictions", "score", *columns),
        "setsquare audit --html": lambda: _command("audit", file, "--predictions", "score", *columns, "--html", page),
        "setsquare correct": lambda: _command("correct", file, "--outcome", "y", *columns, *model),
        "blind, fit_layer": network,
    }


def show() -> None:
    """Print the walks; with ``--files`` every file of each."""
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        walks = {name: trace(call) for name, call in calls(Path(folder)).items()}
    print(f"{'walk':26} files  lines  in a loop  entered again, in {', '.join(ONE_WAY)}")
    for name, walk in walks.items():
        again, looped = (
            [file for file in counts if file.split("/")[0] in ONE_WAY] for counts in (walk.again, walk.looped)
        )
        print(f"{name:26} {len(walk.files):5} {walk.n_lines:6} {len(looped):10}  {len(again)}: {', '.join(again)}")
        if "--files" in sys.argv:
            print("\n".join(f"    {j:2} {file}" for j, file in enumerate(walk.files, start=1)))


if __name__ == "__main__":
    show()
