"""Outcome columns of a stream: numeric, or classes that are known only after all batches are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from setsquare import families
from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families import Family, contrasts
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.tables import Level
from setsquare.tables.column import Column, Levels
from setsquare.tables.validation import check_classes, refuse_missing_outcome

#: Maximum number of classes in a batch; a column with more values is not categorical.
MANY_CLASSES = 1000


@dataclass(frozen=True, slots=True)
class Seen:
    """Summary of the outcomes, and for classes the weight of each level."""

    outcomes: OutcomeSummary
    weights: Mapping[Level, float]

    def merge(self, other: Seen) -> Seen:
        """Combine with the summary of other rows."""
        return Seen(
            self.outcomes.merge(other.outcomes),
            {
                level: self.weights.get(level, 0.0) + other.weights.get(level, 0.0)
                for level in {**self.weights, **other.weights}
            },
        )


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numeric outcome."""

    family: Family

    def see(self, column: Column, weight: Array | None, offset: Array | None) -> Seen:
        """Summarise the column of a batch; raise for values outside the range of the family."""
        y = self.code(column)[:, 0]
        self.family.check_outcome(y if weight is None else y[weight > 0.0])
        return Seen(OutcomeSummary.of(y, weight, offset), {})

    def settle(self, seen: Seen) -> tuple[Family, OutcomeSummary, Outcome, Any]:
        """Return family, summary, encoder of batches, and classes (None), once all batches have been read."""
        return self.family, seen.outcomes, self, None

    def code(self, column: Column) -> Array:
        """Outcome (b, 1) of a batch."""
        _refuse_missing(column)
        if isinstance(column, Levels):
            raise InputError("The outcome must be numbers, not text: convert it, or use OrthogonalGLMClassifier.")
        return column.values[:, None]


@dataclass(frozen=True, slots=True)
class Classes:
    """Categorical outcome; ``names`` are known once all batches have been read."""

    names: tuple[Level, ...] = ()

    def see(self, column: Column, weight: Array | None, offset: Array | None) -> Seen:
        """Summarise the column of a batch."""
        _refuse_missing(column)
        if isinstance(column, Levels):
            found, codes = column.levels, column.codes
        else:
            values, codes = np.unique(column.values, return_inverse=True)
            found = tuple(values.tolist())
        if len(found) > MANY_CLASSES:
            raise InputError(
                f"The outcome has {len(found)} different values in one batch, too many for classes (at most "
                f"{MANY_CLASSES}): use OrthogonalGLMRegressor."
            )
        weights = np.bincount(codes, weight, minlength=len(found))
        return Seen(
            OutcomeSummary.of(np.zeros(len(codes)), weight, offset), dict(zip(found, weights.tolist(), strict=True))
        )

    def settle(self, seen: Seen) -> tuple[Family, OutcomeSummary, Outcome, Any]:
        """Return family, summary, encoder of batches, and classes."""
        names = tuple(sorted(seen.weights))  # type: ignore[type-var]
        weights = np.array([seen.weights[name] for name in names])
        check_classes(names, bool(weights.all()))
        family = families.binomial if len(names) == 2 else families.multinomial
        if family.is_vector and seen.outcomes.offset is not None:
            raise InputError("An offset for more than two classes needs the rows in memory: load them, or omit it.")
        sums = weights if family.is_vector else weights[1:]
        whole = all(isinstance(name, float) and name == int(name) for name in names)
        classes = np.array([int(name) for name in names] if whole else names)  # type: ignore[arg-type]
        return family, seen.outcomes.of_classes(sums), Classes(names), classes

    def code(self, column: Column) -> Array:
        """Outcome (b, k) of a batch: 0 or 1, or contrasts of the class."""
        _refuse_missing(column)
        place = {name: i for i, name in enumerate(self.names)}
        found, codes = (
            (column.levels, column.codes)
            if isinstance(column, Levels)
            else (self.names, np.searchsorted(np.array(self.names), column.values))
        )
        number = np.array([place[name] for name in found], dtype=np.int64)[codes]
        return contrasts(len(self.names))[number] if len(self.names) > 2 else number[:, None].astype(np.float64)


#: Conversion of a column into the outcome of a problem.
Outcome: TypeAlias = Numbers | Classes


def _refuse_missing(column: Column) -> None:
    refuse_missing_outcome(int(column.missing.sum()))
