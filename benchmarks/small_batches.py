"""How near batches of 4 rows with 10 protected columns come to the correction of all rows at once.

    python -m benchmarks.small_batches

100 batches pass through an `Orthogonalize` in training; then its correction in `eval` is compared with that of all 400
rows together: norm of the difference over norm of the correction. `fit_layer` is exact; this is training alone.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from setsquare.nn import Orthogonalize
from setsquare.nn.functional import generalized_project_out, project_out

N_ROWS, BATCH, P, UNITS = 400, 4, 10, 6
SIGNALS = (0.5, 1.0, 2.0)


def draw(signal: float, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(N_ROWS, P, generator=g).double()
    effects = torch.randn(P, UNITS, generator=g).double() / P**0.5
    return signal * X @ effects + torch.randn(N_ROWS, UNITS, generator=g).double(), 3.0 * X + 50.0


def error(activation: str | None, signal: float, seed: int) -> float:
    Y, X = draw(signal, seed)
    layer = Orthogonalize(P, activation=activation)
    for y, x in zip(Y.split(BATCH), X.split(BATCH), strict=True):
        layer(y, x)
    whole = project_out(Y, X) if activation is None else generalized_project_out(Y, X, activation)
    return float((layer.eval()(Y, X) - whole).norm() / (Y - whole).norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("mode", "signal / noise", "error, mean", "worst draw")
    cases = [(activation, signal) for activation in (None, "relu") for signal in SIGNALS]
    for activation, signal in track(cases, "streaming"):
        errors = [error(activation, signal, seed) for seed in range(options.draws)]
        name = "linear" if activation is None else f"generalised ({activation})"
        table.add_row(name, f"{signal:g}", f"{100 * np.mean(errors):.1f} %", f"{100 * max(errors):.1f} %")
    Console().print(table)


if __name__ == "__main__":
    main()
