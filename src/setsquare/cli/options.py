"""Options that the commands with an audit share, and the files that they ask for."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from setsquare.errors import InputError

if TYPE_CHECKING:
    from setsquare.document import Document


Family = Literal["gaussian", "binomial", "multinomial", "poisson", "gamma", "tweedie", "negative_binomial"]


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is read."""

    decimal: Literal[".", ","] | None = None
    """Decimal sign of numbers in a CSV file; by default a point, or a comma in columns where all numbers have one."""
    encoding: str | None = None
    """Encoding of a CSV file, such as utf-8, cp1252 or utf-16; guessed by default."""
    sheet: str | None = None
    """Sheet of an Excel file; needed if several have rows."""


@dataclass(frozen=True, slots=True)
class AuditedColumns:
    """Columns of an audit beside predictions and outcome, and what is said about the predictions."""

    protected: list[str]
    """Columns that the predictions must not depend on, comma-separated; or a formula, such as
    "~ sex * bs(age, df=4)"."""
    given: tuple[str, ...] = ()
    """Controls, comma-separated: columns that may explain differences between protected groups; or "outcome" (with
    --outcome), to compare predictions within each class of it."""
    cluster: str | None = None
    """Cluster column, for example the patient; gives cluster-robust standard errors."""
    weight: str | None = None
    """Column of sample weights."""
    family: Family | None = None
    """Family of the predictions (and the outcome); guessed by default."""
    positive: str | None = None
    """The class, of two, whose probability the predictions give; by default 1, true, yes, y, or the class that a column
    of predictions is named after."""
    threshold: float | None = None
    """Predictions of at least this are positive decisions; gives selection rates and impact ratios by group."""
    decisions: str | None = None
    """Column of decisions (0 and 1, or two classes), instead of a threshold."""
    reference: tuple[str, ...] = ()
    """Reference groups, such as race=White, comma-separated; by default the largest group of each column."""
    min_group: int = 10
    """Groups with fewer rows have no numbers."""
    standard: Literal["four-fifths", "ll144"] | None = None
    """Add the table of the four-fifths rule, or of New York City's Local Law 144. Not legal advice."""

    @property
    def groups(self) -> dict[str, Any]:
        """Options of `setsquare.audit` on groups, except for decisions."""
        return {
            "threshold": self.threshold,
            "reference": read_references(self.reference),
            "min_group": self.min_group,
            "standard": self.standard,
        }


def is_outcome(given: Sequence[str]) -> bool:
    """Whether the outcome is given, and not columns."""
    return tuple(given) == ("outcome",)


def read_references(pairs: Sequence[str]) -> dict[str, str] | None:
    """Reference groups by column.

    Examples
    --------
    >>> read_references(["race=White,sex=male"])
    {'race': 'White', 'sex': 'male'}
    """
    found = {}
    for pair in (part for given in pairs for part in given.split(",")):
        column, equals, group = (text.strip() for text in pair.partition("="))
        if not (column and equals and group):
            raise InputError(f"--reference {pair} names no group: write column=group, such as race=White.")
        found[column] = group
    return found or None


@dataclass(frozen=True, slots=True)
class Fitting:
    """Columns and options of a corrected fit."""

    outcome: str
    """Column to predict."""
    protected: list[str]
    """Columns that the predictions must not depend on, comma-separated; or a formula, such as
    "~ sex * bs(age, df=4)"."""
    features: tuple[str, ...] = ()
    """Columns to predict from, comma-separated; by default all others except identifiers, dates and empty columns."""
    exclude: tuple[str, ...] = ()
    """Columns to leave out of the features, comma-separated."""
    family: Family | None = None
    """Family of the outcome; guessed by default."""
    method: Literal["constrained", "generalized", "linear"] = "constrained"
    """Constrained: predicts without the protected columns. Generalized: needs them, keeps more accuracy. Linear: needs
    them, and may leave the range of the predictions."""
    cluster: str | None = None
    """Cluster column, for example the patient; gives cluster-robust standard errors, no fold splits a cluster, and for
    new rows whole clusters are left out."""
    given: tuple[str, ...] = ()
    """Controls, comma-separated: features that may explain differences between protected groups; or "outcome", for
    equal mean predictions within each class of it (constrained method)."""
    l2: float | Literal["auto"] = 0.0
    """Ridge on the coefficients; auto (constrained method) chooses it by the leave-one-out loss."""
    expand: Literal["none", "auto"] = "none"
    """Constrained method: auto adds hinge functions of numeric columns and products of pairs of columns to the
    features, with a ridge chosen by leave-one-out predictions."""
    relax: Literal["none", "box"] = "none"
    """Constrained method: box limits the correlation with each protected column to what chance would give, for more
    protected columns than orthogonal predictions allow. The model is then not called orthogonal."""
    orthogonal_on: Literal["training-rows", "new-rows"] = "training-rows"
    """Constrained method: rows on which the predictions are uncorrelated with the protected columns: exactly on the
    training rows, or on new rows, estimated by leave-one-out predictions."""
    max_correlation: float | None = None
    """Constrained method: write nothing and end with exit code 2 unless the upper bound on the correlation on new rows
    (at the level of --confidence) is at most this."""
    budget: float = 0.0
    """Constrained method: share of the covariance with the protected columns that may stay on the training rows, from 0
    (orthogonal) to 1 (no correction)."""
    unseen: Literal["error", "pool"] = "error"
    """Whether rows to predict may have groups that the training rows do not have."""
    folds: int = 5
    """Number of cross-validation folds of the audit."""
    seed: int = 0
    """Random seed for the folds."""
    positive: str | None = None
    """The class, of two, that the results are about; by default the second class of the model."""


