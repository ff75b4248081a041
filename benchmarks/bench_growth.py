"""Growth of time and memory with rows n, features q and protected columns p.

    python -m benchmarks.bench_growth               # about 9 minutes

A corrected binomial fit (features in float32, as `setsquare.solve` takes them, its solver chosen by `auto`), the
linear correction C^l (fit and transform) and the audit are timed on generated data. Each point is a process of its own,
and each round visits all points, so that a busy moment of the machine does not fall on one size alone. The exponent is
the slope of least squares of log time on log size, over the upper sizes that `FITTED` names, where fixed costs are
gone; one in each round, of which the median and the range are given. Time by iteration is that of the whole fit over
its iterations: moments, certificate and all. Memory is the peak of the process from the start of the fit on: data,
interpreter and imports included.

The last point, a million rows x 100 features and 10 protected columns, is what docs/how_it_scales.md estimates a
cluster from, together with the bytes that such a fit sends for each block of rows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.frame import Bound, main, plain, steps
from benchmarks.measure import forget_peak, in_child, peak_mb

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
#: What is timed, the size that grows, its values, and the other sizes.
CURVES: dict[str, tuple[str, str, tuple[int, ...], dict[str, int]]] = {
    "fit, n": ("fit", "n", SIZES, {"q": 20, "p": 3}),
    "linear, n": ("linear", "n", SIZES, {"q": 20, "p": 3}),
    "audit, n": ("audit", "n", SIZES, {"q": 0, "p": 3}),
    "fit, q": ("fit", "q", (10, 20, 50, 100, 200, 400, 700, 1000, 2000, 4000), {"n": 20_000, "p": 3}),
    "fit, p": ("fit", "p", (1, 2, 5, 10, 20, 50, 100), {"n": 50_000, "q": 150}),
}
#: Sizes from which on an exponent is fitted; in q for each solver.
FITTED = {"n": 300_000, "q": 100, "p": 10}
UNIT = {"n": 1_000_000, "q": 100, "p": 10}
QUICK = {"rounds": 2, "share": 0.02}


def draw(n: int, q: int, p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features in single precision that know the protected columns, an outcome, protected columns; half are groups."""
    rng = np.random.default_rng(0)
    mixing, slope = 0.3 * rng.normal(size=(p, q)) / np.sqrt(p), rng.normal(size=max(q, 1)) / np.sqrt(max(q, 1))
    Z, y, X = np.empty((n, q), dtype=np.float32), np.empty(n), np.empty((n, p))
    for start in range(0, n, 100_000):
        rows = slice(start, min(start + 100_000, n))
        X[rows] = rng.normal(size=X[rows].shape)
        X[rows, ::2] = X[rows, ::2] > 0.5
        Z[rows] = X[rows] @ mixing
        Z[rows] += rng.standard_normal(Z[rows].shape, dtype=np.float32)
        eta = (Z[rows] @ slope[:q] if q else rng.normal(size=len(y[rows]))) + 0.3 * X[rows, 0]
        y[rows] = rng.random(len(eta)) < 1.0 / (1.0 + np.exp(-eta)) if q else 1.0 / (1.0 + np.exp(-eta))
    return Z, y, X


def fit(Z: np.ndarray, y: np.ndarray, X: np.ndarray) -> dict[str, Any]:
    from setsquare.glm.problem import Problem
    from setsquare.glm.solver import solve

    solution = solve(Problem(Z, y, X, family="binomial"))
    left = solution.certificate.max_correlation
    return {"n_iter": solution.n_iter, "solver": solution.solver, "status": solution.status.name, "correlation": left}


def linear(Z: np.ndarray, y: np.ndarray, X: np.ndarray) -> dict[str, Any]:
    from setsquare import LinearOrthogonalizer

    LinearOrthogonalizer().fit(Z, protected=X).transform(Z, protected=X)
    return {}


def audit(Z: np.ndarray, y: np.ndarray, X: np.ndarray) -> dict[str, Any]:
    from setsquare import audit as audit_

    audit_(y, X, family="binomial")
    return {}


WORK: dict[str, Callable[..., dict[str, Any]]] = {"fit": fit, "linear": linear, "audit": audit}


