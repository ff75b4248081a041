"""False alarms and detection of the monitor, beside a t-test that is repeated at every look.

    python -m benchmarks.monitoring            # about 2 minutes of one core
    python -m benchmarks.monitoring --quick    # 50 streams; nothing is written

Streams of 10 000 rows with a look at every row. Without a difference, the share of streams with an alarm at any time
must be at most 5 %. With a difference of 0.05 in the mean score, the rows until the alarm are reported. The naive test
is a two-sample t-test at 5 % after every row from the 100th on, stopped at its first rejection.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from setsquare.auditing.monitoring.betting import wealth_path
from setsquare.auditing.monitoring.pairing import pair_rows, start_pairing

RESULTS = Path(__file__).parent / "results" / "monitoring.json"
N_ROWS, ALPHA, GAP = 10_000, 0.05, 0.05


def beta(rng: np.random.Generator, n: int, a: float) -> np.ndarray:
    return 0.05 + 0.9 * rng.beta(a, a, n)


#: Scores in [0, 1] that can be moved by 0.05, and the share of the smaller group.
DESIGNS: dict[str, tuple[Any, float]] = {
    "beta(2, 2), halves": (lambda rng, n: beta(rng, n, 2.0), 0.5),
    "beta(2, 2), 10 %": (lambda rng, n: beta(rng, n, 2.0), 0.1),
    "beta(1/2, 1/2), halves": (lambda rng, n: beta(rng, n, 0.5), 0.5),
    "narrow beta(8, 8), halves": (lambda rng, n: beta(rng, n, 8.0), 0.5),
    "decisions at 0.3, halves": (None, 0.5),
}


def draw(design: str, gap: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores and groups of one stream."""
    scores, share = DESIGNS[design]
    is_first = rng.random(N_ROWS) < share
    if scores is None:
        return (rng.random(N_ROWS) < 0.3 - gap * is_first).astype(float), is_first
    return scores(rng, N_ROWS) - gap * is_first, is_first


def first_alarm(score: np.ndarray, is_first: np.ndarray) -> int:
    """Row of the alarm by betting; 0 if there is none."""
    state, differences = pair_rows(start_pairing(), score, is_first)
    over = np.flatnonzero(wealth_path(differences) >= -np.log(ALPHA))
    if not len(over):
        return 0
    a, b = state.blocks
    rows = np.flatnonzero(is_first)[(over[0] + 1) * a - 1], np.flatnonzero(~is_first)[(over[0] + 1) * b - 1]
    return max(int(max(rows)) + 1, 100)


def naive_alarm(score: np.ndarray, is_first: np.ndarray) -> int:
    """Row of the first rejection by a t-test at every row; 0 if there is none."""
    parts = []
    for own in (is_first, ~is_first):
        n, total, squares = (np.cumsum(x * own) for x in (np.ones(len(score)), score, score**2))
        with np.errstate(all="ignore"):
            mean = total / n
            parts.append((mean, (squares / n - mean**2) / (n - 1)))
    (m1, v1), (m2, v2) = parts
    with np.errstate(all="ignore"):
        over = np.abs(m1 - m2) > -ndtri(0.5 * ALPHA) * np.sqrt(v1 + v2)
    over[:99] = False
    return int(over.argmax()) + 1 if over.any() else 0


def measure(design: str, n_streams: int) -> dict[str, Any]:
    start = time.process_time()
    false, naive, rows = [], [], []
    for seed in range(n_streams):
        stream = draw(design, 0.0, np.random.default_rng([seed, 0]))
        false.append(first_alarm(*stream) > 0)
        naive.append(naive_alarm(*stream) > 0)
        rows.append(first_alarm(*draw(design, GAP, np.random.default_rng([seed, 1]))) or np.inf)
    quantiles = np.quantile(rows, [0.5, 0.9, 0.99], method="inverted_cdf")
    return {
        "design": design,
        "streams": n_streams,
        "rows": N_ROWS,
        "difference": GAP,
        "false_alarms": float(np.mean(false)),
        "false_alarms_naive": float(np.mean(naive)),
        "detected": float(np.mean(np.isfinite(rows))),
        "rows_to_alarm": {
            str(q): (float(x) if np.isfinite(x) else None) for q, x in zip((50, 90, 99), quantiles, strict=True)
        },
        "seconds": time.process_time() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows = []
    for design in DESIGNS:
        rows.append(measure(design, 50 if quick else 1000))
        print(json.dumps(rows[-1]), flush=True)
    if not quick:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
