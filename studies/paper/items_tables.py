"""Items of the paper that its tables, movies and optimisers are about: rows from the stored records."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any

from studies.paper.items_proved import (
    CODE_ERROR,
    COMPARATORS,
    ERROR,
    IN_PART,
    NOT_COMPARABLE,
    OPEN,
    REPRODUCED,
    STAND_IN,
    Row,
    theorems,
)
from studies.paper.movies_names import AUTHORS, PAPER, TEXT, TRAINED, both_p_values, training
from studies.paper.names import CLASSICAL, CONSTRAINED, WITHOUT
from studies.paper.optimisers import reached
from studies.paper.record import Record, shown

#: What shows that the authors' test features come from a transposed block.
TRANSPOSED = "`tests/studies/test_paper_table4.py`"
#: What shows which lines of the authors' code made a number.
CODE = "section Which algorithm made what"
#: Names of the sets, those of the paper.
SETS = {"adult": "adult 5000", "bank": "bank", "compas": "compas", "health": "health"}


def table1(r: Record) -> list[Row]:
    """Chest X-rays."""
    fit, new = (r.value(2, key, method=CONSTRAINED) for key in ("corr", "corr, new"))
    change = r.size(2, "change", method=CONSTRAINED)
    where = "section Table 1"
    explained = f"; NIH: {r.data['explained']:.0%}" if "explained" in r.data else ""
    left, p = (r.value(0, key, method=CLASSICAL, term="age") for key in ("here", "p, model-based"))
    other = r.size(0, "p, model-based", method=CLASSICAL, term="sex[M]")
    unlike = ": nothing significant, unlike MIMIC" if min(float(p), other) > 0.05 else ""
    classical = f"NIH: age {left} (p = {p}; without {r.value(0, 'here', method=WITHOUT, term='age')}){unlike}"
    effect = r.size(0, "here", method=CONSTRAINED, term="age")
    age = f"age {shown(effect) if effect else 0}, corr {fit} (NIH X-rays: no race)"
    return [
        ("Table 1", "effects: age 2.237 to -0.011; race", age, f"corr {new}", STAND_IN, where),
        ("Table 1, C^l", "age 0.453, race -0.117 are left", classical, "", STAND_IN, where),
        (
            "Section 4.2.1, AUC",
            "+0.02",
            "the code has (C^h - C^l) / C^l, relative, and test features from a transposed block; not run "
            "(credentials)",
            f"NIH: {change:+.3f}, absolute, to no correction",
            CODE_ERROR,
            f"{TRANSPOSED}, {CODE}",
        ),
        (
            "Appendix F.3; Table 5, MIMIC",
            "181342 and 3041 rows, split of the database; p = 4; 1376 columns, q = 111: 98 % of the variance",
            f"not checked (credentials){explained}",
            "",
            STAND_IN,
            where,
        ),
    ]


def table2(r: Record) -> list[Row]:
    """Adult."""
    fit, new = (r.value(2, key, method=CONSTRAINED) for key in ("corr", "corr, new rows"))
    again = r.value(2, "corr", method=f"{CONSTRAINED}, authors' R code")
    odds = [f"{exp(r.size(0, 'here', method=WITHOUT, term=term)):.2f}" for term in ("race_white", "sex_male")]
    xu = r.value(0, "here", method="Xu, as defined", term="sex_male")
    largest = max(abs(effect["estimate"]) for effect in r.data[CONSTRAINED]["all"]["effects"].values())
    ours = f"effects at most {shown(largest)}, corr {fit}; authors' code: corr {again}"
    linear = ("no linear model infers X to any degree", "the rows of the fit: yes; new rows: small, not zero")
    where = "section Table 2"
    return [
        ("Table 2", "effects near 0, but race (other) -0.131", ours, f"corr {new}", REPRODUCED, where),
        ("Section 1.1, guarantee", *linear, f"corr {new}", IN_PART, where),
        (
            "Section 4.1.1, Appendix F.1",
            "odds ratios 1.68 and 2.90; six features, sex and race protected",
            f"{' and '.join(odds)}; the same",
            "",
            REPRODUCED,
            f"{where}, `tests/studies/test_paper_table2.py`",
        ),
        (
            "Table 2, Xu",
            "sex 1.255, similar results",
            f"{xu}, not similar; the printed one is the label",
            "",
            CODE_ERROR,
            COMPARATORS,
        ),
    ]


def table3(r: Record) -> list[Row]:
    """Scores."""
    ends = {name: [r.size(0, "exact", data=key, model=m) for m in (WITHOUT, CONSTRAINED)] for name, key in SETS.items()}
    cut = " and ".join(f"{ends[name][0]:.4f}" for name in ("adult", "bank"))
    exact = ", ".join(f"{after:.3f}" for _, after in ends.values())
    key = "authors' optimiser, run again"
    again = [f"{name} {r.value(0, key, data=name, model=CONSTRAINED)}" for name in ("bank", "health")]
    new = [f"{name} {r.value(1, 'held out', data=name, model=CONSTRAINED)}" for name in ("compas", "health")]
    before, after = ends["bank"]
    rows = round((after - before) * r.size(0, "rows", data="bank"))
    keys = ("change", "change low", "change high")
    change = [f"{r.size(1, key, data='bank', model=CONSTRAINED):+.5f}" for key in keys]
    same = (
        f"all but bank, where accuracy does not change ({before:.5f} and {after:.5f}: {rows} "
        f"row{'' if rows == 1 else 's'})"
    )
    most = "Table 3: adult 2.1 points (2.5 %), compas 1.5 (2.0 %, the likely source)"
    test, claims = "`tests/studies/test_paper_table3.py`", "`tests/studies/test_paper_claims.py`"
    where = "section Table 3"
    return [
        (
            "Table 3",
            "adult .854/.833, bank .899/.887, compas .739/.724, health .750/.789",
            f"without: the same, two cut off ({cut}); C^h exact: {exact} (authors' optimiser: {', '.join(again)})",
            ", ".join(new),
            IN_PART,
            where,
        ),
        ("Table 3, caption", "'test set'", "scores of the rows of the fit", "", ERROR, f"{test}, {CODE}"),
        (
            "Section 4.1.2, decrease",
            "scores naturally decrease",
            same,
            f"bank {change[0]} ({change[1]} to {change[2]})",
            IN_PART,
            where,
        ),
        ("Section 4.1.2", "at most 2 %, for compas", most, "", ERROR, claims),
    ]


def table4(r: Record) -> list[Row]:
    """Faces."""
    names = ("face recognition", "ImageNet")
    auc = r.value(3, "AUC", embedding=names[0], method=CONSTRAINED)
    ranges = [
        f"{'-'.join(r.value(3, key, embedding=name, method=WITHOUT) for key in ('lowest', 'highest'))} ({name})"
        for name in names
    ]
    faces, objects = (r.data["methods"][name]["32"]["explained"] for name in ("recognition", "imagenet"))
    share = f"not published; here face recognition {faces:.0%}, ImageNet {objects:.0%} (of 128 stored)"
    return [
        (
            "Table 4, effects",
            "age -.017, races -.315 to -.620; with C^h near 0",
            "without: as those of the recorded sex; C^h: 0 on other embeddings",
            "",
            STAND_IN,
            TRANSPOSED,
        ),
        (
            "Table 4, AUC",
            ".831 to .826",
            f"test features from a transposed block: {', '.join(ranges)} over arbitrary signs, without a correction",
            f"AUC {auc} (other embedding)",
            CODE_ERROR,
            TRANSPOSED,
        ),
        (
            "Appendix F.4",
            "2048 columns, q = 32: 95 % of the variance; 80/20 split",
            f"{share}; 80/20, too",
            "",
            STAND_IN,
            "section Table 4",
        ),
    ]


def table6(r: Record) -> list[Row]:
    """Run times."""
    ours = ", ".join(f"{r.size(0, 'here', data=name, method=CONSTRAINED):.2f}" for name in SETS.values())
    methods = ("Komiyama1", "Komiyama2", "Berk", "Zafar")
    seconds = [r.size(0, "here", data=name, method=method) for name in SETS.values() for method in methods]
    printed = "1.11, 13.2, .48, 3.84 s; fairness methods 0.56 to 15.02 s, Zafar on health: none"
    here = f"{ours} s; {min(seconds):.2f} to {max(seconds):.2f} s, Zafar on health, too; other solver and machine"
    return [("Table 6", printed, here, "", NOT_COMPARABLE, "section Table 6, [all rows](results/table6.csv)")]


def movies(r: Record) -> list[Row]:
    """Networks and text models of movies."""
    where = "section Movie reviews"
    text = (
        "1000 words, at most 100 a text, padding behind; no capitals, punctuation, stop words; 80/20 split",
        "code: 10 000, in front; else the same",
    )
    crew = ("the director's sex", "code: that of the first in the crew list, for 56 % of the movies the director")
    layers = (
        "embedding 100, LSTM 50 (ReLU), dense 25, 5, 1, dropout .1, .2, .3; Adam, 1e-6, batch 128, 1000 epochs, early "
        "stopping",
        "the same; patience 10 as in the code",
    )
    data = ("number of reviews; Maas et al. (2011)", "F.5: vote counts; code: TMDB (credits.csv, movies_metadata.csv)")
    test = "`tests/studies/test_datasets_movies.py`"
    return [
        _networks(r),
        ("Movies, RMSE", "+1 %", _movie_cost(r), "", OPEN, where),
        ("Appendix F.5, network", *layers, "", REPRODUCED, "`tests/studies/test_paper_networks.py`"),
        ("Appendix F.5, text", *text, "", ERROR, test),
        ("Appendix F.5, director", *crew, "", CODE_ERROR, test),
        ("Section 4.2.3, data", *data, "", ERROR, test),
    ]


def _networks(r: Record) -> Row:
    """What the paper's two networks found at its rate."""
    item, printed, where = "Movies", "p < 2e-16; .993 and 1.0 with the layer", "section Movie reviews"
    runs = [training(r.data, PAPER, name) for name in (WITHOUT, AUTHORS)]
    found = {one["correction"]: one for one in r.data["found"] if (one["model"], one["coding"]) == (PAPER, "paper")}
    said = []
    for run, name in zip(runs, (WITHOUT, AUTHORS), strict=True):
        if run is None:
            said.append(f"{name}: not run")
            continue
        end = "" if run["ended"] else ", not run to the end"
        said.append(f"{name}: p = {both_p_values(found[name])} ({len(run['losses']) - 1} epochs{end})")
    ended = all(run is not None and run["ended"] for run in runs)
    if not ended:
        return (item, printed, "; ".join(said), "", OPEN, where)
    before, after = ([effect["p_model"] for effect in found[name]["effects"]] for name in (WITHOUT, AUTHORS))
    cost = found[AUTHORS]["rmse"]["estimate"] / found[WITHOUT]["rmse"]["estimate"] - 1.0
    holds = (max(before) < 2e-16, min(after) > 0.05)
    verdict = REPRODUCED if all(holds) else IN_PART if any(holds) else OPEN
    return (item, printed, "; ".join(said), f"RMSE {cost:+.1%}", verdict, where)


