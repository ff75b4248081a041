"""Items of the paper that its figures, simulations and notions are about: rows from the stored records."""

from __future__ import annotations

from statistics import mean, stdev

from studies.paper.catalogue import targets
from studies.paper.fig_sim import CHANCE
from studies.paper.items_proved import (
    IN_PART,
    NOT_COMPARABLE,
    OPEN,
    REPRODUCED,
    Row,
    theorems,
)
from studies.paper.movies_names import AUTHORS
from studies.paper.names import CLASSICAL, CONSTRAINED, WITHOUT
from studies.paper.record import Record, shown
from studies.paper.simulation import LINEAR_BEFORE

CLAIMS = "`tests/studies/test_paper_claims.py`"
#: The paper's names of the fairness methods.
FAIRNESS = ("Komiyama1", "Komiyama2", "Berk", "Zafar")


def fig1(r: Record) -> list[Row]:
    """Paths of three methods."""
    keys = ("after 110 steps", "at the optimum")
    shown_end, left = (r.value(0, key, method="projected Fisher scoring") for key in keys)
    new = r.value(0, "new rows", method=CONSTRAINED)
    with_, none = (r.value(0, "at the optimum", method=f"classical, {how} intercept") for how in ("with", "no"))
    return [
        (
            "Section 3, previous methods",
            "all fail behind a non-linear h (Figure 1)",
            f"in general; but on the data of Figure 1 C^l with an intercept leaves {with_} (without one, as in the "
            f"script, {none})",
            "",
            IN_PART,
            "section Figure 1",
        ),
        (
            "Figure 1",
            "only C^h: uncorrelated; a fixed number of steps",
            f"exact C^h: 0; the code's iteration: {shown_end} at step 110, where the script ends, {left} when run to "
            "convergence; without a correction the script has 300 steps",
            f"exact: {new}",
            IN_PART,
            "`tests/studies/test_paper_fig1.py`",
        ),
    ]


def fig3(r: Record) -> list[Row]:
    """Fairness benchmark."""
    fit, new = (r.value(0, key, data="compas", method=CONSTRAINED) for key in ("corr", "corr, held out"))
    left = r.value(0, "corr, held out", data="compas", method="Komiyama1")
    saved = r.data["adult 5000"]["methods"][CONSTRAINED]["saved"].values()
    worst = max(saved, key=lambda effect: abs(effect["estimate"]))
    none = [
        f"{method} on {name} (0 of {r.cell(0, 'effects', data=name, method=method)}, HC3: "
        f"{r.cell(0, 'HC3', data=name, method=method)})"
        for name in ("adult 5000", "bank", "compas", "health")
        for method in FAIRNESS
        if r.cell(0, "model-based", data=name, method=method) == 0
    ]
    ours = (
        f"C^h: none (exact; compas: corr {fit}), but the authors' saved one on adult is {worst['estimate']:.3f} "
        f"(p = {worst['p_value']:.2f}); fairness methods: on every set{', but ' + ', '.join(none) if none else ''}"
    )
    coding = (
        "protected columns are in Z, the first category is not",
        "so in the benchmark; F.1, F.3 to F.6: not in Z. If X is meant: everywhere but movies (one number a gender)",
    )
    gap = max(float(str(gap)) for _, method, gap, *_ in r.tables[1].rows if method in FAIRNESS and gap is not None)
    methods = (
        "Komiyama's, Berk's, Zafar's",
        "code: fairml; the first three are its fgrrm, a ridge (Scutari et al.), with the definitions sp-komiyama, "
        f"eo-komiyama, if-berk; fitted here, effects within {gap:.2g} of the saved ones",
    )
    limit = ("unfairness at most 0.05, as 0 is an infinite penalty", "the same; bounds are above 0 here, too")
    return [
        ("Section 4, coding", *coding, "", IN_PART, f"`tests/studies/test_paper_benchmark_sets.py`, {CLAIMS}"),
        (
            "Section 4.1.2, methods",
            *methods,
            "",
            IN_PART,
            "`tests/studies/test_comparators_reference.py`, `tests/studies/test_paper_fig3.py`",
        ),
        (
            "Figure 3",
            "C^h: effects near 0, none significant; all fairness methods have significant ones",
            ours,
            f"corr {new}; Komiyama1 {left}",
            IN_PART,
            "section Figure 3, [all rows](results/fig3_1.csv)",
        ),
        ("Appendix F.2", *limit, "", REPRODUCED, "`tests/studies/test_comparators.py`"),
    ]


_TIMED = (AUTHORS, WITHOUT)