@dataclass(frozen=True, slots=True)
class Options(Reading):
    """Options for reading columns, for the audit, and for its output."""

    categorical: tuple[str, ...] = ()
    """Columns of numbers that are codes of groups, comma-separated."""
    evaluation: tuple[str, ...] = ()
    """Evaluation models, comma-separated: glm, linear, shape, relu, forest, independence, and with --given also gcm; by
    default glm and shape (with --given linear)."""
    group_cells: bool = False
    """Protect every combination of the groups, not only each protected column on its own."""
    basis: Literal["linear", "cells", "spline", "kernel"] = "linear"
    """Functions of the protected columns that are protected or audited: the columns themselves, combinations of the
    groups (as --group-cells), cubic splines of numbers, or the leading functions of a Gaussian kernel."""
    missing: Literal["error", "drop", "level", "model"] = "error"
    """Refuse missing values, drop their rows, or make them a group of their own. Model: protected columns that only
    some rows have are modelled (correct: constrained method), assuming that they are missing at random."""
    confidence: float = 0.95
    """Confidence of intervals and bounds."""
    tolerance: float = 0.05
    """Largest correlation that counts as a trace instead of a leak; 0 makes everything that is detected a leak."""
    group_tolerance: float = 0.1
    """Largest difference between groups that counts as a trace, in standard deviations of the predictions."""
    shape_tolerance: float = 0.2
    """Largest correlation with curves, combinations of groups and spread that counts as a trace."""
    html: Path | None = None
    """Write a report as one self-contained HTML page."""
    json: Path | None = None
    """Write the results as JSON."""
    latex: Path | None = None
    """Write the tables of the report as LaTeX (booktabs)."""
    docx: Path | None = None
    """Write the report as a Word file."""
    markdown: Path | None = None
    """Write the report as Markdown."""
    fail_on_leak: bool = False
    """End with exit code 1 if a leak is found."""
    quiet: bool = False
    """Print the verdict only."""

    @property
    def takes_cells(self) -> bool:
        """Whether combinations of the groups are protected."""
        if self.group_cells and self.basis not in ("linear", "cells"):
            raise InputError(
                f"--group-cells is --basis cells: leave out one of --group-cells and --basis {self.basis}."
            )
        return self.group_cells or self.basis == "cells"

    @property
    def missing_rule(self) -> str:
        """The rule for missing values, after incomplete rows were dropped."""
        return self.missing if self.missing in ("level", "model") else "error"

    def functions(self, formula: str | None) -> str:
        """Functions of the protected columns: those of a formula, or of a basis."""
        if formula is None:
            return "cells" if self.takes_cells else self.basis
        if self.takes_cells or self.basis != "linear":
            raise InputError("A formula says which functions are protected: leave out --basis and --group-cells.")
        return formula

    def audit(self, formula: str | None) -> dict[str, Any]:
        """Options of `setsquare.audit`; with ``--missing drop`` incomplete rows are left out before it."""
        from setsquare.auditing import Limits

        models = [name.strip() for given in self.evaluation for name in given.split(",")]
        return {
            "basis": self.functions(formula),
            "missing": self.missing_rule,
            "confidence": self.confidence,
            "tolerance": Limits(self.tolerance, self.group_tolerance, self.shape_tolerance),
            **({"evaluation": models} if models else {}),
        }

    @property
    def outputs(self) -> list[Path]:
        """Files to write."""
        return [path for path in (self.html, self.json, self.latex, self.docx, self.markdown) if path is not None]


def about_command(data: Mapping[str, str]) -> dict[str, Any]:
    """The command as it was given, and the file that it read."""
    return {"command": shlex.join(["setsquare", *sys.argv[1:]]), "data": data}


def render_results(options: Options, document: Document, values: Callable[[], Mapping[str, Any]]) -> dict[Path, bytes]:
    """Contents of the files that were asked for: the page of a document, and JSON of the values."""
    from setsquare.document import plain

    contents: dict[Path, bytes] = {}
    if options.html is not None:
        from setsquare.cli.terminal import phrase

        spoken = ({**part, "notes": [phrase(note) for note in part["notes"]]} for part in document.sections)
        contents[options.html] = replace(document, sections=tuple(spoken)).to_html().encode()
    if options.json is not None:
        text = json.dumps(plain(values()), ensure_ascii=False, indent=2, allow_nan=False)
        contents[options.json] = f"{text}\n".encode()
    if options.latex is not None:
        contents[options.latex] = document.to_latex().encode()
    if options.docx is not None:
        contents[options.docx] = document.to_docx()
    if options.markdown is not None:
        contents[options.markdown] = document.to_markdown().encode()
    return contents
