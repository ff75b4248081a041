"""Audit of held-out predictions from several folds, with corrections for cross-validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from setsquare import tables
from setsquare._typing import BoolArray, Table
from setsquare.auditing.audit_predictions import audit, cluster_numbers
from setsquare.auditing.cross_fit import allow_for_mutual_scores, mutual_scores
from setsquare.auditing.fold_bounds import allow_for_fit
from setsquare.auditing.held_out import HeldOut, as_numbers
from setsquare.auditing.predictions import OUTSIDE, open_predictions, read_predictions
from setsquare.auditing.protected import Protected
from setsquare.auditing.protected_in_features import determines
from setsquare.auditing.result import AuditResult
from setsquare.auditing.verdict import judge
from setsquare.notes import Note
from setsquare.tables.frame import dense
from setsquare.tables.validation import read_weight

#: Note for models that were fitted to the protected columns.
CANCEL = Note(
    "folds-cancel",
    "The models were fitted to the protected columns. Cross-validation then understates the correlation on new rows; "
    "the bounds correct for this.",
)


def audit_held_out(
    held: HeldOut,
    y: Any,
    protected: Table,
    *,
    told: bool,
    features: Any = None,
    sample_weight: Any = None,
    **options: Any,
) -> AuditResult:
    """Audit held-out predictions; `options` are those of :func:`audit`.

    Parameters
    ----------
    held : HeldOut
    y : array of n values
        The outcome that the models were fitted to.
    protected : table of n rows
    told : bool
        Whether the models were fitted to the protected columns; see :mod:`setsquare.auditing.fold_bounds`.
    features : table of n rows, optional
        Features of the models; where they determine a protected column, the models were fitted to it.
    sample_weight : array of n values, optional
    """
    known = np.unique(np.asarray(y))
    if held.classes is not None and held.predictions.ndim == 1 and len(known) == 2:
        options = {"positive": known[1]} | options  # for labels, too, the second class is positive, as in scikit-learn
    result = _audit(held, protected, sample_weight, options)
    if not result.evaluations:
        return result  # constant predictions
    keep, coded = code_protected(protected, sample_weight, options)
    outcome = as_numbers(y, held.classes)[keep]
    if outcome.shape[1] and np.isfinite(outcome).all() and held.numbers.shape[1]:
        predictions = (held.numbers - held.means)[keep]
        result = allow_for_mutual_scores(result, mutual_scores(outcome, np.nan_to_num(predictions), coded))
    if told or (features is not None and _are_known(features, keep, coded, options.get("random_state", 0))):
        bounds = allow_for_fit(result.certificate, held.growth, coded.basis.rank)
        result = replace(result, certificate=bounds, notes=(*result.notes, CANCEL))
    decision = judge(result.evaluations, result.certificate, confidence=result.confidence, limits=result.limits)
    return replace(
        result,
        verdict=decision.verdict,
        reason=decision.reason,
        found=decision.found,
        members=decision.members,
    )


def _audit(held: HeldOut, protected: Table, sample_weight: Any, options: Mapping[str, Any]) -> AuditResult:
    """Audit the predictions, minus the means of the models where they differ."""
    values = held.audited()
    options = dict(options)
    if np.ndim(values) == 2 and held.classes is not None:
        options = {"classes": held.classes} | options
    if values is held.predictions:
        return audit(values, protected, sample_weight=sample_weight, **options)
    # The family is that of the original predictions: subtracting a mean does not change it.
    raw = open_predictions(held.predictions, held.classes if held.predictions.ndim == 2 else None)
    subject = read_predictions(raw.take(~raw.missing), options.pop("family", None), options.get("positive"))
    if np.ndim(values) == 1:
        options.pop("positive", None)  # no longer labels or class probabilities
    result = audit(values, protected, subject.family, sample_weight=sample_weight, **options)
    result = replace(result, positive=subject.positive)
    return replace(result, notes=(*subject.notes, *(note for note in result.notes if note.code != OUTSIDE)))


def _are_known(features: Any, keep: BoolArray, coded: Protected, seed: int) -> bool:
    rows = features if keep.all() else _safe_indexing(features, np.flatnonzero(keep))
    return determines(rows, coded.values, np.random.default_rng(seed))


def code_protected(protected: Table, sample_weight: Any, options: Mapping[str, Any]) -> tuple[BoolArray, Protected]:
    """Rows that the audit keeps, and their coded protected columns."""
    n = tables.n_rows(protected)
    weight, cluster = read_weight(sample_weight, n), cluster_numbers(options.get("cluster"), n)
    reading = {name: options[name] for name in ("coding", "reference", "missing") if name in options}
    keep = np.ones(n, dtype=bool) if weight is None else weight > 0.0
    if reading.get("missing") == "drop":
        known = tables.learn(protected, **reading).apply(protected).keep
        keep &= True if known is None else known
    if not keep.all():
        protected = tables.filter_rows(protected, keep)
    encoded = tables.learn(protected, **reading).apply(protected)
    weight = None if weight is None else weight[keep]
    cluster = None if cluster is None else np.unique(cluster[keep], return_inverse=True)[1]
    return keep, Protected(dense(encoded.values), encoded.names, encoded.sources, weight, cluster)