def point(kind: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Time one call in this process."""
    work = WORK[kind]
    work(*draw(1000, min(sizes["q"], 20), 3))  # what is imported on the way is no part of the work
    data = draw(**sizes)
    forget_peak()
    start = time.perf_counter()
    about = work(*data)
    seconds = time.perf_counter() - start
    stored = sum(part.nbytes for part in data) / 1e6
    return about | sizes | {"seconds": seconds, "peak": peak_mb(), "data": stored}


@dataclass(slots=True)
class Listening:
    """Rows that note what a kernel weighs, and what it returns; on their way to a worker they are left behind."""

    rows: Any
    n_rows: int
    heard: dict[str, int] = field(default_factory=dict)

    def reduce(self, kernel: Any) -> Any:
        import cloudpickle

        sums = self.rows.reduce(kernel)
        self.heard |= {"sums": sum(part.nbytes for part in sums), "task": len(cloudpickle.dumps(kernel))}
        return sums

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ()


def traffic(q: int, p: int) -> dict[str, int]:
    """Bytes of an iteration on a cluster: sums of each block of rows, and the task that workers are sent."""
    from setsquare.glm.preparation import prepare
    from setsquare.glm.problem import Problem

    Z, y, X = draw(20 * q, q, p)
    objective = prepare(Problem(Z, y, X, family="binomial")).objective
    rows = Listening(objective.rows, objective.rows.n_rows)
    replace(objective, rows=rows).model(objective.start.theta, np.zeros(objective.n_constraints))
    return rows.heard


def slopes(rounds: list[dict[int, float]]) -> dict[str, Any]:
    """Exponent of each round: slope of log value on log size."""
    each = [np.polyfit(np.log(list(values)), np.log(list(values.values())), 1)[0] for values in rounds]
    sizes = list(rounds[0])
    return {"median": np.median(each), "low": min(each), "high": max(each), "from": sizes[0], "to": sizes[-1]}


def exponents(points: dict[str, list[dict[str, Any]]], share: float) -> list[dict[str, Any]]:
    """Of the whole time and of the time by iteration, for each solver, over the upper sizes."""
    found = []
    for name, visits in points.items():
        kind, size, *_ = CURVES[name]
        upper = [visit for visit in visits if visit[size] >= share * FITTED[size]]
        for solver in sorted({visit.get("solver", "") for visit in upper}):
            rounds: dict[int, list[dict[str, Any]]] = defaultdict(list)
            for visit in upper:
                if visit.get("solver", "") == solver:
                    rounds[visit["round"]].append(visit)
            if min(map(len, rounds.values())) < 2:
                continue
            line = {"kind": kind, "size": size, "solver": solver}
            line["time"] = slopes([{v[size]: v["seconds"] for v in each} for each in rounds.values()])
            if solver:
                line["iteration"] = slopes(
                    [{v[size]: v["seconds"] / v["n_iter"] for v in each} for each in rounds.values()]
                )
            found.append(line)
    return found


def run(rounds: int = 3, share: float = 1.0) -> dict[str, Any]:
    """Visit all sizes up to a share of the largest."""
    todo = [
        (turn, name, others | {size: value})
        for turn in range(rounds)
        for name, (_, size, values, others) in CURVES.items()
        for value in values
        if value <= share * values[-1]
    ]
    points: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for turn, name, sizes in steps(todo, "growth"):
        points[name].append({"round": turn} | in_child(point, CURVES[name][0], sizes))
    unit = [in_child(point, "fit", UNIT | {"n": int(share * UNIT["n"])}) for _ in steps(range(rounds), "unit")]
    lines = exponents(points, share)
    names = {"fit": "corrected binomial fit", "linear": "C^l", "audit": "audit"}
    bounds = [
        Bound(f"exponent of time in n, {names[line['kind']]}", line["time"]["median"], 1.1, least=0.9)
        for line in lines
        if line["size"] == "n"
    ]
    return plain(
        {"bounds": bounds, "exponents": lines, "points": points, "unit": unit, "traffic": traffic(UNIT["q"], UNIT["p"])}
    )


def show(result: dict[str, Any]) -> None:
    print("| work | size | seconds | iterations | s by iteration | peak MB | data MB |\n" + "|---" * 7 + "|")
    for name, visits in result["points"].items():
        size = CURVES[name][1]
        for value in dict.fromkeys(visit[size] for visit in visits):
            same = [visit for visit in visits if visit[size] == value]
            seconds, first = float(np.median([visit["seconds"] for visit in same])), same[0]
            each = [str(first["n_iter"]), f"{seconds / first['n_iter']:.4f}"] if "n_iter" in first else ["", ""]
            work = f"{name.partition(',')[0]} {first.get('solver', '')}".strip()
            cells = [work, f"{size} = {value}", f"{seconds:.3f}", *each, f"{first['peak']:.0f}", f"{first['data']:.0f}"]
            print(f"| {' | '.join(cells)} |")
    print("\n| work | exponent in | of the time | by iteration | sizes |\n" + "|---" * 5 + "|")
    for line in result["exponents"]:
        cells = [
            f"{part['median']:.2f} ({part['low']:.2f} to {part['high']:.2f})" if part else ""
            for part in (line["time"], line.get("iteration"))
        ]
        work, span = f"{line['kind']} {line['solver']}".strip(), f"{line['time']['from']} to {line['time']['to']}"
        print(f"| {work} | {line['size']} | {' | '.join(cells)} | {span} |")
    unit, sent = result["unit"], result["traffic"]
    rate = [1e6 * visit["seconds"] / visit["n"] / visit["n_iter"] for visit in unit]
    print(
        f"\n{unit[0]['n']} x {unit[0]['q']}, p = {unit[0]['p']}: {np.median(rate):.2f} us by row and iteration; {sent}"
    )


if __name__ == "__main__":
    main(run, show, QUICK)
