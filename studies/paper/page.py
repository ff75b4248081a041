"""The page of results: what was printed, what holds, and what does not, from the stored records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from studies.paper.catalogue import ENTRIES
from studies.paper.items import Records, summary
from studies.paper.items_proved import VERDICTS
from studies.paper.names import CONSTRAINED, MDMM, WITHOUT
from studies.paper.record import Cell, Record, Table

#: Rows of a table that the page shows at most; the CSV files have all.
MOST_ROWS = 6
#: Findings of a section that the page shows at most; the JSON file has all.
MOST_FINDINGS = 3


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page shows of a record: tables by number, which of their rows, and how many at most."""

    tables: tuple[int, ...]
    keep: Callable[[Mapping[str, Cell]], bool] = lambda row: True
    most: int = MOST_ROWS


def _ends(row: Mapping[str, Cell]) -> bool:
    """The two ends, on the sets of the paper, which has nothing of all rows of Adult."""
    return row["method"] in (WITHOUT, CONSTRAINED) and row["data"] != "adult"


def _benchmark(row: Mapping[str, Cell]) -> bool:
    return _ends(row) or (row["method"], row["data"]) in (("Zafar", "compas"), ("Zafar", "health"))


def _forests(row: Mapping[str, Cell]) -> bool:
    if row["data"] == "compas":
        return False
    fair = row["data"] == "health" and row["the paper says"] == "significant"
    return row["method"] == CONSTRAINED or fair or (row["data"], row["method"]) == ("bank", f"{CONSTRAINED}, splines")


SHOWN: dict[str, Shown] = {
    "table1": Shown((0, 2)),
    "table2": Shown((2,)),
    "fig3": Shown((0,), _benchmark, 10),
    "table3": Shown((0,), lambda row: row["data"] != "adult", 8),
    "table4": Shown((3,)),
    "fig4": Shown((0,)),
    "movies": Shown((3,), most=7),
    "fig-forest": Shown((0,), _forests, 8),
    "fig-sim": Shown((1,), lambda row: row["n"] in (200, 10000)),
    "table6": Shown((0,), lambda row: row["method"] == CONSTRAINED and row["data"] != "adult"),
    "optimisers": Shown((0,), lambda row: row["optimiser"] in (CONSTRAINED, MDMM), 8),
}
NUMBERS = {
    "fig-forest": "Figure 5",
    "fig-sim": "Figures 7 to 12",
    "movies": "Movie reviews",
    "optimisers": "Appendix E.2",
    "concepts": "Appendix C",
}


def section(entry_name: str, label: str, record: Record, folder: Path) -> str:
    """Section of one item: figures, at most ten rows of its main tables, findings, files, and when it was run."""
    about = SHOWN.get(entry_name, Shown((0,)))
    parts = [f"## {number(entry_name)}: {record.title}"]
    pictures = sorted(path.name for path in folder.glob(f"{entry_name}*.png") if _belongs(path.stem, entry_name))
    parts += [f"![{record.title}]({folder.name}/{picture})" for picture in pictures]
    parts += [_markdown(record.tables[k], about.keep, about.most) for k in about.tables if k < len(record.tables)]
    findings = [f"* {reason}" for reason in record.reasons[:MOST_FINDINGS]]
    findings += ["* Not reproduced: " + " ".join(record.missed)] if record.missed else []
    parts.append("\n".join(findings))
    names = sorted(path.name for path in folder.glob(f"{entry_name}*.csv") if _belongs(path.stem, entry_name))
    links = ", ".join(f"[{k}]({folder.name}/{name})" for k, name in enumerate(names, start=1))
    command = f"`python -m studies {entry_name}`, in the paper `{label}`."
    more = len(record.reasons) - MOST_FINDINGS
    about_more = (
        f" and {more} more finding{'s' if more > 1 else ''}: [JSON]({folder.name}/{entry_name}.json)"
        if more > 0
        else ""
    )
    spent = dict(record.made)
    if spent:
        spent["minutes"] += before(record)
    parts.append(f"All rows: {links}{about_more}. {command} {made(spent)}")
    return "\n\n".join(parts) + "\n"


def made(about: Mapping[str, Any]) -> str:
    """When an item was run, with which commit of the library, and how long.

    Examples
    --------
    >>> made({"library": ["3f30078"], "dates": ["2026-11-17"], "minutes": 1.234, "unknown": 0})
    'Run on 2026-11-17 with the library of 3f30078: 1.2 minutes of processor time.'
    >>> made({})
    'Kept from a run of which neither commit nor time was recorded.'
    """
    if not about.get("library"):
        return "Kept from a run of which neither commit nor time was recorded."
    when, which = " and ".join(about["dates"]), " and ".join(about["library"])
    kept = f" {about['unknown']} parts are from a run that was not recorded." if about["unknown"] else ""
    return f"Run on {when} with the library of {which}: {about['minutes']:.1f} minutes of processor time.{kept}"


def _belongs(stem: str, name: str) -> bool:
    return stem == name or stem.startswith(f"{name}_")


def number(name: str) -> str:
    """Number of an item as printed."""
    return NUMBERS.get(name) or name.replace("table", "Table ").replace("fig", "Figure ")


