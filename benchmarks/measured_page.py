"""Write docs/measured.md from the files in benchmarks/results: ``python -m benchmarks.measured_page``.

Every figure of that page is read from a file that the command beside it wrote; nothing is typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.frame import HERE
from benchmarks.page import folded, table

PAGE = HERE.parent / "docs" / "measured.md"
HEAD = """# What was measured

<!-- Written by `python -m benchmarks.measured_page`; changes belong there. -->

You will find how often the audit is wrong, how well its bounds hold, and what is left of a correction on new rows. Each
section names the command that measured it; `benchmarks/results` has the numbers.

| question | page |
| --- | --- |
| What comes back on new rows, and how well is it bounded? | [Theory, new rows](theory.md#new-rows) |
| What does a part of the correction cost? | [Trade-off](guide/tradeoff.md) |
| How equal are decisions afterwards? | [Decisions](guide/decisions.md) |
| What does orthogonality within outcome classes do to error rates? | [Given](guide/given.md) |
| Which tables and figures of the paper hold? | [The paper](paper.md) |
| How fast is it? | [Benchmarks](benchmarks.md), [How it scales](how_it_scales.md) |
"""
ALARMS = """## False alarms and power of the audit

![Share of independent predictions that are rejected, and power, of every test](images/audit_calibration.png)

*`python -m benchmarks.audit_calibration`.* Predictions that are unrelated to the protected column (binary,
continuous or 4 levels; n = 500 and 2000) should be rejected in 5 % of the samples:
"""
DESIGNS = """*`python -m benchmarks.audit_designs`* runs the whole audit in hard designs. Predictions are lognormal,
zero-inflated, 0/1, rare, tied or heavy-tailed, classes or labels, weighted or clustered. There is one group of
10 %, six groups of 40 % to 3 %, or a mix of columns.
"""
INTERVALS = """## Intervals of group rates

*`python -m benchmarks.group_intervals`*: how often intervals cover all groups at once (95 % promised). Selection
rates run from 0.21 to 0.62 ("different"), are 0.38 ("equal"), or run from 0.03 to 0.12 ("rare").
"""
#: Numbers of the table on intervals with their headings, and those that are shares of rows.
COVERED = {
    "mean": "mean",
    "selection_rate": "selection rate",
    "tpr": "TPR",
    "fpr": "FPR",
    "impact_ratio": "impact ratio",
    "auc": "AUC",
    "demographic_parity_difference": "parity difference",
    "demographic_parity_ratio": "parity ratio",
    "equalized_odds_difference": "equalised odds difference",
}
RATES = ("mean", "selection_rate", "tpr", "fpr", "ppv", "npv", "accuracy")
BY_SET = """## Audits of four data sets

*`python -m benchmarks.audit_sets`*: a GLM that never saw the protected columns, as it is and corrected. A
linear correction leaves what is not linear. On bank, age still matters by its square; on adult, combinations of
race and sex differ a little. `basis="spline"` and `basis="cells"` remove these as well.
"""
ANY_MODEL = """## Corrected predictions of any model, on new rows

*`python -m benchmarks.cross_fitting`*: multiple correlation with the protected columns on rows that no step has
seen (in brackets: AUC, or R² of a regression). Means over random splits; "chance" is what independent
predictions of as many rows (X-rays: patients) have.
"""
STREAMS = """## Monitoring

*`python -m benchmarks.monitoring`*: streams of predictions, tested after every row at 5 %. "Naive" repeats a t-test
after every row.
"""
NETWORKS = """## Networks

*`python -m benchmarks.two_groups`*, a study in the manner of Metadata Normalization: two groups of images
differ in a true signal and in a confounder. No classifier that ignores the confounder exceeds 0.833. Accuracy
on new images whose confounder is unrelated to the group, means of the seeds, by batch size. "Given group"
removes the confounder within each group, which is what this question asks for (`n_given=1`).

![Accuracy and dependence on the confounder by method and batch size](images/two_groups.png)
"""


def load(name: str) -> Any:
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def percent(values: Iterable[float], ndigits: int = 1) -> str:
    """Range of shares in percent.

    >>> percent([0.04, 0.0512]), percent([0.05])
    ('4.0 to 5.1 %', '5.0 %')
    """
    found = sorted(values)
    ends = dict.fromkeys(f"{100 * each:.{ndigits}f}" for each in (found[0], found[-1]))
    return f"{' to '.join(ends)} %"


def calibration_part(record: Mapping[str, Any]) -> str:
    tests: dict[str, list[Mapping[str, Any]]] = {}
    for cell in record["size"]:
        tests.setdefault(cell["test"], []).append(cell)
    sizes = [
        (name, percent(cell["rate"] for cell in cells), " to ".join(_ends(cell["repetitions"] for cell in cells)))
        for name, cells in sorted(tests.items(), key=lambda item: not item[0].startswith("default"))
    ]
    covered = [cell[kind]["rate"] for cell in record["coverage"] for kind in ("correlation", "odds ratio")]
    power: dict[tuple[str, float], dict[str, Any]] = {}
    for cell in record["power"]:
        row = power.setdefault((cell["kind"], cell["spread"]), {"ceiling": cell["ceiling"]})
        row[cell["test"]] = cell["rate"]
    lines = [
        (f"{kind}, {spread:g}", *(f"{row[name]:.3f}" for name in ("default (HC3)", "paper (model-based)", "ceiling")))
        for (kind, spread), row in power.items()
    ]
    heads = ("column, sd of the logits", "default", "model-based standard errors", "most that any test can find")
    return "\n".join(
        [
            table(("test", "rejected", "samples per cell"), sizes),
            f"Bounds on the correlation and the odds ratio hold in {percent(covered)} of the audits (95 % promised).\n",
            folded("Power: share of effects of 0.2 on the logit that are found, n = 1000", table(heads, lines)),
        ]
    )


def designs_part(record: Mapping[str, Any]) -> str:
    cells = list(record.values())
    size = [cell for cell in cells if cell["part"] == "size"]
    spread = [cell for cell in size if "heteroscedastic" in cell["design"][0]]
    equal = [cell for cell in size if cell not in spread and cell["design"][0] != "clusters"]
    rows = []
    for n in ("200", "1000", "5000"):
        here = [[cell for cell in part if cell["design"][2] == n] for part in (equal, spread)]
        bounds = [cell for cell in cells if cell["part"] == "coverage" and cell["design"][2] == n]
        clusters = [cell for cell in size if cell["design"][0] == "clusters" and cell["design"][2] == n]
        rows.append(
            (
                n,
                percent(cell["rate"] for cell in here[0]),
                percent(cell["rate"] for cell in clusters),
                percent(cell["second"] for cell in here[1]),
                percent(cell["rate"] for cell in bounds),
            )
        )
    heads = (
        "rows",
        "called a leak: unrelated",
        "unrelated, clusters",
        "means said to differ: spread alone",
        "bounds hold",
    )
    levels = percent(cell["rate"] for cell in cells if cell["part"] == "levels")
    skewed = percent(cell["rate"] for cell in cells if cell["part"] == "skewed")
    samples = " to ".join(_ends(cell["samples"] for cell in cells))
    return (
        f"{table(heads, rows)}\n"
        f"Each range is over designs, with {samples} samples each. Bounds with 14 to 100 levels hold in {levels}. "
        f"Where the protected column itself is very skewed (lognormal), they hold in {skewed}, "
        "too seldom with few rows.\n"
    )


def intervals_part(record: Sequence[Mapping[str, Any]]) -> str:
    names = [f"{cell['groups']} groups, {cell['kind']}, n = {cell['n']}" for cell in record]
    rows = [
        (name, f"{cell['samples']}", *(percent([cell["coverage"][key]]) for key in COVERED))
        for name, cell in zip(names, record, strict=True)
    ]
    peers = [
        (
            name,
            f"{cell['fairlearn_samples']}",
            *(percent([side[key]], 0) for key in cell["fairlearn_coverage"] for side in _sides(cell)),
            f"{cell['seconds_per_sample']['fairlearn'] / cell['seconds_per_sample']['ours']:.0f}",
        )
        for name, cell in zip(names, record, strict=True)
        if cell["fairlearn_samples"]
    ]
    every = [value for cell in record for value in cell["coverage"].values()]
    rates = [value for cell in record for key, value in cell["coverage"].items() if key in RATES]
    heads = ("design", "fairlearn's samples", "rates: fairlearn", "ours", "parity difference: fairlearn", "ours")
    return "\n".join(
        [
            INTERVALS,
            table(("design", "samples", *COVERED.values()), rows),
            f"Over all {len(every)} numbers and designs, at least {100 * min(every):.1f} % are covered, and of the "
            f"{len(rates)} rates {percent(rates)}. Largest and smallest differences and ratios are covered more often "
            "where groups differ: their intervals hold for every pair that may be the most different one.\n",
            _counted(names, record),
            "Beside it, percentiles of fairlearn's bootstrap in the same runs, which are made for one number:\n",
            table((*heads, "times our processor time"), peers),
        ]
    )


def _counted(names: Sequence[str], record: Sequence[Mapping[str, Any]]) -> str:
    """Rates of counts that are covered too often, and the smallest coverage that a guarantee allows."""
    from benchmarks.group_intervals import least_coverage  # it loads fairlearn

    found = []
    for name, cell in zip(names, record, strict=True):
        for key in (key for key in RATES if key != "mean" and cell["coverage"][key] > 0.97):
            if (least := least_coverage(cell["kind"], cell["groups"], cell["n"], key)) > 0.97:
                found.append(
                    f"{COVERED.get(key, key.upper())}, {name}: {percent([cell['coverage'][key]])}, and any interval "
                    f"that guarantees 95 % covers at least {percent([least])}"
                )
    if not found:
        return ""
    return f"Covered in more than 97 %, because few counts are possible (by enumeration): {'; '.join(found)}.\n"


def _sides(cell: Mapping[str, Any]) -> tuple[Mapping[str, float], Mapping[str, float]]:
    return cell["fairlearn_coverage"], cell["coverage"]


def sets_part(record: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for line in record:
        forest = ", ".join(
            f"{name} {part['importance']:.3f} ({part['p']:.2f})" for name, part in line["forest"].items()
        )
        p = line["p"]["glm"]
        rows.append(
            (
                line["data"],
                line["model"],
                line["setting"],
                line["verdict"],
                f"{line['correlation']:.3f} (≤ {line['correlation_upper']:.3f})",
                "<1e-300" if p < 1e-300 else f"{p:.2g}",
                f"{line['forest_r2']:.3f} ({line['p']['forest']:.3f})",
                forest,
            )
        )
    heads = (
        "data",
        "model",
        "rows",
        "verdict",
        "correlation (at most)",
        "p, GLM",
        "forest R² (p)",
        "forest importance (p)",
    )
    short = [(*row[:5],) for row in rows if row[2] == "held out"]
    return f"{table(heads[:5], short)}\n{folded('All audits, with a random forest', table(heads, rows))}"


def crossed_part(record: Mapping[str, Any]) -> str:
    ways = ("uncorrected", "training rows", "cross-fitted", "chance")
    rows = []
    for name, cell in record["result"]["cells"].items():
        found = [cell[way]["mean"] for way in ways if way in cell]
        rows.append((name, *(f"{mean[1]:.3f}" + (f" ({mean[2]:.3f})" if mean[2] else "") for mean in found)))
    heads = (
        "data, model, rows",
        "as it is (score)",
        "corrected on training rows",
        "cross-fitted, the default",
        "chance",
    )
    return table(heads, rows)


def streams_part(record: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            cell["design"],
            percent([cell["false_alarms"]]),
            percent([cell["false_alarms_naive"]]),
            percent([cell["detected"]]),
            f"{cell['rows_to_alarm']['50']:.0f}, {cell['rows_to_alarm']['90']:.0f}",
        )
        for cell in record
    ]
    heads = ("scores, groups", "false alarms", "naive", "differences found", "rows until found: median, 90 %")
    first = record[0]
    about = f"{first['streams']} streams of {first['rows']:,} rows without a difference, and as many in which the mean "
    return f"{about}scores of two groups differ by {first['difference']:g}:\n\n{table(heads, rows)}"


def networks_part(record: Mapping[str, Any]) -> str:
    runs: dict[tuple[str, int], list[float]] = {}
    for run in record["runs"]:
        runs.setdefault((run["method"], run["batch"]), []).append(run["unconfounded"])
    methods, batches = (list(dict.fromkeys(key[k] for key in runs)) for k in (0, 1))
    rows = [
        (_quoted(method), *(f"{fmean(runs[method, each]):.3f}" if (method, each) in runs else "" for each in batches))
        for method in methods
    ]
    return table(("method", *map(str, batches)), rows)


def measured_page() -> str:
    """The whole page."""
    return "\n".join(
        [
            HEAD,
            ALARMS,
            calibration_part(load("audit_calibration")),
            DESIGNS,
            designs_part(load("audit_designs")),
            intervals_part(load("group_intervals")),
            BY_SET,
            sets_part(load("audit_sets")),
            ANY_MODEL,
            crossed_part(load("cross_fitting")),
            STREAMS,
            streams_part(load("monitoring")),
            NETWORKS,
            networks_part(load("two_groups")),
        ]
    )


def write(path: Path = PAGE) -> Path:
    path.write_text(measured_page(), encoding="utf-8")
    return path


def _ends(values: Iterable[int]) -> list[str]:
    found = sorted(values)
    return list(dict.fromkeys(str(each) for each in (found[0], found[-1])))


def _quoted(name: str) -> str:
    return name.replace("generalized", "`generalized`")


if __name__ == "__main__":
    print(write())
