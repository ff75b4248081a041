"""The demonstration: a model that leaks a protected column, and two corrections, on rows that they did not see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from sklearn.base import is_classifier
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import KFold, cross_val_predict

from setsquare import report
from setsquare._typing import Array
from setsquare.auditing import AuditResult, audit_model
from setsquare.cli.terminal import colour, working
from setsquare.datasets import Dataset, available, load_arrests, load_diabetes
from setsquare.estimators import OrthogonalGLMClassifier, OrthogonalGLMRegressor, PredictionOrthogonalizer
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor
from setsquare.report import Report

FOLDS = KFold(5, shuffle=True, random_state=0)
PLAIN, MODEL, PREDICTIONS = NAMES = ("plain", "corrected\nmodel", "corrected\npredictions")

TRACE = (
    "A trace is a dependence that is significant but demonstrably small: each of its upper bounds is below the limit "
    "of the audit."
)
YOURS = "setsquare audit predictions.csv --predictions score --protected sex"


@dataclass(frozen=True, slots=True)
class Story:
    """The words of a demonstration."""

    title: str
    about: str
    mean: str
    score: str


STORIES = {
    "arrests": Story(
        title="Does a model of who is released depend on the colour of their skin?",
        about="5226 people were arrested in Toronto for possession of marijuana (1997 to 2002). Who is released with a "
        "summons? The model predicts it from age, sex, year, employment, citizenship and police records; it never "
        "sees colour. All numbers are for people that it was not fitted on (5 folds).",
        mean="mean probability of release",
        score="AUC",
    ),
    "diabetes": Story(
        title="Does a model of disease progression use age and sex?",
        about="442 patients from scikit-learn's diabetes data; progression after a year. The model never sees age or "
        "sex. All numbers are for patients that it was not fitted on (5 folds). The larger demonstration needs "
        "scikit-lego: pip install scikit-lego.",
        mean="mean prediction",
        score="R²",
    ),
}


@dataclass(frozen=True, slots=True)
class Side:
    """One model on rows that it was not fitted on (5 folds): predictions, their audit and their score."""

    name: str
    predictions: Array
    audit: AuditResult
    score: float


@dataclass(frozen=True, slots=True)
class Demo:
    """The models side by side, and the corrected one fitted to all rows."""

    data: Dataset
    story: Story
    sides: tuple[Side, ...]
    fitted: Any


def run(name: str | None = None) -> Demo:
    """Fit a model as it is and corrected in two ways, and audit each on rows that it was not fitted on.

    The data are the arrests, or the diabetes patients where scikit-lego, which contains the arrests, is not installed.

    Examples
    --------
    >>> [str(side.audit.verdict) for side in run("diabetes").sides]
    ['leak', 'inconclusive: n too small', 'inconclusive: n too small']
    """
    name = name or ("arrests" if available("arrests") else "diabetes")
    data = load_arrests() if name == "arrests" else load_diabetes()
    table, protected = data.features_table(), list(data.protected)
    models = _classifiers(protected) if data.family == "binomial" else _regressors(protected)
    sides = tuple(
        _measure(label, models[label], data, table.drop(columns=protected) if label == PLAIN else table)
        for label in NAMES
    )
    return Demo(data, STORIES[name], sides, models[MODEL].fit(table, data.y))


def _classifiers(protected: list[str]) -> dict[str, Any]:
    return {
        PLAIN: PlainGLMClassifier(),
        MODEL: OrthogonalGLMClassifier(protected=protected, orthogonal_on="new rows"),
        PREDICTIONS: PredictionOrthogonalizer(PlainGLMClassifier(), protected=protected),
    }


def _regressors(protected: list[str]) -> dict[str, Any]:
    return {
        PLAIN: PlainGLMRegressor(),
        MODEL: OrthogonalGLMRegressor(protected=protected, orthogonal_on="new rows"),
        PREDICTIONS: PredictionOrthogonalizer(PlainGLMRegressor(), protected=protected),
    }


def _measure(name: str, model: Any, data: Dataset, table: Any) -> Side:
    method, score = ("predict_proba", roc_auc_score) if is_classifier(model) else ("predict", r2_score)
    predictions = cross_val_predict(model, table, data.y, cv=FOLDS, method=method)
    predictions = predictions[:, 1] if method == "predict_proba" else predictions
    protected = data.protected_table() if name == PLAIN else list(data.protected)
    found = audit_model(model, table, data.y, protected, cv=FOLDS, family=data.family)
    return Side(name, predictions, found, float(score(data.y, predictions)))


def show(console: Console | None = None, page: Path | None = None) -> Demo:
    """Run the demonstration, print it, and write its report to `page` where one is given."""
    console = console or Console()
    with working("Fitting three models on five folds", quiet=False):
        demo = run()
    console.print(Panel(_render(demo), title=demo.story.title, expand=False))
    if page is not None:
        make_report(demo).to_html(page)
        console.print(f"Report: {page}", markup=False, soft_wrap=True)
    return demo


def make_report(demo: Demo) -> Report:
    """The models side by side as a report."""
    sides = {side.name.replace("\n", " "): side for side in demo.sides}
    return report.build(
        {name: side.audit for name, side in sides.items()},
        predictions={name: side.predictions for name, side in sides.items()},
        protected=demo.data.protected_table(),
        outcome=demo.data.y,
        certificate=demo.fitted.solution_.certificate,
        title=demo.story.title,
        method=[
            "Plain: a generalised linear model without the protected columns. Corrected model: the same, under the "
            "constraint that its predictions for new rows are uncorrelated with the protected columns. Corrected "
            "predictions: those of the plain model, projected; they need the protected columns.",
            "All numbers but the certificate's are of rows that the models were not fitted on (5 folds).",
        ],
        command="setsquare demo",
        data={"source": demo.data.source, "rows": f"{demo.data.n_rows}"},
    )


def _render(demo: Demo) -> Group:
    table = Table(box=None, padding=(0, 1))
    table.add_column("")
    for side in demo.sides:
        table.add_column(side.name, justify="right")
    for row in _rows(demo):
        table.add_row(*row)
    cost = demo.fitted.solution_.certificate.cost
    return Group(
        f"{escape(demo.story.about)}\n",
        table,
        "\n[bold]In words[/bold]",
        *(_verdict(side) for side in demo.sides),
        *([_indented(TRACE)] if any(str(side.audit.verdict) == "trace" for side in demo.sides) else []),
        "\n[bold]The price[/bold]",
        _indented(
            f"The corrected model predicts without {_protected(demo)} and gives up {cost:.0%} of what the features "
            f"explain. The corrected predictions keep more of it, but need {_protected(demo)}."
        ),
        "\n[bold]Your data[/bold]",
        _indented(YOURS),
    )


def _rows(demo: Demo) -> list[list[str]]:
    """Rows of the table: mean prediction by group, correlation, score, and the verdict of each model."""
    bounds = [side.audit.certificate for side in demo.sides]
    verdicts = (str(side.audit.verdict).replace(": ", ":\n") for side in demo.sides)
    return [
        [f"[bold]{demo.story.mean}[/bold]"],
        *_groups(demo),
        [f"[bold]correlation with {_protected(demo)}[/bold]", *(f"{bound.correlation:.3f}" for bound in bounds)],
        ["  at most (95 % confidence)", *(f"{bound.correlation_upper:.3f}" for bound in bounds)],
        [f"[bold]{demo.story.score}[/bold]", *(f"{side.score:.3f}" for side in demo.sides)],
        [
            f"[bold]needs {_protected(demo)} to predict[/bold]",
            *("yes" if side.name == PREDICTIONS else "no" for side in demo.sides),
        ],
        ["[bold]verdict[/bold]", *(f"[{colour(text.replace(chr(10), ' '))}]{text}[/]" for text in verdicts)],
    ]


def _protected(demo: Demo) -> str:
    return " and ".join(demo.data.protected)


def _groups(demo: Demo) -> list[list[str]]:
    """A row for each group of the protected columns: its name, and its mean prediction by each model."""
    tables = [side.audit.groups() for side in demo.sides]
    means = zip(*(table["mean"] for table in tables), strict=True)
    named = zip(tables[0]["source"], tables[0]["group"], means, strict=True)
    digits = 3 if demo.data.family == "binomial" else 1
    return [
        [f"  {source}: {group}", *(f"{mean:.{digits}f}" for mean in row)]
        for source, group, row in named
        if ":" not in source
    ]


def _verdict(side: Side) -> Padding:
    name = side.name.replace("\n", " ")
    tone = colour(str(side.audit.verdict))
    return _indented(f"[{tone}]{name[:1].upper()}{name[1:]}.[/] {escape(side.audit.reason)}")


def _indented(text: str) -> Padding:
    return Padding(text, (0, 0, 0, 2))
