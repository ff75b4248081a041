"""Comparison of several predictions of the same outcome: leakage and performance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from setsquare.auditing.audit_predictions import audit_rows
from setsquare.auditing.comparison.calibration import calibration
from setsquare.auditing.comparison.compared_rows import read_compared
from setsquare.auditing.comparison.metric import interval
from setsquare.auditing.comparison.performance import score_models
from setsquare.auditing.comparison.predicted_rows import PredictedRows
from setsquare.auditing.comparison.result import Comparison, Side
from setsquare.auditing.documents.group_sections import describe_groups
from setsquare.auditing.groups.partitions import MIN_GROUP
from setsquare.auditing.options import read_options
from setsquare.auditing.predictions import LABELS
from setsquare.auditing.result import AuditResult
from setsquare.families import Family
from setsquare.tables.arrow import accept_unread
from setsquare.tables.frame import backend_of
from setsquare.tables.validation import naming


@accept_unread
def compare(
    predictions: Mapping[str, Any],
    y: Any,
    protected: Any,
    family: str | Family | None = None,
    *,
    cluster: Any = None,
    sample_weight: Any = None,
    confidence: float = 0.95,
    positive: object = None,
    **options: Any,
) -> Comparison:
    """Compare several predictions of one outcome: leakage, performance and calibration.

    Parameters
    ----------
    predictions : mapping of name to predictions
        Each as for :func:`audit`; the others are compared with the first.
    y : array or series of n values
        The outcome: numbers, or two or more class labels.
    protected : dataframe, series or array of n rows
    family : str or Family, optional
        Family of outcome and predictions. By default it is guessed from the outcome (two values: binomial, text:
        classes, whole numbers from 0: poisson, other numbers: gaussian).
    cluster, sample_weight, confidence
        As for :func:`audit`.
    positive : class of the outcome, optional
        The class whose probability is predicted, for a binary outcome. By default 1, True or "yes", or else the class
        that a set of predictions is named after; of two columns of probabilities, the second class, as in scikit-learn.
    **options
        Everything else goes to :func:`audit`.

    Returns
    -------
    Comparison
    """
    rows, notes, reason = read_compared(
        predictions,
        y,
        protected,
        family,
        cluster=cluster,
        sample_weight=sample_weight,
        confidence=confidence,
        positive=positive,
        missing=options.get("missing", "error"),
    )
    given = {"sample_weight": rows.sample.weight, "cluster": rows.sample.cluster, "confidence": confidence, **options}
    given |= {} if rows.family.is_vector else {"outcome": rows.outcome}
    asked, coded, audits = read_options(family=rows.family, **given), None, {}
    for name, values in rows.values.items():
        with naming(name, among=len(rows.values)):
            audited = audit_rows(values, rows.protected, asked, coded)
        found, coded = audited.result, audited.coded  # the protected columns are the same for all
        kept = (note for note in found.notes if note.code != LABELS)
        audits[name] = replace(found, notes=(*notes[name], *kept), positive=rows.positive)
    compared = side_by_side(rows, audits, min_group=options.get("min_group", MIN_GROUP))
    return replace(compared, backend=backend_of(protected, *predictions.values()), notes=reason)


def side_by_side(rows: PredictedRows, audits: Mapping[str, AuditResult], *, min_group: int = MIN_GROUP) -> Comparison:
    """Compare audited predictions: scores, calibration, and predictions by group."""
    assert rows.outcome is not None
    weight, codes, confidence = rows.sample.weight, rows.sample.cluster, rows.sample.confidence
    scores, sides = score_models(rows), []
    for name, values in rows.values.items():
        with naming(name, among=len(rows.values)):
            own = calibration(rows.outcome, values, rows.family, weight, confidence=confidence, cluster=codes)
        large, slope = (interval(m, confidence, codes) for m in (own.in_the_large, own.slope))
        sides.append(Side(name, audits[name], scores[name], own, large, slope))
    groups = describe_groups(rows.weighted(), named=len(sides) > 1, min_group=min_group)
    n = len(rows.outcome)
    return Comparison(tuple(sides), rows.family, n, confidence, positive=rows.positive, groups=groups)