def fig4(r: Record) -> list[Row]:
    """Coloured digits."""
    layer, plain = (r.value(0, "test", network=name) for name in _TIMED)
    where, test = "section Figure 4", "`tests/studies/test_paper_fig4.py`"
    ours, rule = ([_epochs(r, label, patience=longer) for label in _TIMED] for longer in (False, True))
    printed = [targets()["colored_mnist"]["minutes"][key][0] for key in ("with", "without")]
    cause = (
        f"{ours[0]:.0f} and {ours[1]:.0f} epochs, if an accuracy of 1 on validation rows ends it, as here; by the "
        f"printed patience {rule[0]:.0f} and {rule[1]:.0f}, {rule[0] / rule[1]:.1f} times (printed minutes: "
        f"{printed[0] / printed[1]:.1f} times)"
    )
    runs = {label: [row["seconds"] / 60.0 for row in r.data["runs"] if row["label"] == label] for label in _TIMED}
    minutes = " and ".join(f"{mean(found):.2f} ({stdev(found):.3f})" for found in runs.values())
    one = ", the latter one epoch" if ours[1] == 1.0 else ""
    seeds = f"{len(runs[WITHOUT])} seeds"
    red = r.value(0, "corr(red, output)", network=AUTHORS)
    return [
        (
            "Figure 4, accuracy",
            "near .5 without; better with",
            f"the same (colours as printed; {seeds}; the authors had 10)",
            f"{plain}; {layer}",
            REPRODUCED,
            f"{where}, `tests/studies/test_datasets_mnist.py`",
        ),
        (
            "Section 4.3, content",
            "'learned to focus on the image content'",
            f"corr of red and output {red} with the layer, on test digits in all three colours (the paper's have no "
            "red)",
            layer,
            IN_PART,
            where,
        ),
        ("Section 4.3, any", "blind to red 'or in fact any' colour", "only red was run", "", OPEN, where),
        (
            "Figure 4, influence",
            "no influence of red",
            "zero by construction: it is measured behind the layer's own projection, for any network; at test time the "
            "layer is off",
            "",
            IN_PART,
            test,
        ),
        (
            "Appendix F.7, digits",
            "1.08 (.528) and .40 (.006) minutes",
            f"{minutes}{one}; {seeds}, other machine",
            "",
            NOT_COMPARABLE,
            where,
        ),
        (
            "Appendix F.6, network and evaluation",
            "8 and 16 filters of 3 x 3, pooling, dense 64 and 1; layer behind the first ReLU; 100 epochs, patience 25; "
            "quadratic programming",
            "the same (Corollary 7 has it before the ReLU), but an accuracy of 1 on validation rows ends a training, "
            "as the kept weights cannot change any more; the same problem in closed form",
            "",
            REPRODUCED,
            f"{test}, `tests/studies/test_paper_networks.py`",
        ),
        ("Appendix F.7, cause", "more iterations, not operations", cause, "", IN_PART, where),
    ]


def _epochs(r: Record, label: str, *, patience: bool = False) -> float:
    """Epochs on average; with `patience` as Keras counts them, which goes on after an accuracy of 1."""
    settings = r.data["settings"]
    longer = [
        min(row["best_epoch"] + settings["patience"], settings["epochs"])
        if patience and row["validation"] == 1.0
        else row["epochs"]
        for row in r.data["runs"]
        if row["label"] == label
    ]
    return float(mean(longer))


def forest(r: Record) -> list[Row]:
    """Random forests as evaluation models."""
    fits = {name: about["methods"][CONSTRAINED]["rows of the fit"] for name, about in r.data.items()}
    said = []
    for name, fit in fits.items():
        sources = r.value(0, "significant here", data=name, method=CONSTRAINED)
        if sources != "none":
            p = max(test["p_value"] for test in fit["importances"].values() if test["p_value"] <= 0.05)
            weak = f" just (p = {p:.3g} of 39 permutations; R² {fit['r2']:.3f}, p = {fit['r2_p']:.3g})"
            said.append(f"{name}{weak if fit['r2_p'] > 0.05 else ''}")
    whole = [name for name, fit in fits.items() if fit["r2_p"] <= 0.05 and name not in said]
    most = max((fits[name]["r2_p"] for name in whole), default=1.0)
    blind = [
        (name, method)
        for name, method, says, here, *_ in r.tables[0].rows
        if method != CONSTRAINED and says == "significant" and here == "none"
    ]
    of = ", ".join(f"{method} ({name})" for name, method in blind)
    bound = max((r.size(0, "p", data=name, method=method) for name, method in blind), default=0.0)
    ours = f"C^h: {', '.join(said) or 'none'}"
    ours += f"; by R² also {', '.join(whole)} (p <= {most:.3g})" if whole else ""
    ours += f"; not significant: {of}, where R² has p <= {bound:.3g}" if blind else ""
    held = [name for name in fits if r.value(0, "significant, held out", data=name, method=CONSTRAINED) != "none"]
    key = "R², held out"
    flexible, before = (r.value(0, key, data="bank", method=f"{CONSTRAINED}{end}") for end in (", splines", ""))
    verdict = REPRODUCED if said == ["bank"] and not blind else IN_PART
    where = "section Figure 5, [all rows](results/fig-forest_1.csv)"
    printed = "significant: C^h for bank only, all others"
    return [
        ("Figure 5", printed, ours, f"C^h: {', '.join(held) or 'none'}", verdict, where),
        (
            "Outlook, h(g(X))",
            "more general, harder to analyse",
            "for g in the span of a basis the same condition: `basis=`; splines of age on bank",
            f"R² {flexible} ({before} with age alone)",
            IN_PART,
            theorems("bases"),
        ),
    ]


