"""The paper's simulation (``fig:glmsim`` to ``fig:glmsim6``): effects and p-values after both corrections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress
from scipy import stats

from studies.paper import figures
from studies.paper.cells import Cells
from studies.paper.names import MDMM, symbol
from studies.paper.record import Cell, Record, Table
from studies.paper.simulation import (
    BEFORE,
    EXACT,
    LINEAR,
    LINEAR_BEFORE,
    NEW,
    PLAIN,
    SEED,
    SEEN,
    Draw,
    measure,
    median,
    pool,
    settings,
    share,
)

#: The paper's optimiser takes tens of times as long: this many of its steps, and in the first repeat only.
STEPS, QUICK_STEPS = 3000, 100
#: A draw outside of the paper's condition q > p.
NOT_FITTED = "not fitted: p = q"
#: What the paper says of each; it prints no numbers.
PRINTED = {
    PLAIN: "non-zero, p very small",
    LINEAR_BEFORE: "close to 0, p close to 1",
    EXACT: "close to 0, p close to 1",
}
MISSED = (
    "The paper's own boxes: it prints no numbers, so the column repeats its words. Its code draws coefficients without "
    "a common scale, so that Poisson means would grow with p and rho; here the linear predictor has the standard "
    "deviation 1 in every setting. It also has other standard deviations (Z 0.5 or 0.1, noise of X 0.1) and another "
    "grid (p 2, 5, 10; q 10, 50, 100) than the text, which is followed here."
)
#: Corrections and rows of panels in the figure.
DRAWN = (PLAIN, LINEAR_BEFORE, LINEAR, EXACT)
PANELS = {
    (SEEN, "effect"): "|effect|",
    (SEEN, "model"): "p, model",
    (NEW, "effect"): "|effect|",
    (NEW, "HC3"): "p, HC3",
}
#: Share of p-values below 0.05 on new rows by chance: the errors of the fit double the variance of z.
CHANCE = 2.0 * float(stats.norm.sf(stats.norm.isf(0.025) / 2.0**0.5))
#: Where effects of zero are drawn on a logarithmic axis.
FLOOR = 1e-17


def run(*, quick: bool, cells: Cells, progress: Progress) -> Record:
    """Run the whole grid."""
    grid = settings(quick=quick)
    steps = QUICK_STEPS if quick else STEPS
    work = [(setting, 0) for setting in grid]
    work += [(setting, steps) for setting in grid if setting.repeat == 0 and setting.q > setting.p]
    task = progress.add_task("simulation", total=len(work))
    exact: list[Draw] = []
    paper: list[Draw] = []
    for setting, mdmm in work:
        key = asdict(setting) | {"seed": SEED, "solver": f"mdmm, {mdmm} steps" if mdmm else "sqp"}
        (paper if mdmm else exact).append(Draw(setting, cells(key, partial(measure, setting, mdmm))))
        progress.advance(task)
    draws = exact + paper
    solved = [draw for draw in exact if EXACT in draw.result["found"]]
    tables = (_by_method(draws), _by_size(solved), _by_status(draws))
    seconds = sum(draw.result["seconds"] for draw in exact), sum(draw.result["seconds"] for draw in paper)
    data = {"boxes": _boxes(exact), "seconds": dict(zip(("grid", "mdmm"), seconds, strict=True)), "new": shares(solved)}
    reasons = _on_training_rows(exact, paper, steps) + _on_new_rows(solved)
    return Record("fig-sim", "Simulation: effects and p-values", tables, reasons, data, (MISSED,))


def _by_method(draws: Sequence[Draw]) -> Table:
    columns = (
        *("family", "rho", "correction", "the paper", "training rows: median effect", "largest effect"),
        *("median p, model errors", "new rows: median effect", "p < .05, model errors", "p < .05, HC3"),
    )
    rows: list[tuple[Cell, ...]] = []
    for name, rho in dict.fromkeys((draw.setting.family, draw.setting.rho) for draw in draws):
        chosen = [draw for draw in draws if (draw.setting.family, draw.setting.rho) == (name, rho)]
        for method in (BEFORE, PLAIN, LINEAR_BEFORE, LINEAR, EXACT, MDMM):
            seen = pool(chosen, method, SEEN, "effect")
            on_seen = median(seen), float(seen.max()), median(pool(chosen, method, SEEN, "model"))
            shares = (share(pool(chosen, method, NEW, errors)) for errors in ("model", "HC3"))
            on_new = median(pool(chosen, method, NEW, "effect")), *shares
            rows.append((name, rho, method, PRINTED.get(method, ""), *on_seen, *on_new))
    return Table("Size of the effects of the protected columns, over all p, q and n", columns, rows)


def _by_size(draws: Sequence[Draw]) -> Table:
    corrections = (PLAIN, LINEAR, EXACT)
    measures = (f"{method}: {what}" for method in corrections for what in ("median effect", "p < .05"))
    rows: list[tuple[Cell, ...]] = []
    for n, q in sorted({(draw.setting.n, draw.setting.q) for draw in draws}):
        chosen = [draw for draw in draws if (draw.setting.n, draw.setting.q) == (n, q)]
        row: list[Cell] = [n, q]
        for method in corrections:
            row += [median(pool(chosen, method, NEW, "effect")), share(pool(chosen, method, NEW, "HC3"))]
        rows.append(tuple(row))
    return Table("New rows by size, with HC3 errors, over families, rho and p < q", ("n", "q", *measures), rows)


def _by_status(draws: Sequence[Draw]) -> Table:
    sizes = sorted({(draw.setting.n, draw.setting.q) for draw in draws})
    counts: dict[tuple[Cell, ...], Counter[tuple[int, int]]] = {}
    for draw in draws:
        status, s = draw.result["status"], draw.setting
        for method in (MDMM,) if MDMM in status else (PLAIN, LINEAR, EXACT):
            counts.setdefault((s.family, method, status.get(method, NOT_FITTED)), Counter())[s.n, s.q] += 1
    rows = [(*key, *(found[size] for size in sizes)) for key, found in sorted(counts.items(), key=str)]
    columns = ("family", "correction", "how the fit ended", *(f"n = {n}, q = {q}" for n, q in sizes))
    return Table("How the fits ended: number of draws, over rho and p", columns, rows)


def _on_training_rows(draws: Sequence[Draw], paper: Sequence[Draw], steps: int) -> tuple[str, ...]:
    solved = [draw for draw in draws if EXACT in draw.result["found"]]
    effects, correlation = pool(draws, EXACT, SEEN, "effect"), max(d.result["correlation"][EXACT] for d in solved)
    tight = [draw for draw in draws if (draw.setting.n, draw.setting.q) == (200, 100)]
    flat = {name: sum(draw.result["status"].get(name) == "flat" for draw in tight) for name in (PLAIN, LINEAR, EXACT)}
    loss = {draw.setting: draw.result["loss"][EXACT] for draw in solved}
    excess = median(np.asarray([draw.result["loss"][MDMM] - loss[draw.setting] for draw in paper]))
    missing = sum(_missing(draw) for draw in (*draws, *paper))
    return (
        f"Training rows: the largest of {len(effects)} effects after {EXACT} is {effects.max():.1e}, the largest "
        f"correlation {correlation:.1e}. Where 0 is shown the evaluation model, which starts there, had nothing to "
        "improve (relative gradient of at most 1e-11). The constraint imposes p = 1, which tells nothing of new rows.",
        f"{len(draws) - len(solved)} of {len(draws)} draws have p = q. The Limitations ask for q > p (Section 2: q >= "
        f"p), so {EXACT} was not fitted to these; they are counted, and are in none of its boxes (the authors' C^h has "
        "all columns of Z there).",
        "n = 200, q = 100: coefficients that the data hardly determine (separation) are called flat, in "
        + ", ".join(f"{count} ({name})" for name, count in flat.items())
        + f" of {len(tight)} draws. The constraint holds in these, too.",
        "Classical (C^l) is exact before the activation only: after it effects of up to "
        f"{pool(draws, LINEAR, SEEN, 'effect').max():.2g} are left on the training rows.",
        f"MDMM (at most {steps} steps, first repeat only) leaves effects of up to "
        f"{pool(paper, MDMM, SEEN, 'effect').max():.1e}, and a mean loss {abs(excess):.2g} "
        f"{'below' if excess < 0.0 else 'above'} the exact one (median).",
        f"{missing} effects or p-values could not be computed.",
    )


def shares(draws: Sequence[Draw]) -> dict[str, float]:
    """Share of p-values below 0.05 on new rows by method, where features tell of X and there are more than 200 rows."""
    large = [draw for draw in draws if draw.setting.n > 200 and draw.setting.rho > 0]
    return {m: share(pool(large, m, NEW, "HC3")) for m in (PLAIN, LINEAR, EXACT)}


def _on_new_rows(draws: Sequence[Draw]) -> tuple[str, ...]:
    chance = CHANCE
    largest = max(draw.setting.n for draw in draws)
    most = [draw for draw in draws if draw.setting.n == largest and draw.setting.rho > 0]
    unrelated = [draw for draw in draws if draw.setting.rho == 0]
    found = shares(draws)
    free = {m: share(pool(unrelated, m, NEW, "HC3")) for m in (PLAIN, LINEAR, EXACT)}
    effects = {m: median(pool(most, m, NEW, "effect")) for m in (PLAIN, LINEAR, EXACT)}
    of = {name: [draw for draw in draws if draw.setting.family == name] for name in ("binomial", "poisson")}
    model = " and ".join(f"{share(pool(of[name], EXACT, NEW, 'model')):.1%} ({name})" for name in of)
    robust = " and ".join(f"{share(pool(of[name], EXACT, NEW, 'HC3')):.1%}" for name in of)
    return (
        "New rows, rho > 0: what was fitted to n rows is off by as much as a sum over n new rows, so z has about the "
        f"variance 2, and p < 0.05 the chance {chance:.1%} instead of 5 %. With more than 200 rows and HC3 errors it "
        f"is {found[EXACT]:.1%} for C^h and {found[LINEAR]:.1%} for C^l ({found[PLAIN]:.1%} without correction). The "
        f"effects themselves vanish: with {largest} rows their median is {effects[EXACT]:.1e} for C^h and "
        f"{effects[LINEAR]:.1e} for C^l ({effects[PLAIN]:.1e} without).",
        "C^l after the activation does so well because Z and X are jointly normal here, which makes Z without its "
        "regression on X independent of X. fig1 has data where it does not.",
        f"New rows, rho = 0: the features know nothing of the protected columns, and p < 0.05 in {free[PLAIN]:.1%} "
        f"without correction and {free[EXACT]:.1%} for C^h. C^l has {free[LINEAR]:.1%}: it takes estimated effects of "
        "X off the features, and so brings X in. On the training rows it is "
        f"{share(pool(unrelated, PLAIN, SEEN, 'HC3')):.1%} without correction, because X acts on the outcome that the "
        "model was fitted to.",
        f"The paper's model-based errors give p < 0.05 in {model} of the effects that C^h leaves on new rows, HC3 in "
        f"{robust}: model-based errors belong to outcomes, and do not know how predictions vary.",
    )


def _missing(draw: Draw) -> int:
    found = (values for by_rows in draw.result["found"].values() for values in by_rows.values())
    return sum(value is None for values in found for measured in values.values() for value in measured)


def _boxes(draws: Sequence[Draw]) -> list[dict[str, Any]]:
    """Quantiles (5, 25, 50, 75 and 95 %) of every box of the figure."""
    boxes = []
    for name, rho, n in dict.fromkeys((d.setting.family, d.setting.rho, d.setting.n) for d in draws):
        chosen = [d for d in draws if (d.setting.family, d.setting.rho, d.setting.n) == (name, rho, n)]
        for method, (rows, measured) in product(DRAWN, PANELS):
            quantiles = np.quantile(pool(chosen, method, rows, measured), (0.05, 0.25, 0.5, 0.75, 0.95))
            key = {"family": name, "rho": rho, "n": n, "correction": method, "rows": rows, "measure": measured}
            boxes.append(key | {"quantiles": quantiles.tolist()})
    return boxes


def draw(record: Record, path: Path) -> list[Path]:
    """Draw a figure for each family: box plots of effects and p-values against n, a column for each rho."""
    families = dict.fromkeys(box["family"] for box in record.data["boxes"])
    return [_draw_family(record, name, path.with_name(f"{path.stem}_{name}.png")) for name in families]


def _draw_family(record: Record, name: str, path: Path) -> Path:
    boxes = [box for box in record.data["boxes"] if box["family"] == name]
    rhos, sizes = (list(dict.fromkeys(box[key] for box in boxes)) for key in ("rho", "n"))
    figure, axes = figures.subplots(len(PANELS), len(rhos), height=5.6, sharex=True, sharey="row")
    for (i, panel), (j, rho) in product(enumerate(PANELS), enumerate(rhos)):
        axis = axes[i, j]
        for box in boxes:
            if (box["rho"], (box["rows"], box["measure"])) == (rho, panel):
                _draw_box(axis, box, sizes)
        _scale(axis, *panel)
        if i == 0:
            axis.set_title(f"{name}, $\\rho$ = {rho}")
        if j == 0:
            axis.set_ylabel(f"{PANELS[panel]}\n{panel[0]}")
    for axis in axes[-1]:
        axis.set_xticks(range(len(sizes)), [str(n) for n in sizes])
        axis.set_xlabel("rows n")
    handles = [
        axes[0, 0].plot([], [], "s", color=figures.COLOURS[k], label=symbol(m).replace("before h", "before $h$"))[0]
        for k, m in enumerate(DRAWN)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(DRAWN), frameon=False, fontsize=8)
    return figures.save(figure, path)


def _draw_box(axis: Any, box: dict[str, Any], sizes: Sequence[int]) -> None:
    k = DRAWN.index(box["correction"])
    names, colour = ("whislo", "q1", "med", "q3", "whishi"), figures.COLOURS[k]
    values = np.maximum(box["quantiles"], FLOOR) if box["measure"] == "effect" else box["quantiles"]
    axis.bxp(
        [dict(zip(names, values, strict=True))],
        positions=[sizes.index(box["n"]) + 0.2 * (k - 1.5)],
        widths=0.16,
        showfliers=False,
        showcaps=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": (colour, 0.4), "linewidth": 0.0},
        medianprops={"color": colour, "linewidth": 1.4},  # all that is seen of a box without height
        whiskerprops={"color": colour, "linewidth": 0.8},
    )


def _scale(axis: Any, rows: str, measured: str) -> None:
    axis.grid(axis="y")
    axis.set_axisbelow(True)
    if measured != "effect":
        axis.set_ylim(-0.06, 1.06)
        return
    axis.set_yscale("log")
    if rows == SEEN:
        axis.set_yticks([FLOOR, 1e-12, 1e-6, 1.0], ["0", "$10^{-12}$", "$10^{-6}$", "1"])
        axis.set_ylim(FLOOR / 30.0, 30.0)
    axis.minorticks_off()
