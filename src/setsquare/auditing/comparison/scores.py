"""Scores of several models on the same rows, with differences to the first model."""

from __future__ import annotations

from dataclasses import dataclass

from setsquare.auditing.comparison.performance import Interval, difference, interval, performance
from setsquare.auditing.comparison.predicted_rows import PredictedRows


@dataclass(frozen=True, slots=True)
class Score:
    """Score of one set of predictions by one metric.

    Attributes
    ----------
    metric : str
    value : Interval
    difference : Interval
        Difference to the first set of predictions, on the same rows.
    higher_is_better : bool
    """

    metric: str
    value: Interval
    difference: Interval
    higher_is_better: bool


def score_models(rows: PredictedRows) -> dict[str, tuple[Score, ...]]:
    """Scores of each model by name, empty without an outcome; see :func:`performance`."""
    if rows.outcome is None:
        return {}
    weight, cluster, confidence = rows.sample.weight, rows.sample.cluster, rows.sample.confidence
    metrics = {name: performance(rows.outcome, values, rows.family, weight) for name, values in rows.values.items()}
    first = next(iter(metrics.values()), ())
    return {
        name: tuple(
            Score(one.name, interval(one, confidence, cluster), difference(one, base, confidence, cluster), better)
            for one, base in zip(own, first, strict=True)
            for better in [bool(one.higher_is_better)]
        )
        for name, own in metrics.items()
    }
