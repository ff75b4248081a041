"""Power of the audit against that of an earlier version, at the same rate of false alarms.

    python -m benchmarks.audit_power --output new.json                             # 300 samples per cell: about an hour
    PYTHONPATH=OLD/src python benchmarks/audit_power.py --output old.json          # an earlier version, in a work tree
    python -m benchmarks.audit_power --compare old.json new.json

A version that accuses innocent predictions more often also finds more leaks. The earlier version is therefore judged at
the threshold at which it accuses as many innocent predictions as the new one does at 5 %. With two groups this is done
on each side: a test that accuses nearly only groups with lower means is one-sided in effect. Both see the same samples.
Only ``sq.audit`` is used, so that the script runs with earlier versions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

import setsquare as sq

LETTERS, SHARES = list("abcdef"), (0.40, 0.25, 0.15, 0.10, 0.07, 0.03)
SCORES = ("normal", "logit", "lognormal")
#: One group of six is moved by this much.
SIX = {"b": 0.3, "b-": -0.3, "d": 0.42, "d-": -0.42, "f": 0.75, "f-": -0.75}
DESIGNS = ("two groups", "10 % group", "10 % group -", *(f"six {k}" for k in SIX), "mix one", "mix diffuse", "mix six")


def null_of(design: str) -> str:
    """Name of the columns without a leak, which several designs share."""
    return next(name for name in ("two groups", "10 % group", "six", "mix") if design.startswith(name))


def draw(design: str, score: str, leak: float, seed: int, n: int = 1000) -> tuple[np.ndarray, pd.DataFrame]:
    """Predictions and protected columns."""
    rng = np.random.default_rng([seed, n, *map(ord, design)])
    noise = rng.normal(size=n)
    if design.startswith(("two", "10")):
        member = rng.random(n) < (0.4 if design.startswith("two") else 0.1)
        size = 0.2 if design.startswith("two") else -0.3 if design.endswith("-") else 0.3
        X, signal = pd.DataFrame({"g": np.where(member, "v", "u")}), size * member
    else:
        six = rng.choice(LETTERS, n, p=SHARES)
        if design.startswith("six"):
            which = design.split()[1]
            X, signal = pd.DataFrame({"g": six}), SIX[which] * (six == which[0])
        else:
            X = pd.DataFrame({"sex": rng.choice(["f", "m"], n), "age": rng.normal(50.0, 10.0, n), "group": six})
            signal = _mixed(design, X)
    eta = noise + leak * np.asarray(signal, dtype=float)
    return (np.exp(eta) if score == "lognormal" else 1.0 / (1.0 + np.exp(-eta)) if score == "logit" else eta), X


def _mixed(design: str, X: pd.DataFrame) -> np.ndarray:
    sex, age, six = (X["sex"] == "m").to_numpy() - 0.5, (X["age"].to_numpy() - 50.0) / 10.0, X["group"].to_numpy()
    if design == "mix one":
        return 0.2 * sex
    if design == "mix six":
        return 0.4 * (six == "b")
    return 0.08 * sex + 0.05 * age + 0.1 * (six == "b") + 0.1 * (six == "d")


def p_value(y: np.ndarray, X: pd.DataFrame) -> float:
    """P-value of the verdict: the smallest adjusted one, or that of the joint test in early versions.

    With two groups it has the sign of the difference of their means.
    """
    found = sq.audit(y, X)
    p = float(min(m.adjusted for m in found.members) if hasattr(found, "members") else found.p_value)
    member = X.iloc[:, 0] == "v"
    return float(np.copysign(p, y[member].mean() - y[~member].mean())) if member.any() else p


def on_side(design: str, signed: list[float]) -> np.ndarray:
    """P-values, of which those on the other side than the leak of a design count as 1."""
    p = np.asarray(signed)
    other = np.signbit(p) != design.endswith("-") if design.startswith(("two", "10")) else np.zeros(len(p), bool)
    return np.where(other, 1.0, np.abs(p))


def simulate(path: Path, samples: int, only: str) -> None:
    """Write the p-values of each cell as soon as it is done."""
    done = json.loads(path.read_text()) if path.exists() else {}
    for score in SCORES:
        for design in (d for d in DESIGNS if only in f"{d}/{score}"):
            null = {"six": "six b", "mix": "mix one"}.get(null_of(design), null_of(design))
            for key, cell, leak, first, count in (
                (f"{null_of(design)}/{score}/0", null, 0.0, 10_000_000, 2 * samples),
                (f"{design}/{score}/1", design, 1.0, 0, samples),
            ):
                if len(done.get(key, [])) < count:
                    done[key] = [p_value(*draw(cell, score, leak, first + seed)) for seed in range(count)]
                    path.write_text(json.dumps(done))


def compare(
    before: dict[str, list[float]], after: dict[str, list[float]]
) -> list[tuple[str, float, float, float, float]]:
    """Cell, rate of false alarms, power before at that rate, power now, and the standard error of the difference."""
    rows = []
    for key in (key for key in after if key.endswith("/1") and key in before):
        design, score, _ = key.split("/")
        null = f"{null_of(design)}/{score}/0"
        size = float(np.mean(on_side(design, after[null]) <= 0.05))
        count = min(len(before[key]), len(after[key]))
        old = on_side(design, before[key][:count]) <= np.quantile(on_side(design, before[null]), size)
        new = on_side(design, after[key][:count]) <= 0.05
        error = float(np.std(new.astype(float) - old) / np.sqrt(count))
        rows.append((f"{design}, {score}", size, float(old.mean()), float(new.mean()), error))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--only", default="", help="part of the name of a cell, such as six or mix one/logit")
    parser.add_argument("--compare", nargs=2, type=Path)
    options = parser.parse_args()
    if options.output:
        simulate(options.output, options.samples, options.only)
    if options.compare:
        for name, size, old, new, error in compare(*(json.loads(path.read_text()) for path in options.compare)):
            print(f"{name:25s} size {size:.3f}  before {old:.3f}  now {new:.3f}  {new - old:+.3f} (error {error:.3f})")


if __name__ == "__main__":
    main()
