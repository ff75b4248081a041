"""Interleaved timings and peak memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

#: Seconds before each call: threads of the one before go on spinning for a while (OpenBLAS's for 0.105 s), and take a
#: core from the next.
PAUSE = 0.15
#: Calls that take up to so many seconds are made twice, and the second counts: the threads of their own library have
#: fallen asleep as well, and waking them takes a virtual machine up to 11 ms.
SHORT = 0.25
#: Makes a process keep what it frees: fresh pages take a virtual machine longer than all the work, now and then.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of each round (empty when it failed), what the call returned, and why it failed."""

    seconds: tuple[float, ...]
    result: Any
    failure: str | None

    @property
    def median(self) -> float:
        return float(np.median(self.seconds)) if self.seconds else float("nan")

    @property
    def spread(self) -> tuple[float, float]:
        """Quartiles."""
        low, high = np.percentile(self.seconds, [25, 75]) if self.seconds else (np.nan, np.nan)
        return float(low), float(high)


def interleave(
    calls: Mapping[str, Callable[[], Any]], rounds: int, tick: Callable[[], None] = lambda: None
) -> dict[str, Timed]:
    """Time every call once a round, so that a busy moment of the machine hits all of them alike.

    Threads of the other calls are asleep, and those of its own awake if it is short, as in a loop of this call alone.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    results: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for _ in range(rounds):
        for name, call in calls.items():
            if name in failures:
                continue
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                time.sleep(PAUSE)
                try:
                    if seconds[name] and seconds[name][-1] <= SHORT:
                        call()
                    start = time.perf_counter()
                    results[name] = call()
                except Exception as error:
                    failures[name] = f"{type(error).__name__}: {error}"
                    continue
                elapsed = time.perf_counter() - start
            unconverged = [
                w for w in caught if "onverge" in str(w.message) or "ConvergenceWarning" in w.category.__name__
            ]
            if unconverged:
                failures[name] = f"did not converge in {elapsed:.2f} s"
                continue
            seconds[name].append(elapsed)
        tick()
    return {
        name: Timed(() if name in failures else tuple(seconds[name]), results.get(name), failures.get(name))
        for name in calls
    }


def pace(seconds: float = 1.0) -> float:
    """Median time of a short loop of plain Python, relative to its fastest: near 1 on a machine of one's own.

    On a virtual machine, other guests of the same host can share its cores. Neither the load nor stolen time shows
    this. On the one that most figures are from, the loop takes once or 1.9 times its fastest time, in turns of
    milliseconds to seconds. A symmetric product then takes 1.5 times as long with one thread, and two to three times
    with two threads.
    """
    times, end = list[float](), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        sum(range(5000))
        times.append(time.perf_counter() - start)
    return float(np.median(times) / min(times))


def peak_bytes(call: Callable[[], Any]) -> int:
    """Largest memory that numpy and Python held at once during the call, above what was there before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def in_child(function: Callable[..., Any], *arguments: Any, **environment: str | None) -> Any:
    """Call a function of a benchmark in a process of its own; arguments and what it returns are plain data."""
    module = sys.modules[function.__module__]
    name = module.__spec__.name if module.__spec__ else function.__module__  # a script is called __main__
    command = [sys.executable, "-m", "benchmarks.measure", name, function.__qualname__, json.dumps(arguments)]
    known = {key: value for key, value in (os.environ | environment).items() if value is not None}
    done = subprocess.run(command, env=known, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_mb() -> float:
    """Largest memory of this process so far; the system's other count also has that of the parent before the start."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def forget_peak() -> None:
    """Let :func:`peak_mb` count from now on, so that the making of data is not counted; on Linux alone."""
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5")


if __name__ == "__main__":
    home, name, arguments = sys.argv[1:]
    print(json.dumps(getattr(import_module(home), name)(*json.loads(arguments))))