def _markdown(
    table: Table, keep: Callable[[Mapping[str, Cell]], bool] = lambda row: True, most: int = MOST_ROWS
) -> str:
    kept = [row for row in table.rows if keep(dict(zip(table.columns, row, strict=True)))]
    few = Table(table.title, table.columns, kept[:most])
    more = f" ({min(len(kept), most)} of {len(table.rows)} rows)" if len(few.rows) < len(table.rows) else ""
    return "\n".join([f"**{table.title}**{more}", "", *_lines(few)])


def _lines(table: Table) -> list[str]:
    rows = [list(table.columns), ["---"] * len(table.columns), *table.shown()]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


def write(folder: Path) -> str:
    """Return the page for the records of a folder."""
    records = {entry.name: Record.read(path) for entry in ENTRIES if (path := folder / f"{entry.name}.json").exists()}
    legend = "; ".join(f"*{word}*: {rule}" for word, rule in VERDICTS.items())
    parts = [
        HEAD.format(folder=folder, legend=legend),
        times(records),
        "\n".join(_lines(summary(records))) + "\n",
        _proofs(records),
    ]
    parts += [
        section(entry.name, entry.label, records[entry.name], folder) for entry in ENTRIES if entry.name in records
    ]
    return "\n".join(parts)


def times(records: Records) -> str:
    """Whether all items are from one run of one library, and how long each took.

    Examples
    --------
    >>> made = {"library": ["3f30078"], "dates": ["2026-11-17"], "minutes": 1.26, "unknown": 0}
    >>> print(times({"fig1": Record("fig1", "", (), (), {}, (), made)}))
    One run, with the library of 3f30078, on 2026-11-17: 1 minutes of processor time (Figure 1 1.3).
    <BLANKLINE>
    """
    clocked = {name: record.made for name, record in records.items() if record.made.get("library")}
    libraries, dates = (
        sorted({one for about in clocked.values() for one in about[key]}) for key in ("library", "dates")
    )
    whole = len(clocked) == len(records) and len(libraries) == 1 and not any(one["unknown"] for one in clocked.values())
    minutes = {name: about["minutes"] + before(records[name]) for name, about in clocked.items()}
    each = ", ".join(f"{number(name)} {spent:.1f}" for name, spent in minutes.items())
    total = sum(minutes.values())
    others = [number(name) for name in records if name not in clocked]
    kept = f" Kept from runs without a clock: {', '.join(others)}." if others else ""
    text = f"{'One run' if whole else 'Several runs'}, with the library of {' and '.join(libraries)}, on "
    return f"{text}{' and '.join(dates)}: {total:.0f} minutes of processor time ({each}).{kept}\n"


def before(record: Record) -> float:
    """Processor minutes of trainings before they were last stopped: cells know of the last part only."""
    trained = [*record.data.get("trainings", ()), *record.data.get("runs", ())]
    return float(sum(one.get("before", 0.0) for one in trained)) / 60.0


def _proofs(records: Records) -> str:
    """What is wrong, or shows less than it seems, with the numbers that records hold."""
    text = files("studies.paper").joinpath("proofs.md").read_text(encoding="utf-8")
    return text.format_map({key: _or_missing(records, *where) for key, where in QUOTED.items()})


def _or_missing(records: Records, name: str, table: int, column: str, where: Mapping[str, Cell]) -> str:
    try:
        return records[name].value(table, column, **where)
    except (KeyError, IndexError):
        return "(not run)"


#: Numbers in the proofs: record, table, column, and the row.
QUOTED: dict[str, tuple[str, int, str, Mapping[str, Cell]]] = {
    "path_end": ("fig1", 0, "at the optimum", {"method": "projected Fisher scoring"}),
    "face_low": ("table4", 3, "lowest", {"embedding": "face recognition", "method": WITHOUT}),
    "face_high": ("table4", 3, "highest", {"embedding": "face recognition", "method": WITHOUT}),
    "face_auc": ("table4", 3, "AUC", {"embedding": "face recognition", "method": WITHOUT}),
    "object_low": ("table4", 3, "lowest", {"embedding": "ImageNet", "method": WITHOUT}),
    "object_high": ("table4", 3, "highest", {"embedding": "ImageNet", "method": WITHOUT}),
}


HEAD = (
    "# The paper, run again\n\n"
    'Rügamer et al., "Generalizing Orthogonalization for Models with Non-Linearities" (ICML 2024): what was printed, '
    "what the authors' set-up gives here, and what holds on rows that were held out. Written by "
    "`python -m studies --page --output {folder}` from the results in `{folder}`; each section says when it was run, "
    'and with which commit of the library. Corrections: "without", classical or C^l (features), constrained or C^h '
    "(the fit), generalised (the predictions; the paper's 'generalized orthogonalization' is C^h). MDMM is the paper's "
    "optimiser, with the gradient of the printed objective. Items stand in the order of the paper; what Section 1.2 "
    "and the Discussion claim (GLMs, embeddings, networks in training) is in the rows of Section 4.\n\n"
    "Verdicts: {legend}.\n"
)
