"""The pages: docs/benchmarks.md as a whole, and what was measured in docs/how_it_scales.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench_roofline import HEADS as ROOFLINE
from benchmarks.bench_roofline import about as about_roofline
from benchmarks.bench_roofline import about_fit
from benchmarks.bench_roofline import cells as roofline_cells
from benchmarks.estimate import BEST, WORST, Measured, n_tasks, seconds
from benchmarks.frame import HERE, ON_PAPER, Bound, Ratio, digits
from benchmarks.plot import NAMES, draw_growth, draw_ratios

SCALES = HERE.parent / "docs" / "how_it_scales.md"
HEAD = """# Benchmarks

<!-- Written by `python -m benchmarks --page`; changes belong there. -->

You will see how long Setsquare takes compared with other packages, kind of work by kind of work, and can repeat each
figure with the command beside it. A ratio below 1 means that Setsquare is faster or needs less memory. Both were timed
alternately in one run, so that other load on the machine affects both. A call of up to a quarter of a second follows a
pause, in which the threads of the call before fall asleep, and an untimed call of its own, which wakes its own threads.
The corrected fits solve a harder problem than their peers, which fit without a constraint.
[How it scales](how_it_scales.md) covers growth and complexity.
"""
ABOUT_RATIOS = """Medians and quartiles of the rounds. "Time on paper" compares with published times of
another machine.
"""
PICTURE = "![Time and peak memory as rows, features and protected columns grow](images/growth.png)"
SUMMARY = ("work", "ours / peer", "peers", "our limits kept", "command")
#: Values of options, which keep their spelling.
OPTIONS = {"generalized", "post", "pre", "large", "sqp", "stream"}
RATIOS = ("what", "of", "ours / peer", "limit", "ours", "peer", "command")
BOUNDS = ("what", "value", "limit", "command")
RUNS = ("benchmark", "what", "date", "minutes", "load, before and after", "commit")


def write_pages(results: Path, docs: Path, names: Sequence[str]) -> list[Path]:
    """Write both pages and their figures from the files of results, and return what was written."""
    found = {name: json.loads(path.read_text()) for name in names if (path := results / f"{name}.json").exists()}
    written = [_write(docs / "benchmarks.md", benchmarks_page(found, [name for name in names if name not in found]))]
    if groups := {name: timed for name, record in found.items() if (timed := _in_one_run(record))}:
        written.append(draw_ratios(groups, docs / "images" / "benchmarks.png"))
    if "growth" in found:
        written.append(draw_growth(found["growth"]["result"], docs / "images" / "growth.png"))
    return [*written, _write(docs / SCALES.name, fill(SCALES.read_text(encoding="utf-8"), scale_parts(found)))]


def benchmarks_page(found: Mapping[str, Any], missing: Sequence[str]) -> str:
    """A summary with one line per benchmark; every measurement is folded below it."""
    summary, lines, bounds, runs = [], [], [], []
    for name, record in found.items():
        command = f"`{record['command']}`"
        ratios = [Ratio(**each) for each in record["result"].get("ratios", ())]
        limits = [Bound(**each) for each in record["result"].get("bounds", ())]
        lines += [_ratio_line(ratio, command) for ratio in ratios]
        bounds += [_bound_line(bound, command) for bound in limits]
        load, date = " to ".join(f"{part:.1f}" for part in record["load"]), record["date"].partition("T")[0]
        title = record["title"].rstrip(".") + (" (small sizes)" if record["quick"] else "")
        summary.append((title, *_summary(ratios, limits), command))
        runs.append((name, title, date, f"{record['minutes']:.1f}", load, f"`{record['commit']}`"))
    machines = {f"{r['processor']}, {r['cores']} cores; {', '.join(r['versions'])}" for r in found.values()}
    parts = [HEAD]
    parts += [table(SUMMARY, summary), "![All ratios with their quartiles](images/benchmarks.png)\n"] if lines else []
    parts += [ABOUT_RATIOS, folded(f"All {len(lines)} ratios", table(RATIOS, lines))] if lines else []
    parts += [folded(f"All {len(bounds)} absolute limits", table(BOUNDS, bounds))] if bounds else []
    parts += [folded("When and where each was run", table(RUNS, runs))] if runs else []
    parts += [f"Machine: {each}.\n" for each in sorted(machines)]
    parts += [f"Not measured yet: {', '.join(missing)}.\n"] if missing else []
    return "\n".join(parts)


def folded(title: str, text: str) -> str:
    """A part of a page that opens on a click, on the site and on a repository's page.

    >>> print(folded("More", "text"))
    <details>
    <summary>More</summary>
    <BLANKLINE>
    text
    <BLANKLINE>
    </details>
    <BLANKLINE>
    """
    return f"<details>\n<summary>{title}</summary>\n\n{text.rstrip()}\n\n</details>\n"


def _summary(ratios: Sequence[Ratio], limits: Sequence[Bound]) -> tuple[str, str, str]:
    """Range of the medians of this run, peers, and how many limits are kept."""
    here = [ratio for ratio in ratios if ratio.of != ON_PAPER]
    here = [ratio for ratio in here if ratio.version != "ours" and "setsquare" not in ratio.version] or here
    medians = sorted(ratio.median for ratio in here)
    span = " to ".join(digits(each) for each in dict.fromkeys((medians[0], medians[-1]))) if medians else ""
    kept = [ratio.median <= ratio.limit for ratio in ratios if ratio.limit is not None]
    kept += [_is_kept(bound) for bound in limits]
    peers = ", ".join(dict.fromkeys(ratio.peer for ratio in here))
    return span, peers, f"{sum(kept)} of {len(kept)}" if kept else ""


def _ratio_line(ratio: Ratio, command: str) -> tuple[str, ...]:
    limit = "" if ratio.limit is None else f"{digits(ratio.limit)}: {_kept(ratio.median <= ratio.limit)}"
    peer = ratio.version if ratio.peer in ratio.version else f"{ratio.peer} ({ratio.version})"
    ours = f"`{ratio.ours}`" if ratio.ours in OPTIONS else ratio.ours
    return ratio.what, ratio.of, str(ratio), limit, ours, peer, command


def _bound_line(bound: Bound, command: str) -> tuple[str, ...]:
    span = f"at most {bound.limit:g}" if bound.least is None else f"{bound.least:g} to {bound.limit:g}"
    return bound.what, f"{bound.value:.3g} {bound.unit}".strip(), f"{span}: {_kept(_is_kept(bound))}", command


def _is_kept(bound: Bound) -> bool:
    return (0.0 if bound.least is None else bound.least) <= bound.value <= bound.limit


def scale_parts(found: Mapping[str, Any]) -> dict[str, str]:
    """What the page on scale says of measurements, by the name of the place."""
    parts = dict.fromkeys(("exponents", "estimate"), "Not measured yet: `python -m benchmarks growth out_of_core`.")
    parts["roofline"] = "Not measured yet: `python -m benchmarks roofline`."
    if "roofline" in found:
        parts["roofline"] = roofline_part(found["roofline"])
    if "growth" in found:
        parts["exponents"] = exponent_part(found["growth"])
        if "out_of_core" in found:
            measured = Measured.of(found["growth"], found["out_of_core"])
            parts["estimate"] = estimate_part(measured, found["growth"]["processor"])
    return parts


def exponent_part(record: Mapping[str, Any]) -> str:
    lines = []
    for line in record["result"]["exponents"]:
        whole, each = line["time"], line.get("iteration")
        span = f"{whole['from']:,} to {whole['to']:,}".replace(",", " ")
        solver = f", `{line['solver']}`" if line["solver"] else ""
        lines.append((NAMES[line["kind"]] + solver, line["size"], span, _exponent(whole), _exponent(each)))
    text = table(("work", "grows", "over", "exponent of the time", "per iteration"), lines)
    about = f"{record['date'].partition('T')[0]}, {record['processor']}, {record['cores']} cores"
    source = f"*From `{record['command']}`, {about}: medians and ranges of the rounds.*"
    return f"{text}\n{source}\n\n{PICTURE}"


def roofline_part(record: Mapping[str, Any]) -> str:
    lines = [roofline_cells(line) for line in record["result"]["lines"]]
    where = f"{record['date'].partition('T')[0]}, {record['processor']}, {record['cores']} cores"
    source = f"*From `{record['command']}`, {where}: {about_roofline(record['result'])}.*"
    fit = about_fit(record["result"])
    return f"{table(ROOFLINE, lines)}\n{source}" + (f"\n\n{fit}" if fit else "")


def estimate_part(m: Measured, processor: str) -> str:
    ends = [seconds(cluster, m) for cluster in (BEST, WORST)]
    rows = [(name, *(_duration(end[name]) for end in ends)) for name in ends[0]]
    rows.append(("**in all**", *(f"**{_duration(sum(end.values()))}**" for end in ends)))
    n = BEST.rows // BEST.nodes
    median, low, high = (1e6 * row for row in m.row)
    each = f"{median:.2f} µs (rounds: {low:.2f} to {high:.2f})"
    given = [
        ("rows per node", f"n / N = {n / 1e6:.0f} million"),
        ("a row in the files, b", f"{m.stored} bytes"),
        ("a row held by a worker", f"{m.held} bytes, so {n * m.held / 1e9:.0f} GB per node"),
        ("a row and iteration in memory, t", f"{each} on {m.cores} cores ({processor}), q = {m.q}, p = {m.p}"),
        ("out of core over in memory, per row and iteration", f"{digits(m.stream)}"),
        (
            "iterations i, passes k",
            f"{m.iterations}, {m.n_passes} ({m.passes:.1f} passes for each iteration, out of core)",
        ),
        ("sums of a block, s", f"{m.sums / 1e3:.0f} kB"),
        ("task sent to a node, c", f"{m.sent / 1e3:.0f} kB"),
        ("tasks of a pass, T", f"{BEST.blocks} blocks and their tree of sums: {n_tasks(BEST.blocks)}"),
    ]
    heads = ("", "rows held in memory, fast discs and links", "rows read in every pass, slow ones")
    return f"{table(('put in', 'measured'), given)}\n{table(heads, rows)}"


def fill(page: str, parts: Mapping[str, str]) -> str:
    """Put parts between the marks that name them.

    >>> fill("<!-- measured: a -->old<!-- end -->", {"a": "new"}).split()
    ['<!--', 'measured:', 'a', '-->', 'new', '<!--', 'end', '-->']
    """
    mark = re.compile(r"(<!-- measured: (\w+) -->).*?(<!-- end -->)", flags=re.DOTALL)
    return mark.sub(lambda found: f"{found[1]}\n\n{parts[found[2]].strip()}\n\n{found[3]}", page)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _in_one_run(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [ratio for ratio in record["result"].get("ratios", ()) if ratio["of"] != ON_PAPER]


def _kept(yes: bool) -> str:
    return "yes" if yes else "**no**"


def _exponent(part: Mapping[str, float] | None) -> str:
    return f"{part['median']:.2f} ({part['low']:.2f} to {part['high']:.2f})" if part else ""


def _duration(value: float) -> str:
    return f"{value:.0f} s" if value < 120.0 else f"{value / 60:.0f} min" if value < 7200.0 else f"{value / 3600:.1f} h"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
