"""Table 1 of the paper: what predictions of pleural effusion from embeddings of chest X-rays say of the patient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from setsquare import OrthogonalGLMClassifier, PrincipalComponents, audit_model
from setsquare.datasets import Dataset
from studies.datasets import LOADERS, available
from studies.paper import embeddings, figures, new_patients
from studies.paper.catalogue import targets
from studies.paper.cells import Cells
from studies.paper.embeddings import Part
from studies.paper.names import CLASSICAL, CONSTRAINED, WITHOUT, symbol
from studies.paper.new_patients import SETTINGS
from studies.paper.record import Record, Table

MIMIC, NIH = "mimic_chest_xrays", "nih_chest_xrays"
#: Components of the paper, and the most that a setting here asks for.
COMPONENTS, MOST = 111, 256
METHODS = {WITHOUT: "without", CLASSICAL: "classical", CONSTRAINED: "generalized"}
#: Random splits by patient: of the training patients, to compare settings, and of all, to see what a split can do.
SPLITS, RESPLITS = 30, 100
#: With as many rows as this, few splits of some of the rows tell enough.
MANY, FEW, SOME = 50_000, (3, 5), 40_000
PRINTED = {"sex[Male]": "sex_male", "sex[M]": "sex_male", "age": "age", "race[Black]": "race_black"} | {
    "race[White]": "race_white"
}


def run(*, quick: bool, cells: Cells, progress: Progress) -> Record:
    """Correct and audit the embeddings of MIMIC where they are on this machine, else those of the NIH."""
    name = MIMIC if available(MIMIC) else NIH
    data = LOADERS[name]()
    few = len(data.table) > MANY
    splits, resplits = (3, 3) if quick else FEW if few else (SPLITS, RESPLITS)

    @cache
    def parts() -> tuple[Part, Part]:
        return read(data)

    @cache
    def joined() -> Part:
        return embeddings.join(*parts())

    task = progress.add_task("table1: the paper's three models", total=1)
    key = {"data": name, "rows": len(data.table), "components": COMPONENTS}
    found: dict[str, Any] = {"data": name, "splits": splits, "resplits": resplits, "components": COMPONENTS}
    found["methods"] = cells({**key, "what": "methods"}, lambda: _methods(*parts()))
    progress.advance(task)
    found["patients"] = cells({**key, "what": "patients"}, lambda: [_patients(part) for part in parts()])
    found["audit"] = cells({**key, "what": "audit"}, lambda: _audit(joined()))
    found["explained"] = cells({**key, "what": "explained"}, lambda: _explained(data))
    task = progress.add_task("table1: settings on the test patients", total=len(SETTINGS))
    found["settings"] = {}
    for setting in SETTINGS:
        one = partial(_on_test, parts, setting)
        found["settings"][setting] = cells({**key, "what": "settings", "setting": setting}, one)
        progress.advance(task)
    compared = new_patients.repeat(
        lambda: _some(parts()[0], SOME), key, tuple(SETTINGS), splits, "training patients", cells, progress
    )
    pair = (new_patients.WITHOUT, new_patients.CONSTRAINED)
    again = new_patients.repeat(lambda: _some(joined(), SOME), key, pair, resplits, "all patients", cells, progress)
    found |= {"compared": compared, "again": again}
    return tabulate(found)


def read(data: Dataset) -> tuple[Part, Part]:
    """Training and test rows in principal components of the training rows; a row is a patient where none is named."""
    train, test = embeddings.split(data)
    train, test = embeddings.reduce(PrincipalComponents(min(MOST, train.Z.shape[1])), train, test)
    if train.cluster is None:
        train, test = (replace(part, cluster=np.arange(len(part.y))) for part in (train, test))
    return train, test


def _explained(data: Dataset) -> float:
    """Share of the variance of the training rows in the paper's number of components."""
    components = PrincipalComponents(COMPONENTS).fit(embeddings.split(data)[0].Z)
    return float(components.explained_variance_ratio_.sum())


def _methods(train: Part, test: Part) -> dict[str, Any]:
    return embeddings.examine(_narrow(train), _narrow(test), tuple(METHODS))


