"""Predictions, outcome and protected columns of the same rows, for summaries by protected group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from setsquare._typing import Array, BoolArray, Table
from setsquare.auditing.comparison.by_group import Sample
from setsquare.auditing.comparison.classes import align, class_names, code_outcome
from setsquare.auditing.predictions import Raw, open_predictions, read_predictions
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.tables import n_rows
from setsquare.tables.validation import check_alignment, check_same_rows, read_cluster, read_weight


@dataclass(frozen=True, slots=True)
class PredictedRows:
    """Predictions of each model for the same rows, with outcome, protected columns and weights.

    Attributes
    ----------
    values : dict of name to ndarray of shape (n,) or (n, K)
        Empty for units of a layer, which are not predictions.
    family : Family
    classes : tuple of str
        Names of the K classes.
    protected : table or None
    outcome : ndarray of shape (n,) or None
    sample : Sample
    keep : boolean ndarray or None
        Rows of `protected` that are used.
    n_dropped : int
        Rows without a prediction, an outcome or a weight.
    """

    values: dict[str, Array]
    family: Family
    classes: tuple[str, ...]
    protected: Table | None
    outcome: Array | None
    sample: Sample
    keep: BoolArray | None = None
    n_dropped: int = 0

    def weighted(self) -> PredictedRows:
        """The rows that have a weight."""
        weight, cluster = self.sample.weight, self.sample.cluster
        if weight is None or bool((keep := weight > 0.0).all()):
            return self
        return replace(
            self,
            values={name: values[keep] for name, values in self.values.items()},
            outcome=None if self.outcome is None else self.outcome[keep],
            sample=replace(self.sample, weight=weight[keep], cluster=None if cluster is None else cluster[keep]),
            keep=keep,
            n_dropped=int((~keep).sum()),
        )


def read_rows(
    predictions: Mapping[str, Any],
    protected: Any,
    outcome: Any,
    *,
    family: Family,
    confidence: float,
    sample_weight: Any = None,
    cluster: Any = None,
    positive: object = None,
) -> PredictedRows:
    """Read predictions; rows with a missing prediction, outcome or weight are dropped and counted."""
    given = {name: open_predictions(values) for name, values in predictions.items()}
    target = None if outcome is None else open_predictions(outcome)
    n = _count_rows(given, target, protected)
    for name, column in predictions.items():
        for table in (protected, outcome):
            if table is not None:
                check_alignment(table, column, f"{name}, a set of predictions,")
    weight = read_weight(sample_weight, n)
    keep = ~np.logical_or.reduce([raw.missing for raw in (*given.values(), *([] if target is None else [target]))])
    keep &= True if weight is None else weight > 0.0
    if not keep.any():
        raise InputError("No row has a prediction, an outcome and a weight: there is nothing to report.")
    codes = None if cluster is None else read_cluster(cluster, n)
    if not keep.all():
        given = {name: raw.take(keep) for name, raw in given.items()}
        target = None if target is None else target.take(keep)
        weight, codes = (None if part is None else part[keep] for part in (weight, codes))
    values, classes, y = _interpret(given, target, family, positive)
    kept = None if keep.all() else keep
    sample = Sample(weight, codes, confidence)
    return PredictedRows(values, family, classes, protected, y, sample, kept, int(n - keep.sum()))


def _count_rows(given: Mapping[str, Raw], target: Raw | None, protected: Any) -> int:
    sizes = {f"The set of predictions {name!r}": raw.n_rows for name, raw in given.items()}
    sizes |= {} if target is None else {"The outcome": target.n_rows}
    sizes |= {} if protected is None else {"The table of protected columns": n_rows(protected)}
    n = next(iter(sizes.values()))
    for what, rows in sizes.items():
        check_same_rows(f"{what} has", rows, "others have", n)
    return n


def _interpret(
    given: Mapping[str, Raw], target: Raw | None, glm: Family, positive: object
) -> tuple[dict[str, Array], tuple[str, ...], Array | None]:
    """Predictions as means or shares, names of the classes, and the outcome as numbers; units are not predictions."""
    if target is not None:
        classes = class_names(target, given, glm, positive)
        return {name: _means(raw, glm, classes) for name, raw in given.items()}, classes, _outcome(target, classes)
    subjects = {name: read_predictions(raw, glm, positive=positive) for name, raw in given.items()}
    if any(subject.shape for subject in subjects.values()):
        return {}, (), None
    return {name: one.values for name, one in subjects.items()}, next(iter(subjects.values())).classes, None


def _means(raw: Raw, glm: Family, classes: tuple[str, ...]) -> Array:
    """Predictions as means or shares; numbers are not checked for labels one by one."""
    is_number = raw.array.ndim == 1 and raw.array.dtype.kind == "f" and not (glm.is_vector or classes)
    return read_predictions(raw, glm).values if is_number else align(raw, glm, classes)[0]


def _outcome(raw: Raw, classes: tuple[str, ...]) -> Array:
    if raw.array.dtype.kind in "fiu" and classes in ((), ("0", "1")):
        return raw.array.astype(np.float64)
    return code_outcome(raw, classes)
