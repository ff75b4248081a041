"""What the audit finds on the paper's four data sets: uncorrected and corrected predictions, on old and on new rows.

    python -m benchmarks.audit_sets

The prediction model is a generalised linear one, plain or orthogonal to the protected columns; these are not among its
features. "Held out" refits it in five folds. The forest rows are those of the paper's outlook: importance of the
protected columns in a random forest that explains the predictions, with permutation p-values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import setsquare as sq
from setsquare.auditing import AuditResult

RESULTS = Path(__file__).parent / "results" / "audit_sets.json"
SETS: dict[str, Callable[[], sq.datasets.Dataset]] = {
    "adult": sq.datasets.load_adult,
    "bank": sq.datasets.load_bank,
    "compas": sq.datasets.load_compas,
    "health_retirement": sq.datasets.load_health_retirement,
}
EVALUATIONS = ("glm", "forest")


def plain(family: str) -> Any:
    """An ordinary generalised linear model by scikit-learn."""
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
        (StandardScaler(), make_column_selector(dtype_include="number")),
        sparse_threshold=0.0,
    )
    model = PoissonRegressor(alpha=1e-4, max_iter=1000) if family == "poisson" else LogisticRegression(max_iter=2000)
    return make_pipeline(encode, model)


def corrected(data: sq.datasets.Dataset) -> Any:
    """The same model, orthogonal to the protected columns."""
    if data.family == "poisson":
        return sq.OrthogonalGLMRegressor(family="poisson", unseen="pool")
    return sq.OrthogonalGLMClassifier(unseen="pool")


def run(name: str) -> list[dict[str, Any]]:
    data = SETS[name]()
    protected = data.protected_table()
    features = data.features_table().drop(columns=list(data.protected), errors="ignore")
    rows = []
    for label, model in (("uncorrected", plain(data.family)), ("corrected", corrected(data))):
        for setting, cv in (("in-sample", None), ("held out", 5)):
            result = sq.audit_model(
                model,
                features,
                data.y,
                protected,
                cv=cv,
                family=data.family,
                evaluation=EVALUATIONS,
                n_permutations=199,
            )
            rows.append({"data": name, "model": label, "setting": setting} | summary(result))
    return rows


def summary(result: AuditResult) -> dict[str, Any]:
    forest = result.evaluation("forest")
    return {
        "verdict": str(result.verdict),
        "correlation": result.certificate.correlation_sample,
        "correlation_upper": result.certificate.correlation_upper,
        "p": {name: result.evaluation(name).joint.p_value for name in EVALUATIONS},
        "forest_r2": forest.joint.statistic,
        "forest": {test.name: {"importance": test.statistic, "p": test.p_value} for test in forest.by_source},
    }


def show(rows: list[dict[str, Any]]) -> None:
    head = ("data", "model", "rows", "verdict", "corr", "at most", "p glm", "p forest")
    table = Table(*head, "forest R²", "forest importances (p)")
    for r in rows:
        importances = ", ".join(f"{k} {v['importance']:.3f} ({v['p']:.2f})" for k, v in r["forest"].items())
        numbers = (f"{r['correlation']:.3f}", f"{r['correlation_upper']:.3f}", *(f"{p:.2g}" for p in r["p"].values()))
        table.add_row(r["data"], r["model"], r["setting"], r["verdict"], *numbers, f"{r['forest_r2']:.3f}", importances)
    Console(width=200).print(table)


def main() -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in track(list(SETS), "auditing"):
        rows += run(name)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