def _movie_cost(r: Record) -> str:
    def change(model: str, correction: str) -> str:
        return f"{r.size(2, 'RMSE, %', model=model, correction=correction, coding='paper'):+.1f} %"

    slow = training(r.data, PAPER, AUTHORS)
    begun = "" if slow and slow["ended"] else "at 1e-6 not run to the end; "
    runs = [run for name in (WITHOUT, AUTHORS) if (run := training(r.data, TRAINED, name))]
    poor = ", all worse than a constant on validation rows" if all(map(worse, runs)) else ""
    layer, text = change(TRAINED, AUTHORS), change(TEXT, CONSTRAINED)
    return f"{begun}the layer in a network with tanh {layer}{poor}; C^h of a text model {text}"


def worse(run: Mapping[str, Any]) -> bool:
    """Whether a training is worse than a constant on its validation rows.

    Examples
    --------
    >>> worse({"losses": [0.8, -433.0], "loss_constant": -466.0})
    True
    """
    return bool(min(run["losses"]) > run["loss_constant"])


def optimisers(r: Record) -> list[Row]:
    """The paper's optimiser and the exact one."""
    ends = [(one["mdmm"], one["exact"]["loss"]) for one in r.data["sets"].values()]
    worst = max(end["correlation"] for end, _ in ends)
    there = sum(reached(*end) is not None for end in ends)
    on = f"all {there} sets" if there == len(ends) else f"{there} of {len(ends)} sets"
    ours = f"corr at most {worst:.4f}; accurate on {on}, slow"
    steps = sorted(one["exact"]["steps"] for one in r.data["sets"].values())
    hard = f"not for the exact solver: {steps[0]} to {steps[-1]} steps on these sets"
    plain = [one["bdmm"]["correlation"] for one in r.data["sets"].values() if "bdmm" in one]
    basic = f'`solver="bdmm"`: corr at most {max(plain):.4f} on {len(plain)} sets'
    where = "section Appendix E.2"
    return [
        ("Section 3.2, solving", "hard in practice", hard, "", IN_PART, where),
        ("Appendix E.2, MDMM", "very effective", ours, "", REPRODUCED, where),
        (
            "Appendix E.2, BDMM",
            "descent in gamma, ascent in lambda; MDMM adds a penalty",
            basic,
            "",
            REPRODUCED,
            theorems("mdmm") + ", [all rows](results/optimisers_1.csv)",
        ),
    ]