def sim(r: Record) -> list[Row]:
    """Simulation."""
    table = r.tables[0]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    def largest(name: str) -> str:
        found = max(float(str(row["largest effect"])) for row in rows if row["correction"] == name)
        return shown(found) if found else "0"

    def medians(*, related: bool) -> list[float]:
        chosen = [row for row in rows if row["correction"] == WITHOUT and (row["rho"] != 0) == related]
        return [float(str(row["median p, model errors"])) for row in chosen]

    share = f"{r.data['new'][CONSTRAINED]:.1%}"
    held = f"p < .05 with HC3, rho > 0, n > 200: {share}; sampling errors of fit and new rows alone make {CHANCE:.1%}"
    linear = (
        "judged before h: effects near 0, p near 1",
        f"at most {largest(LINEAR_BEFORE)} there, {largest(CLASSICAL)} behind h",
    )
    unrelated = " and ".join(f"{p:.2f}" for p in medians(related=False))
    without = f"rho > 0: median p at most {max(medians(related=True)):.3f}; rho = 0: {unrelated} (binomial, Poisson)"
    design = (
        "X standard normal, X = rho Z + E; p 5, 10; q 10, 100; four n, 10 repetitions with seeds of their own",
        "this grid, these n and repetitions; Z and E standard normal, which makes the variance of X rho^2 + 1 (that of "
        "Z is not printed), linear predictors scaled; code: the same n and repetitions, but standard deviations .5 or "
        ".1, p 2, 5, 10, q 10, 50, 100",
    )
    where = "section Figures 7 to 12"
    every = f"{where}, [all rows](results/fig-sim_1.csv)"
    return [
        (
            "Figures 7 to 12",
            "effects near 0, p near 1",
            f"q > p: at most {largest(CONSTRAINED)}; p = q = 10 not fitted (Limitations: q > p)",
            held,
            IN_PART,
            every,
        ),
        ("Appendix G.1, without", "non-zero, p very small; similar at rho = 0", without, "", IN_PART, every),
        ("Appendix G.1, C^l", *linear, "", REPRODUCED, every),
        ("Appendix G.1, design", *design, "", IN_PART, "`tests/studies/test_paper_fig_sim.py`"),
    ]


def concepts(r: Record) -> list[Row]:
    """Other notions of orthogonality."""
    dro, free = (r.data[name]["correlation_fit"] for name in ("group-DRO", CLASSICAL))
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
            theorems("printed_remarks"),
        ),
        (
            "Appendix C.2, Concept 2",
            "a special case for linear models",
            f"linear: it implies orthogonal predictions; behind a sigmoid C^l leaves {free:.3f}",
            "",
            REPRODUCED,
            where,
        ),
    ]


def joint(linear: Record, forests: Record, times: Record) -> list[Row]:
    """Rows that need Figures 3 and 5 and Table 6."""
    left = times.value(0, "corr left", data="health", method="Zafar")
    new = linear.value(0, "corr, held out", data="health", method="Zafar")
    pairs = [
        (bool(linear.cell(0, "model-based", data=name, method=method)), here != "none")
        for name, method, says, here, *_ in forests.tables[0].rows
        if says in ("significant", "not significant")
    ]
    same = sum(a == b for a, b in pairs)
    return [
        (
            "Figures 3 and 5, gaps",
            "missing boxes: not converged",
            "Zafar on health was not run (code: 0/1 outcomes only); Komiyama1, 2 and Berk on bank failed (collinear), "
            f"though Table 6 has their seconds; here all are fitted, Zafar on health by an exact search: corr {left}",
            f"corr {new}",
            IN_PART,
            "`tests/studies/test_paper_fig3.py`",
        ),
        (
            "Outlook, pattern",
            "Figure 5 very similar to Figure 3",
            f"significant in both or in neither: {same} of {len(pairs)} pairs of set and method",
            "",
            IN_PART,
            "section Figure 5, [all rows](results/fig-forest_1.csv)",
        ),
    ]
