"""Intervals of means of skewed scores in small groups: coverage of all groups at once, and width.

    python -m benchmarks.skewed_means            # about 6 minutes of one core
    python -m benchmarks.skewed_means --shape "3 % near 0.8"    # one shape, beside other runs
    python -m benchmarks.skewed_means --quick    # 20 samples per design; nothing is written

All groups have the same number of rows and the same distribution, but for the designs "among", where one group of 50
rows stands beside two of 500 rows with ordinary scores. Coverage is the share of samples in which *all* intervals hold.
Beside it: Student's interval for each group with its own variance and the same critical value, the mean width of
ours relative to it, and the share of samples in which the audit says that intervals can be too short.
"""

from __future__ import annotations

import argparse
import fcntl
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from setsquare.auditing.groups.partitions import partition_rows
from setsquare.auditing.groups.rates import Rows, count_numbers
from setsquare.auditing.groups.rates_with_intervals import Measured, measure_numbers

RESULTS = Path(__file__).parent / "results" / "skewed_means.json"
SAMPLES = 300
Draw = Callable[[np.random.Generator, int], np.ndarray]


def scores(shift: float, scale: float) -> tuple[Draw, float]:
    """``expit(shift + scale z)`` with a normal z."""
    z = np.linspace(-9.0, 9.0, 40_001)
    density = np.exp(-0.5 * z**2)
    return lambda rng, n: expit(shift + scale * rng.normal(size=n)), float(
        np.sum(density * expit(shift + scale * z)) / density.sum()
    )


def mixture(share: float) -> tuple[Draw, float]:
    """Scores near 0.05, and a share of them near 0.8."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.where(rng.random(n) < share, rng.beta(6.4, 1.6, n), rng.beta(1.0, 19.0, n))

    return draw, share * 0.8 + (1.0 - share) * 0.05


def lognormal(sigma: float) -> tuple[Draw, float]:
    return lambda rng, n: np.exp(sigma * rng.normal(size=n)), float(np.exp(0.5 * sigma**2))


#: Name: how to draw, the true mean, and whether values lie between 0 and 1.
SHAPES: dict[str, tuple[tuple[Draw, float], bool]] = {
    "expit(-0.3 + z)": (scores(-0.3, 1.0), True),
    "expit(-2 + z)": (scores(-2.0, 1.0), True),
    "expit(-4 + z)": (scores(-4.0, 1.0), True),
    "expit(-4 + 1.5 z)": (scores(-4.0, 1.5), True),
    "1 - expit(-4 + 1.5 z)": (scores(4.0, -1.5), True),
    "expit(-6 + 2 z)": (scores(-6.0, 2.0), True),
    "beta(0.05, 2)": ((lambda rng, n: rng.beta(0.05, 2.0, n), 0.05 / 2.05), True),
    "3 % near 0.8": (mixture(0.03), True),
    "10 % near 0.8": (mixture(0.1), True),
    "exponential": ((lambda rng, n: rng.exponential(size=n), 1.0), False),
    "t, 3 df": ((lambda rng, n: rng.standard_t(3.0, n), 0.0), False),
    "lognormal(0.5)": (lognormal(0.5), False),
    "lognormal(1)": (lognormal(1.0), False),
    "lognormal(1.5)": (lognormal(1.5), False),
    "lognormal(2)": (lognormal(2.0), False),
    "lognormal(2.5)": (lognormal(2.5), False),
}
CELLS = ((2, 50), (6, 50), (20, 50), (20, 250))
AMONG = ("expit(-4 + 1.5 z)", "3 % near 0.8")
ORDINARY = "expit(-0.3 + z)"


def designs() -> list[tuple[str, list[tuple[str, int]]]]:
    """Name and, for each group, the shape and the number of rows."""
    found = [(f"{k} x {n}", [(shape, n)] * k) for shape in SHAPES for k, n in CELLS]
    return found + [("among", [(ORDINARY, 500), (ORDINARY, 500), (shape, 50)]) for shape in AMONG]


def measure(name: str, groups: list[tuple[str, int]], samples: int) -> dict[str, Any]:
    truth = np.array([SHAPES[shape][0][1] for shape, _ in groups])
    labels = np.repeat([f"g{k:02d}" for k in range(len(groups))], [n for _, n in groups])
    parts = partition_rows(labels, reference={"x0": "g00"}, min_group=1)
    held: Counter[str] = Counter()
    width = 0.0
    for seed in range(samples):
        rng = np.random.default_rng([seed, len(groups), len(labels)])
        drawn = [SHAPES[shape][0][0](rng, n) for shape, n in groups]
        number = count_numbers(Rows(np.concatenate(drawn)), parts)["mean"]
        own = np.diag([values.var(ddof=1) / len(values) for values in drawn])
        plain = replace(number, estimates=replace(number.estimates, covariance=own, is_rate=False, skewness=None))
        positive = bool((truth > 0.0).all())
        ours, student = (
            measure_numbers({"mean": one}, parts, rng=np.random.default_rng(seed), ratios=positive).columns
            for one in (number, plain)
        )
        held["mean"] += covers(ours["mean"], truth)
        held["difference"] += covers(ours["difference"], truth - truth[0])
        held["ratio"] += covers(ours["ratio"], truth / truth[0]) if positive else 1
        held["student"] += covers(student["mean"], truth)
        held["noted"] += bool(number.estimates.is_doubtful is not None and number.estimates.is_doubtful.any())
        width += float(np.mean((ours["mean"].high - ours["mean"].low) / (student["mean"].high - student["mean"].low)))
    shares = {key: count / samples for key, count in held.items()}
    shape = groups[-1][0]
    return {
        "shape": shape,
        "groups": name,
        "bounded": SHAPES[shape][1],
        "samples": samples,
        **shares,
        "width": width / samples,
    }


def covers(found: Measured, true: np.ndarray) -> bool:
    """Whether all intervals hold."""
    return bool(((found.low - 1e-12 <= true) & (true <= found.high + 1e-12)).all())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--shape", choices=SHAPES)
    asked = parser.parse_args()
    for name, groups in designs():
        if asked.shape in (None, groups[-1][0]):
            cell = measure(name, groups, 20 if asked.quick else SAMPLES)
            print(json.dumps(cell), flush=True)
            if not asked.quick:
                add(cell)


def add(cell: dict[str, Any]) -> None:
    """Put a cell among the results; another run may do so at the same time."""
    RESULTS.touch()
    with RESULTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        rows = {(row["shape"], row["groups"]): row for row in json.loads(file.read() or "[]")}
        rows[cell["shape"], cell["groups"]] = cell
        order = [(groups[-1][0], name) for name, groups in designs()]
        file.seek(0)
        file.write(json.dumps([rows[key] for key in order if key in rows], indent=1) + "\n")
        file.truncate()


if __name__ == "__main__":
    main()
