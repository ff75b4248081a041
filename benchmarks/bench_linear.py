"""The linear correction of a million rows, beside fairlearn, concept-erasure and a plain least-squares fit.

    python -m benchmarks.bench_linear               # about 3 minutes

Everyone learns the correction and applies it to the same rows, float64 and in memory, with its own default of threads
(``bench_erasure`` compares erasures of other sizes on one core and on two). fairlearn takes features and protected
columns in one array; ours is given that as well. Memory is what a process of its own needs at most beyond its data, as
a multiple of the features' size: the corrected features alone are 1. Times are those of a process that keeps the memory
that it frees, after a first round that does not count.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fairlearn.preprocessing import CorrelationRemover

import setsquare as sq
from benchmarks.bench_erasure import leace
from benchmarks.frame import Bound, Ratio, digits, main, plain, steps
from benchmarks.measure import KEEP_MEMORY, forget_peak, in_child, interleave, peak_mb

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it is built on what newer versions of torch deprecate
    from concept_erasure import OracleEraser

QUICK = {"rows": 20_000, "rounds": 2}
OURS, INSIDE, IN_PLACE = "ours", "ours, one array", "ours, in place"
ALONE, ALONE_IN_PLACE = "ours, using features", "ours, using features, in place"
FAIRLEARN, ORACLE, LSTSQ, LEACE = "fairlearn CorrelationRemover", "concept-erasure Oracle", "numpy lstsq", "LEACE"

Correct = Callable[[np.ndarray, np.ndarray], np.ndarray]


def draw(n: int, q: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Features that know the protected columns, of which half are groups; and these."""
    rng = np.random.default_rng(0)
    X = rng.normal(40.0, 10.0, size=(n, p))
    X[:, ::2] = X[:, ::2] > 45.0
    Z = rng.standard_normal((n, q))
    Z += (X - X.mean(axis=0)) / X.std(axis=0) @ rng.normal(size=(p, q))
    return Z, X


def ours(using: str, copy: bool) -> Correct:
    return lambda Z, X: sq.LinearOrthogonalizer(using=using, copy=copy).fit_transform(Z, protected=X)


def last(A: np.ndarray, p: int) -> list[int]:
    return list(range(A.shape[1] - p, A.shape[1]))


def least_squares(Z: np.ndarray, X: np.ndarray) -> np.ndarray:
    centred = X - X.mean(axis=0)
    return Z - centred @ np.linalg.lstsq(centred, Z, rcond=None)[0]


def oracle(Z: np.ndarray, X: np.ndarray) -> np.ndarray:
    z, x = torch.from_numpy(Z), torch.from_numpy(X)
    return OracleEraser.fit(z, x)(z, x).numpy()


#: Of features and protected columns.
METHODS: dict[str, Correct] = {
    OURS: ours("protected", copy=True),
    IN_PLACE: ours("protected", copy=False),
    ORACLE: oracle,
    LSTSQ: least_squares,
    ALONE: ours("features", copy=True),
    ALONE_IN_PLACE: ours("features", copy=False),
    LEACE: leace,
}
#: Of features with the protected columns behind them, and these.
JOINT: dict[str, Correct] = {
    INSIDE: lambda A, X: sq.LinearOrthogonalizer(protected=last(A, X.shape[1])).fit_transform(A),
    FAIRLEARN: lambda A, X: CorrelationRemover(sensitive_feature_ids=last(A, X.shape[1])).fit_transform(A),
}
NAMES = (OURS, IN_PLACE, INSIDE, FAIRLEARN, ORACLE, LSTSQ, ALONE, ALONE_IN_PLACE, LEACE)
PACKAGES = {FAIRLEARN: "fairlearn", ORACLE: "concept-erasure", LSTSQ: "numpy", LEACE: "concept-erasure"}


