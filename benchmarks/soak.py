"""Many rounds in one process: fits, files, audits. Memory and descriptors must stay flat, every reload bit-equal.

    python -m benchmarks.soak --rounds 5000

Prints statuses, memory and open files as the rounds go on, and ends with exit code 1 if anything fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

import setsquare as sq
from setsquare.errors import SetsquareError, SetsquareWarning
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor

#: Memory that may be added after the first tenth of the rounds, in MB.
GROWTH = 60.0


def draw(rng: np.random.Generator) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """A table of a random size with outcomes."""
    n, q = int(rng.integers(60, 300)), int(rng.integers(3, 8))
    sex = rng.choice(["f", "m"], n)
    table = pd.DataFrame(rng.normal(size=(n, q)) + 0.7 * (sex == "m")[:, None]).rename(columns="z{}".format)
    signal = table["z0"].to_numpy() - table["z1"].to_numpy()
    outcomes = {
        "label": np.where(signal + rng.logistic(size=n) > 0.0, "yes", "no"),
        "count": rng.poisson(np.exp(np.clip(0.4 * signal, -3.0, 3.0))).astype(float),
        "number": signal + rng.normal(size=n),
    }
    return table.assign(sex=sex), outcomes


def models(rng: np.random.Generator) -> tuple[object, str]:
    """A random model, and the outcome that it is fitted to."""
    kinds = [
        (sq.OrthogonalGLMClassifier(protected=["sex"], l2=float(rng.choice([0.0, 0.01]))), "label"),
        (sq.OrthogonalGLMRegressor("poisson", ["sex"]), "count"),
        (sq.OrthogonalGLMRegressor("gaussian", ["sex"], orthogonal_on="new rows"), "number"),
        (sq.PredictionOrthogonalizer(PlainGLMClassifier(), protected=["sex"]), "label"),
        (sq.PredictionOrthogonalizer(PlainGLMRegressor("poisson"), "linear", protected=["sex"]), "count"),
        (sq.LinearOrthogonalizer(protected=["sex"], using="features"), "number"),
    ]
    return kinds[int(rng.integers(len(kinds)))]


def output(model: object, table: pd.DataFrame) -> np.ndarray:
    """Predictions or corrected features."""
    for name in ("predict_proba", "predict", "transform"):
        if hasattr(model, name):
            return np.asarray(getattr(model, name)(table))
    raise AssertionError


def one_round(seed: int, folder: Path) -> str:
    """Fit, save, load, compare and audit; the status of the round."""
    rng = np.random.default_rng(seed)
    table, outcomes = draw(rng)
    model, outcome = models(rng)
    try:
        model.fit(table, outcomes[outcome])  # type: ignore[attr-defined]
        path = folder / f"model{seed % 3}"
        sq.save(model, path)
        found, again = output(model, table), output(sq.load(path), table)
        if found.tobytes() != again.tobytes():
            return "FAILED: a reload differs"
        if (found.ndim < 3 and found.shape[-1] <= 2) or found.ndim == 1:
            p = found if found.ndim == 1 else found[:, -1]
            sq.audit(p, table[["sex"]])
        status = str(model.solution_.status) if hasattr(model, "solution_") else "fitted"
    except SetsquareError as error:
        return f"refused: {type(error).__name__}"
    except Exception as error:
        return f"FAILED: seed {seed}: {type(error).__name__}: {error}"
    return status


def memory() -> float:
    """Resident memory in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    """Run the rounds and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", SetsquareWarning)
    statuses, early = Counter[str](), 0.0
    with tempfile.TemporaryDirectory() as name:
        for k in range(asked.rounds):
            statuses[one_round(asked.seed + k, Path(name))] += 1
            if k + 1 == max(1, asked.rounds // 10):
                early, files = memory(), len(os.listdir("/proc/self/fd"))
            if (k + 1) % max(1, asked.rounds // 10) == 0:
                print(f"{k + 1} rounds: {memory():.0f} MB, {len(os.listdir('/proc/self/fd'))} open files", flush=True)
        grown, left = memory() - early, len(os.listdir("/proc/self/fd")) - files
        stray = [path.name for path in Path(name).iterdir() if path.name.endswith(".part")]
    for status, count in statuses.most_common():
        print(f"{count:6d}  {status}")
    failed = [status for status in statuses if status.startswith("FAILED")]
    print(f"Memory grew by {grown:.1f} MB after the first tenth, open files by {left}; unfinished files: {len(stray)}.")
    return int(bool(failed or stray or left > 0 or grown > GROWTH))


if __name__ == "__main__":
    sys.exit(main())