def _audit(part: Part) -> dict[str, Any]:
    """Audit the constrained model on all patients, each predicted by a model that has not seen them."""
    Z = np.asarray(part.Z[:, :COMPONENTS], dtype=np.float64)
    found = audit_model(OrthogonalGLMClassifier(), Z, part.y, part.protected, cluster=part.cluster)
    upper = found.certificate.correlation_upper
    return {"verdict": found.verdict, "reason": found.reason, "p_value": found.p_value, "correlation_upper": upper}


def _on_test(parts: Callable[[], tuple[Part, Part]], setting: str) -> dict[str, Any]:
    return new_patients.try_on(setting, *parts())


def _some(part: Part, most: int) -> Part:
    """The first rows of many."""
    rows = slice(None, most if len(part.y) > MANY else None)
    return Part(part.Z[rows], part.y[rows], part.protected.iloc[rows], part.cluster[rows])


def _narrow(part: Part) -> Part:
    return replace(part, Z=part.Z[:, :COMPONENTS])


def _patients(part: Part) -> dict[str, float]:
    images = np.sort(np.unique(part.cluster, return_counts=True)[1])[::-1]
    tenth = images[: -(-len(images) // 10)].sum() / images.sum()
    return {
        "images": len(part.y),
        "patients": len(images),
        "effective": new_patients.effective_patients(part.cluster),
        "most": int(images[0]),
        "tenth": float(tenth),
    }


def tabulate(found: Mapping[str, Any]) -> Record:
    """Tables and reasons from what was measured."""
    stand_in = found["data"] == NIH
    title = "Chest X-rays: effects of age and sex on predicted effusion" + (
        " (NIH, an open stand-in)" if stand_in else ""
    )
    tables = (_in_sample(found), _held_out(found), _scores(found), _why(found), _settings(found))
    reasons = _reasons(found)
    missed = (
        (
            "Table 1 itself needs the embeddings of MIMIC-CXR, which need credentials. Its figures stand "
            "beside those of other images, another network and another label; the unit of its age is not "
            "named, here it is a year.",
        )
        if stand_in
        else ()
    )
    return Record("table1", title, tuple(tables), reasons, dict(found), missed)


def _in_sample(found: Mapping[str, Any]) -> Table:
    printed = targets()["table1_mimic"]["rows"]
    rows = []
    for method, result in found["methods"].items():
        for term, effect in result["train"]["effects"].items():
            as_printed = printed[METHODS[method]][PRINTED[term]]
            rows.append(
                (
                    method,
                    term,
                    as_printed[0],
                    effect["estimate"],
                    str(as_printed[1]),
                    effect["p_model"],
                    effect["p_value"],
                )
            )
    columns = ("method", "term", "printed for MIMIC", "here", "p printed", "p, model-based", "p, by patient")
    return Table("Effects on the rows that were fitted, as in the paper", columns, rows)


def _held_out(found: Mapping[str, Any]) -> Table:
    rows = [
        (
            method,
            term,
            *(effect[key] for key in ("estimate", "ci_low", "ci_high", "p_value")),
            *(result["test"]["correlations"][term][key] for key in ("estimate", "ci_low", "ci_high")),
        )
        for method, result in found["methods"].items()
        for term, effect in result["test"]["effects"].items()
    ]
    columns = ("method", "term", "effect", "low", "high", "p, by patient", "corr", "corr low", "corr high")
    return Table("Effects and correlations on new patients (95 % intervals and p-values by patient)", columns, rows)


def _scores(found: Mapping[str, Any]) -> Table:
    rows = [
        (
            method,
            result["train"]["auc"]["estimate"],
            *(result["test"]["auc"][key] for key in ("estimate", "ci_low", "ci_high")),
            *(
                (result["test"]["auc_change"][key] if method != WITHOUT else None)
                for key in ("estimate", "ci_low", "ci_high")
            ),
            result["train"]["correlation"],
            result["test"]["correlation"],
            result["test"]["correlation_upper"],
        )
        for method, result in found["methods"].items()
    ]
    scores = ("AUC", "AUC, new", "low", "high", "change", "change low", "change high")
    title = "AUC, and correlation with all protected columns (new patients: with its upper 95 % bound)"
    return Table(title, ("method", *scores, "corr", "corr, new", "at most"), rows)


def _why(found: Mapping[str, Any]) -> Table:
    train, test = found["patients"]
    result = found["methods"][CONSTRAINED]["test"]
    one = result["correlations"]["age"]
    seen, plain = (
        np.array([split["images"]["age"][0] for split in found["again"][name]])
        for name in (new_patients.CONSTRAINED, new_patients.WITHOUT)
    )
    rows = [
        ("images, training", train["images"]),
        ("images, test", test["images"]),
        ("patients, training", train["patients"]),
        ("patients, test", test["patients"]),
        ("effective patients, training", train["effective"]),
        ("effective patients, test", test["effective"]),
        ("images of the tenth of test patients with most", test["tenth"]),
        ("correlation with age on the test patients, C^h", one["estimate"]),
        ("  error if images were independent", (1.0 - one["estimate"] ** 2) / np.sqrt(test["images"])),
        ("  error by patient", one["std_error"]),
        (f"correlation with age over {len(seen)} random splits of all patients, C^h: mean", float(seen.mean())),
        ("  its standard deviation", float(seen.std(ddof=1))),
        ("  share of splits with more than on the test patients", float(np.mean(np.abs(seen) >= abs(one["estimate"])))),
        ("  mean without a correction", float(plain.mean())),
        ("audit of C^h on all patients in five folds: correlation at most", found["audit"]["correlation_upper"]),
    ]
    return Table("Why a correlation is left on new patients", ("quantity", "value"), rows)


def _settings(found: Mapping[str, Any]) -> Table:
    rows = []
    for name, setting in SETTINGS.items():
        tries, test = found["compared"][name], found["settings"][name]
        age = {kind: np.array([one[kind]["age"][0] for one in tries]) for kind in ("images", "patients")}
        rows.append(
            (
                name,
                "yes" if setting.needs_protected else "no",
                *(float(value) for kind in age for value in (age[kind].mean(), np.sqrt(np.mean(age[kind] ** 2)))),
                float(np.mean([one["auc"] for one in tries])),
                *(test[kind]["age"][0] for kind in ("images", "patients")),
                test["auc"],
            )
        )
    columns = (
        "setting",
        "needs X",
        "images",
        "rms",
        "patients",
        "rms ",
        "AUC",
        "test, images",
        "test, patients",
        "test, AUC",
    )
    title = (
        f"Correlation with age on new patients: mean and root mean square over {found['splits']} random fifths of the "
        "training patients, and on the test patients; every image, or every patient, counts once"
    )
    return Table(title, columns, rows)


def best(found: Mapping[str, Any], *, needs_protected: bool, kind: str = "patients") -> str:
    """Setting with the smallest root mean square of correlations with all protected columns over the splits."""

    def size(name: str) -> float:
        return float(
            np.sqrt(np.mean([[value[0] ** 2 for value in one[kind].values()] for one in found["compared"][name]]))
        )

    return min((name for name, one in SETTINGS.items() if one.needs_protected == needs_protected), key=size)


def _reasons(found: Mapping[str, Any]) -> tuple[str, ...]:
    _, test = found["patients"]
    fitted, new = (found["methods"][CONSTRAINED][rows] for rows in ("train", "test"))
    age = new["correlations"]["age"]
    seen = np.array([split["images"]["age"][0] for split in found["again"][new_patients.CONSTRAINED]])
    zero = max(abs(effect["estimate"]) for effect in fitted["effects"].values())

    def left(components: int) -> float:
        return float(found["settings"][f"C^h, {components} components"]["images"]["age"][0])

    audited = found["audit"]
    free, given = (best(found, needs_protected=needed) for needed in (False, True))
    return (
        "On the rows that were fitted the effects are zero by construction "
        f"({f'at most {zero:.0e}' if zero else 'exactly 0'}); p-values of 1 are no evidence there.",
        f"On the test patients a correlation of {age['estimate']:.2f} with age is left; its 95 % interval by patient "
        f"is {age['ci_low']:.2f} to {age['ci_high']:.2f}: {test['images']} images are of {test['patients']} patients. "
        f"A tenth of them has {100 * test['tenth']:.0f} % of the images; the effective number of patients is "
        f"{test['effective']:.0f}.",
        f"Over {len(seen)} random splits of all patients the same model leaves {seen.mean():.3f} on average, with a "
        f"standard deviation of {seen.std(ddof=1):.3f}. What the test patients show beyond it is the luck of a split. "
        "The certificate knows of the training rows only and cannot tell; an audit of new patients with errors by "
        "patient can.",
        f"An audit of the same model on all patients in five folds says: {audited['verdict']} (p = "
        f"{audited['p_value']:.2f}, correlation at most {audited['correlation_upper']:.2f}).",
        f"Fewer components do not help: on the test patients 32 leave {left(32):.2f}, 256 leave {left(256):.2f} (at an "
        f"AUC of {found['settings']['C^h, 256 components']['auc']:.3f}). It is patients that are few, not components "
        "that are many.",
        f"Without protected columns at prediction the smallest correlations on new patients (root mean square over all "
        f"protected columns, every patient once) come from: {free}. With them: {given}.",
        "A correction that is adapted to the new rows needs no outcomes and is exact on these; it has to be learned "
        "anew for every batch.",
    )


def draw(record: Record, path: Path) -> Path:
    """Correlations with each protected column on old and new patients, and what random splits of patients give.

    Effects are marked as in the paper: a cross for p < 0.05 (by patient), a tick otherwise.
    """
    found = record.data
    terms = list(next(iter(found["methods"].values()))["train"]["correlations"])
    figure, axes = figures.subplots(1, len(terms) + 1, figures.PAGE, 2.5, width_ratios=(*(1.0 for _ in terms), 1.15))
    *left, right = axes[0]
    for axis, term in zip(left, terms, strict=True):
        _draw_term(axis, found["methods"], term)
    for axis in left[1:]:
        axis.set_yticklabels([])
    shown = left[0].get_legend_handles_labels()
    bins = np.arange(-0.3, 0.45, 0.05)
    for name, colour in ((new_patients.WITHOUT, "0.6"), (new_patients.CONSTRAINED, figures.COLOURS[1])):
        values = [one["images"]["age"][0] for one in found["again"][name]]
        right.hist(values, bins, alpha=0.6, color=colour, label=f"splits, {symbol(name)}")
    here = found["methods"][CONSTRAINED]["test"]["correlations"]["age"]["estimate"]
    right.axvline(here, color="black", ls="--", lw=1, label="$C^h$, test patients")
    right.set(xlabel="correlation with age, new patients", ylabel="random splits")
    handles, labels = (a + b for a, b in zip(shown, right.get_legend_handles_labels(), strict=True))
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=7, frameon=False)
    return figures.save(figure, path)


def _draw_term(axis: Any, methods: Mapping[str, Any], term: str) -> None:
    for k, result in enumerate(methods.values()):
        for shift, rows, colour, label in (
            (-0.17, "train", figures.COLOURS[0], "rows of the fit"),
            (0.17, "test", figures.COLOURS[1], "new patients"),
        ):
            one = result[rows]["correlations"][term]
            ends = ([one["estimate"] - one["ci_low"]], [one["ci_high"] - one["estimate"]])
            axis.errorbar(
                one["estimate"], k + shift, xerr=ends, fmt="o", ms=4, color=colour, label=None if k else label
            )
            mark = "✗" if result[rows]["effects"][term]["p_value"] < 0.05 else "✓"
            axis.annotate(mark, (1.0, k + shift), xycoords=("axes fraction", "data"), color=colour, va="center")
    axis.set_yticks(range(len(methods)), [symbol(name) for name in methods])
    axis.set(xlabel=f"correlation with {term.split('[')[0]}", ylim=(len(methods) - 0.5, -0.5), xlim=(-0.3, 0.45))
    axis.axvline(0.0, color="black", lw=0.6)
