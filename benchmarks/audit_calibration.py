"""Do the audit's p-values and bounds keep their promises? A simulation, with a figure.

    python -m benchmarks.audit_calibration            # about 30 minutes on 2 cores
    python -m benchmarks.audit_calibration --quick    # a tenth of the repetitions

Three questions. *Size*: predictions that are independent of the protected column are called a leak in 5 % of the
samples, no more and no less. *Power*: how often a leak is found, beside the most that any test could reach. *Coverage*:
how often the certificate's upper bounds hold. The paper's model-based errors run beside the default.
Permutation tests are exact for any number of permutations and trees, so small forests do.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

import setsquare as sq
from setsquare import tables
from setsquare.auditing.evaluations.forest import forest_importances, forest_r2
from setsquare.auditing.evaluations.independence import independence

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "audit_calibration.json"
FIGURE = HERE.parent / "docs" / "images" / "audit_calibration.png"
KINDS = ("binary", "continuous", "4 levels")
SIZES = (500, 2000)
FAMILIES = ("binomial", "poisson")
NOMINAL = 0.05
#: With 39 permutations a p-value of at most 0.05 has a chance of exactly 2/40 under independence.
N_PERMUTATIONS = 39
TESTS: dict[str, dict[str, Any]] = {
    "default (HC3)": {},
    "paper (model-based)": {"vcov": "model"},
    "linear": {"evaluation": "linear"},
}
PERMUTATION_TESTS = (
    "relu",
    "tensor (12 units)",
    "mutual information",
    "distance correlation",
    "hsic",
    "forest R²",
    "forest importance",
)


#: Tests that take long have so many times fewer samples, and half of that for the larger n.
SLOW = {"relu": 2, "distance correlation": 2, "hsic": 2, "forest R²": 2, "forest importance": 10}


def draw_protected(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """A protected column of the kind; the levels as text."""
    if kind == "binary":
        return (rng.random(n) < 0.4).astype(float)
    if kind == "continuous":
        return rng.normal(size=n)
    return np.asarray(["a", "b", "c", "d"])[rng.choice(4, size=n, p=[0.4, 0.3, 0.2, 0.1])]


def effect_of(x: np.ndarray) -> np.ndarray:
    """What a leak of 1 adds to the linear predictor: the column, or 1 for the second level."""
    return (x == "b").astype(float) if x.dtype.kind == "U" else x


def draw_predictions(family: str, signal: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-signal)) if family == "binomial" else np.exp(0.5 * signal)


def p_value(name: str, y: np.ndarray, x: np.ndarray, family: str, seed: int = 0) -> float:
    """P-value of all protected columns together."""
    if name in TESTS:
        return sq.audit(y, x, family=family, **TESTS[name]).evaluations[0].joint.p_value
    if name.startswith("tensor"):
        return sq.audit(y, x, n_permutations=N_PERMUTATIONS, random_state=seed).p_value
    if name == "relu":
        options = {"evaluation": "relu", "n_permutations": N_PERMUTATIONS, "random_state": seed}
        return sq.audit(y, x, family=family, **options).p_value
    encoded = tables.learn(x).apply(x)
    X, sources, options = encoded.values, encoded.sources, {"n_permutations": N_PERMUTATIONS}
    rng = np.random.default_rng([seed, 1])
    if name == "forest R²":
        return forest_r2(y, X, rng=rng, n_trees=30, **options).p_value
    if name == "forest importance":
        found = forest_importances(y, X, encoded.names, sources, rng=rng, n_trees=10, **options)
        return found.by_source[sources[0]].p_value
    measure = name.replace(" ", "_")
    return independence(y, X, sources, rng=rng, measures=(measure,), **options)[0].joint.p_value


def draw_null(name: str, kind: str, n: int, family: str, seed: int) -> float:
    rng = np.random.default_rng([seed, n, len(kind), len(family), len(name)])
    x = draw_protected(kind, n, rng)
    if name.startswith("tensor"):
        return p_value(name, rng.normal(size=(n, 3, 1)) + rng.normal(size=(n, 1, 4)), x, family, seed)
    return p_value(name, draw_predictions(family, rng.normal(size=n)), x, family, seed)


def draw_leak(name: str, kind: str, spread: float, seed: int, n: int = 1000, leak: float = 0.2) -> float:
    rng = np.random.default_rng([seed, len(kind), int(10 * spread)])
    x = draw_protected(kind, n, rng)
    return p_value(name, draw_predictions("binomial", spread * rng.normal(size=n) + leak * effect_of(x)), x, "binomial")


def ceiling(kind: str, spread: float, n: int = 1000, leak: float = 0.2) -> float:
    """Power of the F test on the logits themselves, which are normal: no test can do better."""
    shares = {"binary": 0.4 * 0.6, "continuous": 1.0, "4 levels": 0.3 * 0.7}
    q = 3 if kind == "4 levels" else 1
    noncentrality = n * leak**2 * shares[kind] / spread**2
    limit = stats.f.ppf(1.0 - NOMINAL, q, n - q - 1)
    return float(stats.ncf.sf(limit, q, n - q - 1, noncentrality))


def covers(kind: str, leak: float, truth: tuple[float, float], seed: int, n: int = 1000) -> tuple[bool, bool]:
    """Whether the bounds on the correlation and on the odds ratio hold."""
    rng = np.random.default_rng([seed, len(kind), int(100 * leak)])
    x = draw_protected(kind, n, rng)
    y = draw_predictions("binomial", rng.normal(size=n) + leak * effect_of(x))
    certificate = sq.audit(y, x).certificate
    column = next(c for c in certificate.columns if kind != "4 levels" or c.term.endswith("[b]"))
    return certificate.correlation_upper >= truth[0], column.effect_upper >= truth[1]


def population(kind: str, leak: float) -> tuple[float, float]:
    """Correlation and odds ratio in four million rows."""
    rng = np.random.default_rng(0)
    n = 4_000_000
    x = draw_protected(kind, n, rng)
    y = draw_predictions("binomial", rng.normal(size=n) + leak * effect_of(x))
    certificate = sq.audit(y, x).certificate
    column = next(c for c in certificate.columns if kind != "4 levels" or c.term.endswith("[b]"))
    return certificate.correlation, column.effect


def rate(hits: list[bool]) -> dict[str, float]:
    low, high = stats.binomtest(sum(hits), len(hits)).proportion_ci(0.95)
    return {"rate": float(np.mean(hits)), "low": float(low), "high": float(high), "repetitions": len(hits)}


def simulate(
    repetitions: int,
    workers: int,
    keep: Callable[[dict[str, Any]], None],
    again: dict[str, Any] | None = None,
    only: str = "",
) -> dict[str, Any]:
    """Run everything, or one part: "coverage", "power", or the size of the tests whose name has `only` in it."""
    run = Parallel(n_jobs=workers, batch_size=16)

    def repeat(function: Callable[..., Any], *args: Any, times: int = repetitions) -> list[Any]:
        return list(run(delayed(function)(*args, seed) for seed in range(times)))

    results: dict[str, Any] = again or {"size": [], "power": [], "coverage": []}

    def add(part: str, cell: dict[str, Any]) -> None:
        results[part].append(cell)
        keep(results)

    def sizes(names: Iterable[str], families: tuple[str, ...]) -> None:
        cells = [(name, kind, n, family) for name in names for kind in KINDS for n in SIZES for family in families]
        for name, kind, n, family in track(cells, "size"):
            times = repetitions // SLOW.get(name, 1)
            if name in SLOW and n > SIZES[0]:
                times //= 2
            found = repeat(draw_null, name, kind, n, family, times=times)
            cell = {"test": name, "kind": kind, "n": n, "family": family}
            add("size", cell | rate([p <= NOMINAL for p in found]))

    def coverage() -> None:
        for kind in track(KINDS, "coverage"):
            for leak in (0.0, 0.1, 0.5):
                truth = population(kind, leak) if leak else (0.0, 1.0)
                found = repeat(covers, kind, leak, truth, times=max(1000, repetitions // 2))
                held = {"correlation": rate([a for a, _ in found]), "odds ratio": rate([b for _, b in found])}
                add("coverage", {"kind": kind, "leak": leak, "truth": truth} | held)

    def power() -> None:
        for name in track(TESTS, "power"):
            for kind in KINDS:
                for spread in (0.5, 1.0):
                    found = repeat(draw_leak, name, kind, spread, times=repetitions // 2)
                    cell = {"test": name, "kind": kind, "spread": spread, "ceiling": ceiling(kind, spread)}
                    add("power", cell | rate([p <= NOMINAL for p in found]))

    if only in ("coverage", "power"):
        results[only] = []
        coverage() if only == "coverage" else power()
        return results
    if only:
        names = [name for name in (*TESTS, *PERMUTATION_TESTS) if only in name]
        results["size"] = [cell for cell in results["size"] if cell["test"] not in names]
        for name in names:
            sizes([name], FAMILIES if name.startswith(("default", "paper")) else FAMILIES[:1])
        return results
    sizes(("default (HC3)", "paper (model-based)"), FAMILIES)
    coverage()
    power()
    sizes(("linear", *PERMUTATION_TESTS), FAMILIES[:1])
    return results


def show(results: dict[str, Any], console: Console) -> None:
    size = Table("test", "protected", "n", "family", "rejected", "95 % interval", title="Size, nominal 0.05")
    for c in results["size"]:
        mark = "" if 0.035 <= c["rate"] <= 0.065 else " *"
        size.add_row(
            c["test"],
            c["kind"],
            str(c["n"]),
            c["family"],
            f"{c['rate']:.4f}{mark}",
            f"{c['low']:.3f} to {c['high']:.3f}",
        )
    power = Table("test", "protected", "sd of logits", "found", "ceiling", title="Power, leak 0.2, n = 1000")
    for c in results["power"]:
        power.add_row(c["test"], c["kind"], f"{c['spread']:g}", f"{c['rate']:.4f}", f"{c['ceiling']:.4f}")
    cover = Table("protected", "leak", "true corr", "bound holds", "true odds ratio", "bound holds", title="Coverage")
    for c in results["coverage"]:
        numbers = (c["truth"][0], c["correlation"]["rate"], c["truth"][1], c["odds ratio"]["rate"])
        cover.add_row(c["kind"], f"{c['leak']:g}", *(f"{v:.3f}" for v in numbers))
    for table in (size, power, cover):
        console.print(table)
    console.print("* outside [0.035, 0.065]")


def draw_figure(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [name for name in (*TESTS, *PERMUTATION_TESTS) if any(c["test"] == name for c in results["size"])]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), gridspec_kw={"width_ratios": [1.7, 1]}, layout="constrained")
    colours = dict(zip(KINDS, ("#1f4e79", "#c55a11", "#548235"), strict=True))
    left, right = axes
    left.axvspan(0.035, 0.065, color="#e8eef4", zorder=0)
    left.axvline(NOMINAL, color="#8a99a8", lw=1, zorder=1)
    for i, name in enumerate(reversed(names)):
        cells = [c for c in results["size"] if c["test"] == name]
        for j, c in enumerate(cells):
            at = i + 0.7 * ((j + 0.5) / len(cells) - 0.5)
            left.plot([c["low"], c["high"]], [at, at], color=colours[c["kind"]], lw=1, alpha=0.6)
            left.plot(c["rate"], at, "o", ms=4, color=colours[c["kind"]])
    left.set_yticks(range(len(names)), list(reversed(names)))
    left.set_xlim(-0.004, 0.09)
    left.set_xlabel("share of independent predictions that are rejected at 0.05")
    left.set_title("Size: the shaded band is what is promised", loc="left", fontsize=10)
    handles = [plt.Line2D([], [], marker="o", ls="", color=colours[k], label=k) for k in KINDS]
    left.legend(handles=handles, title="protected", loc="lower left", fontsize=8, title_fontsize=8)
    cells = [c for c in results["power"] if c["test"] in ("default (HC3)", "paper (model-based)")]
    labels = [f"{k}, sd {s:g}" for k in KINDS for s in (0.5, 1.0)]
    for offset, (name, colour) in enumerate((("default (HC3)", "#1f4e79"), ("paper (model-based)", "#a6a6a6"))):
        rates = [c["rate"] for c in cells if c["test"] == name]
        right.barh(np.arange(len(labels)) + 0.2 - 0.4 * offset, rates, 0.38, color=colour, label=name)
    tops = [c["ceiling"] for c in cells if c["test"] == "default (HC3)"]
    right.plot(tops, np.arange(len(labels)) + 0.2, "|", color="#c55a11", ms=13, mew=2, label="most that is possible")
    right.set_yticks(range(len(labels)), labels)
    right.invert_yaxis()
    right.set_xlabel("share of leaks of 0.2 on the logit found, n = 1000")
    right.set_title("Power", loc="left", fontsize=10)
    right.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=3, frameon=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions, nothing written")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--figure-only", action="store_true", help="draw and print what was kept")
    parser.add_argument(
        "--only", default="", help="run coverage, power, or the size of these tests again, and keep the rest"
    )
    options = parser.parse_args()
    if options.figure_only:
        results = json.loads(RESULTS.read_text())
    elif options.quick:
        results = simulate(options.repetitions // 10, options.workers, keep=lambda results: None)
    else:
        RESULTS.parent.mkdir(exist_ok=True)
        kept = json.loads(RESULTS.read_text()) if options.only else None
        results = simulate(options.repetitions, options.workers, write, kept, options.only)
    show(results, Console(width=110))
    if not options.quick:
        draw_figure(results, FIGURE)


def write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
