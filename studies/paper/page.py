"""The page of results: what was printed, what holds, and what the paper got wrong, from the stored records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from studies.paper.catalogue import ENTRIES
from studies.paper.record import Cell, Record, Table, shown

#: Rows of a table that the page shows at most; the CSV files have all.
MOST_ROWS = 10
REPRODUCED, ERROR, STAND_IN, OPEN = "reproduced", "error of the paper", "stand-in", "open"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page shows of a record: tables by number, and which of their rows."""

    tables: tuple[int, ...]
    keep: Callable[[Mapping[str, Cell]], bool] = lambda row: True


def _ours(row: Mapping[str, Cell]) -> bool:
    return row["method"] in ("without", "without correction", "ours", "corrected", "Ours", "C^h")


SHOWN: dict[str, Shown] = {
    "table1": Shown((0, 2)),
    "table2": Shown((2,)),
    "fig3": Shown((0,), _ours),
    "table3": Shown((0,)),
    "table4": Shown((3, 2), lambda row: row.get("components", 32) == 32),
    "fig4": Shown((0,)),
    "movies": Shown((3, 4)),
    "fig-forest": Shown((0,), _ours),
    "fig-sim": Shown((1,)),
    "table6": Shown((0,), _ours),
    "optimisers": Shown((0, 1)),
}


def _value(record: Record, table: int, column: str, **where: Cell) -> Cell:
    """One cell of a stored table."""
    found = record.tables[table] if table < len(record.tables) else Table("", (), ())
    for row in found.rows:
        values = dict(zip(found.columns, row, strict=True))
        if all(values.get(key) == wanted for key, wanted in where.items()):
            return values.get(column)
    return None


def summary(records: Mapping[str, Record]) -> Table:
    """One row for each item of the paper: printed, ours, held out, verdict."""
    r, v = records, _value
    rows: list[tuple[Cell, ...]] = [
        ("Lemma 3", "P y + h(0) empties the evaluation model", "without an intercept only", None, ERROR),
        ("Corollary 4", "squared constraint, one multiplier", "vector constraint, exact to 1e-9", None, REPRODUCED),
        ("Theorem 5, Corollary 7", "P Z before ReLU suffices", "counterexample with two rows", None, ERROR),
        ("Corollary 6", "P applied to the first axis of a tensor", "holds", None, REPRODUCED),
    ]

    def add(name: str, item: str, printed: Cell, ours: Cell, held_out: Cell, verdict: str) -> None:
        if name in r:
            rows.append((item, printed, ours, held_out, verdict))

    if "optimisers" in r:
        ends = [one["mdmm"] for one in r["optimisers"].data["sets"].values() if "mdmm" in one]
        worst = max(end["correlation"] for end in ends)
        add("optimisers", "Appendix: MDMM", "very effective", f"correlation {worst:.4f}, slow", None, REPRODUCED)
    if "table1" in r:
        at = {key: v(r["table1"], 2, key, method="constrained (C^h)") for key in ("corr", "corr, new")}
        text = f"correlation {shown(at['corr'])} (NIH X-rays)"
        add("table1", "Table 1", "age 2.237 to -0.011", text, f"correlation {shown(at['corr, new'])}", STAND_IN)
    if "fig1" in r:
        left = v(r["fig1"], 0, "at the optimum", method="projected Fisher scoring")
        exact = v(r["fig1"], 0, "new rows", method="exact (Corollary 4)")
        add("fig1", "Figure 1", "uncorrelated", f"{shown(left)}; exact 0", shown(exact), ERROR)
    if "table2" in r:
        left = v(r["table2"], 2, "corr, new rows", method="corrected, exactly")
        add(
            "table2",
            "Table 2",
            "race (other) -0.131 is left",
            "all effects 0",
            f"correlation {shown(left)}",
            REPRODUCED,
        )
        xu = v(r["table2"], 0, "here", method="Xu, as defined", term="sex_male")
        add("table2", "Table 2, Xu", "1.255 (sex)", f"{shown(xu)}; the printed one is the label", None, ERROR)
    if "fig3" in r:
        left = v(r["fig3"], 0, "corr, held out", data="compas", method="ours") or v(
            r["fig3"], 0, "corr, held out", data="compas", method="Ours"
        )
        add("fig3", "Figure 3", "only the correction has no effects", "the same", f"compas {shown(left)}", REPRODUCED)
    if "table3" in r:
        fit, new = (v(r["table3"], 1, key, data="compas", model="corrected") for key in ("in-sample", "held out"))
        add("table3", "Table 3", "compas .724, 'test' scores", shown(fit), shown(new), REPRODUCED)
    if "table4" in r:
        auc = v(r["table4"], 3, "AUC", embedding="face recognition", method="constrained (C^h)")
        low = v(r["table4"], 3, "lowest", embedding="face recognition", method="without")
        high = v(r["table4"], 3, "highest", embedding="face recognition", method="without")
        text = f"transposed block: {shown(low)} to {shown(high)}"
        add("table4", "Table 4", "AUC .831 to .826", text, f"AUC {shown(auc)} (other embedding)", STAND_IN)
    if "fig4" in r:
        mean = v(r["fig4"], 0, "test", mode="published")
        add("fig4", "Figure 4", "no influence of red", "zero by construction", f"test accuracy {shown(mean)}", ERROR)
    add("movies", "Movies", "p = .993 and 1.0", "not run to the end", None, OPEN)
    add("fig-forest", "Figure 5", "significant for bank only", "bank, and traces elsewhere", "the same", REPRODUCED)
    add("table6", "Table 6", "1.11, 13.2, .48, 3.84 s", "see below", None, REPRODUCED)
    add(
        "fig-sim",
        "Figures 7 to 12",
        "effects near 0, p near 1",
        "at most 1e-10",
        "16.9 % p < .05 (chance 16.6 %)",
        REPRODUCED,
    )
    if "concepts" in r:
        left = v(r["concepts"], 0, "correlation", method="group-DRO")
        add(
            "concepts",
            "Appendix C (concepts)",
            "no guarantee by DRO",
            "the same",
            f"DRO leaves {shown(left)}",
            REPRODUCED,
        )
    rows += [
        ("Table 5 (data sets)", "health.retirement 38653 rows", "12766 complete rows", None, ERROR),
        ("Figures 2 and 6", "drawings", "drawn in docs/theory.md", None, REPRODUCED),
        ("Appendix B (Komiyama)", "same effects as PHO", "to 1e-12 at bound 1", None, REPRODUCED),
    ]
    return Table("Items of the paper", ("item", "printed", "ours", "held out", "verdict"), rows)


