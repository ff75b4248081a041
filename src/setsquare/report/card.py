"""Model cards of corrected models: Markdown and JSON in the fields of the Model Card Toolkit (schema 0.0.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from setsquare.auditing.comparison.result import Comparison
from setsquare.auditing.documents.sections import metric_name
from setsquare.auditing.result import AuditResult
from setsquare.document import Document, Documented, Headline, plain, section, table
from setsquare.document.formats import joined
from setsquare.errors import InputError

SCHEMA = "0.0.2"
_GROUPS = {"mean": "mean prediction", "selection_rate": "selection rate", "tpr": "TPR", "fpr": "FPR"}


@dataclass(frozen=True, slots=True)
class ModelCard(Documented):
    """A model card.

    Attributes
    ----------
    fields : dict
        Fields of the Model Card Toolkit: model_details, model_parameters, quantitative_analysis, considerations.
    verdict : Headline
        The verdict of the audit.
    """

    fields: dict[str, Any]
    verdict: Headline | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"schema_version": SCHEMA, **self.fields}

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON; also written to `path` if given."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def document(self) -> Document:
        """The document of this card."""
        details, parameters = self.fields["model_details"], self.fields["model_parameters"]
        about = self.fields["considerations"]
        rows = [
            [metric_name(metric["type"]), metric.get("slice", ""), [metric["value"], *_ends(metric)]]
            for metric in self.fields["quantitative_analysis"]["performance_metrics"]
        ]
        numbers = table(
            "Numbers, with intervals where there are any", [("text", "number", "group"), ("interval", "value")], rows
        )
        texts = {
            "users": "Users",
            "use_cases": "Use",
            "limitations": "Limits",
            "tradeoffs": "What the correction costs",
        }
        parts = [
            section("model", "Model", text=[details["overview"], details["documentation"]]),
            section("data", "Data", text=[each["description"] for each in parameters["data"]]),
            section("format", "Input and output", text=[parameters["input_format"], parameters["output_format"]]),
            section("numbers", "Numbers", tables=[numbers]),
        ]
        parts += [
            section(key, title, notes=[each["description"] for each in about[key]])
            for key, title in texts.items()
            if about.get(key)
        ]
        risks = [f"{risk['name']}: {risk['mitigation_strategy']}" for risk in about["ethical_considerations"]]
        parts.append(section("risks", "Protected columns", notes=risks))
        return Document(details["name"], () if self.verdict is None else (self.verdict,), tuple(parts))


def model_card(
    model: Any,
    audited: AuditResult | Comparison | None = None,
    *,
    name: str | None = None,
    data: str | None = None,
    users: Sequence[str] = (),
    use_cases: Sequence[str] = (),
    limitations: Sequence[str] = (),
) -> ModelCard:
    """Describe a corrected model: what it predicts from, what it must not use, how well it does, and its limits.

    Parameters
    ----------
    model : estimator
        A fitted OrthogonalGLMClassifier, OrthogonalGLMRegressor or PredictionOrthogonalizer.
    audited : AuditResult or Comparison, optional
        Audit of its predictions on rows that it was not fitted to; of a comparison, the last side is the model, and
        differences to the first are what the correction costs.
    name : str, optional
        Name of the model.
    data : str, optional
        The training data: what they are, and where they come from.
    users, use_cases, limitations : sequence of str
        What only the owner of the model knows; sentences.

    Returns
    -------
    ModelCard
        With ``to_markdown``, ``to_json``, ``to_html`` and ``to_docx``.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import setsquare as sq
    >>> rng = np.random.default_rng(0)
    >>> rows = pd.DataFrame({"sex": rng.choice(["f", "m"], 900), "debt": rng.normal(size=900)})
    >>> rows["income"] = rng.normal(size=900) + (rows["sex"] == "m")
    >>> y = rng.random(900) < 1 / (1 + np.exp(-rows["income"]))
    >>> model = sq.OrthogonalGLMClassifier(protected=["sex"]).fit(rows, y)
    >>> card = model_card(model, sq.audit(model.predict_proba(rows), rows["sex"]), name="Credit")
    >>> card.to_dict()["model_parameters"]["input_format"]
    'Columns debt and income. The protected columns (sex) are not needed to predict.'
    """
    if not hasattr(model, "reader_"):
        check_is_fitted(model)
        raise InputError(f"A model card is made of a corrected model, and a {type(model).__name__} is not one.")
    audit = audited.sides[-1].audit if isinstance(audited, Comparison) else audited
    protected = joined(list(model.reader_.protected.columns), most=20)
    fields = {
        "model_details": {
            "name": name or "Corrected model",
            "overview": f"{type(model).__name__}, corrected for {protected}.",
            "documentation": _method(model, protected),
        },
        "model_parameters": {
            "model_architecture": type(model).__name__,
            "data": [_data(model, data, protected)],
            "input_format": _input(model, protected),
            "output_format": _output(model),
        },
        "quantitative_analysis": {"performance_metrics": [*_scores(audited), *_groups(audit)]},
        "considerations": {
            "users": _sentences(users),
            "use_cases": _sentences(use_cases),
            "limitations": _sentences([*limitations, *_limits(model, audit)]),
            "tradeoffs": _sentences(_costs(model, audited)),
            "ethical_considerations": [_risk(protected, audit)],
        },
    }
    verdict = None if audit is None else Headline("", str(audit.verdict), audit.reason, audit.statistics)
    return ModelCard(plain(fields), verdict)


def _method(model: Any, protected: str) -> str:
    certificate = _certificate(model)
    if certificate is None:
        return f"The predictions of a {type(model.estimator_).__name__} are corrected for {protected}, which it needs."
    kind = f"A generalised linear model ({model.family_}) with {certificate.n_features} coefficients"
    if not certificate.is_orthogonal:
        return f"{kind}, fitted under bounds on its dependence on {protected}; it is not orthogonal to them."
    return f"{kind}, fitted under the constraint that its predictions are orthogonal to {protected}."


def _data(model: Any, about: str | None, protected: str) -> dict[str, Any]:
    certificate = _certificate(model)
    count = "" if certificate is None or not certificate.n_rows else f"{certificate.n_rows:,} training rows. "
    sensitive = {"sensitive_data": list(model.reader_.protected.columns)}
    text = f"{count}{about or ''}".strip() or f"Training rows with the protected columns {protected}."
    return {"name": "training rows", "description": text, "sensitive": sensitive}


def _input(model: Any, protected: str) -> str:
    reader = model.reader_
    names = getattr(model, "feature_names_in_", ()) if reader.features is None else reader.features.columns
    features = joined([str(each) for each in names if each not in reader.inside or reader.use_protected], most=50)
    needs = _certificate(model) is None or reader.use_protected
    return f"Columns {features}. The protected columns ({protected}) are {'' if needs else 'not '}needed to predict."


def _output(model: Any) -> str:
    classes = getattr(model, "classes_", None)
    if classes is None:
        return "A number per row."
    return f"A probability of each class ({joined([str(each) for each in classes], most=20)}) per row."


def _scores(audited: AuditResult | Comparison | None) -> list[dict[str, Any]]:
    if not isinstance(audited, Comparison):
        return []
    scores = audited.sides[-1].scores
    return [_metric(each.metric, each.value.estimate, each.value.ci_low, each.value.ci_high) for each in scores]


def _groups(audit: AuditResult | None) -> list[dict[str, Any]]:
    """Correlation, and numbers by group."""
    if audit is None:
        return []
    found = audit.certificate
    correlation = "correlation with the protected columns"
    bounds = [_metric(correlation, found.correlation), _metric(f"{correlation}, at most", found.correlation_upper)]
    rows: Sequence[Mapping[str, Any]] = (audit.to_dict().get("groups") or {}).get("groups", ())
    by_group = [
        _metric(words, row[key], row.get(f"{key}_low"), row.get(f"{key}_high"), f"{row['source']}: {row['group']}")
        for key, words in _GROUPS.items()
        for row in rows
        if row.get(key) is not None
    ]
    return [*bounds, *by_group]


def _metric(
    kind: str, value: float, low: float | None = None, high: float | None = None, part: str = ""
) -> dict[str, Any]:
    metric: dict[str, Any] = {"type": kind, "value": value}
    if low is not None and high is not None and low == low and high == high:
        metric["confidence_interval"] = {"lower_bound": low, "upper_bound": high}
    return metric | ({"slice": part} if part else {})


def _ends(metric: Mapping[str, Any]) -> list[float | None]:
    ends = metric.get("confidence_interval")
    return [None, None] if ends is None else [ends["lower_bound"], ends["upper_bound"]]


def _limits(model: Any, audit: AuditResult | None) -> list[str]:
    certificate = _certificate(model)
    said = []
    if certificate is not None and certificate.is_orthogonal:
        where = certificate.orthogonal_on
        said.append(f"The predictions are orthogonal on the {where}; other rows have sampling error.")
    said.append("Uncorrelated is not independent, and equal means are not equal error rates: see the audit.")
    return [*said, *(() if audit is None else map(str, audit.notes))]


def _costs(model: Any, audited: AuditResult | Comparison | None) -> list[str]:
    said = []
    certificate = _certificate(model)
    if certificate is not None and certificate.cost == certificate.cost:
        said.append(f"The constraint costs {certificate.cost:.1%} of the attainable reduction of the training loss.")
    if isinstance(audited, Comparison) and len(audited.sides) > 1:
        first, last = audited.sides[0].name, audited.sides[-1]
        said += [
            f"{metric_name(each.metric)}: {each.difference.estimate:+.4f} against {first}." for each in last.scores
        ]
    return said


def _risk(protected: str, audit: AuditResult | None) -> dict[str, str]:
    found = "Not audited." if audit is None else f"Audit ({audit.setting}): {audit.verdict}. {audit.reason}"
    return {"name": f"Dependence of the predictions on {protected}", "mitigation_strategy": found}


def _sentences(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"description": text} for text in texts]


def _certificate(model: Any) -> Any:
    return model.solution_.certificate if hasattr(model, "solution_") else None
