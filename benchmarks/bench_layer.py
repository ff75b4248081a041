"""One `Orthogonalize` in a training step of the colour-MNIST network, beside none and beside MetadataNorm.

    python -m benchmarks.bench_layer                # about 1 minute

Batch 128, conv 3->8, ReLU, [layer], conv 8->16, ReLU, max-pool, dense 64, 1; two protected columns; one thread. CPU
time of the process stands beside wall time, because other jobs share the machine; "no layer" is timed twice, to show
the noise. Each round times every network once, and the overhead is the median of the rounds' ratios to "no layer".
The C library's allocator gives memory back to the system between steps and takes it anew, at a cost for each page that
depends on what else was allocated: here it is told to keep it, as the allocators do that are advised for torch on
processors. `--default-allocator` leaves it as it is.
Memory is what one forward and backward pass of the layer alone adds to the peak, as a multiple of its input, at two
batch sizes: with a matrix of n x n the second figure would be twice the first. MetadataNorm sits before the ReLU, as
published, with the two columns as metadata; the first batch gives its inverse.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.frame import Ratio, main, plain
from benchmarks.measure import forget_peak, in_child, peak_mb
from setsquare.nn import Orthogonalize
from studies.paper.published_layers import MetadataNorm

QUICK = {"rounds": 2, "steps": 1, "units": 50}
NORM = "MetadataNorm"
MODES: dict[str, Callable[[], Orthogonalize | None]] = {
    "no layer": lambda: None,
    "no layer, again": lambda: None,
    "post": lambda: Orthogonalize(2),
    "pre": lambda: Orthogonalize(2, where="pre"),
    "generalized": lambda: Orthogonalize(2, activation="relu"),
    NORM: lambda: None,  # it is made from the first batch
}
#: Rows at which memory is measured.
SIZES = (30_000, 60_000)
#: Tells glibc to keep what was freed.
KEEP = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "2000000000")
#: Of a step with the layer over one without.
LIMITS = {"post": 1.15, "pre": 1.15, "generalized": 2.0}


class Network(nn.Module):
    def __init__(self, layer: Orthogonalize | MetadataNorm | None) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3)
        self.hidden, self.out, self.layer = nn.Linear(16 * 12 * 12, 64), nn.Linear(64, 1), layer

    def forward(self, x: Tensor, protected: Tensor, label: Tensor) -> Tensor:
        x = self.first(x)
        if isinstance(self.layer, MetadataNorm):
            x = self.layer(x, protected, label[:, 0])
        elif self.layer is not None and self.layer.where != "post":
            x = self.layer(x, protected)
        x = torch.relu(x)
        if isinstance(self.layer, Orthogonalize) and self.layer.where == "post":
            x = self.layer(x, protected)
        x = nn.functional.max_pool2d(torch.relu(self.second(x)), 2)
        return self.out(torch.relu(self.hidden(x.flatten(1))))


def trainer(name: str, batch: int, steps: int) -> Callable[[], None]:
    """Some steps on batches that the optimiser has not adapted to."""
    torch.manual_seed(0)
    data = []
    for _ in range(steps):
        red = (torch.rand(batch) < 0.5).float()
        image = torch.rand(batch, 3, 28, 28) * (0.5 + torch.stack([red, 1 - red, 0 * red], 1)[:, :, None, None])
        data.append((image, torch.stack([red, torch.randn(batch)], 1), (torch.rand(batch, 1) < 0.5).float()))
    network = Network(MetadataNorm(data[0][1], data[0][2][:, 0]) if name == NORM else MODES[name]())
    optimiser = torch.optim.Adam(network.parameters())

    def train() -> None:
        for image, protected, label in data:
            optimiser.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(network(image, protected, label), label).backward()
            optimiser.step()

    return train


def growth(name: str, batch: int, units: int) -> float:
    """Peak memory of forward and backward through the layer as a multiple of its input."""
    torch.set_num_threads(1)
    layer = MODES[name]()
    assert layer is not None
    y, X = torch.randn(batch, units, requires_grad=True), torch.randn(batch, 2)
    layer(y[:100], X[:100]).sum().backward()
    forget_peak()
    before = peak_mb()
    layer(y, X).square().sum().backward()
    return (peak_mb() - before) / (4e-6 * y.numel())


def clock(calls: list[Callable[[], None]], rounds: int) -> np.ndarray:
    """CPU and wall seconds (2, calls, rounds), one call after the other in each round; the first round is not kept."""
    seconds = np.zeros((2, len(calls), 1 + rounds))
    for turn in range(1 + rounds):
        for number, call in enumerate(calls):
            start = np.array([time.process_time(), time.perf_counter()])
            call()
            seconds[:, number, turn] = np.array([time.process_time(), time.perf_counter()]) - start
    return seconds[:, :, 1:]


def run(
    rounds: int = 25, steps: int = 5, batch: int = 128, units: int = 500, default_allocator: bool = False
) -> dict[str, Any]:
    torch.set_num_threads(1)
    trainers = [trainer(name, batch, steps) for name in MODES]
    cpu, wall = (dict(zip(MODES, times, strict=True)) for times in clock(trainers, rounds))
    what = f"a layer in a training step, batch {batch}"
    bare = [
        Ratio.over(what, (name, cpu[name]), ("no layer", cpu["no layer"]), "torch", LIMITS[name], "processor time")
        for name in LIMITS
    ]
    norm = [
        Ratio.over(what, (name, cpu[name]), (NORM, cpu[NORM]), "Lu et al. (2021), written anew", of="processor time")
        for name in LIMITS
    ]
    memory = {name: [in_child(growth, name, n, units, **dict.fromkeys(KEEP)) for n in SIZES] for name in LIMITS}
    return plain({"ratios": [*bare, *norm], "steps": steps, "cpu": cpu, "wall": wall, "memory": memory})


def show(result: dict[str, Any]) -> None:
    table = Table("", "CPU ms a step", "over no layer", "wall ms a step", "over no layer", "limit")
    for n in SIZES:
        table.add_column(f"memory / input, n = {n}")
    for name in MODES:
        row = [name]
        for times in (result["cpu"], result["wall"]):
            over = 100.0 * (np.divide(times[name], times["no layer"]) - 1.0)
            low, middle, high = np.percentile(over, [25, 50, 75])
            row += [
                f"{1000.0 * np.median(times[name]) / result['steps']:.1f}",
                f"{middle:+.0f} % ({low:+.0f} to {high:+.0f})",
            ]
        if name in LIMITS:
            row += [f"{100 * (LIMITS[name] - 1):.0f} %", *(f"{share:.1f}" for share in result["memory"][name])]
        table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    if "--default-allocator" not in sys.argv and not KEEP.keys() <= os.environ.keys():
        command = [sys.executable, "-m", "benchmarks.bench_layer", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | KEEP)  # it is read when a process starts
    main(run, show, QUICK)