def section(entry_name: str, label: str, record: Record, folder: Path) -> str:
    """Section of one item: figure, at most ten rows of its main tables, findings, files."""
    about = SHOWN.get(entry_name, Shown((0,)))
    parts = [f"## {_number(entry_name)}: {record.title}"]
    if (folder / f"{entry_name}.png").exists():
        parts.append(f"![{record.title}]({folder.name}/{entry_name}.png)")
    parts += [_markdown(record.tables[k], about.keep) for k in about.tables if k < len(record.tables)]
    parts.append("\n".join(f"* {reason}" for reason in record.reasons))
    if record.missed:
        parts.append("Not reproduced: " + " ".join(record.missed))
    files = sorted(path.name for path in folder.glob(f"{entry_name}*.csv") if _belongs(path.stem, entry_name))
    links = ", ".join(f"[{name}]({folder.name}/{name})" for name in files)
    parts.append(f"All rows: {links}. Command: `python -m studies {entry_name}`; in the paper `{label}`.")
    return "\n\n".join(parts) + "\n"


def _belongs(stem: str, name: str) -> bool:
    return stem == name or stem.removeprefix(f"{name}_").isdigit()


def _number(name: str) -> str:
    numbers = {
        "fig-forest": "Figure 5",
        "fig-sim": "Figures 7 to 12",
        "movies": "Movie reviews",
        "optimisers": "Appendix, MDMM",
        "concepts": "Appendix, other notions",
    }
    return numbers.get(name) or name.replace("table", "Table ").replace("fig", "Figure ")


def _markdown(table: Table, keep: Callable[[Mapping[str, Cell]], bool]) -> str:
    kept = [row for row in table.rows if keep(dict(zip(table.columns, row, strict=True)))]
    few = Table(table.title, table.columns, kept[:MOST_ROWS])
    rows = [list(few.columns), ["---"] * len(few.columns), *few.shown()]
    more = f" (first {MOST_ROWS} of {len(table.rows)} rows)" if len(kept) > MOST_ROWS else ""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([f"**{table.title}**{more}", "", *lines])


def write(folder: Path) -> str:
    """Return the page for the records of a folder."""
    records = {entry.name: Record.read(path) for entry in ENTRIES if (path := folder / f"{entry.name}.json").exists()}
    parts = [HEAD.format(folder=folder), _markdown_all(summary(records)), _proofs()]
    parts += [
        section(entry.name, entry.label, records[entry.name], folder) for entry in ENTRIES if entry.name in records
    ]
    return "\n".join(parts)


def _proofs() -> str:
    return files("studies.paper").joinpath("proofs.md").read_text(encoding="utf-8")


def _markdown_all(table: Table) -> str:
    rows = [list(table.columns), ["---"] * len(table.columns), *table.shown()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


HEAD = """# The paper, run again

Rügamer et al., "Generalizing Orthogonalization for Models with Non-Linearities" (ICML 2024): what was printed, what the
authors' set-up gives here, and what holds on rows that were held out. Written by
`python -m studies --page --output {folder}` from the results in `{folder}`, which are of several runs: each section
names its command. Corrections: "without", classical or C^l (features), constrained or C^h (fit), generalised
(predictions).
"""
