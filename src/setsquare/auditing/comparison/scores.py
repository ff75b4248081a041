"""Scores of several models on the same rows, with their differences to the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from setsquare._typing import Array, ArrayLike
from setsquare.auditing.comparison.performance import Interval, difference, interval, performance
from setsquare.families import Family


@dataclass(frozen=True, slots=True)
class Score:
    """How good one set of predictions is by one metric.

    Attributes
    ----------
    metric : str
    value : Interval
    difference : Interval
        To the first set of predictions, on the same rows.
    higher_is_better : bool
    """

    metric: str
    value: Interval
    difference: Interval
    higher_is_better: bool


def score_models(
    y: Array,
    predictions: Mapping[str, Array],
    family: Family,
    *,
    weight: Array | None = None,
    cluster: ArrayLike | None = None,
    confidence: float = 0.95,
) -> dict[str, tuple[Score, ...]]:
    """Scores of each model by name; see :func:`~setsquare.auditing.comparison.performance.performance`."""
    metrics = {name: performance(y, values, family, weight) for name, values in predictions.items()}
    first = next(iter(metrics.values()), ())
    return {
        name: tuple(
            Score(
                one.name,
                interval(one, confidence, cluster),
                difference(one, base, confidence, cluster),
                bool(one.higher_is_better),
            )
            for one, base in zip(own, first, strict=True)
        )
        for name, own in metrics.items()
    }
