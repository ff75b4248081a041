"""Cost of one `Orthogonalize` in a training step of the colour-MNIST network, beside the network without it.

    python -m benchmarks.bench_layer

Batch 128, conv 3->8, ReLU, [layer], conv 8->16, ReLU, max-pool, dense 64, 1; two protected columns; one thread. CPU
time of the process stands beside wall time, because other jobs share the machine; "no layer" is timed twice, to show
the noise. Each round times every network once, and the overhead is the median of the rounds' ratios to "no layer".
The C library's allocator gives memory back to the system between steps and takes it anew, at a cost for each page that
depends on what else was allocated: here it is told to keep it, as the allocators do that are advised for torch on
processors. `--default-allocator` leaves it as it is.
Memory is what one forward and backward pass of the layer alone adds to the peak, as a multiple of its input, at two
batch sizes: with a matrix of n x n the second figure would be twice the first.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from setsquare.nn import Orthogonalize

MODES: dict[str, Callable[[], Orthogonalize | None]] = {
    "no layer": lambda: None,
    "no layer, again": lambda: None,
    "post": lambda: Orthogonalize(2),
    "pre": lambda: Orthogonalize(2, where="pre"),
    "generalized": lambda: Orthogonalize(2, activation="relu"),
}
#: Rows at which memory is measured.
SIZES = (30_000, 60_000)
#: Tells glibc to keep what was freed.
KEEP = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "2000000000")
LIMITS = {"post": 15, "pre": 15, "generalized": 100}


class Network(nn.Module):
    def __init__(self, layer: Orthogonalize | None) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3)
        self.hidden, self.out, self.layer = nn.Linear(16 * 12 * 12, 64), nn.Linear(64, 1), layer

    def forward(self, x: Tensor, protected: Tensor) -> Tensor:
        x = self.first(x)
        if self.layer is not None and self.layer.where != "post":
            x = self.layer(x, protected)
        x = torch.relu(x)
        if self.layer is not None and self.layer.where == "post":
            x = self.layer(x, protected)
        x = nn.functional.max_pool2d(torch.relu(self.second(x)), 2)
        return self.out(torch.relu(self.hidden(x.flatten(1))))


def trainer(layer: Orthogonalize | None, batch: int, steps: int) -> Callable[[], None]:
    """Some steps on batches that the optimiser has not adapted to."""
    torch.manual_seed(0)
    network = Network(layer)
    optimiser = torch.optim.Adam(network.parameters())
    data = []
    for _ in range(steps):
        red = (torch.rand(batch) < 0.5).float()
        image = torch.rand(batch, 3, 28, 28) * (0.5 + torch.stack([red, 1 - red, 0 * red], 1)[:, :, None, None])
        data.append((image, torch.stack([red, torch.randn(batch)], 1), (torch.rand(batch, 1) < 0.5).float()))

    def train() -> None:
        for image, protected, label in data:
            optimiser.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(network(image, protected), label).backward()
            optimiser.step()

    return train


def peak(name: str, batch: int) -> float:
    """Peak memory of forward and backward through the layer as a multiple of its input, in a fresh process."""
    code = f"from benchmarks.bench_layer import growth; print(growth({name!r}, {batch}))"
    environment = {key: value for key, value in os.environ.items() if key not in KEEP}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def growth(name: str, batch: int) -> float:
    torch.set_num_threads(1)
    layer = MODES[name]()
    assert layer is not None
    y, X = torch.randn(batch, 500, requires_grad=True), torch.randn(batch, 2)
    layer(y[:100], X[:100]).sum().backward()
    with open("/proc/self/statm") as now:
        before = int(now.read().split()[1]) * resource.getpagesize()
    layer(y, X).square().sum().backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0 - before) / (4.0 * y.numel())


def clock(calls: list[Callable[[], None]], rounds: int) -> np.ndarray:
    """CPU and wall seconds (2, calls, rounds), one call after the other in each round; the first round is not kept."""
    seconds = np.zeros((2, len(calls), 1 + rounds))
    for turn in range(1 + rounds):
        for number, call in enumerate(calls):
            start = np.array([time.process_time(), time.perf_counter()])
            call()
            seconds[:, number, turn] = np.array([time.process_time(), time.perf_counter()]) - start
    return seconds[:, :, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5, help="training steps a round")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--default-allocator", action="store_true", help="let the C library give memory back")
    options = parser.parse_args()
    if not options.default_allocator and not KEEP.keys() <= os.environ.keys():
        command = [sys.executable, "-m", "benchmarks.bench_layer", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | KEEP)  # it is read when a process starts
    torch.set_num_threads(1)
    trainers = {name: trainer(make(), options.batch, options.steps) for name, make in MODES.items()}
    cpu, wall = (dict(zip(MODES, times, strict=True)) for times in clock(list(trainers.values()), options.rounds))
    table = Table("", "CPU ms a step", "over no layer", "wall ms a step", "over no layer", "limit")
    for n in SIZES:
        table.add_column(f"memory / input, n = {n}")
    for name in MODES:
        row = [name]
        for times in (cpu, wall):
            low, middle, high = np.percentile(100.0 * (times[name] / times["no layer"] - 1.0), [25, 50, 75])
            row += [
                f"{1000.0 * np.median(times[name]) / options.steps:.1f}",
                f"{middle:+.0f} % ({low:+.0f} to {high:+.0f})",
            ]
        if name in LIMITS:
            row += [f"{LIMITS[name]} %", *(f"{peak(name, n):.1f}" for n in SIZES)]
        table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
