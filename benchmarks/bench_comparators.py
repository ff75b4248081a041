"""Comparators: beside R's times on paper, and Berk's individual fairness as the rows grow, beside an ordinary fit.

    python -m benchmarks.bench_comparators          # about 2 minutes

R's times are no part of the run, so these ratios hold between machines, and only in their order of size: those of
Table 6 of Rügamer et al. (2024), and those of their code and fairml 0.8 run again on another machine with two cores.
Berk on COMPAS is printed with 1.18 s where R, run again, took 117 s.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.frame import ON_PAPER, Ratio, main, plain, steps
from benchmarks.measure import interleave, peak_bytes
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve
from studies.comparators import COMPARATORS, available
from studies.paper import benchmark_sets, table6

QUICK = {"rounds": 1, "largest": 20_000}
SETS = ("compas", "health", "bank")
SOURCE = "Table 6 of Rügamer et al. (2024), another machine"


def beside_r(rounds: int) -> tuple[list[Ratio], dict[str, Any]]:
    ratios, found = [], {}
    for name in steps([name for name in SETS if name in benchmark_sets.names()], "beside R"):
        data = benchmark_sets.load(name)
        methods = (table6.OURS, *available(data.family))
        timed = interleave({key: lambda key=key, data=data: table6.measure(data, key) for key in methods}, rounds)
        found[name] = {}
        for method, each in timed.items():
            r = {"printed": table6.published(name, method), "again": table6.in_r(name, method)}
            found[name][method] = {"rows": len(data.y), "seconds": each.seconds} | r
            if r["printed"]:
                what = f"{'corrected fit' if method == table6.OURS else method}, {name} {len(data.y)} rows"
                paper = ("R", [r["printed"]] * rounds)
                ratios.append(Ratio.over(what, ("setsquare", each), paper, SOURCE, of=ON_PAPER))
    return ratios, found


def berk_as_the_rows_grow(largest: int, rounds: int) -> tuple[list[Ratio], list[dict[str, Any]]]:
    rng = np.random.default_rng(0)
    ratios, found = [], []
    for n in steps([n for n in (20_000, 100_000, 500_000) if n <= largest], "rows grow"):
        X = rng.normal(size=(n, 3))
        Z = X @ rng.normal(size=(3, 10)) * 0.3 + rng.normal(size=(n, 10))
        eta = 0.3 * Z[:, 0] + 0.3 * X[:, 0]
        for family, y in (("gaussian", eta + rng.normal(size=n)), ("poisson", rng.poisson(np.exp(eta)).astype(float))):
            berk, ordinary = COMPARATORS["berk-if"](family=family), Problem(np.hstack([Z, X]), y, family=family)
            timed = interleave({"berk": lambda: berk.fit(Z, y, X), "fit": lambda: solve(ordinary)}, rounds)  # noqa: B023
            ours, peer = ("berk-if", timed["berk"]), ("ordinary fit", timed["fit"])
            ratios.append(Ratio.over(f"individual fairness, {family}, {n} x 13", ours, peer, "setsquare"))
            memory = peak_bytes(lambda: berk.fit(Z, y, X)) / Z.nbytes  # noqa: B023
            row = {"family": family, "n": n, "seconds": timed["berk"].seconds, "memory": memory}
            found.append(row | {"ordinary_fits": ratios[-1].median, "unfairness": berk.fairness_})
    return ratios, found


def run(rounds: int = 5, largest: int = 500_000) -> dict[str, Any]:
    r_ratios, sets = beside_r(rounds)
    ratios, growth = berk_as_the_rows_grow(largest, rounds)
    return plain({"ratios": [*r_ratios, *ratios], "sets": sets, "growth": growth})


def show(result: dict[str, Any]) -> None:
    print("Seconds, medians\n\n| data | rows | method | here | printed | R, run again |\n" + "|---" * 6 + "|")
    for name, methods in result["sets"].items():
        for method, each in methods.items():
            r = ["" if each[key] is None else f"{each[key]:.2f}" for key in ("printed", "again")]
            cells = [name, str(each["rows"]), method, f"{np.median(each['seconds']):.3f}", *r]
            print(f"| {' | '.join(cells)} |")
    print("\nBerk's individual fairness, continuous outcome and counts, 10 features, 3 protected columns")
    for row in result["growth"]:
        seconds = float(np.median(row["seconds"]))
        print(
            f"  {row['family']:<9} n = {row['n']:>7}  {seconds:6.2f} s, {1e6 * seconds / row['n']:5.2f} s a million "
            f"rows, {row['ordinary_fits']:4.1f} ordinary fits; memory {row['memory']:.1f} times the features; "
            f"unfairness {row['unfairness']:.9f}"
        )


if __name__ == "__main__":
    main(run, show, QUICK)
