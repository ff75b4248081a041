"""Every item of the paper in one table: printed, here, on new rows, the verdict, and what shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from studies.paper.fig_sim import CHANCE
from studies.paper.movies_names import AUTHORS, LAYER, PAPER, TRAINED, model_p_values, training
from studies.paper.names import CONSTRAINED, WITHOUT
from studies.paper.optimisers import reached
from studies.paper.record import Cell, Record, Table, shown

REPRODUCED, IN_PART, ERROR, MISPRINT = "reproduced", "in part", "error of the paper", "misprint"
STAND_IN, NOT_COMPARABLE, OPEN = "stand-in", "not comparable", "open"
#: What shows a misprint that needs no computation.
TEXT = "the text itself"
Records: TypeAlias = Mapping[str, Record]
#: Item, printed, ours, held out, verdict, and what shows it: a test, or the section of an experiment.
Row: TypeAlias = tuple[str, str, str, str, str, str]


def value(record: Record, table: int, column: str, **where: Cell) -> str:
    """One cell of a stored table, as it is read."""
    found = record.tables[table]
    for row in found.rows:
        values = dict(zip(found.columns, row, strict=True))
        if all(values.get(key) == wanted for key, wanted in where.items()):
            return shown(values[column])
    raise KeyError(column)


def _theory() -> list[Row]:
    tests = "`tests/theorems/test_{}.py`".format
    return [
        ("Section 2 (C^l)", "P Z gives a linear model without effects", "the same", "", REPRODUCED, tests("lemma_3")),
        ("Section 3.1, Example 1", "behind h effects are left", "the same", "", REPRODUCED, tests("corollary_4")),
        ("Definitions 1 and 2", "three parts; corrected: no effect", "`sq.audit`", "", REPRODUCED, tests("audit")),
        ("Lemma 3", "P y + h(0): no effect, no intercept", "holds", "", REPRODUCED, tests("lemma_3_printed")),
        ("Corollary 4", "one squared constraint", "vector constraint, exact", "", REPRODUCED, tests("corollary_4")),
        (
            "Corollary 4, identity h",
            "solved by C^l",
            "if span(Z) contains X; else in general for P Z, not for Z",
            "",
            IN_PART,
            tests("printed_remarks"),
        ),
        ("Example 2", "ReLU(X b) is not in span(X)", "the same", "", REPRODUCED, tests("relu")),
        ("Theorem 5", "P Z before ReLU suffices", "counterexample: two rows", "", ERROR, tests("relu")),
        ("Corollary 6", "P on the first axis of a tensor", "holds", "", REPRODUCED, tests("tensors")),
        ("Corollary 7", "P before ReLU, tensors", "counterexample: two rows", "", ERROR, tests("torch_relu")),
    ]


def _table1(r: Record) -> list[Row]:
    fit, new = (value(r, 2, key, method=CONSTRAINED) for key in ("corr", "corr, new"))
    change = value(r, 2, "change", method=CONSTRAINED)
    where = "section Table 1"
    return [
        ("Table 1", "age 2.237 to -0.011; race", f"corr {fit} (NIH X-rays: no race)", f"corr {new}", STAND_IN, where),
        (
            "Section 4.2.1, AUC",
            "+0.02",
            "relative in the code; data need credentials",
            f"NIH: {change}",
            STAND_IN,
            where,
        ),
    ]


def _fig1(r: Record) -> list[Row]:
    shown_end, left = (
        value(r, 0, key, method="projected Fisher scoring") for key in ("after 110 steps", "at the optimum")
    )
    new = value(r, 0, "new rows", method=CONSTRAINED)
    test = "`tests/studies/test_paper_fig1.py`"
    return [
        (
            "Figure 1",
            "only C^h: uncorrelated",
            f"exact C^h: 0; the code's iteration: {shown_end} at step 110, {left} at its end",
            f"exact: {new}",
            IN_PART,
            test,
        )
    ]


def _table2(r: Record) -> list[Row]:
    fit, new = (value(r, 2, key, method=CONSTRAINED) for key in ("corr", "corr, new rows"))
    again = value(r, 2, "corr", method=f"{CONSTRAINED}, authors' R code")
    xu = value(r, 0, "here", method="Xu, as defined", term="sex_male")
    test = "`tests/studies/test_comparators_theorems.py`"
    printed, ours = "no effect, but race (other) -0.131", f"corr {fit}; authors' code {again}"
    return [
        ("Table 2", printed, ours, f"corr {new}", REPRODUCED, "section Table 2"),
        ("Table 2, Xu", "sex 1.255", f"{xu}; the printed one is the label", "", ERROR, test),
    ]


def _fig3(r: Record) -> list[Row]:
    fit, new = (value(r, 0, key, data="compas", method=CONSTRAINED) for key in ("corr", "corr, held out"))
    left = value(r, 0, "corr, held out", data="compas", method="Komiyama1")
    held = f"corr {new}; Komiyama1 {left}"
    return [
        ("Figure 3", "only C^h has no effects", f"the same (compas: corr {fit})", held, REPRODUCED, "section Figure 3")
    ]


def _table3(r: Record) -> list[Row]:
    fit, new = (value(r, 1, key, data="compas", model=CONSTRAINED) for key in ("in-sample", "held out"))
    bank = value(r, 0, "exact", data="bank", model=CONSTRAINED)
    again = value(r, 0, "authors' optimiser, run again", data="bank", model=CONSTRAINED)
    ours = f"compas {fit}, bank {bank} (authors' optimiser: {again})"
    test, claims = "`tests/studies/test_paper_table3.py`", "`tests/studies/test_paper_claims.py`"
    return [
        ("Table 3", "compas .724, bank .887", ours, f"compas {new}", REPRODUCED, "section Table 3"),
        ("Table 3, caption", "'test set'", "scores of the rows of the fit", "", ERROR, test),
        ("Section 4.1.2", "at most 2 %, for compas", "Table 3: adult 2.1 points, compas 1.5", "", ERROR, claims),
    ]


def _table4(r: Record) -> list[Row]:
    face = {"embedding": "face recognition"}
    auc = value(r, 3, "AUC", **face, method=CONSTRAINED)
    low, high = (value(r, 3, key, **face, method=WITHOUT) for key in ("lowest", "highest"))
    ours = f"transposed block: range {low}-{high}"
    return [("Table 4", "AUC .831 to .826", ours, f"AUC {auc} (other embedding)", STAND_IN, "section Table 4")]


def _fig4(r: Record) -> list[Row]:
    mean, plain = (value(r, 0, "test", mode=mode) for mode in _TIMED)
    section = "section Figure 4"
    more = " and ".join(f"{_epochs(r, label):.0f}" for label in _TIMED)
    test = "`tests/studies/test_paper_fig4.py`"
    runs = {label: [row["seconds"] / 60.0 for row in r.data["runs"] if row["label"] == label] for label in _TIMED}
    minutes = " and ".join(f"{sum(found) / len(found):.2f}" for found in runs.values())
    return [
        ("Figure 4, accuracy", "near .5 without; better with", "the same", f"{plain}; {mean}", REPRODUCED, section),
        ("Figure 4, influence", "no influence of red", "zero for any network", "", ERROR, test),
        (
            "Appendix F.7, digits",
            "1.08 and .40 minutes",
            f"{minutes}, other machine",
            "",
            NOT_COMPARABLE,
            section,
        ),
        ("Appendix F.7, cause", "more iterations, not operations", f"{more} epochs", "", REPRODUCED, section),
    ]


_TIMED = ("published", "uncorrected")


def _epochs(r: Record, label: str) -> float:
    found = [row["epochs"] for row in r.data["runs"] if row["label"] == label]
    return float(sum(found)) / len(found)


def _movies(r: Record) -> list[Row]:
    found = {(one["model"], one["correction"]): one for one in r.data["found"] if one["coding"] == "paper"}
    where, printed = "section Movie reviews", "p < 2e-16; .993 and 1.0 with the layer"
    trainings = {name: training(r.data, PAPER, name) for name in (WITHOUT, AUTHORS)}
    if any(one is None for one in trainings.values()):
        return [("Movies", printed, "the authors' layer not run, ours in part", "", OPEN, where)]
    done = " and ".join(f"{len(one['losses']) - 1}" for one in trainings.values() if one)
    if all(one["ended"] for one in trainings.values() if one):
        before, after = ([effect["p_model"] for effect in found[PAPER, name]["effects"]] for name in (WITHOUT, AUTHORS))
        p = "; ".join(model_p_values(found[PAPER, name]) for name in (WITHOUT, AUTHORS))
        verdict = REPRODUCED if max(before) < 2e-16 and min(after) > 0.05 else OPEN
        return [("Movies", printed, f"p = {p} ({done} epochs)", "", verdict, where)]
    trained = " and ".join(f"{found[TRAINED, name]['correlation']:.3f}" for name in (WITHOUT, LAYER))
    ours = f"not run to the end: {done} epochs"
    return [("Movies", printed, ours, f"corr {trained} (tanh, trained)", OPEN, where)]


def _forest(r: Record) -> list[Row]:
    def found(column: str) -> str:
        rows = [(name, value(r, 0, column, data=name, method=CONSTRAINED)) for name in r.data]
        return ", ".join(name for name, sources in rows if sources != "none") or "none"

    fit, new = (found(column) for column in ("significant here", "significant, held out"))
    blind = [
        f"{method} ({name})"
        for name, method, says, here, *_ in r.tables[0].rows
        if method != CONSTRAINED and says == "significant" and here == "none"
    ]
    ours = f"C^h: {fit}; not: {', '.join(blind) or 'none'}"
    verdict = REPRODUCED if fit == "bank" and not blind else IN_PART
    printed = "significant: C^h for bank only, all others"
    return [("Figure 5", printed, ours, f"C^h: {new}", verdict, "section Figure 5")]


def _table6(r: Record) -> list[Row]:
    names = ("adult 5000", "bank", "compas", "health")
    ours = ", ".join(f"{float(value(r, 0, 'here', data=name, method=CONSTRAINED)):.2f}" for name in names)
    return [
        (
            "Table 6",
            "1.11, 13.2, .48, 3.84 s",
            f"{ours} s; other solver and machine",
            "",
            NOT_COMPARABLE,
            "section Table 6",
        )
    ]


def _sim(r: Record) -> list[Row]:
    table = r.tables[0]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    largest = max(float(str(row["largest effect"])) for row in rows if row["correction"] == CONSTRAINED)
    held = f"p < .05: {r.data['new'][CONSTRAINED]:.1%} (chance {CHANCE:.1%})"
    ours = f"at most {shown(largest)}"
    return [("Figures 7 to 12", "effects near 0, p near 1", ours, held, REPRODUCED, "section Figures 7 to 12")]


def _optimisers(r: Record) -> list[Row]:
    ends = [(one["mdmm"], one["exact"]["loss"]) for one in r.data["sets"].values()]
    worst = max(end["correlation"] for end, _ in ends)
    there = sum(reached(*end) is not None for end in ends)
    ours = f"corr at most {worst:.4f} on {len(ends)} sets; accurate on {there} of them, slow"
    return [("Appendix E.2, MDMM", "very effective", ours, "", REPRODUCED, "section Appendix E.2")]


def _concepts(r: Record) -> list[Row]:
    dro, free = (r.data[name]["correlation_fit"] for name in ("group-DRO", "classical (C^l)"))
    flip, where = r.data[CONSTRAINED]["flip"], "section Appendix C"
    new = f"corr {r.data['group-DRO']['correlation_new']:.3f}"
    return [
        ("Appendix C.1, DRO", "no guarantee by DRO", f"DRO leaves {dro:.3f}", new, REPRODUCED, where),
        (
            "Appendix C.2, Concept 1",
            "can coincide if X is a feature",
            f"it can; on compas C^h changes by {flip:.3f}",
            "",
            REPRODUCED,
            "`tests/theorems/test_printed_remarks.py`",
        ),
        ("Appendix C.2, Concept 2", "C^h in the linear case", f"C^l leaves {free:.3f} behind h", "", REPRODUCED, where),
    ]


def _appendix() -> list[Row]:
    tests = "`tests/theorems/test_{}.py`".format
    sets = "`tests/studies/test_paper_claims.py`"
    return [
        ("Figures 2 and 6", "drawings", "docs/theory.md", "", REPRODUCED, "docs/theory.md"),
        ("Appendix B, Komiyama", "same effects as PHO", "to 1e-12 at bound 1", "", REPRODUCED, tests("pho")),
        (
            "Appendix D (GLM weights)",
            "G, \N{GREEK CAPITAL LETTER UPSILON} constant at no effect",
            "the same",
            "",
            REPRODUCED,
            tests("lemma_3_printed"),
        ),
        (
            "Appendix D, constants",
            "(h^-1)'(0); V(h(0)^(1/2))",
            "(h^-1)'(h(0)); V(h(0))^(1/2)",
            "",
            MISPRINT,
            tests("printed_remarks"),
        ),
        (
            "Lemma 8 (E.1)",
            "weighted form, no intercept",
            "holds with the weights at zero effects",
            "",
            REPRODUCED,
            tests("lemma_3_printed"),
        ),
        (
            "Appendix E.1, intercept",
            "another constant suffices",
            "no constant does",
            "",
            ERROR,
            tests("lemma_3_printed"),
        ),
        (
            "Appendix E.2, formulas",
            "adds zeta A to the direction; argmin over lambda",
            "zeta A grad A; no minimum, the ascent step is right",
            "",
            MISPRINT,
            tests("mdmm"),
        ),
        ("Appendix E.3, E.5", "a'b: four products, all plus", "two are minus", "", ERROR, tests("relu")),
        ("Table 5, health", "38653 rows, p = 4", "12766 complete rows, 5 effects", "", ERROR, sets),
        (
            "Table 5, others",
            "UTKFace q = 256; Adult: White is the reference",
            "F.4: q = 32; Table 2 has an effect of White",
            "",
            MISPRINT,
            TEXT,
        ),
        (
            "Appendix G.1",
            "X = rho Z[:, 1:q] + E, dim(E) = dim(Z); Figures 8 and 9: rho = 0",
            "Z[:, 1:p], dim(X); rho = 0 and 1",
            "",
            MISPRINT,
            TEXT,
        ),
        (
            "Limitations",
            "q > p is needed",
            "linear h: yes; sigmoid: at p = q more than a constant may be left",
            "",
            IN_PART,
            tests("printed_remarks"),
        ),
    ]


SECTIONS: dict[str, tuple[str, Callable[[Record], list[Row]]]] = {
    "table1": ("Table 1", _table1),
    "fig1": ("Figure 1", _fig1),
    "table2": ("Table 2", _table2),
    "fig3": ("Figure 3", _fig3),
    "table3": ("Table 3", _table3),
    "table4": ("Table 4", _table4),
    "movies": ("Movies", _movies),
    "fig4": ("Figure 4", _fig4),
    "fig-forest": ("Figure 5", _forest),
    "table6": ("Table 6", _table6),
    "fig-sim": ("Figures 7 to 12", _sim),
    "concepts": ("Appendix C", _concepts),
    "optimisers": ("Appendix E.2, MDMM", _optimisers),
}


def summary(records: Records) -> Table:
    """One row for each item of the paper; an item that was not run, or only in part, says so."""
    rows = _theory()
    for name, (item, make) in SECTIONS.items():
        try:
            rows += make(records[name])
        except (KeyError, IndexError):
            ours = "in part only (a quick run?)" if name in records else "not run"
            rows.append((item, "", ours, "", OPEN, f"`{name}`"))
    columns = ("item", "printed", "ours", "held out", "verdict", "shown by")
    return Table("Items of the paper", columns, [*rows, *_appendix()])
