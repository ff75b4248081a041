"""What a report is made of beside audits: predictions, outcome and protected columns of the same rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.auditing.comparison.classes import align, class_names, code_outcome
from setsquare.auditing.comparison.compare import Score
from setsquare.auditing.comparison.performance import difference, interval, performance
from setsquare.auditing.predictions import Raw, open_predictions, read_predictions
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.families import family as make_family
from setsquare.report.groups import Groups, group_rows
from setsquare.report.levels import Sample
from setsquare.tables import n_rows
from setsquare.tables.validation import check_alignment, check_same_rows, read_cluster, read_weight


@dataclass(frozen=True)  # without slots: groups are worked out once
class Material:
    """Predictions of each model on the same rows, and what is known of these rows.

    Attributes
    ----------
    values : dict of name to ndarray of shape (n,) or (n, K)
        Empty where units of a layer were audited: they are no predictions.
    family : Family
    classes : tuple of str
        Names of the K classes.
    protected : table or None
    outcome : ndarray of shape (n,) or None
    sample : Sample
    keep : boolean ndarray or None
        Rows of `protected` that take part.
    n_dropped : int
        Rows without a prediction, an outcome or a weight.
    """

    values: dict[str, Array]
    family: Family
    classes: tuple[str, ...]
    protected: Any
    outcome: Array | None
    sample: Sample
    keep: BoolArray | None
    n_dropped: int

    @cached_property
    def groups(self) -> tuple[Groups, ...]:
        """Groups by each protected column; tenths of continuous ones."""
        return () if self.protected is None else group_rows(self.protected, self.keep)

    @cached_property
    def coarse_groups(self) -> tuple[Groups, ...]:
        """The same with quarters of continuous columns, where a group must hold enough rows for a curve."""
        return () if self.protected is None else group_rows(self.protected, self.keep, n_slices=4)

    def scores(self) -> dict[str, tuple[Score, ...]]:
        """Performance of each model, with the difference to the first; empty without an outcome."""
        if self.outcome is None:
            return {}
        confidence, cluster = self.sample.confidence, self.sample.cluster
        metrics = {k: performance(self.outcome, v, self.family, self.sample.weight) for k, v in self.values.items()}
        first = next(iter(metrics.values()))
        return {
            name: tuple(
                Score(one.name, interval(one, confidence, cluster), difference(one, base, confidence, cluster), better)
                for one, base in zip(own, first, strict=True)
                for better in [bool(one.higher_is_better)]
            )
            for name, own in metrics.items()
        }


def read_material(
    predictions: Mapping[str, Any],
    protected: Any,
    outcome: Any,
    *,
    family: str,
    confidence: float,
    sample_weight: Any = None,
    cluster: Any = None,
    positive: object = None,
) -> Material:
    """Read predictions, and leave out rows in which one, the outcome or the weight is missing, with a count."""
    given = {name: open_predictions(values) for name, values in predictions.items()}
    target = None if outcome is None else open_predictions(outcome)
    sizes = {f"The set of predictions {name!r}": raw.n_rows for name, raw in given.items()}
    sizes |= {} if target is None else {"The outcome": target.n_rows}
    sizes |= {} if protected is None else {"The table of protected columns": n_rows(protected)}
    n = next(iter(sizes.values()))
    for what, rows in sizes.items():
        check_same_rows(f"{what} has", rows, "others have", n)
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
    kept = None if keep.all() else keep
    if kept is not None:
        given = {name: raw.take(keep) for name, raw in given.items()}
        target = None if target is None else target.take(keep)
        weight, codes = (None if part is None else part[keep] for part in (weight, codes))
    glm = parse_family(family)
    classes: tuple[str, ...] = ()
    values: dict[str, Array] = {}
    y: Array | None = None
    if target is not None:
        classes = class_names(target, given, glm, positive)
        values = {name: _means(raw, glm, classes) for name, raw in given.items()}
        y = _outcome(target, classes)
    else:
        subjects = {name: read_predictions(raw, glm, positive=positive) for name, raw in given.items()}
        if not any(subject.shape for subject in subjects.values()):
            values = {name: subject.values for name, subject in subjects.items()}
            classes = next(iter(subjects.values())).classes
    sample = Sample(weight, codes, confidence)
    return Material(values, glm, classes, protected, y, sample, kept, int(n - keep.sum()))


def _means(raw: Raw, glm: Family, classes: tuple[str, ...]) -> Array:
    """Predictions as means or shares; numbers need no look at each as a label."""
    plain = raw.array.ndim == 1 and raw.array.dtype.kind == "f" and not (glm.is_vector or classes)
    return read_predictions(raw, glm).values if plain else align(raw, glm, classes)[0]


def _outcome(raw: Raw, classes: tuple[str, ...]) -> Array:
    if raw.array.dtype.kind in "fiu" and classes in ((), ("0", "1")):
        return raw.array.astype(np.float64)
    return code_outcome(raw, classes)


def parse_family(words: str) -> Family:
    """Read a family as results name it.

    Examples
    --------
    >>> parse_family("tweedie(1.5), log link"), parse_family("binomial")
    (<family tweedie(1.5), log link>, <family binomial>)
    """
    found = re.fullmatch(r"(\w+)(?:\((.+)\))?(?:, (\w+) link)?", words)
    if found is None:
        raise InputError(f"{words!r} is no family.")
    name, parameter, link = found.groups()
    return make_family(name, link or "canonical", None if parameter is None else float(parameter))
