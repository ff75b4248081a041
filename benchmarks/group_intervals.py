"""Do the intervals of numbers by group hold for all groups at once? Coverage, beside fairlearn's bootstrap.

    python -m benchmarks.group_intervals                            # about 20 minutes of one core
    python -m benchmarks.group_intervals --kind rare --groups 20    # one kind and number, beside other runs
    python -m benchmarks.group_intervals --quick                    # 20 samples per design; nothing is written
    python -m benchmarks.group_intervals --again                    # all samples anew: kept ones count otherwise
    python -m benchmarks.group_intervals --exact                    # rates by enumeration of counts, without samples

Scores are ``expit(a_g + z)`` with a normal z, outcomes are drawn with the score as their probability, decisions are
scores of at least 0.5. With "different" groups a_g runs from -0.8 to 0.3 (selection rates from 0.21 to 0.62), with
"rare" ones from -1.9 to -1.2 (rates from 0.03 to 0.12); "equal" groups have a_g = -0.3. Groups are drawn with equal
probabilities. Truths are integrals. Coverage is the share of samples in which *all* intervals of a number hold.
fairlearn's intervals are percentiles of a bootstrap of each number by itself: they are not made to hold for all groups.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from fairlearn.metrics import MetricFrame, selection_rate
from scipy.special import expit, ndtri
from scipy.stats import binom

from setsquare.auditing.groups.audited import number_groups
from setsquare.auditing.groups.intervals import Estimates, single
from setsquare.auditing.groups.partitions import partition_rows
from setsquare.auditing.groups.rates import Rows
from setsquare.auditing.groups.rates_with_intervals import Measured

RESULTS = Path(__file__).parent / "results" / "group_intervals.json"
SHIFTS = {"different": (-0.8, 0.3), "equal": (-0.3, -0.3), "rare": (-1.9, -1.2)}
#: Samples by number of groups; fairlearn's bootstrap takes seconds for each, so it has few, in one kind of groups.
SAMPLES, FAIRLEARN_SAMPLES = {2: 1000, 6: 1000, 20: 1000}, 10
DESIGNS = [
    (kind, k, n, SAMPLES[k], FAIRLEARN_SAMPLES if kind == "different" else 0)
    for kind in SHIFTS
    for k in SAMPLES
    for n in (1000, 5000)
]
#: Samples after which the results are written; a run that was stopped goes on from there.
STEP = 50
N_BOOT = 100
GAP = "demographic_parity_difference"
NUMBERS = ("mean", "difference", "ratio", "selection_rate", "impact_ratio", "impact_ratio_highest", "tpr", "fpr")
RATES = ("selection_rate", "tpr", "fpr", "ppv", "npv", "accuracy")
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


def least_coverage(kind: str, k: int, n: int, name: str, n_sizes: int = 50) -> float:
    """Smallest coverage of a rate in all groups by any interval that guarantees its level at every rate.

    Such an interval rules out a rate by counts that have, together, at most the probability of an error. The fewest
    counts that it can keep are the likeliest (Sterne 1954). Averaged over random numbers of rows. A mean of scores is
    no count, and has no such limit.
    """
    true, rng = truth(np.linspace(*SHIFTS[kind], k)), np.random.default_rng(0)
    rate, chosen = true["mean"], true["selection_rate"]
    shares = {"tpr": rate, "fpr": 1.0 - rate, "ppv": chosen, "npv": 1.0 - chosen}.get(name, np.ones(k))
    level, total = 0.95 ** (1.0 / k), 0.0
    for _ in range(n_sizes):
        held = 1.0
        for size, p in zip(rng.binomial(rng.multinomial(n, np.full(k, 1.0 / k)), shares), true[name], strict=True):
            likely = np.sort(binom.pmf(np.arange(size + 1), size, p))[::-1].cumsum()
            held *= likely[min(np.searchsorted(likely, level), size)]
        total += held
    return total / n_sizes


def exact_coverage(kind: str, k: int, n: int, name: str, n_sizes: int = 25) -> float:
    """Coverage of a rate in all groups by enumeration of counts, averaged over quantiles of the numbers of rows.

    Numbers of rows of different groups are taken as independent.
    """
    true, critical = truth(np.linspace(*SHIFTS[kind], k)), float(-ndtri(0.5 * (1.0 - 0.95 ** (1.0 / k))))
    rate, chosen = true["mean"], true["selection_rate"]
    shares = {"tpr": rate, "fpr": 1.0 - rate, "ppv": chosen, "npv": 1.0 - chosen}.get(name, np.ones(k))
    held = 1.0
    for share, p in zip(shares, true[name], strict=True):
        sizes = binom.ppf((np.arange(n_sizes) + 0.5) / n_sizes, n, share / k).astype(int)
        held *= float(np.mean([_exact(size, p, critical) for size in sizes]))
    return held


def _exact(n: int, p: float, critical: float) -> float:
    if n == 0:
        return 1.0
    first, last = binom.ppf([1e-7, 1.0 - 1e-7], n, p).astype(int)
    x = np.arange(first, last + 1)
    nothing, size = np.zeros((len(x), len(x))), np.full(len(x), float(n))
    low, high = single(Estimates(x / n, nothing, True, size, np.full(len(x), np.inf)), critical)
    return float(binom.pmf(x, n, p)[(low <= p) & (p <= high)].sum())


def measure(kind: str, k: int, n: int, seeds: range, n_fairlearn: int) -> dict[str, Any]:
    """Sums over the samples of some seeds, of which those below ``n_fairlearn`` are fairlearn's too."""
    shift = np.linspace(*SHIFTS[kind], k)
    true = truth(shift)
    whole = summaries(true)
    sums: dict[str, Any] = {name: Counter() for name in ("held", "width", "fairlearn_held", "seconds")}
    for seed in seeds:
        rng = np.random.default_rng([seed, k, n])
        group = rng.integers(k, size=n)
        score = expit(shift[group] + rng.normal(size=n))
        outcome, decision = (rng.random(n) < score).astype(float), (score >= 0.5).astype(float)
        start = time.process_time()
        names = np.array([f"g{j:02d}" for j in range(k)])[group]
        parts = partition_rows(names, reference={"x0": "g00"}, min_group=1)
        found = number_groups(Rows(score, decision, outcome), parts, seed=seed).measures
        sums["seconds"]["ours"] += time.process_time() - start
        sums["held"].update({name: covers(found.columns[name], true[name]) for name in NUMBERS})
        sums["held"].update({one.name: one.low <= whole[one.name] <= one.high for one in found.summaries})
        rates = found.columns["selection_rate"]
        gap = next(one for one in found.summaries if one.name == GAP)
        sums["width"].update({"selection_rate": float((rates.high - rates.low).mean()), GAP: gap.high - gap.low})
        if seed < n_fairlearn:
            start = time.process_time()
            low, high, below, above = bootstrap(decision, group, seed)
            sums["seconds"]["fairlearn"] += time.process_time() - start
            held = bool(((low <= true["selection_rate"]) & (true["selection_rate"] <= high)).all())
            sums["fairlearn_held"].update({"selection_rate": held, GAP: below <= whole[GAP] <= above})
    samples, theirs = len(seeds), len([seed for seed in seeds if seed < n_fairlearn])
    sums |= {name: dict(values) for name, values in sums.items()}
    return {"kind": kind, "groups": k, "n": n, "samples": samples, "fairlearn_samples": theirs, "sums": sums}


def merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Sums over the samples of both, and the shares and means that follow; a record without sums is replaced."""
    first = first if "sums" in first else {}
    n, theirs = (first.get(name, 0) + second[name] for name in ("samples", "fairlearn_samples"))
    before = first.get("sums", {})
    sums = {
        name: {key: before.get(name, {}).get(key, 0.0) + one.get(key, 0.0) for key in before.get(name, {}) | one}
        for name, one in second["sums"].items()
    }
    seconds = sums["seconds"]
    return second | {
        "samples": n,
        "fairlearn_samples": theirs,
        "coverage": {name: total / n for name, total in sums["held"].items()},
        "width": {name: total / n for name, total in sums["width"].items()},
        "fairlearn_coverage": {name: total / theirs for name, total in sums["fairlearn_held"].items()},
        "seconds_per_sample": {
            "ours": seconds["ours"] / n,
            "fairlearn": seconds["fairlearn"] / theirs if theirs else None,
        },
        "sums": sums,
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
    parser.add_argument("--kind", choices=SHIFTS)
    parser.add_argument("--groups", choices=SAMPLES, type=int)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    if asked.again:
        RESULTS.write_text("[]\n")
    for kind, k, n, n_samples, n_fairlearn in DESIGNS:
        if asked.kind not in (None, kind) or asked.groups not in (None, k):
            continue
        if asked.exact:
            print(kind, k, n, {name: round(exact_coverage(kind, k, n, name), 4) for name in RATES}, flush=True)
            continue
        if asked.quick:
            print(json.dumps(merge({}, measure(kind, k, n, range(20), min(2, n_fairlearn)))), flush=True)
            continue
        while (done := count_samples(kind, k, n)) < n_samples:
            add(measure(kind, k, n, range(done, min(done + STEP, n_samples)), n_fairlearn))
        print(kind, k, n, done, flush=True)


def count_samples(*design: Any) -> int:
    return sum(row["samples"] for row in load() if design_of(row) == design and "sums" in row)


def load() -> list[dict[str, Any]]:
    with RESULTS.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        return json.load(file)


def add(part: dict[str, Any]) -> None:
    """Add samples to the results; another run may do so at the same time."""
    with RESULTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        rows = {design_of(row): row for row in json.load(file)}
        rows[design_of(part)] = merge(rows.get(design_of(part), {}), part)
        order = [(kind, k, n) for kind, k, n, *_ in DESIGNS]
        text = json.dumps([rows[design] for design in order if design in rows], indent=1) + "\n"
        file.seek(0)
        file.write(text)
        file.truncate()


def design_of(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["kind"], row["groups"], row["n"]


if __name__ == "__main__":
    main()
