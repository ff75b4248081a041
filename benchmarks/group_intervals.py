"""Do the intervals of numbers by group hold for all groups at once? Coverage, beside fairlearn's bootstrap.

    python -m benchmarks.group_intervals            # about 15 minutes of one core
    python -m benchmarks.group_intervals --quick    # 20 samples a design; nothing is written

Scores are ``expit(a_g + z)`` with a normal z, outcomes are drawn with the score as their probability, decisions are
scores of at least 0.5. With "different" groups a_g runs from -0.8 to 0.3 (selection rates from 0.21 to 0.62), with
"rare" ones from -1.9 to -1.2 (rates from 0.03 to 0.12); "equal" groups have a_g = -0.3. Groups are drawn with equal
probabilities. Truths are integrals. Coverage is the share of samples in which *all* intervals of a number hold.
fairlearn's intervals are percentiles of a bootstrap of each number by itself: they are not made to hold for all groups.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from fairlearn.metrics import MetricFrame, selection_rate
from scipy.special import expit

from setsquare.auditing.groups.audited import number_groups
from setsquare.auditing.groups.partitions import partition_rows
from setsquare.auditing.groups.rates import Rows
from setsquare.auditing.groups.rates_with_intervals import Measured

RESULTS = Path(__file__).parent / "results" / "group_intervals.json"
SHIFTS = {"different": (-0.8, 0.3), "rare": (-1.9, -1.2), "equal": (-0.3, -0.3)}
#: Numbers of groups and rows; samples for us, and for fairlearn, which takes seconds for each.
CELLS = [(k, n) for k in (2, 6, 20) for n in (1000, 5000)]
DESIGNS = [("different", k, n, 1000, 20) for k, n in CELLS]
DESIGNS += [("equal", 6, 1000, 1000, 0), ("equal", 20, 1000, 1000, 0), ("rare", 20, 5000, 1000, 0)]
N_BOOT = 100
NUMBERS = ("mean", "difference", "ratio", "selection_rate", "impact_ratio", "impact_ratio_highest", "tpr", "fpr")
NUMBERS += ("ppv", "npv", "accuracy", "auc", "calibration")


def truth(shift: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers of the population, by group; the first group is the reference."""
    z = np.linspace(-8.0, 8.0, 20_001)
    density = np.exp(-0.5 * z**2)
    density /= density.sum()
    score = expit(shift[:, None] + z)
    chosen = score >= 0.5
    up, down = density * score, density * (1.0 - score)
    rate, mean = (density * chosen).sum(axis=1), up.sum(axis=1)
    below = np.cumsum(down, axis=1) - 0.5 * down
    return {
        "mean": mean,
        "difference": mean - mean[0],
        "ratio": mean / mean[0],
        "selection_rate": rate,
        "impact_ratio": rate / rate[0],
        "impact_ratio_highest": rate / rate.max(),
        "tpr": (up * chosen).sum(axis=1) / mean,
        "fpr": (down * chosen).sum(axis=1) / down.sum(axis=1),
        "ppv": (up * chosen).sum(axis=1) / rate,
        "npv": (down * ~chosen).sum(axis=1) / (1.0 - rate),
        "accuracy": (up * chosen + down * ~chosen).sum(axis=1),
        "auc": (up * below).sum(axis=1) / (mean * down.sum(axis=1)),
        "calibration": np.zeros(len(shift)),
    }


def summaries(true: dict[str, np.ndarray]) -> dict[str, float]:
    rate, tpr, fpr = (true[name] for name in ("selection_rate", "tpr", "fpr"))
    return {
        "mean_difference": float(np.ptp(true["mean"])),
        "demographic_parity_difference": float(np.ptp(rate)),
        "demographic_parity_ratio": float(rate.min() / rate.max()),
        "equalized_odds_difference": float(max(np.ptp(tpr), np.ptp(fpr))),
    }


