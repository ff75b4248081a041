"""The demonstration: a model of disease progression that uses age and sex, and two that do not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict

from setsquare import report
from setsquare._typing import Array
from setsquare.auditing import AuditResult, audit_model
from setsquare.cli.terminal import colour, working
from setsquare.datasets import Dataset, load_diabetes
from setsquare.estimators import OrthogonalGLMRegressor, PredictionOrthogonalizer
from setsquare.glm.solver import Certificate
from setsquare.report import Report


@dataclass(frozen=True, slots=True)
class Measured:
    """A model's R² and the correlation of its predictions with each protected column."""

    r2: float
    correlation: dict[str, float]


@dataclass(frozen=True, slots=True)
class Side:
    """One model, on its training rows and held out (5-fold cross-validation): predictions and audit of the latter."""

    name: str
    training: Measured
    held_out: Measured
    predictions: Array
    audit: AuditResult


@dataclass(frozen=True, slots=True)
class Demo:
    """The models side by side, and the certificate of the corrected one."""

    data: Dataset
    sides: tuple[Side, ...]
    certificate: Certificate


MODELS: dict[str, Any] = {
    "plain": LinearRegression(),
    "corrected\nmodel": OrthogonalGLMRegressor(protected=["age", "sex"]),
    "corrected\npredictions": PredictionOrthogonalizer(LinearRegression(), protected=["age", "sex"]),
}


def run() -> Demo:
    """Fit the model as it is and corrected in two ways, in-sample and held out.

    Examples
    --------
    >>> plain, corrected, _ = run().sides
    >>> bool(plain.training.correlation["age"] > 0.2 and abs(corrected.training.correlation["age"]) < 1e-8)
    True
    """
    data = load_diabetes()
    table = data.features_table()
    sides = tuple(_measure(name, model, data, table) for name, model in MODELS.items())
    fitted = OrthogonalGLMRegressor(protected=["age", "sex"]).fit(table, data.y)
    return Demo(data, sides, fitted.solution_.certificate)


def _measure(name: str, model: Any, data: Dataset, table: Any) -> Side:
    protected = list(data.protected)
    features = table.drop(columns=protected) if name == "plain" else table  # it would use them
    folds = KFold(5, shuffle=True, random_state=0)
    held_out = cross_val_predict(model, features, data.y, cv=folds)
    training = clone(model).fit(features, data.y).predict(features)
    found = audit_model(
        model,
        features,
        data.y,
        data.protected_table() if name == "plain" else protected,
        cv=folds,
        family="gaussian",
    )
    return Side(name, _against(data, training), _against(data, held_out), held_out, found)


def _against(data: Dataset, prediction: Array) -> Measured:
    columns = {"age": data.table["age"].to_numpy(float), "sex": data.table["sex"].cat.codes.to_numpy(float)}
    correlation = {name: float(np.corrcoef(x, prediction)[0, 1]) for name, x in columns.items()}
    return Measured(float(r2_score(data.y, prediction)), correlation)


def show(console: Console | None = None, page: Path | None = None) -> Demo:
    """Run the demonstration, print it, and write its report to `page` where one is given."""
    console = console or Console()
    with working("Fitting three models, and again on five folds", quiet=False):
        demo = run()
    console.print(Panel(_render(demo), title="Does a model of disease progression use age and sex?", expand=False))
    if page is not None:
        make_report(demo).to_html(page)
        console.print(f"Report: {page}", markup=False, soft_wrap=True)
    return demo


def make_report(demo: Demo) -> Report:
    """The models side by side as a report; the verdict is on the corrected model."""
    plain, model, predictions = demo.sides
    sides = {side.name.replace("\n", " "): side for side in (plain, predictions, model)}
    return report.build(
        {name: side.audit for name, side in sides.items()},
        predictions={name: side.predictions for name, side in sides.items()},
        protected=demo.data.protected_table(),
        outcome=demo.data.y,
        certificate=demo.certificate,
        title="Does a model of disease progression use age and sex?",
        method=[
            "Plain: least squares without age and sex. Corrected model: least squares under the constraint that the "
            "predictions are orthogonal to both. Corrected predictions: those of the plain model, projected.",
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
    for part, title in (("training", "On the patients it was trained on"), ("held_out", "On new patients (5 folds)")):
        table.add_row(f"[bold]{title}[/bold]")
        measured = [getattr(side, part) for side in demo.sides]
        for column in demo.data.protected:
            table.add_row(f"  correlation with {column}", *(_correlation(m.correlation[column]) for m in measured))
        table.add_row("  R²", *(f"{m.r2:.3f}" for m in measured))
    n = demo.data.n_rows
    return Group(
        f"{n} patients from scikit-learn's diabetes data; progression after a year.\n"
        "No model is fitted on age or sex: the plain one finds them in the other\nmeasurements.\n",
        table,
        "\nThe corrected model never needs age and sex again; the corrected predictions\n"
        "do, and keep more of the accuracy. The corrected model is orthogonal to age\n"
        "and sex on its training rows exactly, the corrected predictions on\n"
        f"cross-fitted rows; both are on {n} new rows up to chance (±{2 / np.sqrt(n):.2f}).\n",
        f"[bold]Certificate of the corrected model[/bold]\n{demo.certificate}\n",
        "[bold]Audit of the predictions for new patients[/bold]",
        *(_verdict(side) for side in demo.sides),
    )


def _verdict(side: Side) -> Padding:
    name = side.name.replace("\n", " ")
    tone = colour(str(side.audit.verdict))
    text = f"{name}: [{tone}]{side.audit.verdict}[/{tone}]. {side.audit.reason}"
    return Padding(text, (0, 0, 0, 2))


def _correlation(value: float) -> str:
    return f"{value:+.3f}" if abs(value) > 1e-6 else f"{value:+.0e}"