def calls(n: int, q: int, p: int, names: tuple[str, ...]) -> dict[str, Callable[[], np.ndarray]]:
    """Each method with its data; what corrects in place has a copy of its own."""
    Z, X = draw(n, q, p)
    joint = np.hstack([Z, X]) if set(names) & JOINT.keys() else None
    found: dict[str, Callable[[], np.ndarray]] = {}
    for name in names:
        method = METHODS.get(name) or JOINT[name]
        data = joint if name in JOINT else Z.copy() if "in place" in name and len(names) > 1 else Z
        found[name] = lambda method=method, data=data: method(data, X)
    return found


def look(name: str, n: int, q: int, p: int) -> dict[str, float]:
    """Peak memory beyond the data, in multiples of the features, and the largest correlation that is left."""
    calls(1000, q, p, (name,))[name]()  # what is loaded on the way is no part of the work
    call = calls(n, q, p, (name,))[name]
    forget_peak()
    before = peak_mb()
    corrected = call()
    memory = (peak_mb() - before) * 1e6 / (8 * n * q)
    X = draw(n, q, p)[1]
    X -= X.mean(axis=0)
    corrected = corrected - corrected.mean(axis=0)
    left = X.T @ corrected / np.linalg.norm(X, axis=0)[:, None] / np.linalg.norm(corrected, axis=0)
    return {"memory": memory, "correlation": float(np.abs(left).max())}


def clock(n: int, q: int, p: int, rounds: int) -> dict[str, tuple[float, ...]]:
    """Seconds of each round, after one in which memory is found and libraries are loaded."""
    # The second time, features from which directions are gone are collinear: that one is not timed.
    todo = calls(n, q, p, tuple(name for name in NAMES if name != ALONE_IN_PLACE))
    timed = interleave({name: lambda call=call: call() is None for name, call in todo.items()}, rounds + 1)
    return {name: each.seconds[1:] for name, each in timed.items()}


def run(rows: int = 1_000_000, features: int = 100, protected: int = 10, rounds: int = 5) -> dict[str, Any]:
    looks = {name: in_child(look, name, rows, features, protected) for name in steps(NAMES, "memory")}
    timed = in_child(clock, rows, features, protected, rounds, **KEEP_MEMORY)
    size = f"{rows} x {features}, {protected} protected columns"
    what, alone = f"C^l, {size}", f"C^l without protected columns to predict, {size}"

    def over(what: str, mine: str, peer: str, limit: float | None) -> Ratio:
        return Ratio.over(what, (mine, timed[mine]), (peer, timed[peer]), PACKAGES[peer], limit)

    return plain(
        {
            "ratios": [
                over(what, OURS, FAIRLEARN, 1 / 3),
                over(what, INSIDE, FAIRLEARN, 1 / 3),
                over(what, OURS, ORACLE, None),
                over(what, OURS, LSTSQ, None),
                over(alone, ALONE, LEACE, 1 / 3),
                over(what, OURS, LEACE, 1 / 3),
            ],
            "bounds": [
                *(Bound(f"memory beyond the data, {m}", looks[m]["memory"], 1.3, "x data") for m in (OURS, ALONE)),
                *(
                    Bound(f"memory beyond the data, {m}", looks[m]["memory"], 0.1, "x data")
                    for m in (IN_PLACE, ALONE_IN_PLACE)
                ),
            ],
            "size": size,
            "seconds": timed,
            "looks": looks,
        }
    )


def show(result: dict[str, Any]) -> None:
    print(f"**C^l, {result['size']}**\n")
    columns = ("", "seconds (quartiles)", "memory beyond the data / features", "largest abs. correlation left")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name, found in result["looks"].items():
        seconds = result["seconds"].get(name)
        low, median, high = np.percentile(seconds, [25, 50, 75]) if seconds else 3 * (np.nan,)
        time = f"{median:.2f} ({low:.2f}-{high:.2f})" if seconds else ""
        print(f"| {name} | {time} | {found['memory']:.2f} | {found['correlation']:.0e} |")
    ratios = ", ".join(f"{r['ours']} / {r['peer']} {digits(r['median'])}" for r in result["ratios"])
    print(f"\nRatios of times, medians of rounds: {ratios}.")


if __name__ == "__main__":
    main(run, show, QUICK)