def measure(kind: str, k: int, n: int, n_samples: int, n_fairlearn: int) -> dict[str, Any]:
    shift = np.linspace(*SHIFTS[kind], k)
    true = truth(shift)
    whole = summaries(true)
    held: dict[str, list[bool]] = {name: [] for name in (*NUMBERS, *whole)}
    widths: dict[str, list[float]] = {name: [] for name in ("selection_rate", "demographic_parity_difference")}
    theirs: dict[str, list[bool]] = {"selection_rate": [], "demographic_parity_difference": []}
    seconds = {"ours": 0.0, "fairlearn": 0.0}
    for seed in range(n_samples):
        rng = np.random.default_rng([seed, k, n])
        group = rng.integers(k, size=n)
        score = expit(shift[group] + rng.normal(size=n))
        outcome, decision = (rng.random(n) < score).astype(float), (score >= 0.5).astype(float)
        start = time.process_time()
        names = np.array([f"g{j:02d}" for j in range(k)])[group]
        parts = partition_rows(names, reference={"x0": "g00"}, min_group=1)
        found = number_groups(Rows(score, decision, outcome), parts, seed=seed).measures
        seconds["ours"] += time.process_time() - start
        for name in NUMBERS:
            held[name].append(covers(found.columns[name], true[name]))
        for one in found.summaries:
            held[one.name].append(one.low <= whole[one.name] <= one.high)
        rates = found.columns["selection_rate"]
        widths["selection_rate"].append(float((rates.high - rates.low).mean()))
        gap = next(one for one in found.summaries if one.name == "demographic_parity_difference")
        widths[gap.name].append(gap.high - gap.low)
        if seed < n_fairlearn:
            start = time.process_time()
            low, high, below, above = bootstrap(decision, group, seed)
            seconds["fairlearn"] += time.process_time() - start
            theirs["selection_rate"].append(
                bool(((low <= true["selection_rate"]) & (true["selection_rate"] <= high)).all())
            )
            theirs["demographic_parity_difference"].append(below <= whole["demographic_parity_difference"] <= above)
    return {
        "kind": kind,
        "groups": k,
        "n": n,
        "samples": n_samples,
        "coverage": {name: float(np.mean(values)) for name, values in held.items()},
        "width": {name: float(np.mean(values)) for name, values in widths.items()},
        "fairlearn_samples": n_fairlearn,
        "fairlearn_coverage": {name: float(np.mean(v)) for name, v in theirs.items()} if n_fairlearn else {},
        "seconds_per_sample": {
            "ours": seconds["ours"] / n_samples,
            "fairlearn": seconds["fairlearn"] / n_fairlearn if n_fairlearn else None,
        },
    }


def covers(found: Measured, true: np.ndarray) -> bool:
    """Whether all intervals hold; an undefined number has none that could fail."""
    return bool(((found.low - 1e-12 <= true) & (true <= found.high + 1e-12) | np.isnan(found.low)).all())


def bootstrap(decision: np.ndarray, group: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Percentile intervals by fairlearn: selection rates, and their largest difference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = MetricFrame(
            metrics=selection_rate,
            y_true=decision,
            y_pred=decision,
            sensitive_features=group,
            n_boot=N_BOOT,
            ci_quantiles=[0.025, 0.975],
            random_state=seed,
        )
        low, high = (part.to_numpy() for part in frame.by_group_ci)
        below, above = frame.difference_ci(method="between_groups")
    return low, high, float(below), float(above)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() and not quick else []
    for kind, k, n, n_samples, n_fairlearn in DESIGNS:
        if any((row["kind"], row["groups"], row["n"], row["samples"]) == (kind, k, n, n_samples) for row in rows):
            continue  # measured in an earlier run that was stopped
        row = measure(kind, k, n, 20 if quick else n_samples, min(2, n_fairlearn) if quick else n_fairlearn)
        rows.append(row)
        print(json.dumps(row), flush=True)
        if not quick:
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
